#include "model/cost/uniform.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "model/errors.h"
#include "model/input/nearest.h"
#include "model/input/numbers.h"

namespace sluice::model {
namespace {

double parse_seconds(std::string_view text, std::string_view key) {
  double value = 0;
  if (!parse_number(text, value) || !(value >= 0 && value <= 1e8)) {
    throw InputError(fmt::format("--uniform: {}: expected seconds between 0 and 1e8, got '{}'", key, text));
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

UniformTimes parse_uniform(std::string_view text) {
  UniformTimes times{.forward = {}, .input_gradient = {}, .weight_gradient = {}};
  static const std::vector<std::string> kKeys = {"f", "b", "w", "s", "t", "fb", "comm", "copy"};
  std::vector<std::string> seen;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string key(part.substr(0, equals));
    if (equals == std::string_view::npos || std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      throw InputError(fmt::format("--uniform: expected f=, b=, w=, s=, t=, fb=, comm= or copy=, got '{}'{}", part,
                                   did_you_mean(key, kKeys)));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      throw InputError(fmt::format("--uniform: {} is given twice", key));
    }
    seen.push_back(key);
    std::vector<double> values;
    for (const std::string_view value : split(part.substr(equals + 1), ':'))
      values.push_back(parse_seconds(value, key));
    const bool list = key == "f" || key == "b" || key == "w";
    if (!list && values.size() > 1) {
      throw InputError(fmt::format("--uniform: {} takes one value, got {}", key, values.size()));
    }
    if (key == "f") times.forward = values;
    if (key == "b") times.input_gradient = values;
    if (key == "w") times.weight_gradient = values;
    if (key == "s") times.vocabulary = values[0];
    if (key == "t") times.vocabulary_gradient = values[0];
    if (key == "fb") times.joint = values[0];
    if (key == "comm") times.hop = values[0];
    if (key == "copy") times.copy = values[0];
  }
  return times;
}

std::vector<std::string> complete(UniformTimes& times) {
  std::vector<std::string> assumed;
  const auto assume = [&](std::vector<double>& time, std::vector<double> value, const char* what) {
    time = std::move(value);
    assumed.emplace_back(what);
  };
  std::vector<double>& f = times.forward;
  std::vector<double>& b = times.input_gradient;
  std::vector<double>& w = times.weight_gradient;
  if (times.stages.empty()) {
    if (w.empty() && !b.empty()) {
      for (double& seconds : b) seconds /= 2;
      assume(w, b, "b is the whole backward, half of it w");
      if (f.empty()) assume(f, b, "f is half of b");
    }
    if (f.empty() && !b.empty()) assume(f, b, "f is b");
    if (f.empty() && !w.empty()) assume(f, w, "f is w");
    if (f.empty()) assume(f, {1}, "f is 1 s");
    if (b.empty()) assume(b, f, "b is f");
    if (w.empty()) assume(w, f, "w is f");
  }
  if (!times.hop) assumed.emplace_back("comm is 0");
  return assumed;
}

UniformCost::UniformCost(UniformTimes times, const Schedule& schedule, std::int64_t tokens)
    : times_(std::move(times)),
      num_chunks_(schedule.num_chunks()),
      num_stages_(schedule.num_stages()),
      tokens_(tokens) {
  complete(times_);
  const auto check_list = [&](const std::vector<double>& list, std::string_view key) {
    if (list.size() <= 1) return;  // none beside the times of stages
    for (const MicrobatchShape& shape : schedule.shapes()) {
      if (std::ssize(list) != shape.num_slices()) {
        throw InputError(fmt::format("/cost/{}: expected one value of {}, or {}, one per slice, got {}", key, key,
                                     shape.num_slices(), list.size()));
      }
    }
  };
  check_list(times_.forward, "f");
  check_list(times_.input_gradient, "b");
  check_list(times_.weight_gradient, "w");
  if (!times_.stage_weights.empty() && std::ssize(times_.stage_weights) != schedule.num_stages()) {
    throw InputError(fmt::format("/cost/stage_weights: expected {}, one per stage, got {}", schedule.num_stages(),
                                 times_.stage_weights.size()));
  }
  merge_stages();
  if (!times_.stages.empty() && num_stages_ % std::ssize(times_.stages) != 0) {
    throw InputError(fmt::format("/cost/stages: expected {}, one per stage, or a divisor or multiple of it, got {}",
                                 num_stages_, times_.stages.size()));
  }
  for (const double w : times_.stage_weights) {
    if (!(w >= 0 && w <= 1e6)) throw InputError(fmt::format("/cost/stage_weights: expected 0 to 1e6, got {}", w));
  }
}

// Makes neighbouring stages one where there are a multiple of the schedule's.
void UniformCost::merge_stages() {
  const std::ptrdiff_t parts = std::ssize(times_.stages) / num_stages_;
  if (parts < 2 || std::ssize(times_.stages) % num_stages_ != 0) return;
  std::vector<MeasuredStage> merged(static_cast<std::size_t>(num_stages_));
  for (std::size_t i = 0; i < times_.stages.size(); ++i) {
    MeasuredStage& whole = merged[i / static_cast<std::size_t>(parts)];
    whole.forward += times_.stages[i].forward;
    whole.input_gradient += times_.stages[i].input_gradient;
    whole.weight_gradient += times_.stages[i].weight_gradient;
    whole.vocabulary += times_.stages[i].vocabulary;
    whole.vocabulary_gradient += times_.stages[i].vocabulary_gradient;
  }
  times_.stages = std::move(merged);
}

double UniformCost::weight(int stage) const { return times_.stage_weights.empty() ? 1.0 : times_.stage_weights[stage]; }

double UniformCost::measured(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  const int parts = num_stages_ / static_cast<int>(times_.stages.size());
  const MeasuredStage& times = times_.stages[static_cast<std::size_t>(stage / parts)];
  double seconds = 0;
  if (kind == OpKind::F) seconds = times.forward;
  if (kind == OpKind::I || kind == OpKind::B) seconds += times.input_gradient;
  if (kind == OpKind::W || kind == OpKind::B) seconds += times.weight_gradient;
  if (kind == OpKind::S) seconds = times.vocabulary * parts;
  if (kind == OpKind::T) seconds = times.vocabulary_gradient * parts;
  return seconds * static_cast<double>(shape.slice_lengths[slice]) / (timed_tokens(shape) * parts);
}

double UniformCost::scaled(const std::vector<double>& times, int stage, const MicrobatchShape& shape, int slice) const {
  if (times.size() > 1) {
    return times[slice] * weight(stage) * (static_cast<double>(shape.tokens()) / timed_tokens(shape));
  }
  const auto tokens = static_cast<double>(shape.slice_lengths[slice]);
  // One division, so that exact quotients stay exact.
  return times[0] * weight(stage) * tokens / (timed_tokens(shape) * num_chunks_);
}

double UniformCost::compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const {
  if (!times_.stages.empty()) return measured(kind, stage, shape, slice);
  if (of_vocabulary(kind)) {
    const std::optional<double>& pass = kind == OpKind::S ? times_.vocabulary : times_.vocabulary_gradient;
    return pass.value_or(times_.forward[0]) * (static_cast<double>(shape.tokens()) / timed_tokens(shape));
  }
  switch (kind) {
    case OpKind::F: return scaled(times_.forward, stage, shape, slice);
    case OpKind::I: return scaled(times_.input_gradient, stage, shape, slice);
    case OpKind::W: return scaled(times_.weight_gradient, stage, shape, slice);
    case OpKind::B:
      if (times_.input_gradient.size() == 1 && times_.weight_gradient.size() == 1) {
        return scaled({times_.input_gradient[0] + times_.weight_gradient[0]}, stage, shape, slice);
      }
      return scaled(times_.input_gradient, stage, shape, slice) + scaled(times_.weight_gradient, stage, shape, slice);
    default: return 0;
  }
}

double UniformCost::joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                            int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const {
  if (!times_.joint || backward != OpKind::B) {
    return CostModel::joint_s(forward_stage, forward_shape, forward_slice, backward, backward_stage, backward_shape,
                              backward_slice);
  }
  // Unequal stages or slices in one block: the mean of their scaled times.
  const std::vector<double> joint = {*times_.joint};
  return (scaled(joint, forward_stage, forward_shape, forward_slice) +
          scaled(joint, backward_stage, backward_shape, backward_slice)) /
         2;
}

TransferTime UniformCost::transfer(int /*from*/, int /*to*/, std::int64_t /*bytes*/) const {
  return {.occupied_s = 0, .latency_s = times_.hop.value_or(0)};
}

}  // namespace sluice::model
