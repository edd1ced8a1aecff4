#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/targets.h"
#include "tools/command/scenario_flags.h"

namespace sluice::test::fuzz {

void try_flags(std::string_view text) {
  const std::size_t line = std::min(text.find('\n'), text.size());
  std::vector<std::string> words;
  std::istringstream flags{std::string(text.substr(0, line))};
  for (std::string word; flags >> word;) words.insert(words.begin(), word);  // CLI11 takes them in reverse
  const std::string_view scenario = text.substr(std::min(line + 1, text.size()));
  CLI::App app;
  const tools::ScenarioFlags parsed(app, model::kSimulate);
  try {
    app.parse(words);
  } catch (const CLI::ParseError&) {
    return;
  }
  const MemoryFile file(scenario);
  const std::string path = scenario.empty() ? "" : file.path();
  accepts([&] {
    const nlohmann::json document = parsed.document(path);
    tools::ScenarioFlags::check_file(path, document);
    tools::ScenarioFlags::read(document, path);
    nlohmann::json adapted = document;
    tools::ScenarioFlags::adapt_to_family(adapted, tools::ScenarioFlags::schedule_of(adapted));
    accepts([&] { tools::ScenarioFlags::read(adapted, path); });
  });
}

}  // namespace sluice::test::fuzz
