#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "exec/device/cublaslt.h"
#include "kernels/gemm_library.h"

namespace sluice::exec {

// The device of a CublasLtGemms, which is current whenever a function of it is called.
struct CublasLtDevice {
  std::string name;
  // Returns memory of the device, aligned to 256 bytes, that no GEMM of another stream uses until the next call.
  std::function<std::byte*(Stream&)> workspace;
  std::size_t workspace_bytes = 0;
  int multiprocessors = 0;  // number that GEMMs may use; 0: all
};

// GEMMs with epilogues by cublasLt, which returns its heuristic's first algorithm for each problem once.
class CublasLtGemms : public GemmLibrary {
 public:
  // Algorithms for another number of multiprocessors are selected from then on.
  virtual void set_multiprocessors(int count) = 0;
};

// `load` returns the library or throws DeviceError; it is called with the first problem, and again only if that
// succeeds. A problem that fails is not tried again.
std::unique_ptr<CublasLtGemms> make_cublaslt_gemms(std::function<const CublasLt&()> load, CublasLtDevice device);

}  // namespace sluice::exec
