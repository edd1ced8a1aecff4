#include "sim/goodput/random_time.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <numbers>
#include <vector>

#include "model/errors.h"

namespace sluice::sim {
namespace {

std::uint64_t splitmix(std::uint64_t& state) {
  std::uint64_t mixed = state += 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
  return mixed ^ (mixed >> 31U);
}

[[noreturn]] void fail_time(const std::string& what, const char* rule, std::string_view text) {
  throw InputError(fmt::format("{}: expected {}, got {:?}", what, rule, text));
}

double parse_plain(std::string_view& rest, const std::string& what, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc() || !(value >= 0 && value <= 1e15)) {
    fail_time(what, "a time such as 300, 10min, 3.1h or 54d, or exp:, uniform:, lognormal: or weibull: with times",
              text);
  }
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return value;
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t colon = text.find(':'); colon != std::string_view::npos; colon = text.find(':')) {
    parts.push_back(text.substr(0, colon));
    text.remove_prefix(colon + 1);
  }
  parts.push_back(text);
  return parts;
}

RandomTime lognormal_time(double median, double mean, const std::string& what, std::string_view text) {
  if (median <= 0 || mean < median) fail_time(what, "a median above 0 and a mean of at least the median", text);
  return {RandomTime::Kind::lognormal, mean, std::sqrt(2 * std::log(mean / median))};
}

RandomTime weibull_time(double mean, std::string_view shape, const std::string& what, std::string_view text) {
  std::string_view rest = shape;
  const double k = parse_plain(rest, what, text);
  if (!rest.empty() || k < 0.1 || k > 10) fail_time(what, "a Weibull exponent from 0.1 to 10", text);
  return {RandomTime::Kind::weibull, mean, k};
}

}  // namespace

RandomStream::RandomStream(std::uint64_t seed, std::uint64_t trial, std::uint64_t purpose) {
  std::uint64_t mixed = seed;
  mixed = splitmix(mixed) ^ trial;
  mixed = splitmix(mixed) ^ purpose;
  for (std::uint64_t& word : state_) word = splitmix(mixed);
}

double RandomStream::normal() {
  const double radius = std::sqrt(2 * exponential());
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

double RandomTime::weibull_scale() const { return mean_s / std::tgamma(1 + 1 / shape); }

double RandomTime::draw(RandomStream& random) const {
  switch (kind) {
    case Kind::fixed: break;
    case Kind::exponential: return mean_s * random.exponential();
    case Kind::uniform: return mean_s + shape * (2 * random.uniform() - 1);
    case Kind::lognormal: return mean_s * std::exp(shape * random.normal() - shape * shape / 2);
    case Kind::weibull: return weibull_scale() * std::pow(random.exponential(), 1 / shape);
  }
  return mean_s;
}

RandomTime RandomTime::scaled(double factor) const {
  return {kind, mean_s * factor, kind == Kind::uniform ? shape * factor : shape};
}

double parse_seconds(std::string_view text, const std::string& what) {
  std::string_view rest = text;
  const double value = parse_plain(rest, what, text);
  constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},   {"ms", 1e-3}, {"s", 1},    {"min", 60},
                                                            {"m", 60}, {"h", 3600},  {"d", 86400}};
  for (const auto& [unit, seconds] : kUnits) {
    if (rest == unit) return value * seconds;
  }
  fail_time(what, "a time in s, min, h or d", text);
}

RandomTime parse_random_time(std::string_view text, const std::string& what) {
  const std::vector<std::string_view> parts = parts_of(text);
  if (parts.size() == 1) return {RandomTime::Kind::fixed, parse_seconds(text, what), 0};
  const double first = parse_seconds(parts[1], what);
  if (parts.size() == 2 && parts[0] == "exp") return {RandomTime::Kind::exponential, first, 0};
  if (parts.size() != 3) fail_time(what, "exp:MEAN, uniform:LOW:HIGH, lognormal:MEDIAN:MEAN or weibull:MEAN:K", text);
  if (parts[0] == "weibull") return weibull_time(first, parts[2], what, text);
  const double second = parse_seconds(parts[2], what);
  if (parts[0] == "lognormal") return lognormal_time(first, second, what, text);
  if (parts[0] != "uniform" || second < first) fail_time(what, "uniform:LOW:HIGH with LOW at most HIGH", text);
  return {RandomTime::Kind::uniform, (first + second) / 2, (second - first) / 2};
}

}  // namespace sluice::sim
