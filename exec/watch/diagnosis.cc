#include "exec/watch/diagnosis.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>

namespace sluice::exec {
namespace {

constexpr std::string_view kDiagnosisTitle = "sluice diagnosis 1";
constexpr std::array<std::string_view, 4> kKinds = {"not finite", "stuck", "lost", "elsewhere"};  // by FailureKind

std::string path_in(const std::string& folder) { return folder + "/" + kDiagnosisName; }

// Removes the first line of `text` and returns it.
std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

}  // namespace

void remove_diagnosis(const std::string& folder) { ::unlink(path_in(folder).c_str()); }

std::optional<RunFailure> read_diagnosis(const std::string& folder) {
  std::ifstream file(path_in(folder), std::ios::binary);
  if (!file) return std::nullopt;
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  std::string_view text = whole;
  if (take_line(text) != kDiagnosisTitle) return std::nullopt;
  const std::string_view kind = take_line(text);
  const std::string_view rank = take_line(text);
  int world_rank = -1;
  const bool is_number = std::from_chars(rank.data(), rank.data() + rank.size(), world_rank).ec == std::errc();
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (is_number && kKinds[i] == kind) return RunFailure(static_cast<FailureKind>(i), world_rank, std::string(text));
  }
  return std::nullopt;
}

RunFailure agree_on_diagnosis(const std::string& folder, const RunFailure& failure) {
  const std::string path = path_in(folder);
  // A link is made to a complete file, and only if its name is free.
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << kDiagnosisTitle << '\n'
       << kKinds[static_cast<std::size_t>(failure.kind())] << '\n'
       << failure.world_rank() << '\n'
       << failure.what();
  file.close();
  const bool taken = file && ::link(temporary.c_str(), path.c_str()) != 0 && errno == EEXIST;
  ::unlink(temporary.c_str());
  return taken ? read_diagnosis(folder).value_or(failure) : failure;
}

}  // namespace sluice::exec
