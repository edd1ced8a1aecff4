#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/goodput/goodput_flags.h"
#include "tools/goodput/goodput_output.h"
#include "tools/goodput/goodput_request.h"
#include "tools/simulate/simulation_report.h"
#include "tools/simulate/sweep.h"

namespace sluice::tools {
namespace {

OrderedJson swept_run(GoodputRequest request, nlohmann::json document, const std::vector<SweepAxis>& axes,
                      const std::vector<std::string>& values) {
  GoodputRequest unused;
  CLI::App flags;
  add_goodput_flags(flags, unused);
  std::vector<std::string> words;
  OrderedJson row;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::string flag = axes[i].key.starts_with("--") ? axes[i].key : "--" + axes[i].key;
    row["values"][axes[i].key] = values[i];
    if (flags.get_option_no_throw(flag) != nullptr) {
      words.insert(words.end(), {flag, values[i]});
    } else {
      ScenarioFlags::set(document, axes[i].key, values[i], request.file);
    }
  }
  try {
    read_goodput_flags(request, std::move(words));
    const GoodputSetting setting = goodput_setting(request, document);
    row.update(goodput_json(request, setting));
    row["warnings"] = setting.warnings;
  } catch (const InputError& error) {
    row["error"] = error.what();
  }
  return row;
}

// The keys of the axes as columns of a table or of CSV.
template <typename Column>
std::string with_axes(const OrderedJson& sweep, const Column& column, std::string_view rest) {
  std::string out;
  for (const OrderedJson& key : sweep["keys"]) out += column(key.get<std::string>());
  return out += rest;
}

// What every run of a sweep assumes; what differs between them is in its JSON.
OrderedJson common_assumptions(const OrderedJson& runs) {
  OrderedJson out;
  for (const OrderedJson& run : runs) {
    if (run.contains("error")) continue;
    const OrderedJson& own = run["assumptions"];
    if (out.is_null()) out = own;
    out.erase(
        std::remove_if(out.begin(), out.end(),
                       [&](const OrderedJson& each) { return std::find(own.begin(), own.end(), each) == own.end(); }),
        out.end());
  }
  return out;
}

// Simulates a request for all combinations of values of flags of `sluice goodput` or keys of its scenario. Returns a
// document of schema sluice.goodput-sweep/1 (docs/formats.md). Throws InputError if none can be simulated.
OrderedJson goodput_sweep_json(const GoodputRequest& request, const nlohmann::json& document,
                               const std::vector<SweepAxis>& axes) {
  OrderedJson out = {{"schema", "sluice.goodput-sweep/1"}, {"keys", OrderedJson::array()}};
  std::size_t count = 1;
  for (const SweepAxis& axis : axes) {
    out["keys"].push_back(axis.key);
    count *= axis.values.size();
    if (count > 10'000) throw InputError("--sweep: more than 10000 combinations");
  }
  bool any = false;
  for (std::size_t index = 0; index < count; ++index) {
    std::vector<std::string> values(axes.size());
    for (std::size_t axis = axes.size(), rest = index; axis-- > 0; rest /= axes[axis].values.size()) {
      values[axis] = axes[axis].values[rest % axes[axis].values.size()];
    }
    out["runs"].push_back(swept_run(request, document, axes, values));
    any = any || !out["runs"].back().contains("error");
  }
  if (!any) {
    throw InputError("--sweep: no combination can be simulated; the first error: " +
                     out["runs"][0]["error"].get<std::string>());
  }
  return out;
}

// Returns the sweep as a table, one row per combination, and as CSV.
std::string goodput_sweep_text(const OrderedJson& sweep) {
  const auto column = [](const std::string& key) { return fmt::format("{0}={{values/{0}}}|", key); };
  return table(with_axes(sweep, column,
                         "GPUs={gpus}|iteration={step_s:t}|goodput={goodput/mean:.2%}|5 %={goodput_quantiles/p5:.2%}|"
                         "95 %={goodput_quantiles/p95:.2%}|ETTR={ettr/mean:.2%}|MFU={mfu:.1%}|days={days/mean:.2f}|"
                         "one failure in={mtbf_s:t}|checkpoints every={checkpoints/interval_s:t}|"
                         "spares={spares/nodes}|<error=[{error}]"),
               sweep["runs"]) +
         assumptions_text(common_assumptions(sweep["runs"]));
}

std::string goodput_sweep_csv(const OrderedJson& sweep) {
  const auto column = [](const std::string& key) { return fmt::format("{0}=values/{0},", key); };
  return csv(
      with_axes(sweep, column,
                "total_gpus=gpus,step_s,goodput=goodput/mean,goodput_error=goodput/error,p5=goodput_quantiles/p5,"
                "p95=goodput_quantiles/p95,ettr=ettr/mean,mfu,days=days/mean,mtbf_s,"
                "interval_s=checkpoints/interval_s,spares=spares/nodes,gpu_hours=cost/gpu_hours,error"),
      sweep["runs"]);
}

struct GoodputOptions {
  GoodputRequest request;
  bool json = false;
  std::string csv, svg, trace, report, command_line;
  std::vector<std::string> sweep;
  std::unique_ptr<ScenarioFlags> flags;
};

int swept(const GoodputOptions& options, const nlohmann::json& document) {
  if (!options.svg.empty() || !options.trace.empty() || !options.report.empty()) {
    throw InputError("goodput: --sweep excludes --svg, --trace and --report");
  }
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
  if (!options.svg.empty() || !options.trace.empty() || !options.report.empty()) {
    const MedianRun run(request, setting, results);
    if (!options.svg.empty()) write_file_whole(options.svg, run.svg());
    if (!options.trace.empty()) write_file_whole(options.trace, run.chrome_trace());
    if (!options.report.empty()) write_file_whole(options.report, run.page(options.command_line));
  }
  fmt::print("{}", options.json ? json_text(results) : goodput_text(results));
  return kDone;
}

}  // namespace

Subcommand add_goodput_command(CLI::App& app, const std::vector<std::string>& arguments) {
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
  add_output(*command, "--report", options->report, "Write an HTML page with the results and the median run");
  options->command_line = shell_line(arguments);
  constexpr std::array<std::string_view, 3> kOwn = {"--trials", "--seed", "--jitter"};
  options->flags = std::make_unique<ScenarioFlags>(*command, kSimulate, kOwn);
  ScenarioFlags::add_imports(*command, request.file);
  return {command, [options] {
            return options->flags->naming_flags(options->request.file, [&] { return goodput_command(*options); });
          }};
}

}  // namespace sluice::tools
