#pragma once

#include <atomic>
#include <memory>

#include "exec/device/cublaslt_gemms.h"

namespace sluice::test {

// What the functions below count, and how they behave.
struct FakeCublasLtState {
  std::atomic<int> calls = 0;        // of all functions but those that destroy and that report errors
  std::atomic<int> fails_at = 0;     // the call, counted from 1, that fails; 0: none
  std::atomic<int> objects = 0;      // handles, descriptors, layouts and preferences that exist
  std::atomic<int> heuristics = 0;   // problems for which an algorithm was selected
  std::atomic<int> multiplied = 0;   // GEMMs
  std::atomic<int> unsupported = 0;  // the cublasLtEpilogue_t for which the heuristic finds no algorithm; 0: none
};
// One per process.
FakeCublasLtState& fake_cublaslt_state();

// cublasLt on streams of emulated devices: computes in double, by the documented meaning of column-major matrices and
// epilogues. Fails for descriptors that are incomplete or do not match, and for an algorithm of another problem.
const CublasLt& fake_cublaslt();

// The library of a device, for EmulatedDeviceSpec::gemms.
std::unique_ptr<exec::CublasLtGemms> make_fake_gemms();

}  // namespace sluice::test
