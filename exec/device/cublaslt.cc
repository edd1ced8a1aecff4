#include "exec/device/cublaslt.h"

#include <fmt/format.h>

#include <array>

#include "exec/device/dynamic_library.h"

namespace sluice::exec {

CublasLt load_cublaslt(int major, std::span<const std::string> folders) {
  const std::string name = fmt::format("libcublasLt.so.{}", major);
  const DynamicLibrary library("cublasLt", std::array{name.c_str()}, folders);
  CublasLt found{};
  library.find(found.get_version, "cublasLtGetVersion");
  library.find(found.create, "cublasLtCreate");
  library.find(found.destroy, "cublasLtDestroy");
  library.find(found.status_text, "cublasLtGetStatusString");
  library.find(found.create_operation, "cublasLtMatmulDescCreate");
  library.find(found.destroy_operation, "cublasLtMatmulDescDestroy");
  library.find(found.set_operation, "cublasLtMatmulDescSetAttribute");
  library.find(found.create_layout, "cublasLtMatrixLayoutCreate");
  library.find(found.destroy_layout, "cublasLtMatrixLayoutDestroy");
  library.find(found.create_preference, "cublasLtMatmulPreferenceCreate");
  library.find(found.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  library.find(found.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  library.find(found.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.find(found.multiply, "cublasLtMatmul");
  const std::size_t version = found.get_version();  // 120304 of 12.3.4
  found.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  found.path = library.path();
  return found;
}

}  // namespace sluice::exec
