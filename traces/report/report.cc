#include "traces/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "traces/report/packed.h"
#include "traces/report/report_assets.h"
#include "traces/report/report_data.h"
#include "traces/report/report_tables.h"

namespace sluice::traces {
namespace {

// The source expression 'sha256-...' of a content security policy.
std::string policy_hash(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return "'sha256-" + base64(bytes) + "'";
}

// A live page may compile its engine, which the policy allows for WebAssembly only. Nothing may be loaded.
std::string policy(const ReportAssets& assets, bool live) {
  std::string style = policy_hash(assets.style_sha256);
  std::string script = policy_hash(assets.script_sha256);
  if (live) {
    style += " " + policy_hash(assets.live_style_sha256);
    script += " " + policy_hash(assets.live_script_sha256) + " 'wasm-unsafe-eval'";
  }
  return "default-src 'none'; style-src " + style + "; script-src " + script +
         "; img-src data:; base-uri 'none'; form-action 'none'";
}

// Escapes JSON for a script element, which a "<" could end.
std::string in_script(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string scenarios_html(const Report& report) {
  std::string out;
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    if (report.runs[run].scenario.empty()) continue;
    if (report.runs.size() > 1) {
      out += fmt::format("<h3><span class=\"run\">{}</span> {}</h3>\n", run_letter(run),
                         html_escaped(report.runs[run].name));
    }
    out += "<pre class=\"scenario\" tabindex=\"0\">" + html_escaped(report.runs[run].scenario) + "</pre>\n";
  }
  return out;
}

void write_live_data(const ByteSink& sink, const LivePage& live) {
  sink("<script type=\"text/plain\" id=\"engine\">" + base64(deflated(live.engine)) + "</script>\n");
  sink("<script type=\"application/json\" id=\"request\">" + in_script(live.request) + "</script>\n");
}

void write_data(const ByteSink& sink, const Report& report) {
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  for (const ReportRun& run : report.runs) names.push_back(run.name);
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  sink("<script type=\"application/json\" id=\"run-names\">" + in_script(names.dump(-1, ' ', false, kReplace)) +
       "</script>\n");
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const ReportData data = encode_run(report.runs[run].drawn);
    sink(fmt::format("<script type=\"application/json\" id=\"run-{}\">", run));
    sink(in_script(data.header));
    sink(fmt::format("</script>\n<script type=\"text/plain\" id=\"columns-{}\">", run));
    sink(base64(deflated(data.columns)));
    sink("</script>\n");
  }
  if (report.live) write_live_data(sink, *report.live);
}

}  // namespace

void write_report(const ByteSink& sink, const Report& report) {
  const bool described =
      std::all_of(report.runs.begin(), report.runs.end(), [](const ReportRun& run) { return !run.about.empty(); });
  if (is_gallery(report) && !described) {
    throw InputError(fmt::format("report: expected one or two runs, got {}; the runs of a gallery have a description",
                                 report.runs.size()));
  }
  if (report.runs.empty() || report.runs.size() > kMostReportRuns) {
    throw InputError(fmt::format("report: expected 1 to {} runs, got {}", kMostReportRuns, report.runs.size()));
  }
  if (report.live && report.runs.size() > 1) throw InputError("report: a live page has one run");
  const ReportAssets assets = report_assets();
  const bool live = report.live.has_value();
  const std::map<std::string_view, std::function<void()>> places = {
      {"policy", [&] { sink(policy(assets, live)); }},
      {"version", [&] { sink(html_escaped(report.version)); }},
      {"title", [&] { sink(html_escaped(report.title)); }},
      {"style", [&] { sink(assets.style); }},
      {"body", [&] { sink(report.embedded ? " class=\"embedded\"" : ""); }},
      {"live_style", [&] { sink(live ? fmt::format("<style>{}</style>\n", assets.live_style) : ""); }},
      {"live", [&] { sink(live ? assets.live_page : ""); }},
      {"live_script", [&] { sink(live ? fmt::format("<script>{}</script>\n", assets.live_script) : ""); }},
      {"headline", [&] { sink(headline_html(report)); }},
      {"command", [&] { sink(html_escaped(report.command_line)); }},
      {"idle", [&] { sink(idle_html(report)); }},
      {"ranks", [&] { sink(ranks_html(report)); }},
      {"assumptions", [&] { sink(assumptions_html(report)); }},
      {"scenarios", [&] { sink(scenarios_html(report)); }},
      {"data", [&] { write_data(sink, report); }},
      {"script", [&] { sink(assets.script); }},
  };
  std::string_view rest = assets.page;
  while (true) {
    const std::size_t open = rest.find("{{");
    sink(rest.substr(0, open));
    if (open == std::string_view::npos) return;
    const std::size_t close = rest.find("}}", open);
    places.at(rest.substr(open + 2, close - open - 2))();
    rest.remove_prefix(close + 2);
  }
}

std::string page_html(const ReportPage& page) {
  const ReportAssets assets = report_assets();
  Report report;
  report.runs.emplace_back().headline = page.headline;
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; img-src data:; "
      "base-uri "
      "'none'; form-action 'none'\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n"
      "<header>\n<h1>{}</h1>\n</header>\n<main>\n",
      policy_hash(assets.style_sha256), html_escaped(page.title), assets.style, html_escaped(page.title));
  const auto section = [&](const std::string& title, const std::string& body) {
    out += fmt::format("<section>\n<h2>{}</h2>\n{}\n</section>\n", html_escaped(title), body);
  };
  section("Summary", headline_html(report));
  section(page.picture_title, fmt::format("<img class=\"picture\" alt=\"{}\" src=\"data:image/svg+xml;base64,{}\">",
                                          html_escaped(page.picture_title), base64(page.picture)));
  for (const ReportTable& table : page.tables) {
    if (!table.rows.empty()) section(table.title, table_html(table, false));
  }
  section("Command", fmt::format("<pre class=\"command\" tabindex=\"0\">{}</pre>", html_escaped(page.command_line)));
  return out + fmt::format("</main>\n<footer>Sluice {}</footer>\n</body>\n</html>\n", html_escaped(page.version));
}

void write_report_file(const std::string& path, const Report& report) {
  write_file_whole(path, [&report](const ByteSink& sink) { write_report(sink, report); });
}

}  // namespace sluice::traces
