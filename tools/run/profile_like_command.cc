#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/cost/analytic.h"
#include "model/cost/kernel_uses.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/automatic.h"
#include "tools/command/command.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/run/kernel_script.h"

namespace sluice::tools {
namespace {

struct LikeOptions {
  std::string like;  // a scenario file, or "true"
  std::string file;
  std::string output;
  bool json = false;
  std::unique_ptr<ScenarioFlags> flags;
};

// {"schema": "sluice.kernel_shapes/1", "gpu", "kernels": [..]}, one kernel per line.
std::string shapes_text(const std::string& gpu, const std::vector<KernelUse>& shapes) {
  const auto text = [](const auto& json) { return nlohmann::ordered_json(json).dump(-1, ' ', true); };
  std::string rows;
  for (const KernelUse& use : shapes) {
    nlohmann::ordered_json row = to_json(use.shape);
    row["count"] = use.count;
    row["predicted_s"] = use.seconds;
    rows += fmt::format("{}\n    {}", rows.empty() ? "" : ",", text(row));
  }
  return fmt::format("{{\n  \"schema\": \"sluice.kernel_shapes/1\",\n  \"gpu\": {},\n  \"kernels\": [{}\n  ]\n}}",
                     text(gpu), rows);
}

void write_script(const std::string& path, const std::string& shapes) {
  constexpr std::string_view kPlace = "@SHAPES@";
  std::string text(kKernelScript);
  text.replace(text.find(kPlace), kPlace.size(), shapes);
  write_file_whole(path, text);
}

void print_shapes(const std::vector<KernelUse>& shapes, const KernelUses& uses) {
  std::size_t width = 6;
  for (const KernelUse& use : shapes) width = std::max(width, to_string(use.shape).size());
  fmt::print("{:<{}}  {:>10}  {:>12}  {:>7}\n", "kernel", width, "count", "predicted us", "percent");
  double seconds = 0;
  for (const KernelUse& use : shapes) {
    const double total = static_cast<double>(use.count) * use.seconds;
    fmt::print("{:<{}}  {:>10}  {:>12.1f}  {:>5.1f} %\n", to_string(use.shape), width, use.count, 1e6 * use.seconds,
               100 * total / uses.compute_s);
    seconds += total;
  }
  fmt::print("\n{} kernels with {:.1f} % of the predicted compute time; the others only move data\n", shapes.size(),
             100 * seconds / uses.compute_s);
}

int profile_like(const LikeOptions& options) {
  if (options.like != "true" && !options.file.empty()) {
    throw InputError(fmt::format("--like: expected one scenario, got {} and {}", options.like, options.file));
  }
  const std::string& file = options.like != "true" ? options.like : options.file;
  return options.flags->naming_flags(file, [&] {
    const PlannedSetup planned = planned_with_progress(options.flags->scenario(file));
    ScenarioFlags::print_notes(file);
    print_message(ScenarioFlags::unused(file, "profile --like", kKernels));
    const auto* cost = dynamic_cast<const AnalyticCost*>(&planned.setup->cost());
    if (cost == nullptr) {
      throw InputError(
          "--like: expected a scenario with a model, a cluster and the analytic cost (--model, --cluster)");
    }
    const Training& training = cost->training();
    if (training.cp > 1 && training.context_exchange == Training::ContextExchange::ring) {
      print_message("attention is not listed: the steps of a ring (--cp-comm-type p2p) have different shapes");
    }
    const KernelUses uses = kernel_uses(*cost, planned.setup->schedule());
    const std::vector<KernelUse> shapes = uses.not_measured();
    if (shapes.empty()) throw InputError("--like: all GEMM and attention kernels have a time (--kernel-times)");
    const std::string text = shapes_text(cost->cluster().gpu.name, shapes);
    if (!options.output.empty()) write_script(options.output, text);
    if (options.json) {
      fmt::print("{}\n", text);
      return kDone;
    }
    print_shapes(shapes, uses);
    if (!options.output.empty()) {
      fmt::print("\npython3 {} -o kernel_times.json     # on {}, with PyTorch\n", options.output,
                 cost->cluster().gpu.name);
      fmt::print("sluice calibrate kernel_times.json -o kernels.json\n");
    }
    return kDone;
  });
}

}  // namespace

Subcommand add_profile_like_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "profile",
      "List the GEMM and attention kernels of a scenario, and write a script that times them.\n\n"
      "Examples:\n"
      "  sluice profile --like examples/llama3-8b-zbv-h100.json -o kernels.py\n"
      "  sluice profile --like --model llama3-8b --cluster dgx-h100 --tp 8 --pp 1 --gbs 8 --seq-length 8192 \\\n"
      "      -o kernels.py\n"
      "  python3 kernels.py -o kernel_times.json\n"
      "  sluice calibrate kernel_times.json -o kernels.json\n"
      "  sluice simulate examples/llama3-8b-zbv-h100.json --kernel-times kernels.json\n\n"
      "With --like, profile measures nothing itself: the script is one file that needs only Python and PyTorch on a "
      "machine with the scenario's GPU. Kernels that have a time already (--kernel-times) are left out. The flags are "
      "those of 'sluice simulate' that kernels depend on; without --like, see 'sluice profile --help'.");
  command->group("Run and measure");
  command->footer("Exit codes: 0 success, 2 wrong input, 4 invalid schedule.");
  const auto options = std::make_shared<LikeOptions>();
  command->add_flag("--like", options->like, "List the kernels of the scenario (--like=FILE or --like FILE)");
  command->add_option("scenario", options->file, "Scenario file (docs/formats.md); flags override its keys");
  command->add_flag("--json", options->json, "Print the shapes as JSON (sluice.kernel_shapes/1)");
  add_output(*command, "-o,--output", options->output, "Write the PyTorch script, which contains the shapes");
  options->flags = std::make_unique<ScenarioFlags>(*command, kKernels);
  ScenarioFlags::add_imports(*command, options->file);
  return {command, [options] { return profile_like(*options); }};
}

}  // namespace sluice::tools
