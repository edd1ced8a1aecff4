#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
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
#include "exec/watch/diagnosis.h"
#include "exec/watch/recorder_file.h"
#include "exec/watch/watchdog.h"
#include "kernels/cpu/gemm.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/median.h"
#include "model/timeline/memory.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/mpi_ranks.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "tools/run/run_flags.h"
#include "tools/run/run_place.h"
#include "tools/run/run_watch.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct RunOptions {
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
  WatchFlags watch;
  double grace = 25;
  std::vector<std::string> faults;
  bool json = false;
};

std::string step_line(const RunReport& run, std::size_t batch, const RunPlan& plan) {
  const double seconds = run.seconds / static_cast<double>(run.losses.size());
  std::string line =
      fmt::format("step {:>5}  loss {:.4f}", run.first_step + static_cast<std::int64_t>(batch) + 1, run.losses[batch]);
  if (run.gradient_norm > 0) line += fmt::format("  norm {:.3f}", run.gradient_norm);
  return line + fmt::format("  {:.1f} ms  {:.0f} tokens/s", 1e3 * seconds, plan.tokens_per_batch() / seconds);
}

// Returns the median time of a step in seconds, without the first run of the graph if there are more than two. `time`:
// of a run.
double step_seconds(const TrainingReport& report, double RunReport::*time = &RunReport::seconds) {
  std::vector<double> seconds;
  const std::size_t from = report.runs.size() > 2 ? 1 : 0;
  for (std::size_t i = from; i < report.runs.size(); ++i) {
    seconds.push_back(report.runs[i].*time / static_cast<double>(report.runs[i].losses.size()));
  }
  return upper_median(std::move(seconds));
}

// Returns the overlap of dispatch and combine in the last run of the graph, by pipeline rank; nothing without expert
// parallelism.
std::vector<ExchangeOverlap> last_overlap(const RunPlan& plan, const TrainingReport& report) {
  if (plan.layout().expert == 1 || report.runs.empty()) return {};
  return exchange_overlap(plan, report.runs.back().clocks);
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
                       {"slices", schedule.max_slices()},
                       {"slice_lengths", schedule.shape(0).slice_lengths}}},
                     {"transport", transport},
                     {"data_parallel", plan.layout().data},
                     {"tensor_parallel", plan.layout().tensor},
                     {"tokens_per_step", plan.tokens_per_batch()}};
  const double seconds = step_seconds(report);
  out["step_s"] = seconds;
  out["wall_step_s"] = step_seconds(report, &RunReport::wall_seconds);
  out["tokens_per_s"] = seconds > 0 ? plan.tokens_per_batch() / seconds : 0;
  out["interrupted"] = report.interrupted;
  out["steps"] = OrderedJson::array();
  for (const RunReport& run : report.runs) {
    for (std::size_t batch = 0; batch < run.losses.size(); ++batch) {
      OrderedJson row = {{"step", run.first_step + static_cast<std::int64_t>(batch) + 1},
                         {"loss", run.losses[batch]},
                         {"seconds", run.seconds / static_cast<double>(run.losses.size())},
                         {"wall_seconds", run.wall_seconds / static_cast<double>(run.losses.size())}};
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
  for (const ExchangeOverlap& rank : last_overlap(plan, report)) {
    out["expert_exchange"].push_back(
        {{"seconds", rank.seconds}, {"hidden_s", rank.hidden_s}, {"predicted_hidden_s", rank.predicted_hidden_s}});
  }
  return out;
}

void print_run_summary(const RunPlan& plan, const TrainingReport& report) {
  const double seconds = step_seconds(report);
  if (seconds <= 0) return;
  std::int64_t held = 0;
  for (const WorkerReport& worker : report.workers) held = std::max(held, worker.held_bytes);
  const std::size_t steps = report.runs.size() * static_cast<std::size_t>(plan.batches());
  fmt::print(
      "{}, median {:.1f} ms per step ({:.1f} ms of wall time), {:.0f} tokens/s, peak memory {:.1f} MiB per rank\n",
      counted(steps, "step", "s"), 1e3 * seconds, 1e3 * step_seconds(report, &RunReport::wall_seconds),
      plan.tokens_per_batch() / seconds, static_cast<double>(held) / (1024.0 * 1024.0));
  ExchangeOverlap sum;
  const std::vector<ExchangeOverlap> ranks = last_overlap(plan, report);
  for (const ExchangeOverlap& rank : ranks) {
    sum.seconds += rank.seconds;
    sum.hidden_s += rank.hidden_s;
    sum.predicted_hidden_s += rank.predicted_hidden_s;
  }
  if (sum.seconds <= 0) return;
  if (plan.spec().recompute) {
    fmt::print(
        "dispatch and combine: {:.1f} ms per rank in forwards; those of backwards that recompute are not measured, and "
        "joint blocks run one op after the other\n",
        1e3 * sum.seconds / static_cast<double>(ranks.size()));
    return;
  }
  fmt::print(
      "dispatch and combine: {:.1f} ms per rank, {:.1f} % hidden (predicted from the measured parts: {:.1f} %)\n",
      1e3 * sum.seconds / static_cast<double>(ranks.size()), 100 * sum.hidden_s / sum.seconds,
      100 * sum.predicted_hidden_s / sum.seconds);
}

void write_trace(const RunOptions& options, const RunPlan& plan, const TrainingReport& report, bool shares_cores) {
  if (options.trace.empty() || report.runs.empty() || report.runs.back().clocks.empty()) return;
  const Timeline timeline = measured_timeline(plan.graph(), report.runs.back().clocks);
  const auto memory = memory_over_time(plan.graph(), timeline, true);
  TraceOptions trace{.waited_for_cores = report.runs.back().waited_for_cores, .shared_cores = shares_cores};
  constexpr std::array kOfPass = {OpKind::F, OpKind::B, OpKind::W};
  for (const VertexPart& part : measured_parts(plan.graph(), report.runs.back().clocks)) {
    const PartTime& time = part.time;
    trace.parts.push_back({.vertex = part.vertex,
                           .rank = plan.graph().rank_of(part.vertex),
                           .part = {time.part, kOfPass.at(static_cast<std::size_t>(time.pass))},
                           .layer = time.layer,
                           .start = Duration(time.start_ns),
                           .end = Duration(time.end_ns)});
  }
  write_trace_file(options.trace, plan.graph(), timeline, memory, trace);
}

// Writes the trace of a failed run: the ops completed in the failed step, or, with processes, the last complete step.
void write_failed_trace(const RunOptions& options, const RunPlan& plan, const TrainingReport& report,
                        bool shares_cores) {
  if (std::ssize(report.broken) != plan.layout().pipeline) return write_trace(options, plan, report, shares_cores);
  TraceOptions trace{.ended = ended_vertices(plan.graph(), report.broken), .shared_cores = shares_cores};
  const bool any = std::any_of(trace.ended.begin(), trace.ended.end(), [](char ended) { return ended != 0; });
  if (options.trace.empty() || !any) return write_trace(options, plan, report, shares_cores);
  write_trace_file(options.trace, plan.graph(), measured_timeline(plan.graph(), report.broken), {}, trace);
}

// Checks before the run that `file` can be written after it. Throws InputError.
void check_output(const char* flag, const std::string& file) {
  if (file.empty()) return;
  if (std::filesystem::is_directory(file)) {
    throw InputError(fmt::format("{}: {}: is a folder, expected a file name", flag, file));
  }
  std::filesystem::path folder = std::filesystem::path(file).parent_path();
  if (folder.empty()) folder = ".";
  if (!std::filesystem::is_directory(folder)) {
    throw InputError(fmt::format("{}: {}: the folder {} does not exist", flag, file, folder.string()));
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    throw InputError(fmt::format("{}: {}: cannot write into {}", flag, file, folder.string()));
  }
}

// Returns the number of runs of the graph, each of plan.batches() steps, for `steps` steps. Throws InputError.
int num_runs(int steps, const RunPlan& plan) {
  if (steps % plan.batches() == 0) return steps / plan.batches();
  throw InputError(
      fmt::format("--steps: expected a multiple of the {} batches of the schedule, got {}", plan.batches(), steps));
}

// `watch` outlives the result.
TrainingOptions training_options(const RunOptions& options, const RunPlan& plan, RunWatch& watch) {
  TrainingOptions training;
  training.runs = num_runs(options.steps, plan);
  training.warmup_steps = options.warmup;
  if (!options.trace.empty() || plan.layout().expert > 1) training.keep_times = KeepTimes::last;
  for (const std::string& fault : options.faults) training.faults.push_back(parse_fault(fault));
  training.announce_fault = [](const std::string& text) {
    print_message(text);
    std::fflush(nullptr);
  };
  training.supervision = watch.supervision();
  training.supervision.grace = std::chrono::milliseconds(static_cast<std::int64_t>(options.grace * 1e3));
  return training;
}

// Returns the number of batches per run of the graph, for schedules without a flush: the pipeline drains for each
// checkpoint.
int batches_per_run(const RunOptions& options) {
  return options.checkpoint_every > 0 ? std::min(options.checkpoint_every, options.steps) : options.steps;
}

// Returns the hooks that load and write checkpoints.
WorkerHooks checkpoint_hooks(const RunOptions& options, const RunPlan& plan, TrainingOptions& training) {
  WorkerHooks hooks;
  const std::string data = options.flags->data_name();
  if (!options.resume.empty()) {
    const auto checkpoint = std::make_shared<CheckpointReader>(options.resume);
    check_resumes(*checkpoint, plan, data);
    training.first_step = checkpoint->step();
    hooks.begin = [checkpoint, &plan](Worker& worker, Transport&) { load_state(worker, plan, *checkpoint); };
  }
  if (plan.schedule().forward_only() && !options.checkpoint.empty()) {
    throw InputError("--checkpoint: work without a backward (/schedule/forward_only) trains nothing");
  }
  if (options.checkpoint.empty()) {
    if (options.checkpoint_every > 0) throw InputError("--checkpoint-every: needs --checkpoint");
    return hooks;
  }
  const std::int64_t first = training.first_step;
  const std::int64_t last = first + std::int64_t{training.runs} * plan.batches();
  const std::int64_t every = options.checkpoint_every;
  const auto is_due = [last, every](std::int64_t step) { return step == last || (every > 0 && step % every == 0); };
  const auto save = [&options, &plan, data](Worker& worker, Transport& transport, std::int64_t step) {
    save_state(worker, transport, plan, options.checkpoint, step, data, [](const std::string& error) {
      print_message(error);
      std::fflush(nullptr);
    });
  };
  hooks.after_run = save;
  hooks.is_due = is_due;
  hooks.at_stop = [is_due, save, first](Worker& worker, Transport& transport, std::int64_t step) {
    if (step > first && !is_due(step)) save(worker, transport, step);
  };
  return hooks;
}

// Prints the last events of the flight recorders of a run, which may have ended or still run.
int post_mortem(const std::string& folder) {
  constexpr std::size_t kShown = 12;
  if (const auto diagnosis = read_diagnosis(folder)) fmt::print("{}\n\n", diagnosis->what());
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
      const double before_ms = static_cast<double>(events.back().doing.since_ns - events[i].doing.since_ns) / 1e6;
      fmt::print("  {:>10.3f} ms before the end  {}\n", before_ms, to_string(events[i]));
    }
  }
  return kDone;
}

int run_command(const RunOptions& options) {
  if (!options.post_mortem.empty()) return post_mortem(options.post_mortem);
  const MpiRanks ranks(options.watch.start_limit());
  const HeldSignals held;  // after MPI_Init: mpiexec may wait for ever for a process that ends within it
  try {
    check_output("--checkpoint", options.checkpoint);
    check_output("--trace", options.trace);
    const Scenario scenario = options.flags->scenario();
    RunPlace place(options.place, ranks);
    const RunPlan plan(options.flags->spec(scenario, place),
                       options.flags->schedules(scenario, batches_per_run(options)));
    const TokenSource tokens = options.flags->tokens(plan);
    if (place.first()) {
      options.flags->print_ignored("run");
      options.flags->print_weave_note(plan);
    }
    place.open(plan);
    RunWatch watch(options.watch, place, ranks);
    TrainingOptions training = training_options(options, plan, watch);
    training.devices = &place.devices();
    const WorkerHooks hooks = checkpoint_hooks(options, plan, training);
    TrainingReport report;
    const RunObserver observer = [&](const RunReport& run) {
      if (options.json) return;
      for (std::size_t batch = 0; batch < run.losses.size(); ++batch) {
        const std::int64_t step = run.first_step + static_cast<std::int64_t>(batch) + 1;
        if (step % options.log_every == 0) fmt::print("{}\n", step_line(run, batch, plan));
      }
      std::fflush(stdout);
    };
    const auto train = [&] {
      if (Transport* const transport = place.transport()) {
        train_as_process(plan, *transport, tokens, training, report, hooks, observer);
      } else {
        train_with_threads(plan, tokens, training, report, hooks, observer);
      }
    };
    try {
      const int code = watch.run(
          train, [&] { write_failed_trace(options, plan, report, place.shares_cores(plan.layout().size())); });
      if (code != kDone) return code;
    } catch (const SharedError&) {
      return kWrongInput;  // it has been reported
    } catch (const std::exception& failure) {
      if (!place.processes() || !report.began) throw;
      watch.end_alone(failure);  // the other processes wait for this one; its launcher ends them
    }
    if (!place.first()) return kDone;
    place.print_library_notes();
    write_trace(options, plan, report, place.shares_cores(plan.layout().size()));
    if (options.json) {
      fmt::print("{}", json_text(report_json(plan, report, place.transport_name())));
    } else {
      print_run_summary(plan, report);
      const std::string faster = place.kernels() == nullptr ? cpu::faster_blas_kernels() : "";
      if (!faster.empty()) fmt::print("{}\n", blas_advice(faster));
    }
    if (report.signal == SIGTERM) return kTerminated;
    return report.interrupted ? kInterrupted : kDone;
  } catch (...) {
    if (is_first_process(ranks)) throw;
    return kWrongInput;  // the first process reports the error
  }
}

}  // namespace

Subcommand add_run_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "run",
      "Train a model on this machine with the given schedule.\n\n"
      "Examples:\n"
      "  sluice run\n"
      "  sluice run --data /usr/share/common-licenses/GPL-3 --steps 200 --schedule zb-h1 --trace run.json.gz\n"
      "  sluice run --schedule seq1f1b --pp 4 --slices 4 --steps 5 --json\n"
      "  sluice run --steps 100 --checkpoint a.safetensors\n"
      "  sluice run --resume a.safetensors --steps 100 --pp 4\n"
      "  mpirun -n 4 sluice run --schedule 1f1b --pp 2 --dp 2 --steps 20\n"
      "  sluice run --backend cuda --devices green:2 --precision bf16\n"
      "  torchrun --no-python --nproc-per-node 8 sluice run --backend cuda --pp 4 --dp 2\n"
      "  sluice run --num-layers 8 --hidden-size 256 --num-attention-heads 8 --vocab-size 256 \\\n"
      "      --seq-length 256 --pp 4 --microbatches 8\n"
      "  sluice run --num-layers 4 --hidden-size 128 --num-attention-heads 4 --vocab-size 256 \\\n"
      "      --position-embedding-type rope --disable-bias-linear --num-experts 8 --moe-router-topk 2 \\\n"
      "      --moe-ffn-hidden-size 128 --seq-length 128 --pp 2 --dp 2 --ep 2 --schedule dualpipe --trace "
      "experts.json\n\n"
      "Ranks are threads of this process or, if started by mpirun, srun or (on GPUs) torchrun, processes. The default "
      "is a small built-in GPT on two ranks, with 1F1B and synthetic tokens. Dropout is not applied.");
  command->group("Run and measure");
  command->footer(fmt::format(
      "Exit codes: 0 success, 2 wrong input, 3 not enough memory, 4 invalid schedule, {}, 130 or 143 ended "
      "by SIGINT or SIGTERM, after the current step and with a checkpoint if --checkpoint is given; a second "
      "signal, or one before the first step, ends it immediately.",
      kFailureCodes));
  const auto options = std::make_shared<RunOptions>();
  options->flags = std::make_unique<RunFlags>(*command);
  const auto run = [](CLI::Option* option) { return option->group("Run"); };
  run(command->add_option("--steps", options->steps, "Number of optimizer steps, 1 to 100000000 (default 10)"))
      ->check(CLI::Range(1, 100000000));
  command
      ->add_option("--lr-warmup-steps", options->warmup,
                   "Number of linear learning-rate warm-up steps, 0 to 100000000 (default 0)")
      ->check(CLI::Range(0, 100000000))
      ->group("Training");
  run(command->add_option("--log-every", options->log_every,
                          "Number of steps between printed lines, 1 to 100000000 (default 1)"))
      ->check(CLI::Range(1, 100000000));
  options->place.add_to(*command, "Run");
  run(add_output(*command, "--checkpoint", options->checkpoint,
                 "Write weights and optimizer states to this safetensors file at the end, atomically"));
  run(command->add_option("--checkpoint-every", options->checkpoint_every,
                          "Number of steps between checkpoints, 1 to 100000000 (default: only at the end)"))
      ->check(CLI::Range(1, 100000000));
  run(command
          ->add_option("--resume", options->resume,
                       "Continue from this checkpoint for --steps more steps; parallel sizes may differ")
          ->type_name(kReadFile));
  run(add_output(*command, "--trace", options->trace,
                 "Write the measured timeline of the last step as a Chrome trace (.json or .gz)"));
  run(command->add_flag("--json", options->json, "Print one JSON document (sluice.run/1)"));
  const auto faults = [](CLI::Option* option) { return option->group(kFailures); };
  faults(command
             ->add_option("--post-mortem", options->post_mortem,
                          "Print the flight recorders in this folder, left by another run, and exit")
             ->type_name(kReadFile));
  options->watch.add_to(*command);
  faults(command->add_option("--grace", options->grace,
                             "Time in seconds for the current step, on devices also the next one, and the checkpoint "
                             "after SIGINT or SIGTERM, 0.1 to 1000000 (default 25)"))
      ->check(number_from(0.1, 1e6));
  faults(command->add_option(
             "--fault", options->faults,
             "Inject a fault: delay, drop, kill, stop, nan or latency (of each exchange of tokens of experts), such as "
             "delay:rank=1,op=F,mb=2,step=3,seconds=2; steps count from 1, as in the log; repeatable (default: none)"))
      ->expected(1)
      ->take_all();
  return {command, [options] { return options->flags->naming_flags([&] { return run_command(*options); }); }};
}

}  // namespace sluice::tools
