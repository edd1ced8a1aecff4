#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/watch/process_state.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "sim/planner/plan.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/command.h"
#include "tools/command/interrupt.h"
#include "tools/command/messages.h"
#include "tools/command/mpi_ranks.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/plan/frameworks.h"
#include "tools/plan/partition_report.h"
#include "tools/plan/plan_output.h"
#include "tools/plan/plan_request.h"

namespace sluice::tools {
namespace {

// The results of one process in a round.
struct PlanPart {
  std::vector<Plan::Work> work;
  std::vector<PlanResult> results;  // one per element of `work`
  bool interrupted = false;
};

// Encode and decode a part for exchange between processes; all values stay exact. Work that was stopped is left out.
std::string to_bytes(std::span<const Plan::Work> work, std::span<const PlanResult> results, bool interrupted) {
  using nlohmann::json;
  json rows = json::array();
  for (std::size_t i = 0; i < work.size(); ++i) {
    const PlanResult& result = results[i];
    if (result.status == PlanStatus::open && result.needed_bytes == 0) continue;  // stopped before it was assessed
    const Throughput& speed = result.throughput;
    rows.push_back(
        json::array({work[i].point, work[i].structure, work[i].simulate, static_cast<int>(result.status), result.fits,
                     result.tight, result.rank, result.needed_bytes, result.bound.count(), result.iteration.count(),
                     result.makespan.count(), result.bubble_fraction, speed.tokens_per_s, speed.model_tflops_per_device,
                     speed.hardware_tflops_per_device, speed.mfu, result.reason, result.extrapolated}));
  }
  std::string out;
  json::to_msgpack(json::array({interrupted, std::move(rows)}), out);
  return out;
}

PlanPart plan_part_of(const std::string& bytes) {
  using nlohmann::json;
  const json document = json::from_msgpack(bytes);
  PlanPart part;
  part.interrupted = document[0].get<bool>();
  for (const json& row : document[1]) {
    part.work.push_back({.point = row[0].get<int>(), .structure = row[1].get<int>(), .simulate = row[2].get<bool>()});
    PlanResult& result = part.results.emplace_back();
    result.status = static_cast<PlanStatus>(row[3].get<int>());
    result.fits = row[4].get<bool>();
    result.tight = row[5].get<bool>();
    result.rank = row[6].get<int>();
    result.needed_bytes = row[7].get<std::int64_t>();
    result.bound = Duration{row[8].get<std::int64_t>()};
    result.iteration = Duration{row[9].get<std::int64_t>()};
    result.makespan = Duration{row[10].get<std::int64_t>()};
    result.bubble_fraction = row[11].get<double>();
    result.throughput = {.tokens_per_s = row[12].get<double>(),
                         .model_tflops_per_device = row[13].get<double>(),
                         .hardware_tflops_per_device = row[14].get<double>(),
                         .mfu = row[15].get<double>()};
    result.reason = row[16].get<std::string>();
    result.extrapolated = row[17].get<bool>();
  }
  return part;
}

struct PlanOptions {
  PlanRequest request;
  bool partition = false;
  bool json = false;
  std::string csv;
  std::unique_ptr<ScenarioFlags> flags;
};

// Returns this process's part of a round; work on one structure stays together.
std::vector<Plan::Work> own_part(const std::vector<Plan::Work>& work, const MpiRanks& ranks) {
  std::vector<Plan::Work> out;
  int groups = 0;
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (i > 0 && work[i].group != work[i - 1].group) ++groups;
    if (groups % ranks.size() == ranks.rank()) out.push_back(work[i]);
  }
  return out;
}

// The processes of the other ranks, as far as they are on this host.
class PlanPeers {
 public:
  explicit PlanPeers(const MpiRanks& ranks) : own_rank_(ranks.rank()) {
    const std::string own = fmt::format("{} {}", ::getpid(), host_name());
    const auto all = ranks.all_gather(own, [] { return false; });
    for (const std::string& of_rank : *all) {
      const std::size_t blank = of_rank.find(' ');
      const bool here = of_rank.substr(blank + 1) == host_name();
      processes_.push_back(here ? std::stoll(of_rank.substr(0, blank)) : 0);
    }
  }

  // Returns the lowest rank whose process has died, or -1.
  int dead_rank() const {
    for (int rank = 0; rank < std::ssize(processes_); ++rank) {
      if (is_dead(rank)) return rank;
    }
    return -1;
  }
  // Returns whether all lower ranks have died.
  bool first_living() const {
    for (int rank = 0; rank < own_rank_; ++rank) {
      if (!is_dead(rank)) return false;
    }
    return true;
  }

 private:
  bool is_dead(int rank) const {
    return rank != own_rank_ && processes_[to_size(rank)] != 0 &&
           process_state(processes_[to_size(rank)]) == ProcessState::dead;
  }

  int own_rank_;
  std::vector<std::int64_t> processes_;  // ids by rank; 0: on another host
};

// How a search ended. alone: the results of some processes are missing, because they have died or are being ended.
enum class SearchEnd { complete, interrupted, alone };

// Decides that the other ranks do not reply: one has died, or a signal came a while ago (mpirun ends all processes a
// second after it got one).
class Patience {
 public:
  Patience(const PlanPeers& peers, const Interrupt& interrupt) : peers_(peers), interrupt_(interrupt) {}
  bool is_over() {
    const auto now = std::chrono::steady_clock::now();
    if (interrupt_.came() && !asked_) asked_ = now;
    if (asked_ && now - *asked_ > std::chrono::milliseconds(100)) return true;
    if (now < next_look_) return false;
    next_look_ = now + std::chrono::milliseconds(20);
    return peers_.dead_rank() >= 0;
  }

 private:
  const PlanPeers& peers_;
  const Interrupt& interrupt_;
  std::optional<std::chrono::steady_clock::time_point> asked_;
  std::chrono::steady_clock::time_point next_look_;
};

// After an interrupted assessment: simulates the most promising of what was assessed, so that there is a best so far.
void simulate_leaders(Plan& plan) {
  const std::vector<Plan::Work> leaders = plan.next();
  if (!leaders.empty() && leaders.front().simulate) plan.take(leaders, plan.work_out(leaders));
}

SearchEnd search(Plan& plan, const MpiRanks& ranks, const PlanPeers& peers, const Interrupt& interrupt) {
  std::optional<Progress> progress;
  std::int64_t base = 0;
  bool simulating = false;
  for (std::vector<Plan::Work> work = plan.next(); !work.empty(); work = plan.next()) {
    if (!progress || work.front().simulate != simulating) {
      simulating = work.front().simulate;
      progress.emplace(simulating ? "simulated" : "assessed", simulating ? plan.num_open() : std::ssize(work));
      base = 0;
    }
    if (simulating) base = plan.num_closed();
    const std::vector<Plan::Work> mine = own_part(work, ranks);
    std::atomic<std::int64_t> done = 0;
    const auto count = [&](std::int64_t more) {
      if (ranks.first()) progress->done(base + (done += more * ranks.size()));
    };
    const std::vector<PlanResult> results = plan.work_out(mine, interrupt.flag(), count);
    if (ranks.size() == 1) {
      plan.take(mine, results);
      plan.end_round();
      if (!interrupt.came()) continue;
      if (!simulating) simulate_leaders(plan);
      return SearchEnd::interrupted;
    }
    SearchEnd end = SearchEnd::complete;
    Patience patience(peers, interrupt);
    const auto parts = ranks.all_gather(to_bytes(mine, results, interrupt.came()), [&] { return patience.is_over(); });
    if (!parts) {
      plan.take(mine, results);
      end = SearchEnd::alone;
    } else {
      for (const std::string& part : *parts) {
        const PlanPart theirs = plan_part_of(part);
        plan.take(theirs.work, theirs.results);
        if (theirs.interrupted) end = SearchEnd::interrupted;
      }
    }
    plan.end_round();
    if (end != SearchEnd::complete) return end;
  }
  return SearchEnd::complete;
}

// Ends the process that has printed the results, without waiting for the others.
[[noreturn]] void end_alone(const PlanPeers& peers) {
  const int dead = peers.dead_rank();
  if (dead >= 0) {
    print_message(fmt::format("plan: the process of rank {} has died: the results are the best so far", dead));
  }
  std::fflush(nullptr);
  std::_Exit(dead >= 0 ? kWorkerLost : Interrupt::exit_code());
}

// Searches the partition of one configuration, on the first process.
int partition_command(const PlanOptions& options) {
  const MpiRanks ranks;
  if (!ranks.first()) return kDone;
  const Interrupt interrupt;
  const auto begin = std::chrono::steady_clock::now();
  PlanSpace space = space_of(options.request);
  const nlohmann::json document = options.flags->document(options.request.file);
  const Scenario base = base_scenario(options.request, document, true, space);
  if (base.documents || base.training.forward_only() || base.encoder.apart()) {
    throw InputError("plan: --partition is for training with microbatches of one length, and the encoder on stage 0");
  }
  if (base.first_stage_layers > 0 || base.last_stage_layers > 0) {
    throw InputError(
        "plan: --partition chooses the layers of all stages: remove --decoder-first-pipeline-num-layers and "
        "--decoder-last-pipeline-num-layers");
  }
  PartitionReport report{
      .base = base, .space = space, .document = document, .point = only_configuration(base, space), .found = {}};
  report.found = best_partition(scenario_of(base, space, report.point), {}, interrupt.flag());
  report.point.stage_layers = report.found.layers;
  report.point.mtp_stage = report.found.mtp_stage;
  report.interrupted = interrupt.came();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_message(calibration_warning(base));
  const bool any = report.found.result.status == PlanStatus::simulated;
  if (any) fmt::print("{}", options.json ? partition_json(report) : partition_table(report));
  if (report.interrupted) return Interrupt::exit_code();
  const std::string refusal = partition_refusal(report);
  print_message(refusal);
  return refusal.empty() ? kDone : kNotFeasible;
}

int plan_command(const PlanOptions& options) {
  if (options.partition) return partition_command(options);
  const MpiRanks ranks;
  const PlanPeers peers(ranks);
  const Interrupt interrupt;
  try {
    const auto begin = std::chrono::steady_clock::now();
    const nlohmann::json document = options.flags->document(options.request.file);
    Plan plan = plan_of(options.request, document);
    const std::vector<std::string> notes = notes_of_plan(options.request, document, plan);
    if (ranks.first()) {
      for (const std::string& note : notes) print_message(note);
      ScenarioFlags::print_notes(options.request.file);
    }
    const SearchEnd end = search(plan, ranks, peers, interrupt);
    const bool finished = end == SearchEnd::complete;
    if (end == SearchEnd::alone) {
      if (!peers.first_living() || ranks.others_report()) std::_Exit(Interrupt::exit_code());
      ranks.report_alone();
    }
    if (end != SearchEnd::alone && !ranks.first()) return kDone;
    if (finished) refine_plan(plan, options.request, interrupt.flag());
    const bool interrupted = !finished || interrupt.came();
    if (const std::string invalid = plan_invalid(plan); finished && !invalid.empty()) {
      throw_invalid(options.request, document, plan, invalid);
    }
    print_message(calibration_warning(plan.base()));
    PlanReport report = report_of(plan, options.request);
    report.document = document;
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    report.interrupted = interrupted;
    if (interrupted) report.show.clear();
    if (!plan.ranking().empty()) check_shown(report);
    if (!options.csv.empty()) write_file_whole(options.csv, plan_csv(plan));
    fmt::print("{}", options.json ? plan_json(report) : plan_table(report));
    if (end == SearchEnd::alone) end_alone(peers);
    if (interrupted) return Interrupt::exit_code();
    const std::string refusal = plan_refusal(plan);
    if (refusal.empty()) return kDone;
    print_message(refusal);
    return kNotFeasible;
  } catch (...) {
    if (ranks.first()) throw;
    return kWrongInput;  // the first process reports the error
  }
}

}  // namespace

Subcommand add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan",
      "Search for the fastest parallel sizes, schedules, recomputation and placement.\n\n"
      "Examples:\n"
      "  sluice plan --model llama3-8b --cluster dgx-h100 --gpus 64 \\\n"
      "      --gbs 256 --seq-length 8192\n"
      "  sluice plan examples/gpt3-175b-a100.json --schedule megatron --top 5\n"
      "  sluice plan examples/gpt3-175b-a100.json --tp 8 --recompute full --csv all.csv\n"
      "  sluice plan examples/gpt3-175b-a100.json --schedule pipedream-2bw --tp 1\n"
      "  sluice plan examples/gpt3-175b-a100.json --partition --use-distributed-optimizer no\n"
      "  mpirun -n 16 sluice plan examples/gpt3-175b-a100.json --all --json\n\n"
      "All GPUs of --gpus, of --nodes or of the given sizes are used; the first line names their number. Each flag of "
      "the search takes a comma-separated list; unspecified parameters "
      "are searched. Configurations that cannot fit in memory, and those that a lower bound on their time rules out, "
      "are not simulated, except with --all.");
  command->group("Predict and plan");
  command->footer(
      "Exit codes: 0 success, 2 wrong input, 3 no configuration fits, 6 another process died, 130 interrupted, 143 "
      "ended by "
      "SIGTERM. The last three print the best configurations so far.");
  const auto options = std::make_shared<PlanOptions>();
  command->add_option("scenario", options->request.file,
                      "Scenario file with model, cluster, batch and framework; flags override its keys");
  const auto search = [&](CLI::Option* option) { return option->group("Search"); };
  const auto list = [&](const char* names, auto& into, const char* help) {
    return search(command->add_option(names, into, help)->delimiter(',')->allow_extra_args(false));
  };
  const auto sizes = [&](const char* names, std::vector<int>& into, int most, const char* help) {
    list(names, into, help)->check(CLI::Range(1, most));
  };
  PlanSpace& space = options->request.space;
  search(command
             ->add_option(
                 "--gpus", space.gpus,
                 "Number of GPUs, 1 to 16777216 (default: the scenario's or --nodes', else tp x cp x pp x dp where dp "
                 "is given, else the nodes that hold tp x cp x pp)")
             ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24)));
  search(command
             ->add_option("--microbatches", options->request.microbatches,
                          "Number of microbatches per batch and pipeline, 1 to 1048576, in place of --gbs: with one "
                          "value each of --dp and --mbs it gives the batch (default: the scenario's)")
             ->check(CLI::Range(1, 1 << 20)));
  search(command
             ->add_option("--runs-on", options->request.runs_on,
                          "Only configurations that this framework runs as it is, and its command line or "
                          "configuration file for the first: megatron, megatron-bridge, torchtitan, deepspeed, sluice "
                          "or any (default: any; with --schedule megatron: megatron)")
             ->type_name("TEXT:{megatron,megatron-bridge,torchtitan,deepspeed,sluice,any}"));
  list("--schedule", options->request.schedules,
       "Schedule families, or megatron for those of Megatron-LM (default: all with a flush)");
  sizes("--tp,--tensor-model-parallel-size", space.tp, 4096,
        "Tensor-parallel sizes, 1 to 4096 (default: divisors of the GPUs per node)");
  sizes("--cp,--context-parallel-size", space.cp, 4096,
        "Context-parallel sizes, 1 to 4096 (default: powers of two up to the GPUs per node that leave a rank at least "
        "4096 tokens of a sequence)");
  sizes("--pp,--pipeline-model-parallel-size", space.pp, kMaxRanks,
        "Pipeline-parallel sizes, 1 to 8192 (default: all divisors up to the number of layers)");
  sizes("--dp,--data-parallel-size", space.dp, 1 << 20,
        "Data-parallel sizes, 1 to 1048576 (default: GPUs / (tp x cp x pp))");
  sizes("--ep,--expert-model-parallel-size", space.ep, 1 << 16,
        "Expert-parallel sizes, 1 to 65536 (default: divisors of the number of experts that divide tp x cp x dp)");
  sizes("--etp,--expert-tensor-parallel-size", space.etp, 4096,
        "Numbers of ranks over which each expert is split, 1 to 4096 (default: 1)");
  sizes("--vpp", space.chunks, kMaxStages,
        "Numbers of chunks per rank, for interleaved families, 1 to 32767 (default: all up to 8)");
  sizes("--mbs,--micro-batch-size", space.micro_batch, 1 << 20,
        "Sequences per microbatch, 1 to 1048576 (default: powers of two up to 16)");
  sizes("--slices", space.slices, kMaxSlices,
        "Numbers of slices per sequence, for families that cut sequences, 1 to 32767 (default: 2,4,8)");
  search(command
             ->add_option("--slicing", options->request.slicing,
                          "How sequences are cut: into slices of equal FLOPs or of equal length (default: balanced)")
             ->check(CLI::IsMember({"balanced", "even"})));
  list("--recompute", space.recompute,
       "Activation recomputation: none, selective, full (default: all that differ). Without --recompute-modules, "
       "selective tries core attention, and of models with experts or latent attention also norms, the experts' "
       "activation and the projection up from the latents")
      ->type_name("TEXT:{none,selective,full}");
  list("--recompute-num-layers", space.recompute_layers,
       "With full recomputation: numbers of leading layers recomputed per stage, 0 to 100000, where 0 is all (default: "
       "all, a half and a quarter; for the first ten of the ranking, the smallest number that fits)")
      ->check(CLI::Range(0, 100000));
  list("--overlap-grad-reduce", options->request.overlap_grad_reduce,
       "Overlap gradient reduction with the backward pass: yes, no (default: as in the scenario, no)")
      ->type_name("TEXT:{yes,no}");
  list("--overlap-param-gather", options->request.overlap_param_gather,
       "Gather parameters before the first forward of each stage instead of after the step, with the distributed "
       "optimizer and overlapped gradient reduction: yes, no (default: as in the scenario, no)")
      ->type_name("TEXT:{yes,no}");
  list("--use-distributed-optimizer", options->request.distributed_optimizer,
       "Shard optimizer states over the replicas: yes, no (default: both)")
      ->type_name("TEXT:{yes,no}");
  list("--use-tp-pp-dp-mapping", options->request.mapping,
       "Place the stages of a replica on neighboring GPUs: yes, no (default: both)")
      ->type_name("TEXT:{yes,no}");
  search(command->add_flag("--no-sequence-parallel", options->request.no_sequence_parallel,
                           "Disable sequence parallelism (default: enabled where tp > 1)"));
  search(command->add_flag("--even-stages", options->request.even_stages,
                           "Distribute the layers as evenly as possible (default: also try fewer in the first and last "
                           "stage, and search the layers of every stage for the first ten of the ranking)"));
  search(command->add_flag("--all", options->request.everything,
                           "Simulate every configuration that fits in memory (default: only promising ones)"));
  search(command->add_flag("--partition", options->partition,
                           "Search the number of layers of every stage of one configuration, given by flags or the "
                           "scenario, and print the best with a lower bound (default: search configurations)"))
      ->excludes("--all", "--even-stages", "--runs-on");
  command->add_option("--top", options->request.top, "Number of rows in the ranking, 1 to 100000 (default 10)")
      ->check(CLI::Range(1, 100000));
  command
      ->add_option("--show", options->request.show,
                   "Rows of the ranking to print in full, 1 to 100000: layout, flags, and how each framework runs it "
                   "(default: none)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 100000))
      ->excludes("--partition");
  command
      ->add_option("--shortlist", options->request.shortlist,
                   "Number of configurations to name for measurements, 1 to 1000, such that their fastest is "
                   "expected to be as fast as possible, given the errors of predictions (default: none)")
      ->check(CLI::Range(1, 1000))
      ->excludes("--partition");
  command
      ->add_option(
          "--model-error", options->request.model_error,
          "Relative error of a predicted difference, such as 3.5% or 0.035, at most 100%; smaller differences are "
          "marked (default: the median error over pairs of measured runs like the fastest configuration)")
      ->transform(fraction(1));
  command
      ->add_option("--memory-margin", options->request.memory_margin,
                   "Part of a GPU's memory, such as 6% or 0.06, at most 100%: configurations that need some of it are "
                   "ranked last (default: that of the GPU)")
      ->transform(fraction(1));
  command->add_flag("--json", options->json, "Print one JSON document (sluice.plan/1)");
  add_output(*command, "--csv", options->csv, "Write all configurations to this CSV file")->excludes("--partition");
  options->flags = std::make_unique<ScenarioFlags>(*command, kPlan);
  ScenarioFlags::add_imports(*command, options->request.file);
  return {command, [options] {
            return options->flags->naming_flags(options->request.file, [&] { return plan_command(*options); });
          }};
}

}  // namespace sluice::tools
