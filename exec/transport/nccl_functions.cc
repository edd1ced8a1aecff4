#include "exec/transport/nccl_functions.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "exec/device/dynamic_library.h"
#include "kernels/device.h"

namespace sluice::exec {
namespace {

constexpr std::array<const char*, 1> kNcclNames = {"libnccl.so.2"};
constexpr int kLeastVersion = 21800;  // has ncclCommSplit and its configuration

NcclFunctions load_nccl() {
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  const DynamicLibrary library("NCCL", kNcclNames, cuda_library_folders());
  NcclFunctions found{};
  library.find(found.get_version, "ncclGetVersion");
  int version = 0;
  if (found.get_version(&version) != kNcclSuccess) version = 0;
  if (version < kLeastVersion) {
    throw DeviceError(
        fmt::format("NCCL is too old: {} is version {}, expected 2.18 or later", library.path(), version));
  }
  library.find(found.get_unique_id, "ncclGetUniqueId");
  library.find(found.init_rank, "ncclCommInitRankConfig");
  library.find(found.split, "ncclCommSplit");
  library.find(found.finalize, "ncclCommFinalize");
  library.find(found.destroy, "ncclCommDestroy");
  library.find(found.abort, "ncclCommAbort");
  library.find(found.get_async_error, "ncclCommGetAsyncError");
  library.find(found.error_text, "ncclGetErrorString");
  library.find(found.last_error, "ncclGetLastError");
  library.find(found.group_start, "ncclGroupStart");
  library.find(found.group_end, "ncclGroupEnd");
  library.find(found.send, "ncclSend");
  library.find(found.receive, "ncclRecv");
  library.find(found.all_reduce, "ncclAllReduce");
  library.find(found.all_gather, "ncclAllGather");
  found.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  found.path = library.path();
  return found;
}

}  // namespace

const NcclFunctions& nccl() {
  static const NcclFunctions table = load_nccl();  // retried at the next call if it throws
  return table;
}

}  // namespace sluice::exec
