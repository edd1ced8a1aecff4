#include "sim/planner/plan_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "model/blocks/layer.h"
#include "model/errors.h"
#include "model/input/nearest.h"
#include "model/scenario/costs.h"
#include "model/scenario/pipeline_layout.h"
#include "model/scenario/settings.h"
#include "model/scenario/setup.h"
#include "model/slicing/balanced.h"
#include "sim/planner/iteration_bound.h"

namespace sluice::sim {
namespace {

constexpr int kMostChunks = 8;
constexpr int kMostMicroBatch = 16;
constexpr int kComparedMicrobatches = 64;              // of orders on one rank, which repeat after a few
constexpr std::string_view kMegatron = "Megatron-LM";  // as the catalogue names the framework
constexpr std::array kRecompute = {"none", "selective", "full"};

std::vector<int> divisors(std::int64_t number, std::int64_t most) {
  std::vector<int> out;
  for (std::int64_t i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) out.push_back(static_cast<int>(i));
  }
  return out;
}

Training::Recompute recompute_of(const std::string& word) {
  const auto found = std::find(kRecompute.begin(), kRecompute.end(), word);
  if (found == kRecompute.end()) {
    throw InputError(fmt::format("--recompute: expected none, selective or full, got '{}'{}", word,
                                 did_you_mean(word, std::vector<std::string>(kRecompute.begin(), kRecompute.end()))));
  }
  return static_cast<Training::Recompute>(found - kRecompute.begin());
}

class Enumeration {
 public:
  Enumeration(const Scenario& base, const PlanSpace& space) : base_(base), space_(space), model_(*base.model) {
    for (const std::string& name : space.families) families_.push_back(&find_family(name, "--schedule"));
    if (families_.empty()) {
      for (const Family& family : all_families()) {
        if (!family.asynchronous) families_.push_back(&family);
      }
    }
    for (const std::string& word : space.recompute) recompute_.push_back(recompute_of(word));
    if (base.training.forward_only()) recompute_ = {Training::Recompute::none};
    if (recompute_.empty()) {
      recompute_.push_back(Training::Recompute::none);
      recompute_.push_back(Training::Recompute::selective);
      recompute_.push_back(Training::Recompute::full);
    }
    modules_ = space.recompute_modules;
    if (modules_.empty()) modules_.push_back(base.training.recompute_modules);
    const auto repeats_nothing = [&](RecomputeModules modules) {
      Training training = base.training;
      training.recompute_modules = modules;
      return !training.has_modules_to_repeat();
    };
    if (space.recompute.empty()) std::erase_if(modules_, repeats_nothing);
  }

  std::vector<PlanPoint> run() {
    for (const int tp : space_.tp.empty() ? divisors(base_.cluster->gpus_per_node, model_.tensor_units) : space_.tp) {
      if (space_.tp.empty() && model_.tensor_units % tp != 0) continue;
      for (const int cp : context_sizes()) with_context(tp, cp);
    }
    if (points_.empty()) throw InputError(why_none());
    return std::move(points_);
  }

 private:
  std::string why_none() const {
    const std::string flags = requested_flags(space_);
    const std::string given = flags.empty() ? "" : " (" + flags + ")";
    if (!divides_) {
      return fmt::format("plan: no requested combination of tp x{} pp x dp equals {} GPUs{}{}",
                         space_.cp.empty() ? "" : " cp x", space_.gpus, space_.gpus_from, given);
    }
    if (!experts_divide_) {
      return fmt::format("plan: no requested expert-parallel size divides tp x cp x dp / etp and the {} experts{}",
                         model_.experts.count, given);
    }
    if (!batch_divides_ && base_.documents) {
      return fmt::format("plan: the documents cannot be packed for any requested data-parallel size{}", given);
    }
    if (!batch_divides_ && space_.tp.empty() && space_.cp.empty() && space_.pp.empty() && space_.dp.empty() &&
        space_.micro_batch.empty()) {
      return fmt::format(
          "plan: {} GPUs{} leave no data-parallel size that divides the global batch {}: use {} GPUs, or another batch",
          space_.gpus, space_.gpus_from, base_.global_batch, fmt::join(nearest_usable_gpus(), " or "));
    }
    if (!batch_divides_) {
      return fmt::format("plan: the global batch {} is not a multiple of micro_batch x dp for any requested sizes{}",
                         base_.global_batch, given);
    }
    if (!refused_.empty()) return "plan: no requested configuration can run: " + refused_;
    return fmt::format("plan: no requested family supports any of the requested chunks and slices{}", given);
  }

  // The next smaller and the next larger number of GPUs of which some are replicas that divide the global batch.
  std::vector<std::int64_t> nearest_usable_gpus() const {
    const auto usable = [&](std::int64_t gpus) {
      for (const int tp : divisors(base_.cluster->gpus_per_node, model_.tensor_units)) {
        if (model_.tensor_units % tp != 0 || gpus % tp != 0) continue;
        for (const int pp : divisors(gpus / tp, model_.layers)) {
          if (base_.global_batch % (gpus / tp / pp) == 0) return true;
        }
      }
      return false;
    };
    std::vector<std::int64_t> out;
    for (const int step : {-1, 1}) {
      std::int64_t gpus = space_.gpus + step;
      while (gpus > 0 && gpus < 2 * space_.gpus && !usable(gpus)) gpus += step;
      if (usable(gpus)) out.push_back(gpus);
    }
    return out;
  }

  std::vector<int> context_sizes() const {
    if (!space_.cp.empty()) return space_.cp;
    std::vector<int> sizes = {1};
    const std::int64_t tokens = base_.training.sequence_length;
    if (!base_.training.flash_attention) return sizes;
    for (int cp = 2; cp <= base_.cluster->gpus_per_node && tokens / cp >= kLeastContextTokens; cp *= 2) {
      if (tokens % (std::int64_t{2} * cp) == 0) sizes.push_back(cp);
    }
    return sizes;
  }

  void with_context(int tp, int cp) {
    const std::int64_t group = std::int64_t{tp} * cp;
    if (space_.gpus % group != 0) return;
    const std::int64_t rest = space_.gpus / group;
    for (const int pp : space_.pp.empty() ? divisors(rest, model_.layers) : space_.pp) {
      if (rest % pp != 0) continue;
      const std::int64_t dp = rest / pp;
      if (!space_.dp.empty() && std::find(space_.dp.begin(), space_.dp.end(), dp) == space_.dp.end()) continue;
      divides_ = true;
      point_ = {.tp = tp, .cp = cp, .pp = pp, .dp = static_cast<int>(dp)};
      for (const int ep : expert_sizes(group * dp)) {
        point_.ep = ep;
        for (const int etp : space_.etp.empty() ? std::vector{1} : space_.etp) {
          if (model_.has_experts() && group * dp % (std::int64_t{ep} * etp) != 0) continue;
          experts_divide_ = true;
          point_.etp = etp;
          with_batch();
        }
      }
    }
  }

  // The expert-parallel sizes for a stage of `ranks` ranks.
  std::vector<int> expert_sizes(std::int64_t ranks) const {
    if (!model_.has_experts()) return space_.ep.empty() ? std::vector{1} : space_.ep;
    std::vector<int> sizes = space_.ep.empty() ? divisors(model_.experts.count, ranks) : space_.ep;
    std::erase_if(sizes, [&](int ep) { return ranks % ep != 0 || model_.experts.count % ep != 0; });
    return sizes;
  }

  // Numbers of microbatches per replica for the documents: as loaded, or the fewest that hold them, and these and
  // two and four times as many as multiples of the pipeline ranks.
  std::vector<int> document_microbatches() const {
    const BatchRequest& request = base_.documents->request;
    const std::int64_t loaded = std::ssize(request.loaded);
    if (space_.microbatches > 0) return {space_.microbatches};
    if (request.packer == Packer::given || request.packer == Packer::balanced) {
      return loaded % point_.dp == 0 ? std::vector{static_cast<int>(loaded / point_.dp)} : std::vector<int>{};
    }
    std::vector<int> out;
    try {
      const int fewest = space_.batches->of(base_, point_.dp, 0, false)->microbatches();
      std::int64_t documents = 0;
      base_.documents->for_each_document([&](std::int64_t) { ++documents; });
      out.push_back(fewest);
      for (int count = fewest; count <= 4 * fewest; count *= 2) {
        const int whole = (count + point_.pp - 1) / point_.pp * point_.pp;
        if (whole > out.back() && std::int64_t{whole} * point_.dp <= documents) out.push_back(whole);
      }
    } catch (const InputError&) {
      return {};  // fewer documents than replicas
    }
    return out;
  }

  void with_batch() {
    if (base_.documents) {
      for (const int count : document_microbatches()) with_microbatches(1, count);
      return;
    }
    if (base_.global_batch % point_.dp != 0) return;
    const std::int64_t of_replica = base_.global_batch / point_.dp;
    std::vector<int> sizes = space_.micro_batch;
    for (int size = 1; sizes.empty() || size <= kMostMicroBatch; size *= 2) {
      if (!space_.micro_batch.empty()) break;
      sizes.push_back(size);
    }
    for (const int size : sizes) {
      if (of_replica % size == 0) with_microbatches(size, static_cast<int>(of_replica / size));
    }
  }

  void with_microbatches(int size, int count) {
    batch_divides_ = true;
    point_.micro_batch = size;
    point_.microbatches = count;
    point_.dispatcher = fastest_dispatcher();
    for (const Family* family : families_) with_family(*family);
  }

  // Returns the dispatcher with the lowest bound of one microbatch of 1F1B with the current sizes.
  std::optional<Training::TokenDispatcher> fastest_dispatcher() const {
    if (point_.ep == 1 || space_.dispatchers.empty()) return std::nullopt;
    PlanPoint point = point_;
    point.family = &find_family("1f1b");
    point.microbatches = point.chunks = point.slices = 1;
    Duration least = Duration::max();
    for (const Training::TokenDispatcher each : space_.dispatchers) {
      PlanPoint with = point;
      with.dispatcher = each;
      try {
        const Scenario scenario = scenario_of(base_, space_, with);
        const Schedule schedule = make_schedule(scenario);
        const Duration bound = least_iteration(schedule, 1, ScenarioCosts(scenario, schedule));
        if (bound < least) point.dispatcher = each;
        least = std::min(least, bound);
      } catch (const InputError&) {
        continue;  // the assessment reports it
      }
    }
    return point.dispatcher;
  }

  // Returns whether the schedule of the current point is that of an earlier family: many are equal on one rank, and
  // many have equal forwards.
  bool repeats() {
    const bool forwards = base_.training.forward_only();
    if (point_.pp > 1 && !forwards) return false;
    // Forwards of many families are equal; every number of microbatches is possible for twice as many as ranks.
    const FamilyParams params = {
        .ranks = point_.pp,
        .chunks = point_.chunks,
        .microbatches = std::min(point_.microbatches, std::max(kComparedMicrobatches, 2 * point_.pp)),
        .shape = {.sequences = 1, .slice_lengths = even_slices(point_.slices, point_.slices)}};
    std::vector<Orders>& known = by_sizes_[{point_.pp, params.microbatches, point_.chunks, point_.slices}];
    const Family* const family = point_.family;
    auto found = std::find_if(known.begin(), known.end(), [&](const Orders& each) { return each.family == family; });
    if (found == known.end()) {
      ScheduleParts parts;
      try {
        parts = make_parts(*family, params);
      } catch (const InputError&) {
        return false;  // the assessment reports it
      }
      for (std::vector<Op>& order : parts.orders) {
        if (forwards) std::erase_if(order, [](const Op& op) { return op.kind != OpKind::F; });
        for (Op& op : order) op.joined = op.joined && !forwards;
      }
      const auto first = std::find_if(known.begin(), known.end(), [&](const Orders& each) {
        return each.policy == parts.weight_policy && each.ops == parts.orders && each.routes == parts.routes;
      });
      const Family* const equal = first == known.end() ? family : first->first;
      found = known.insert(known.end(), {family, equal, parts.weight_policy, parts.routes, std::move(parts.orders)});
    }
    return found->first != family;
  }

  // Whether the output layer has more parameters than half of the layers of a rank: only then it makes the last rank
  // much slower than the others.
  bool large_vocabulary() const {
    const double layers = static_cast<double>(layer_parameters_per_device(model_, 1)) * model_.layers / point_.pp;
    return 2.0 * static_cast<double>(model_.vocab) * model_.hidden > layers;
  }

  void with_family(const Family& family) {
    if (family.for_expert_parallelism && point_.ep == 1) return;
    if (family.vocabulary_barriers > 0 && space_.families.empty() && !large_vocabulary()) return;
    point_.family = &family;
    std::vector<int> chunks = {family.fixed_chunks};
    if (family.fixed_chunks == 0) {
      chunks = space_.chunks;
      if (chunks.empty() && point_.pp == 1) chunks = {1};
      if (chunks.empty()) {
        const bool equals_other = std::any_of(families_.begin(), families_.end(), [&](const Family* other) {
          return other->name == family.with_one_chunk;
        });
        const int most = std::min(kMostChunks, model_.layers / point_.pp);
        for (int v = equals_other ? 2 : 1; v <= most; ++v) chunks.push_back(v);
      }
    }
    std::vector<int> slices = {1};
    if (family.sliced) slices = space_.slices.empty() ? std::vector{2, 4, 8} : space_.slices;
    for (const int v : chunks) {
      if (std::int64_t{v} * point_.pp > model_.layers && !space_.empty_stages) continue;
      for (const int k : slices) {
        if (k > 1 && point_.cp > 1 && space_.cp.empty()) continue;  // not modeled
        point_.chunks = v;
        point_.slices = k;
        if (!repeats()) with_outer_stages();
      }
    }
  }

  void with_outer_stages() {
    const int stages = point_.pp * point_.chunks;
    const int layers = model_.layers / stages;
    point_.first_layers = base_.first_stage_layers;
    point_.last_layers = base_.last_stage_layers;
    with_training();
    const bool requested = point_.first_layers > 0 || point_.last_layers > 0 || !base_.stage_layers.empty();
    if (requested || !space_.uneven_outer_stages || stages < 2) return;
    for (const auto& [first, last] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 1), std::pair(1, 2)}) {
      if (layers <= std::max(first, last) || (first > 0 && stages == 2)) continue;
      point_.first_layers = first > 0 ? layers - first : 0;
      point_.last_layers = layers - last;
      with_training();
    }
  }

  // Numbers of recomputed layers per stage: all, and a half and a quarter of those of the largest stage.
  std::vector<int> recomputed_layers() const {
    if (!space_.recompute_layers.empty()) return space_.recompute_layers;
    if (base_.training.recompute_layers > 0) return {base_.training.recompute_layers};
    const int stages = point_.pp * point_.chunks;
    const int most = (model_.layers + stages - 1) / stages;
    std::vector<int> out = {0};
    if (most > 1) out.push_back((most + 1) / 2);
    if (most > 2) out.push_back((most + 3) / 4);
    return out;
  }

  static const std::vector<bool>& choices(const std::vector<bool>& requested, const std::vector<bool>& otherwise) {
    return requested.empty() ? otherwise : requested;
  }

  // The overlaps of the collectives between replicas, as pairs: of gradients, and of parameters.
  std::vector<std::pair<bool, bool>> overlaps(bool optimizer) const {
    std::vector<std::pair<bool, bool>> out;
    const std::vector<bool> reduces = {base_.training.overlap_grad_reduce};
    const std::vector<bool> gathers = {base_.training.overlap_param_gather};
    for (const bool reduce : choices(space_.overlap_grad_reduce, reduces)) {
      for (const bool gather : choices(space_.overlap_param_gather, gathers)) {
        const std::pair pair(reduce, gather && reduce && optimizer);
        if (std::find(out.begin(), out.end(), pair) == out.end()) out.push_back(pair);
        if (point_.dp * point_.cp == 1) return out;  // without an effect
      }
    }
    return out;
  }

  void with_training() {
    const bool replicas = point_.dp > 1;
    const std::vector<bool> both = {false, true};
    const bool sharded = base_.training.zero_stage() > 1 && point_.dp * point_.cp > 1;  // ZeRO 2 or 3 in all points
    const bool none = base_.training.forward_only();
    const std::vector<bool> optimizers = sharded    ? std::vector{true}
                                         : none     ? std::vector{false}
                                         : replicas ? choices(space_.distributed_optimizer, both)
                                                    : std::vector{false};
    // Both orders are equal with one replica, one rank, one node, or nodes that are filled by one tp x cp group.
    const int node = base_.cluster->gpus_per_node;
    const bool one_order = !replicas || point_.pp == 1 || space_.gpus <= node || point_.tp * point_.cp % node == 0;
    const std::vector<bool> orders = one_order ? std::vector{false} : choices(space_.pipeline_before_data, both);
    for (const bool optimizer : optimizers) {
      for (const auto& [reduce, gather] : overlaps(optimizer)) {
        for (const bool order : orders) {
          PlanPoint point = point_;
          point.distributed_optimizer = optimizer;
          point.overlap_grad_reduce = reduce;
          point.overlap_param_gather = gather;
          point.pipeline_before_data = order;
          point.overlap_transfers = overlapped_transfers();
          with_recomputation(point);
        }
      }
    }
  }

  void with_recomputation(PlanPoint& point) {
    for (const Training::Recompute recompute : recompute_) {
      point.recompute = recompute;
      point.recompute_layers = 0;
      if (recompute == Training::Recompute::selective) {
        for (const RecomputeModules modules : modules_) {
          point.recompute_modules = modules;
          add(point);
        }
        point.recompute_modules = {};
        continue;
      }
      const bool full = recompute == Training::Recompute::full;
      for (const int layers : full ? recomputed_layers() : std::vector{0}) {
        point.recompute_layers = layers;
        add(point);
      }
    }
  }

  // Whether transfers overlap where it is not as in the base. Megatron-LM's of interleaved stages do by default, and
  // its others never do.
  std::optional<bool> overlapped_transfers() const {
    const bool interleaved = point_.family->in_megatron_lm && point_.chunks > 1;
    if (space_.megatron_transfers) return interleaved && base_.overlap_transfers.value_or(true);
    if (interleaved && !space_.base_transfers && !base_.overlap_transfers && base_.software.name == kMegatron)
      return true;
    return std::nullopt;
  }

  void add(const PlanPoint& point) {
    std::string reason = space_.refusal ? space_.refusal(point) : "";
    if (reason.empty()) {
      points_.push_back(point);
    } else if (refused_.empty()) {
      refused_ = std::move(reason);
    }
  }

  // The orders of a family, and the first family with them.
  struct Orders {
    const Family* family;
    const Family* first;
    WeightPolicy policy;
    std::vector<std::vector<int>> routes;
    std::vector<std::vector<Op>> ops;
  };

  const Scenario& base_;
  const PlanSpace& space_;
  const Model& model_;
  std::vector<const Family*> families_;
  std::vector<Training::Recompute> recompute_;
  std::vector<RecomputeModules> modules_;  // of selective recomputation
  PlanPoint point_;
  std::vector<PlanPoint> points_;
  bool divides_ = false;
  bool experts_divide_ = false;
  bool batch_divides_ = false;
  std::string refused_;                                                     // the first reason
  std::map<std::tuple<int, int, int, int>, std::vector<Orders>> by_sizes_;  // ranks, microbatches, chunks and slices
};

std::vector<std::int64_t> cut(const Scenario& base, const PlanSpace& space, int slices) {
  const std::int64_t tokens = base.training.sequence_length;
  if (space.balanced_slices && slices > 1) {
    return balanced_slices(*base.model, tokens, slices, balanced_multiple(tokens, slices));
  }
  return even_slices(tokens, slices);
}

}  // namespace

std::shared_ptr<const Batch> PlanBatches::of(const Scenario& base, int replicas, int microbatches, bool in_step) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Batch>& known = known_[{replicas, microbatches, in_step}];
  if (known != nullptr) return known;
  BatchRequest request = base.documents->request;
  request.replicas = replicas;
  request.microbatches = microbatches;
  request.in_step = in_step;
  Batch batch = make_batch(std::move(request), &*base.model);
  batch.before.clear();
  const auto work = [&](const Microbatches& replica) {
    double sum = 0;
    for (const Documents& documents : replica) sum += work_of(documents, &*base.model);
    return sum;
  };
  std::iter_swap(batch.replicas.begin(),
                 std::max_element(batch.replicas.begin(), batch.replicas.end(),
                                  [&](const auto& a, const auto& b) { return work(a) < work(b); }));
  return known = std::make_shared<const Batch>(std::move(batch));
}

std::vector<PlanPoint> enumerate(const Scenario& base, const PlanSpace& space) {
  const auto require = [&](bool there, const char* what) {
    if (!there) throw InputError(fmt::format("{}: {}", base.source, what));
  };
  require(base.model.has_value(), "/model: required (--model)");
  require(base.cluster.has_value(), "/cluster: required (--cluster)");
  require(base.training.sequence_length > 0, "/batch/sequence_length: required (--seq-length)");
  require(base.global_batch > 0 || base.documents, "/batch/global_batch: required (--gbs)");
  const auto packs = [](int size) { return size > 1; };
  require(!base.documents || std::none_of(space.micro_batch.begin(), space.micro_batch.end(), packs),
          "/batch/lengths: requires one sequence per microbatch (--mbs 1), which packs documents");
  require(!names_file(base.schedule), "/schedule: expected families, not a file");
  const auto no_training = [](const auto& given, const auto& none) {
    return given.empty() || std::find(given.begin(), given.end(), none) != given.end();
  };
  require(!base.training.forward_only() ||
              (no_training(space.recompute, std::string("none")) && no_training(space.distributed_optimizer, false)),
          "/schedule/forward_only: recomputation and sharded optimizer states have no effect without a backward");
  PlanSpace whole = space;
  if (whole.gpus == 0) whole.gpus = base.cluster->num_gpus();
  if (whole.gpus > base.cluster->num_gpus()) {
    throw InputError(fmt::format("--gpus: expected at most the {} of {}, got {}", base.cluster->num_gpus(),
                                 base.cluster->name, whole.gpus));
  }
  return Enumeration(base, whole).run();
}

std::vector<RecomputeModules> cheap_modules(const Model& model, const Training& training) {
  const bool latent = model.any_block([](const Block& block) { return block.kind() == "latent_attention"; });
  if (!model.has_experts() && !latent) return {RecomputeModule::core_attention};
  RecomputeModules out = RecomputeModule::norm;
  if (!training.flash_attention) out = out | RecomputeModule::core_attention;
  if (model.has_experts()) out = out | RecomputeModule::activation;
  if (latent) out = out | RecomputeModule::up_projection;
  return {RecomputeModule::core_attention, out};
}

bool blocks_transfers(const Scenario& base, const PlanPoint& point) {
  return point.overlap_transfers ? !*point.overlap_transfers : base.blocks_transfers();
}

std::string name_of(Training::TokenDispatcher dispatcher) {
  return split_words(find_setting_of_flag("--moe-token-dispatcher")->words)[static_cast<std::size_t>(dispatcher)];
}

std::string name_of(EncoderPlacement placement) {
  return split_words(find_setting_of_flag("--encoder-placement")->words)[static_cast<std::size_t>(placement)];
}

double offloaded_part(const Scenario& base, const PlanPoint& point) {
  return point.offloads_optimizer ? 1 : base.training.optimizer_offload;
}

std::string requested_flags(const PlanSpace& space) {
  std::string out;
  const auto add = [&](const char* flag, const auto& values) {
    if (!values.empty()) out += fmt::format("{}{} {}", out.empty() ? "" : " ", flag, fmt::join(values, ","));
  };
  const auto words = [](const std::vector<bool>& values) {
    std::vector<std::string> out_words;
    for (const bool value : values) out_words.emplace_back(value ? "yes" : "no");
    return out_words;
  };
  add("--schedule", space.families);
  add("--tp", space.tp);
  add("--cp", space.cp);
  add("--pp", space.pp);
  add("--dp", space.dp);
  add("--ep", space.ep);
  add("--etp", space.etp);
  add("--vpp", space.chunks);
  add("--mbs", space.micro_batch);
  add("--slices", space.slices);
  add("--recompute", space.recompute);
  add("--use-distributed-optimizer", words(space.distributed_optimizer));
  add("--use-tp-pp-dp-mapping", words(space.pipeline_before_data));
  return out;
}

Scenario scenario_of(const Scenario& base, const PlanSpace& space, const PlanPoint& point) {
  Scenario out = base;
  out.schedule = point.family->name;
  out.chunks = point.chunks;
  out.microbatches = point.microbatches;
  out.shape = {.sequences = point.micro_batch, .slice_lengths = cut(base, space, point.slices)};
  out.first_stage_layers = point.first_layers;
  out.last_stage_layers = point.last_layers;
  if (!point.stage_layers.empty()) {
    out.stage_layers = point.stage_layers;
    out.mtp_stage = point.mtp_stage;
  }
  out.training.tp = point.tp;
  out.training.cp = point.cp;
  out.training.pp = point.pp;
  out.training.dp = point.dp;
  out.training.ep = point.ep;
  out.training.etp = point.etp;
  out.training.micro_batch = point.micro_batch;
  out.training.recompute = point.recompute;
  out.training.recompute_layers = point.recompute_layers;
  if (point.recompute == Training::Recompute::selective) out.training.recompute_modules = point.recompute_modules;
  out.training.distributed_optimizer = point.distributed_optimizer;
  out.training.dp_shard = 0;
  out.training.overlap_grad_reduce = point.overlap_grad_reduce;
  out.training.overlap_param_gather = point.overlap_param_gather;
  if (point.overlap_transfers) out.overlap_transfers = point.overlap_transfers;
  out.training.pipeline_before_data = point.pipeline_before_data;
  if (point.dispatcher) out.training.token_dispatcher = *point.dispatcher;
  if (point.encoder) out.encoder = *point.encoder;
  out.encoder.search = false;
  out.training.optimizer_offload = offloaded_part(base, point);
  out.training.sequence_parallel = point.tp > 1 && space.sequence_parallel;
  if (base.documents) {
    out.documents = space.batches->of(base, point.dp, point.microbatches, replicas_in_step(out.training));
  }
  return out;
}

std::string uneven_layout(const Scenario& base, const PlanPoint& point) {
  std::vector<int> layers = point.stage_layers.empty() ? base.stage_layers : point.stage_layers;
  if (layers.empty() && point.pp * point.chunks <= base.model->layers) {
    for (const StageContents& stage :
         split_layers(*base.model, point.pp * point.chunks, {}, point.first_layers, point.last_layers)) {
      layers.push_back(stage.layers);
    }
  }
  const bool even = std::adjacent_find(layers.begin(), layers.end(), std::not_equal_to<>()) == layers.end();
  const int mtp_stage = point.stage_layers.empty() ? base.mtp_stage : point.mtp_stage;
  return even ? "" : layout_of(layers, base.model->mtp_layers, mtp_stage);
}

std::string flags_of(const Scenario& base, const PlanSpace& space, const PlanPoint& point) {
  std::string out =
      fmt::format("--schedule {} --pp {} --tp {} --dp {} --mbs {} --vpp {} --slices {}", point.family->name, point.pp,
                  point.tp, point.dp, point.micro_batch, point.chunks, point.slices);
  if (base.documents) out += fmt::format(" --microbatches {}", point.microbatches);
  if (point.cp != base.training.cp) out += fmt::format(" --cp {}", point.cp);
  if (point.ep != base.training.ep) out += fmt::format(" --ep {}", point.ep);
  if (point.etp != base.training.etp) out += fmt::format(" --etp {}", point.etp);
  if (point.slices > 1) out += fmt::format(" --slicing {}", space.balanced_slices ? "balanced" : "even");
  if (!point.stage_layers.empty()) {
    out += fmt::format(" --pipeline-model-parallel-layout '{}'",
                       layout_of(point.stage_layers, base.model->mtp_layers, point.mtp_stage));
  }
  if (point.first_layers > 0) out += fmt::format(" --decoder-first-pipeline-num-layers {}", point.first_layers);
  if (point.last_layers > 0) out += fmt::format(" --decoder-last-pipeline-num-layers {}", point.last_layers);
  out += fmt::format(" --recompute {}", kRecompute[static_cast<std::size_t>(point.recompute)]);
  if (point.recompute_layers > 0) out += fmt::format(" --recompute-num-layers {}", point.recompute_layers);
  if (point.recompute == Training::Recompute::selective &&
      (point.recompute_modules != RecomputeModule::core_attention ||
       base.training.recompute_modules != RecomputeModule::core_attention)) {
    out += fmt::format(" --recompute-modules {}", fmt::join(names_of(point.recompute_modules), ","));
  }
  const auto flag = [&](const char* name, bool has, bool had) {
    if (has != had) out += fmt::format(" {}{}", name, has ? "" : "=false");
  };
  const Training& training = base.training;
  if (training.zero_stage() > 0 && !point.distributed_optimizer) {
    out += " --zero-stage 0";
  } else {
    flag("--use-distributed-optimizer", point.distributed_optimizer, training.distributed_optimizer);
  }
  flag("--overlap-grad-reduce", point.overlap_grad_reduce, training.overlap_grad_reduce);
  flag("--overlap-param-gather", point.overlap_param_gather, training.overlap_param_gather);
  flag("--overlap-p2p-communication", !blocks_transfers(base, point), !base.blocks_transfers());
  flag("--sequence-parallel", point.tp > 1 && space.sequence_parallel, training.sequence_parallel);
  flag("--use-tp-pp-dp-mapping", point.pipeline_before_data, training.pipeline_before_data);
  if (point.dispatcher.value_or(training.token_dispatcher) != training.token_dispatcher) {
    out += fmt::format(" --moe-token-dispatcher {}", name_of(*point.dispatcher));
  }
  flag("--optimizer-cpu-offload", offloaded_part(base, point) > 0, training.optimizer_offload > 0);
  if (point.encoder) {
    out += " --encoder-placement " + name_of(point.encoder->placement);
    if (point.encoder->dp > 1) out += fmt::format(" --encoder-dp {}", point.encoder->dp);
  }
  return out + space.base_flags;
}

}  // namespace sluice::sim
