#include "benchmarks/accuracy/scenarios.h"

#include <fmt/format.h>

#include "model/input/files.h"

namespace sluice::bench::accuracy {

Json base_of(const char* name) {
  const std::string path = fmt::format("{}/benchmarks/accuracy/scenarios/{}.json", SLUICE_SOURCE_DIR, name);
  return parse_json(read_file(path), path);
}

}  // namespace sluice::bench::accuracy
