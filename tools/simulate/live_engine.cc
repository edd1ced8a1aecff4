#include "tools/simulate/live_engine.h"

#ifdef SLUICE_LIVE_ENGINE
// The assembler includes the file: a compiler takes minutes for an array of this size.
__asm__(
    ".section .rodata\n"
    ".global sluice_live_engine_begin\n"
    ".global sluice_live_engine_end\n"
    "sluice_live_engine_begin:\n"
    ".incbin \"" SLUICE_LIVE_ENGINE
    "\"\n"
    "sluice_live_engine_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char sluice_live_engine_begin[];
extern "C" const char sluice_live_engine_end[];
#endif

namespace sluice::tools {

std::string_view live_engine() {
#ifdef SLUICE_LIVE_ENGINE
  return {sluice_live_engine_begin, static_cast<std::size_t>(sluice_live_engine_end - sluice_live_engine_begin)};
#else
  return {};
#endif
}

}  // namespace sluice::tools
