#include "model/cost/analytic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "model/blocks/encoder.h"
#include "model/blocks/expert_routing.h"
#include "model/blocks/kernel_parts.h"
#include "model/blocks/layer.h"
#include "model/cost/dispatchers.h"
#include "model/errors.h"

namespace sluice::model {
namespace {

AttentionWork attention_work(const KernelCall& call) {
  return {.flops = call.flops,
          .row_flops = call.row_flops,
          .key_flops = call.key_flops,
          .head_size = call.head_size,
          .tile_size = call.tile_size,
          .backward = call.kind == KernelClass::attention_backward,
          .narrow = call.narrow_attention,
          .windowed = call.windowed};
}

// Marks the kernels that are launched as CUDA graphs, and groups of experts that the framework launches as one kernel.
void set_launches(const Training& training, const Software& software, std::vector<KernelPart>& parts) {
  if (software.grouped_kernels) {
    for (KernelPart& part : parts) {
      for (KernelCall& call : part.calls) call.group = 0;
    }
  }
  using enum Training::GraphImplementation;
  if (training.graph_implementation == none) return;
  const bool all = training.graph_implementation == full_iteration;
  const bool whole_moe = training.graph_modules.any_of(GraphModule::moe);
  const auto in_graph = [&](GraphModule module) {
    const bool of_moe = module == GraphModule::moe_router || module == GraphModule::moe_preprocess;
    return training.graph_modules.any_of(module) || (of_moe && whole_moe);
  };
  for (KernelPart& part : parts) {
    const bool layer = part.is_layer();
    for (KernelCall& call : part.calls) call.captured = all || (layer && in_graph(call.module));
  }
}

const Training& checked(const Model& model, const Training& training) {
  check_training(model, training);
  return training;
}

}  // namespace

AnalyticCost::AnalyticCost(Model model, const Training& training, std::vector<StageContents> stages, Cluster cluster,
                           Software software, KernelTimes measured)
    : model_(std::move(model)),
      training_(checked(model_, training)),
      stages_(std::move(stages)),
      cluster_(std::move(cluster)),
      software_(std::move(software)),
      measured_(std::move(measured)),
      placement_(training_, cluster_),
      collectives_(cluster_, placement_),
      weave_(training_.ep > 1 && training_.weave != kSearchedWeave ? find_weave(training_.weave) : Weave{}) {
  const PrecisionTraits& traits = traits_of(training_.precision);
  const Gpu& gpu = cluster_.gpu;
  const bool scaled = training_.precision != GemmPrecision::mxfp8 || gpu.gemm_8bit.block_scales;
  if (gpu.peak_of(traits.bits) == 0 || !scaled) {
    throw InputError(fmt::format("/parallelism/precision: {}: {} multiplies no operands of {} bits{}", traits.name,
                                 gpu.name, traits.bits, scaled ? "" : " with a scale per block"));
  }
  if (training_.narrow_attention && !(gpu.attention_8bit_forward && gpu.attention_8bit_backward)) {
    throw InputError(
        fmt::format("/parallelism/fp8_dot_product_attention: {} has no attention_8bit_forward and backward", gpu.name));
  }
  if (training_.ep > 1 && training_.dispatch_sms() >= gpu.num_sms) {
    throw InputError(
        fmt::format("/parallelism/moe_communication_sms: expected less than the {} multiprocessors of {}, got {}",
                    gpu.num_sms, gpu.name, training_.dispatch_sms()));
  }
  if (training_.optimizer_offload > 0 &&
      (cluster_.host_link_bytes_per_s == 0 || cluster_.host_memory_bytes_per_s == 0)) {
    throw InputError(
        fmt::format("/parallelism/optimizer_cpu_offload: {} has no host_link_bytes_per_s and host_memory_bytes_per_s: "
                    "specify them in a node "
                    "file (docs/formats.md, Cluster files)",
                    cluster_.name));
  }
  if (training_.activation_offload != 0 && cluster_.host_link_bytes_per_s == 0) {
    throw InputError(
        fmt::format("/parallelism/offload_activations: {} has no host_link_bytes_per_s: specify it in a "
                    "node file (docs/formats.md, Cluster files)",
                    cluster_.name));
  }
  if (!training_.gathers_per_op() && !training_.reduces_per_op()) {
    kept_ = std::make_shared<KeptPrices>();
    kept_again_ = std::make_shared<KeptPrices>();
  }
  if (training_.ep > 1) {
    ranks_of_token_ = expected_parts(model_.experts, training_.ep);
    nodes_of_token_ = expected_parts(model_.experts, placement_.expert_group().nodes);
  }
  for (auto stage = stages_.begin(); stage != stages_.end(); ++stage) {
    alike_.push_back(static_cast<int>(std::find(stages_.begin(), stage, *stage) - stages_.begin()));
    priced_.push_back(*stage);
    if (!model_.flat) priced_.back().first = model_.alike_in_any_order(stage->first, stage->layers);
  }
}

std::optional<double> AnalyticCost::measured_s(const KernelCall& call) const {
  if (measured_.times.empty()) return std::nullopt;
  KernelCall known = call;
  const bool included = call.kind == KernelClass::memory && call.attention.sequences > 0;
  if (included) known.kind = KernelClass::attention_backward;
  const std::optional<KernelShape> shape = kernel_shape(training_.precision, known);
  const std::optional<double> seconds = shape ? measured_.find(*shape) : std::nullopt;
  return seconds && included ? 0 : seconds;
}

KernelTime AnalyticCost::kernel_time(const KernelCall& call) const {
  KernelTime time = predicted_time(call);
  if (const std::optional<double> seconds = measured_s(call)) {
    const double ratio = *seconds / time.seconds();
    for (double* part : {&time.compute_s, &time.memory_s, &time.launch_s}) *part *= ratio;
  }
  return time;
}

KernelTime AnalyticCost::predicted_time(const KernelCall& call) const {
  const Gpu& gpu = cluster_.gpu;
  switch (call.kind) {
    case KernelClass::gemm: {
      KernelTime time = gemm_time(gpu, call.gemm, call.bytes);
      time.compute_s /= software_.gemm_speed;
      return time;
    }
    case KernelClass::attention_forward:
    case KernelClass::attention_backward: {
      KernelTime time = attention_time(gpu, attention_work(call), call.bytes);
      time.compute_s /= software_.attention_speed;
      return time;
    }
    case KernelClass::rated:
      return {.compute_s = call.flops / (gpu.peak_of(16) * call.fraction + gpu.num_sms * call.multiprocessor_rate),
              .memory_s = call.bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency),
              .launch_s = gpu.kernel_s};
    default: break;
  }
  const double efficiency =
      call.kind == KernelClass::cast ? gpu.cast_efficiency : gpu.memory_efficiency * software_.memory_speed;
  return {.compute_s = 0,
          .memory_s = call.bytes / (gpu.memory_bandwidth_bytes_per_s * efficiency),
          .launch_s = gpu.kernel_s};
}

double AnalyticCost::kernel_s(const KernelCall& call) const {
  double seconds = 0;
  switch (call.kind) {
    case KernelClass::all_reduce: seconds = collectives_.all_reduce_s(placement_.tensor_group(), call.bytes); break;
    case KernelClass::scatter_gather:
      seconds = collectives_.scatter_gather_s(placement_.tensor_group(), call.bytes);
      break;
    case KernelClass::all_gather: seconds = collectives_.all_gather_s(placement_.tensor_group(), call.bytes); break;
    case KernelClass::expert_all_to_all: seconds = dispatch_s(call); break;
    case KernelClass::expert_all_gather:
      seconds = collectives_.all_gather_s(placement_.expert_tensor_group(), call.bytes);
      break;
    case KernelClass::context_all_to_all:
      seconds = collectives_.all_to_all_s(placement_.context_group(), call.bytes);
      break;
    case KernelClass::overlapped_gather: {
      // One of tp parts is exposed: the last part to be sent, or the first to arrive.
      const double all = collectives_.all_gather_s(placement_.tensor_group(), call.bytes);
      KernelCall gemm = call;
      gemm.kind = KernelClass::gemm;
      gemm.bytes = call.overlapped_bytes;
      const double product = kernel_time(gemm).seconds();
      const double hidden = std::min(all * (training_.tp - 1) / training_.tp, product);
      seconds = all - hidden + hidden * (cluster_.gpu.overlap_slowdown - 1);
      break;
    }
    case KernelClass::context_ring: {
      KernelCall attention = call;
      attention.kind = call.overlapped_with;
      attention.flops = call.overlapped_flops;
      attention.bytes = call.overlapped_bytes;
      const double exchange = collectives_.shift_s(placement_.context_group(), call.bytes);
      seconds = std::max(0.0, exchange - kernel_time(attention).seconds());
      break;
    }
    case KernelClass::sharding: return call.added_s;
    default: seconds = kernel_time(call).seconds();
  }
  return seconds * call.count;
}

double AnalyticCost::sum_s(const std::vector<KernelPart>& parts) const {
  double seconds = 0;
  for (const KernelPart& part : parts) seconds += part.repeats * part_s(part);
  return seconds;
}

double AnalyticCost::computed_layer_s(OpKind kind, bool again, int layer, const SliceShape& slice) const {
  std::vector<KernelPart> part(1);
  part[0].calls = again ? recomputed_kernels(slice, layer) : layer_kernels(model_, training_, kind, slice, layer);
  if (part[0].calls.empty()) return 0;
  set_launches(training_, software_, part);
  return part_s(part[0]);
}

double AnalyticCost::layers_s(OpKind kind, bool again, const StageContents& held, const SliceShape& slice) const {
  double seconds = 0;
  for (const auto& [layer, count] : layers_by_kind(model_, held)) seconds += count * layer_s(kind, again, layer, slice);
  return seconds;
}

double AnalyticCost::computed_s(OpKind kind, int stage, const SliceShape& slice) const {
  if (!adds_layers()) return sum_s(parts(kind, stage, slice));
  return sum_s(parts_of(kind, stage, slice, false)) +
         (of_vocabulary(kind) ? 0 : layers_s(kind, false, contents(stage), slice));
}

double AnalyticCost::computed_joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice,
                                      OpKind backward, int backward_stage, const MicrobatchShape& backward_shape,
                                      int backward_slice) const {
  const double apart = compute_s(OpKind::F, forward_stage, forward_shape, forward_slice) +
                       compute_s(backward, backward_stage, backward_shape, backward_slice);
  using Overlap = Training::JointOverlap;
  const bool all = training_.joint_overlap == Overlap::all;
  if (training_.joint_overlap == Overlap::none) return apart;
  if (training_.ep == 1 && !(all && (training_.tp > 1 || training_.cp > 1))) return apart;
  const double woven = training_.ep == 1 ? apart
                                         : woven_joint(forward_stage, forward_shape, forward_slice, backward,
                                                       backward_stage, backward_shape, backward_slice)
                                               .seconds;
  if (!all) return woven;
  // Collectives of each half overlap with the other half's kernels, which they slow down.
  double device = 0;
  double exposed = 0;  // collectives that do not overlap
  double hidden = 0;
  double host = 0;
  const auto add = [&](OpKind kind, int stage, const SliceShape& size) {
    for (const KernelPart& part : parts(kind, stage, size)) {
      if (replays_graph(part.calls)) host += part.repeats * launch_s();
      for (const KernelCall& call : part.calls) {
        host += part.repeats * issue_s(call);
        const bool overlaps = call.kind != KernelClass::sharding;
        (!is_collective(call.kind) ? device : overlaps ? hidden : exposed) += part.repeats * kernel_s(call);
      }
    }
  };
  add(OpKind::F, forward_stage, slice_shape(forward_shape, forward_slice));
  add(backward, backward_stage, slice_shape(backward_shape, backward_slice));
  const bool host_bound = apart > 1.0001 * (device + exposed + hidden);
  if (host_bound) return woven;
  const double overlapped = apart - std::min(hidden, device) * std::max(0.0, 2 - cluster_.gpu.overlap_slowdown);
  return std::min(woven, std::max(overlapped, host));
}

AnalyticCost::SentBytes AnalyticCost::dispatched(double bytes) const {
  const Reach& reach = placement_.expert_group();
  if (training_.token_dispatcher == Training::TokenDispatcher::all_to_all) {
    const double share = bytes / reach.size;
    return {.near = (reach.per_node - 1) * share, .far = (reach.size - reach.per_node) * share};
  }
  // Each token is sent once to every other node that has some of its experts, and there, as within its own node, once
  // to every rank.
  const double copy = bytes / model_.experts.per_token;
  return {.near = copy * ranks_of_token_ * (reach.per_node - 1) / reach.per_node,
          .far = copy * nodes_of_token_ * (reach.nodes - 1) / reach.nodes};
}

double AnalyticCost::dispatch_s(const KernelCall& call) const {
  const Reach& reach = placement_.expert_group();
  if (training_.token_dispatcher == Training::TokenDispatcher::all_to_all) {
    const SentBytes sent = dispatched(call.bytes);
    return collectives_.exchange_s(reach, sent.near, sent.far);
  }
  // HybridEP sends tokens with the probabilities of all experts of their domain, and returns their gradients.
  const bool hybrid = training_.token_dispatcher == Training::TokenDispatcher::hybridep;
  const double probability_bytes =
      hybrid && call.part == LayerPart::dispatch ? 4.0 * model_.experts.count / reach.nodes : 0;
  return expert_exchange_s(training_.token_dispatcher,
                           {.tokens = call.tokens,
                            .token_bytes = call.bytes / (call.tokens * model_.experts.per_token) + probability_bytes,
                            .copies = ranks_of_token_,
                            .ranks = static_cast<double>(reach.per_node),
                            .domains = static_cast<double>(reach.nodes),
                            .multiprocessors = static_cast<double>(training_.dispatch_sms()),
                            .nvlink_bytes_per_s = cluster_.intra_node.bandwidth_bytes_per_s,
                            .network_bytes_per_s = collectives_.network_bytes_per_s(),
                            .copies_to_other_domains = nodes_of_token_ * (reach.nodes - 1) / reach.nodes,
                            .combines = call.combines});
}

Contention AnalyticCost::contention_of(const PassKernels& forward, const PassKernels& backward) const {
  if (training_.dispatch_sms() == 0) return {};
  constexpr double kAccesses = 2;
  constexpr double kFairShare = 0.5;
  double bytes = 0;
  double seconds = 0;
  for (const PassKernels* op : {&forward, &backward}) {
    for (const auto& [pass, parts] : *op) {
      for (const KernelPart& part : parts) {
        for (const KernelCall& call : part.calls) {
          const bool sends = call.kind == KernelClass::expert_all_to_all;
          if (!sends && (is_collective(call.kind) || !communicates(call.part))) continue;
          const SentBytes sent = dispatched(call.bytes);
          bytes += part.repeats * call.count * (sends ? kAccesses * (sent.near + sent.far) : call.bytes);
          seconds += part.repeats * kernel_s(call);
        }
      }
    }
  }
  const Gpu& gpu = cluster_.gpu;
  const double most = gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency;
  return {.multiprocessors = static_cast<double>(training_.dispatch_sms()) / gpu.num_sms,
          .memory = seconds > 0 ? std::min(kFairShare, bytes / seconds / most) : 0};
}

AnalyticCost::PassKernels AnalyticCost::pass_kernels(OpKind kind, int stage, const SliceShape& slice) const {
  if (kind != OpKind::B) return {{kind, parts(kind, stage, slice)}};
  return {{OpKind::I, parts(OpKind::I, stage, slice)}, {OpKind::W, parts(OpKind::W, stage, slice)}};
}

AnalyticCost::LayersOfOp AnalyticCost::layers_of(const PassKernels& kernels, const Contention& contention) const {
  using Kind = KernelPart::Kind;
  const bool contended = contention.multiprocessors > 0;
  const OpKind kind = kernels.front().first;
  LayersOfOp out;
  double& embedding = kind == OpKind::F ? out.before_s : out.after_s;
  double& head = kind == OpKind::F ? out.after_s : out.before_s;
  std::vector<bool> replayed;  // by layer: the graph of a backward includes its weight gradients
  for (const auto& [pass, all] : kernels) {
    std::size_t layer = 0;
    for (const KernelPart& part : all) {
      if (!part.is_layer()) {
        (part.kind == Kind::embedding ? embedding
         : part.kind == Kind::head    ? head
                                      : out.after_s) += part.repeats * part_s(part);
        continue;
      }
      LayerTimes times;
      for (const KernelCall& call : part.calls) {
        if (!contended || is_collective(call.kind) || communicates(call.part)) {
          times.of(pass, call.part) += kernel_s(call);
          continue;
        }
        const KernelTime time = kernel_time(call);
        const double alone = time.seconds();
        times.of(pass, call.part) += call.count * alone;
        times.delay(pass, call.part) += call.count * (contention.beside(time).seconds() - alone);
      }
      for (const KernelCall& call : part.calls) {
        times.issue(pass, call.part) += issue_s(call);
        times.counts = std::max(times.counts, counts_of(call));
      }
      const bool replays = replays_graph(part.calls);
      for (int i = 0; i < part.repeats; ++i, ++layer) {
        if (layer == out.layers.size()) {
          out.layers.emplace_back();
          out.wait_s.push_back(part_s(part));
          replayed.push_back(false);
        }
        LayerTimes& of = out.layers[layer];
        const std::size_t index = LayerTimes::pass_index(pass);
        of.seconds[index] = times.seconds[index];
        of.delays[index] = times.delays[index];
        of.issues[index] = times.issues[index];
        of.counts = std::max(of.counts, times.counts);
        if (replays && !replayed[layer]) of.issue(pass, LayerPart::attention) += launch_s();
        replayed[layer] = replayed[layer] || replays;
      }
    }
  }
  const auto sum = [](const LayerTimes::Parts& parts) {
    double seconds = 0;
    for (const auto& pass : parts) seconds = std::accumulate(pass.begin(), pass.end(), seconds);
    return seconds;
  };
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    const LayerTimes& layer = out.layers[i];
    const double whole = kernels.size() == 1 ? out.wait_s[i] : sum(layer.issues);
    out.wait_s[i] = std::max(0.0, whole - sum(layer.seconds));
  }
  if (kind != OpKind::F) {
    std::reverse(out.layers.begin(), out.layers.end());
    std::reverse(out.wait_s.begin(), out.wait_s.end());
  }
  return out;
}

AnalyticCost::LayersOfOp AnalyticCost::layers_with_waits(const PassKernels& kernels) const {
  LayersOfOp out = layers_of(kernels);
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    out.layers[i].of(kernels.front().first, LayerPart::attention) += out.wait_s[i];
    out.layers[i].issues = {};
    out.layers[i].counts = LayerTimes::Counts::not_read;
  }
  return out;
}

WovenBlock AnalyticCost::woven_op(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  const LayersOfOp op = layers_with_waits(pass_kernels(kind, stage, slice_shape(shape, slice)));
  const std::vector<LayerTimes> none;
  const bool forward = kind == OpKind::F;
  return with_compute_around(weave_block(serial_weave(), forward ? op.layers : none, forward ? none : op.layers),
                             op.before_s, op.after_s);
}

WovenBlock AnalyticCost::woven_recompute(int stage, const MicrobatchShape& shape, int slice) const {
  const LayersOfOp op = layers_with_waits({{OpKind::F, recompute_parts(stage, slice_shape(shape, slice))}});
  return with_compute_around(weave_block(serial_weave(), op.layers, {}), op.before_s, op.after_s);
}

WovenBlock AnalyticCost::woven_joint(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice,
                                     OpKind backward, int backward_stage, const MicrobatchShape& backward_shape,
                                     int backward_slice) const {
  const PassKernels forward = pass_kernels(OpKind::F, forward_stage, slice_shape(forward_shape, forward_slice));
  const PassKernels gradient = pass_kernels(backward, backward_stage, slice_shape(backward_shape, backward_slice));
  const bool serial = training_.joint_overlap == Training::JointOverlap::none;
  const Contention contention = serial ? Contention{} : contention_of(forward, gradient);
  LayersOfOp f = serial ? layers_with_waits(forward) : layers_of(forward, contention);
  LayersOfOp b = serial ? layers_with_waits(gradient) : layers_of(gradient, contention);
  const double before = f.before_s + b.before_s;
  const double after = f.after_s + b.after_s;
  if (serial) return with_compute_around(weave_block(serial_weave(), f.layers, b.layers), before, after);
  add_part_calls(OpKind::F, f.layers);
  add_part_calls(OpKind::B, b.layers);
  const Weave& weave = weave_.order.empty() ? fastest_weave(f.layers, b.layers) : weave_;
  return with_compute_around(weave_block(weave, f.layers, b.layers), before, after);
}

double AnalyticCost::computed_recompute_s(int stage, const SliceShape& slice) const {
  if (!adds_layers() || contents(stage).mtp_layers > 0) return sum_s(recompute_parts(stage, slice));
  const bool full = training_.recompute == Training::Recompute::full;
  return layers_s(OpKind::F, true, full ? recomputed_layers(model_, training_, contents(stage)) : contents(stage),
                  slice);
}

Kernels AnalyticCost::recomputed_kernels(const SliceShape& slice, int layer) const {
  return training_.recompute == Training::Recompute::full ? layer_kernels(model_, training_, OpKind::F, slice, layer)
                                                          : recomputed_module_kernels(model_, training_, slice, layer);
}

TransferTime AnalyticCost::wire_time(int from, int to, std::int64_t bytes) const {
  const bool inside = placement_.pair(from, to).nodes == 1;
  const Link& link = inside ? cluster_.intra_node : cluster_.inter_node;
  double bandwidth = link.bandwidth_bytes_per_s * link.transfer_efficiency;
  if (!inside && !cluster_.nic_per_gpu) bandwidth /= placement_.senders_per_node(from, to);
  return {.occupied_s = static_cast<double>(bytes) / bandwidth, .latency_s = link.latency_s};
}

TransferTime AnalyticCost::transfer(int from, int to, std::int64_t bytes) const {
  if (from == to) return {};
  TransferTime time = wire_time(from, to, bytes);
  if (training_.tp > 1 && training_.scatter_gather && !training_.sequence_parallel) {
    const Reach group = placement_.tensor_group();
    const double latency = collectives_.all_gather_s(group, 0);
    time.latency_s += latency;
    time.occupied_s += collectives_.all_gather_s(group, static_cast<double>(bytes) * training_.tp) - latency;
  }
  return time;
}

LinkSharing AnalyticCost::sharing(std::span<const LinkEnds> links) const {
  LinkSharing out = link_sharing(links, cluster_, placement_);
  // Wire time and all-gather are both proportional to the bytes, so any number gives their ratio.
  constexpr std::int64_t kBytes = 1 << 30;
  for (std::size_t i = 0; i < out.links.size(); ++i) {
    if (links[i].from == links[i].to) continue;  // a collective
    const double occupied = transfer(links[i].from, links[i].to, kBytes).occupied_s;
    out.links[i].wire_fraction = wire_time(links[i].from, links[i].to, kBytes).occupied_s / occupied;
  }
  return out;
}

double AnalyticCost::collective_s(CollectiveKind kind, int stage, std::int64_t bytes) const {
  const auto size = static_cast<double>(bytes);
  if (bytes == 0 && (kind == CollectiveKind::gradient_reduce || kind == CollectiveKind::parameter_gather)) return 0;
  switch (kind) {
    case CollectiveKind::gradient_reduce: return reduce_s(contents(stage), size);
    case CollectiveKind::parameter_gather: return gather_s(contents(stage), size);
    case CollectiveKind::replica_reduce:
    case CollectiveKind::tied_embedding: {
      if (training_.pp == 1) return 0;
      const int all = contents(stage).encoder_ranks;
      return collectives_.all_reduce_s(all > 1 ? placement_.first_ranks(all) : placement_.pair(0, training_.pp - 1),
                                       size);
    }
    case CollectiveKind::global_norm: return collectives_.all_reduce_s(placement_.world_group(), size);
  }
  return 0;
}

// Routed experts have fewer replicas than the rest of a stage.
double AnalyticCost::gather_s(const StageContents& held, double bytes) const {
  const double experts = expert_share(held);
  double seconds = 0;
  if (experts < 1) seconds += collectives_.all_gather_s(placement_.shard_group(), (1 - experts) * bytes);
  if (experts > 0) seconds += collectives_.all_gather_s(placement_.expert_shard_group(), experts * bytes);
  return seconds;
}

double AnalyticCost::reduce_s(const StageContents& held, double bytes) const {
  const auto over = [&](const Reach& all, const Reach& shards, const Reach& copies, double part) {
    if (!training_.distributed_optimizer) return collectives_.all_reduce_s(all, part);
    return collectives_.reduce_scatter_s(shards, part) + collectives_.all_reduce_s(copies, part / shards.size);
  };
  const double experts = expert_share(held);
  double seconds = 0;
  if (experts < 1) {
    seconds += over(placement_.data_group(), placement_.shard_group(), placement_.copy_group(), (1 - experts) * bytes);
  }
  if (experts > 0) {
    seconds += over(placement_.expert_data_group(), placement_.expert_shard_group(), placement_.expert_copy_group(),
                    experts * bytes);
  }
  return seconds;
}

double AnalyticCost::expert_share(const StageContents& held) const {
  const std::int64_t experts = trained_expert_parameters_per_device(model_, training_, held);
  if (experts == 0) return 0;
  return static_cast<double>(experts) / static_cast<double>(trained_parameters_per_device(model_, training_, held));
}

double AnalyticCost::optimizer_s(int stage) const {
  const auto count = static_cast<double>(trained_parameters_per_device(model_, training_, contents(stage)));
  const double experts = expert_share(contents(stage)) * count;
  const double sharded = (count - experts) / training_.shard_ranks() + experts / training_.expert_shard_ranks();
  const double mine = training_.distributed_optimizer ? sharded : count;
  const bool whole_weights = training_.zero_stage() < 3;
  // Adam reads and writes the states of a parameter, 12 bytes or less, reads the gradient and writes the 16-bit weight.
  // Before that the norm reads all gradients, and after it they are zeroed.
  const double held = training_.reduces_per_op() || !whole_weights ? mine : count;
  const int adam = 2 * training_.optimizer_bytes + training_.gradient_bytes + (whole_weights ? 2 : 0);
  const double offloaded = training_.optimizer_offload * mine;
  double bytes = (mine - offloaded) * adam + 2.0 * training_.gradient_bytes * held;
  // Narrow weights are cast once, to both layouts.
  const PrecisionTraits& traits = traits_of(training_.precision, training_.any_layout);
  if (traits.narrow() && whole_weights && training_.lora_rank == 0) {
    const auto linear = static_cast<double>(
        stage_linear_parameters_per_device(model_, training_.tp, contents(stage), training_.expert_ranks()));
    bytes += (2 + traits.layouts * traits.bytes) * linear;
  }
  const Gpu& gpu = cluster_.gpu;
  constexpr int kKernels = 3;
  const double chunks = static_cast<double>(stages_.size()) / training_.pp;  // per rank
  const double on_gpu = bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.memory_efficiency) +
                        kKernels * std::max(gpu.kernel_s, launch_s());
  return software_.step_s / chunks + (offloaded > 0 ? with_offload_s(on_gpu, offloaded, adam) : on_gpu);
}

// Ren et al. 2021 (ZeRO-Offload), section 3: the gradients of `offloaded` parameters go down, the host's Adam reads and
// writes `adam` bytes for each, and the 16-bit parameters come back; those of ZeRO 3 are sent in 32 bits, cast on the
// GPU (PyTorch's FSDP). Where the copies overlap, in parts, with the host's work, the longest of them remains.
// PyTorch's AdamW on a CPU is not fused: its ten operations read and write 20 elements of 32 bits, and the two results
// in new memory are read before they are written.
double AnalyticCost::with_offload_s(double on_gpu, double offloaded, int adam) const {
  constexpr int kUnfusedAdam = 4 * (20 + 2);
  const double down = offloaded * training_.gradient_bytes / cluster_.host_link_bytes_per_s;
  const double update =
      offloaded * (software_.fused_host_adam ? adam : kUnfusedAdam) / cluster_.host_memory_bytes_per_s;
  const double up = offloaded * (training_.zero_stage() == 3 ? 4 : 2) / cluster_.host_link_bytes_per_s;
  return training_.overlap_optimizer_offload ? std::max({on_gpu, down, update, up}) : on_gpu + down + update + up;
}

std::vector<KernelPart> AnalyticCost::parts(OpKind kind, int stage, const SliceShape& slice) const {
  return parts_of(kind, stage, slice, true);
}

std::vector<KernelPart> AnalyticCost::parts_of(OpKind kind, int stage, const SliceShape& slice, bool layers) const {
  using Kind = KernelPart::Kind;
  const StageContents& held = contents(stage);
  std::vector<KernelPart> out;
  const auto add = [&](Kind part, const std::string& name, int repeats, Kernels calls, int layer = 0) {
    out.push_back({.kind = part, .repeats = repeats, .calls = std::move(calls), .layer = layer, .name = name});
  };
  const bool passes = of_vocabulary(kind);
  if (passes) {
    add(Kind::head, "vocabulary shard", 1, vocabulary_kernels(model_, training_, kind, slice));
  } else if (held.embedding && training_.vocabulary_barriers == 0) {
    add(Kind::embedding, "embedding", 1, embedding_kernels(model_, training_, kind, slice));
  }
  for (const auto& [layer, count] : layers && !passes ? layers_by_kind(model_, held) : KindCounts()) {
    add(Kind::layer, model_.kind(layer).name, count, layer_kernels(model_, training_, kind, slice, layer), layer);
  }
  if (held.mtp_layers > 0) {
    add(Kind::mtp_layer, "MTP layer", held.mtp_layers, mtp_kernels(model_, training_, kind, slice));
  }
  if (held.head) add(Kind::head, "head", losses_of(model_, held), head_kernels(model_, training_, kind, slice));
  set_launches(training_, software_, out);
  add_sharding(kind, stage, slice, out);
  if (held.has_encoder()) add_encoder(kind, held, slice, out);
  return out;
}

// Its parameters are sharded with the embedding's.
void AnalyticCost::add_encoder(OpKind kind, const StageContents& held, const SliceShape& slice,
                               std::vector<KernelPart>& parts) const {
  EncoderKernels kernels = encoder_kernels(*model_.encoder, training_, kind, slice, held);
  using Kind = KernelPart::Kind;
  std::vector<KernelPart> added = {{Kind::embedding, held.encoder_layers, std::move(kernels.layer), 0, "encoder layer"},
                                   {Kind::embedding, 1, std::move(kernels.ends), 0, "patches, merger"}};
  std::erase_if(added, [](const KernelPart& part) { return part.calls.empty(); });
  set_launches(training_, software_, added);
  std::move(added.begin(), added.end(), std::back_inserter(parts));
}

ShardedUnit AnalyticCost::sharded_unit(const StageContents& unit, bool gathers, bool reduces) const {
  const auto parameters =
      static_cast<double>(stage_parameters_per_device(model_, training_.tp, unit, training_.expert_ranks()));
  ShardedUnit out;
  if (gathers) out.gather_s = gather_s(unit, static_cast<double>(gathered_parameter_bytes(model_, training_, unit)));
  if (reduces) out.reduce_s = reduce_s(unit, training_.gradient_bytes * parameters);
  return out;
}

void AnalyticCost::add_sharding(OpKind kind, int stage, const SliceShape& slice, std::vector<KernelPart>& parts) const {
  if (training_.data_ranks() == 1 && training_.expert_data_ranks() == 1) return;
  const bool forward = kind == OpKind::F;
  const bool gathers = training_.gathers_per_op() && (forward || (kind != OpKind::W && training_.reshards()));
  const bool reduces = training_.reduces_per_op() && (kind == OpKind::B || kind == OpKind::W);
  if (!gathers && !reduces) return;
  const std::vector<StageContents> contents_of = sharded_units(model_, contents(stage));
  const std::vector<KernelPart> again =
      forward || kind == OpKind::W ? std::vector<KernelPart>() : recompute_parts(stage, slice);
  std::vector<ShardedUnit> units;
  double gathered = 0;
  double reduced = 0;
  for (KernelPart& part : parts) {
    const StageContents& first = contents_of[units.size()];
    const auto bytes = static_cast<double>(gathered_parameter_bytes(model_, training_, first));
    const auto parameters =
        static_cast<double>(stage_parameters_per_device(model_, training_.tp, first, training_.expert_ranks()));
    const int count = first.head ? 1 : part.repeats;
    const int passes = part.repeats / count;
    // Parameters are copied out of the buffer of the collective, and gradients into it.
    if (gathers) part.calls.push_back(kernel_parts::memory("copy of gathered parameters", 2 * bytes / passes));
    if (reduces) {
      part.calls.push_back(
          kernel_parts::memory("copy of gradients", (2 + training_.gradient_bytes) * parameters / passes));
    }
    const ShardedUnit unit = sharded_unit(first, gathers, reduces);
    const auto repeated = std::find_if(again.begin(), again.end(), [&](const KernelPart& each) {
      return each.kind == part.kind && each.layer == part.layer;
    });
    const double compute = passes * part_s(part);
    const double recompute = repeated == again.end() ? 0 : part_s(*repeated);
    for (int i = 0; i < count; ++i) {
      const bool recomputed = repeated != again.end() && i < repeated->repeats;
      units.push_back({unit.gather_s, compute + (recomputed ? recompute : 0), unit.reduce_s});
    }
    if (gathers) gathered += count * bytes;
    if (reduces) reduced += count * training_.gradient_bytes * parameters;
  }
  if (!forward && !units.empty()) units.back().gather_s = 0;  // still gathered after the forward
  if (!forward) std::reverse(units.begin(), units.end());
  const ShardingTime time = sharding_time(units, cluster_.gpu.overlap_slowdown);
  KernelPart added{.kind = KernelPart::Kind::sharding, .name = "sharding"};
  const auto add = [&](std::string_view name, double bytes, double seconds) {
    added.calls.push_back({.name = name, .kind = KernelClass::sharding, .bytes = bytes, .added_s = seconds});
  };
  if (gathers) add("all-gather of parameters, exposed", gathered, time.gather_s);
  if (reduces) add("reduction of gradients, exposed", reduced, time.reduce_s);
  add("slowdown beside collectives", 0, time.slowdown_s);
  parts.push_back(std::move(added));
}

std::vector<KernelPart> AnalyticCost::recompute_parts(int stage, const SliceShape& slice) const {
  std::vector<KernelPart> out;
  if (training_.recompute == Training::Recompute::none) return out;
  const bool full = training_.recompute == Training::Recompute::full;
  const StageContents again = full ? recomputed_layers(model_, training_, contents(stage)) : contents(stage);
  const auto add = [&](KernelPart::Kind kind, const std::string& name, int count, Kernels calls, int layer = 0) {
    if (calls.empty()) return;
    out.push_back({.kind = kind, .repeats = count, .calls = std::move(calls), .layer = layer, .name = name});
  };
  for (const auto& [layer, count] : layers_by_kind(model_, again)) {
    add(KernelPart::Kind::layer, model_.kind(layer).name, count, recomputed_kernels(slice, layer), layer);
  }
  if (again.mtp_layers > 0) {
    add(KernelPart::Kind::mtp_layer, "MTP layer", again.mtp_layers,
        full ? mtp_recomputed_kernels(model_, training_, slice)
             : recomputed_module_kernels(model_, training_, slice, model_.mtp_kind));
  }
  set_launches(training_, software_, out);
  return out;
}

}  // namespace sluice::model
