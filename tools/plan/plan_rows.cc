#include "tools/plan/plan_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/to_size.h"
#include "tools/plan/frameworks.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

constexpr std::size_t kColumns = 120;  // of the table and of other lines, except commands

// "full 3" where three layers per stage are recomputed, "selective mlp,moe_act" where not only core attention is.
std::string recompute_text(const PlanPoint& point) {
  const bool listed =
      point.recompute == Training::Recompute::selective && point.recompute_modules != RecomputeModule::core_attention;
  if (listed) return fmt::format("selective {}", fmt::join(names_of(point.recompute_modules), ","));
  return point.recompute_layers > 0 ? fmt::format("full {}", point.recompute_layers) : recompute_of(point);
}

// Properties without a column, and what the prediction of a configuration rests on that frameworks do differently.
std::string notes(const Scenario& base, const PlanPoint& point, const PlanResult& result) {
  std::vector<std::string> out;
  const auto add = [&](bool has, const char* text) {
    if (has) out.emplace_back(text);
  };
  add(result.tight, "within the memory margin");
  add(result.extrapolated, "extrapolated from fewer microbatches");
  add(point.distributed_optimizer, "distributed optimizer");
  add(offloaded_part(base, point) > 0, "optimizer states on the host");
  add(point.pipeline_before_data, "pipeline before data");
  for (std::string& each : assumptions_of(base, point)) out.push_back(std::move(each));
  return fmt::format("{}", fmt::join(out, ", "));
}

// A column of the table. The last ones of a table that is too wide are left out.
struct Column {
  std::string title;
  std::vector<std::string> cells;
  int order = 0;  // columns of the highest order are left out first
  bool text = false;
  bool narrow = false;  // one blank before it
};

std::size_t width_of(const Column& column) {
  std::size_t out = column.title.size();
  for (const std::string& cell : column.cells) out = std::max(out, cell.size());
  return out + (column.narrow ? 1 : 2);
}

std::size_t width_of(const std::vector<Column>& columns) {
  std::size_t out = 0;
  for (const Column& column : columns) out += width_of(column);
  return out;
}

// Leaves out modules of recomputation, then columns, until the table fits.
void make_fit(std::vector<Column>& columns) {
  for (Column& column : columns) {
    if (column.title != "recompute" || width_of(columns) <= kColumns) continue;
    for (std::string& cell : column.cells) cell = cell.starts_with("selective ") ? "selective" : cell;
  }
  while (width_of(columns) > kColumns) {
    const auto least = std::max_element(columns.begin(), columns.end(),
                                        [](const Column& a, const Column& b) { return a.order < b.order; });
    if (least->order == 0) return;
    columns.erase(least);
  }
}

std::string text_of(const std::vector<Column>& columns) {
  std::string out;
  for (std::size_t row = 0; row <= columns.front().cells.size(); ++row) {
    std::string line;
    for (const Column& column : columns) {
      const std::string& cell = row == 0 ? column.title : column.cells[row - 1];
      const std::size_t width = width_of(column);
      const std::string blank(column.narrow ? 1 : 2, ' ');
      line += column.text ? fmt::format("{:<{}}", blank + cell, width) : fmt::format("{:>{}}", cell, width);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

double tokens_per_device(const PlanPoint& point, const PlanResult& result) {
  const double devices = static_cast<double>(point.tp) * point.cp * point.pp * point.dp;
  return result.throughput.tokens_per_s / devices;
}

const char* recompute_of(const PlanPoint& point) {
  constexpr const char* kNames[] = {"none", "selective", "full"};
  return kNames[static_cast<std::size_t>(point.recompute)];
}

std::string dispatcher_of(const Scenario& base, const PlanPoint& point) {
  return name_of(point.dispatcher.value_or(base.training.token_dispatcher));
}

std::vector<std::string_view> runners_of(const Scenario& base, const PlanPoint& point) {
  std::vector<std::string_view> out;
  for (const Framework& framework : all_frameworks()) {
    if (framework.refusal(base, point).empty()) out.push_back(framework.name);
  }
  return out;
}

std::vector<std::string> assumptions_of(const Scenario& base, const PlanPoint& point) {
  std::vector<std::string> out;
  if (point.pp > 1) out.emplace_back(blocks_transfers(base, point) ? "sends block" : "sends overlap");
  if (point.overlap_grad_reduce && point.dp * point.cp > 1) out.emplace_back("gradient reduction overlaps");
  if (point.overlap_param_gather) out.emplace_back("parameter gather overlaps");
  Training training = base.training;
  training.ep = point.ep;
  if (const double most = training.most_expert_rows(base.model->experts); most > 1) {
    out.push_back(fmt::format("experts of one rank get {:.3g} times the mean", most));
  }
  const bool joint =
      point.family->name == "dualpipe" || point.family->name == "dualpipe-v" || point.family->for_expert_parallelism;
  if (joint && base.training.joint_overlap == Training::JointOverlap::all) {
    out.emplace_back("joint blocks hide all communication");
  } else if (joint && point.ep > 1 && base.training.joint_overlap == Training::JointOverlap::experts) {
    out.emplace_back("joint blocks hide dispatch and combine");
  }
  return out;
}

std::string encoder_of(const Scenario& base, const PlanPoint& point) {
  const EncoderChoices& encoder = point.encoder ? *point.encoder : base.encoder;
  const std::string ranks = encoder.own_ranks() > 0 ? fmt::format(" {}", encoder.own_ranks()) : "";
  return name_of(encoder.placement) + ranks;
}

OrderedJson sizes_json(const Scenario& base, const PlanPoint& point) {
  return {{"schedule", point.family->name},
          {"tp", point.tp},
          {"cp", point.cp},
          {"pp", point.pp},
          {"dp", point.dp},
          {"ep", point.ep},
          {"etp", point.etp},
          {"vpp", point.chunks},
          {"micro_batch", point.micro_batch},
          {"microbatches", point.microbatches},
          {"slices", point.slices},
          {"recompute", recompute_of(point)},
          {"recompute_modules", names_of(point.recompute_modules)},
          {"recompute_layers", point.recompute_layers},
          {"distributed_optimizer", point.distributed_optimizer},
          {"overlap_grad_reduce", point.overlap_grad_reduce},
          {"overlap_param_gather", point.overlap_param_gather},
          {"pipeline_before_data", point.pipeline_before_data},
          {"dispatcher", point.ep > 1 ? OrderedJson(dispatcher_of(base, point)) : OrderedJson()},
          {"optimizer_offload", offloaded_part(base, point)},
          {"encoder", base.model->encoder ? OrderedJson(encoder_of(base, point)) : OrderedJson()},
          {"first_stage_layers", point.first_layers},
          {"last_stage_layers", point.last_layers}};
}

std::vector<std::string> searched(const Plan& plan) {
  using Value = std::function<std::int64_t(const PlanPoint&)>;
  const auto size = [](int PlanPoint::*member) { return Value([member](const PlanPoint& p) { return p.*member; }); };
  const auto whether = [](bool PlanPoint::*member) {
    return Value([member](const PlanPoint& p) { return p.*member; });
  };
  const std::pair<const char*, Value> settings[] = {
      {"schedule", [](const PlanPoint& p) { return p.family - all_families().data(); }},
      {"tp", size(&PlanPoint::tp)},
      {"cp", size(&PlanPoint::cp)},
      {"pp", size(&PlanPoint::pp)},
      {"dp", size(&PlanPoint::dp)},
      {"ep", size(&PlanPoint::ep)},
      {"etp", size(&PlanPoint::etp)},
      {"vpp", size(&PlanPoint::chunks)},
      plan.base().documents ? std::pair("microbatches", size(&PlanPoint::microbatches))
                            : std::pair("mbs", size(&PlanPoint::micro_batch)),
      {"slices", size(&PlanPoint::slices)},
      {"recomputation",
       [](const PlanPoint& p) { return static_cast<std::int64_t>(p.recompute) << 32 | p.recompute_layers; }},
      {"sharding", whether(&PlanPoint::distributed_optimizer)},
      {"overlap",
       [](const PlanPoint& p) { return (p.overlap_grad_reduce ? 1 : 0) + (p.overlap_param_gather ? 2 : 0); }},
      {"rank order", whether(&PlanPoint::pipeline_before_data)},
      {"offload", whether(&PlanPoint::offloads_optimizer)}};
  std::vector<std::string> out;
  const std::span<const PlanPoint> points = plan.points();
  for (const auto& setting : settings) {
    const auto& value_of = setting.second;
    const auto differs = [&](const PlanPoint& point) { return value_of(point) != value_of(points.front()); };
    if (std::any_of(points.begin(), points.end(), differs)) out.emplace_back(setting.first);
  }
  if (std::any_of(points.begin(), points.end(), [](const PlanPoint& p) { return p.dispatcher.has_value(); })) {
    out.emplace_back("dispatcher");
  }
  if (plan.space().may_place_encoder) out.emplace_back("encoder");
  const bool uneven = plan.space().uneven_outer_stages && plan.base().stage_layers.empty();
  if (uneven) out.emplace_back("layers");
  return out;
}

std::string filled_words(const std::string& title, const std::vector<std::string>& words) {
  std::string out = title;
  std::size_t used = title.size();
  for (const std::string& word : words) {
    const std::string item = word + (&word == &words.back() ? "" : ",");
    const bool fits = used + 1 + item.size() <= kColumns;
    out += (fits ? " " : "\n  ") + item;
    used = (fits ? used + 1 : 2) + item.size();
  }
  return out + "\n";
}

std::string ranking_text(const Plan& plan, const std::vector<int>& ranking, int top) {
  const std::vector<int> rows(ranking.begin(), ranking.begin() + std::min<std::ptrdiff_t>(top, std::ssize(ranking)));
  std::vector<Column> columns;
  const auto add = [&](const char* title, int order, const auto& cell) -> Column& {
    Column& column = columns.emplace_back(Column{.title = title, .order = order});
    for (const int row : rows) column.cells.push_back(cell(plan.points()[to_size(row)], plan.results()[to_size(row)]));
    return column;
  };
  const auto add_size = [&](const char* title, int PlanPoint::*size, bool always) {
    const bool any =
        std::any_of(rows.begin(), rows.end(), [&](int row) { return plan.points()[to_size(row)].*size > 1; });
    const auto cell = [size](const PlanPoint& point, const PlanResult&) { return std::to_string(point.*size); };
    if (any || always) add(title, 0, cell).narrow = true;
  };
  int place = 0;
  add("#", 0, [&](const PlanPoint&, const PlanResult&) { return std::to_string(++place); }).narrow = true;
  add_size("tp", &PlanPoint::tp, true);
  add_size("cp", &PlanPoint::cp, false);
  add_size("pp", &PlanPoint::pp, true);
  add_size("dp", &PlanPoint::dp, true);
  add_size("ep", &PlanPoint::ep, false);
  add_size("etp", &PlanPoint::etp, false);
  add_size("vpp", &PlanPoint::chunks, true);
  const bool documents = plan.base().documents != nullptr;
  add_size(documents ? "microbatches" : "mbs", documents ? &PlanPoint::microbatches : &PlanPoint::micro_batch, true);
  add_size("slices", &PlanPoint::slices, false);
  add("schedule", 0, [](const PlanPoint& p, const PlanResult&) { return std::string(p.family->name); }).text = true;
  add("recompute", 0, [](const PlanPoint& p, const PlanResult&) { return recompute_text(p); }).text = true;
  if (std::any_of(rows.begin(), rows.end(), [&](int row) { return plan.points()[to_size(row)].ep > 1; })) {
    add("dispatcher", 1, [&](const PlanPoint& p, const PlanResult&) {
      return p.ep > 1 ? dispatcher_of(plan.base(), p) : "-";
    }).text = true;
  }
  if (std::any_of(rows.begin(), rows.end(), [&](int row) { return plan.points()[to_size(row)].offloads_optimizer; })) {
    add("offload", 0, [](const PlanPoint& p, const PlanResult&) {
      return p.offloads_optimizer ? "states" : "none";
    }).text = true;
  }
  if (plan.base().model->encoder) {
    add("encoder", 1, [&](const PlanPoint& p, const PlanResult&) { return encoder_of(plan.base(), p); }).text = true;
  }
  const double best = to_seconds(plan.results()[to_size(rows.front())].iteration);
  add("iteration", 0, [](const PlanPoint&, const PlanResult& r) { return time_text(r.iteration); });
  add("tok/s/GPU", 2, [](const PlanPoint& p, const PlanResult& r) { return grouped(tokens_per_device(p, r)); });
  add("MFU", 0, [](const PlanPoint&, const PlanResult& r) { return fmt::format("{:.1f} %", 100 * r.throughput.mfu); });
  add("bubble", 3,
      [](const PlanPoint&, const PlanResult& r) { return fmt::format("{:.1f} %", 100 * r.bubble_fraction); });
  add("GiB", 0, [](const PlanPoint&, const PlanResult& r) { return fmt::format("{:.1f}", gib(r.needed_bytes)); });
  add("vs #1", 0, [&](const PlanPoint&, const PlanResult& r) {
    return &r == &plan.results()[to_size(rows.front())]
               ? "-"
               : fmt::format("{:+.1f} %", 100 * (to_seconds(r.iteration) / best - 1));
  });
  make_fit(columns);
  return text_of(columns);
}

std::string shown_text(const Plan& plan, const std::vector<int>& ranking, int row) {
  const int index = ranking[to_size(row - 1)];
  const Scenario& base = plan.base();
  const PlanPoint& point = plan.points()[to_size(index)];
  const PlanResult& result = plan.results()[to_size(index)];
  std::string out = fmt::format(
      "#{}: {}, {} tok/s/GPU, MFU {:.1f} %, bubble {:.1f} %, {:.1f} of {:.1f} GiB on rank {}\n", row,
      time_text(result.iteration), grouped(tokens_per_device(point, result)), 100 * result.throughput.mfu,
      100 * result.bubble_fraction, gib(result.needed_bytes), gib(base.cluster->gpu.memory_bytes), result.rank);
  const auto add = [&](std::string_view name, const std::string& text) {
    if (!text.empty()) fmt::format_to(std::back_inserter(out), "  {:<15}  {}\n", name, text);
  };
  add("recomputes", recompute_text(point));
  if (point.ep > 1) add("dispatcher", dispatcher_of(base, point));
  add("notes", notes(base, point, result));
  add("layout", uneven_layout(base, point));
  add("sluice simulate", flags_of(base, plan.space(), point));
  for (const Framework& framework : all_frameworks()) {
    const std::string refusal = framework.refusal(base, point);
    if (!refusal.empty()) {
      add(framework.title, "does not run it: " + refusal);
      continue;
    }
    std::string text = framework.configuration(base, plan.space(), point);
    text.erase(text.find_last_not_of('\n') + 1);
    add(framework.title, (text.find('\n') < text.find(' ') ? "\n" : "") + text);
  }
  return out;
}

}  // namespace sluice::tools
