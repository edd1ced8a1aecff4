#include "benchmarks/claims/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "model/errors.h"

namespace sluice::bench::claims {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kSecondsOfADay = 86'400;
constexpr const char* kSame = "as published";
constexpr const char* kOther = "differs";

const char* unit_of(MeasureKind kind) {
  switch (kind) {
    case MeasureKind::iteration: return " s";
    case MeasureKind::model_tflops:
    case MeasureKind::hardware_tflops: return " TFLOP/s";
    case MeasureKind::petaflops: return " PFLOP/s";
    case MeasureKind::memory: return " GiB";
    case MeasureKind::days: return " days";
    case MeasureKind::transfer_rate: return " GB/s";
    default: return "";
  }
}

std::string number_text(double value, const char* unit) { return fmt::format("{:.3g}{}", value, unit); }

// Groups slices of equal length: "4 x 120, 64".
std::string slices_text(const std::vector<std::int64_t>& lengths) {
  std::string out;
  for (std::size_t i = 0; i < lengths.size();) {
    std::size_t end = i;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    if (!out.empty()) out += ", ";
    out += end - i > 1 ? fmt::format("{} x {}", end - i, lengths[i]) : fmt::format("{}", lengths[i]);
    i = end;
  }
  return out;
}

std::string list_text(const std::vector<double>& values) {
  std::string out;
  for (const double value : values) out += (out.empty() ? "" : ", ") + number_text(value, "");
  return out;
}

struct Text {
  const char* unit;

  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(double value) const { return number_text(value, unit); }
  std::string operator()(const Range& range) const {
    if (std::isinf(range.high)) return ">= " + number_text(range.low, unit);
    if (std::isinf(range.low)) return "<= " + number_text(range.high, unit);
    return number_text(range.low, "") + " to " + number_text(range.high, unit);
  }
  std::string operator()(bool value) const { return value ? "fits" : "does not fit"; }
  std::string operator()(Trend trend) const { return trend == Trend::falls ? "falls" : "rises"; }
  std::string operator()(const std::vector<std::string>& names) const {
    return fmt::format("{}", fmt::join(names, " < "));
  }
  std::string operator()(const std::vector<std::int64_t>& lengths) const { return slices_text(lengths); }
  std::string operator()(const std::vector<double>& values) const { return list_text(values); }
};

std::string percent(double ours, double published) {
  if (published == 0) return ours == 0 ? kSame : kOther;
  const double tenths = std::round(1000 * (ours / published - 1));
  return fmt::format("{:+.1f} %", tenths / 10 + 0.0);  // no -0.0
}

std::string number_difference(double ours, const Published& published) {
  if (const auto* number = std::get_if<double>(&published)) return percent(ours, *number);
  if (const auto* range = std::get_if<Range>(&published)) {
    if (ours >= range->low && ours <= range->high) return kSame;
    return percent(ours, ours < range->low ? range->low : range->high);
  }
  return "";
}

std::string list_difference(const std::vector<double>& ours, const Published& published) {
  if (const auto* numbers = std::get_if<std::vector<double>>(&published)) {
    std::string out;
    for (std::size_t i = 0; i < ours.size(); ++i) out += (i > 0 ? ", " : "") + percent(ours[i], (*numbers)[i]);
    return out;
  }
  const auto* trend = std::get_if<Trend>(&published);
  if (trend == nullptr) return "";
  const bool holds =
      *trend == Trend::falls ? std::is_sorted(ours.rbegin(), ours.rend()) : std::is_sorted(ours.begin(), ours.end());
  return holds ? kSame : kOther;
}

class Evaluation {
 public:
  Evaluation(const Claim& claim, const Measure& measure, const std::vector<RunResult>& runs)
      : claim_(claim), measure_(measure), runs_(runs), unit_(unit_of(measure.kind)) {}

  ResultRow run() {
    out_.name = measure_.name;
    out_.measure = name_of(measure_.kind);
    out_.published = std::visit(Text{unit_}, measure_.published);
    if (measure_.kind != MeasureKind::fits) {
      for (const auto* list : {&measure_.of, &measure_.over}) {
        for (const std::size_t run : *list) out_.fits = out_.fits && runs_[run].fits.value_or(true);
      }
    }
    switch (measure_.kind) {
      case MeasureKind::speedups: set_list(speedups()); break;
      case MeasureKind::fits: set_fits(); break;
      case MeasureKind::order: set_order(); break;
      case MeasureKind::best_value: set_best_value(); break;
      case MeasureKind::slices: set_slices(); break;
      default: set_number(number()); break;
    }
    return std::move(out_);
  }

 private:
  const RunResult& of() const { return runs_[measure_.of.front()]; }
  const RunResult& over() const { return runs_[measure_.over.front()]; }

  std::vector<double> speedups() const {
    std::vector<double> out;
    for (std::size_t i = 0; i < measure_.of.size(); ++i) {
      out.push_back(runs_[measure_.of[i]].rate / runs_[measure_.over[i]].rate);
    }
    return out;
  }

  // Returns `value` if it is known, otherwise throws InputError with its requirement.
  double known(double value, const char* needs) const {
    if (value > 0) return value;
    throw InputError(
        fmt::format("{}: measure \"{}\": {} requires {}", claim_.file, measure_.name, name_of(measure_.kind), needs));
  }

  double number() const {
    switch (measure_.kind) {
      case MeasureKind::speedup: return of().rate / over().rate;
      case MeasureKind::largest_speedup: {
        const std::vector<double> all = speedups();
        return *std::max_element(all.begin(), all.end());
      }
      case MeasureKind::iteration: return of().iteration_s;
      case MeasureKind::model_tflops: return known(of().model_tflops, "a model");
      case MeasureKind::hardware_tflops: return known(of().hardware_tflops, "a model");
      case MeasureKind::petaflops: return known(of().hardware_tflops, "a model") * of().devices / 1e3;
      case MeasureKind::memory: return known(static_cast<double>(of().peak_bytes), "a model") / kGiB;
      case MeasureKind::memory_ratio:
        return known(static_cast<double>(of().peak_bytes), "a model") /
               known(static_cast<double>(over().peak_bytes), "a model");
      case MeasureKind::days: return measure_.tokens / known(of().tokens_per_s, "a sequence length") / kSecondsOfADay;
      case MeasureKind::op_ratio:
        return op_seconds(claim_, measure_.of.front(), of(), measure_.op) /
               op_seconds(claim_, measure_.over.front(), over(), measure_.op);
      case MeasureKind::formula_ratio: return of().iteration_s / of().formula_s;
      case MeasureKind::transfer_ratio:
        return of().transfer_bytes / known(over().transfer_bytes, "a model and transfers");
      case MeasureKind::transfer_rate: return of().transfer_bytes / of().iteration_s / 1e9;
      default: return 0;
    }
  }

  void set_number(double value) {
    out_.value = value;
    out_.ours = number_text(value, unit_);
    out_.difference = number_difference(value, measure_.published);
  }

  void set_list(const std::vector<double>& values) {
    out_.value = values;
    out_.ours = list_text(values);
    out_.difference = list_difference(values, measure_.published);
  }

  void set_fits() {
    if (!of().fits) known(0, "a model and a cluster");
    out_.value = *of().fits;
    out_.ours = Text{""}(*of().fits);
    if (const auto* published = std::get_if<bool>(&measure_.published)) {
      out_.difference = *published == *of().fits ? kSame : kOther;
    }
  }

  void set_order() {
    std::vector<std::size_t> order = measure_.of;
    const auto value_of = [&](std::size_t run) {
      if (measure_.by == "time") return 1 / runs_[run].rate;
      return known(static_cast<double>(runs_[run].peak_bytes), "a model");
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return value_of(a) < value_of(b); });
    std::vector<std::string> names;
    for (const std::size_t run : order) names.push_back(claim_.runs[run].name);
    out_.value = names;
    out_.ours = Text{""}(names);
    if (const auto* published = std::get_if<std::vector<std::string>>(&measure_.published)) {
      out_.difference = *published == names ? kSame : kOther;
    }
  }

  void set_best_value() {
    const Json::json_pointer key(measure_.key);
    const Json& scenario = of().scenario;
    if (!scenario.contains(key)) {
      throw InputError(fmt::format("{}: measure \"{}\": the scenario of run \"{}\" has no {}", claim_.file,
                                   measure_.name, claim_.runs[measure_.of.front()].name, measure_.key));
    }
    out_.value = scenario.at(key);
    out_.ours = out_.value.dump();
    if (const auto* number = std::get_if<double>(&measure_.published)) {
      out_.difference = out_.value.is_number() && out_.value.get<double>() == *number ? kSame : kOther;
    } else if (out_.value.is_number()) {
      out_.difference = number_difference(out_.value.get<double>(), measure_.published);
    }
  }

  void set_slices() {
    out_.value = of().slices;
    out_.ours = slices_text(of().slices);
    if (const auto* published = std::get_if<std::vector<std::int64_t>>(&measure_.published)) {
      out_.difference = *published == of().slices ? kSame : kOther;
    }
  }

  const Claim& claim_;
  const Measure& measure_;
  const std::vector<RunResult>& runs_;
  const char* unit_;
  ResultRow out_;
};

}  // namespace

ResultRow evaluate(const Claim& claim, const Measure& measure, const std::vector<RunResult>& runs) {
  return Evaluation(claim, measure, runs).run();
}

}  // namespace sluice::bench::claims
