// The rules of docs/architecture.md that can be checked by reading the sources: which folder includes which, which
// namespace a folder declares its names in, what a header begins with, how long a file is; and references to decisions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kMaxLines = 700;

struct Folder {
  std::string name_space;
  std::vector<std::string> may_include;  // prefixes of a path from the root of the project
};

const std::map<std::string, Folder, std::less<>> kFolders = {
    {"model", {"sluice::model", {"model/"}}},
    {"sim", {"sluice::sim", {"sim/", "model/"}}},
    {"kernels",
     {"sluice::kernels", {"kernels/", "model/workload/", "model/errors.h", "model/namespaces.h", "model/to_size.h"}}},
    {"exec", {"sluice::exec", {"exec/", "kernels/", "model/"}}},
    {"traces", {"sluice::traces", {"traces/", "model/"}}},
    {"import", {"sluice::imports", {"import/", "model/"}}},  // "import" is a contextual keyword of C++20
    {"tools", {"sluice::tools", {"tools/", "traces/", "import/", "exec/", "kernels/", "sim/", "model/"}}},
    {"python", {"sluice::python", {"python/", "tools/", "traces/", "import/", "sim/", "model/"}}},
    {"tests",
     {"sluice::test",
      {"tests/", "benchmarks/", "tools/", "traces/", "import/", "exec/", "kernels/", "sim/", "model/"}}},
    {"benchmarks",
     {"sluice::bench",
      {"benchmarks/", "tests/", "tools/", "traces/", "import/", "exec/", "kernels/", "sim/", "model/"}}},
};

using Sources = std::map<std::string, std::string>;  // content of each file, by its path from the root

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string top_folder_of(const std::string& path) { return path.substr(0, path.find('/')); }
bool is_header(const std::string& path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

std::vector<std::string> lines_of(const std::string& content) {
  std::istringstream in(content);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The path between quotes, if `line` is an #include "..." directive.
std::string quoted_include(const std::string& line) {
  static const std::regex form("^\\s*#\\s*include\\s*\"([^\"]*)\".*");
  std::smatch match;
  return std::regex_match(line, match, form) ? match[1].str() : "";
}

// Violations that a file shows by itself.
std::vector<std::string> violations(const std::string& path, const std::string& content) {
  static const std::regex opened("^(?:inline )?namespace (sluice[a-z_:]*) \\{.*");
  std::vector<std::string> found;
  const Folder& folder = kFolders.at(top_folder_of(path));
  const std::vector<std::string> lines = lines_of(content);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string place = path + ":" + std::to_string(i + 1) + ": ";
    const std::string target = quoted_include(lines[i]);
    const auto is_prefix = [&target](const std::string& prefix) { return target.starts_with(prefix); };
    if (!target.empty() && std::none_of(folder.may_include.begin(), folder.may_include.end(), is_prefix)) {
      found.push_back(place + "may not include " + target);
    }
    // A test of a function in an anonymous or nested namespace may stand in that namespace.
    const bool any_namespace = path == "model/namespaces.h" || (path.starts_with("tests/") && !is_header(path));
    std::smatch match;
    if (!any_namespace && std::regex_match(lines[i], match, opened) && match[1] != folder.name_space &&
        !match[1].str().starts_with(folder.name_space + "::")) {
      found.push_back(place + "declares names in " + match[1].str() + ", not in " + folder.name_space);
    }
  }
  if (is_header(path) && std::find(lines.begin(), lines.end(), "#pragma once") == lines.end()) {
    found.push_back(path + ": no #pragma once");
  }
  if (std::ssize(lines) > kMaxLines) {
    found.push_back(path + ": " + std::to_string(lines.size()) + " lines, more than " + std::to_string(kMaxLines));
  }
  return found;
}

// Edges of the include graph between folders (subfolders too), each with one file and include that causes it.
using FolderGraph = std::map<std::string, std::map<std::string, std::string>>;

FolderGraph folder_graph(const Sources& sources) {
  FolderGraph graph;
  for (const auto& [path, content] : sources) {
    for (const std::string& line : lines_of(content)) {
      const std::string target = quoted_include(line);
      if (target.find('/') == std::string::npos || folder_of(target) == folder_of(path)) continue;
      graph[folder_of(path)].emplace(folder_of(target), path + " includes " + target);
    }
  }
  return graph;
}

// Extends `path` depth first until it meets itself; true if it did, with the cycle left in `path`.
bool find_cycle(const FolderGraph& graph, std::vector<std::string>& path, std::set<std::string>& done) {
  const std::string folder = path.back();
  const auto edges = graph.find(folder);
  if (edges != graph.end() && !done.contains(folder)) {
    for (const auto& [next, cause] : edges->second) {
      const auto first = std::find(path.begin(), path.end(), next) - path.begin();
      const bool closed = first < std::ssize(path);
      path.push_back(next);
      if (closed) {
        path.erase(path.begin(), path.begin() + first);
        return true;
      }
      if (find_cycle(graph, path, done)) return true;
      path.pop_back();
    }
  }
  done.insert(folder);
  return false;
}

// The includes of one cycle between folders, or nothing.
std::vector<std::string> cycle_of_folders(const Sources& sources) {
  const FolderGraph graph = folder_graph(sources);
  std::set<std::string> done;
  for (const auto& [folder, edges] : graph) {
    std::vector<std::string> path = {folder};
    if (!find_cycle(graph, path, done)) continue;
    std::vector<std::string> causes;
    for (std::size_t i = 0; i + 1 < path.size(); ++i) causes.push_back(graph.at(path[i]).at(path[i + 1]));
    return causes;
  }
  return {};
}

// Types that two headers define under one name in one namespace: the linker would take one for the other.
std::vector<std::string> types_defined_twice(const Sources& sources) {
  static const std::regex opened("^namespace (sluice[a-z_:]*) \\{.*");
  static const std::regex defined(
      "^(?:class|struct|enum|enum class|union)(?: alignas\\([^)]*\\))? (\\w+)(?: final)?(?: :.*)? \\{.*");
  std::map<std::string, std::string> first;
  std::vector<std::string> found;
  for (const auto& [path, content] : sources) {
    if (!is_header(path)) continue;
    std::string name_space;
    for (const std::string& line : lines_of(content)) {
      std::smatch match;
      if (std::regex_match(line, match, opened)) name_space = match[1];
      if (name_space.empty() || !std::regex_match(line, match, defined)) continue;
      const std::string name = name_space + "::" + match[1].str();
      const auto [at, inserted] = first.emplace(name, path);
      if (!inserted && at->second != path) found.push_back(name + ": in " + at->second + " and " + path);
    }
  }
  return found;
}

Sources project_sources() {
  const std::set<std::string> kinds = {".h", ".cc", ".cu", ".cuh"};
  Sources sources;
  for (const auto& [name, folder] : kFolders) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(SLUICE_SOURCE_DIR) / name)) {
      if (!entry.is_regular_file() || !kinds.contains(entry.path().extension().string())) continue;
      const std::string path = fs::relative(entry.path(), SLUICE_SOURCE_DIR).generic_string();
      if (path.starts_with("tests/package/")) continue;  // programs of users
      std::ostringstream content;
      content << std::ifstream(entry.path()).rdbuf();
      sources.emplace(path, content.str());
    }
  }
  return sources;
}

// The text of the project besides its sources.
Sources documents() {
  Sources texts;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(SLUICE_SOURCE_DIR) / "docs")) {
    if (entry.path().extension() == ".md")
      texts.emplace(fs::relative(entry.path(), SLUICE_SOURCE_DIR).generic_string(), "");
  }
  for (const char* name : {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}) texts.emplace(name, "");
  for (auto& [path, content] : texts) {
    std::ostringstream text;
    text << std::ifstream(fs::path(SLUICE_SOURCE_DIR) / path).rdbuf();
    content = text.str();
  }
  return texts;
}

// The sources that have a place in the layers: tests and benchmarks may include each other's folders.
Sources layered_sources() {
  Sources sources = project_sources();
  std::erase_if(sources, [](const auto& file) {
    const std::string top = top_folder_of(file.first);
    return top == "tests" || top == "benchmarks";
  });
  return sources;
}

TEST(House, SourcesKeepTheRules) {
  const Sources sources = project_sources();
  ASSERT_GT(sources.size(), 500U) << "the sources were not found";
  std::vector<std::string> found;
  for (const auto& [path, content] : sources) {
    for (std::string& violation : violations(path, content)) found.push_back(std::move(violation));
  }
  EXPECT_THAT(found, IsEmpty());
}

TEST(House, FoldersFormNoCycle) { EXPECT_THAT(cycle_of_folders(layered_sources()), IsEmpty()); }

TEST(House, NoTypeIsDefinedTwice) { EXPECT_THAT(types_defined_twice(project_sources()), IsEmpty()); }

TEST(House, DecisionsHaveAStatusAndReferencesARecord) {
  static const std::regex reference("decisions?[\\s/]+([0-9]{4})");
  static const std::regex status("# [^\n]*\n\nStatus: (accepted|superseded by [0-9]{4})\n");
  Sources texts = documents();
  std::set<std::string> records;
  for (const auto& [path, content] : texts) {
    if (!path.starts_with("docs/decisions/")) continue;
    records.insert(path.substr(std::string("docs/decisions/").size(), 4));
    EXPECT_TRUE(std::regex_search(content, status, std::regex_constants::match_continuous)) << path;
  }
  ASSERT_THAT(records, Not(IsEmpty()));
  texts.merge(project_sources());
  for (const auto& [path, content] : texts) {
    for (std::sregex_iterator at(content.begin(), content.end(), reference), end; at != end; ++at) {
      EXPECT_TRUE(records.contains((*at)[1].str())) << path << ": " << at->str();
    }
  }
}

TEST(House, IncludesAgainstTheLayersAreRejected) {
  EXPECT_THAT(violations("model/a.cc", "#include \"sim/engine/engine.h\"\n"),
              ElementsAre("model/a.cc:1: may not include sim/engine/engine.h"));
  EXPECT_THAT(violations("sim/a.cc", "\n  #  include \"exec/run.h\"\n"),
              ElementsAre("sim/a.cc:2: may not include exec/run.h"));
  EXPECT_THAT(violations("exec/a.cc", "#include \"sim/engine/engine.h\"\n"),
              ElementsAre(HasSubstr("sim/engine/engine.h")));
  EXPECT_THAT(violations("traces/a.cc", "#include \"sim/engine/engine.h\"\n"),
              ElementsAre(HasSubstr("sim/engine/engine.h")));
  EXPECT_THAT(violations("kernels/a.cu", "#include \"model/schedule/op.h\"\n"),
              ElementsAre(HasSubstr("model/schedule/op.h")));
  EXPECT_THAT(violations("model/a.cc", "#include \"op.h\"\n"), ElementsAre(HasSubstr("op.h")));  // not from the root
  EXPECT_THAT(violations("tools/a.cc", "#include \"tests/support/x.h\"\n"),
              ElementsAre(HasSubstr("tests/support/x.h")));
}

TEST(House, IncludesAlongTheLayersAreAccepted) {
  EXPECT_THAT(violations("sim/a.cc", "#include \"model/units.h\"\n#include <vector>\n// #include \"exec/run.h\"\n"),
              IsEmpty());
  EXPECT_THAT(violations("kernels/a.h", "#pragma once\n#include \"model/workload/shape.h\"\n"), IsEmpty());
}

TEST(House, NamesInTheNamespaceOfAnotherFolderAreRejected) {
  EXPECT_THAT(violations("sim/a.cc", "namespace sluice {\n"),
              ElementsAre("sim/a.cc:1: declares names in sluice, not in sluice::sim"));
  EXPECT_THAT(violations("sim/a.cc", "namespace sluice::model {\n"), ElementsAre(HasSubstr("sluice::model")));
  EXPECT_THAT(violations("sim/a.cc", "namespace sluice::simulated {\n"), ElementsAre(HasSubstr("sluice::simulated")));
  EXPECT_THAT(violations("sim/a.cc", "namespace sluice::sim {\nnamespace sluice::sim::detail {\n"), IsEmpty());
}

TEST(House, HeadersWithoutGuardAndLongFilesAreRejected) {
  EXPECT_THAT(violations("sim/a.h", "// pragma once\n"), ElementsAre("sim/a.h: no #pragma once"));
  EXPECT_THAT(violations("sim/a.cc", std::string(kMaxLines, '\n')), IsEmpty());
  EXPECT_THAT(violations("sim/a.cc", std::string(kMaxLines + 1, '\n')),
              ElementsAre("sim/a.cc: 701 lines, more than 700"));
}

TEST(House, CyclesOfFoldersAreFound) {
  const Sources acyclic = {{"exec/run/a.cc", "#include \"exec/plan/b.h\"\n"}, {"exec/plan/b.h", "#include <vector>\n"}};
  EXPECT_THAT(cycle_of_folders(acyclic), IsEmpty());
  const Sources cyclic = {{"exec/run/a.cc", "#include \"exec/plan/b.h\"\n"},
                          {"exec/plan/b.h", "#include \"exec/watch/c.h\"\n"},
                          {"exec/watch/c.h", "#include \"exec/run/d.h\"\n"}};
  EXPECT_THAT(cycle_of_folders(cyclic),
              ElementsAre("exec/plan/b.h includes exec/watch/c.h", "exec/watch/c.h includes exec/run/d.h",
                          "exec/run/a.cc includes exec/plan/b.h"));
}

TEST(House, TypesDefinedTwiceAreFound) {
  const Sources sources = {{"sim/a.h", "namespace sluice::sim {\nstruct Message {\n};\nclass Other : public Base {\n"},
                           {"sim/b.h", "namespace sluice::sim {\nstruct Message {\n};\nclass Another final {\n"},
                           {"exec/a.h", "namespace sluice::exec {\nstruct Message {\n};\n"}};
  EXPECT_THAT(types_defined_twice(sources), ElementsAre("sluice::sim::Message: in sim/a.h and sim/b.h"));
}

}  // namespace
