// Packing of documents (model/batches): against enumeration, and the cases of published comparisons.

#include "model/batches/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "model/batches/batch.h"
#include "model/batches/context_groups.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/to_size.h"
#include "tests/support/command.h"

namespace sluice::test {
namespace {

using namespace model;  // NOLINT(google-build-using-namespace)

PackingProblem problem_of(const std::vector<std::int64_t>& lengths, int bins, bool squared, std::int64_t cap = 0) {
  PackingProblem out{.weight = {}, .tokens = lengths, .bins = bins, .cap = cap};
  for (const std::int64_t length : lengths)
    out.weight.push_back(static_cast<double>(squared ? length * length : length));
  return out;
}

// Calls `visit` for every assignment of items to bins that keeps the limits.
void for_each_packing(const PackingProblem& problem, const std::function<void(const Packing&)>& visit) {
  Packing packing(problem.weight.size(), 0);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(problem.bins), 0);
  const std::function<void(std::size_t)> assign = [&](std::size_t item) {
    if (item == packing.size()) {
      std::vector<bool> used(tokens.size(), false);
      for (const int bin : packing) used[static_cast<std::size_t>(bin)] = true;
      if (std::find(used.begin(), used.end(), false) == used.end()) visit(packing);
      return;
    }
    for (std::size_t bin = 0; bin < tokens.size(); ++bin) {
      if (problem.cap > 0 && tokens[bin] + problem.tokens[item] > problem.cap) continue;
      tokens[bin] += problem.tokens[item];
      packing[item] = static_cast<int>(bin);
      assign(item + 1);
      tokens[bin] -= problem.tokens[item];
    }
  };
  assign(0);
}

TEST(Packing, ExactIsTheLeastOfAll) {
  std::mt19937 random(3);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<>(low, high)(random); };
  int infeasible = 0;
  for (int round = 0; round < 500; ++round) {
    const int bins = draw(1, 4);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(draw(bins, 8)));
    for (std::int64_t& length : lengths) length = draw(1, 12);
    const PackingProblem problem = problem_of(lengths, bins, draw(0, 1) == 1, draw(0, 2) == 0 ? draw(12, 24) : 0);
    double least = std::numeric_limits<double>::infinity();
    for_each_packing(problem, [&](const Packing& packing) { least = std::min(least, heaviest(problem, packing)); });
    const auto found = pack_exactly(problem);
    ASSERT_EQ(found.has_value(), least < std::numeric_limits<double>::infinity());
    infeasible += found ? 0 : 1;
    for (const auto& other : {pack_greedily(problem), pack_by_differencing(problem)}) {
      if (!other) continue;
      EXPECT_GE(heaviest(problem, *other), least);
    }
    if (!found) continue;
    EXPECT_TRUE(found->proven);
    EXPECT_EQ(heaviest(problem, found->packing), least);
  }
  EXPECT_GT(infeasible, 10);
}

TEST(Packing, LeastAndLongestFirst) {
  const std::vector<std::int64_t> seven = {7, 6, 5, 5, 4, 4, 3};
  const std::vector<std::int64_t> ten = {9, 7, 6, 5, 5, 4, 4, 3, 3, 2};
  struct Case {
    PackingProblem problem;
    double exact, greedy;
  };
  for (const Case& each : {Case{problem_of(seven, 3, true), 61, 65},
                           {problem_of(seven, 3, false), 12, 13},
                           {problem_of(ten, 3, true), 90, 90},
                           {problem_of(ten, 3, false), 16, 17}}) {
    EXPECT_EQ(heaviest(each.problem, pack_exactly(each.problem).value().packing), each.exact);
    EXPECT_EQ(heaviest(each.problem, pack_greedily(each.problem).value()), each.greedy);
  }
  EXPECT_FALSE(pack_exactly(problem_of({7, 7, 7, 7, 7, 7, 7, 7}, 7, false, 8)).has_value());
}

// All documents are in the batch once, within the limit of tokens, and every replica has as many microbatches.
TEST(Batches, HaveEveryDocumentOnce) {
  std::mt19937 random(5);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    BatchRequest request{.loaded = {},
                         .place = "test",
                         .packer = static_cast<Packer>(draw(1, 4)),
                         .order = static_cast<MicrobatchOrder>(draw(0, 2)),
                         .replicas = draw(1, 4),
                         .most_tokens = 64,
                         .in_step = draw(0, 1) == 1};
    std::vector<std::int64_t> all;
    for (int i = request.packer == Packer::exact ? 12 : draw(20, 60); i > 0; --i) {
      all.push_back(draw(1, 20));
      if (request.loaded.empty() || draw(0, 2) == 0) request.loaded.emplace_back();
      request.loaded.back().push_back(all.back());
    }
    Batch batch;
    try {
      batch = make_batch(request, nullptr);
    } catch (const InputError&) {
      // These do not know the limit.
      EXPECT_TRUE(request.packer == Packer::differencing || request.packer == Packer::balanced);
      continue;
    }
    std::vector<std::int64_t> found;
    batch.for_each_document([&](std::int64_t tokens) { found.push_back(tokens); });
    std::sort(all.begin(), all.end());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, all);
    EXPECT_LE(batch.longest(), 64);
    for (const Microbatches& replica : batch.replicas) {
      EXPECT_EQ(std::ssize(replica), batch.microbatches());
      if (request.order == MicrobatchOrder::given) continue;
      EXPECT_TRUE(std::is_sorted(replica.begin(), replica.end(), [&](const Documents& a, const Documents& b) {
        return request.order == MicrobatchOrder::ascending ? tokens_of(a) < tokens_of(b) : tokens_of(b) < tokens_of(a);
      }));
    }
  }
}

TEST(Batches, FilesNameWhatIsWrong) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& name, const std::string& text) {
    write_file_whole(folder.path(name), text);
    return read_lengths(folder.path(name), "place");
  };
  EXPECT_EQ(read("a.txt", "5 7,3\n\n# none\n2 # two\n"), (std::vector<Documents>{{5, 7, 3}, {2}}));
  EXPECT_EQ(read("a.json", "[[5, 7], 3]"), (std::vector<Documents>{{5, 7}, {3}}));
  EXPECT_EQ(read_lengths("lognormal:100,1,50,9", "place").size(), 9U);
  const auto error = [&](const auto& of) -> std::string {
    try {
      of();
    } catch (const InputError& wrong) {
      return wrong.what();
    }
    return "none";
  };
  EXPECT_NE(error([&] { read("b.txt", "5\n7 -3\n"); }).find("b.txt: line 2: expected lengths of 1 to"),
            std::string::npos);
  EXPECT_NE(error([&] { read("b.txt", "5 1e3\n"); }).find("got '1e3'"), std::string::npos);
  EXPECT_NE(error([&] { read("b.txt", "# none\n"); }).find("got none"), std::string::npos);
  EXPECT_NE(error([&] { read("b.json", "[[5], []]"); }).find("b.json: /1: expected at least one"), std::string::npos);
  EXPECT_NE(error([&] { read("b.json", "[5, \"7\"]"); }).find("b.json: /1"), std::string::npos);
  for (const char* wrong :
       {"lognormal:", "lognormal:1,2,3", "lognormal:1,9,3,4", "lognormal:a,1,3,4", "lognormal:1,1,3,0"}) {
    EXPECT_NE(error([&] { read_lengths(wrong, "place"); }).find("place: expected lognormal:MEDIAN"), std::string::npos);
  }
}

// Dynamic context parallelism (model/batches/context_groups.h).

double squares(std::int64_t tokens, int ranks) {
  return static_cast<double>(tokens) * static_cast<double>(tokens) / ranks;
}

double time_of(const ContextGroup& group, const ContextProblem& problem) {
  const std::vector<double> times = times_of_ranks(group, problem);
  return *std::max_element(times.begin(), times.end());
}

// Megatron-LM's scheduler, executed with these lengths, has two groups with these times; 8704 is the least time of one
// group with the least ranks, 8480 that of any ranks (enumerated by another program).
TEST(ContextGroups, FollowMegatronsRule) {
  const ContextProblem problem{
      .documents = {16, 128, 8, 48, 96, 24, 64, 32}, .ranks = 4, .most_tokens = 64, .time = squares};
  const std::vector<ContextGroup> groups = megatron_groups(problem);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_THAT(times_of_ranks(groups[0], problem), testing::ElementsAre(8192, 8192, 4608, 4608));
  EXPECT_THAT(times_of_ranks(groups[1], problem), testing::ElementsAre(4096, 2304, 1024, 896));
  EXPECT_EQ(time_of(groups[0], problem) + time_of(groups[1], problem), 12288);
  EXPECT_EQ(time_of(fastest_group(problem), problem), 8480);
}

// Squares, of which every document takes its least ranks, since more cost much.
TEST(ContextGroups, UseTheLeastRanksWhereMoreAreSlow) {
  ContextProblem problem{.documents = {16, 128, 8, 48, 96, 24, 64, 32}, .ranks = 4, .most_tokens = 64, .time = {}};
  problem.time = [](std::int64_t tokens, int ranks) {
    return squares(tokens, ranks) * (ranks == least_ranks(tokens, 64) ? 1 : 100);
  };
  EXPECT_EQ(time_of(fastest_group(problem), problem), 8704);
}

ContextProblem random_problem(std::mt19937& random, int most_documents) {
  ContextProblem out{
      .documents = {}, .ranks = 1 << std::uniform_int_distribution<>(0, 4)(random), .most_tokens = 64, .time = {}};
  const int count = std::uniform_int_distribution<>(1, most_documents)(random);
  for (int i = 0; i < count; ++i) {
    out.documents.push_back(std::uniform_int_distribution<std::int64_t>(1, 64 * out.ranks)(random));
  }
  const double fixed = std::uniform_real_distribution<>(0, 500)(random);
  out.time = [fixed](std::int64_t tokens, int ranks) {
    return squares(tokens, ranks) + fixed * (1 + std::log2(ranks));
  };
  return out;
}

void check_group(const ContextGroup& group, const ContextProblem& problem) {
  int before = problem.ranks;
  for (const SharedDocument& document : group) {
    EXPECT_LE(document.tokens, problem.most_tokens * document.ranks);
    EXPECT_EQ(document.first % document.ranks, 0);
    EXPECT_LE(document.first + document.ranks, problem.ranks);
    EXPECT_LE(document.ranks, before);
    before = document.ranks;
  }
}

TEST(ContextGroups, HaveEveryDocumentOnceOnAlignedRanksAndNoRankIdle) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const ContextProblem problem = random_problem(random, 60);
    Documents all = problem.documents;
    std::sort(all.begin(), all.end());
    Documents of_rule;
    for (const ContextGroup& group : megatron_groups(problem)) {
      check_group(group, problem);
      EXPECT_THAT(times_of_ranks(group, problem), testing::Each(testing::Gt(0)));
      for (const SharedDocument& document : group) of_rule.push_back(document.tokens);
    }
    const ContextGroup fastest = fastest_group(problem);
    check_group(fastest, problem);
    Documents of_fastest;
    for (const SharedDocument& document : fastest) of_fastest.push_back(document.tokens);
    std::sort(of_rule.begin(), of_rule.end());
    std::sort(of_fastest.begin(), of_fastest.end());
    EXPECT_EQ(of_rule, all);
    EXPECT_EQ(of_fastest, all);
  }
}

// The least time over all numbers of ranks and all places, document by document.
double exhaustive(const ContextProblem& problem, std::size_t next, std::vector<double>& loads) {
  if (next == problem.documents.size()) return *std::max_element(loads.begin(), loads.end());
  double least = std::numeric_limits<double>::infinity();
  const std::int64_t tokens = problem.documents[next];
  for (int ranks = least_ranks(tokens, problem.most_tokens); ranks <= problem.ranks; ranks *= 2) {
    for (int first = 0; first < problem.ranks; first += ranks) {
      for (int rank = first; rank < first + ranks; ++rank) loads[to_size(rank)] += problem.time(tokens, ranks);
      least = std::min(least, exhaustive(problem, next + 1, loads));
      for (int rank = first; rank < first + ranks; ++rank) loads[to_size(rank)] -= problem.time(tokens, ranks);
    }
  }
  return least;
}

TEST(ContextGroups, AreNearTheLeastTime) {
  std::mt19937 random(11);
  double excess = 0;
  int rounds = 0;
  while (rounds < 200) {
    const ContextProblem problem = random_problem(random, 5);
    if (problem.ranks > 4) continue;
    ++rounds;
    std::vector<double> loads(to_size(problem.ranks));
    const double least = exhaustive(problem, 0, loads);
    const double found = time_of(fastest_group(problem), problem);
    EXPECT_GE(found, least * (1 - 1e-9));
    EXPECT_LE(least_time(problem), least * (1 + 1e-9));
    excess += found / least - 1;
  }
  EXPECT_LT(excess / rounds, 0.01);
}

}  // namespace
}  // namespace sluice::test
