#include "import/megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "import/layer_frequency.h"
#include "import/megatron_layers.h"
#include "import/megatron_names.h"
#include "import/megatron_overlap.h"
#include "import/megatron_values.h"
#include "model/errors.h"
#include "model/scenario/pipeline_layout.h"
#include "model/scenario/settings.h"

namespace sluice::imports {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kGpt2Words = 50257;
constexpr std::int64_t kMostListed = 100'000;  // layers and ranks whose layers are listed

class MegatronImport : MegatronValues {
 public:
  MegatronImport(const std::vector<MegatronArgument>& arguments, std::int64_t gpus, const std::string& source)
      : MegatronValues(source), gpus_(gpus) {
    for (const MegatronArgument& each : arguments) {
      const auto [before, added] = arguments_.try_emplace(each.name, each);
      if (added) {
        order_.push_back(each.name);
      } else if (before->second.words != each.words) {
        if (megatron_key(each.name) != nullptr) {
          repeated_.push_back(fmt::format("{} and then {}", written(before->second), written(each)));
        }
        before->second = each;
      }
    }
  }

  Imported run() {
    out_.scenario = {{"schema", "sluice.scenario/1"}};
    classify();
    read_simple();
    read_model();
    read_experts();
    read_latents();
    read_layers_of_blocks();
    read_stages();
    read_ranks();
    read_batch();
    read_recompute();
    read_offload();
    read_deepspeed();
    read_fsdp();
    read_kernels();
    read_precision();
    note("not modeled, although they change time or memory", not_modeled_);
    note("no effect in Megatron-LM", useless_);
    note("repeated, so that the last value counts", repeated_);
    note("unknown arguments", unknown_);
    add_places();
    return std::move(out_);
  }

 private:
  void note(const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) out_.notes.push_back(fmt::format("{}: {}: {}", source_, what, fmt::join(names, ", ")));
  }

  // The keys of another file that determine the keys of the scenario.
  void add_places() {
    const Json flat = out_.scenario.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      const auto found = arguments_.find(std::string(megatron_argument_of(pointer)));
      if (found != arguments_.end() && !found->second.key.empty()) out_.places[pointer] = place_of(found->second);
    }
  }

  void set(std::string_view pointer, Json value) {
    out_.scenario[Json::json_pointer(std::string(pointer))] = std::move(value);
  }
  template <typename Value>
  void set_if(std::string_view pointer, const std::optional<Value>& value) {
    if (value) set(pointer, *value);
  }

  std::string written(const MegatronArgument& argument) const {
    return fmt::format("{}{}{}", argument.key.empty() ? "--" + argument.name : argument.key,
                       argument.words.empty() ? "" : " ", fmt::join(argument.words, " "));
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
    if (has("num-key-value-heads")) set("/model/num_query_groups", *positive("num-key-value-heads"));
    for (const auto& [theirs, ours] : {std::pair("rmsnorm", "RMSNorm"), std::pair("layernorm", "LayerNorm")}) {
      if (has("normalization") && word("normalization") == theirs) set("/model/normalization", ours);
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
    if (!experts || (has("deepspeed") && *experts == 1)) return;
    if (has("deepspeed")) fail("num-experts", "experts of DeepSpeed are not modeled");
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
    if (const auto etp = positive("expert-tensor-parallel-size").value_or(tp); etp > 1) set("/parallelism/etp", etp);
    if (whole("moe-router-num-groups").value_or(0) > 0 && whole("moe-router-group-topk").value_or(0) > 0) {
      set("/model/moe_router_num_groups", *whole("moe-router-num-groups"));
      set("/model/moe_router_group_topk", *whole("moe-router-group-topk"));
    }
    const double capacity = real("moe-expert-capacity-factor").value_or(-1);  // below 0: no token is dropped
    if (capacity >= 0) set("/parallelism/moe_expert_capacity_factor", capacity);
    if (positive("expert-model-parallel-size").value_or(1) > 1) read_dispatcher();
  }

  void read_dispatcher() {
    const std::string dispatcher = has("moe-token-dispatcher-type") ? word("moe-token-dispatcher-type") : "allgather";
    if (dispatcher == "flex") {
      const bool named = has("moe-flex-dispatcher-backend");
      const std::string backend = named ? word("moe-flex-dispatcher-backend") : "deepep";  // also --moe-enable-deepep
      if (backend != "deepep" && backend != "hybridep") {
        fail("moe-flex-dispatcher-backend", fmt::format("expected deepep or hybridep, got '{}'", backend));
      }
      set("/parallelism/moe_token_dispatcher", backend);
      set_if("/parallelism/moe_communication_sms",
             whole(backend == "deepep" ? "moe-deepep-num-sms" : "moe-hybridep-num-sms"));
    } else if (dispatcher != "alltoall") {
      not_modeled_.push_back(fmt::format("--moe-token-dispatcher-type {}{} (alltoall is assumed)", dispatcher,
                                         has("moe-token-dispatcher-type") ? "" : ", the default"));
    }
  }

  void read_latents() {
    if (!has("multi-latent-attention")) return;
    out_.scenario["model"].erase("qk_layernorm");  // of the latents, which always have it
    if (!has("qk-layernorm")) not_modeled_.emplace_back("latents without a norm (no --qk-layernorm)");
    set("/model/multi_latent_attention", true);
    set_if("/model/q_lora_rank", whole("q-lora-rank"));
    set("/model/kv_lora_rank", whole("kv-lora-rank").value_or(32));
    set("/model/qk_head_dim", whole("qk-head-dim").value_or(128));
    set("/model/qk_pos_emb_head_dim", whole("qk-pos-emb-head-dim").value_or(64));
    set("/model/v_head_dim", whole("v-head-dim").value_or(128));
  }

  // Layers of several kinds, or of other blocks than a transformer's.
  void read_layers_of_blocks() {
    if (!out_.scenario.contains("model")) return;
    MegatronLayers layers = megatron_layers(out_.scenario.at("model"), arguments_, source_);
    if (layers.model.is_null()) return;
    if (has("dsa-indexer-topk") && word("experimental-attention-variant") == "dsa" &&
        !has("dsa-indexer-use-sparse-loss")) {
      not_modeled_.emplace_back("a loss of the indexer over all pairs (no --dsa-indexer-use-sparse-loss)");
    }
    out_.scenario["model"] = std::move(layers.model);
    stage_layers_ = std::move(layers.stage_layers);
    std::erase_if(not_modeled_, [](const std::string& text) { return text.starts_with("--spec "); });
  }

  // The ranks of the pipeline, the layers of its stages and the schedule.
  void read_stages() {
    const std::int64_t ranks = positive("pipeline-model-parallel-size").value_or(1);
    set("/parallelism/pp", ranks);
    const std::int64_t chunks = has("pipeline-model-parallel-layout") ? read_layout(ranks) : read_layers(ranks);
    const bool combined = has("overlap-moe-expert-parallel-comm");
    set("/schedule/name", combined ? "combined-1f1b" : chunks > 1 ? "interleaved-1f1b" : "1f1b");
    const std::string why = combined ? refused_overlap(arguments_, ranks, chunks) : "";
    if (!why.empty()) fail("overlap-moe-expert-parallel-comm", why);
    if (!combined && has("delay-wgrad-compute")) {
      useless_.emplace_back("--delay-wgrad-compute without --overlap-moe-expert-parallel-comm");
    }
    if (combined && !has("delay-wgrad-compute")) set("/parallelism/weave", "whole-backward");
    if (chunks < 2) return;
    if (ranks < 3 && has("no-overlap-p2p-communication")) {
      fail("no-overlap-p2p-communication", "with interleaving, requires --pipeline-model-parallel-size of at least 3");
    }
    set("/parallelism/overlap_transfers", !has("no-overlap-p2p-communication"));
    constexpr const char* kGroup = "microbatch-group-size-per-virtual-pipeline-stage";
    const std::optional<std::int64_t> group = positive(kGroup);
    if (group.value_or(ranks) < ranks) fail(kGroup, "expected at least --pipeline-model-parallel-size");
    set_if("/schedule/group", group);
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
      const PipelineLayout read = model::read_layout(layout);
      stages = read.layers.size();
    } catch (const InputError& error) {
      fail("pipeline-model-parallel-layout", fmt::format("{}, got '{}'", error.what(), layout));
    }
    return static_cast<std::int64_t>(stages) / ranks;
  }

  // Returns the number of chunks.
  std::int64_t read_layers(std::int64_t ranks) {
    if (!stage_layers_.empty()) return read_pattern(ranks);
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
    const auto virtual_stages = positive("num-virtual-stages-per-pipeline-rank");
    if (per_chunk && virtual_stages && !arguments_.at("num-layers-per-virtual-pipeline-stage").printed) {
      fail("num-layers-per-virtual-pipeline-stage", "excludes --num-virtual-stages-per-pipeline-rank");
    }
    if (per_chunk && (first || last)) {
      fail("num-layers-per-virtual-pipeline-stage",
           "with uneven stages, --num-virtual-stages-per-pipeline-rank is required instead");
    }
    if (!model) return layers_of_unknown_model(per_chunk, first, last);
    const std::vector<std::int64_t> layers =
        layers_of_ranks(ranks, *model + (embedding ? 1 : 0) + (loss ? 1 : 0), first, last);
    std::int64_t chunks = virtual_stages.value_or(1);
    if (per_chunk) {
      if (layers.front() % *per_chunk != 0) {
        fail("num-layers-per-virtual-pipeline-stage",
             fmt::format("expected a divisor of the {} layers of a pipeline rank, got {}", layers.front(), *per_chunk));
      }
      chunks = layers.front() / *per_chunk;
      if (virtual_stages && *virtual_stages != chunks) {
        fail("num-layers-per-virtual-pipeline-stage",
             fmt::format("{} layers are {} virtual stages per rank, but {} are printed", *per_chunk, chunks,
                         *virtual_stages));
      }
    }
    if (chunks == 1 && !embedding && !loss) {
      set_if("/parallelism/first_stage_layers", first);
      set_if("/parallelism/last_stage_layers", last);
      return 1;
    }
    return layers_of_chunks(layers, chunks, embedding, loss);
  }

  // The stages of a pattern of layers.
  std::int64_t read_pattern(std::int64_t ranks) {
    const auto stages = std::ssize(stage_layers_);
    if (stages % ranks != 0) {
      fail("pipeline-model-parallel-size", fmt::format("expected a divisor of the pattern's {} stages", stages));
    }
    set("/parallelism/stage_layers", stage_layers_);
    if (stages > ranks) set("/parallelism/vpp", stages / ranks);
    return stages / ranks;
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
    const auto replicas = positive("data-parallel-size");
    if (replicas && gpus_ > 0) {
      const std::int64_t cp = positive("context-parallel-size").value_or(1);
      const std::int64_t pp = positive("pipeline-model-parallel-size").value_or(1);
      const double others = static_cast<double>(tp) * static_cast<double>(cp) * static_cast<double>(pp);
      if (static_cast<double>(*replicas) * others != static_cast<double>(gpus_)) {
        fail("data-parallel-size",
             fmt::format("{0} x tp x cp x pp = {0} x {1} x {2} x {3} is not the number of GPUs, {4}", *replicas, tp, cp,
                         pp, gpus_));
      }
    }
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

  void read_offload() {
    if (!has("fine-grained-activation-offloading")) return;
    set("/parallelism/offload_activations", "1");
    if (!has("offload-modules")) return;
    set("/parallelism/offload_modules",
        modules("offload-modules", model::split_words(find_setting("/parallelism/offload_modules")->words)));
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

  // The values of an argument that are among `names`; others are not modeled.
  std::vector<std::string> modules(std::string_view name, const std::vector<std::string>& names) {
    std::vector<std::string> known;
    std::vector<std::string> unknown;
    for (const std::string& word : listed_words(arguments_.at(std::string(name)).words)) {
      (std::find(names.begin(), names.end(), word) != names.end() ? known : unknown).push_back(word);
    }
    if (!unknown.empty()) not_modeled_.push_back(fmt::format("--{} {}", name, fmt::join(unknown, " ")));
    return known;
  }

  void read_recomputed_modules() {
    set("/parallelism/recompute", "selective");
    if (has("recompute-modules")) {
      set("/parallelism/recompute_modules", modules("recompute-modules", recompute_module_names()));
    }
  }

  // Older versions have enable-cuda-graph and external-cuda-graph, and scopes instead of modules, of which one is the
  // whole iteration. A list of modules that are not modeled captures nothing.
  void read_graphs() {
    std::string implementation = has("cuda-graph-impl")       ? word("cuda-graph-impl")
                                 : has("external-cuda-graph") ? "transformer_engine"
                                 : has("enable-cuda-graph")   ? "local"
                                                              : "none";
    const std::string list = has("cuda-graph-modules") ? "cuda-graph-modules" : "cuda-graph-scope";
    const bool listed = has(list) && !listed_words(arguments_.at(list).words).empty();
    std::vector<std::string> names = graph_module_names();
    names.insert(names.end(), {"full", "full_iteration", "full_iteration_inference"});
    std::vector<std::string> named = listed ? modules(list, names) : std::vector<std::string>();
    if (implementation == "none" || implementation == "None") return;
    std::erase(named, "full_iteration_inference");
    if (listed && named.empty()) return;
    if (std::erase(named, "full_iteration") > 0) implementation = "full_iteration";
    if (std::erase(named, "full") > 0 || implementation == "full_iteration") named.clear();
    set("/parallelism/cuda_graph_impl", implementation);
    if (!named.empty()) set("/parallelism/cuda_graph_modules", named);
  }

  void read_experts_and_head() {
    read_graphs();
    const bool grouped = has("num-experts") && has("moe-grouped-gemm");
    if (has("use-transformer-engine-op-fuser") && grouped) set("/parallelism/fused_grouped_mlp", true);
    if (has("use-transformer-engine-op-fuser") && !grouped)
      not_modeled_.emplace_back("--use-transformer-engine-op-fuser");
    if (has("num-experts") && !has("moe-grouped-gemm")) set("/parallelism/moe_grouped_gemm", false);
    if (!has("defer-embedding-wgrad-compute")) return;
    const auto limit = whole("wgrad-deferral-limit");
    if (limit.value_or(0) > 0) {
      set("/parallelism/wgrad_deferral_limit", *limit);
    } else {
      not_modeled_.emplace_back("--defer-embedding-wgrad-compute of all microbatches (no --wgrad-deferral-limit)");
    }
  }

  void read_deepspeed() {
    if (!has("deepspeed")) return;
    const std::int64_t stage = whole("zero-stage").value_or(0);
    if (stage > 1 && positive("pipeline-model-parallel-size").value_or(1) > 1) {
      out_.notes.push_back(fmt::format("{}: DeepSpeed rejects ZeRO stage {} with a pipeline", source_, stage));
    }
    if (stage > 3) fail("zero-stage", fmt::format("expected a stage from 0 to 3, got {}", stage));
    if (stage == 1) set("/parallelism/distributed_optimizer", true);
    if (stage > 1) set("/parallelism/zero", stage);
    if (has("no-pipeline-parallel") && positive("pipeline-model-parallel-size").value_or(1) > 1) {
      fail("no-pipeline-parallel", "requires --pipeline-model-parallel-size 1");
    }
    if (has("num-layers-per-virtual-pipeline-stage")) {
      fail("num-layers-per-virtual-pipeline-stage", "DeepSpeed's pipelines are not interleaved");
    }
  }

  // Bytes of the optimizer's states per parameter.
  void read_optimizer_states() {
    if (!has("use-precision-aware-optimizer")) return;
    std::int64_t bytes = 0;
    for (const char* name : {"main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"}) {
      std::string type = word(name);
      if (type.starts_with("torch.")) type.erase(0, 6);
      if (type.empty() || type == "fp32" || type == "float32") {
        bytes += 4;
      } else if (type == "fp16" || type == "bf16" || type == "float16" || type == "bfloat16") {
        bytes += 2;
      } else if (type == "fp8" || type == "uint8") {
        bytes += 1;
      } else {
        fail(name, fmt::format("expected fp32, fp16, bf16 or fp8, got '{}'", type));
      }
    }
    if (bytes != 12) set("/parallelism/optimizer_bytes", bytes);
  }

  // The distributed optimizer shards over a part of the replicas.
  void read_optimizer_instances() {
    const std::int64_t instances = positive("num-distributed-optimizer-instances").value_or(1);
    if (instances == 1 || !has("use-distributed-optimizer")) return;
    const std::int64_t others = positive("tensor-model-parallel-size").value_or(1) *
                                positive("pipeline-model-parallel-size").value_or(1) *
                                positive("context-parallel-size").value_or(1);
    const std::int64_t replicas = gpus_ > 0 ? gpus_ / others : positive("data-parallel-size").value_or(0);
    if (replicas == 0) return set("/parallelism/dp_replicate", instances);
    if (replicas % instances != 0) {
      fail("num-distributed-optimizer-instances", fmt::format("expected a divisor of the {} replicas", replicas));
    }
    set("/parallelism/dp_shard", replicas / instances);
  }

  // Sharded parameters: PyTorch's FSDP2, or Megatron-LM's own FSDP with what it shards.
  void read_fsdp() {
    constexpr std::string_view kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    const char* const own = has("use-custom-fsdp") ? "use-custom-fsdp" : "use-megatron-fsdp";
    const std::string strategy = word("data-parallel-sharding-strategy");
    const auto found = std::find(std::begin(kStrategies), std::end(kStrategies), strategy);
    if (!strategy.empty() && found == std::end(kStrategies)) {
      fail("data-parallel-sharding-strategy",
           fmt::format("expected one of {}, got '{}'", fmt::join(kStrategies, ", "), strategy));
    }
    if (has("use-torch-fsdp2")) {
      if (has(own)) fail("use-torch-fsdp2", fmt::format("excludes --{}", own));
      for (const char* other : {"pipeline-model-parallel-size", "expert-model-parallel-size"}) {
        if (positive(other).value_or(1) > 1) fail("use-torch-fsdp2", fmt::format("requires --{} 1", other));
      }
      if (has("use-distributed-optimizer")) fail("use-torch-fsdp2", "excludes --use-distributed-optimizer");
      if (has("torch-fsdp2-no-reshard-after-forward")) set("/parallelism/reshard_after_forward", false);
      return set("/parallelism/zero", 3);
    }
    if (has("torch-fsdp2-no-reshard-after-forward")) {
      useless_.emplace_back("--torch-fsdp2-no-reshard-after-forward without --use-torch-fsdp2");
    }
    const auto stage = strategy.empty() ? 0 : found - std::begin(kStrategies);
    if (stage == 0) return;
    if (!has(own)) {
      useless_.push_back("--data-parallel-sharding-strategy " + strategy + " without --use-megatron-fsdp");
      return;
    }
    set("/parallelism/zero", stage);
  }

  void read_kernels() {
    const std::string implementation = word("transformer-impl");
    std::string backend = word("attention-backend");
    if (const std::size_t dot = backend.find('.'); dot != std::string::npos) backend.erase(0, dot + 1);
    const bool chosen = backend == "flash" || backend == "fused" || has("use-flash-attn") || has("use-flash-attn-v1") ||
                        has("use-flash-attn-v2") || has("use-flash-attn-triton");
    const bool unfused =
        backend == "unfused" || backend == "local" || (!chosen && (implementation == "local" || has("deepspeed")));
    set("/parallelism/flash_attention", !unfused);
    read_experts_and_head();
    read_optimizer_states();
    read_optimizer_instances();
    if (has("no-bias-swiglu-fusion")) set("/parallelism/fused_activation", false);
    if (const std::string loss = word("cross-entropy-fusion-impl"); !loss.empty() && loss != "native" && loss != "te") {
      fail("cross-entropy-fusion-impl", fmt::format("expected native or te, got '{}'", loss));
    }
    if (has("cross-entropy-loss-fusion") && !has("cross-entropy-fusion-impl")) {
      set("/parallelism/cross_entropy_fusion_impl", "native");
    }
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
    const bool eight = has("fp8-format") && word("fp8-format") != "None";
    const bool four = has("fp4-format") && word("fp4-format") != "None";
    if (eight && four) fail("fp4-format", "excludes --fp8-format");
    if (eight) {
      const std::string recipe = has("fp8-recipe") ? word("fp8-recipe") : "delayed";
      static const std::map<std::string, std::string> kRecipes = {{"delayed", "fp8"},
                                                                  {"tensorwise", "fp8-current"},
                                                                  {"blockwise", "fp8-block"},
                                                                  {"mxfp8", "mxfp8"},
                                                                  {"custom", "fp8-current"}};
      const auto found = kRecipes.find(recipe);
      if (found == kRecipes.end()) fail("fp8-recipe", "expected delayed, tensorwise, mxfp8, blockwise or custom");
      if (recipe == "custom") not_modeled_.emplace_back("--fp8-recipe custom");
      set("/parallelism/precision", found->second);
    }
    if (four) set("/parallelism/precision", "nvfp4");
    if (eight && has("fp8-param-gather")) set("/parallelism/fp8_param_gather", true);
    if ((eight || four) && has("fp8-dot-product-attention")) set("/parallelism/fp8_dot_product_attention", true);
  }

  std::int64_t gpus_;
  std::vector<int> stage_layers_;   // of a pattern of layers with borders of stages
  std::vector<std::string> order_;  // of first occurrence
  std::vector<std::string> not_modeled_;
  std::vector<std::string> useless_;
  std::vector<std::string> repeated_;
  std::vector<std::string> unknown_;
  Imported out_;
};

}  // namespace

Imported scenario_of_megatron(const std::vector<MegatronArgument>& arguments, std::int64_t gpus,
                              const std::string& source) {
  return MegatronImport(arguments, gpus, source).run();
}

}  // namespace sluice::imports
