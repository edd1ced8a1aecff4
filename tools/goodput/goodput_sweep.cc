#include "tools/goodput/goodput_sweep.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "tools/command/scenario_flags.h"
#include "tools/goodput/goodput_flags.h"
#include "tools/goodput/goodput_output.h"

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

}  // namespace

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

}  // namespace sluice::tools
