#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exec/checkpoint/saved_state.h"
#include "exec/measure/measured_timeline.h"
#include "exec/run/training_run.h"
#include "exec/watch/recorder_file.h"
#include "exec/watch/watchdog.h"
#include "model/errors.h"
#include "model/timeline/memory.h"
#include "tools/command/command.h"
#include "tools/command/mpi_ranks.h"
#include "tools/run/run_flags.h"
#include "tools/run/run_place.h"
#include "traces/chrome_trace.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Options {
  std::unique_ptr<RunFlags> flags;
  int steps = 10;
  int warmup = 0;
  int log_every = 1;
  RunPlaceFlags place;
  std::string trace;
  std::string checkpoint;
  int checkpoint_every = 0;
  std::string resume;
  std::string post_mortem;
  std::string recorders;
  double deadline = 30;
  std::vector<std::string> faults;
  bool json = false;
};

// A folder that goes with the run, if it ends well.
class RecorderFolder {
 public:
  RecorderFolder(const std::string& wished, const RunPlace& place) : path_(wished), first_(place.first()) {
    std::string made;
    if (first_) {
      if (path_.empty()) {
        std::string name = (std::filesystem::temp_directory_path() / "sluice-run-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw InputError(name + ": cannot make a folder for the recorders");
        made = name;
      } else {
        std::error_code error;
        std::filesystem::create_directories(path_, error);
        if (error) throw InputError(fmt::format("--recorder: {}: {}", path_, error.message()));
        made = path_;
      }
    }
    own_ = wished.empty();
    path_ = place.agreed(made);
  }
  ~RecorderFolder() {
    std::error_code ignored;
    if (own_ && first_ && !keep_) std::filesystem::remove_all(path_, ignored);
  }
  RecorderFolder(const RecorderFolder&) = delete;
  RecorderFolder& operator=(const RecorderFolder&) = delete;

  const std::string& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  std::string path_;
  bool first_ = true;
  bool own_ = false;
  bool keep_ = false;
};

int exit_code_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::lost: return kWorkerLost;
    case FailureKind::stuck: return kRunStuck;
    case FailureKind::non_finite: return kNotFinite;
    case FailureKind::elsewhere: return kStoppedByAnother;
  }
  return kOurFault;
}

std::string of_steps(const RunReport& run, std::size_t batch, const RunPlan& plan) {
  const double seconds = run.seconds / static_cast<double>(run.losses.size());
  std::string line =
      fmt::format("step {:>5}  loss {:.4f}", run.first_step + static_cast<std::int64_t>(batch) + 1, run.losses[batch]);
  if (run.gradient_norm > 0) line += fmt::format("  norm {:.3f}", run.gradient_norm);
  return line + fmt::format("  {:.1f} ms  {:.0f} tokens/s", 1e3 * seconds, plan.tokens_per_batch() / seconds);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of one step, over the runs of the graph; the first ones of several are left out: they touch everything first.
double step_seconds(const TrainingReport& report) {
  std::vector<double> seconds;
  const std::size_t from = report.runs.size() > 2 ? 1 : 0;
  for (std::size_t i = from; i < report.runs.size(); ++i) {
    seconds.push_back(report.runs[i].seconds / static_cast<double>(report.runs[i].losses.size()));
  }
  return median(std::move(seconds));
}

OrderedJson report_json(const RunPlan& plan, const TrainingReport& report, const std::string& transport) {
  const Schedule& schedule = plan.schedule();
  OrderedJson out = {{"schema", "sluice.run/1"},
                     {"model", plan.spec().model.name},
                     {"precision", to_string(plan.spec().precision)},
                     {"schedule",
                      {{"family", schedule.family()},
                       {"ranks", schedule.num_ranks()},
                       {"chunks", schedule.num_chunks()},
                       {"microbatches", schedule.num_microbatches()},
                       {"slices", schedule.max_slices()}}},
                     {"transport", transport},
                     {"data_parallel", plan.layout().data},
                     {"tensor_parallel", plan.layout().tensor},
                     {"tokens_per_step", plan.tokens_per_batch()}};
  const double seconds = step_seconds(report);
  out["step_s"] = seconds;
  out["tokens_per_s"] = seconds > 0 ? plan.tokens_per_batch() / seconds : 0;
  out["interrupted"] = report.interrupted;
  out["steps"] = OrderedJson::array();
  for (const RunReport& run : report.runs) {
    for (std::size_t batch = 0; batch < run.losses.size(); ++batch) {
      OrderedJson row = {{"step", run.first_step + static_cast<std::int64_t>(batch) + 1},
                         {"loss", run.losses[batch]},
                         {"seconds", run.seconds / static_cast<double>(run.losses.size())}};
      if (run.gradient_norm > 0) row["gradient_norm"] = run.gradient_norm;
      out["steps"].push_back(std::move(row));
    }
  }
  out["workers"] = OrderedJson::array();
  for (std::size_t rank = 0; rank < report.workers.size(); ++rank) {
    const WorkerReport& worker = report.workers[rank];
    out["workers"].push_back({{"rank", rank},
                              {"held_bytes", worker.held_bytes},
                              {"arena_bytes", worker.arena_bytes},
                              {"kernels_s", static_cast<double>(worker.times.kernels) / 1e9},
                              {"waiting_s", static_cast<double>(worker.times.waiting) / 1e9},
                              {"overhead_s", static_cast<double>(worker.times.overhead()) / 1e9}});
  }
  return out;
}

void print_summary(const RunPlan& plan, const TrainingReport& report) {
  const double seconds = step_seconds(report);
  if (seconds <= 0) return;
  std::int64_t held = 0;
  for (const WorkerReport& worker : report.workers) held = std::max(held, worker.held_bytes);
  fmt::print("{} steps, {:.1f} ms a step in the median, {:.0f} tokens/s, {:.1f} MiB held by a rank at most\n",
             report.runs.size() * static_cast<std::size_t>(plan.batches()), 1e3 * seconds,
             plan.tokens_per_batch() / seconds, static_cast<double>(held) / (1024.0 * 1024.0));
}

void write_trace(const Options& options, const RunPlan& plan, const TrainingReport& report) {
  if (options.trace.empty() || report.runs.empty() || report.runs.back().clocks.empty()) return;
  const Timeline timeline = measured_timeline(plan.graph(), report.runs.back().clocks);
  const auto memory = memory_over_time(plan.graph(), timeline, true);
  write_trace_file(options.trace, plan.graph(), timeline, memory);
}

// Of a run that failed: what had ended of the step that broke, or, of processes, the last whole step.
void write_broken_trace(const Options& options, const RunPlan& plan, const TrainingReport& report) {
  if (std::ssize(report.broken) != plan.layout().pipeline) return write_trace(options, plan, report);
  TraceOptions trace{.ended = ended_vertices(plan.graph(), report.broken)};
  const bool any = std::any_of(trace.ended.begin(), trace.ended.end(), [](char ended) { return ended != 0; });
  if (options.trace.empty() || !any) return write_trace(options, plan, report);
  write_trace_file(options.trace, plan.graph(), measured_timeline(plan.graph(), report.broken), {}, trace);
}

// Whether a file can be put there is known before the run, not behind it.
void check_folder(const char* flag, const std::string& file) {
  if (file.empty()) return;
  std::filesystem::path folder = std::filesystem::path(file).parent_path();
  if (folder.empty()) folder = ".";
  if (!std::filesystem::is_directory(folder)) {
    throw InputError(fmt::format("{}: {}: there is no folder {}", flag, file, folder.string()));
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    throw InputError(fmt::format("{}: {}: cannot write into {}", flag, file, folder.string()));
  }
}

// Runs of the graph for so many steps, each of `batches`.
int runs_for(int steps, const RunPlan& plan) {
  if (steps % plan.batches() == 0) return steps / plan.batches();
  throw InputError(
      fmt::format("--steps: expected a multiple of the schedule's {} batches, got {}", plan.batches(), steps));
}

TrainingOptions training_options(const Options& options, const RunPlan& plan, const std::string& recorders,
                                 bool print_failure) {
  TrainingOptions training;
  training.runs = runs_for(options.steps, plan);
  training.warmup_steps = options.warmup;
  if (!options.trace.empty()) training.keep_times = KeepTimes::last;
  for (const std::string& fault : options.faults) training.faults.push_back(parse_fault(fault));
  training.supervision.folder = recorders;
  training.supervision.limits.floor_ns = static_cast<std::int64_t>(options.deadline * 1e9);
  training.supervision.signals = true;
  training.supervision.give_up = [print_failure](const RunFailure& failure) {
    if (print_failure) fmt::print(stderr, "sluice: {}\n", failure.what());
    std::fflush(nullptr);
    std::_Exit(exit_code_of(failure.kind()));
  };
  return training;
}

// Batches of one run of the graph, for schedules without a flush: the pipeline drains where a checkpoint is written.
int batches_between(const Options& options) {
  return options.checkpoint_every > 0 ? std::min(options.checkpoint_every, options.steps) : options.steps;
}

// Loads what is resumed, and writes checkpoints.
WorkerHooks hooks_of(const Options& options, const RunPlan& plan, TrainingOptions& training) {
  WorkerHooks hooks;
  const std::string data = options.flags->data_name();
  if (!options.resume.empty()) {
    const auto checkpoint = std::make_shared<CheckpointReader>(options.resume);
    check_resumes(*checkpoint, plan, data);
    training.first_step = checkpoint->step();
    hooks.begin = [checkpoint, &plan](Worker& worker, Transport&) { load_state(worker, plan, *checkpoint); };
  }
  if (options.checkpoint.empty()) {
    if (options.checkpoint_every > 0) throw InputError("--checkpoint-every: needs --checkpoint, the file to write");
    return hooks;
  }
  const std::int64_t last = training.first_step + std::int64_t{training.runs} * plan.batches();
  const std::int64_t every = options.checkpoint_every;
  hooks.after_run = [&options, &plan, data, last, every](Worker& worker, Transport& transport, std::int64_t step) {
    if (step != last && (every == 0 || step % every != 0)) return;
    save_state(worker, transport, plan, options.checkpoint, step, data);
  };
  return hooks;
}

// What the recorders of a run say, which may still run or have ended in whatever way.
int post_mortem(const std::string& folder) {
  constexpr std::size_t kShown = 12;
  for (const RecorderFile& file : open_recorders(folder)) {
    const RecorderOwner& owner = file.owner();
    const auto process = file.process();
    const bool alive = process && *process != ProcessState::dead;
    fmt::print("rank {} (pipeline {}, data {}, tensor {}), process {} on {}{}\n", owner.world_rank, owner.pipeline_rank,
               owner.data_rank, owner.tensor_rank, owner.process, owner.host,
               process ? (alive ? ", running" : ", ended") : "");
    const std::vector<RecordedEvent> events = file.events();
    const std::size_t first = events.size() > kShown ? events.size() - kShown : 0;
    for (std::size_t i = first; i < events.size(); ++i) {
      const double before = static_cast<double>(events.back().doing.since_ns - events[i].doing.since_ns) / 1e6;
      fmt::print("  {:>10.3f} ms before the end  {}\n", before, to_string(events[i]));
    }
  }
  return kDone;
}

int run_command(const Options& options) {
  if (!options.post_mortem.empty()) return post_mortem(options.post_mortem);
  const HeldSignals held;
  const MpiRanks ranks;
  try {
    check_folder("--checkpoint", options.checkpoint);
    check_folder("--trace", options.trace);
    const Scenario scenario = options.flags->scenario();
    RunPlace place(options.place, ranks);
    const RunPlan plan(options.flags->spec(scenario, place.kernels()),
                       options.flags->schedule(scenario, batches_between(options)));
    const TokenSource tokens = options.flags->tokens(plan);
    place.open(plan.layout());
    RecorderFolder recorders(options.recorders, place);
    TrainingOptions training = training_options(options, plan, recorders.path(), true);
    training.devices = &place.devices();
    const WorkerHooks hooks = hooks_of(options, plan, training);
    TrainingReport report;
    const RunObserver observer = [&](const RunReport& run) {
      if (options.json) return;
      for (std::size_t batch = 0; batch < run.losses.size(); ++batch) {
        const std::int64_t step = run.first_step + static_cast<std::int64_t>(batch) + 1;
        if (step % options.log_every == 0) fmt::print("{}\n", of_steps(run, batch, plan));
      }
      std::fflush(stdout);
    };
    try {
      if (Transport* const transport = place.transport()) {
        train_as_process(plan, *transport, tokens, training, report, hooks, observer);
      } else {
        train_with_threads(plan, tokens, training, report, hooks, observer);
      }
    } catch (const RunFailure& failure) {
      recorders.keep();
      write_broken_trace(options, plan, report);
      fmt::print(stderr, "sluice: {}\nsluice: what each rank did last is in {} (sluice run --post-mortem {})\n",
                 failure.what(), recorders.path(), recorders.path());
      std::fflush(nullptr);
      // Other processes are in whatever state they are: nothing more is said to them.
      if (place.processes()) std::_Exit(exit_code_of(failure.kind()));
      return exit_code_of(failure.kind());
    } catch (const DeviceError& failure) {
      recorders.keep();
      fmt::print(stderr, "sluice: {}\nsluice: what each rank did last is in {} (sluice run --post-mortem {})\n",
                 failure.what(), recorders.path(), recorders.path());
      std::fflush(nullptr);
      if (place.processes()) std::_Exit(kOurFault);
      return kOurFault;
    }
    if (!place.first()) return kDone;
    write_trace(options, plan, report);
    if (options.json) {
      fmt::print("{}\n", report_json(plan, report, place.transport_name()).dump(2));
    } else {
      print_summary(plan, report);
    }
    return report.interrupted ? kInterrupted : kDone;
  } catch (...) {
    if (is_first_process(ranks)) throw;
    return kWrongInput;  // the first rank says what is wrong
  }
}

}  // namespace

Subcommand add_run_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "run",
      "Really trains a model on this machine, by any schedule.\n\n"
      "Examples:\n"
      "  sluice run\n"
      "  sluice run --data /usr/share/common-licenses/GPL-3 --steps 200 --schedule zb-h1 --trace run.json.gz\n"
      "  sluice run --schedule seq1f1b --pp 4 --slices 4 --steps 5 --json\n"
      "  sluice run --steps 100 --checkpoint a.safetensors && sluice run --resume a.safetensors --steps 100 --pp 4\n"
      "  mpirun -n 4 sluice run --schedule 1f1b --pp 2 --dp 2 --steps 20\n"
      "  sluice run --backend cuda --devices green:2 --precision bf16\n"
      "  torchrun --no-python --nproc-per-node 8 sluice run --backend cuda --pp 4 --dp 2\n"
      "  sluice run --num-layers 8 --hidden-size 256 --num-attention-heads 8 --vocab-size 256 --seq-length 256 --pp 4 "
      "--microbatches 8\n\n"
      "Ranks are threads of this process, or, started by mpirun, srun or (on GPUs) torchrun, processes. What is not "
      "given is a small "
      "built-in GPT, two ranks, 1F1B and synthetic tokens. Dropout is not applied.\n\n"
      "Exit codes: 0 done, 2 wrong input, 3 not enough memory, 4 invalid schedule, 6 a worker's process died, 7 an op "
      "is past its deadline or ranks wait for what will not come, 8 a number is not finite, 9 another process "
      "failed, 130 interrupted");
  const auto options = std::make_shared<Options>();
  options->flags = std::make_unique<RunFlags>(*command);
  const char* kRun = "Run";
  command->add_option("--steps", options->steps, "optimizer steps (default 10)")
      ->check(CLI::Range(1, 100000000))
      ->group(kRun);
  command->add_option("--lr-warmup-steps", options->warmup, "over which the learning rate rises")
      ->check(CLI::Range(0, 100000000))
      ->group("Training");
  command->add_option("--log-every", options->log_every, "print every so many steps (default 1)")
      ->check(CLI::Range(1, 100000000))
      ->group(kRun);
  options->place.add_to(*command, kRun);
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "write weights and optimizer here (safetensors), whole or not at all, at the end")
      ->group(kRun);
  command->add_option("--checkpoint-every", options->checkpoint_every, "and every so many steps")
      ->check(CLI::Range(1, 100000000))
      ->group(kRun);
  command
      ->add_option("--resume", options->resume, "go on from a checkpoint, for --steps more; other sizes may be given")
      ->group(kRun);
  command
      ->add_option("--trace", options->trace, "write the last step's measured timeline as a Chrome trace (.json, .gz)")
      ->group(kRun);
  command->add_flag("--json", options->json, "one JSON document (sluice.run/1) on standard output")->group(kRun);
  const char* kFaults = "When things break";
  command
      ->add_option("--post-mortem", options->post_mortem, "say what the recorders of another run hold, and run nothing")
      ->group(kFaults);
  command->add_option("--recorder", options->recorders, "folder for the flight recorders (default: a temporary one)")
      ->group(kFaults);
  command
      ->add_option("--deadline", options->deadline,
                   "seconds that any op may take (default 30), or 20 times what it took before")
      ->check(CLI::Range(0.01, 1e6))
      ->group(kFaults);
  command
      ->add_option(
          "--fault", options->faults,
          "break something: delay, drop, kill, stop or nan, as in delay:rank=1,op=F,mb=2,step=3,seconds=2; may "
          "be repeated")
      ->expected(1)
      ->take_all()
      ->group(kFaults);
  return {command, [options] { return run_command(*options); }};
}

}  // namespace sluice::tools
