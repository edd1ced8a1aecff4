#include "benchmarks/claims/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/errors.h"
#include "model/input/files.h"

namespace sluice::bench::claims {
namespace {

namespace fs = std::filesystem;

// Lower-case words of letters and digits, joined by dashes.
std::string file_name(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

// Converts a path relative to the claim's folder `from` to one relative to `to`.
void move_path(Json& scenario, const char* key, const fs::path& from, const fs::path& to) {
  if (!scenario.contains(key) || !scenario[key].is_string()) return;
  const fs::path path = from / scenario[key].get<std::string>();
  std::error_code error;
  if (!fs::exists(path, error)) return;  // a name of the catalogue
  scenario[key] = fs::proximate(fs::absolute(path), fs::absolute(to)).string();
}

// "  what: text", with line breaks.
std::string paragraph(const std::string& what, const std::string& text) {
  constexpr std::size_t kColumns = 110;
  std::string out = "  " + what + ":";
  std::size_t column = out.size();
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column + 1 + word.size() > kColumns) {
      out += "\n   ";
      column = 3;
    }
    out += " " + word;
    column += 1 + word.size();
  }
  return out + "\n";
}

}  // namespace

std::string table_text(const std::vector<EvaluatedClaim>& claims, bool explain) {
  std::size_t name = 0;
  std::size_t measure = 0;
  std::size_t published = std::string_view("published").size();
  std::size_t ours = 0;
  for (const EvaluatedClaim& claim : claims) {
    for (const ResultRow& row : claim.rows) {
      name = std::max(name, row.name.size());
      measure = std::max(measure, row.measure.size());
      // Wide lists of slices or names do not determine the width of the column.
      if (row.published.size() <= 24) published = std::max(published, row.published.size());
      if (row.ours.size() <= 24) ours = std::max(ours, row.ours.size());
    }
  }
  std::string out;
  const auto to = std::back_inserter(out);
  bool missing_fit = false;
  for (const EvaluatedClaim& claim : claims) {
    if (!out.empty()) out += '\n';
    fmt::format_to(to, "{}: {}\n", fs::path(claim.claim.file).stem().string(), claim.claim.text);
    if (explain) {
      out += paragraph("from", claim.claim.source);
      if (!claim.claim.assumed.empty()) out += paragraph("assumed", claim.claim.assumed);
    }
    for (const ResultRow& row : claim.rows) {
      missing_fit = missing_fit || !row.fits;
      std::string line = fmt::format("  {:<{}}  {:<{}}  published {:<{}}  ours {:<{}}  {}", row.name, name, row.measure,
                                     measure, row.published.empty() ? "-" : row.published, published,
                                     row.ours + (row.fits ? "" : " *"), ours + 2, row.difference);
      while (line.back() == ' ') line.pop_back();
      out += line + '\n';
    }
    if (explain && !claim.claim.why.empty()) out += paragraph("why", claim.claim.why);
  }
  if (missing_fit) out += "\n* a run does not fit in memory as predicted\n";
  return out;
}

std::string table_json(const std::vector<EvaluatedClaim>& claims) {
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson out;
  out["schema"] = "sluice.claims/1";
  OrderedJson list = OrderedJson::array();
  for (const EvaluatedClaim& claim : claims) {
    OrderedJson one;
    one["file"] = claim.claim.file;
    one["claim"] = claim.claim.text;
    one["source"] = claim.claim.source;
    if (!claim.claim.assumed.empty()) one["assumed"] = claim.claim.assumed;
    if (!claim.claim.why.empty()) one["why"] = claim.claim.why;
    OrderedJson rows = OrderedJson::array();
    for (const ResultRow& row : claim.rows) {
      OrderedJson cells;
      cells["name"] = row.name;
      cells["measure"] = row.measure;
      if (!row.published.empty()) cells["published"] = row.published;
      cells["ours"] = row.ours;
      cells["value"] = row.value;
      if (!row.difference.empty()) cells["difference"] = row.difference;
      cells["fits"] = row.fits;
      rows.push_back(std::move(cells));
    }
    one["measures"] = std::move(rows);
    OrderedJson runs = OrderedJson::array();
    for (std::size_t r = 0; r < claim.runs.size(); ++r) {
      const RunResult& result = claim.runs[r];
      OrderedJson run;
      run["name"] = claim.claim.runs[r].name;
      run["iteration_s"] = result.iteration_s;
      run["peak_bytes"] = result.peak_bytes;
      if (result.fits) run["fits"] = *result.fits;
      run["combinations"] = result.combinations;
      run["scenario"] = result.scenario;
      runs.push_back(std::move(run));
    }
    one["runs"] = std::move(runs);
    list.push_back(std::move(one));
  }
  out["claims"] = std::move(list);
  return out.dump(2) + "\n";
}

void write_scenarios(const std::vector<EvaluatedClaim>& claims, const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw InputError(fmt::format("{}: cannot be created: {}", folder, error.message()));
  for (const EvaluatedClaim& claim : claims) {
    const fs::path file = claim.claim.file;
    for (std::size_t r = 0; r < claim.runs.size(); ++r) {
      Json scenario = claim.runs[r].scenario;
      scenario["schema"] = "sluice.scenario/1";
      scenario["name"] = claim.claim.text + ": " + claim.claim.runs[r].name;
      for (const char* key : {"model", "cluster", "software"}) {
        move_path(scenario, key, file.parent_path(), folder);
      }
      const std::string name = fmt::format("{}--{}.json", file.stem().string(), file_name(claim.claim.runs[r].name));
      write_file_whole((fs::path(folder) / name).string(), scenario.dump(2) + "\n");
    }
  }
}

}  // namespace sluice::bench::claims
