#include "model/weave/weave.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "model/errors.h"
#include "model/input/nearest.h"

namespace sluice::model {
namespace {

struct NamedWeave {
  std::string_view name;
  std::string_view order;
};
// DeepSeek-V3 (arXiv:2412.19437), figure 4, and its published trace; Megatron-LM,
// megatron/core/models/common/model_chunk_schedule_plan.py, TransformerLayerSchedulePlan.run.
constexpr std::array<NamedWeave, 2> kWeaves = {{
    {"dualpipe",
     "combine(B) attention(F) experts(B) dispatch(F) dispatch(B) experts(W) experts(F) attention(B) attention(W) "
     "combine(F)"},
    {"whole-backward", "combine(B) attention(F) experts(B) dispatch(F) dispatch(B) experts(F) combine(F) attention(B)"},
}};

// The part of the same pass whose result a part needs: the one before it in the order of the data.
LayerPart previous(const PassPart& part) {
  const auto index = static_cast<std::size_t>(part.part);
  return static_cast<LayerPart>(part.pass == OpKind::F ? index - 1 : index + 1);
}
bool is_first(const PassPart& part) {
  return part.part == (part.pass == OpKind::F ? LayerPart::attention : LayerPart::combine);
}

void check_order(const std::vector<PassPart>& order, std::string_view place) {
  const auto position = [&](LayerPart part, OpKind pass) {
    return std::find(order.begin(), order.end(), PassPart{part, pass});
  };
  const auto require_before = [&](PassPart first, PassPart second) {
    if (std::find(order.begin(), order.end(), first) > std::find(order.begin(), order.end(), second)) {
      throw InputError(
          fmt::format("{}: {} needs {}, which must precede it", place, to_string(second), to_string(first)));
    }
  };
  for (auto part = order.begin(); part != order.end(); ++part) {
    if (std::find(part + 1, order.end(), *part) != order.end()) {
      throw InputError(fmt::format("{}: {} occurs twice", place, to_string(*part)));
    }
    if (part->pass == OpKind::W && communicates(part->part)) {
      throw InputError(
          fmt::format("{}: {}: only attention and experts have weight gradients", place, to_string(*part)));
    }
  }
  const auto has = [&](LayerPart part, OpKind pass) { return position(part, pass) != order.end(); };
  for (std::size_t i = 0; i < kNumLayerParts; ++i) {
    const auto part = static_cast<LayerPart>(i);
    for (const OpKind pass : {OpKind::F, OpKind::B}) {
      if (!has(part, pass)) throw InputError(fmt::format("{}: {} is missing", place, to_string({part, pass})));
      if (!is_first({part, pass})) require_before({previous({part, pass}), pass}, {part, pass});
    }
  }
  if (has(LayerPart::attention, OpKind::W) != has(LayerPart::experts, OpKind::W)) {
    throw InputError(fmt::format("{}: expected the W of both attention and experts, or of neither", place));
  }
  for (const LayerPart part : {LayerPart::attention, LayerPart::experts}) {
    if (has(part, OpKind::W)) require_before({part, OpKind::B}, {part, OpKind::W});
  }
}

std::vector<PassPart> parse_order(std::string_view text, std::string_view place) {
  std::vector<PassPart> order;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    const std::optional<PassPart> part = parse_part(word);
    if (!part) {
      throw InputError(
          fmt::format("{}: expected a part such as \"dispatch(F)\", got \"{}\": the parts are attention, "
                      "dispatch, experts and combine, and the passes F, B and W",
                      place, word));
    }
    order.push_back(*part);
  }
  check_order(order, place);
  return order;
}

// Adds every order of `rest` that respects their needs after `order` to `found`, by the orders of its lanes.
void add_orders(std::vector<PassPart>& order, const std::vector<PassPart>& rest, std::map<std::string, Weave>& found) {
  if (rest.empty()) {
    std::array<std::string, 2> lanes;
    std::vector<std::string> words;
    for (const PassPart& part : order) {
      words.push_back(to_string(part));
      lanes[communicates(part.part) ? 1 : 0] += words.back();
    }
    found.try_emplace(lanes[0] + lanes[1], Weave{fmt::format("{}", fmt::join(words, " ")), order});
    return;
  }
  for (const PassPart& next : rest) {
    const auto missing = [&](const PassPart& need) { return std::find(rest.begin(), rest.end(), need) != rest.end(); };
    const bool blocked = next.pass == OpKind::W ? missing({next.part, OpKind::B})
                                                : !is_first(next) && missing({previous(next), next.pass});
    if (blocked) continue;
    std::vector<PassPart> others;
    std::copy_if(rest.begin(), rest.end(), std::back_inserter(others),
                 [&](const PassPart& part) { return part != next; });
    order.push_back(next);
    add_orders(order, others, found);
    order.pop_back();
  }
}

// Two lanes that run lists of parts in order, with speeds that depend on whether both run.
class TwoLanes {
 public:
  // Adds a part after those of its lane and of the host, which launches it in `issue` seconds. `need` is the index of
  // the part whose result it needs, `awaited` of one for which the host waits before it launches this (-1: none).
  int add(const PassPart& part, int layer, double seconds, double delay, int need, double issue, int awaited) {
    const int index = static_cast<int>(parts_.size());
    parts_.push_back({.part = part, .layer = layer});
    work_.push_back(seconds);
    speeds_.push_back(delay > 0 ? seconds / (seconds + delay) : 1);
    needs_.push_back(need);
    issues_.push_back(issue);
    awaited_.push_back(awaited);
    lists_[communicates(part.part) ? 1 : 0].push_back(index);
    return index;
  }

  WovenBlock run() {
    done_.assign(parts_.size(), false);
    const int count = static_cast<int>(parts_.size());
    std::array<int, 2> running = {-1, -1};
    std::array<std::size_t, 2> next = {0, 0};
    int issuing = 0;  // the part that the host launches
    double now = 0;
    int last_end = -1;
    WovenBlock block;
    const auto busy = [&](std::size_t lane) { return running[lane] >= 0 && work_[running[lane]] > 0; };
    while (true) {
      // Parts without work end when they start, so that starting one may allow another to start.
      for (bool changed = true; changed;) {
        changed = false;
        while (issuing < count && issues_[issuing] <= 0 && done(awaited_[issuing])) {
          ++issuing;
          changed = true;
        }
        for (const std::size_t lane : {std::size_t{0}, std::size_t{1}}) {
          if (running[lane] >= 0) {
            if (busy(lane) || running[lane] >= issuing) continue;
            finish(running[lane], now);
            running[lane] = -1;
            changed = true;
          }
          if (next[lane] == lists_[lane].size()) continue;
          const int index = lists_[lane][next[lane]];
          if (!done(needs_[index]) || !done(awaited_[index]) || index > issuing) continue;
          start(index, now, last_end);
          ++next[lane];
          running[lane] = index;
          changed = true;
        }
      }
      const bool both = busy(0) && busy(1);
      const auto speed = [&](std::size_t lane) { return both ? speeds_[running[lane]] : 1; };
      const bool issues = issuing < count && issues_[issuing] > 0 && done(awaited_[issuing]);
      double step = issues ? issues_[issuing] : -1;
      int ends = -1;
      for (const std::size_t lane : {std::size_t{0}, std::size_t{1}}) {
        if (!busy(lane)) continue;
        const double left = work_[running[lane]] / speed(lane);
        if (step < 0 || left < step) {
          step = left;
          ends = running[lane];
        }
      }
      if (step < 0) break;
      now += step;
      if (busy(1)) block.communication_s += step;
      if (busy(1) && !both) block.exposed_s += step;
      if (issues) issues_[issuing] = ends < 0 ? 0 : std::max(0.0, issues_[issuing] - step);
      std::array<double, 2> left = {};
      for (const std::size_t lane : {std::size_t{0}, std::size_t{1}}) {
        if (busy(lane) && running[lane] != ends) left[lane] = std::max(0.0, work_[running[lane]] - step * speed(lane));
      }
      for (const std::size_t lane : {std::size_t{0}, std::size_t{1}}) {
        if (running[lane] >= 0) work_[running[lane]] = left[lane];
      }
      if (ends >= 0) last_end = ends;
    }
    block.seconds = now;
    // Parts that take no time are left out; what waits for one waits for what that one waited for.
    std::vector<int> kept(parts_.size(), -1);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].end_s == parts_[i].start_s) continue;
      kept[i] = static_cast<int>(block.parts.size());
      block.parts.push_back(parts_[i]);
    }
    for (WovenPart& part : block.parts) part.after = part.after < 0 ? -1 : kept[part.after];
    return block;
  }

 private:
  bool done(int index) const { return index < 0 || done_[index]; }
  // A part that starts when another ends waited for that one.
  void start(int index, double now, int last_end) {
    parts_[index].start_s = now;
    parts_[index].after = now > 0 ? last_end : -1;
  }
  void finish(int index, double now) {
    parts_[index].end_s = now;
    done_[index] = true;
  }

  std::vector<WovenPart> parts_;
  std::vector<double> work_;    // seconds left, alone on the lane
  std::vector<double> speeds_;  // while both lanes run
  std::vector<int> needs_;      // by part: what it needs besides the order of its lane, or -1
  std::vector<double> issues_;  // seconds left of the host
  std::vector<int> awaited_;    // by part: for what the host waits before it launches it, or -1
  std::array<std::vector<int>, 2> lists_;
  std::vector<bool> done_;
};

}  // namespace

std::string to_string(const PassPart& part) { return fmt::format("{}({})", to_string(part.part), letter(part.pass)); }

std::optional<PassPart> parse_part(std::string_view word) {
  for (std::size_t i = 0; i < kNumLayerParts; ++i) {
    for (const OpKind pass : {OpKind::F, OpKind::B, OpKind::W}) {
      const PassPart part{static_cast<LayerPart>(i), pass};
      if (word == to_string(part)) return part;
    }
  }
  return std::nullopt;
}

bool Weave::has_weight_parts() const {
  return std::any_of(order.begin(), order.end(), [](const PassPart& part) { return part.pass == OpKind::W; });
}

const std::vector<std::string>& weave_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const NamedWeave& weave : kWeaves) all.emplace_back(weave.name);
    return all;
  }();
  return names;
}

const std::vector<Weave>& all_weaves() {
  static const std::vector<Weave> weaves = [] {
    std::map<std::string, Weave> found;
    std::vector<PassPart> order;
    add_orders(order, find_weave("dualpipe").order, found);
    std::vector<Weave> all;
    for (auto& [lanes, weave] : found) all.push_back(std::move(weave));
    return all;
  }();
  return weaves;
}

const Weave& fastest_weave(std::span<const LayerTimes> forward, std::span<const LayerTimes> backward) {
  const Weave* best = nullptr;
  double seconds = 0;
  for (const Weave& weave : all_weaves()) {
    const double each = weave_block(weave, forward, backward).seconds;
    if (best != nullptr && each >= seconds) continue;
    best = &weave;
    seconds = each;
  }
  return *best;
}

Weave find_weave(std::string_view text, std::string_view place) {
  static const std::vector<Weave> named = [] {
    std::vector<Weave> all;
    for (const NamedWeave& weave : kWeaves)
      all.push_back({std::string(weave.name), parse_order(weave.order, weave.name)});
    return all;
  }();
  const auto found = std::find_if(named.begin(), named.end(), [&](const Weave& weave) { return weave.name == text; });
  if (found != named.end()) return *found;
  if (text.find('(') == std::string_view::npos) {
    throw InputError(
        fmt::format("{}: expected {}, search, or a list of parts such as \"combine(B) attention(F) ...\", got "
                    "\"{}\"{}",
                    place, fmt::join(weave_names(), ", "), text, did_you_mean(std::string(text), weave_names())));
  }
  return {std::string(text), parse_order(text, place)};
}

const Weave& serial_weave() {
  static const Weave weave =
      find_weave("attention(F) dispatch(F) experts(F) combine(F) combine(B) experts(B) dispatch(B) attention(B)");
  return weave;
}

WovenBlock with_compute_around(WovenBlock block, double before, double after) {
  for (WovenPart& part : block.parts) {
    part.start_s += before;
    part.end_s += before;
  }
  block.seconds += before + after;
  block.outside_s = before + after;
  return block;
}

WovenBlock weave_block(const Weave& weave, std::span<const LayerTimes> forward, std::span<const LayerTimes> backward) {
  TwoLanes lanes;
  const bool weights_apart = weave.has_weight_parts();
  std::array<int, 2> last = {-1, -1};  // of F and of B: the part added last, whose result the next one needs
  int counted = -1;                    // the dispatch(F) whose end the host awaits before the next part
  for (std::size_t layer = 0; layer < std::max(forward.size(), backward.size()); ++layer) {
    std::array<int, kNumLayerParts> gradient = {-1, -1, -1, -1};  // by part: its B
    for (const PassPart& part : weave.order) {
      const bool is_forward = part.pass == OpKind::F;
      const std::span<const LayerTimes> layers = is_forward ? forward : backward;
      if (layer >= layers.size()) continue;
      const LayerTimes& times = layers[layer];
      double seconds = times.of(part.pass, part.part);
      double delay = times.delay(part.pass, part.part);
      double issue = times.issue(part.pass, part.part);
      if (part.pass == OpKind::B && !weights_apart) {
        issue += times.issue(OpKind::W, part.part);
        seconds += times.of(OpKind::W, part.part);
        delay += times.delay(OpKind::W, part.part);
      }
      const auto index = static_cast<std::size_t>(part.part);
      if (part.pass == OpKind::W) {
        lanes.add(part, static_cast<int>(layer), seconds, delay, gradient[index], issue, std::exchange(counted, -1));
        continue;
      }
      int& before = last[is_forward ? 0 : 1];
      const LayerTimes::Counts counts =
          is_forward && part.part == LayerPart::dispatch ? times.counts : LayerTimes::Counts::not_read;
      const int awaited = counts == LayerTimes::Counts::before_dispatch ? before : std::exchange(counted, -1);
      before = lanes.add(part, static_cast<int>(layer), seconds, delay, before, issue, awaited);
      if (counts == LayerTimes::Counts::after_dispatch) counted = before;
      if (!is_forward) gradient[index] = before;
    }
  }
  WovenBlock block = lanes.run();
  block.order = weave.order;
  return block;
}

}  // namespace sluice::model
