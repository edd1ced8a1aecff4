// The host of AnalyticCost: its launches, and when the device waits for them.
#include <algorithm>

#include "model/cost/analytic.h"

namespace sluice::model {

bool AnalyticCost::replays_graph(const std::vector<KernelCall>& calls) const {
  return training_.graph_implementation != Training::GraphImplementation::full_iteration &&
         std::any_of(calls.begin(), calls.end(), [](const KernelCall& call) { return call.captured; });
}

int AnalyticCost::launches(const std::vector<KernelCall>& calls) const {
  int out = replays_graph(calls) ? 1 : 0;
  for (const KernelCall& call : calls) {
    if (call.launched()) out += call.group > 0 ? call.group : call.count;
  }
  return out;
}

double AnalyticCost::issue_s(const KernelCall& call) const {
  if (!call.launched()) return 0;
  // Of the host's time of an exchange, its calls; the rest launches the router's kernels, which graphs may contain.
  // With NCCL's all-to-all, dispatch and combine call seven autograd functions of Megatron-LM's token_dispatcher.py
  // (permute, all-to-alls of tokens and probabilities, sort of chunks; sort, all-to-all, unpermute), with DeepEP four.
  constexpr double kCalls = 0.6;
  constexpr double kAllToAllCalls = 7.0 / 4;
  double each = call.group > 0 ? software_.expert_issue_s : software_.issue_s;
  if (call.kind == KernelClass::expert_all_to_all) {
    const bool captured = training_.graph_implementation != Training::GraphImplementation::none &&
                          training_.graph_modules.any_of(GraphModule::moe_router);
    const double calls = training_.token_dispatcher == Training::TokenDispatcher::all_to_all ? kAllToAllCalls : 1;
    each = std::max(each, (kCalls * calls + (captured ? 0 : 1 - kCalls)) * software_.dispatch_issue_s);
  }
  return (call.group > 0 ? call.group : call.count) * each / cluster_.host_speed;
}

// In Megatron-LM each part is a call of PyTorch's autograd engine, on a stream of its own between events, and detaches
// its inputs (ScheduleNode in megatron/core/pipeline_parallel/utils.py). Weight gradients are part of the B of their
// part, or calls without the engine.
void AnalyticCost::add_part_calls(OpKind pass, std::vector<LayerTimes>& layers) const {
  if (training_.graph_implementation == Training::GraphImplementation::full_iteration) return;
  for (LayerTimes& layer : layers) {
    for (std::size_t i = 0; i < kNumLayerParts; ++i) {
      const auto part = static_cast<LayerPart>(i);
      if (layer.of(pass, part) > 0) layer.issue(pass, part) += software_.part_issue_s / cluster_.host_speed;
    }
  }
}

// All dispatchers read them, to allocate what they receive and for the sizes of GEMMs: DeepEP inside of its call
// (Megatron-LM's fused_a2a.py), NCCL's all-to-all before it. HybridEP counts those of each expert after it has sent the
// tokens, on the same stream (dispatch_postprocess in DeepEP's csrc/hybrid_ep/executor/executor.cu). A backward has
// those of its forward, and experts that are padded have constant sizes.
LayerTimes::Counts AnalyticCost::counts_of(const KernelCall& call) const {
  using enum LayerTimes::Counts;
  const bool counts = call.kind == KernelClass::expert_all_to_all && call.part == LayerPart::dispatch &&
                      !call.combines && call.launched() && !training_.pads_experts;
  if (!counts) return not_read;
  return training_.token_dispatcher == Training::TokenDispatcher::hybridep ? after_dispatch : before_dispatch;
}

double AnalyticCost::part_s(const KernelPart& part) const {
  double device = 0;
  double host = replays_graph(part.calls) ? launch_s() : 0;
  for (const KernelCall& call : part.calls) {
    device += kernel_s(call);
    host += issue_s(call);
  }
  const auto dispatch = std::find_if(part.calls.begin(), part.calls.end(), [&](const KernelCall& call) {
    return counts_of(call) != LayerTimes::Counts::not_read;
  });
  if (dispatch == part.calls.end()) return std::max(device, host);
  double issued = 0;
  double done = 0;
  const auto run = [&](auto first, auto last) {
    for (; first != last; ++first) {
      const double kernels = std::max(1, first->group > 0 ? first->group : first->count);
      const double all = issue_s(*first);
      const double seconds = kernel_s(*first);
      done = std::max({done + seconds, issued + all / kernels + seconds, issued + all + seconds / kernels});
      issued += all;
      if (counts_of(*first) == LayerTimes::Counts::after_dispatch) issued = done;
    }
  };
  run(dispatch, part.calls.end());
  run(part.calls.begin(), dispatch);
  constexpr double kRounding = 1e-12;
  return std::max(done > (1 + kRounding) * device ? done : device, host);
}

}  // namespace sluice::model
