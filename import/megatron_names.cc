#include "import/megatron_names.h"

#include <algorithm>
#include <iterator>

#include "import/names.h"
#include "model/scenario/settings.h"

namespace sluice::imports {
namespace {

using enum MegatronValue;

// Arguments that are read besides those whose values are those of a setting; their effect depends on others.
constexpr MegatronKey kOtherArguments[] = {
    {"quick-geglu", flag, "/model/swiglu"},
    {"hybrid-layer-pattern", text},
    {"hybrid-override-pattern", text},
    {"mtp-hybrid-override-pattern", text},
    {"is-hybrid-model", flag},
    {"window-size", words},
    {"window-attn-skip-freq", text},
    {"no-rope-freq", text},
    {"softmax-type", text},
    {"attention-output-gate", flag},
    {"head-wise-attn-gate", flag},
    {"experimental-attention-variant", text},
    {"linear-attention-type", text},
    {"linear-attention-freq", text},
    {"linear-conv-kernel-dim", whole},
    {"linear-key-head-dim", whole},
    {"linear-value-head-dim", whole},
    {"linear-num-key-heads", whole},
    {"linear-num-value-heads", whole},
    {"dsa-indexer-n-heads", whole},
    {"dsa-indexer-head-dim", whole},
    {"dsa-indexer-topk", whole},
    {"dsa-indexer-topk-freq", whole},
    {"dsa-indexer-skip-topk-offset", whole},
    {"dsa-indexer-use-sparse-loss", flag},
    {"mamba-head-dim", whole},
    {"mamba-num-groups", whole},
    {"mamba-num-heads", whole},
    {"mamba-state-dim", whole},
    {"moe-latent-size", whole},
    {"squared-relu", flag},
    {"pipeline-model-parallel-size", whole},
    {"num-layers-per-virtual-pipeline-stage", whole},
    {"num-virtual-stages-per-pipeline-rank", whole},
    {"decoder-first-pipeline-num-layers", whole},
    {"decoder-last-pipeline-num-layers", whole},
    {"pipeline-model-parallel-layout", text},
    {"account-for-embedding-in-pipeline-split", flag},
    {"account-for-loss-in-pipeline-split", flag},
    {"microbatch-group-size-per-virtual-pipeline-stage", whole},
    {"no-overlap-p2p-communication", flag},
    {"no-scatter-gather-tensors-in-pipeline", flag},
    {"sequence-parallel", flag},
    {"global-batch-size", whole},
    {"cp-comm-type", words},
    {"expert-tensor-parallel-size", whole},
    {"recompute-activations", flag},
    {"recompute-granularity", text},
    {"recompute-method", text},
    {"recompute-num-layers", whole},
    {"recompute-modules", words},
    {"fine-grained-activation-offloading", flag},
    {"offload-modules", words},
    {"moe-grouped-gemm", flag},
    {"no-bias-swiglu-fusion", flag},
    {"num-distributed-optimizer-instances", whole},
    {"use-precision-aware-optimizer", flag},
    {"main-params-dtype", text},
    {"exp-avg-dtype", text},
    {"exp-avg-sq-dtype", text},
    {"defer-embedding-wgrad-compute", flag},
    {"wgrad-deferral-limit", whole},
    {"checkpoint-activations", flag},
    {"transformer-impl", text},
    {"attention-backend", text},
    {"use-flash-attn", flag},
    {"no-gradient-accumulation-fusion", flag},
    {"bf16", flag},
    {"fp16", flag},
    {"fp8-format", text},
    {"fp8-recipe", text},
    {"fp4-format", text},
    {"fp4-recipe", text},
    {"fp8-param-gather", flag},
    {"fp8-dot-product-attention", flag},
    {"accumulate-allreduce-grads-in-fp32", flag},
    {"grad-reduce-in-bf16", flag},
    {"clip-grad", real},
    {"group-query-attention", flag},
    {"num-query-groups", whole},
    {"ffn-hidden-size", whole},
    {"vocab-size", whole},
    {"padded-vocab-size", whole},
    {"make-vocab-size-divisible-by", whole},
    {"tokenizer-type", text},
    {"position-embedding-type", text},
    {"use-rotary-position-embeddings", flag},
    {"no-position-embedding", flag},
    {"multi-latent-attention", flag},
    {"q-lora-rank", whole},
    {"kv-lora-rank", whole},
    {"qk-head-dim", whole},
    {"qk-pos-emb-head-dim", whole},
    {"v-head-dim", whole},
    {"num-experts", whole},
    {"moe-router-topk", whole},
    {"moe-ffn-hidden-size", whole},
    {"moe-shared-expert-intermediate-size", whole},
    {"moe-shared-expert-gate", flag},
    {"moe-layer-freq", text},
    {"moe-token-dispatcher-type", text},
    {"moe-flex-dispatcher-backend", text},
    {"moe-enable-deepep", flag},
    {"moe-deepep-num-sms", whole},
    {"moe-hybridep-num-sms", whole},
    {"moe-router-num-groups", whole},
    {"moe-router-group-topk", whole},
    {"moe-expert-capacity-factor", real},
    {"moe-pad-expert-input-to-capacity", flag, "/parallelism/moe_pad_expert_input_to_capacity"},
    {"overlap-moe-expert-parallel-comm", flag},
    {"use-transformer-engine-op-fuser", flag},
    {"cuda-graph-impl", text},
    {"cuda-graph-modules", words},
    {"cuda-graph-scope", words},
    {"enable-cuda-graph", flag},
    {"external-cuda-graph", flag},
    {"delay-wgrad-compute", flag},
    {"use-torch-fsdp2", flag},
    {"torch-fsdp2-no-reshard-after-forward", flag},
    {"use-megatron-fsdp", flag},
    {"use-custom-fsdp", flag},
    {"data-parallel-sharding-strategy", text},
    {"world-size", whole},
    {"data-parallel-size", whole},
    // Of Megatron-DeepSpeed.
    {"deepspeed", flag},
    {"zero-stage", whole},
    {"no-pipeline-parallel", flag},
    {"num-key-value-heads", whole},
    {"use-flash-attn-v1", flag},
    {"use-flash-attn-v2", flag},
    {"use-flash-attn-triton", flag},
};

// Arguments that change time or memory and are not modeled.
constexpr std::string_view kNotModeled =
    // Communication.
    "overlap-param-gather-with-optimizer-step overlap-p2p-communication-warmup-flush "
    "overlap-p2p-comm-warmup-flush no-align-grad-reduce hierarchical-context-parallel-sizes use-sharp "
    "ddp-average-in-collective use-ring-exchange-p2p variable-seq-lengths hybrid-context-parallel yaml-cfg "
    // Precision.
    "fp8-hybrid fp8-e4m3 fp4-param-gather fp32-residual-connection fp16-lm-cross-entropy first-last-layers-bf16 "
    // Memory.
    "cpu-offloading* distribute-saved-activations moe-layer-recompute "
    // Kernels.
    "no-masked-softmax-fusion no-bias-gelu-fusion no-bias-dropout-fusion no-rope-fusion deterministic-mode "
    "use-te-activation-func use-fused-weighted-squared-relu "
    "reset-attention-mask apply-query-key-layer-scaling inprocess-restart "
    // The model.
    "spec heterogeneous-layers-config-* pipeline-model-parallel-split-rank decoder-num-layers "
    "num-moe-experts retro-add-retriever rampup-batch-size "
    "standalone-embedding-stage decrease-batch-size-if-needed "
    // Experts.
    "moe-shared-expert-overlap moe-router-padding-for-fp8 moe-router-padding-for-quantization "
    "moe-use-legacy-grouped-gemm moe-apply-probs-on-input moe-extended-tp "
    // Of Megatron-DeepSpeed.
    "checkpoint-in-cpu partition-activations contiguous-checkpointing synchronize-each-layer split-transformers "
    "cpu-optimizer memory-centric-tiled-linear compression-training curriculum-learning-legacy "
    "data-efficiency-curriculum-learning random-ltd";

// The same with the value that changes nothing.
struct NotModeled {
  std::string_view name, harmless;
};
constexpr NotModeled kNotModeledUnless[] = {{"main-grads-dtype", "torch.float32"},
                                            {"empty-unused-memory-level", "0"},
                                            {"optimizer", "adam"},
                                            {"hybrid-*", "0.0"},
                                            {"encoder-tensor-model-parallel-size", "0"},
                                            {"encoder-pipeline-model-parallel-size", "0"},
                                            {"ds-sequence-parallel-size", "1"},
                                            {"checkpoint-num-layers", "1"},
                                            {"remote-device", "none"}};

constexpr std::string_view kWithoutEffect =
    // Training.
    "train-iters train-samples train-sync-interval lr lr-* min-lr decoupled-* head-lr-mult weight-decay* "
    "start-weight-decay end-weight-decay adam-* sgd-momentum muon-* seed init-method-* perform-initialization "
    "no-initialization use-cpu-initialization init-model-with-meta-device embedding-init-method-std loss-scale* "
    "initial-loss-scale min-loss-scale hysteresis override-opt-param-scheduler use-checkpoint-* finetune "
    "eod-mask-loss reset-position-ids calculate-per-token-loss skip-train iterations-to-skip consumed-* "
    "skipped-train-samples calc-ft-timeouts params-dtype data-parallel-random-init te-rng-tracker inference-* "
    "flash-decode optimizer-* step-batch-size-schedule "
    // Data and tokenizer.
    "data-* split vocab-file merge-file vocab-extra-ids tokenizer-* tiktoken-* train-data-path valid-data-path "
    "test-data-path per-split-data-args-path mock-data num-workers dataloader-* num-dataset-builder-threads "
    "no-create-attention-mask-in-dataloader create-attention-mask-in-dataloader no-mmap-bin-files mmap-bin-files "
    "object-storage-cache-path mid-level-dataset-surplus short-seq-prob full-validation multiple-validation-sets "
    "sft fim-* legacy-tokenizer goldfish-* bert-* "
    // Checkpoints.
    "save save-* load load-* no-save-* no-load-* ckpt-* async-save use-dist-ckpt* dist-ckpt-* "
    "auto-detect-ckpt-format non-persistent-* pretrained-checkpoint exit-on-missing-checkpoint "
    "use-persistent-ckpt-worker use-mp-args-from-checkpoint-args no-use-tokenizer-model-from-checkpoint-args "
    "use-tokenizer-model-from-checkpoint-args replication* check-weight-hash-across-dp-replicas-interval "
    "yaml-cfg strict-fsdp-dtensor-load "
    // Logs and supervision.
    "log-* logging-level no-log-* tensorboard-* wandb-* timing-log-* barrier-with-L1-time "
    "no-barrier-with-level-1-timing profile* use-pytorch-profiler record-memory-history memory-snapshot-path "
    "eval-* exit-* enable-one-logger no-one-logger one-logger-* app-tag-* enable-experimental config-logger-dir "
    "print-* check-for-* no-check-for-* rerun-* error-injection-* result-rejected-tracker-filename straggler-* "
    "disable-straggler-on-startup run-workload-inspector-server adlr-autoresume* manual-gc* no-manual-gc-* "
    "enable-ft-package enable-msc disable-msc test-mode ft-* "
    // Processes.
    "distributed-* local-rank rank lazy-mpu-init use-gloo-process-groups disable-gloo-process-groups "
    "enable-gloo-process-groups nccl-* high-priority-stream-groups pipeline-model-parallel-comm-backend "
    "tp-comm-* fake-process-group ddp-bucket-size ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw "
    "suggested-communication-unit-size gradient-reduce-div-fusion align-grad-reduce align-param-gather "
    "overlap-p2p-communication async-tensor-model-parallel-allreduce no-async-tensor-model-parallel-allreduce "
    "pin-cpu-* transformer-pipeline-model-parallel-size clone-scatter-output-in-embedding "
    "no-clone-scatter-output-in-embedding use-torch-optimizer-for-cpu-offload keep-fp8-transpose-cache* "
    "tensor-and-* "
    // Kernels and details of the model without a modeled cost.
    "use-mcore-models use-legacy-models deprecated-use-mcore-models model-type attention-softmax-in-fp32 "
    "no-attention-softmax-in-fp32 accumulate-* rotary-* rope-* use-rope-scaling mrope-section mscale* "
    "no-rotary-* beta-* original-max-position-embeddings norm-epsilon layernorm-epsilon apply-layernorm-1p "
    "apply-residual-connection-post-layernorm openai-gelu glu-linear-offset onnx-safe masked-softmax-fusion "
    "bias-gelu-fusion bias-swiglu-fusion bias-dropout-fusion apply-rope-fusion persist-layer-norm "
    "no-persist-layer-norm gradient-accumulation-fusion cuda-graph-* disable-bf16-reduced-precision-matmul fp8-* "
    "fp4-* num-layers-at-* make-vocab-size-* relative-attention-* mtp-loss-scaling-factor add-position-embedding "
    "cache-mla-latents mla-down-proj-fusion dsa-* no-weight-decay-* apply-wd-to-qk-layernorm "
    // Experts.
    "moe-aux-loss-coeff moe-z-loss-coeff moe-router-* moe-input-jitter-eps moe-token-drop-policy "
    "moe-per-layer-logging moe-permute-fusion moe-use-upcycling moe-upcycling-granularity "
    "moe-use-device-initiated-grouped-gemm "
    // Other models of the same program, whose attributes every dump has.
    "retro-* retriever-* dino-* vision-* swin-* ict-* biencoder-* mask-* img-* patch-dim num-channels "
    "num-classes classes-fraction iter-per-epoch sample-rate block-data-path embedding-path evidence-data-path "
    "titles-data-path indexer-* query-in-block-prob use-one-sent-docs output-bert-embeddings max-tokens-to-oom "
    "mlp-chunks-for-prefill encoder-num-layers encoder-seq-length decoder-seq-length freeze-* "
    // Of Megatron-DeepSpeed.
    "deepspeed-config deepspeed-activation-checkpointing deepspeed-mpi deepscale* ds-inference ds-fused-adam "
    "use-pin-memory cpu-torch-adam num-layers-teacher bert-no-binary-head custom-token-counting";

constexpr MegatronAttribute kAttributes[] = {
    {"add-bias-linear", "disable-bias-linear", true},
    {"overlap-p2p-comm", "no-overlap-p2p-communication", true},
    {"scatter-gather-tensors-in-pipeline", "no-scatter-gather-tensors-in-pipeline", true},
    {"gradient-accumulation-fusion", "no-gradient-accumulation-fusion", true},
    {"add-position-embedding", "no-position-embedding", true},
    {"virtual-pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"},
    {"microbatch-group-size-per-vp-stage", "microbatch-group-size-per-virtual-pipeline-stage"},
    {"fp8", "fp8-format"},
    {"fp4", "fp4-format"},
};

}  // namespace

const MegatronKey* megatron_key(std::string_view name) {
  static const std::vector<MegatronKey> kKeys = [] {
    std::vector<MegatronKey> keys(std::begin(kOtherArguments), std::end(kOtherArguments));
    for (const model::Setting& row : model::settings()) {
      if (!row.megatron.starts_with('=')) continue;
      const MegatronValue value = row.kind == model::SettingKind::whole  ? whole
                                  : row.kind == model::SettingKind::real ? real
                                  : row.kind == model::SettingKind::yes  ? flag
                                                                         : text;
      keys.push_back({row.megatron.substr(1), value, row.pointer});
    }
    return keys;
  }();
  const auto found = std::find_if(kKeys.begin(), kKeys.end(), [&](const MegatronKey& key) { return key.name == name; });
  return found == kKeys.end() ? nullptr : &*found;
}

std::string_view megatron_argument_of(std::string_view pointer) {
  for (const model::Setting& row : model::settings()) {
    const std::string_view place = row.pointer;
    const bool holds = pointer == place || (pointer.starts_with(place) && pointer[place.size()] == '/');
    if (holds && !row.megatron.empty()) return row.megatron.substr(row.megatron.starts_with('=') ? 1 : 0);
  }
  return "";
}

bool megatron_not_modeled(std::string_view name, std::string_view value) {
  return lists_name(kNotModeled, name) ||
         std::any_of(std::begin(kNotModeledUnless), std::end(kNotModeledUnless),
                     [&](const NotModeled& each) { return lists_name(each.name, name) && value != each.harmless; });
}

bool megatron_without_effect(std::string_view name) {
  return lists_name(kWithoutEffect, name) || lists_name(kNotModeled, name) ||
         std::any_of(std::begin(kNotModeledUnless), std::end(kNotModeledUnless),
                     [&](const NotModeled& each) { return lists_name(each.name, name); });
}

std::vector<std::string> listed_words(std::span<const std::string> words) {
  std::vector<std::string> out;
  std::string word;
  const auto end_word = [&] {
    word.erase(0, word.rfind('.') + 1);
    const bool number = word.find_first_not_of("0123456789") == std::string::npos;
    if (!number && word != "None") out.push_back(word);
    word.clear();
  };
  for (const std::string& each : words) {
    for (const char c : each) {
      if (std::string_view("[]<>'\",: ").find(c) == std::string_view::npos) {
        word += c;
      } else {
        end_word();
      }
    }
    end_word();
  }
  return out;
}

const MegatronAttribute* megatron_attribute(std::string_view attribute) {
  const auto found = std::find_if(std::begin(kAttributes), std::end(kAttributes),
                                  [&](const MegatronAttribute& each) { return each.attribute == attribute; });
  return found == std::end(kAttributes) ? nullptr : found;
}

}  // namespace sluice::imports
