#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "model/namespaces.h"

namespace sluice::exec {

// NCCL's interface, as far as it is used, in terms that need none of its headers; tests/exec/transport/nccl_abi_test.cc
// holds it against them. The library is loaded when it is first asked for.
struct NcclCommunicatorState;
using NcclCommunicator = NcclCommunicatorState*;

using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;

struct NcclId {
  std::array<char, 128> bytes;
};

enum class NcclType : int { int8 = 0, float16 = 6, float32 = 7, bfloat16 = 9 };
enum class NcclReduction : int { sum = 0, maximum = 2 };
inline constexpr int kNcclNoColour = -1;
inline constexpr int kNcclUndefined = INT_MIN;

// ncclConfig_t as of 2.18, and the next field of later ones, which lies where 2.18 has padding; later libraries take
// their defaults for what it does not have.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
  int traffic_class = kNcclUndefined;
};

struct NcclFunctions {
  NcclResult (*get_version)(int*);
  NcclResult (*get_unique_id)(NcclId*);
  NcclResult (*init_rank)(NcclCommunicator*, int size, NcclId, int rank, NcclConfig*);
  NcclResult (*split)(NcclCommunicator, int colour, int key, NcclCommunicator*, NcclConfig*);
  NcclResult (*finalize)(NcclCommunicator);
  NcclResult (*destroy)(NcclCommunicator);
  NcclResult (*abort)(NcclCommunicator);
  NcclResult (*get_async_error)(NcclCommunicator, NcclResult*);
  const char* (*error_text)(NcclResult);
  const char* (*last_error)(NcclCommunicator);
  NcclResult (*send)(const void*, std::size_t count, NcclType, int peer, NcclCommunicator, void* stream);
  NcclResult (*receive)(void*, std::size_t count, NcclType, int peer, NcclCommunicator, void* stream);
  NcclResult (*all_reduce)(const void*, void*, std::size_t count, NcclType, NcclReduction, NcclCommunicator,
                           void* stream);
  NcclResult (*all_gather)(const void*, void*, std::size_t count, NcclType, NcclCommunicator, void* stream);
  std::string version;  // "2.28.9"
  std::string path;
};

// Sets NCCL_LAUNCH_ORDER_IMPLICIT=1 before the library is loaded, unless it is set or the driver is older than CUDA
// 12.3: kernels of different communicators are then launched in the order in which the host issued them. (An older
// driver would have each wait for the end of the one before it, and a receive that was posted early would hold up what
// its sender waits for.) Likewise NCCL_RUNTIME_CONNECT=0: groups connect when they are made, not in the middle of a
// run, where that could wait for the device, and the device for it. Throws DeviceError, each time, if NCCL 2.18 or
// later is not found.
const NcclFunctions& nccl();

}  // namespace sluice::exec
