#include "model/errors.h"
#include "traces/chakra/chakra_trace.h"

namespace sluice::traces {

bool has_chakra_traces() { return false; }

std::int64_t write_chakra_traces(const std::string& prefix, const OpGraph& /*graph*/, const Timeline& /*timeline*/,
                                 const ChakraOptions& /*options*/) {
  throw InputError(prefix + ": this build writes no execution traces: protobuf was missing when it was configured");
}

}  // namespace sluice::traces
