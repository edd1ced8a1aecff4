#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "model/namespaces.h"

namespace sluice::exec {

// The part of NCCL's interface that is used, declared without its headers; tests/exec/transport/nccl_abi_test.cc
// compares it with them. The library is loaded on first use.
struct NcclCommunicatorState;
using NcclCommunicator = NcclCommunicatorState*;

using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;

struct NcclId {
  std::array<char, 128> bytes;
};

enum class NcclType : int { int8 = 0, float16 = 6, float32 = 7, bfloat16 = 9 };
enum class NcclReduction : int { sum = 0, maximum = 2 };
inline constexpr int kNcclNoColour = -1;
inline constexpr int kNcclUndefined = INT_MIN;

// ncclConfig_t as of NCCL 2.18, plus the next field of later versions, which lies in the padding of 2.18; later
// libraries use their defaults for the fields after it.
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
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*send)(const void*, std::size_t count, NcclType, int peer, NcclCommunicator, void* stream);
  NcclResult (*receive)(void*, std::size_t count, NcclType, int peer, NcclCommunicator, void* stream);
  NcclResult (*all_reduce)(const void*, void*, std::size_t count, NcclType, NcclReduction, NcclCommunicator,
                           void* stream);
  NcclResult (*all_gather)(const void*, void*, std::size_t count, NcclType, NcclCommunicator, void* stream);
  std::string version;  // "2.28.9"
  std::string path;
};

// Loads NCCL on the first call. Throws DeviceError, on every call, if NCCL 2.18 or later is not found.
//
// Sets NCCL_RUNTIME_CONNECT=0: groups connect when they are created and not during a run, where that could wait for the
// device, and the device for it. Sets NCCL_COMM_BLOCKING=1, which would override NcclConfig::blocking.
const NcclFunctions& nccl();

}  // namespace sluice::exec
