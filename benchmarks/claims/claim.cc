#include "benchmarks/claims/claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "model/input/files.h"
#include "model/input/nearest.h"

namespace sluice::bench::claims {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kMost = 1e18;
constexpr std::size_t kMostCombinations = 10'000;

constexpr std::array<std::string_view, 18> kMeasureNames = {
    "speedup",   "speedups", "largest_speedup", "iteration",      "model_tflops",  "hardware_tflops",
    "petaflops", "memory",   "memory_ratio",    "fits",           "order",         "best_value",
    "days",      "op_ratio", "formula_ratio",   "transfer_ratio", "transfer_rate", "slices"};

bool takes_over(MeasureKind kind) {
  return kind == MeasureKind::speedup || kind == MeasureKind::speedups || kind == MeasureKind::largest_speedup ||
         kind == MeasureKind::memory_ratio || kind == MeasureKind::op_ratio || kind == MeasureKind::transfer_ratio;
}
bool takes_lists(MeasureKind kind) {
  return kind == MeasureKind::speedups || kind == MeasureKind::largest_speedup || kind == MeasureKind::order;
}

// Throws unless the array or object has an element.
void check_filled(const JsonReader& value, const char* what) {
  if (value.json().empty()) value.fail(fmt::format("expected at least one {}", what));
}

void check_object(const JsonReader& value) {
  if (!value.json().is_object()) value.fail("expected an object: keys of a scenario");
}

// Keys other than fastest_of and cut are keys of the scenario.
Run read_run(const std::string& name, JsonReader run) {
  check_object(run);
  Run out{.name = name, .changes = run.json()};
  out.changes.erase("fastest_of");
  out.changes.erase("cut");
  if (run.has("fastest_of")) {
    const JsonReader lists = run.at("fastest_of");
    check_filled(lists, "list of changes");
    std::size_t combinations = 1;
    for (const JsonReader& list : lists.elements()) {
      std::vector<Json>& choices = out.fastest_of.emplace_back();
      for (const JsonReader& choice : list.elements()) {
        check_object(choice);
        choices.push_back(choice.json());
      }
      check_filled(list, "change");
      combinations *= choices.size();
      if (combinations > kMostCombinations) {
        lists.fail(fmt::format("expected at most {} combinations", kMostCombinations));
      }
    }
  }
  if (run.has("cut")) {
    JsonReader cut = run.at("cut");
    out.cut_granularity = cut.integer("granularity", 1, 1 << 20);
    cut.finish();
  }
  return out;
}

template <typename T, typename Read>
std::vector<T> list_of(const JsonReader& value, const Read& read) {
  std::vector<T> out;
  for (const JsonReader& element : value.elements()) out.push_back(read(element));
  check_filled(value, "value");
  return out;
}

class ClaimReader {
 public:
  explicit ClaimReader(const std::string& path) : document_(parse_json(read_file(path), path)), root_(document_, path) {
    claim_.file = path;
  }

  Claim run() {
    if (root_.string("schema") != "sluice.claim/1") root_.at("schema").fail("expected \"sluice.claim/1\"");
    claim_.text = root_.string("claim");
    claim_.source = root_.string("source");
    claim_.assumed = root_.string_or("assumed", "");
    claim_.why = root_.string_or("why", "");
    JsonReader scenario = root_.at("scenario");
    check_object(scenario);
    claim_.scenario = scenario.json();
    JsonReader runs = root_.at("runs");
    check_object(runs);
    check_filled(runs, "run");
    for (const auto& [name, value] : runs.json().items()) claim_.runs.push_back(read_run(name, runs.at(name)));
    const JsonReader measures = root_.at("measures");
    for (JsonReader measure : measures.elements()) claim_.measures.push_back(read_measure(measure));
    check_filled(measures, "measure");
    root_.finish();
    return std::move(claim_);
  }

 private:
  std::size_t run_index(const JsonReader& value) const {
    const std::string name = value.string();
    std::vector<std::string> names;
    for (const Run& run : claim_.runs) names.push_back(run.name);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) value.fail("expected the name of a run", did_you_mean(name, names));
    return static_cast<std::size_t>(found - names.begin());
  }

  std::vector<std::size_t> read_runs(const JsonReader& value, bool list) const {
    if (!list) return {run_index(value)};
    return list_of<std::size_t>(value, [&](const JsonReader& element) { return run_index(element); });
  }

  Measure read_measure(JsonReader& measure) const {
    const std::vector<std::string> names(kMeasureNames.begin(), kMeasureNames.end());
    const std::string word = measure.at("measure").one_of(names);
    Measure out;
    out.kind = static_cast<MeasureKind>(std::find(names.begin(), names.end(), word) - names.begin());
    out.of = read_runs(measure.at("of"), takes_lists(out.kind));
    if (takes_over(out.kind)) {
      out.over = read_runs(measure.at("over"), takes_lists(out.kind));
      if (out.over.size() != out.of.size()) {
        measure.at("over").fail(fmt::format("expected {} runs, as in of", out.of.size()));
      }
    }
    out.name = measure.string_or("name", claim_.runs[out.of.front()].name);
    if (out.kind == MeasureKind::order) {
      out.by = measure.at("by").one_of(std::vector<std::string>{"time", "memory"});
    }
    if (out.kind == MeasureKind::best_value) out.key = read_pointer(measure.at("key"));
    if (out.kind == MeasureKind::days) out.tokens = measure.number("tokens", 1, kMost);
    if (out.kind == MeasureKind::op_ratio) {
      JsonReader op = measure.at("op");
      out.op.kind = op.at("kind").one_of(std::vector<std::string>{"F", "B"});
      out.op.stage = static_cast<int>(op.integer_or("stage", 0, 1 << 20, 0));
      out.op.slice = static_cast<int>(op.integer_or("slice", 0, 1 << 20, 0));
      op.finish();
    }
    if (measure.has("published")) out.published = read_published(out, measure.at("published"));
    measure.allow("published");
    measure.finish();
    return out;
  }

  static std::string read_pointer(const JsonReader& value) {
    std::string text = value.string();
    try {
      static_cast<void>(Json::json_pointer(text));
    } catch (const Json::exception&) {
      text.clear();
    }
    if (text.empty()) value.fail("expected a place in the scenario, such as /batch/micro_batch");
    return text;
  }

  Published read_published(const Measure& measure, JsonReader value) const {
    const auto number = [](const JsonReader& element) { return element.number(-kMost, kMost); };
    switch (measure.kind) {
      case MeasureKind::fits: return value.boolean();
      case MeasureKind::order: return read_order(measure, value);
      case MeasureKind::slices:
        return list_of<std::int64_t>(value, [](const JsonReader& one) { return one.integer(1, 1 << 30); });
      case MeasureKind::speedups: {
        if (value.json().is_array()) {
          auto numbers = list_of<double>(value, number);
          if (numbers.size() != measure.of.size()) {
            value.fail(fmt::format("expected {} numbers, as there are runs", measure.of.size()));
          }
          return numbers;
        }
        const std::vector<std::string> words = {"falls", "rises"};
        return value.one_of(words) == "falls" ? Trend::falls : Trend::rises;
      }
      default: break;
    }
    if (value.json().is_number()) return number(value);
    if (value.json().is_array()) {
      if (value.json().size() != 2) value.fail("expected two numbers: a range");
      const Range range{number(value.element(0)), number(value.element(1))};
      if (range.low > range.high) value.fail("expected the lower end of the range first");
      return range;
    }
    if (!value.json().is_object()) value.fail("expected a number, [low, high], {\"at_least\": x} or {\"at_most\": x}");
    Range range{-kInfinite, kInfinite};
    if (value.has("at_least") == value.has("at_most")) value.fail("expected either at_least or at_most");
    if (value.has("at_least")) {
      range.low = number(value.at("at_least"));
    } else {
      range.high = number(value.at("at_most"));
    }
    value.finish();
    return range;
  }

  std::vector<std::string> read_order(const Measure& measure, const JsonReader& value) const {
    auto names = list_of<std::string>(value, [&](const JsonReader& one) { return claim_.runs[run_index(one)].name; });
    std::vector<std::string> expected;
    for (const std::size_t run : measure.of) expected.push_back(claim_.runs[run].name);
    std::vector<std::string> sorted = names;
    std::sort(sorted.begin(), sorted.end());
    std::sort(expected.begin(), expected.end());
    if (sorted != expected) value.fail("expected each run of `of` once");
    return names;
  }

  Json document_;
  JsonReader root_;
  Claim claim_;
};

}  // namespace

std::string_view name_of(MeasureKind kind) { return kMeasureNames[static_cast<std::size_t>(kind)]; }

Claim read_claim(const std::string& path) { return ClaimReader(path).run(); }

}  // namespace sluice::bench::claims
