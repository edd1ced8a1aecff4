#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "model/errors.h"
#include "model/input/nearest.h"
#include "model/schedule/families/families.h"
#include "model/schedule/family.h"

namespace sluice::model {
namespace {

constexpr int kDefaultBatches = 4;

const std::vector<Family>& registry() {
  static const std::vector<Family> rows = {
      families::gpipe(),
      families::one_f_one_b(),
      families::eager_1f1b(),
      families::interleaved_1f1b(),
      families::combined_1f1b(),
      families::looped_bfs(),
      families::terapipe(),
      families::seq1f1b(),
      families::eager_seq1f1b(),
      families::seq1f1b_interleaved(),
      families::zb_h1(),
      families::zb_h2(),
      families::seq1f1b_zb1p(),
      families::seq1f1b_zb2p(),
      families::zb_v(),
      families::v_half(),
      families::v_min(),
      families::interleaved_zb(),
      families::dualpipe(),
      families::dualpipe_v(),
      families::chimera(),
      families::hanayo(),
      families::pipedream(),
      families::pipedream_2bw(),
      families::vocabulary_1(),
      families::vocabulary_2(),
      families::v_half_vocabulary_1(),
      families::v_half_vocabulary_2(),
      families::interlaced(),
  };
  return rows;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

std::span<const Family> all_families() { return registry(); }

const Family& find_family(std::string_view name, std::string_view place) {
  // PyTorch's classes are called Schedule1F1B and so on.
  std::string wanted = lower(name);
  if (constexpr std::string_view kPrefix = "schedule"; wanted.starts_with(kPrefix)) wanted.erase(0, kPrefix.size());
  std::vector<std::string> known;
  for (const Family& family : registry()) {
    if (family.name == wanted) return family;
    known.emplace_back(family.name);
    for (const std::string_view alias : family.aliases) {
      if (lower(alias) == wanted) return family;
      known.emplace_back(alias);
    }
  }
  throw InputError(fmt::format("{}{}there is no schedule family '{}'{} ('sluice schedules' lists them)", place,
                               place.empty() ? "" : ": ", name, did_you_mean(name, known)));
}

ScheduleParts make_parts(const Family& family, FamilyParams params) {
  const auto refuse = [&](const std::string& reason) { throw InputError(fmt::format("{}: {}", family.name, reason)); };
  if (params.ranks < 1 || params.ranks > kMaxRanks) {
    refuse(fmt::format("ranks (--pp): expected 1 to {}, got {}", kMaxRanks, params.ranks));
  }
  if (params.microbatches < 1) refuse(fmt::format("microbatches: expected at least 1, got {}", params.microbatches));
  if (params.chunks < 0) refuse(fmt::format("chunks (--vpp): expected at least 1, got {}", params.chunks));
  if (family.fixed_chunks != 0) {
    if (params.chunks != 0 && params.chunks != family.fixed_chunks) {
      refuse(fmt::format("chunks (--vpp): its placement fixes {}, got {}", family.fixed_chunks, params.chunks));
    }
    params.chunks = family.fixed_chunks;
  } else if (params.chunks == 0) {
    params.chunks = family.default_chunks;
  }
  if (params.slices() < 1 || params.slices() > kMaxSlices) {
    refuse(fmt::format("slices: expected 1 to {}, got {}", kMaxSlices, params.slices()));
  }
  if (params.slices() > 1 && !family.sliced) {
    refuse(fmt::format("does not slice sequences: expected 1 slice, got {}", params.slices()));
  }
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
  std::int64_t tokens = 0;
  for (const std::int64_t length : params.shape.slice_lengths) {
    if (length < 1 || length > kMaxTokens) refuse(fmt::format("slice length: expected 1 to 2^40, got {}", length));
    tokens += length;
    if (tokens > kMaxTokens) refuse("slice lengths: more than 2^40 tokens together");
  }
  if (params.shape.sequences < 1) refuse(fmt::format("sequences: expected at least 1, got {}", params.shape.sequences));
  if (params.group < 0) refuse(fmt::format("group: expected at least 1, got {}", params.group));
  if (params.group != 0 && !family.grouped) refuse("group: only the interleaved families take one");
  if (params.batches < 0) refuse(fmt::format("batches: expected at least 1, got {}", params.batches));
  if (!family.asynchronous) {
    if (params.batches > 1) {
      refuse(fmt::format("flushes after every batch: expected 1 batch, got {} (period_s is the time per batch)",
                         params.batches));
    }
    params.batches = 1;
  } else if (params.batches == 0) {
    params.batches = kDefaultBatches;
  }
  const double stages = static_cast<double>(params.ranks) * params.chunks;
  if (stages > kMaxStages) refuse(fmt::format("{:.0f} stages: more than {}", stages, kMaxStages));
  const double ops = num_ops(family, params);
  if (ops > static_cast<double>(kMaxOps)) {
    refuse(fmt::format("{:.0f} ops ({} stages x {} microbatches x {} batches x {} slices x {}): more than {}", ops,
                       static_cast<int>(stages), params.microbatches, params.batches, params.slices(),
                       family.split_backward ? "F, I, W" : "F, B", kMaxOps));
  }
  return family.make(params);
}

double num_ops(const Family& family, const FamilyParams& params) {
  const int chunks = params.chunks != 0         ? params.chunks
                     : family.fixed_chunks != 0 ? family.fixed_chunks
                                                : family.default_chunks;
  const int batches = params.batches != 0 ? params.batches : family.asynchronous ? kDefaultBatches : 1;
  const int passes = family.vocabulary_barriers > 0 ? 2 : 0;  // per rank
  return static_cast<double>(params.ranks) * params.microbatches * batches * params.slices() *
         (chunks * (family.split_backward ? 3 : 2) + passes);
}

Schedule make_schedule(const Family& family, FamilyParams params) {
  return Schedule(make_parts(family, std::move(params)));
}

}  // namespace sluice::model
