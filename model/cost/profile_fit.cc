#include "model/cost/profile_fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr std::array kFittedKinds = {OpKind::F, OpKind::B, OpKind::I, OpKind::W};
// The parts and kinds of a cost file.
constexpr double kMostBandwidth = 1e15;
constexpr double kDisturbed = 0.05;  // relative distance of a measured time from the regression that is worth a warning
constexpr double kImpossible = 1000;   // ratio to the regression that no disturbance explains
constexpr double kMostLatency_s = 10;  // of a link or an all-reduce in a cost table
constexpr double kMostFixed_s = 1e6;   // of a pass over a stage in a cost table
constexpr double kMostTerm = 1e6;
constexpr double kMostResidual = 1e9;
constexpr int kLeastHeldOutCells = 4;

struct Cell {
  std::int64_t tokens = 0;
  std::int64_t context = 0;
  double seconds = 0;
  int fold = -1;  // the fold in which it is held out; -1: none
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Position of `value` in a sorted set.
template <typename T>
int rank_in(const std::set<T>& values, const T& value) {
  return static_cast<int>(std::distance(values.begin(), values.find(value)));
}

// By context, then tokens. Cells with context are held out by a Latin square: no length or context is ever held out
// completely if there are as many of them as folds.
std::vector<Cell> cells_of(const std::vector<ProfileSample>& samples, int folds) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<double>> grouped;
  std::set<std::int64_t> lengths, contexts;
  for (const ProfileSample& sample : samples) {
    grouped[{sample.context, sample.tokens}].push_back(sample.seconds);
    lengths.insert(sample.tokens);
    contexts.insert(sample.context);
  }
  std::vector<Cell> cells;
  for (const auto& [at, seconds] : grouped) {
    const int fold = at.first == 0 ? -1 : (rank_in(lengths, at.second) + 2 * rank_in(contexts, at.first)) % folds;
    cells.push_back({.tokens = at.second, .context = at.first, .seconds = median(seconds), .fold = fold});
  }
  return cells;
}

class ErrorSum {
 public:
  void add(double predicted, double measured) {
    const double error = std::abs(predicted / measured - 1);
    sum_ += error;
    error_.max = std::max(error_.max, error);
    ++error_.samples;
  }
  RelativeError error() const {
    RelativeError out = error_;
    out.mean = out.samples > 0 ? sum_ / out.samples : 0;
    return out;
  }

 private:
  double sum_ = 0;
  RelativeError error_;
};

// 1, i, j, i j.
std::array<double, 4> terms_of(const Cell& cell) {
  const auto i = static_cast<double>(cell.tokens);
  const auto j = static_cast<double>(cell.context);
  return {1, i, j, i * j};
}

// Coefficients of `terms` that minimize the squares of relative errors over the cells with context; empty if these do
// not determine them.
std::optional<std::array<double, 4>> fit_context(const TimeCurve& alone, const std::vector<Cell>& cells,
                                                 const std::vector<std::size_t>& terms) {
  const auto columns = std::ssize(terms);
  if (std::ssize(cells) < columns) return std::nullopt;
  Eigen::MatrixXd design(std::ssize(cells), columns);
  Eigen::VectorXd target(std::ssize(cells));
  for (Eigen::Index row = 0; row < design.rows(); ++row) {
    const Cell& cell = cells[row];
    const auto values = terms_of(cell);
    for (Eigen::Index column = 0; column < columns; ++column) {
      design(row, column) = values[terms[column]] / cell.seconds;
    }
    target(row) = (cell.seconds - alone.at(cell.tokens, 0)) / cell.seconds;
  }
  const Eigen::VectorXd scale = design.colwise().norm().cwiseInverse();
  Eigen::ColPivHouseholderQR<Eigen::MatrixXd> solver;
  solver.setThreshold(1e-8);
  solver.compute(design * scale.asDiagonal());
  if (solver.rank() < columns) return std::nullopt;
  const Eigen::VectorXd found = scale.asDiagonal() * solver.solve(target);
  std::array<double, 4> out{};
  for (Eigen::Index column = 0; column < columns; ++column) {
    out[terms[column]] = found(column);
  }
  return out;
}

// The terms to drop, in order, if there are too few cells or they are too similar.
const std::vector<std::vector<std::size_t>>& term_choices() {
  static const std::vector<std::vector<std::size_t>> kChoices = {{0, 1, 2, 3}, {0, 2, 3}, {0, 3}, {3}};
  return kChoices;
}

struct FittedCurve {
  TimeCurve curve;
  std::size_t terms = 0;   // number of terms of t_ctx that were fitted
  bool disturbed = false;  // more terms would give some cell a time of 0
};

// Precondition: some cell has no context.
FittedCurve fit_curve(const std::vector<Cell>& cells) {
  FittedCurve fit;
  std::vector<Cell> with_context;
  for (const Cell& cell : cells) {
    if (cell.context > 0) {
      with_context.push_back(cell);
    } else {
      fit.curve.tokens.push_back(cell.tokens);
      fit.curve.seconds.push_back(cell.seconds);
    }
  }
  for (const auto& terms : term_choices()) {
    const auto found = fit_context(fit.curve, with_context, terms);
    if (!found) continue;
    fit.curve.context = *found;
    fit.terms = terms.size();
    // Disturbed samples: t_ctx is so far below 0 that some slice would take no time.
    const bool positive = std::all_of(with_context.begin(), with_context.end(),
                                      [&](const Cell& cell) { return fit.curve.at(cell.tokens, cell.context) > 0; });
    if (positive) return fit;
    fit.disturbed = true;
  }
  fit.curve.context = {};
  fit.terms = 0;
  return fit;
}

std::string name_of_curve(PartKind part, OpKind kind) { return fmt::format("{} {}", to_string(part), letter(kind)); }

std::string describe_terms(std::size_t fitted) {
  switch (fitted) {
    case 0: return "expected samples with context: t_ctx is 0";
    case 1: return "too few tokens and contexts for four terms: only a3 is fitted, the others are 0";
    case 2: return "too few tokens and contexts for four terms: a1 and a2 are 0";
    default: return "too few tokens and contexts for four terms: a1 is 0";
  }
}

std::optional<RelativeError> held_out_error(const std::vector<Cell>& cells, int folds) {
  if (std::count_if(cells.begin(), cells.end(), [](const Cell& cell) { return cell.fold >= 0; }) < kLeastHeldOutCells) {
    return std::nullopt;
  }
  ErrorSum sum;
  for (int fold = 0; fold < folds; ++fold) {
    std::vector<Cell> kept, held;
    for (const Cell& cell : cells) (cell.fold == fold ? held : kept).push_back(cell);
    if (held.empty()) continue;
    const TimeCurve curve = fit_curve(kept).curve;
    for (const Cell& cell : held) sum.add(curve.at(cell.tokens, cell.context), cell.seconds);
  }
  return sum.error();
}

// Interpolates each length but the outer ones between its neighbors.
std::optional<RelativeError> error_between(const TimeCurve& curve) {
  if (curve.tokens.size() < 3) return std::nullopt;
  ErrorSum sum;
  for (std::size_t i = 1; i + 1 < curve.tokens.size(); ++i) {
    const TimeCurve beside{.tokens = {curve.tokens[i - 1], curve.tokens[i + 1]},
                           .seconds = {curve.seconds[i - 1], curve.seconds[i + 1]}};
    sum.add(beside.at(curve.tokens[i], 0), curve.seconds[i]);
  }
  return sum.error();
}

void fit_part_kind(const Profile& profile, PartKind part, OpKind kind, const std::vector<ProfileSample>& samples,
                   int folds, ProfileFit& out) {
  const std::vector<Cell> cells = cells_of(samples, folds);
  CurveFit fit{.part = part, .kind = kind};
  for (const Cell& cell : cells) ++(cell.context > 0 ? fit.with_context : fit.alone);
  if (fit.alone == 0) {
    throw InputError(fmt::format("{}: /samples: expected samples of {} without context, got none", profile.source,
                                 name_of_curve(part, kind)));
  }
  FittedCurve fitted = fit_curve(cells);
  for (const double term : fitted.curve.context) {
    if (!(std::abs(term) <= kMostTerm)) {
      throw InputError(fmt::format("{}: /samples: times of {} do not follow a0 + a1 i + a2 j + a3 i j: a term is {}",
                                   profile.source, name_of_curve(part, kind), term));
    }
  }
  // Only attention depends on the tokens before a slice.
  if (fitted.disturbed) {
    out.warnings.push_back(
        fmt::format("{}: slices with context take much less time than those without: was the machine busy? Of t_ctx, "
                    "{} terms are fitted",
                    name_of_curve(part, kind), fitted.terms));
  } else if (fitted.terms < 4 && (part == PartKind::layer || part == PartKind::recompute ||
                                  part == PartKind::attention || fit.with_context > 0)) {
    out.warnings.push_back(fmt::format("{}: {}", name_of_curve(part, kind), describe_terms(fitted.terms)));
  }
  ErrorSum sum;
  for (const Cell& cell : cells) sum.add(fitted.curve.at(cell.tokens, cell.context), cell.seconds);
  fit.in_sample = sum.error();
  fit.held_out = held_out_error(cells, folds);
  fit.between = error_between(fitted.curve);
  fitted.curve.residual = std::min(fit.in_sample.mean, kMostResidual);
  out.table.curve(part, kind) = std::move(fitted.curve);
  out.curves.push_back(fit);
}

// Messages of one link, by size.
using Messages = std::vector<std::pair<double, double>>;

LinkTime fit_messages(const Messages& messages) {
  // 1 = latency / t + inverse x bytes / t.
  Eigen::MatrixXd design(std::ssize(messages), 2);
  for (Eigen::Index row = 0; row < design.rows(); ++row) {
    const auto& [bytes, seconds] = messages[row];
    design(row, 0) = 1 / seconds;
    design(row, 1) = bytes / seconds;
  }
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(design.rows());
  Eigen::Vector2d found(0, 0);
  if (messages.size() > 1) {
    const Eigen::VectorXd scale = design.colwise().norm().cwiseInverse();
    found = scale.asDiagonal() * (design * scale.asDiagonal()).colPivHouseholderQr().solve(ones);
  }
  if (messages.size() == 1 || found(0) < 0) found = {0, design.col(1).dot(ones) / design.col(1).squaredNorm()};
  return {.latency_s = found(0), .bandwidth_bytes_per_s = found(1) > 0 ? 1 / found(1) : 0};
}

// Isotonic regression (pool adjacent violators): the non-decreasing times closest to the measured ones. A busy machine
// delays some sizes more than others.
Messages non_decreasing(const Messages& messages) {
  struct Pool {
    double sum;
    std::size_t count;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Pool> pools;
  for (const auto& [bytes, seconds] : messages) {
    pools.push_back({seconds, 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      pools[pools.size() - 2].sum += pools.back().sum;
      pools[pools.size() - 2].count += pools.back().count;
      pools.pop_back();
    }
  }
  Messages out = messages;
  std::size_t i = 0;
  for (const Pool& pool : pools) {
    for (std::size_t k = 0; k < pool.count; ++k) out[i++].second = pool.mean();
  }
  return out;
}

double at(const LinkTime& link, double bytes) { return link.latency_s + bytes / link.bandwidth_bytes_per_s; }

// Names of the fitted object for errors and warnings, "/transfers", "link 'ib'", "message", and the largest latency
// that a cost table accepts for it.
struct Named {
  const char* key;
  std::string name;
  const char* thing;
  double most_latency_s;
};

LinkTime fit_sizes(const Profile& profile, const Named& what, const Messages& messages, int folds,
                   std::vector<LinkTimeFit>& fits, ProfileFit& out) {
  const Messages smooth = non_decreasing(messages);
  LinkTime link = fit_messages(smooth);
  double furthest = 1;  // ratio of a measured time to its regression
  std::vector<std::string> disturbed;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const double ratio = messages[i].second / smooth[i].second;
    furthest = std::max({furthest, ratio, 1 / ratio});
    if (std::abs(ratio - 1) > kDisturbed) disturbed.push_back(fmt::format("{:.0f}", messages[i].first));
  }
  const bool grows = link.bandwidth_bytes_per_s >= 1 && link.bandwidth_bytes_per_s <= kMostBandwidth;
  if (furthest > kImpossible || (!grows && messages.size() == 1)) {
    throw InputError(fmt::format("{}: {}: {}: expected larger {}s to take longer, got times of {} size{} that do not",
                                 profile.source, what.key, what.name, what.thing, messages.size(),
                                 messages.size() == 1 ? "" : "s"));
  }
  if (!grows) link = {.latency_s = smooth.front().second, .bandwidth_bytes_per_s = kMostBandwidth};
  if (link.latency_s > what.most_latency_s) {
    throw InputError(fmt::format(
        "{}: {}: {}: the fit gives a latency of {:.3g} s: expected at most {:g} s; are the times in seconds?",
        profile.source, what.key, what.name, link.latency_s, what.most_latency_s));
  }
  if (!disturbed.empty() || !grows) {
    out.warnings.push_back(fmt::format(
        "{}: larger {}s do not always take longer (sizes {}){}: was the machine busy? Measure again if this matters",
        what.name, what.thing, fmt::join(disturbed, ", "), grows ? "" : "; only a latency was fitted"));
  }
  LinkTimeFit fit{.name = what.name, .sizes = static_cast<int>(messages.size())};
  if (messages.size() < 2)
    out.warnings.push_back(fmt::format("{}: one size of {}: the latency is 0", what.name, what.thing));
  ErrorSum inside, outside;
  for (const auto& [bytes, seconds] : messages) inside.add(at(link, bytes), seconds);
  fit.in_sample = inside.error();
  if (std::ssize(messages) >= kLeastHeldOutCells) {
    for (int fold = 0; fold < folds; ++fold) {
      Messages kept, held;
      for (std::size_t i = 0; i < messages.size(); ++i) {
        (static_cast<int>(i) % folds == fold ? held : kept).push_back(messages[i]);
      }
      const LinkTime other = fit_messages(non_decreasing(kept));
      if (other.bandwidth_bytes_per_s < 1) continue;
      for (const auto& [bytes, seconds] : held) outside.add(at(other, bytes), seconds);
    }
    fit.held_out = outside.error();
  }
  fits.push_back(std::move(fit));
  return link;
}

// Measured seconds by size.
using SecondsBySize = std::map<std::int64_t, std::vector<double>>;

Messages medians(const SecondsBySize& sizes) {
  Messages messages;
  for (const auto& [bytes, seconds] : sizes) messages.emplace_back(static_cast<double>(bytes), median(seconds));
  return messages;
}

void fit_links(const Profile& profile, int folds, ProfileFit& out) {
  std::map<std::string, SecondsBySize> grouped;
  for (const ProfileTransfer& transfer : profile.transfers) {
    grouped[transfer.link][transfer.bytes].push_back(transfer.seconds);
  }
  for (const auto& [name, sizes] : grouped) {
    LinkTime link = fit_sizes(profile, {"/transfers", fmt::format("link '{}'", name), "message", kMostLatency_s},
                              medians(sizes), folds, out.links, out);
    link.name = out.links.back().name = name;
    out.table.links.push_back(std::move(link));
  }
}

void fit_passes(const Profile& profile, int folds, ProfileFit& out) {
  std::map<PassKind, SecondsBySize> grouped;
  for (const ProfilePass& pass : profile.passes) grouped[pass.pass][pass.parameters].push_back(pass.seconds);
  for (const auto& [kind, sizes] : grouped) {
    const LinkTime line =
        fit_sizes(profile, {"/passes", to_string(kind), "stage", kMostFixed_s}, medians(sizes), folds, out.passes, out);
    out.table.pass(kind) = {.fixed_s = line.latency_s, .elements_per_s = line.bandwidth_bytes_per_s};
  }
}

void fit_sums(const Profile& profile, int folds, ProfileFit& out) {
  std::map<int, SecondsBySize> grouped;
  for (const ProfileSum& sum : profile.sums) grouped[sum.ranks][sum.bytes].push_back(sum.seconds);
  for (const auto& [ranks, sizes] : grouped) {
    const LinkTime line =
        fit_sizes(profile, {"/sums", fmt::format("all-reduce over {} ranks", ranks), "array", kMostLatency_s},
                  medians(sizes), folds, out.sums, out);
    out.table.sums.push_back(
        {.ranks = ranks, .latency_s = line.latency_s, .bandwidth_bytes_per_s = line.bandwidth_bytes_per_s});
  }
}

// Returns the expert-parallel size of the samples of layers with experts; 1 without any.
int expert_parallel_of(const Profile& profile) {
  std::set<int> sizes;
  for (const ProfileSample& sample : profile.samples) {
    if (is_of_expert_layer(sample.part)) sizes.insert(sample.expert_parallel);
  }
  if (sizes.size() > 1) {
    throw InputError(fmt::format("{}: /samples: a cost file is for one value of expert_parallel, got {}",
                                 profile.source, fmt::join(sizes, ", ")));
  }
  return sizes.empty() ? 1 : *sizes.begin();
}

// The single value of `of` among the samples, or the requested one.
int choose(const Profile& profile, const std::optional<int>& asked, const char* key, const char* flag, auto of) {
  std::set<int> values;
  for (const ProfileSample& sample : profile.samples) values.insert(of(sample));
  if (asked && !values.contains(*asked)) {
    throw InputError(fmt::format("{}: /samples: {}: expected one of {}, got {}", profile.source, flag,
                                 fmt::join(values, ", "), *asked));
  }
  if (!asked && values.size() > 1) {
    throw InputError(fmt::format("{}: /samples: a cost file is for one value of {}: choose one of {} with {}",
                                 profile.source, key, fmt::join(values, ", "), flag));
  }
  return asked ? *asked : *values.begin();
}

}  // namespace

ProfileFit fit_profile(const Profile& profile, const ProfileChoice& choice) {
  if (profile.samples.empty()) throw InputError(profile.source + ": /samples: expected at least one sample");
  if (choice.folds < 2) throw InputError(fmt::format("expected at least 2 folds, got {}", choice.folds));
  ProfileFit out;
  out.table.source = profile.source;
  out.table.machine = profile.machine;
  out.table.shape = profile.shape;
  out.table.waited_for_cores = profile.waited_for_cores;
  out.table.memory = profile.memory;
  out.table.sequences = choose(profile, choice.sequences, "sequences", "--sequences",
                               [](const ProfileSample& sample) { return sample.sequences; });
  out.table.tensor_parallel = choose(profile, choice.tensor_parallel, "tensor_parallel", "--tensor-parallel",
                                     [](const ProfileSample& sample) { return sample.tensor_parallel; });
  out.table.expert_parallel = expert_parallel_of(profile);
  std::map<std::pair<PartKind, OpKind>, std::vector<ProfileSample>> grouped;
  for (const ProfileSample& sample : profile.samples) {
    if (sample.sequences != out.table.sequences || sample.tensor_parallel != out.table.tensor_parallel) continue;
    grouped[{sample.part, sample.kind}].push_back(sample);
  }
  if (grouped.empty()) {
    throw InputError(fmt::format("{}: /samples: no sample has sequences {} and tensor_parallel {}", profile.source,
                                 out.table.sequences, out.table.tensor_parallel));
  }
  for (const PartKind part : kParts) {
    const auto has = [&](OpKind kind) { return grouped.contains({part, kind}); };
    if (std::none_of(kFittedKinds.begin(), kFittedKinds.end(), has)) continue;
    if (!has(OpKind::F)) {
      throw InputError(fmt::format("{}: /samples: part {} has no forward, F", profile.source, to_string(part)));
    }
    if (is_of_expert_layer(part)) {
      for (const OpKind kind : kinds_of(part)) {
        if (has(kind)) continue;
        throw InputError(
            fmt::format("{}: /samples: part {} has no samples of {}", profile.source, to_string(part), letter(kind)));
      }
    } else if (part != PartKind::recompute && !has(OpKind::B) && !(has(OpKind::I) && has(OpKind::W))) {
      throw InputError(
          fmt::format("{}: /samples: part {} has no backward, B or I and W", profile.source, to_string(part)));
    }
    for (const OpKind kind : kFittedKinds) {
      if (has(kind)) fit_part_kind(profile, part, kind, grouped.at({part, kind}), choice.folds, out);
    }
  }
  fit_links(profile, choice.folds, out);
  fit_passes(profile, choice.folds, out);
  fit_sums(profile, choice.folds, out);
  return out;
}

}  // namespace sluice::model
