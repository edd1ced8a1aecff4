#include "model/cost/cost_table.h"

#include <algorithm>

#include "model/cost/memory_json.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"

namespace sluice::model {
namespace {

constexpr std::array kTableKinds = {OpKind::F, OpKind::B, OpKind::I, OpKind::W};
constexpr std::array kComputeKinds = {OpKind::F, OpKind::I, OpKind::W};
constexpr std::array kExchangeKinds = {OpKind::F, OpKind::I};
constexpr std::int64_t kMaxTableTokens = std::int64_t{1} << 31;
constexpr double kMaxTableSeconds = 1e6;

TimeCurve curve_from_json(JsonReader reader) {
  TimeCurve curve;
  for (const JsonReader& tokens : reader.at("tokens").elements()) {
    curve.tokens.push_back(tokens.integer(1, kMaxTableTokens));
    if (curve.tokens.size() > 1 && curve.tokens.back() <= curve.tokens[curve.tokens.size() - 2]) {
      tokens.fail("expected token counts that increase");
    }
  }
  if (curve.tokens.empty()) reader.at("tokens").fail("expected at least one token count");
  for (const JsonReader& seconds : reader.at("seconds").elements()) {
    curve.seconds.push_back(seconds.number(0, kMaxTableSeconds));
  }
  if (curve.seconds.size() != curve.tokens.size()) {
    reader.at("seconds").fail("expected as many entries as tokens, " + std::to_string(curve.tokens.size()));
  }
  reader.allow("ctx");
  if (reader.has("ctx")) {
    const std::vector<JsonReader> terms = reader.at("ctx").elements();
    if (terms.size() != curve.context.size()) reader.at("ctx").fail("expected four numbers, [a0, a1, a2, a3]");
    for (std::size_t i = 0; i < terms.size(); ++i)
      curve.context[i] = terms[i].number(-kMaxTableSeconds, kMaxTableSeconds);
  }
  curve.residual = reader.number_or("residual", 0, 1e9, 0);
  reader.finish();
  return curve;
}

void read_part(JsonReader reader, PartKind part, CostTable& table) {
  for (const OpKind kind : kinds_of(part)) {
    const std::string key(1, letter(kind));
    reader.allow(key);
    if (reader.has(key)) table.curve(part, kind) = curve_from_json(reader.at(key));
  }
  reader.finish();
  if (is_of_expert_layer(part)) {
    for (const OpKind kind : kinds_of(part)) {
      if (!table.curve(part, kind)) reader.fail(std::string("expected times of \"") + letter(kind) + "\"");
    }
    return;
  }
  if (!table.curve(part, OpKind::F)) reader.fail("expected a forward time, \"F\"");
  const bool split = table.curve(part, OpKind::I) && table.curve(part, OpKind::W);
  if (part != PartKind::recompute && !split && !table.curve(part, OpKind::B))
    reader.fail("expected backward times, \"I\" and \"W\" or \"B\"");
}

CostTable table_from_json(JsonReader root) {
  if (root.string("schema") != "sluice.cost/1") root.at("schema").fail("expected \"sluice.cost/1\"");
  CostTable table;
  table.source = root.source();
  table.machine = root.string_or("machine", "");
  root.allow("shape");
  if (root.has("shape")) table.shape = model_shape_from_json(root.at("shape"));
  table.waited_for_cores = root.boolean_or("waited_for_cores", false);
  table.sequences = static_cast<int>(root.integer_or("sequences", 1, 1 << 20, 1));
  table.tensor_parallel = static_cast<int>(root.integer_or("tensor_parallel", 1, 1 << 16, 1));
  table.expert_parallel = static_cast<int>(root.integer_or("expert_parallel", 1, 1 << 16, 1));
  JsonReader parts = root.at("parts");
  for (const PartKind part : kParts) {
    parts.allow(to_string(part));
    if (parts.has(to_string(part))) read_part(parts.at(to_string(part)), part, table);
  }
  parts.finish();
  root.allow("links");
  if (root.has("links")) {
    JsonReader links = root.at("links");
    if (!links.json().is_object()) links.fail("expected an object of links by name");
    for (const auto& [name, value] : links.json().items()) {
      JsonReader link = links.at(name);
      table.links.push_back({.name = name,
                             .latency_s = link.number("latency_s", 0, 10),
                             .bandwidth_bytes_per_s = link.number("bandwidth_bytes_per_s", 1, 1e15)});
      link.finish();
    }
  }
  root.allow("passes");
  if (root.has("passes")) {
    JsonReader passes = root.at("passes");
    for (const PassKind kind : kPasses) {
      passes.allow(to_string(kind));
      if (!passes.has(to_string(kind))) continue;
      JsonReader pass = passes.at(to_string(kind));
      table.pass(kind) = {.fixed_s = pass.number("fixed_s", 0, kMaxTableSeconds),
                          .elements_per_s = pass.number("parameters_per_s", 1, 1e15)};
      pass.finish();
    }
    passes.finish();
  }
  root.allow("sums");
  if (root.has("sums")) {
    for (JsonReader sum : root.at("sums").elements()) {
      table.sums.push_back({.ranks = static_cast<int>(sum.integer("ranks", 2, 1 << 24)),
                            .latency_s = sum.number("latency_s", 0, 10),
                            .bandwidth_bytes_per_s = sum.number("bandwidth_bytes_per_s", 1, 1e15)});
      if (table.sums.size() > 1 && table.sums.back().ranks <= table.sums[table.sums.size() - 2].ranks) {
        sum.at("ranks").fail("expected numbers of ranks that increase");
      }
      sum.finish();
    }
  }
  root.allow("memory");
  if (root.has("memory")) table.memory = run_memory_from_json(root.at("memory"));
  root.finish();
  return table;
}

}  // namespace

std::string to_string(PartKind part) {
  switch (part) {
    case PartKind::embedding: return "embedding";
    case PartKind::layer: return "layer";
    case PartKind::head: return "head";
    case PartKind::stage: return "stage";
    case PartKind::recompute: return "recompute";
    case PartKind::attention: return "attention";
    case PartKind::dispatch: return "dispatch";
    case PartKind::experts: return "experts";
    case PartKind::combine: return "combine";
  }
  return "";
}

std::span<const OpKind> kinds_of(PartKind part) {
  if (part == PartKind::dispatch || part == PartKind::combine) return kExchangeKinds;
  if (is_of_expert_layer(part)) return kComputeKinds;
  return kTableKinds;
}

std::string to_string(PassKind pass) { return pass == PassKind::optimizer ? "optimizer" : "norm"; }

double TimeCurve::at(std::int64_t slice_tokens, std::int64_t context_tokens) const {
  const auto i = static_cast<double>(slice_tokens);
  const auto j = static_cast<double>(context_tokens);
  double base = seconds.front();
  if (slice_tokens > tokens.front() && tokens.size() > 1) {
    const auto above = std::lower_bound(tokens.begin(), tokens.end(), slice_tokens);
    const auto right = static_cast<std::size_t>(std::min(above, tokens.end() - 1) - tokens.begin());
    if (slice_tokens == tokens[right]) {
      base = seconds[right];
    } else {
      const double x0 = static_cast<double>(tokens[right - 1]);
      const double x1 = static_cast<double>(tokens[right]);
      const double y0 = seconds[right - 1];
      const double slope = (seconds[right] - y0) / (x1 - x0);
      base = above == tokens.end() ? seconds[right] + std::max(0.0, slope) * (i - x1) : y0 + slope * (i - x0);
    }
  }
  const double extra = context_tokens > 0 ? context[0] + context[1] * i + context[2] * j + context[3] * i * j : 0;
  return std::max(0.0, base + extra);
}

double TimeCurve::at(const SliceShape& slice) const {
  if (slice.packed == nullptr) return at(slice.tokens, slice.context);
  const auto pairs_within = [](std::int64_t count) {
    return static_cast<double>(count) * static_cast<double>(count) / 2;
  };
  double out = at(slice.tokens, 0);
  double pairs_between = pairs_within(slice.tokens);
  slice.for_each_document([&](const DocumentPart& part) {
    out += at(part.tokens, part.context) - at(part.tokens, 0);
    pairs_between -= pairs_within(part.tokens);
  });
  return std::max(0.0, out - std::max(0.0, context[3]) * pairs_between);
}

CostTable parse_cost_table(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  return table_from_json(JsonReader(json, source));
}

CostTable read_cost_table(const std::string& path) { return parse_cost_table(read_file(path, 1 << 26), path); }

std::string to_json_text(const CostTable& table) {
  nlohmann::ordered_json root;
  root["schema"] = "sluice.cost/1";
  if (!table.machine.empty()) root["machine"] = table.machine;
  if (table.waited_for_cores) root["waited_for_cores"] = true;
  if (!table.shape.empty()) root["shape"] = table.shape;
  root["sequences"] = table.sequences;
  root["tensor_parallel"] = table.tensor_parallel;
  if (table.expert_parallel > 1) root["expert_parallel"] = table.expert_parallel;
  auto& parts = root["parts"] = nlohmann::ordered_json::object();
  for (const PartKind part : kParts) {
    for (const OpKind kind : kTableKinds) {
      const std::optional<TimeCurve>& curve = table.curve(part, kind);
      if (!curve) continue;
      parts[to_string(part)][std::string(1, letter(kind))] = {{"tokens", curve->tokens},
                                                              {"seconds", curve->seconds},
                                                              {"ctx", curve->context},
                                                              {"residual", curve->residual}};
    }
  }
  for (const LinkTime& link : table.links) {
    root["links"][link.name] = {{"latency_s", link.latency_s}, {"bandwidth_bytes_per_s", link.bandwidth_bytes_per_s}};
  }
  for (const PassKind kind : kPasses) {
    const std::optional<PassTime>& pass = table.pass(kind);
    if (!pass) continue;
    root["passes"][to_string(kind)] = {{"fixed_s", pass->fixed_s}, {"parameters_per_s", pass->elements_per_s}};
  }
  for (const SumTime& sum : table.sums) {
    root["sums"].push_back(
        {{"ranks", sum.ranks}, {"latency_s", sum.latency_s}, {"bandwidth_bytes_per_s", sum.bandwidth_bytes_per_s}});
  }
  if (!table.memory.parts.empty()) root["memory"] = run_memory_json(table.memory);
  return root.dump(2) + "\n";
}

}  // namespace sluice::model
