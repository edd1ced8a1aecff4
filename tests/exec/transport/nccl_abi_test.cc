// The declarations of exec/transport/nccl_functions.h against the header of NCCL.

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "exec/transport/nccl_functions.h"

namespace sluice::test {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(alignof(NcclId) == alignof(ncclUniqueId));
static_assert(sizeof(NcclResult) == sizeof(ncclResult_t));
static_assert(sizeof(NcclType) == sizeof(ncclDataType_t));
static_assert(sizeof(NcclReduction) == sizeof(ncclRedOp_t));
static_assert(sizeof(NcclCommunicator) == sizeof(ncclComm_t));
static_assert(kNcclSuccess == ncclSuccess);
static_assert(static_cast<int>(NcclType::int8) == ncclInt8 && static_cast<int>(NcclType::float16) == ncclFloat16);
static_assert(static_cast<int>(NcclType::float32) == ncclFloat32);
static_assert(static_cast<int>(NcclType::bfloat16) == ncclBfloat16);
static_assert(static_cast<int>(NcclReduction::sum) == ncclSum && static_cast<int>(NcclReduction::maximum) == ncclMax);
static_assert(kNcclNoColour == NCCL_SPLIT_NOCOLOR && kNcclUndefined == NCCL_CONFIG_UNDEF_INT);

static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclConfig, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(NcclConfig, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= 22500
static_assert(offsetof(NcclConfig, traffic_class) == offsetof(ncclConfig_t, trafficClass));
#endif
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));

// The same parameters, one by one: of the same kind, enumerations and handles aside.
template <class T>
using Kind = std::conditional_t<std::is_enum_v<T>, int, std::conditional_t<std::is_pointer_v<T>, void*, T>>;
template <class Ours, class Theirs>
struct Same : std::false_type {};
template <class R1, class... A1, class R2, class... A2>
struct Same<R1 (*)(A1...), R2 (*)(A2...)>
    : std::bool_constant<sizeof...(A1) == sizeof...(A2) && std::is_same_v<Kind<R1>, Kind<R2>>> {
  static constexpr bool parameters = [] {
    if constexpr (sizeof...(A1) == sizeof...(A2)) {
      return ((std::is_same_v<Kind<A1>, Kind<A2>> ||
               (std::is_class_v<A1> && std::is_class_v<A2> && sizeof(A1) == sizeof(A2))) &&
              ...);
    }
    return false;
  }();
};
template <class Ours, class Theirs>
constexpr bool same(Ours, Theirs) {
  return Same<Ours, Theirs>::value && Same<Ours, Theirs>::parameters;
}

TEST(NcclInterface, IsThatOfItsHeader) {
  const NcclFunctions ours{};
  EXPECT_TRUE(same(ours.get_version, &ncclGetVersion));
  EXPECT_TRUE(same(ours.get_unique_id, &ncclGetUniqueId));
  EXPECT_TRUE(same(ours.init_rank, &ncclCommInitRankConfig));
  EXPECT_TRUE(same(ours.split, &ncclCommSplit));
  EXPECT_TRUE(same(ours.finalize, &ncclCommFinalize));
  EXPECT_TRUE(same(ours.destroy, &ncclCommDestroy));
  EXPECT_TRUE(same(ours.abort, &ncclCommAbort));
  EXPECT_TRUE(same(ours.get_async_error, &ncclCommGetAsyncError));
  EXPECT_TRUE(same(ours.error_text, &ncclGetErrorString));
  EXPECT_TRUE(same(ours.last_error, &ncclGetLastError));
  EXPECT_TRUE(same(ours.group_start, &ncclGroupStart));
  EXPECT_TRUE(same(ours.group_end, &ncclGroupEnd));
  EXPECT_TRUE(same(ours.send, &ncclSend));
  EXPECT_TRUE(same(ours.receive, &ncclRecv));
  EXPECT_TRUE(same(ours.all_reduce, &ncclAllReduce));
  EXPECT_TRUE(same(ours.all_gather, &ncclAllGather));
  EXPECT_FALSE(same(ours.send, &ncclAllReduce));
}

TEST(NcclLibrary, IsLoadedAndSaysItsVersion) {
  const NcclFunctions& found = nccl();
  EXPECT_EQ(found.version.substr(0, 2), "2.") << found.path;
  EXPECT_STREQ(found.error_text(ncclInProgress), "NCCL operation in progress");
}

}  // namespace
}  // namespace sluice::test
