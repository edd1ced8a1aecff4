#include "model/batches/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <string_view>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/numbers.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMostTokens = 1 << 30;
constexpr std::size_t kMostDocuments = 10'000'000;
constexpr std::string_view kLognormal = "lognormal:";

std::vector<std::string_view> words_of(std::string_view line, std::string_view separators) {
  std::vector<std::string_view> out;
  for (std::size_t begin = line.find_first_not_of(separators); begin != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(separators, begin), line.size());
    out.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(separators, end);
  }
  return out;
}

// 0 for a word that is none.
std::int64_t whole_number(std::string_view word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() ? value : 0;
}

Documents documents_of(std::string_view line, const std::string& place) {
  Documents out;
  for (const std::string_view word : words_of(line.substr(0, line.find('#')), " ,\t\r")) {
    const std::int64_t tokens = whole_number(word);
    if (tokens < 1 || tokens > kMostTokens) {
      throw InputError(fmt::format("{}: expected lengths of 1 to {} tokens, got '{}'", place, kMostTokens, word));
    }
    out.push_back(tokens);
  }
  return out;
}

std::vector<Documents> lines_of(std::string_view text, const std::string& name) {
  std::vector<Documents> out;
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    Documents documents = documents_of(text.substr(0, end), fmt::format("{}: line {}", name, line));
    if (!documents.empty()) out.push_back(std::move(documents));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::vector<Documents> arrays_of(const Json& json, const std::string& name) {
  std::vector<Documents> out;
  for (const JsonReader& item : JsonReader(json, name).elements()) {
    if (item.json().is_number()) {
      out.push_back({item.integer(1, kMostTokens)});
      continue;
    }
    Documents documents;
    for (const JsonReader& length : item.elements()) documents.push_back(length.integer(1, kMostTokens));
    if (documents.empty()) item.fail("expected at least one document");
    out.push_back(std::move(documents));
  }
  return out;
}

// Box and Muller's transform of the generator's own bits, which are the same everywhere.
std::vector<Documents> lognormal(std::string_view text, const std::string& place) {
  const std::vector<std::string_view> words = words_of(text, ",");
  double median = 0;
  double sigma = 0;
  const bool parsed = words.size() == 4 && parse_number(words[0], median) && parse_number(words[1], sigma);
  const std::int64_t most = parsed ? whole_number(words[2]) : 0;
  const std::int64_t count = parsed ? whole_number(words[3]) : 0;
  if (!parsed || !(median >= 1 && median <= kMostTokens) || !(sigma >= 0 && sigma <= 5) || most < 1 ||
      most > kMostTokens || count < 1 || count > static_cast<std::int64_t>(kMostDocuments)) {
    throw InputError(
        fmt::format("{}: expected lognormal:MEDIAN,SIGMA,MOST,COUNT, with 1 to 2^30 tokens, sigma up to 5 and up to "
                    "{} documents, got 'lognormal:{}'",
                    place, kMostDocuments, text));
  }
  std::mt19937_64 engine(1);
  const auto uniform = [&] { return (static_cast<double>(engine() >> 11U) + 0.5) * 0x1p-53; };
  std::vector<Documents> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
    const double tokens = std::min(median * std::exp(sigma * normal), static_cast<double>(most));
    out.push_back({std::max(std::int64_t{1}, static_cast<std::int64_t>(std::llround(tokens)))});
  }
  return out;
}

}  // namespace

std::int64_t tokens_of(const Documents& documents) {
  return std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
}

std::vector<Documents> read_lengths(const std::string& name, const std::string& place) {
  if (name.starts_with(kLognormal)) return lognormal(std::string_view(name).substr(kLognormal.size()), place);
  const std::string text = read_file(name);
  std::vector<Documents> out = name.ends_with(".json") ? arrays_of(parse_json(text, name), name) : lines_of(text, name);
  if (out.empty()) throw InputError(fmt::format("{}: expected lengths of documents, got none", name));
  std::size_t documents = 0;
  for (const Documents& each : out) documents += each.size();
  if (documents > kMostDocuments) {
    throw InputError(fmt::format("{}: expected at most {} documents, got {}", name, kMostDocuments, documents));
  }
  return out;
}

}  // namespace sluice::model
