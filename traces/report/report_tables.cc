#include "traces/report/report_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "model/timeline/causes.h"
#include "traces/text/quantity_text.h"

namespace sluice::traces {
namespace {

double fraction(Duration part, Duration whole) {
  return whole.count() > 0 ? static_cast<double>(part.count()) / static_cast<double>(whole.count()) : 0;
}

// The names of causes, in the order of IdleCause.
constexpr std::array<std::string_view, kNumIdleCauses> kCauseWords = {"warm-up", "drain",     "sender",    "slice",
                                                                      "link",    "optimizer", "host copy", "other"};
constexpr std::array<std::string_view, kNumIdleCauses> kCauseMeaning = {
    "before the first backward of the rank, while the pipeline fills",
    "after the last forward of the rank, while the pipeline drains",
    "the producing rank has not yet finished the op",
    "the next slice of the current microbatch has not yet been computed",
    "the transfer is queued or in flight",
    "reductions, the global norm and optimizer steps",
    "a copy of activations to the host or back has not ended",
    "all dependencies had ended"};

class Table {
 public:
  // `caption_shown`: false if the heading above the table is the same text.
  Table(std::string_view css_class, std::string_view caption, bool caption_shown) {
    fmt::format_to(to_, R"(<div class="scroll" tabindex="0" role="region" aria-label="{}"><table class="{}">)",
                   html_escaped(caption), css_class);
    fmt::format_to(to_, "<caption{}><span>{}</span></caption>\n<thead><tr>",
                   caption_shown ? "" : R"( class="visually-hidden")", html_escaped(caption));
  }
  // A column of numbers, sortable by the script.
  void column(std::string_view name, std::string_view swatch = {}) {
    const std::string mark = swatch.empty() ? "" : fmt::format(R"(<span class="swatch {}"></span>)", swatch);
    fmt::format_to(to_, R"(<th scope="col" data-sort>{}{}</th>)", mark, html_escaped(name));
  }
  void plain_column(std::string_view name) { fmt::format_to(to_, R"(<th scope="col">{}</th>)", html_escaped(name)); }
  void body() { text_ += "</tr></thead>\n<tbody>\n"; }
  void row(std::string_view name, double value) {
    fmt::format_to(to_, R"(<tr><th scope="row" data-v="{}">{}</th>)", value, html_escaped(name));
  }
  void cell(std::string_view shown, double value) {
    fmt::format_to(to_, R"(<td data-v="{:.12g}">{}</td>)", value, html_escaped(shown));
  }
  void markup(std::string_view html) { fmt::format_to(to_, "<td>{}</td>", html); }
  void end_row() { text_ += "</tr>\n"; }
  void foot() { text_ += "</tbody>\n<tfoot>"; }
  std::string end(bool footed = false) {
    return text_ + (footed ? "</tfoot></table></div>\n" : "</tbody></table></div>\n");
  }

 private:
  std::string text_;
  std::back_insert_iterator<std::string> to_ = std::back_inserter(text_);
};

// The difference of the second metric from the first, "+1.5 %".
std::string difference(const ReportMetric& a, const ReportMetric& b) {
  if (!a.number || !b.number) return "";
  if (a.is_fraction) return fmt::format("{:+.1f} points", 100 * (*b.number - *a.number));
  if (*a.number == 0) return "";
  return fmt::format("{:+.1f} %", 100 * (*b.number / *a.number - 1));
}

// The value of a metric, with its warning.
std::string value_html(const ReportMetric* metric) {
  if (metric == nullptr) return "<strong>–</strong>";
  std::string out = "<strong>" + html_escaped(metric->value) + "</strong>";
  if (!metric->warning.empty()) out += " <span class=\"bad\">" + html_escaped(metric->warning) + "</span>";
  return out;
}

std::string headline_cards(const ReportRun& run) {
  std::string out = R"(<dl class="cards">)";
  for (const ReportMetric& metric : run.headline) {
    out += "\n<div><dt>" + html_escaped(metric.label) + "</dt><dd>" + value_html(&metric);
    if (!metric.explanation.empty()) out += "<small>" + html_escaped(metric.explanation) + "</small>";
    out += "</dd></div>";
  }
  return out + "\n</dl>\n";
}

// A metric of either run or of both.
struct ComparedMetric {
  const ReportMetric* a = nullptr;
  const ReportMetric* b = nullptr;
};

// The metrics of two runs, matched by their labels: first those of A, then those that only B has.
std::vector<ComparedMetric> compared_metrics(const Report& report) {
  std::vector<ComparedMetric> out;
  for (const ReportMetric& metric : report.runs[0].headline) out.push_back({.a = &metric});
  for (const ReportMetric& metric : report.runs[1].headline) {
    const auto found = std::find_if(out.begin(), out.end(), [&](const ComparedMetric& other) {
      return other.a != nullptr && other.a->label == metric.label;
    });
    (found == out.end() ? out.emplace_back() : *found).b = &metric;
  }
  return out;
}

constexpr std::array<std::string_view, 2> kRunBadges = {R"(<span class="run">A</span> )",
                                                        R"(<span class="run">B</span> )"};

// The explanations of all metrics; one that both runs have is shown once.
std::string explanations(const std::vector<ComparedMetric>& metrics) {
  std::string out;
  for (const auto& [a, b] : metrics) {
    const auto entry = [&](std::string_view badge, const ReportMetric* metric) {
      if (metric == nullptr || metric->explanation.empty()) return std::string();
      return fmt::format("<dd>{}{}</dd>", badge, html_escaped(metric->explanation));
    };
    const bool same = a != nullptr && b != nullptr && a->explanation == b->explanation;
    const std::string texts = same ? entry("", a) : entry(kRunBadges[0], a) + entry(kRunBadges[1], b);
    if (texts.empty()) continue;
    out += "\n<div><dt>" + html_escaped((a != nullptr ? a : b)->label) + "</dt>" + texts + "</div>";
  }
  if (out.empty()) return "";
  return "<details class=\"about\"><summary>About these metrics</summary><dl>" + out + "\n</dl></details>\n";
}

std::string headline_comparison(const Report& report) {
  std::string out = "<p class=\"runs\">";
  const auto to = std::back_inserter(out);
  for (std::size_t run = 0; run < 2; ++run) {
    fmt::format_to(to, "<span>{}{}</span> ", kRunBadges[run], html_escaped(report.runs[run].name));
  }
  out += "<span>Differences: B relative to A</span></p>\n<dl class=\"cards compared\">";
  const std::vector<ComparedMetric> metrics = compared_metrics(report);
  for (const auto& [a, b] : metrics) {
    const std::string change = a != nullptr && b != nullptr ? difference(*a, *b) : "";
    fmt::format_to(to, "\n<div><dt>{}</dt><dd>{}{}</dd><dd>{}{}{}</dd></div>",
                   html_escaped((a != nullptr ? a : b)->label), kRunBadges[0], value_html(a), kRunBadges[1],
                   value_html(b), change.empty() ? "" : " <span class=\"change\">" + change + "</span>");
  }
  return out + "\n</dl>\n" + explanations(metrics);
}

// One row per run of a gallery or of several schedules, with the metrics of the first run.
std::string gallery_table(const Report& report) {
  Table table("gallery", "Schedules", false);
  table.plain_column("schedule");
  for (const ReportMetric& metric : report.runs[0].headline) table.column(metric.label);
  table.plain_column("about");
  table.body();
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const ReportRun& of = report.runs[run];
    table.row(fmt::format("{} {}", run_letter(run), of.name), static_cast<double>(run));
    for (const ReportMetric& column : report.runs[0].headline) {
      const auto metric = std::find_if(of.headline.begin(), of.headline.end(),
                                       [&](const ReportMetric& each) { return each.label == column.label; });
      if (metric == of.headline.end()) {
        table.cell("", 0);
      } else {
        table.cell(metric->value + (metric->warning.empty() ? "" : " (" + metric->warning + ")"),
                   metric->number.value_or(0));
      }
    }
    table.markup(html_escaped(of.about));
    table.end_row();
  }
  return table.end();
}

std::string caption(const Report& report, std::size_t run, std::string_view what) {
  if (report.runs.size() < 2) return std::string(what);
  return fmt::format("{}: {} ({})", what, "AB"[run], report.runs[run].name);
}

// A bar of the idle time: one rectangle per cause; the rest of its width is busy time.
std::string idle_bar(const IdleByCause& idle, Duration makespan) {
  std::string out = R"(<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">)";
  double x = 0;
  for (std::size_t c = 0; c < idle.size(); ++c) {
    const double width = 1000 * fraction(idle[c], makespan);
    if (width <= 0) continue;
    fmt::format_to(std::back_inserter(out), R"(<rect class="cause-{}" x="{:.2f}" width="{:.2f}" height="10"/>)",
                   kIdleCauseNames[c], x, width);
    x += width;
  }
  return out + "</svg>";
}

std::string idle_table(const Report& report, std::size_t run) {
  const DrawnRun& drawn = report.runs[run].drawn;
  const std::vector<IdleByCause> idle = idle_by_cause(*drawn.graph, *drawn.timeline);
  const Duration makespan = drawn.metrics->makespan;
  IdleByCause all{};
  Duration all_idle{0};
  for (const IdleByCause& of : idle)
    for (std::size_t c = 0; c < all.size(); ++c) {
      all[c] += of[c];
      all_idle += of[c];
    }
  Table table("idle", caption(report, run, "Idle time by cause"), report.runs.size() > 1);
  table.column("rank");
  table.plain_column("fraction of makespan");
  table.column("idle");
  for (std::size_t c = 0; c < all.size(); ++c) {
    if (all[c].count() > 0) table.column(kCauseWords[c], fmt::format("cause-{}", kIdleCauseNames[c]));
  }
  table.body();
  const auto cells = [&](const IdleByCause& of, Duration whole) {
    Duration sum{0};
    for (const Duration part : of) sum += part;
    const auto cell = [&](Duration part) {
      table.cell(fmt::format("{} ({:.1f} %)", time_text(part), 100 * fraction(part, whole)), to_seconds(part));
    };
    table.markup(idle_bar(of, whole));
    cell(sum);
    for (std::size_t c = 0; c < all.size(); ++c)
      if (all[c].count() > 0) cell(of[c]);
    table.end_row();
  };
  for (std::size_t rank = 0; rank < idle.size(); ++rank) {
    table.row(fmt::format("{}", rank), static_cast<double>(rank));
    cells(idle[rank], makespan);
  }
  table.foot();
  table.row("all", 0);
  const Duration whole = makespan * static_cast<std::int64_t>(idle.size());
  cells(all, whole);
  return table.end(true);
}

std::string cause_list(const Report& report) {
  std::array<bool, kNumIdleCauses> occurs{};
  for (const ReportRun& run : report.runs)
    for (const IdleByCause& of : idle_by_cause(*run.drawn.graph, *run.drawn.timeline))
      for (std::size_t c = 0; c < occurs.size(); ++c) occurs[c] = occurs[c] || of[c].count() > 0;
  std::string out = "<dl class=\"causes\">";
  for (std::size_t c = 0; c < occurs.size(); ++c) {
    if (!occurs[c]) continue;
    fmt::format_to(std::back_inserter(out),
                   "<div><dt><span class=\"swatch cause-{}\"></span>{}</dt><dd>{}</dd></div>\n", kIdleCauseNames[c],
                   kCauseWords[c], kCauseMeaning[c]);
  }
  return out + "</dl>\n";
}

std::string stages_text(const Schedule& schedule, int rank) {
  const auto stages = schedule.stages_of(rank);
  if (stages.size() > 8) return fmt::format("{} … {} ({})", stages.front(), stages.back(), stages.size());
  return fmt::format("{}", fmt::join(stages, ", "));
}

std::string rank_table(const Report& report, std::size_t run) {
  const DrawnRun& drawn = report.runs[run].drawn;
  const Schedule& schedule = drawn.graph->schedule();
  const Metrics& metrics = *drawn.metrics;
  const bool bytes = drawn.graph->has_bytes() && !drawn.memory.empty();
  Table table("ranks", caption(report, run, "Per rank"), report.runs.size() > 1);
  for (const char* name : {"rank", "stages", "busy", "busy fraction", "in flight", "first start", "last end"}) {
    table.column(name);
  }
  if (bytes) {
    table.column("peak memory");
    table.column("reached");
    for (const std::string_view name : kMemoryClassNames) {
      table.column(name == "keys_values" ? "keys, values" : name);
    }
  }
  table.body();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const RankMetrics& of = metrics.ranks[rank];
    table.row(fmt::format("{}", rank), rank);
    const auto time = [&table](Duration t) { table.cell(time_text(t), to_seconds(t)); };
    table.cell(stages_text(schedule, rank), schedule.stages_of(rank).empty() ? -1 : schedule.stages_of(rank).front());
    time(of.busy);
    const double busy = fraction(of.busy, metrics.makespan);
    table.cell(fmt::format("{:.1f} %", 100 * busy), busy);
    table.cell(fmt::format("{:.4g}", of.peak_in_flight), of.peak_in_flight);
    time(of.first_start);
    time(of.last_end);
    if (bytes) {
      const RankMemory& memory = drawn.memory[rank];
      const auto gib = [&table](std::int64_t b) {
        table.cell(fmt::format("{:.2f} GiB", static_cast<double>(b) / kGiB), static_cast<double>(b));
      };
      gib(memory.peak_bytes);
      time(memory.peak_time);
      for (const std::int64_t b : memory.at_peak) gib(b);
    }
    table.end_row();
  }
  return table.end();
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string headline_html(const Report& report) {
  if (is_gallery(report)) return gallery_table(report);
  return report.runs.size() < 2 ? headline_cards(report.runs[0]) : headline_comparison(report);
}

std::string idle_html(const Report& report) {
  if (is_gallery(report)) return "";
  std::string out = cause_list(report);
  for (std::size_t run = 0; run < report.runs.size(); ++run) out += idle_table(report, run);
  return out;
}

std::string ranks_html(const Report& report) {
  std::string out;
  if (is_gallery(report)) return out;
  for (std::size_t run = 0; run < report.runs.size(); ++run) out += rank_table(report, run);
  return out;
}

std::string table_html(const ReportTable& table, bool caption_shown) {
  Table out("assumptions", table.title, caption_shown);
  for (const std::string& name : table.columns) out.plain_column(name);
  out.body();
  double place = 0;
  for (const std::vector<std::string>& row : table.rows) {
    out.row(row.front(), place++);
    for (auto cell = row.begin() + 1; cell != row.end(); ++cell) out.markup(html_escaped(*cell));
    out.end_row();
  }
  return out.end();
}

std::string assumptions_html(const Report& report) {
  if (report.assumptions.empty()) return "";
  ReportTable table{caption(report, 0, "Not specified, and assumed"), {"setting", "value", "source"}, {}};
  for (const ReportAssumption& each : report.assumptions) {
    table.rows.push_back({each.setting, each.value, each.source});
  }
  return fmt::format(
      "<section aria-labelledby=\"h-assumed\">\n<h2 id=\"h-assumed\">Assumed</h2>\n{}\n<p>Not modeled: {}.</p>\n"
      "</section>\n",
      table_html(table, true), html_escaped(fmt::format("{}", fmt::join(report.not_modeled, ", "))));
}

}  // namespace sluice::traces
