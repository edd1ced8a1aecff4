#include "model/import/megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "model/errors.h"
#include "model/import/layer_frequency.h"
#include "model/import/megatron_names.h"
#include "model/scenario/pipeline_layout.h"

namespace sluice::model {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kGpt2Words = 50257;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 40;
constexpr std::int64_t kMostListed = 100'000;  // layers and ranks whose layers are listed

template <typename Number>
std::optional<Number> megatron_number(const std::string& text) {
  Number value{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

class MegatronImport {
 public:
  MegatronImport(const std::vector<MegatronArgument>& arguments, std::int64_t gpus, const std::string& source)
      : source_(source), gpus_(gpus) {
    for (const MegatronArgument& each : arguments) {
      if (!arguments_.contains(each.name)) order_.push_back(each.name);
      arguments_[each.name] = each;
    }
  }

  Imported run() {
    out_.scenario = {{"schema", "sluice.scenario/1"}};
    classify();
    read_simple();
    read_model();
    read_experts();
    read_latents();
    read_stages();
    read_ranks();
    read_batch();
    read_recompute();
    read_kernels();
    read_precision();
    note("not modeled, although they change time or memory", not_modeled_);
    note("no effect in Megatron-LM", useless_);
    note("unknown arguments", unknown_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string_view name, const std::string& what) const {
    const auto found = arguments_.find(std::string(name));
    const std::int64_t line = found == arguments_.end() ? 0 : found->second.line;
    throw InputError(line > 0 ? fmt::format("{}: line {}: --{}: {}", source_, line, name, what)
                              : fmt::format("{}: --{}: {}", source_, name, what));
  }

  void note(const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) out_.notes.push_back(fmt::format("{}: {}: {}", source_, what, fmt::join(names, ", ")));
  }

  bool has(std::string_view name) const { return arguments_.contains(std::string(name)); }

  // The word of an argument; "" if it is not given.
  std::string word(std::string_view name) const {
    const auto found = arguments_.find(std::string(name));
    if (found == arguments_.end()) return "";
    if (found->second.words.empty()) fail(name, "expected a value");
    return found->second.words.front();
  }

  std::optional<std::int64_t> whole(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    const std::string text = word(name);
    const auto value = megatron_number<std::int64_t>(text);
    if (!value || *value < -kMostNumber || *value > kMostNumber) {
      fail(name, fmt::format("expected a whole number, got '{}'", text));
    }
    return value;
  }

  std::optional<std::int64_t> positive(std::string_view name) const {
    const auto value = whole(name);
    if (value && *value < 1) fail(name, fmt::format("expected a positive number, got {}", *value));
    return value;
  }

  std::optional<double> real(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    const std::string text = word(name);
    const auto value = megatron_number<double>(text);
    if (!value || !std::isfinite(*value)) fail(name, fmt::format("expected a number, got '{}'", text));
    return value;
  }

  void set(std::string_view pointer, Json value) {
    out_.scenario[Json::json_pointer(std::string(pointer))] = std::move(value);
  }
  template <typename Value>
  void set_if(std::string_view pointer, const std::optional<Value>& value) {
    if (value) set(pointer, *value);
  }

  std::string written(const MegatronArgument& argument) const {
    return fmt::format("--{}{}{}", argument.name, argument.words.empty() ? "" : " ", fmt::join(argument.words, " "));
  }

  // Sorts arguments into those that are read, and those that are named; checks the number of their words.
  void classify() {
    for (const std::string& name : order_) {
      MegatronArgument& argument = arguments_.at(name);
      const MegatronKey* const key = megatron_key(name);
      if (key == nullptr) {
        const std::string value = fmt::format("{}", fmt::join(argument.words, " "));
        if (megatron_not_modeled(name, value)) {
          not_modeled_.push_back(written(argument));
        } else if (!megatron_without_effect(name)) {
          unknown_.push_back("--" + name);
        }
        continue;
      }
      const std::size_t most = key->value == MegatronValue::flag ? 0 : 1;
      if (key->value == MegatronValue::words) continue;
      if (argument.words.size() < most) fail(name, "expected a value");
      // A variable of the environment that may be empty, or hold more arguments.
      if (argument.words.size() > most && !argument.words[most].starts_with('$')) {
        fail(name, most == 0 ? fmt::format("takes no value, got '{}'", argument.words[0])
                             : fmt::format("expected one value, got '{}' as well", argument.words[1]));
      }
      if (most == 1 && argument.words[0].starts_with('$')) {
        fail(name, fmt::format("the value of {} is not known", argument.words[0]));
      }
    }
  }

  void read_simple() {
    for (const std::string& name : order_) {
      const MegatronKey* const key = megatron_key(name);
      if (key == nullptr || key->pointer.empty()) continue;
      switch (key->value) {
        case MegatronValue::flag: set(key->pointer, true); break;
        case MegatronValue::whole: set(key->pointer, *whole(name)); break;
        case MegatronValue::real: set(key->pointer, *real(name)); break;
        case MegatronValue::text:
        case MegatronValue::words: set(key->pointer, word(name)); break;
      }
    }
  }

  void read_model() {
    if (has("group-query-attention")) {
      set("/model/num_query_groups", positive("num-query-groups").value_or(1));
    } else if (has("num-query-groups") && word("num-query-groups") != "1") {
      useless_.push_back("--num-query-groups without --group-query-attention");
    }
    if (has("ffn-hidden-size")) {
      set("/model/ffn_hidden_size", *whole("ffn-hidden-size"));
    } else if (has("swiglu") && has("hidden-size")) {
      // Megatron-LM's: 8/3 of the hidden size, rounded down to a multiple of 64.
      set("/model/ffn_hidden_size", std::max<std::int64_t>(1, *whole("hidden-size") * 8 / 3 / 64 * 64));
    }
    std::string positions = has("position-embedding-type") ? word("position-embedding-type") : "learned_absolute";
    if (positions == "mrope" || positions == "yarn" || has("use-rotary-position-embeddings")) positions = "rope";
    if (positions.starts_with("learned") && has("no-position-embedding")) positions = "none";
    if (has("num-layers") || has("hidden-size") || has("position-embedding-type")) {
      set("/model/position_embedding_type", positions);
    }
    read_vocabulary();
  }

  void read_vocabulary() {
    std::optional<std::int64_t> words = positive("padded-vocab-size");
    if (!words) words = positive("vocab-size");
    if (!words && word("tokenizer-type") == "GPT2BPETokenizer") words = kGpt2Words;
    if (!words) return;
    const std::int64_t step = positive("make-vocab-size-divisible-by").value_or(128);
    const std::int64_t tp = positive("tensor-model-parallel-size").value_or(1);
    if (step != 128 && step % 128 == 0 && step * tp < kMostNumber) {
      words = (*words + step * tp - 1) / (step * tp) * (step * tp);
    } else if (step != 128 && !has("padded-vocab-size")) {
      not_modeled_.push_back(fmt::format("--make-vocab-size-divisible-by {} (128 is assumed)", step));
    }
    set("/model/vocab_size", *words);
  }

  void read_experts() {
    const auto experts = positive("num-experts");
    if (!experts) return;
    set("/model/num_experts", *experts);
    set("/model/moe_router_topk", whole("moe-router-topk").value_or(2));
    set_if("/model/moe_ffn_hidden_size", whole("moe-ffn-hidden-size"));
    set_if("/model/moe_shared_expert_intermediate_size", whole("moe-shared-expert-intermediate-size"));
    if (has("moe-shared-expert-gate")) set("/model/moe_shared_expert_gate", true);
    if (has("moe-layer-freq")) {
      try {
        set("/model/moe_layer_freq", layer_frequency(word("moe-layer-freq")));
      } catch (const InputError& error) {
        fail("moe-layer-freq", error.what());
      }
    }
    const std::int64_t tp = positive("tensor-model-parallel-size").value_or(1);
    const std::int64_t of_expert = positive("expert-tensor-parallel-size").value_or(tp);
    if (of_expert > 1) {
      not_modeled_.push_back(fmt::format("--expert-tensor-parallel-size {}{} (1 is assumed)", of_expert,
                                         has("expert-tensor-parallel-size") ? "" : ", the default"));
    }
    const std::string dispatcher = has("moe-token-dispatcher-type") ? word("moe-token-dispatcher-type") : "allgather";
    if (dispatcher != "alltoall" && positive("expert-model-parallel-size").value_or(1) > 1) {
      not_modeled_.push_back(fmt::format("--moe-token-dispatcher-type {}{} (alltoall is assumed)", dispatcher,
                                         has("moe-token-dispatcher-type") ? "" : ", the default"));
    }
  }

  void read_latents() {
    if (!has("multi-latent-attention")) return;
    set("/model/multi_latent_attention", true);
    set_if("/model/q_lora_rank", whole("q-lora-rank"));
    set("/model/kv_lora_rank", whole("kv-lora-rank").value_or(32));
    set("/model/qk_head_dim", whole("qk-head-dim").value_or(128));
    set("/model/qk_pos_emb_head_dim", whole("qk-pos-emb-head-dim").value_or(64));
    set("/model/v_head_dim", whole("v-head-dim").value_or(128));
  }

  // The ranks of the pipeline, the layers of its stages and the schedule.
  void read_stages() {
    const std::int64_t ranks = positive("pipeline-model-parallel-size").value_or(1);
    set("/parallelism/pp", ranks);
    const std::int64_t chunks = has("pipeline-model-parallel-layout") ? read_layout(ranks) : read_layers(ranks);
    set("/schedule/name", chunks > 1 ? "interleaved-1f1b" : "1f1b");
    if (chunks < 2) return;
    if (ranks < 3 && has("no-overlap-p2p-communication")) {
      fail("no-overlap-p2p-communication", "with interleaving, requires --pipeline-model-parallel-size of at least 3");
    }
    set("/parallelism/overlap_transfers", !has("no-overlap-p2p-communication"));
    set_if("/schedule/group", positive("microbatch-group-size-per-virtual-pipeline-stage"));
  }

  // Returns the number of chunks.
  std::int64_t read_layout(std::int64_t ranks) {
    for (const char* other : {"num-layers-per-virtual-pipeline-stage", "decoder-first-pipeline-num-layers",
                              "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
                              "account-for-loss-in-pipeline-split"}) {
      if (has(other)) fail("pipeline-model-parallel-layout", fmt::format("excludes --{}", other));
    }
    const std::string layout = word("pipeline-model-parallel-layout");
    set("/parallelism/pipeline_layout", layout);
    std::size_t stages = 0;
    try {
      stages = layers_of_layout(layout).size();
    } catch (const InputError& error) {
      fail("pipeline-model-parallel-layout", fmt::format("{}, got '{}'", error.what(), layout));
    }
    return static_cast<std::int64_t>(stages) / ranks;
  }

  std::int64_t read_layers(std::int64_t ranks) {
    const bool embedding = has("account-for-embedding-in-pipeline-split");
    const bool loss = has("account-for-loss-in-pipeline-split");
    const auto first = positive("decoder-first-pipeline-num-layers");
    const auto last = positive("decoder-last-pipeline-num-layers");
    const auto model = positive("num-layers");
    const auto per_chunk = positive("num-layers-per-virtual-pipeline-stage");
    if ((first || last) && (embedding || loss)) {
      fail(first ? "decoder-first-pipeline-num-layers" : "decoder-last-pipeline-num-layers",
           "excludes --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split");
    }
    if (per_chunk && (first || last)) {
      fail("num-layers-per-virtual-pipeline-stage",
           "with uneven stages, --num-virtual-stages-per-pipeline-rank is required instead");
    }
    if (!model) return layers_of_unknown_model(per_chunk, first, last);
    const std::vector<std::int64_t> layers =
        layers_of_ranks(ranks, *model + (embedding ? 1 : 0) + (loss ? 1 : 0), first, last);
    std::int64_t chunks = positive("num-virtual-stages-per-pipeline-rank").value_or(1);
    if (per_chunk) {
      if (layers.front() % *per_chunk != 0) {
        fail("num-layers-per-virtual-pipeline-stage",
             fmt::format("expected a divisor of the {} layers of a pipeline rank, got {}", layers.front(), *per_chunk));
      }
      chunks = layers.front() / *per_chunk;
    }
    if (chunks == 1 && !embedding && !loss) {
      set_if("/parallelism/first_stage_layers", first);
      set_if("/parallelism/last_stage_layers", last);
      return 1;
    }
    return layers_of_chunks(layers, chunks, embedding, loss);
  }

  // The model is specified by a flag or a file.
  std::int64_t layers_of_unknown_model(const std::optional<std::int64_t>& per_chunk,
                                       const std::optional<std::int64_t>& first,
                                       const std::optional<std::int64_t>& last) {
    const std::int64_t chunks = positive("num-virtual-stages-per-pipeline-rank").value_or(1);
    if (has("account-for-embedding-in-pipeline-split") || has("account-for-loss-in-pipeline-split") ||
        ((first || last) && chunks > 1)) {
      fail("num-layers", "required to distribute the layers over the stages");
    }
    set_if("/parallelism/first_stage_layers", first);
    set_if("/parallelism/last_stage_layers", last);
    if (per_chunk) {
      set("/parallelism/layers_per_virtual_stage", *per_chunk);
      return 2;
    }
    if (chunks > 1) set("/parallelism/vpp", chunks);
    return chunks;
  }

  std::vector<std::int64_t> layers_of_ranks(std::int64_t ranks, std::int64_t layers,
                                            const std::optional<std::int64_t>& first,
                                            const std::optional<std::int64_t>& last) const {
    if (ranks > kMostListed) fail("pipeline-model-parallel-size", fmt::format("expected at most {}", kMostListed));
    const std::int64_t middle = ranks - (first ? 1 : 0) - (last ? 1 : 0);
    const std::int64_t rest = layers - first.value_or(0) - last.value_or(0);
    const bool divides = middle > 0 ? rest > 0 && rest % middle == 0 : middle == 0 && rest == 0;
    if (!divides) {
      const char* const what = first || last                    ? "layers of the inner stages"
                               : layers != *whole("num-layers") ? "layers with embedding and loss"
                                                                : "layers";
      fail("num-layers", fmt::format("{} {} cannot be distributed evenly over {} pipeline ranks", rest, what,
                                     std::max<std::int64_t>(middle, 0)));
    }
    std::vector<std::int64_t> out(static_cast<std::size_t>(ranks), middle > 0 ? rest / middle : 0);
    if (first) out.front() = *first;
    if (last) out.back() = *last;
    return out;
  }

  // The stages of several chunks per rank: chunk by chunk, each with its rank's layers divided by the chunks.
  std::int64_t layers_of_chunks(const std::vector<std::int64_t>& of_rank, std::int64_t chunks, bool embedding,
                                bool loss) {
    const auto ranks = static_cast<std::int64_t>(of_rank.size());
    const char* const argument = has("num-layers-per-virtual-pipeline-stage") ? "num-layers-per-virtual-pipeline-stage"
                                                                              : "num-virtual-stages-per-pipeline-rank";
    if (chunks > 1 && ranks == 1) fail(argument, "requires --pipeline-model-parallel-size of at least 2");
    if (chunks > kMostListed / ranks) fail(argument, fmt::format("expected at most {} stages", kMostListed));
    std::vector<std::int64_t> layers;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (const std::int64_t number : of_rank) {
        if (number % chunks != 0) {
          fail(argument, fmt::format("expected a divisor of the {} layers of a pipeline rank, got {}", number, chunks));
        }
        layers.push_back(number / chunks);
      }
    }
    if (embedding) --layers.front();
    if (loss) --layers.back();
    if (layers.front() < 0 || layers.back() < 0) fail("num-layers", "too few for the stages");
    if (chunks > 1) set("/parallelism/vpp", chunks);
    const bool even = std::adjacent_find(layers.begin(), layers.end(), std::not_equal_to<>()) == layers.end();
    if (!even) set("/parallelism/stage_layers", layers);
    return chunks;
  }

  void read_ranks() {
    const std::int64_t tp = positive("tensor-model-parallel-size").value_or(1);
    if (has("sequence-parallel") && tp > 1) set("/parallelism/sequence_parallel", true);
    if (has("no-scatter-gather-tensors-in-pipeline")) set("/parallelism/scatter_gather", false);
    if (const auto clip = real("clip-grad"); clip && *clip <= 0) set("/parallelism/clip_gradients", false);
    if (gpus_ == 0) gpus_ = positive("world-size").value_or(0);
    if (gpus_ > 0) {
      set("/parallelism/gpus", gpus_);
    } else {
      set_if("/parallelism/dp", positive("data-parallel-size"));
    }
    if (!has("cp-comm-type")) return;
    const std::vector<std::string>& types = arguments_.at("cp-comm-type").words;
    if (types.empty()) fail("cp-comm-type", "expected a value");
    const bool same = std::all_of(types.begin(), types.end(), [&](const std::string& t) { return t == types[0]; });
    if (same && (types[0] == "p2p" || types[0] == "a2a")) {
      set("/parallelism/cp_comm_type", types[0]);
    } else if (positive("context-parallel-size").value_or(1) > 1) {
      not_modeled_.push_back(written(arguments_.at("cp-comm-type")) + " (p2p is assumed)");
    }
  }

  void read_batch() {
    if (const auto batch = positive("global-batch-size")) {
      set("/batch/global_batch", *batch);
    } else {
      set("/batch/microbatches", 1);  // the default is the micro-batch size times the data-parallel size
    }
  }

  void read_recompute() {
    std::string granularity = word("recompute-granularity");
    if (has("recompute-activations")) granularity = "selective";
    if (has("checkpoint-activations")) granularity = "full";
    if (granularity.empty()) return;
    if (granularity != "full" && granularity != "selective") {
      fail("recompute-granularity", fmt::format("expected full or selective, got '{}'", granularity));
    }
    if (granularity == "selective") return read_recomputed_modules();
    set("/parallelism/recompute", "full");
    const std::string method = word("recompute-method");
    const auto layers = positive("recompute-num-layers");
    if (!method.empty() && method != "uniform" && method != "block") {
      fail("recompute-method", fmt::format("expected uniform or block, got '{}'", method));
    }
    if (method == "block") {
      if (!layers) fail("recompute-num-layers", "required with --recompute-method block");
      set("/parallelism/recompute_layers", *layers);
    } else if (layers.value_or(1) > 1) {
      not_modeled_.push_back(fmt::format("--recompute-num-layers {} of the uniform method (1 is assumed)", *layers));
    }
  }

  void read_recomputed_modules() {
    std::vector<std::string> modules = {"core_attn"};
    if (has("recompute-modules")) modules = arguments_.at("recompute-modules").words;
    const auto core = std::find(modules.begin(), modules.end(), "core_attn");
    set("/parallelism/recompute", core == modules.end() ? "none" : "selective");
    if (core != modules.end()) modules.erase(core);
    if (!modules.empty()) {
      not_modeled_.push_back(fmt::format("--recompute-modules {}", fmt::join(modules, " ")));
    }
  }

  void read_kernels() {
    const std::string implementation = word("transformer-impl");
    std::string backend = word("attention-backend");
    if (const std::size_t dot = backend.find('.'); dot != std::string::npos) backend.erase(0, dot + 1);
    const bool chosen = backend == "flash" || backend == "fused" || has("use-flash-attn");
    const bool unfused = backend == "unfused" || backend == "local" || (!chosen && implementation == "local");
    set("/parallelism/flash_attention", !unfused);
    if (implementation == "transformer_engine" && !has("no-gradient-accumulation-fusion")) {
      set("/parallelism/transformer_engine", true);
    }
  }

  void read_precision() {
    if (has("bf16") && has("fp16")) fail("fp16", "excludes --bf16");
    if (!has("bf16") && !has("fp16")) not_modeled_.emplace_back("32-bit training (neither --bf16 nor --fp16)");
    const bool reduced =
        has("fp16") ? !has("accumulate-allreduce-grads-in-fp32") : has("bf16") && has("grad-reduce-in-bf16");
    if (reduced) set("/parallelism/gradient_bytes", 2);
  }

  std::string source_;
  std::int64_t gpus_;
  std::map<std::string, MegatronArgument> arguments_;
  std::vector<std::string> order_;  // of first occurrence
  std::vector<std::string> not_modeled_;
  std::vector<std::string> useless_;
  std::vector<std::string> unknown_;
  Imported out_;
};

}  // namespace

Imported scenario_of_megatron(const std::vector<MegatronArgument>& arguments, std::int64_t gpus,
                              const std::string& source) {
  return MegatronImport(arguments, gpus, source).run();
}

}  // namespace sluice::model
