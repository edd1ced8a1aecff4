#include "model/schedule/schedule_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "model/schedule/forward_only.h"
#include "model/schedule/op_text.h"

namespace sluice::model {
namespace {

constexpr std::string_view kSchema = "sluice.schedule/1";
const std::vector<std::string> kPolicies = {"flush", "stashed", "double-buffered"};

void read_step(const JsonReader& step, std::vector<Op>& order, std::vector<Communication>& communication) {
  static const std::string kRule =
      "expected an op such as \"2F0\" or \"2F0.1\", a block \"2F4+1B3\", or communication such as \"2SEND_F0\"";
  if (!step.json().is_string()) step.fail(kRule);
  const std::string_view text = step.json().get_ref<const std::string&>();
  const std::size_t plus = text.find('+');
  Op op;
  Communication moved{.before = static_cast<std::uint32_t>(order.size())};
  if (parse_communication(text, moved)) {
    communication.push_back(moved);
    return;
  }
  if (!parse_op_text(text.substr(0, plus), op)) step.fail(kRule);
  op.joined = plus != std::string_view::npos;
  order.push_back(op);
  if (op.joined) {
    if (!parse_op_text(text.substr(plus + 1), op)) step.fail(kRule);
    order.push_back(op);
  }
}

std::vector<MicrobatchShape> read_shapes(JsonReader& root) {
  std::vector<MicrobatchShape> shapes;
  if (!root.has("shapes")) {
    root.allow("shapes");
    return {MicrobatchShape{}};
  }
  JsonReader list = root.at("shapes");
  for (JsonReader& item : list.elements()) {
    MicrobatchShape shape;
    shape.sequences = static_cast<int>(item.integer_or("sequences", 1, 1 << 30, 1));
    shape.slice_lengths.clear();
    JsonReader lengths = item.at("slice_lengths");
    for (const JsonReader& length : lengths.elements()) {
      shape.slice_lengths.push_back(length.integer(1, std::int64_t{1} << 40));
    }
    if (shape.slice_lengths.empty() || std::ssize(shape.slice_lengths) > kMaxSlices) {
      lengths.fail(fmt::format("expected 1 to {} slices", kMaxSlices));
    }
    shape.forward_only = !item.boolean_or("backward", true);
    item.finish();
    shapes.push_back(std::move(shape));
  }
  if (shapes.empty()) list.fail("expected at least one shape");
  return shapes;
}

}  // namespace

std::string schedule_to_json(const Schedule& schedule) {
  const ScheduleParts& parts = schedule.parts();
  std::string out;
  out.reserve(static_cast<std::size_t>(schedule.num_ops()) * 12 + 1024);
  const auto to = std::back_inserter(out);
  fmt::format_to(to,
                 "{{\n\"schema\": \"{}\",\n\"family\": {},\n\"ranks\": {},\n\"stages\": {},\n\"microbatches\": {},\n",
                 kSchema, Json(parts.family).dump(), parts.num_ranks, parts.num_stages, parts.num_microbatches);
  fmt::format_to(to, "\"batches\": {},\n\"weight_policy\": \"{}\",\n", parts.num_batches,
                 to_string(parts.weight_policy));
  if (parts.vocabulary_barriers > 0) {
    fmt::format_to(to, "\"vocabulary_barriers\": {},\n", parts.vocabulary_barriers);
  }
  if (parts.encoder_stages > 0) fmt::format_to(to, "\"encoder_stages\": {},\n", parts.encoder_stages);
  if (parts.frozen_encoder) out += "\"frozen_encoder\": true,\n";
  fmt::format_to(to, "\"placement\": {},\n", Json(parts.routes).dump());
  if (!parts.route_of.empty()) {
    fmt::format_to(to, "\"route_of\": {},\n",
                   Json(std::vector<int>(parts.route_of.begin(), parts.route_of.end())).dump());
  }
  out += "\"shapes\": [";
  for (std::size_t i = 0; i < parts.shapes.size(); ++i) {
    fmt::format_to(to, "{}{{\"sequences\": {}, \"slice_lengths\": {}{}}}", i == 0 ? "" : ", ",
                   parts.shapes[i].sequences, Json(parts.shapes[i].slice_lengths).dump(),
                   parts.shapes[i].forward_only ? ", \"backward\": false" : "");
  }
  out += "],\n";
  if (!parts.shape_of.empty()) fmt::format_to(to, "\"shape_of\": {},\n", Json(parts.shape_of).dump());
  out += "\"order\": [\n";
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    out += '[';
    bool joined = false;
    bool first = true;
    for_each_step(
        schedule, rank,
        [&](const Op& op) {
          out += joined ? "+" : first ? "\"" : ",\"";
          append_op_text(out, op, schedule.sliced());
          if (!op.joined) out += '"';
          joined = op.joined;
          first = false;
        },
        [&](const Communication& communication) {
          out += first ? "\"" : ",\"";
          out += to_string(communication, schedule.sliced()) + '"';
          first = false;
        });
    out += rank + 1 < schedule.num_ranks() ? "],\n" : "]\n";
  }
  out += "]\n}\n";
  return out;
}

Schedule schedule_from_json(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  JsonReader root(document, source);
  if (root.string("schema") != kSchema) root.at("schema").fail(fmt::format("expected \"{}\"", kSchema));
  ScheduleParts parts;
  parts.family = root.string_or("family", "custom");
  parts.num_ranks = static_cast<int>(root.integer("ranks", 1, kMaxRanks));
  parts.num_stages = static_cast<int>(root.integer("stages", 1, kMaxStages));
  parts.num_microbatches = static_cast<int>(root.integer("microbatches", 1, kMaxOps));
  parts.num_batches = static_cast<int>(root.integer_or("batches", 1, kMaxOps, 1));
  if (root.has("weight_policy")) {
    const std::string policy = root.at("weight_policy").one_of(kPolicies);
    parts.weight_policy =
        static_cast<WeightPolicy>(std::find(kPolicies.begin(), kPolicies.end(), policy) - kPolicies.begin());
  } else {
    root.allow("weight_policy");
  }
  if (parts.weight_policy == WeightPolicy::flush && parts.num_batches > 1) {
    root.at("batches").fail("a schedule with a flush has 1 batch");
  }
  parts.vocabulary_barriers = static_cast<int>(root.integer_or("vocabulary_barriers", 0, 2, 0));
  parts.encoder_stages = static_cast<int>(root.integer_or("encoder_stages", 0, kMaxStages, 0));
  parts.frozen_encoder = root.boolean_or("frozen_encoder", false);
  const std::int64_t total = static_cast<std::int64_t>(parts.num_microbatches) * parts.num_batches;
  if (total * parts.num_stages > kMaxOps) {
    root.at("microbatches")
        .fail(fmt::format("{} microbatches on {} stages: more than {} ops", total, parts.num_stages, kMaxOps));
  }
  for (const JsonReader& route : root.at("placement").elements()) {
    auto& ranks = parts.routes.emplace_back();
    for (const JsonReader& rank : route.elements()) ranks.push_back(static_cast<int>(rank.integer(0, kMaxRanks - 1)));
  }
  if (root.has("route_of")) {
    for (const JsonReader& route : root.at("route_of").elements()) {
      parts.route_of.push_back(static_cast<std::uint8_t>(route.integer(0, 254)));
    }
  } else {
    root.allow("route_of");
  }
  parts.shapes = read_shapes(root);
  if (root.has("shape_of")) {
    for (const JsonReader& shape : root.at("shape_of").elements()) {
      parts.shape_of.push_back(static_cast<int>(shape.integer(0, std::ssize(parts.shapes) - 1)));
    }
  } else {
    root.allow("shape_of");
  }
  bool communicates = false;
  for (const JsonReader& rank : root.at("order").elements()) {
    auto& order = parts.orders.emplace_back();
    auto& communication = parts.communication.emplace_back();
    order.reserve(rank.json().size());
    for (const JsonReader& step : rank.elements()) read_step(step, order, communication);
    communicates |= !communication.empty();
  }
  if (!communicates) parts.communication.clear();
  root.finish();
  mark_forward_only(parts);
  try {
    return Schedule(std::move(parts));
  } catch (const ScheduleError& error) {
    throw ScheduleError(source + ": " + error.what());
  }
}

}  // namespace sluice::model
