#include "sim/goodput/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string_view>

#include "model/cluster/catalogue.h"
#include "model/errors.h"
#include "model/input/csv.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"

namespace sluice::sim {
namespace {

constexpr std::string_view kFailureFolder = "failures/";

std::optional<RandomTime> time_or_none(JsonReader& reader, const std::string& key) {
  reader.allow(key);
  if (!reader.has(key)) return std::nullopt;
  const JsonReader member = reader.at(key);
  const std::string text = member.json().is_number() ? fmt::format("{}", member.number(0, 1e15)) : member.string();
  return parse_random_time(text, member.source() + ": " + member.pointer());
}

double gpu_hours_of(JsonReader& reader, double observed_gpu_hours) {
  reader.allow("gpu_hours");
  reader.allow("failures");
  if (reader.has("gpu_hours") == reader.has("failures")) reader.fail("expected either gpu_hours or failures");
  if (reader.has("gpu_hours")) return reader.number("gpu_hours", 1e-6, 1e15);
  if (observed_gpu_hours <= 0) reader.fail("expected /gpus and /hours of the file, during which failures were counted");
  return observed_gpu_hours / reader.number("failures", 1e-9, 1e12);
}

FailureKind kind_of(JsonReader& reader) {
  const std::vector<std::string> words(kFailureKinds.begin(), kFailureKinds.end());
  reader.allow("kind");
  if (!reader.has("kind")) return FailureKind::crash;
  const std::string word = reader.at("kind").one_of(words);
  return static_cast<FailureKind>(std::find(words.begin(), words.end(), word) - words.begin());
}

FailureComponent component_of(JsonReader reader, double observed_gpu_hours) {
  FailureComponent component;
  component.name = reader.string("name");
  component.kind = kind_of(reader);
  component.gpu_hours = gpu_hours_of(reader, observed_gpu_hours);
  component.domain_gpus = static_cast<int>(reader.integer_or("domain_gpus", 1, 1 << 20, 1));
  component.weibull_k = reader.number_or("weibull_k", 0.1, 10, 0);
  component.age_hours = reader.number_or("age_hours", 0, 1e6, 0);
  component.replaced = reader.boolean_or("replaced", component.kind != FailureKind::planned);
  component.detection = time_or_none(reader, "detection");
  component.diagnosis = time_or_none(reader, "diagnosis");
  component.repair = time_or_none(reader, "repair");
  component.duration = time_or_none(reader, "duration").value_or(RandomTime{});
  component.slowdown = reader.number_or("slowdown", 1, 1000, 1);
  component.bad_fraction = reader.number_or("bad_fraction", 0, 1, 0);
  component.bad_factor = reader.number_or("bad_factor", 1, 1e6, 1);
  component.source = reader.string_or("source", "");
  if (component.kind == FailureKind::slow && component.slowdown <= 1) reader.fail("expected a slowdown above 1");
  reader.finish();
  return component;
}

FailureModel model_of(const Json& json, const std::string& source) {
  JsonReader reader(json, source);
  if (reader.string("schema") != "sluice.failures/1") reader.fail("expected the schema sluice.failures/1");
  FailureModel model;
  model.name = reader.string("name");
  model.source = reader.string("source");
  const double observed = reader.number_or("gpus", 1, 1e8, 0) * reader.number_or("hours", 1e-3, 1e7, 0);
  for (const JsonReader& each : reader.at("components").elements()) {
    model.components.push_back(component_of(each, observed));
  }
  if (model.components.empty()) reader.at("components").fail("expected at least one component");
  reader.finish();
  return model;
}

int replicas_taken(const FailureSetting& setting, int domain_gpus) {
  const double nodes = std::ceil(static_cast<double>(domain_gpus) / setting.node_gpus);
  const double neighbors = setting.neighbor_replicas * nodes;
  const double whole = std::ceil(nodes * setting.node_gpus / setting.replica_gpus);
  return static_cast<int>(std::max({1.0, setting.neighbor_replicas > 1 ? neighbors : 1.0, whole}));
}

FailureCause cause_of(const FailureComponent& component, const FailureSetting& setting) {
  FailureCause cause;
  cause.name = component.name;
  cause.kind = component.kind;
  cause.units = std::max(1.0, std::floor(setting.gpus / component.domain_gpus));
  cause.between.kind = component.weibull_k > 0 ? RandomTime::Kind::weibull : RandomTime::Kind::exponential;
  cause.between.shape = component.weibull_k;
  cause.between.mean_s = cause.units * component.gpu_hours * 3600 / setting.gpus;
  cause.age_s = component.age_hours * 3600;
  const bool hangs = component.kind == FailureKind::hang;
  cause.detection = component.detection.value_or(hangs ? setting.hang_detection : setting.detection);
  cause.diagnosis = component.diagnosis.value_or(setting.diagnosis);
  cause.repair = component.repair.value_or(setting.repair);
  cause.duration = component.duration;
  cause.nodes = component.replaced ? (component.domain_gpus + setting.node_gpus - 1) / setting.node_gpus : 0;
  cause.replicas = replicas_taken(setting, component.domain_gpus);
  cause.slowdown = component.slowdown;
  cause.source = component.source;
  return cause;
}

// Splits off the bad units, so that the mean rate of all is unchanged.
void add_causes(std::vector<FailureCause>& causes, FailureCause cause, const FailureComponent& component) {
  const double bad = component.bad_fraction;
  const double mean = 1 + bad * (component.bad_factor - 1);
  if (bad <= 0 || component.bad_factor <= 1) {
    causes.push_back(std::move(cause));
    return;
  }
  FailureCause worse = cause;
  worse.name += " (bad)";
  worse.units = std::round(bad * cause.units);
  worse.between = cause.between.scaled(mean / component.bad_factor);
  cause.units -= worse.units;
  cause.between = cause.between.scaled(mean);
  causes.push_back(std::move(cause));
  causes.push_back(std::move(worse));
}

}  // namespace

constexpr double kNoFailure = std::numeric_limits<double>::infinity();

FailureTimes::FailureTimes(const std::vector<FailureCause>& causes, RandomStream random)
    : causes_(&causes), random_(random) {
  for (std::size_t i = 0; i < causes.size(); ++i) {
    const FailureCause& cause = causes[i];
    if (cause.failures_per_s() <= 0) continue;
    if (cause.between.kind == RandomTime::Kind::exponential) {
      rate_ += cause.failures_per_s();
      sums_.emplace_back(rate_, i);
    } else if (cause.between.kind == RandomTime::Kind::weibull) {
      const double aged = std::pow(cause.age_s / cause.between.weibull_scale(), cause.between.shape);
      cohorts_.push_back({i, cause.units, aged, 0});
      draw_first(cohorts_.back());
    } else {
      const auto units = static_cast<std::int64_t>(std::ceil(cause.units));
      for (std::int64_t unit = 0; unit < units; ++unit) renewals_.emplace(cause.between.draw(random_), i);
    }
  }
  for (std::size_t i = 0, guide = 0; guide < kGuides; ++guide) {
    while (i + 1 < sums_.size() && static_cast<double>(guide) / kGuides * rate_ > sums_[i].first) ++i;
    first_[guide] = i;
  }
  draw_exponential();
  find_next();
}

void FailureTimes::draw_exponential() {
  exponential_s_ = rate_ > 0 ? exponential_s_ + random_.exponential() / rate_ : kNoFailure;
}

void FailureTimes::draw_first(Cohort& cohort) {
  if (cohort.units < 1) {
    cohort.next_s = kNoFailure;
    return;
  }
  const FailureCause& cause = (*causes_)[cohort.cause];
  cohort.hazard += random_.exponential() / cohort.units;
  cohort.next_s = cause.between.weibull_scale() * std::pow(cohort.hazard, 1 / cause.between.shape) - cause.age_s;
}

void FailureTimes::find_next() {
  next_s_ = exponential_s_;
  if (!renewals_.empty()) next_s_ = std::min(next_s_, renewals_.top().first);
  for (const Cohort& cohort : cohorts_) next_s_ = std::min(next_s_, cohort.next_s);
}

bool FailureTimes::is_exponential(std::size_t cause) const {
  return (*causes_)[cause].between.kind == RandomTime::Kind::exponential;
}

std::size_t FailureTimes::take() {
  std::size_t cause = 0;
  if (next_s_ == exponential_s_) {
    const double at = random_.uniform() * rate_;
    std::size_t index = first_[std::min(kGuides - 1, static_cast<std::size_t>(at / rate_ * kGuides))];
    while (index + 1 < sums_.size() && at > sums_[index].first) ++index;
    cause = sums_[index].second;
    draw_exponential();
  } else {
    const auto first =
        std::find_if(cohorts_.begin(), cohorts_.end(), [&](const Cohort& cohort) { return cohort.next_s == next_s_; });
    if (first != cohorts_.end()) {
      cause = first->cause;
      first->units -= 1;
      draw_first(*first);
    } else {
      cause = renewals_.top().second;
      renewals_.pop();
    }
    renewals_.emplace(next_s_ + (*causes_)[cause].between.draw(random_), cause);
  }
  find_next();
  return cause;
}

double FailureModel::gpu_hours() const {
  double rate = 0;
  for (const FailureComponent& component : components) rate += 1 / component.gpu_hours;
  return 1 / rate;
}

std::vector<std::string> catalogue_failures() {
  std::vector<std::string> names;
  for (const CatalogueFile& file : catalogue_files()) {
    if (file.name.starts_with(kFailureFolder)) names.emplace_back(file.name.substr(kFailureFolder.size()));
  }
  return names;
}

FailureModel load_failures(const std::string& name_or_path) {
  for (const CatalogueFile& file : catalogue_files()) {
    if (file.name == std::string(kFailureFolder) + name_or_path) {
      return model_of(parse_json(file.text, name_or_path), name_or_path);
    }
  }
  std::error_code error;
  const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
  if (is_path || std::filesystem::exists(name_or_path, error)) {
    return model_of(parse_json(read_file(name_or_path), name_or_path), name_or_path);
  }
  const std::vector<std::string> names = catalogue_failures();
  throw InputError(fmt::format("--failures: expected a file or one of {}, got {:?}{}", fmt::join(names, ", "),
                               name_or_path, did_you_mean(name_or_path, names)));
}

FailureModel fit_failures(const std::string& path, double gpu_hours) {
  const CsvTable log = read_csv(path);
  std::map<std::string, int> counts;
  for (int row = 0; row < log.num_rows(); ++row) ++counts[log.text(row, "component")];
  if (counts.empty()) throw InputError(path + ": expected at least one failure");
  FailureModel model{.name = path,
                     .source = fmt::format("{} failures in {:.4g} GPU-hours", log.num_rows(), gpu_hours),
                     .components = {}};
  for (const auto& [name, count] : counts) {
    FailureComponent component;
    component.name = name;
    component.gpu_hours = gpu_hours / count;
    model.components.push_back(component);
  }
  return model;
}

std::vector<FailureCause> causes_of(const FailureModel& model, const FailureSetting& setting) {
  std::vector<FailureCause> causes;
  for (const FailureComponent& component : model.components) {
    add_causes(causes, cause_of(component, setting), component);
  }
  return causes;
}

}  // namespace sluice::sim
