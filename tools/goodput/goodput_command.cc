#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/command.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/goodput/goodput_flags.h"
#include "tools/goodput/goodput_output.h"
#include "tools/goodput/goodput_pictures.h"
#include "tools/goodput/goodput_sweep.h"

namespace sluice::tools {
namespace {

struct GoodputOptions {
  GoodputRequest request;
  bool json = false;
  std::string csv, svg, trace;
  std::vector<std::string> sweep;
  std::unique_ptr<ScenarioFlags> flags;
};

int swept(const GoodputOptions& options, const nlohmann::json& document) {
  if (!options.svg.empty() || !options.trace.empty()) throw InputError("goodput: --sweep excludes --svg and --trace");
  std::vector<SweepAxis> axes;
  for (const std::string& text : options.sweep) axes.push_back(parse_sweep_axis(text));
  const OrderedJson sweep = goodput_sweep_json(options.request, document, axes);
  std::set<std::string> warnings;
  for (const OrderedJson& run : sweep["runs"]) {
    for (const OrderedJson& warning : run.value("warnings", OrderedJson::array())) {
      if (warnings.insert(warning.get<std::string>()).second) print_message(warning.get<std::string>());
    }
  }
  if (!options.csv.empty()) write_file_whole(options.csv, goodput_sweep_csv(sweep));
  fmt::print("{}", options.json ? json_text(sweep) : goodput_sweep_text(sweep));
  return kDone;
}

int goodput_command(GoodputOptions& options) {
  GoodputRequest& request = options.request;
  const nlohmann::json document = options.flags->document(request.file);
  ScenarioFlags::print_notes(request.file);
  if (!options.sweep.empty()) return swept(options, document);
  const GoodputSetting setting = goodput_setting(request, document);
  for (const std::string& warning : setting.warnings) print_message(warning);
  const OrderedJson results = goodput_json(request, setting);
  if (!options.csv.empty()) write_file_whole(options.csv, goodput_csv(results));
  if (!options.svg.empty() || !options.trace.empty()) {
    const MedianRun run(request, setting, results);
    if (!options.svg.empty()) write_file_whole(options.svg, run.svg());
    if (!options.trace.empty()) write_file_whole(options.trace, run.chrome_trace());
  }
  fmt::print("{}", options.json ? json_text(results) : goodput_text(results));
  return kDone;
}

}  // namespace

Subcommand add_goodput_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "goodput",
      "Simulate a whole training run with failures, checkpoints and recoveries.\n\n"
      "Examples:\n"
      "  sluice goodput examples/gpt3-175b-a100.json --days 54\n"
      "  sluice goodput examples/gpt3-175b-a100.json --tokens 300e9 --spares 4 --policy shrink\n"
      "  sluice goodput --gpus 16384 --step-time 5s --checkpoint-stall 10s --recovery 10min --days 54\n"
      "  sluice goodput --gpus 1024 --sweep gpus=1024,4096,16384 --sweep policy=restart,migrate --quick\n"
      "  sluice goodput --gpus 1024 --mtbf 7.9h --checkpoint-size 2.3 --checkpoint sync --json\n\n"
      "The time of an iteration is that of sluice simulate, also without some replicas and with stragglers. The result "
      "is the fraction of the wall clock that makes progress that is not lost, what takes the rest, the best "
      "interval between checkpoints, and what halving each cause gains. A TIME is 300, 10min, 3.1h or 54d, or "
      "exp:MEAN, uniform:LOW:HIGH, lognormal:MEDIAN:MEAN or weibull:MEAN:K.");
  command->group("Predict and plan");
  command->footer("Exit codes: 0 success, 2 wrong input, 4 invalid schedule.");
  const auto options = std::make_shared<GoodputOptions>();
  GoodputRequest& request = options->request;
  command->add_option("scenario", request.file, "Scenario file (docs/formats.md); flags override its keys");
  add_goodput_flags(*command, request);
  command->add_flag("--json", options->json, "Print one JSON document (sluice.goodput/1)");
  command
      ->add_option("--sweep", options->sweep,
                   "Simulate all combinations of values of flags or of keys of the scenario, such as "
                   "gpus=1024,2048,4096 or policy=restart,reroute; repeatable (default: none)")
      ->expected(1)
      ->take_all();
  add_output(*command, "--csv", options->csv, "Write the use of time by cause, or a sweep, to this CSV file");
  add_output(*command, "--svg", options->svg, "Write a picture of the median run: progress, use of time, failures");
  add_output(*command, "--trace", options->trace, "Write the median run as a Chrome trace");
  constexpr std::array<std::string_view, 3> kOwn = {"--trials", "--seed", "--jitter"};
  options->flags = std::make_unique<ScenarioFlags>(*command, kSimulate, kOwn);
  ScenarioFlags::add_imports(*command, request.file);
  return {command, [options] {
            return options->flags->naming_flags(options->request.file, [&] { return goodput_command(*options); });
          }};
}

}  // namespace sluice::tools
