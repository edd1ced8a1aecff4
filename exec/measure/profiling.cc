#include "exec/measure/profiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "exec/measure/link_bench.h"
#include "exec/measure/profile_memory.h"
#include "exec/plan/host_memory.h"
#include "exec/plan/run_plan.h"
#include "exec/run/core_wait.h"
#include "exec/run/token_source.h"
#include "exec/run/worker.h"
#include "exec/steady_clock.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

constexpr std::int64_t kLargeMessage = 1 << 20;
constexpr int kOverheadMicrobatches = 4;  // of the runs that measure the overhead of the executor
constexpr std::int64_t kMostOverheadVocabulary = 256;
constexpr int kOverheadWidth = 16;  // of their MLPs in place of experts, per tensor-parallel rank

// One measured point and its place in the profile.
struct Point {
  enum class What : std::uint8_t { op, pass, transfer, all_reduce };
  What what = What::op;
  ProfileSample sample;
  ProfilePass pass;
  ProfileTransfer transfer;
  ProfileSum all_reduce;
  std::vector<double> seconds;  // by round and repetition
  // Times of calls in which this worker waited for a core. Of exchanges all times are in `seconds`, and this is 1 where
  // it waited, else 0, because ranks of a group are compared by repetition.
  std::vector<double> disturbed;

  bool exchanges() const {
    return what == What::op && (sample.part == PartKind::dispatch || sample.part == PartKind::combine);
  }
};

// The times of all workers by point, and of exchanges those without waits.
struct GatheredTimes {
  std::vector<std::vector<double>> all;
  std::vector<std::vector<double>> without_waits;
};

constexpr std::size_t kFewestCalm = 3;  // times of a point, over all workers

double quantile(std::vector<double>& values, double q) {
  const auto at = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

// Returns the mean without the largest hundredth. Run times are sums of many ops, which medians do not add up to, while
// events that are rarer than once per run do not affect the median of several runs.
double typical(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  const auto kept = static_cast<std::ptrdiff_t>(values.size() - values.size() / 100);
  return std::accumulate(values.begin(), values.begin() + kept, 0.0) / static_cast<double>(kept);
}

// Runs of the executor with one small layer per rank, which measure its overhead per op at a slice length.
struct OverheadRun {
  std::unique_ptr<RunPlan> plan;
  std::unique_ptr<TokenSource> tokens;
  std::unique_ptr<Worker> worker;
  std::array<std::size_t, 4> points{};  // by OpKind
  std::int64_t ops = 0;
  std::int64_t runs = 0;
};

}  // namespace

struct Profiler::Impl {
  Impl(const ProfilingSpec& given, Transport& to, const WorkerDevice& on);

  void round();
  Profile gather();
  GatheredTimes gather_times();

  void check_memory_for(const PartBenchSpec& bench);
  PartBenchSpec bench_spec() const;
  void make_points();
  void add_expert_points(const std::set<std::int64_t>& lengths);
  void add_overhead_run(std::int64_t tokens);
  std::size_t add(Point point) {
    points.push_back(std::move(point));
    return points.size() - 1;
  }
  void note(std::size_t point, double seconds, bool calm = true) {
    if (rounds <= 0) return;
    Point& at = points[point];
    const bool apart = !calm && !at.exchanges();
    (apart ? at.disturbed : at.seconds).push_back(std::max(seconds, 1e-9));
    if (at.exchanges()) at.disturbed.push_back(calm ? 0 : 1);
  }
  // Calls `measure` and returns whether it had a core all the time.
  template <typename Measure>
  bool calmly(const Measure& measure) const {
    const CoreWait before = meter.read();
    const std::int64_t began = now_ns();
    measure();
    return spec.kernels != nullptr || is_calm(meter.read() - before, now_ns() - began, spec.most_wait);
  }
  std::size_t op_point(PartKind part, OpKind kind, const ProfileCell& cell) const;
  void measure_ops();
  void measure_expert_layers(const ProfileCell& cell);
  void measure_pass(PartKind part, PassKind pass);
  void measure_overhead();
  void measure_links();

  ProfilingSpec spec;
  CoreWaitMeter meter;
  bool disturbed = false;
  Transport& transport;
  WorkerDevice device;
  std::vector<int> group_sizes;
  std::unique_ptr<LinkBench> links;
  std::unique_ptr<PartBench> bench;
  struct Call {
    PartKind part = PartKind::layer;
    ProfileCell cell;
    std::optional<PassKind> pass;  // unset: the ops of the cell
  };
  std::vector<Call> calls;    // of the bench, in one round
  std::vector<Point> points;  // identical on every worker
  std::vector<OverheadRun> overhead_runs;
  std::mt19937_64 random;  // identical on every worker
  int rounds = -1;         // that count
};

Profiler::Impl::Impl(const ProfilingSpec& given, Transport& to, const WorkerDevice& on)
    : spec(given), transport(to), device(on), random(given.seed) {
  const int workers = transport.size();
  if (workers % spec.tensor_parallel != 0) {
    throw InputError(fmt::format("expected a tensor-parallel size that divides the {} workers, got {}", workers,
                                 spec.tensor_parallel));
  }
  const bool has_experts = spec.model.has_experts();
  const int in_stage = spec.tensor_parallel * spec.data_parallel;
  if (has_experts && (workers % in_stage != 0 || in_stage % spec.expert_parallel != 0)) {
    throw InputError(fmt::format("expected an expert-parallel size that divides the {} ranks of a stage, got {}",
                                 in_stage, spec.expert_parallel));
  }
  if (has_experts && spec.recompute) {
    throw InputError(fmt::format("{}: profiles do not support recomputation of layers with experts", spec.model.name));
  }
  // Sizes of the groups: two ranks for a tied embedding or a replicated stage, the replicas for gradients, all other
  // ranks for the norm. With experts also the ranks that have the same experts, and the norm is over all ranks.
  std::set<int> sizes = {2, spec.data_parallel, workers / spec.data_parallel};
  if (has_experts) sizes.insert({in_stage / spec.expert_parallel, workers});
  for (const int size : sizes) {
    if (size >= 2 && workers % size == 0) group_sizes.push_back(size);
  }
  const PartBenchSpec of_bench = bench_spec();
  check_memory_for(of_bench);
  if (device.device != nullptr) check_device_memory(PartBench::bytes_of(of_bench), device);
  bench = std::make_unique<PartBench>(of_bench, device.device);
  make_points();
  if (has_experts) bench->load_inputs(links->groups());
}

PartBenchSpec Profiler::Impl::bench_spec() const {
  const int me = transport.rank();
  PartBenchSpec out{.model = spec.model,
                    .precision = spec.precision,
                    .kernels = spec.kernels,
                    .recompute = spec.recompute,
                    .attention = spec.attention,
                    .sequences = spec.sequences,
                    .sequence_length = spec.sequence_length,
                    .tensor_parallel = spec.tensor_parallel,
                    .tensor_rank = me % spec.tensor_parallel,
                    .layers = spec.layers,
                    .cells = spec.cells,
                    .seed = spec.seed};
  if (!spec.model.has_experts()) return out;
  const RunLayout layout{.data = spec.data_parallel, .tensor = spec.tensor_parallel};
  const int last = spec.model.layers - std::min(spec.layers, spec.model.layers - spec.model.dense_layers());
  out.data_rank = layout.data_rank(me);
  out.expert_parallel = spec.expert_parallel;
  out.first_expert_layer = std::min(spec.model.dense_layers() + layout.pipeline_rank(me) * spec.layers, last);
  out.tokens = spec.tokens;
  out.first_sequence = std::int64_t{out.data_rank} * spec.microbatches * spec.sequences;
  out.microbatches = spec.microbatches;
  return out;
}

void Profiler::Impl::check_memory_for(const PartBenchSpec& of_bench) {
  if (spec.kernels != nullptr) return;  // the device reports it
  const double needed = static_cast<double>(PartBench::bytes_of(of_bench)) * transport.size();
  const auto available = static_cast<double>(available_memory_bytes());
  if (needed <= available) return;
  throw DoesNotFit(fmt::format("a profile needs {:.2f} GiB for {} workers, but {:.2f} GiB are available", needed / kGiB,
                               transport.size(), available / kGiB));
}

void Profiler::Impl::make_points() {
  std::set<std::int64_t> lengths;
  for (const ProfileCell& cell : spec.cells) lengths.insert(cell.tokens);
  const auto add_ops = [&](PartKind part, const ProfileCell& cell) {
    for (const OpKind kind : {OpKind::F, OpKind::B, OpKind::I, OpKind::W}) {
      if (part == PartKind::recompute && kind != OpKind::F) continue;
      add({.what = Point::What::op,
           .sample = {.part = part,
                      .kind = kind,
                      .tokens = cell.tokens,
                      .context = cell.context,
                      .sequences = spec.sequences,
                      .tensor_parallel = spec.tensor_parallel}});
    }
  };
  const bool has_dense = spec.model.dense_layers() > 0;
  for (const ProfileCell& cell : spec.cells) {
    if (!has_dense) break;
    add_ops(PartKind::layer, cell);
    if (spec.recompute) add_ops(PartKind::recompute, cell);
    calls.push_back({.part = PartKind::layer, .cell = cell});
  }
  if (spec.model.has_experts()) add_expert_points(lengths);
  for (const PartKind part : {PartKind::embedding, PartKind::head}) {
    for (const std::int64_t tokens : lengths) {
      add_ops(part, {.tokens = tokens});
      calls.push_back({.part = part, .cell = {.tokens = tokens}});
    }
  }
  for (const std::int64_t tokens : lengths) {
    add_ops(PartKind::stage, {.tokens = tokens});
    add_overhead_run(tokens);
  }
  for (const PassKind pass : kPasses) {
    for (const PartKind part : model_parts(spec.model)) {
      add({.what = Point::What::pass, .pass = {.pass = pass, .parameters = bench->parameters(part)}});
      calls.push_back({.part = part, .pass = pass});
    }
  }
  const std::int64_t most = bench->boundary_bytes(spec.sequence_length);
  // Large enough to take longer than a small one in spite of other work on the machine.
  const std::int64_t largest = std::max(4 * most, kLargeMessage);
  if (transport.size() > 1) {
    for (const std::int64_t bytes : std::set<std::int64_t>{64, most / 4, most, largest}) {
      if (bytes > 0) add({.what = Point::What::transfer, .transfer = {.link = spec.link, .bytes = bytes}});
    }
  }
  const std::int64_t parameter_bytes =
      std::max(kLargeMessage, bench->parameters(has_dense ? PartKind::layer : PartKind::experts) *
                                  (spec.precision == Precision::float64 ? 8 : 4));
  for (const int size : group_sizes) {
    for (const std::int64_t bytes : std::set<std::int64_t>{64, parameter_bytes / 8, parameter_bytes}) {
      add({.what = Point::What::all_reduce, .all_reduce = {.ranks = size, .bytes = bytes / 8 * 8}});
    }
  }
  links = make_link_bench({.tensor_parallel = spec.tensor_parallel,
                           .expert_parallel = spec.expert_parallel,
                           .experts = spec.model.experts.count,
                           .group_sizes = group_sizes,
                           .most_bytes = std::max(largest, parameter_bytes)},
                          transport, device);
}

// Only attention depends on the tokens before a slice.
void Profiler::Impl::add_expert_points(const std::set<std::int64_t>& lengths) {
  const auto add_part = [&](PartKind part, const ProfileCell& cell) {
    for (const OpKind kind : kinds_of(part)) {
      add({.what = Point::What::op,
           .sample = {.part = part,
                      .kind = kind,
                      .tokens = cell.tokens,
                      .context = cell.context,
                      .sequences = spec.sequences,
                      .tensor_parallel = spec.tensor_parallel,
                      .expert_parallel = spec.expert_parallel}});
    }
  };
  for (const ProfileCell& cell : spec.cells) {
    add_part(PartKind::attention, cell);
    calls.push_back({.part = PartKind::experts, .cell = cell});
  }
  for (const PartKind part : {PartKind::dispatch, PartKind::experts, PartKind::combine}) {
    for (const std::int64_t tokens : lengths) add_part(part, {.tokens = tokens});
  }
}

std::size_t Profiler::Impl::op_point(PartKind part, OpKind kind, const ProfileCell& cell) const {
  const auto found = std::find_if(points.begin(), points.end(), [&](const Point& point) {
    return point.what == Point::What::op && point.sample.part == part && point.sample.kind == kind &&
           point.sample.tokens == cell.tokens && point.sample.context == cell.context;
  });
  return static_cast<std::size_t>(found - points.begin());
}

void Profiler::Impl::add_overhead_run(std::int64_t tokens) {
  RunSpec run{.model = spec.model, .precision = spec.precision, .kernels = spec.kernels};
  run.tensor_parallel = spec.tensor_parallel;
  if (run.model.has_experts()) {
    run.model.experts = {};
    run.model.ffn_hidden = kOverheadWidth * spec.tensor_parallel;
  }
  run.model.tied_embeddings = false;  // without collectives, whose threads would be woken by other runs
  run.optimizer.learning_rate = 1e-9;
  const int ranks = transport.size() / run.tensor_parallel;
  run.model.layers = ranks;
  if (run.model.vocab % run.tensor_parallel == 0 && kMostOverheadVocabulary % run.tensor_parallel == 0) {
    run.model.vocab = std::min(run.model.vocab, kMostOverheadVocabulary);
  }
  FamilyParams params{.ranks = ranks, .microbatches = kOverheadMicrobatches};
  params.shape.sequences = spec.sequences;
  params.shape.slice_lengths = {tokens};
  OverheadRun out;
  out.plan = std::make_unique<RunPlan>(run, make_schedule(find_family("1f1b"), params));
  out.tokens =
      std::make_unique<TokenSource>(TokenSource::synthetic(static_cast<int>(run.model.vocab), tokens, spec.seed));
  out.worker = make_worker(*out.plan, transport.rank(), transport,
                           {.tokens = out.tokens.get(),
                            .device = device.device,
                            .device_transport = device.transport,
                            .queries = device.queries});
  out.worker->initialise();
  for (const PlannedStep& step : out.worker->rank_plan().steps) out.ops += step.kind == PlannedStep::Kind::op ? 1 : 0;
  for (const OpKind kind : {OpKind::F, OpKind::B, OpKind::I, OpKind::W}) {
    out.points[static_cast<std::size_t>(kind)] = op_point(PartKind::stage, kind, {.tokens = tokens});
  }
  overhead_runs.push_back(std::move(out));
}

void Profiler::Impl::measure_ops() {
  std::shuffle(calls.begin(), calls.end(), random);
  for (const Call& call : calls) {
    // All begin together, and the first wait for the others, as ranks do: schedulers favour threads that have slept.
    transport.barrier();
    if (call.pass) {
      measure_pass(call.part, *call.pass);
      continue;
    }
    if (call.part == PartKind::experts) {
      measure_expert_layers(call.cell);
      continue;
    }
    std::array<PartBench::OpTime, 5> times;
    const bool calm = calmly([&] { times = bench->run(call.part, call.cell, links->groups()); });
    for (const PartBench::OpTime& time : times) {
      const int layers = bench->layers_of(call.part);
      note(op_point(call.part, time.kind, call.cell), in_seconds(time.nanoseconds) / layers, calm);
      if (time.recompute_ns > 0) {
        note(op_point(PartKind::recompute, OpKind::F, call.cell), in_seconds(time.recompute_ns) / layers, calm);
      }
    }
  }
}

void Profiler::Impl::measure_expert_layers(const ProfileCell& cell) {
  std::vector<ExpertPartTime> times;
  const bool calm = calmly([&] { times = bench->run_expert_layers(cell, links->groups()); });
  for (const ExpertPartTime& time : times) {
    const ProfileCell of = time.part == LayerPart::attention ? cell : ProfileCell{.tokens = cell.tokens};
    note(op_point(part_kind(time.part), time.kind, of), in_seconds(time.nanoseconds), calm);
  }
}

void Profiler::Impl::measure_pass(PartKind part, PassKind pass) {
  double seconds = 0;
  const bool calm = calmly([&] { seconds = in_seconds(bench->run_pass(part, pass)); });
  const auto found = std::find_if(points.begin(), points.end(), [&](const Point& point) {
    return point.what == Point::What::pass && point.pass.pass == pass &&
           point.pass.parameters == bench->parameters(part);
  });
  note(static_cast<std::size_t>(found - points.begin()), seconds, calm);
}

void Profiler::Impl::measure_overhead() {
  for (OverheadRun& run : overhead_runs) {
    transport.barrier();
    const double rate = 1e-9;
    const bool calm = calmly([&] { run.worker->run(run.runs++, {&rate, 1}, {}); });
    run.worker->read_times();
    const double seconds = in_seconds(run.worker->times().overhead()) / static_cast<double>(run.ops);
    for (const std::size_t point : run.points) note(point, seconds, calm);
  }
}

void Profiler::Impl::measure_links() {
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].what == Point::What::transfer) {
      transport.barrier();
      std::vector<double> times;
      const bool calm = calmly([&] { times = links->time_messages(points[i].transfer.bytes); });
      for (const double seconds : times) note(i, seconds, calm);
    } else if (points[i].what == Point::What::all_reduce) {
      note(i, links->time_sum(points[i].all_reduce.ranks, points[i].all_reduce.bytes));
    }
  }
}

void Profiler::Impl::round() {
  transport.barrier();
  measure_ops();
  measure_overhead();
  if (transport.size() > 1) measure_links();
  ++rounds;
}

// Returns the times of all workers by point, on rank 0; elsewhere nothing. Disturbed ones only where others are
// missing.
GatheredTimes Profiler::Impl::gather_times() {
  std::vector<double> mine;
  for (const Point& point : points) {
    for (const std::vector<double>* const of : {&point.seconds, &point.disturbed}) {
      mine.push_back(static_cast<double>(of->size()));
      mine.insert(mine.end(), of->begin(), of->end());
    }
  }
  const auto all = transport.gather(std::as_bytes(std::span(mine)));
  std::vector<std::vector<double>> times(all.empty() ? 0 : points.size());
  std::vector<std::vector<double>> disturbed_times(times.size());
  std::vector<std::vector<ExchangeTimes>> exchanges(times.size());  // by worker
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    std::vector<double> values(all[worker].size() / sizeof(double));
    std::memcpy(values.data(), all[worker].data(), all[worker].size());
    auto at = values.begin();
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto count = static_cast<std::size_t>(*at++);
      if (points[i].exchanges()) {
        const auto all_end = at + static_cast<std::ptrdiff_t>(count);
        exchanges[i].push_back({.seconds = {at, all_end}, .disturbed = {all_end + 1, all_end + 1 + (all_end - at)}});
        at = all_end + 1 + (all_end - at);
        continue;
      }
      for (std::size_t repetition = 0; repetition < count; ++repetition) {
        const double value = *at++;
        // An all-reduce begins when its last rank joins: its time is the shortest that a rank measured.
        if (points[i].what == Point::What::all_reduce && worker > 0) {
          times[i][repetition] = std::min(times[i][repetition], value);
        } else {
          times[i].push_back(value);
        }
      }
      const auto others = static_cast<std::ptrdiff_t>(*at++);
      disturbed_times[i].insert(disturbed_times[i].end(), at, at + others);
      at += others;
    }
  }
  GatheredTimes out{.without_waits = std::vector<std::vector<double>>(times.size())};
  const std::size_t ranks = to_size(spec.expert_parallel);
  for (std::size_t i = 0; i < times.size(); ++i) {
    std::vector<double> disturbed_least;
    for (std::size_t first = 0; first < exchanges[i].size(); first += ranks) {
      const std::span<const ExchangeTimes> group = std::span(exchanges[i]).subspan(first, ranks);
      const ExchangeTimes least = without_waits(group);
      for (std::size_t repetition = 0; repetition < least.seconds.size(); ++repetition) {
        const bool apart = least.disturbed[repetition] != 0;
        (apart ? disturbed_least : out.without_waits[i]).push_back(least.seconds[repetition]);
        for (const ExchangeTimes& rank : group) {
          (apart ? disturbed_times : times)[i].push_back(rank.seconds[repetition]);
        }
      }
    }
    if (times[i].size() >= kFewestCalm || disturbed_times[i].empty()) continue;
    times[i].insert(times[i].end(), disturbed_times[i].begin(), disturbed_times[i].end());
    out.without_waits[i].insert(out.without_waits[i].end(), disturbed_least.begin(), disturbed_least.end());
    disturbed = true;
  }
  out.all = std::move(times);
  return out;
}

Profile Profiler::Impl::gather() {
  GatheredTimes gathered = gather_times();
  std::vector<std::vector<double>>& times = gathered.all;
  std::vector<std::pair<ProfileSample, double>> waits;  // of exchanges
  Profile profile;
  if (transport.rank() != 0) return profile;
  profile.waited_for_cores = disturbed;
  profile.dtype = to_string(spec.precision);
  profile.model = spec.model.name;
  profile.shape = model_shape_of(spec.model);
  profile.memory = memory_of_parts(spec);
  std::vector<double> late;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].what != Point::What::transfer || times[i].empty()) continue;
    const double middle = quantile(times[i], 0.5);
    for (const double value : times[i]) late.push_back(value - middle);
  }
  // A thread that waits for a message wakes late if the machine is busy, independent of the size of the message.
  const double lateness = late.empty() ? 0 : std::max(0.0, typical(late));
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    std::vector<double>& seconds = times[i];
    if (seconds.empty()) continue;
    const double middle = quantile(seconds, 0.5);
    switch (point.what) {
      case Point::What::op: {
        ProfileSample sample = point.sample;
        // A worker that loses its core where it wakes another one spends milliseconds there: the overhead is that of
        // the best runs.
        sample.seconds = sample.part == PartKind::stage ? quantile(seconds, 0.1) : typical(seconds);
        sample.spread_s = (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / 2;
        if (point.exchanges()) {
          const double own = sample.seconds;
          sample.seconds = std::min(own, typical(gathered.without_waits[i]));
          waits.emplace_back(sample, own - sample.seconds);
        }
        profile.samples.push_back(sample);
        break;
      }
      case Point::What::pass: profile.passes.push_back({point.pass.pass, point.pass.parameters, middle}); break;
      case Point::What::transfer:
        profile.transfers.push_back({point.transfer.link, point.transfer.bytes, middle + lateness});
        break;
      case Point::What::all_reduce:
        profile.sums.push_back({point.all_reduce.ranks, point.all_reduce.bytes, middle});
        break;
    }
  }
  for (const auto& [exchange, wait_s] : waits) move_wait(exchange, wait_s, profile.samples);
  return profile;
}

Profiler::Profiler(const ProfilingSpec& spec, Transport& transport, const WorkerDevice& device)
    : impl_(std::make_unique<Impl>(spec, transport, device)) {}
Profiler::~Profiler() = default;
void Profiler::round() { impl_->round(); }
Profile Profiler::gather() { return impl_->gather(); }
bool Profiler::disturbed() const { return impl_->disturbed; }

ExchangeTimes without_waits(std::span<const ExchangeTimes> group) {
  ExchangeTimes out = group.front();
  for (const ExchangeTimes& rank : group.subspan(1)) {
    for (std::size_t i = 0; i < out.seconds.size(); ++i) {
      out.seconds[i] = std::min(out.seconds[i], rank.seconds[i]);
      if (rank.disturbed[i] != 0) out.disturbed[i] = 1;
    }
  }
  return out;
}

void move_wait(const ProfileSample& exchange, double wait_s, std::vector<ProfileSample>& samples) {
  const bool attention = (exchange.kind == OpKind::F) == (exchange.part == PartKind::dispatch);
  const PartKind part = attention ? PartKind::attention : PartKind::experts;
  for (ProfileSample& sample : samples) {
    if (sample.part == part && sample.kind == exchange.kind && sample.tokens == exchange.tokens) {
      sample.seconds += wait_s;
    }
  }
}

std::vector<ProfileCell> profile_grid(std::int64_t sequence_length) {
  std::vector<ProfileCell> cells;
  for (const std::int64_t cut : {1, 2, 4, 8}) {
    const std::int64_t tokens = sequence_length / cut;
    if (tokens < 1 || (cut > 1 && tokens * cut != sequence_length)) continue;
    for (std::int64_t place = 0; place < cut; place += std::max<std::int64_t>(1, cut / 4)) {
      cells.push_back({.tokens = tokens, .context = place * tokens});
    }
  }
  return cells;
}

namespace {

Profile measure_profile(const ProfilingSpec& spec, Transport& transport, const ProfilingObserver& observer,
                        const WorkerDevice& device, Supervisor* supervisor) {
  ControlRecorder control(transport, supervisor == nullptr ? nullptr : supervisor->recorder(transport.rank()));
  control.enter(ControlPhase::measurement, ControlRecorder::kNoStep);
  const std::int64_t began = now_ns();
  Profiler profiler(spec, transport, device);
  profiler.round();
  for (int done = 0;;) {
    profiler.round();
    ++done;
    const double seconds = in_seconds(now_ns() - began);
    if (transport.rank() == 0 && observer) observer(seconds);
    std::byte more{seconds * (done + 2) / (done + 1) < spec.budget_s || done < spec.least_rounds};
    transport.broadcast({&more, 1});
    if (more == std::byte{0}) break;
  }
  return profiler.gather();
}

}  // namespace

Profile profile_as_process(const ProfilingSpec& spec, Transport& transport, const ProfilingObserver& observer,
                           const WorkerDevice& device, const WatchedPlans& watched) {
  Profile profile;
  work_as_process(watched, transport, device, [&](Transport& to, const WorkerDevice& on, Supervisor* supervisor) {
    profile = measure_profile(spec, to, observer, on, supervisor);
  });
  return profile;
}

Profile profile_with_threads(const ProfilingSpec& spec, int workers, const ProfilingObserver& observer,
                             const RunDevices& devices, const WatchedPlans& watched) {
  Profile profile;
  work_on_threads(watched, workers, devices, [&](Transport& to, const WorkerDevice& on, Supervisor* supervisor) {
    Profile own = measure_profile(spec, to, observer, on, supervisor);
    if (to.rank() == 0) profile = std::move(own);
  });
  return profile;
}

}  // namespace sluice::exec
