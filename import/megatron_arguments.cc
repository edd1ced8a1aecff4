#include "import/megatron_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "import/megatron_model.h"
#include "model/scenario/pipeline_layout.h"
#include "model/schedule/family.h"

namespace sluice::imports {
namespace {

void add_experts(const Model& model, const Training& training, Arguments& out) {
  if (!model.has_experts()) return;
  if (training.expert_capacity > 0) {
    out.add("--moe-expert-capacity-factor", fmt::format("{}", training.expert_capacity));
    out.add("--moe-pad-expert-input-to-capacity", training.pads_experts);
  }
  if (training.ep > 1) {
    out.add("--expert-model-parallel-size", training.ep);
    using Dispatcher = Training::TokenDispatcher;
    const bool flexible = training.token_dispatcher != Dispatcher::all_to_all;
    const bool hybrid = training.token_dispatcher == Dispatcher::hybridep;
    out.add("--moe-token-dispatcher-type", flexible ? "flex" : "alltoall");
    if (flexible) out.add("--moe-flex-dispatcher-backend", hybrid ? "hybridep" : "deepep");
    if (flexible && training.communication_sms >= 0) {
      out.add(hybrid ? "--moe-hybridep-num-sms" : "--moe-deepep-num-sms", training.communication_sms);
    }
  }
  // By default the tensor-parallel size.
  if (training.tp > 1 || training.etp > 1) out.add("--expert-tensor-parallel-size", training.etp);
}

void add_graphs(const Training& training, Arguments& out) {
  using enum Training::GraphImplementation;
  switch (training.graph_implementation) {
    case none: return;
    case local: out.add("--cuda-graph-impl", "local"); break;
    case transformer_engine: out.add("--cuda-graph-impl", "transformer_engine"); break;
    case full_iteration: out.add("--cuda-graph-impl", "full_iteration"); return;
  }
  if (training.graph_modules != kWholeLayer) {
    out.add("--cuda-graph-modules", fmt::format("{}", fmt::join(names_of(training.graph_modules), " ")));
  }
}

// The layers of each virtual stage: evenly, in the first and last stage of a pipeline without chunks, or as a layout.
void add_layers(const Scenario& scenario, Arguments& out) {
  const int layers = scenario.model->layers;
  const int first = scenario.first_stage_layers;
  const int last = scenario.last_stage_layers;
  const int stages = scenario.training.pp * scenario.chunks;
  const int outer = (first > 0 ? 1 : 0) + (last > 0 ? 1 : 0);
  const int middle = layers - first - last;
  const bool hybrid = is_megatron_hybrid(*scenario.model);
  const bool even = !hybrid && scenario.stage_layers.empty() && stages > outer && middle % (stages - outer) == 0;
  if (even && outer == 0) {
    if (scenario.chunks > 1) out.add("--num-layers-per-virtual-pipeline-stage", layers / stages);
  } else if (even && scenario.chunks == 1) {
    if (first > 0) out.add("--decoder-first-pipeline-num-layers", first);
    if (last > 0) out.add("--decoder-last-pipeline-num-layers", last);
  } else {
    std::vector<int> counts;
    for (const StageContents& stage : split_layers(*scenario.model, stages, scenario.stage_layers, first, last,
                                                   scenario.mtp_stage, scenario.predictions)) {
      counts.push_back(stage.layers);
    }
    out.add(hybrid ? "--hybrid-layer-pattern" : "--pipeline-model-parallel-layout",
            fmt::format("'{}'", hybrid ? megatron_pattern(*scenario.model, counts)
                                       : layout_of(counts, scenario.model->mtp_layers, scenario.mtp_stage,
                                                   scenario.predictions)));
    if (hybrid) out.add("--spec", "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec");
  }
}

// Kernels and precision.
void add_kernels(const Scenario& scenario, Arguments& out) {
  const Training& training = scenario.training;
  out.add(training.precision == GemmPrecision::fp16 ? "--fp16" : "--bf16", true);
  switch (training.precision) {
    case GemmPrecision::bf16:
    case GemmPrecision::fp16: break;
    case GemmPrecision::fp8: out.add("--fp8-format", "hybrid"); break;
    case GemmPrecision::fp8_current:
      out.add("--fp8-format", "hybrid");
      out.add("--fp8-recipe", "tensorwise");
      break;
    case GemmPrecision::fp8_block:
      out.add("--fp8-format", "e4m3");
      out.add("--fp8-recipe", "blockwise");
      break;
    case GemmPrecision::mxfp8:
      out.add("--fp8-format", "e4m3");
      out.add("--fp8-recipe", "mxfp8");
      break;
    case GemmPrecision::nvfp4:
      out.add("--fp4-format", "e2m1");
      out.add("--fp4-recipe", "nvfp4");
      break;
  }
  out.add("--fp8-param-gather", training.narrow_parameters);
  out.add("--fp8-dot-product-attention", training.narrow_attention);
  out.add("--activation-func-fp8-input-store", training.narrow_activation_inputs);
  out.add("--grad-reduce-in-bf16", training.gradient_bytes == 2);
  if (!scenario.clip_gradients) out.add("--clip-grad", 0);
  if (training.transformer_engine) out.add("--transformer-impl", "transformer_engine");
  if (training.flash_attention) {
    out.add("--use-flash-attn", true);
  } else {
    out.add("--attention-backend", "unfused");
  }
  const bool fused_loss =
      training.cross_entropy == Training::CrossEntropy::native || training.cross_entropy == Training::CrossEntropy::te;
  out.add("--cross-entropy-loss-fusion", fused_loss);
  out.add("--no-bias-swiglu-fusion", !training.fused_activation);
  if (training.cross_entropy == Training::CrossEntropy::te) out.add("--cross-entropy-fusion-impl", "te");
}

}  // namespace

std::string megatron_arguments(const Scenario& scenario) {
  const Training& training = scenario.training;
  Arguments out;
  out.add("--tensor-model-parallel-size", training.tp);
  out.add("--pipeline-model-parallel-size", training.pp);
  add_layers(scenario, out);
  if (scenario.chunks > 1) {
    out.add("--no-overlap-p2p-communication", scenario.blocks_transfers());
    if (scenario.group > 0) out.add("--microbatch-group-size-per-virtual-pipeline-stage", scenario.group);
  }
  if (find_family(scenario.schedule).for_expert_parallelism) {
    out.add("--overlap-moe-expert-parallel-comm", true);
    out.add("--delay-wgrad-compute", training.weave != "whole-backward");
  }
  if (training.cp > 1) {
    out.add("--context-parallel-size", training.cp);
    out.add("--cp-comm-type", training.context_exchange == Training::ContextExchange::ring ? "p2p" : "a2a");
  }
  out.add("--use-tp-pp-dp-mapping", training.pipeline_before_data);
  out.add("--sequence-parallel", training.sequence_parallel);
  out.add("--tp-comm-overlap", training.tp_comm_overlap && training.tp > 1);
  out.add("--use-distributed-optimizer", training.distributed_optimizer);
  if (training.optimizer_offload > 0) {
    out.add("--optimizer-cpu-offload", true);
    if (training.optimizer_offload < 1) out.add("--optimizer-offload-fraction", training.optimizer_offload);
    out.add("--overlap-cpu-optimizer-d2h-h2d", training.overlap_optimizer_offload);
    out.add("--use-precision-aware-optimizer", true);  // which it requires
  }
  if (training.activation_offload == 1) {
    out.add("--fine-grained-activation-offloading", true);
    if (!training.offload_modules.empty()) {
      out.add("--offload-modules", fmt::format("{}", fmt::join(training.offload_modules, " ")));
    }
  }
  out.add("--moe-grouped-gemm", scenario.model->has_experts() && training.grouped_experts);
  out.add("--use-transformer-engine-op-fuser", training.fused_grouped_mlp);
  add_graphs(training, out);
  if (training.deferred_head_gradients > 0) {
    out.add("--defer-embedding-wgrad-compute", true);
    out.add("--wgrad-deferral-limit", training.deferred_head_gradients);
  }
  out.add("--overlap-grad-reduce", training.overlap_grad_reduce);
  out.add("--overlap-param-gather", training.overlap_param_gather);
  out.add("--no-scatter-gather-tensors-in-pipeline", !training.scatter_gather);
  out.add("--micro-batch-size", training.micro_batch);
  out.add("--global-batch-size", scenario.global_batch);
  switch (training.recompute) {
    case Training::Recompute::none: break;
    case Training::Recompute::selective:
      out.add("--recompute-activations", true);
      if (training.recompute_modules != RecomputeModules(RecomputeModule::core_attention)) {
        out.add("--recompute-modules", fmt::format("{}", fmt::join(names_of(training.recompute_modules), " ")));
      }
      break;
    case Training::Recompute::full:
      out.add("--recompute-granularity", "full");
      if (training.recompute_layers > 0) {
        out.add("--recompute-method", "block");
        out.add("--recompute-num-layers", training.recompute_layers);
      } else {
        out.add("--recompute-method", "uniform");
        out.add("--recompute-num-layers", 1);
      }
      break;
  }
  add_kernels(scenario, out);
  add_megatron_model(*scenario.model, training.sequence_length, out);
  add_experts(*scenario.model, training, out);
  return out.take();
}

}  // namespace sluice::imports
