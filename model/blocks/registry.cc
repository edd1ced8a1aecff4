#include "model/blocks/registry.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "model/blocks/attention.h"
#include "model/blocks/compressed_attention.h"
#include "model/blocks/experts.h"
#include "model/blocks/latent_attention.h"
#include "model/blocks/layer_embedding.h"
#include "model/blocks/mlp.h"
#include "model/blocks/scan.h"
#include "model/blocks/traced.h"
#include "model/input/nearest.h"

namespace sluice::model {
namespace {

int size(JsonReader& reader, const char* key) { return static_cast<int>(reader.integer(key, 1, kMostModelSize)); }
int size_or(JsonReader& reader, const char* key, int fallback, int low = 0) {
  return static_cast<int>(reader.integer_or(key, low, kMostModelSize, fallback));
}

template <typename Word>
Word word_or(JsonReader& reader, const char* key, std::span<const std::string> words, Word fallback) {
  reader.allow(key);
  if (!reader.has(key)) return fallback;
  const std::string word = reader.at(key).one_of(words);
  return static_cast<Word>(std::find(words.begin(), words.end(), word) - words.begin());
}

// With index_top_k; the other keys of an indexer require it.
std::optional<Indexer> read_indexer(JsonReader& reader, bool weighted, int ratio = 1) {
  for (const char* key : {"index_heads", "index_head_dim", "index_shared"}) {
    reader.allow(key);
    if (reader.has(key) && !reader.has("index_top_k")) reader.at(key).fail("requires index_top_k");
  }
  reader.allow("index_top_k");
  if (!reader.has("index_top_k")) return {};
  return Indexer{.heads = size(reader, "index_heads"),
                 .head_dim = size(reader, "index_head_dim"),
                 .top_k = size(reader, "index_top_k"),
                 .own = !reader.boolean_or("index_shared", false),
                 .weighted = weighted,
                 .ratio = ratio};
}

BlockPtr read_attention(JsonReader& reader, int hidden, bool dropout) {
  static const std::array<std::string, 3> kNorms = {"none", "per_head", "all_heads"};
  static const std::array<std::string, 3> kGates = {"none", "elementwise", "per_head"};
  AttentionOptions out;
  AttentionCore& core = out.core;
  core.heads = size(reader, "heads");
  core.kv_heads = size_or(reader, "kv_heads", core.heads, 1);
  if (core.heads % core.kv_heads != 0) reader.at("kv_heads").fail("expected a divisor of heads");
  core.head_dim = size_or(reader, "head_dim", std::max(1, hidden / core.heads), 1);
  core.value_head_dim = size_or(reader, "value_head_dim", core.head_dim, 1);
  core.window = size_or(reader, "window", 0);
  core.chunk = size_or(reader, "chunk", 0);
  if (core.window > 0 && core.chunk > 0) reader.at("chunk").fail("excludes window");
  core.dropout = dropout;
  out.qkv_bias = reader.boolean_or("qkv_bias", false);
  out.projection_bias = reader.boolean_or("projection_bias", false);
  out.rotary = reader.boolean_or("rotary", true);
  out.sinks = reader.boolean_or("sinks", false);
  out.keys_as_values = reader.boolean_or("keys_as_values", false);
  out.qk_norm = word_or(reader, "qk_norm", kNorms, AttentionOptions::QkNorm::none);
  out.gate = word_or(reader, "gate", kGates, AttentionOptions::Gate::none);
  out.shared_keys = reader.boolean_or("shared_keys", false);
  out.indexer = read_indexer(reader, false);
  if (out.indexer && core.window + core.chunk > 0) reader.at("index_top_k").fail("excludes window and chunk");
  return std::make_shared<Attention>(hidden, out);
}

BlockPtr read_latent_attention(JsonReader& reader, int hidden, bool dropout) {
  LatentAttentionOptions out{.heads = size(reader, "heads"), .latent = {}, .dropout = dropout};
  out.latent = {.query_rank = size_or(reader, "query_rank", 0),
                .key_value_rank = size(reader, "key_value_rank"),
                .nope_head_dim = size(reader, "nope_head_dim"),
                .rope_head_dim = size(reader, "rope_head_dim"),
                .value_head_dim = size(reader, "value_head_dim")};
  out.rotary = reader.boolean_or("rotary", true);
  out.gate = reader.boolean_or("gate", false);
  out.indexer = read_indexer(reader, true);
  return std::make_shared<LatentAttentionBlock>(hidden, out);
}

BlockPtr read_compressed_attention(JsonReader& reader, int hidden, bool dropout) {
  CompressedAttentionOptions out{.heads = size(reader, "heads"),
                                 .head_dim = size(reader, "head_dim"),
                                 .query_rank = size(reader, "query_rank"),
                                 .out_groups = size(reader, "out_groups"),
                                 .out_rank = size(reader, "out_rank"),
                                 .window = size(reader, "window"),
                                 .ratio = size_or(reader, "ratio", 0),
                                 .dropout = dropout};
  if (out.heads % out.out_groups != 0) reader.at("out_groups").fail("expected a divisor of heads");
  out.indexer = read_indexer(reader, true, out.ratio);
  if (out.indexer && out.ratio < 2) reader.at("index_top_k").fail("requires a ratio of at least 2");
  return std::make_shared<CompressedAttention>(hidden, out);
}

BlockPtr read_layer_embedding(JsonReader& reader, int hidden, bool dropout) {
  return std::make_shared<LayerEmbedding>(hidden, size(reader, "width"), dropout);
}

BlockPtr read_mlp(JsonReader& reader, int hidden, bool dropout) {
  return std::make_shared<Mlp>(hidden, Mlp::Options{.width = size(reader, "width"),
                                                    .gated = reader.boolean_or("gated", true),
                                                    .bias = reader.boolean_or("bias", false),
                                                    .dropout = dropout});
}

BlockPtr read_experts(JsonReader& reader, int hidden, bool dropout) {
  constexpr int kMostExperts = 1 << 16;
  ExpertsBlock::Options out;
  out.dropout = dropout;
  out.gated = reader.boolean_or("gated", true);
  out.bias = reader.boolean_or("bias", false);
  Experts& experts = out.experts;
  experts.count = static_cast<int>(reader.integer("count", 1, kMostExperts));
  experts.per_token = static_cast<int>(reader.integer("per_token", 1, experts.count));
  experts.ffn_hidden = size(reader, "width");
  experts.shared_ffn_hidden = size_or(reader, "shared_width", 0);
  experts.shared_gate = reader.boolean_or("shared_gate", false);
  experts.clamp = reader.number_or("clamp", 1e-3, 1e6, 0);
  experts.groups = size_or(reader, "groups", 1, 1);
  if (experts.count % experts.groups != 0) reader.at("groups").fail("expected a divisor of count");
  experts.groups_per_token = static_cast<int>(reader.integer_or("groups_per_token", 1, experts.groups, experts.groups));
  if (experts.groups_per_token * (experts.count / experts.groups) < experts.per_token) {
    reader.at("groups_per_token").fail("expected as many as have the experts of a token");
  }
  out.latent = size_or(reader, "latent", 0);
  out.latent_norm = reader.boolean_or("latent_norm", false);
  out.router_bias = reader.boolean_or("router_bias", false);
  return std::make_shared<ExpertsBlock>(hidden, out);
}

BlockPtr read_convolution(JsonReader& reader, int hidden, bool dropout) {
  return std::make_shared<Scan>(hidden, Scan::Options{.rule = Scan::Rule::convolution,
                                                      .heads = hidden,
                                                      .head_dim = 1,
                                                      .groups = hidden,
                                                      .convolution = size_or(reader, "convolution", 3, 1),
                                                      .dropout = dropout});
}

template <Scan::Rule rule>
BlockPtr read_scan(JsonReader& reader, int hidden, bool dropout) {
  const bool decays = rule == Scan::Rule::mamba2 || rule == Scan::Rule::lightning;
  Scan::Options out{.rule = rule, .dropout = dropout};
  out.heads = size(reader, "heads");
  out.head_dim = size(reader, "head_dim");
  out.state = size_or(reader, "state", out.head_dim, 1);
  out.groups = size_or(reader, "groups", out.heads, 1);
  if (out.heads % out.groups != 0) reader.at("groups").fail("expected a divisor of heads");
  out.convolution = rule == Scan::Rule::lightning ? 0 : size_or(reader, "convolution", 4, 1);
  out.chunk = size_or(reader, "chunk", decays ? 256 : 64, 1);
  if (rule == Scan::Rule::kimi_delta) out.full_gate = reader.boolean_or("full_gate", false);
  return std::make_shared<Scan>(hidden, out);
}

constexpr BlockType kBlockTypes[] = {
    {"attention", "heads of queries, keys and values; windows, chunks, gates, sinks, norms", read_attention},
    {"latent_attention", "keys and values from a latent; gate, indexer of sparse attention", read_latent_attention},
    {"compressed_attention", "a window, and entries that stand for several tokens each", read_compressed_attention},
    {"mlp", "feed-forward of two matrices, or three with a gate", read_mlp},
    {"experts", "a router, experts, a shared one; latent tokens, groups", read_experts},
    {"layer_embedding", "a token's embedding of each layer", read_layer_embedding},
    {"mamba2", "a scan with a decay per head", read_scan<Scan::Rule::mamba2>},
    {"lightning_attention", "a scan with a fixed decay per head", read_scan<Scan::Rule::lightning>},
    {"gated_delta_net", "a scan by the delta rule", read_scan<Scan::Rule::gated_delta>},
    {"kimi_delta_attention", "the same with a decay per channel", read_scan<Scan::Rule::kimi_delta>},
    {"short_convolution", "a convolution of a few tokens between two gates", read_convolution},
    {"traced", "the ops of a PyTorch module (sluice.torch.model)", Traced::read},
};

}  // namespace

std::span<const BlockType> block_types() { return kBlockTypes; }

std::vector<std::string> block_kinds() {
  std::vector<std::string> out;
  for (const BlockType& type : kBlockTypes) out.emplace_back(type.kind);
  return out;
}

BlockPtr block_from_json(JsonReader reader, int hidden, bool dropout) {
  const std::vector<std::string> kinds = block_kinds();
  const std::string kind = reader.at("block").one_of(kinds);
  const auto* const type = std::find_if(std::begin(kBlockTypes), std::end(kBlockTypes),
                                        [&](const BlockType& each) { return each.kind == kind; });
  BlockPtr block = type->read(reader, hidden, dropout);
  reader.finish();
  return block;
}

}  // namespace sluice::model
