#include "model/batches/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "model/batches/packing.h"
#include "model/errors.h"
#include "model/slicing/balanced.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

[[noreturn]] void refuse(const BatchRequest& request, const std::string& why) {
  throw InputError(fmt::format("{}: {}", request.place, why));
}

std::string counted_microbatches(int count) {
  return count == 1 ? "one microbatch" : fmt::format("{} microbatches", count);
}

std::vector<Microbatches> in_turn(const BatchRequest& request) {
  std::vector<Microbatches> out(to_size(request.replicas));
  for (std::size_t i = 0; i < request.loaded.size(); ++i) {
    out[i % to_size(request.replicas)].push_back(request.loaded[i]);
  }
  return out;
}

void check_given(const BatchRequest& request) {
  const auto count = static_cast<std::int64_t>(request.loaded.size());
  if (request.microbatches > 0 && count != std::int64_t{request.microbatches} * request.replicas) {
    refuse(request, fmt::format("expected a line for each of {} microbatches of {} replicas, got {}; --pack packs "
                                "documents anew",
                                request.microbatches, request.replicas, count));
  }
  if (count % request.replicas != 0) {
    refuse(request, fmt::format("expected a multiple of {} microbatches, one for each replica, got {}; --pack packs "
                                "documents anew",
                                request.replicas, count));
  }
  for (std::size_t i = 0; request.most_tokens > 0 && i < request.loaded.size(); ++i) {
    if (tokens_of(request.loaded[i]) <= request.most_tokens) continue;
    refuse(request, fmt::format("expected microbatches of at most {} tokens (--seq-length), got {} in microbatch {}",
                                request.most_tokens, tokens_of(request.loaded[i]), i + 1));
  }
}

struct Packed {
  Packing bins;
  bool proven = false;
};

std::optional<Packed> packed(Packer packer, const PackingProblem& problem) {
  if (packer == Packer::exact) {
    const auto found = pack_exactly(problem);
    return found ? std::optional(Packed{found->packing, found->proven}) : std::nullopt;
  }
  auto found = packer == Packer::greedy ? pack_greedily(problem) : pack_by_differencing(problem);
  return found ? std::optional(Packed{std::move(*found)}) : std::nullopt;
}

// The first number of microbatches per replica, of few candidates, that can hold the documents.
std::optional<Packed> packed_in_fewest(const BatchRequest& request, PackingProblem& problem) {
  const std::int64_t all = std::accumulate(problem.tokens.begin(), problem.tokens.end(), std::int64_t{0});
  const std::int64_t step = request.most_tokens * request.replicas;
  const auto fewest = static_cast<int>((all + step - 1) / step);
  for (int each = fewest; each <= 2 * fewest + 1; ++each) {
    problem.bins = each * request.replicas;
    if (to_size(problem.bins) > problem.weight.size()) break;
    if (auto found = packed(request.packer, problem)) return found;
  }
  return std::nullopt;
}

PackingProblem problem_of(const BatchRequest& request, const std::vector<std::int64_t>& documents, const Model* model) {
  PackingProblem out{
      .weight = {}, .tokens = documents, .bins = request.microbatches * request.replicas, .cap = request.most_tokens};
  for (const std::int64_t document : documents) out.weight.push_back(work_of({document}, model));
  return out;
}

void check_documents(const BatchRequest& request, const std::vector<std::int64_t>& documents) {
  const std::int64_t longest = *std::max_element(documents.begin(), documents.end());
  if (request.most_tokens > 0 && longest > request.most_tokens) {
    refuse(request,
           fmt::format("expected documents of at most {} tokens (--seq-length), got {}", request.most_tokens, longest));
  }
  const int each = std::max(1, request.microbatches);
  if (std::int64_t{each} * request.replicas > std::ssize(documents)) {
    refuse(request, fmt::format("{} documents are fewer than {} of each of {} replicas", documents.size(),
                                counted_microbatches(each), request.replicas));
  }
}

[[noreturn]] void refuse_full(const BatchRequest& request, const std::vector<std::int64_t>& documents) {
  const std::int64_t all = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
  const std::string each = request.microbatches > 0 ? fmt::format("{} ", request.microbatches) : "";
  refuse(request, fmt::format("found no packing of {} documents of {} tokens into {}microbatches per replica of {} "
                              "tokens: increase --microbatches or --seq-length, or use another --pack",
                              documents.size(), all, each, request.most_tokens));
}

// Packs into microbatches, in the order of their first documents.
Microbatches packed_microbatches(BatchRequest& request, const Model* model, bool& proven) {
  std::vector<std::int64_t> documents;
  for (const Documents& each : request.loaded) documents.insert(documents.end(), each.begin(), each.end());
  if (request.microbatches == 0 && request.most_tokens == 0) {
    if (std::ssize(request.loaded) % request.replicas != 0) {
      refuse(request, "the number of microbatches is required (--microbatches), or --seq-length to limit their tokens");
    }
    request.microbatches = static_cast<int>(std::ssize(request.loaded) / request.replicas);
  }
  check_documents(request, documents);
  PackingProblem problem = problem_of(request, documents, model);
  const auto found = request.microbatches > 0 ? packed(request.packer, problem) : packed_in_fewest(request, problem);
  if (!found) refuse_full(request, documents);
  proven = found->proven;
  request.microbatches = problem.bins / request.replicas;
  Microbatches out;
  std::vector<std::size_t> place(to_size(problem.bins), documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::size_t& at = place[to_size(found->bins[i])];
    if (at == documents.size()) at = out.size();
    if (at == out.size()) out.emplace_back();
    out[at].push_back(documents[i]);
  }
  return out;
}

std::vector<Microbatches> distributed(const BatchRequest& request, const Microbatches& all, const Model* model) {
  PackingProblem problem{.weight = {},
                         .tokens = std::vector<std::int64_t>(all.size(), 0),
                         .bins = request.replicas,
                         .most_items = to_size(request.microbatches)};
  for (const Documents& each : all) problem.weight.push_back(work_of(each, model));
  std::vector<Microbatches> out(to_size(request.replicas));
  if (!request.in_step) {
    constexpr std::int64_t kMostNodes = 200'000;
    const Packing of = request.packer == Packer::balanced ? pack_exactly(problem, kMostNodes).value().packing
                                                          : pack_greedily(problem).value();  // there are enough places
    for (std::size_t i = 0; i < all.size(); ++i) out[to_size(of[i])].push_back(all[i]);
    return out;
  }
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
  for (std::size_t i = 0; i < all.size(); ++i) out[i % out.size()].push_back(all[order[i]]);
  return out;
}

void check_shared(const BatchRequest& request) {
  if (request.most_tokens_per_rank == 0)
    refuse(request,
           "the most tokens per rank are required with dynamic context "
           "parallelism (--max-seqlen-per-dp-cp-rank)");
  if ((request.replicas & (request.replicas - 1)) != 0) {
    refuse(request,
           fmt::format("dynamic context parallelism requires a power of two ranks (--dp), got {}", request.replicas));
  }
  if (request.packer != Packer::given || request.order != MicrobatchOrder::given || request.microbatches > 0) {
    refuse(request,
           "packing, order and the number of microbatches follow from dynamic context parallelism: expected none");
  }
  for (const Documents& documents : request.loaded) {
    for (const std::int64_t tokens : documents) {
      const std::int64_t most = request.most_tokens > 0 ? request.most_tokens : tokens;
      if (tokens > most || tokens > request.most_tokens_per_rank * request.replicas) {
        refuse(request, fmt::format("expected documents of at most {} tokens, got {}",
                                    std::min(most, request.most_tokens_per_rank * request.replicas), tokens));
      }
    }
  }
}

// What the rank with the most tokens has at a time: all its documents of a group where these are one microbatch of a
// pipeline, otherwise one.
Documents local_documents(const ContextGroup& group, const BatchRequest& request) {
  std::vector<Documents> of(to_size(request.replicas));
  for (const SharedDocument& document : group) {
    const std::int64_t tokens = (document.tokens + document.ranks - 1) / document.ranks;
    for (int rank = document.first; rank < document.first + document.ranks; ++rank) {
      Documents& local = of[to_size(rank)];
      if (request.pipelined || local.empty()) {
        local.push_back(tokens);
      } else {
        local.front() = std::max(local.front(), tokens);
      }
    }
  }
  return *std::max_element(of.begin(), of.end(),
                           [](const Documents& a, const Documents& b) { return tokens_of(a) < tokens_of(b); });
}

bool is_as_loaded(const BatchRequest& request) {
  const std::size_t all = to_size(request.microbatches) * to_size(request.replicas);
  return request.loaded.size() == all &&
         std::all_of(request.loaded.begin(), request.loaded.end(), [&](const Documents& each) {
           return request.most_tokens == 0 || tokens_of(each) <= request.most_tokens;
         });
}

}  // namespace

std::int64_t Batch::tokens() const {
  std::int64_t sum = 0;
  for_each_document([&](std::int64_t tokens) { sum += tokens; });
  return sum;
}

std::int64_t Batch::longest() const {
  std::int64_t most = 0;
  for (const Microbatches& replica : replicas) {
    for (const Documents& documents : replica) most = std::max(most, tokens_of(documents));
  }
  return most;
}

bool replicas_in_step(const Training& training) {
  return training.expert_ranks() > training.tp * training.cp || training.gathers_per_op() || training.reduces_per_op();
}

double work_of(const Documents& documents, const Model* model) {
  double sum = 0;
  for (const std::int64_t tokens : documents) {
    if (model == nullptr) {
      sum += static_cast<double>(tokens);
      continue;
    }
    const SliceFlops flops = slice_flops(*model, tokens, 0);
    sum += flops.forward() + flops.backward();
  }
  return sum;
}

ContextProblem context_problem(const BatchRequest& request) {
  ContextProblem out{
      .documents = {}, .ranks = request.replicas, .most_tokens = request.most_tokens_per_rank, .time = {}};
  for (const Documents& each : request.loaded) out.documents.insert(out.documents.end(), each.begin(), each.end());
  return out;
}

Batch batch_of_groups(BatchRequest request, std::vector<ContextGroup> groups) {
  Batch out;
  Microbatches& local = out.replicas.emplace_back();
  for (const ContextGroup& group : groups) local.push_back(local_documents(group, request));
  request.in_step = true;
  request.microbatches = out.microbatches();
  out.request = std::move(request);
  out.groups = std::move(groups);
  return out;
}

Batch make_batch(BatchRequest request, const Model* model) {
  if (request.grouping != ContextGrouping::none) {
    check_shared(request);
    ContextProblem problem = context_problem(request);
    problem.time = [](std::int64_t tokens, int ranks) {
      return static_cast<double>(tokens) * static_cast<double>(tokens) / ranks;
    };
    return batch_of_groups(std::move(request), megatron_groups(problem));
  }
  Batch out;
  if (request.packer == Packer::given || request.packer == Packer::balanced) {
    check_given(request);
    request.microbatches = static_cast<int>(std::ssize(request.loaded) / request.replicas);
    out.replicas = request.packer == Packer::given ? in_turn(request) : distributed(request, request.loaded, model);
  } else {
    const Microbatches all = packed_microbatches(request, model, out.proven);
    out.replicas = distributed(request, all, model);
  }
  const bool changed = request.packer != Packer::given || request.order != MicrobatchOrder::given;
  if (changed && is_as_loaded(request)) out.before = in_turn(request);
  order_microbatches(out, request.order, model);
  out.request = std::move(request);
  return out;
}

void order_microbatches(Batch& batch, MicrobatchOrder order, const Model* model) {
  batch.request.order = order;
  if (order != MicrobatchOrder::ascending && order != MicrobatchOrder::descending) return;
  for (Microbatches& replica : batch.replicas) {
    std::stable_sort(replica.begin(), replica.end(), [&](const Documents& a, const Documents& b) {
      const double of_a = work_of(a, model);
      const double of_b = work_of(b, model);
      return order == MicrobatchOrder::ascending ? of_a < of_b : of_a > of_b;
    });
  }
}

Schedule with_microbatches(const Schedule& schedule, const Batch& batch, const Microbatches& microbatches) {
  const std::string& place = batch.request.place;
  if (std::ssize(microbatches) != schedule.num_microbatches()) {
    throw InputError(fmt::format("{}: {} microbatches per replica, but the schedule has {}", place, microbatches.size(),
                                 schedule.num_microbatches()));
  }
  if (schedule.shapes().size() > 1) {
    throw InputError(fmt::format("{}: the microbatches of the schedule have lengths of their own", place));
  }
  const bool grouped = !batch.groups.empty();
  if (grouped && (schedule.sliced() || schedule.has_joint_blocks())) {
    throw InputError(
        fmt::format("{}: slices and joint blocks are not modeled with dynamic context parallelism", place));
  }
  ScheduleParts parts = schedule.parts();
  std::map<std::pair<Documents, int>, int> known;
  std::vector<int> of_batch;
  parts.shapes.clear();
  for (const Documents& documents : microbatches) {
    const int group = grouped ? static_cast<int>(of_batch.size()) : -1;
    const auto [entry, added] = known.try_emplace({documents, group}, static_cast<int>(parts.shapes.size()));
    of_batch.push_back(entry->second);
    if (!added) continue;
    try {
      parts.shapes.push_back({.sequences = 1,
                              .slice_lengths = even_slices(tokens_of(documents), schedule.max_slices()),
                              .documents = documents.size() > 1 ? documents : Documents(),
                              .forward_only = schedule.forward_only(),
                              .group = group});
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", place, error.what()));
    }
  }
  parts.shape_of.clear();
  for (int each = 0; each < schedule.num_batches(); ++each) {
    parts.shape_of.insert(parts.shape_of.end(), of_batch.begin(), of_batch.end());
  }
  return Schedule(std::move(parts));
}

}  // namespace sluice::model
