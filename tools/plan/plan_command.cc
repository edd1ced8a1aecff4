#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/errors.h"
#include "model/input/files.h"
#include "sim/planner/plan.h"
#include "tools/command/command.h"
#include "tools/command/interrupt.h"
#include "tools/command/mpi_ranks.h"
#include "tools/command/progress.h"
#include "tools/command/scenario_flags.h"
#include "tools/plan/plan_exchange.h"
#include "tools/plan/plan_output.h"

namespace sluice::tools {
namespace {

// Of the difference between two configurations of one model on one cluster: the median over pairs of measured ones
// (docs/results.md, "Plans").
constexpr double kModelError = 0.035;

// What a plan chooses itself, or has flags of its own for.
constexpr std::string_view kChosen[] = {"--schedule",
                                        "--pp",
                                        "--vpp",
                                        "--num-layers-per-virtual-pipeline-stage",
                                        "--group",
                                        "--microbatches",
                                        "--slices",
                                        "--slicing",
                                        "--slice-lengths",
                                        "--batches",
                                        "--tp",
                                        "--dp",
                                        "--sequence-parallel",
                                        "--recompute",
                                        "--recompute-num-layers",
                                        "--use-distributed-optimizer",
                                        "--use-tp-pp-dp-mapping",
                                        "--mbs",
                                        "--stage-layers",
                                        "--jitter",
                                        "--trials",
                                        "--seed",
                                        "--memory-cap",
                                        "--time-budget",
                                        "--placement",
                                        "--uniform",
                                        "--slow-rank"};

struct Options {
  std::string file;
  PlanSpace space;
  std::vector<std::string> schedules;
  std::vector<std::string> distributed_optimizer;
  std::vector<std::string> mapping;
  std::string slicing = "balanced";
  bool no_sequence_parallel = false;
  bool even_stages = false;
  bool everything = false;
  int top = 10;
  double model_error = kModelError;
  bool json = false;
  std::string csv;
  std::unique_ptr<ScenarioFlags> flags;
};

// The scenario without what the plan chooses.
Scenario base_scenario(const Options& options) {
  nlohmann::json document = options.flags->document(options.file);
  document.erase("schedule");
  if (document.contains("parallelism")) {
    for (const char* key : {"pp", "tp", "dp", "vpp", "layers_per_virtual_stage", "stage_layers", "sequence_parallel",
                            "distributed_optimizer", "recompute", "pipeline_before_data"}) {
      document["parallelism"].erase(key);
    }
    if (document["parallelism"].contains("recompute_layers")) document["parallelism"].erase("recompute_layers");
  }
  if (document.contains("batch")) {
    if (!document["batch"].contains("global_batch") && document["batch"].contains("microbatches")) {
      throw InputError("plan: a global batch is needed (--gbs), not a number of microbatches");
    }
    for (const char* key : {"micro_batch", "microbatches"}) document["batch"].erase(key);
  }
  document.erase("perturbation");
  const bool counted = document.contains("cluster") && document["cluster"].is_object() &&
                       (document["cluster"].contains("nodes") || !document["cluster"].contains("name"));
  Scenario scenario = ScenarioFlags::read(document, options.file);
  if (scenario.cluster && options.space.gpus > 0 && !counted && scenario.cluster->nodes == 1) {
    const std::int64_t node = scenario.cluster->gpus_per_node;
    scenario.cluster->nodes = static_cast<int>((options.space.gpus + node - 1) / node);
  }
  return scenario;
}

std::vector<bool> yes_or_no(const std::vector<std::string>& words, const char* flag) {
  std::vector<bool> out;
  for (const std::string& word : words) {
    if (word != "yes" && word != "no") throw InputError(fmt::format("{}: expected yes or no, got '{}'", flag, word));
    out.push_back(word == "yes");
  }
  return out;
}

PlanSpace space_of(const Options& options) {
  PlanSpace space = options.space;
  for (const std::string& name : options.schedules) {
    if (name == "auto") {
      throw InputError("plan: --schedule auto is for one configuration: 'sluice simulate --schedule auto'");
    }
    if (name == "megatron") {
      space.families.insert(space.families.end(), {"1f1b", "interleaved-1f1b"});
    } else {
      space.families.push_back(name);
    }
  }
  space.distributed_optimizer = yes_or_no(options.distributed_optimizer, "--use-distributed-optimizer");
  space.pipeline_before_data = yes_or_no(options.mapping, "--use-tp-pp-dp-mapping");
  space.sequence_parallel = !options.no_sequence_parallel;
  space.balanced_slices = options.slicing == "balanced";
  space.uneven_outer_stages = !options.even_stages;
  return space;
}

// This rank's part of a round: whole structures.
std::vector<Plan::Work> share_of(const std::vector<Plan::Work>& work, const MpiRanks& ranks) {
  std::vector<Plan::Work> out;
  int structures = 0;
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (i > 0 && work[i].structure != work[i - 1].structure) ++structures;
    if (structures % ranks.size() == ranks.rank()) out.push_back(work[i]);
  }
  return out;
}

// False: it was interrupted.
bool search(Plan& plan, const MpiRanks& ranks, const Interrupt& interrupt) {
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
    const std::vector<Plan::Work> mine = share_of(work, ranks);
    std::atomic<std::int64_t> done = 0;
    const auto count = [&](std::int64_t more) {
      if (ranks.first()) progress->done(base + (done += more * ranks.size()));
    };
    const std::vector<PlanResult> results = plan.work_out(mine, interrupt.flag(), count);
    bool stopped = false;
    for (const std::string& part : ranks.all_gather(to_bytes(mine, results, interrupt.came()))) {
      const PlanPart theirs = plan_part_of(part);
      plan.take(theirs.work, theirs.results);
      stopped |= theirs.interrupted;
    }
    plan.end_round();
    if (stopped) return false;
  }
  return true;
}

int plan_command(const Options& options) {
  const MpiRanks ranks;
  const Interrupt interrupt;
  try {
    const auto begin = std::chrono::steady_clock::now();
    Plan plan(base_scenario(options), space_of(options), options.top, options.everything);
    const bool finished = search(plan, ranks, interrupt);
    if (!ranks.first()) return kDone;
    PlanReport report{.plan = &plan, .top = options.top, .model_error = options.model_error};
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    report.interrupted = !finished;
    if (!options.csv.empty()) write_file_whole(options.csv, plan_csv(plan));
    fmt::print("{}", options.json ? plan_json(report) : plan_table(report));
    if (!finished) return kInterrupted;
    const std::string refusal = plan_refusal(plan);
    if (refusal.empty()) return kDone;
    fmt::print(stderr, "sluice: {}\n", refusal);
    return kAnswerIsNo;
  } catch (...) {
    if (ranks.first()) throw;
    return kWrongInput;  // the first rank says what is wrong
  }
}

}  // namespace

Subcommand add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan",
      "Searches all ways to run a model on a cluster: sizes, schedules, recomputation, placement.\n\n"
      "Examples:\n"
      "  sluice plan --model examples/models/llama3-8b/config.json --cluster dgx-h100 --gpus 64 --gbs 256 --seq-length "
      "8192\n"
      "  sluice plan examples/gpt3-175b-a100.json --schedule megatron --top 5\n"
      "  sluice plan examples/gpt3-175b-a100.json --tp 8 --recompute full --csv all.csv\n"
      "  sluice plan examples/gpt3-175b-a100.json --schedule pipedream-2bw --tp 1\n"
      "  mpirun -n 16 sluice plan examples/gpt3-175b-a100.json --all --json\n\n"
      "All GPUs of the cluster are used. Each flag of the search takes a list; what is not given is searched. What "
      "cannot fit or is certainly worse than the --top fastest and not on the Pareto front of time and memory is "
      "not simulated, unless with --all.\n\n"
      "Exit codes: 0 done, 2 wrong input, 3 nothing fits, 130 interrupted (what was found is printed)");
  const auto options = std::make_shared<Options>();
  command->add_option("scenario", options->file,
                      "scenario file: its model, cluster, batch and software; flags are laid over it");
  PlanSpace& space = options->space;
  const char* kSearch = "Search";
  const auto list = [&](const char* names, auto& into, const char* help) {
    command->add_option(names, into, help)->delimiter(',')->allow_extra_args(false)->group(kSearch);
  };
  const auto sizes = [&](const char* names, std::vector<int>& into, const char* help) {
    command->add_option(names, into, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::Range(1, 1 << 20))
        ->group(kSearch);
  };
  command->add_option("--gpus", space.gpus, "GPUs to use (default: all of the cluster)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->group(kSearch);
  list("--schedule", options->schedules, "families, or 'megatron' for those of Megatron-LM (default: all that flush)");
  sizes("--tp,--tensor-model-parallel-size", space.tp, "(default: up to a node)");
  sizes("--pp,--pipeline-model-parallel-size", space.pp, "(default: all that divide)");
  sizes("--dp,--data-parallel-size", space.dp, "(default: what is left)");
  sizes("--vpp", space.chunks, "chunks a rank of interleaved families (default: up to 8)");
  sizes("--mbs,--micro-batch-size", space.micro_batch, "(default: powers of two up to 16)");
  sizes("--slices", space.slices, "of families that cut sequences (default: 2,4,8)");
  command->add_option("--slicing", options->slicing, "balanced (default) or even")
      ->check(CLI::IsMember({"balanced", "even"}))
      ->group(kSearch);
  list("--recompute", space.recompute, "none, selective, full (default: all that differ)");
  list("--use-distributed-optimizer", options->distributed_optimizer, "yes, no (default: both)");
  list("--use-tp-pp-dp-mapping", options->mapping,
       "yes: the pipeline's ranks nearer than replicas, no (default: both)");
  command
      ->add_flag("--no-sequence-parallel", options->no_sequence_parallel,
                 "not with tensor parallelism either (default: with it)")
      ->group(kSearch);
  command->add_flag("--even-stages", options->even_stages, "do not try lighter outer stages")->group(kSearch);
  command->add_flag("--all", options->everything, "simulate all that fits")->group(kSearch);
  command->add_option("--top", options->top, "rows of the ranking (default 10)")->check(CLI::Range(1, 100000));
  command
      ->add_option("--model-error", options->model_error,
                   "relative error of a difference, below which two are marked alike (default 0.035)")
      ->check(CLI::Range(0.0, 1.0));
  command->add_flag("--json", options->json, "one JSON document (sluice.plan/1) on standard output");
  command->add_option("--csv", options->csv, "write a table of every configuration");
  options->flags = std::make_unique<ScenarioFlags>(*command, kChosen);
  return {command, [options] { return plan_command(*options); }};
}

}  // namespace sluice::tools
