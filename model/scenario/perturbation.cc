#include "model/scenario/perturbation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"
#include "model/input/numbers.h"
#include "model/schedule/schedule.h"

namespace sluice::model {
namespace {

const std::vector<std::string> kJitters = {"none", "lognormal", "normal", "uniform"};
// Larger spreads are of little use: most normal draws are repeated, and no number of trials finds the mean of lognormal
// ones.
constexpr std::array<double, 4> kMostSpread = {0, 3, 1, 1};

}  // namespace

Jitter parse_jitter(const std::string& text, const std::string& place) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto known = std::find(kJitters.begin(), kJitters.end(), name);
  const bool none = name == "none";
  if (known == kJitters.end() || none != (colon == std::string::npos)) {
    throw InputError(fmt::format("{}: expected lognormal:S, normal:S, uniform:S or none, got '{}'{}", place, text,
                                 known == kJitters.end() ? did_you_mean(name, kJitters) : ""));
  }
  Jitter jitter{.kind = static_cast<Jitter::Kind>(known - kJitters.begin())};
  if (none) return jitter;
  const double most = kMostSpread[static_cast<std::size_t>(jitter.kind)];
  const std::string spread = text.substr(colon + 1);
  if (!parse_number(spread, jitter.spread) || !(jitter.spread >= 0 && jitter.spread <= most)) {
    throw InputError(
        fmt::format("{}: expected a spread from 0 to {} after '{}:', got '{}'", place, most, name, spread));
  }
  return jitter;
}

std::string to_string(const Jitter& jitter) {
  const std::string& name = kJitters[static_cast<std::size_t>(jitter.kind)];
  return jitter.kind == Jitter::Kind::none ? name : fmt::format("{}:{}", name, jitter.spread);
}

Perturbation perturbation_from_json(JsonReader& reader) {
  Perturbation out{.source = reader.source()};
  if (reader.has("slow_ranks")) {
    for (JsonReader& slow : reader.at("slow_ranks").elements()) {
      out.slow_ranks.push_back({.rank = static_cast<int>(slow.integer("rank", 0, kMaxRanks - 1)),
                                .factor = slow.number("factor", 1e-6, kMostSlowdown)});
      slow.finish();
    }
  }
  reader.allow("slow_ranks");
  if (reader.has("slow_links")) {
    for (JsonReader& slow : reader.at("slow_links").elements()) {
      JsonReader between = slow.at("between");
      const std::vector<JsonReader> ends = between.elements();
      if (ends.size() != 2) between.fail("expected the two ranks of a link");
      out.slow_links.push_back({.a = static_cast<int>(ends[0].integer(0, kMaxRanks - 1)),
                                .b = static_cast<int>(ends[1].integer(0, kMaxRanks - 1)),
                                .factor = slow.number("factor", 1e-6, kMostSlowdown)});
      slow.finish();
    }
  }
  reader.allow("slow_links");
  if (reader.has("jitter")) {
    const JsonReader jitter = reader.at("jitter");
    out.jitter = parse_jitter(jitter.string(), fmt::format("{}: {}", jitter.source(), jitter.pointer()));
  }
  reader.allow("jitter");
  const bool jitters = out.jitter.kind != Jitter::Kind::none;
  if (reader.has("trials") && !jitters) reader.at("trials").fail("requires jitter: without it all trials are the same");
  constexpr int kTrials = 1000;
  out.trials = static_cast<int>(reader.integer_or("trials", 1, kMostTrials, jitters ? kTrials : 0));
  out.seed = static_cast<std::uint64_t>(reader.integer_or("seed", 0, INT64_MAX, 1));
  return out;
}

}  // namespace sluice::model
