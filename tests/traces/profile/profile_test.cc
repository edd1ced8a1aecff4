// Kernels of traces of PyTorch's profiler: breakdown, matching and replay against slow references on random traces.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/to_size.h"
#include "tests/support/errors.h"
#include "traces/profile/breakdown.h"
#include "traces/profile/gpu_trace.h"
#include "traces/profile/kernel_causes.h"
#include "traces/profile/matched_calls.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGemm = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(Params)";
constexpr const char* kAllReduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
constexpr const char* kSendReceive = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";
constexpr const char* kCopy = "Memcpy HtoD (Pinned -> Device)";

// An event in the format of libkineto's ChromeTraceLogger, in which times are us with three decimals.
std::string event(const std::string& category, const std::string& name, std::int64_t stream, std::int64_t start_ns,
                  std::int64_t duration_ns, const std::string& args = "") {
  return fmt::format(
      R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": 0, "tid": {}, "ts": {}.{:03}, "dur": {}.{:03}, "args": {{{}}}}})",
      category, name, stream, start_ns / 1000, start_ns % 1000, duration_ns / 1000, duration_ns % 1000, args);
}

std::vector<GpuTrace> traces_of(const std::vector<std::string>& events, std::int64_t rank = 0) {
  std::string text = fmt::format(R"({{"schemaVersion": 1, "distributedInfo": {{"rank": {}}}, "traceEvents": [)", rank);
  for (std::size_t i = 0; i < events.size(); ++i) text += (i == 0 ? "" : ",") + events[i];
  text += R"(], "traceName": "t"})";
  GpuTraceReader reader("rank.json");
  const TraceHead head = read_trace_text(text, "rank.json", [&](TraceEvent& e, const TraceHead&) { reader.add(e); });
  return std::move(reader).finish(head);
}

// --- breakdown -------------------------------------------------------------------------------------------------------

// Each nanosecond of the time is counted on its own.
Breakdown counted(const GpuTrace& trace, const ProfiledStep& step) {
  Breakdown out{.span = step.end - step.begin};
  for (Duration at = step.begin; at < step.end; ++at) {
    bool compute = false;
    bool communication = false;
    bool copy = false;
    const GpuKernel* next = nullptr;
    for (const GpuKernel& kernel : trace.kernels) {
      const GpuKernelClass kind = trace.name_of(kernel).kind;
      const bool runs = kernel.start <= at && at < kernel.end;
      compute |= runs && is_compute(kind);
      communication |= runs && kind == GpuKernelClass::communication;
      copy |= runs && kind == GpuKernelClass::copy;
      if (kernel.start > at && next == nullptr) next = &kernel;
    }
    out.compute += Duration{compute};
    out.communication += Duration{communication};
    out.exposed_communication += Duration{communication && !compute};
    out.copies += Duration{copy};
    out.exposed_copies += Duration{copy && !compute && !communication};
    const bool idle = !compute && !communication && !copy;
    out.idle += Duration{idle};
    out.idle_for_host += Duration{idle && next != nullptr && next->launched > at};
  }
  return out;
}

TEST(Breakdown, EqualsACountOfEveryNanosecond) {
  std::mt19937 random(7);
  const auto below = [&](int most) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(most)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> events;
    const int kernels = 1 + static_cast<int>(below(14));
    std::set<std::int64_t> starts;  // of the kernels, so that the next one is unique
    for (int k = 0; k < kernels; ++k) {
      const char* const names[] = {kGemm, kAllReduce, kCopy};
      const std::int64_t start = 20 + below(120);
      if (!starts.insert(start).second) continue;
      const std::size_t name = to_size(below(3));
      events.push_back(event(name == 2 ? "gpu_memcpy" : "kernel", names[name], below(3), start, below(30),
                             fmt::format("\"correlation\": {}", k)));
      events.push_back(
          event("cuda_runtime", "cudaLaunchKernel", 1, start - below(20), 1, fmt::format("\"correlation\": {}", k)));
    }
    for (int step = 0; step < 3 && round % 2 == 1; ++step) {
      events.push_back(event("user_annotation", fmt::format("ProfilerStep#{}", step + 4), 1, 50 * step, 50));
    }
    std::shuffle(events.begin(), events.end(), random);
    const GpuTrace trace = traces_of(events).at(0);
    const std::vector<Breakdown> found = breakdowns(trace);
    ASSERT_EQ(found.size(), trace.steps.size());
    for (std::size_t s = 0; s < found.size(); ++s) {
      const Breakdown expected = counted(trace, trace.steps[s]);
      for (const auto time :
           {&Breakdown::span, &Breakdown::compute, &Breakdown::communication, &Breakdown::exposed_communication,
            &Breakdown::copies, &Breakdown::exposed_copies, &Breakdown::idle, &Breakdown::idle_for_host}) {
        EXPECT_EQ(found[s].*time, expected.*time) << "round " << round << " step " << s;
      }
      EXPECT_EQ(found[s].compute + found[s].exposed_communication + found[s].exposed_copies + found[s].idle,
                found[s].span);
      EXPECT_EQ(trace.steps[s].begin, s > 0 ? trace.steps[s - 1].end : trace.steps[s].begin);
    }
  }
}

// --- names -----------------------------------------------------------------------------------------------------------

TEST(KernelClass, OfNamesOfPyTorch) {
  const std::pair<const char*, GpuKernelClass> kNames[] = {
      {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", GpuKernelClass::gemm},
      {"ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", GpuKernelClass::gemm},
      {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>(Flash_fwd_params)",
       GpuKernelClass::attention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", GpuKernelClass::attention},
      {"fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", GpuKernelClass::attention},
      {"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", GpuKernelClass::communication},
      {"ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", GpuKernelClass::communication},
      {"void deep_ep::intranode::dispatch<8, 768>(int4*)", GpuKernelClass::communication},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
       GpuKernelClass::elementwise},
      {"triton_red_fused__to_copy_native_layer_norm_3", GpuKernelClass::elementwise},
      {"Memset (Device)", GpuKernelClass::copy},
      {"some_new_kernel", GpuKernelClass::other}};
  for (const auto& [name, kind] : kNames) EXPECT_EQ(kernel_class("kernel", name), kind) << name;
  EXPECT_EQ(collective_name("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)"), "reduce-scatter");
  EXPECT_EQ(collective_name("_allgather_base"), "all-gather");
  EXPECT_EQ(collective_name("all_to_allv"), "all-to-all");
  EXPECT_EQ(collective_name("nccl:coalesced"), "");
  EXPECT_EQ(short_kernel_name("void at::native::(anonymous namespace)::copy_kernel<float, 4>(int, float)"),
            "copy_kernel");
}

// --- several ranks ---------------------------------------------------------------------------------------------------

// Ranks that compute random times between collectives of all, and messages between neighbors; each collective ends on
// all ranks at the same time of one clock.
struct World {
  std::vector<GpuTrace> traces;
  std::vector<std::int64_t> ranks;
  std::vector<std::vector<char>> keep;
  std::vector<std::string> names;
  std::vector<Duration> waits;  // in all calls, by rank
};

enum class Recorded { nothing, groups, numbers };

World world(int ranks, Recorded recorded, const std::vector<std::int64_t>& clocks, std::mt19937& random,
            double slower = 1) {
  World out;
  std::vector<std::vector<std::string>> events(to_size(ranks));
  std::vector<std::int64_t> now(to_size(ranks), 1000);
  out.waits.assign(to_size(ranks), Duration{});
  std::int64_t number = 0;
  const auto call = [&](const std::vector<int>& members, const char* kernel, const char* what, const char* other) {
    std::int64_t last = 0;
    for (const int rank : members) last = std::max(last, now[to_size(rank)]);
    const std::int64_t end = last + 200 + static_cast<std::int64_t>(random() % 100);
    ++number;
    for (const int rank : members) {
      std::string args = fmt::format(
          R"("Collective name": "{}", "Group size": {}, "Process Group Name": "7", "Process Group Ranks": "[{}]")",
          rank == members[0] ? what : other, members.size(), fmt::join(members, ", "));
      if (kernel == kSendReceive) args += fmt::format(R"(, "Src Rank": {}, "Dst Rank": {})", members[0], members[1]);
      if (recorded == Recorded::numbers) args += fmt::format(R"(, "Seq": {})", number);
      const std::int64_t start = now[to_size(rank)];
      events[to_size(rank)].push_back(event("kernel", kernel, 2, start + clocks[to_size(rank)], end - start,
                                            recorded == Recorded::nothing ? "" : args));
      out.waits[to_size(rank)] += Duration{last - start};
      now[to_size(rank)] = end;
    }
  };
  std::vector<int> all(to_size(ranks));
  std::iota(all.begin(), all.end(), 0);
  for (int round = 0; round < 12; ++round) {
    for (int rank = 0; rank < ranks; ++rank) {
      auto time = static_cast<std::int64_t>(500 + random() % 500);
      if (rank == 1) time = static_cast<std::int64_t>(static_cast<double>(time) * slower);
      events[to_size(rank)].push_back(event("kernel", kGemm, 1, now[to_size(rank)] + clocks[to_size(rank)], time));
      now[to_size(rank)] += time + 10;
    }
    call(all, kAllReduce, "allreduce", "allreduce");
    if (recorded != Recorded::nothing && ranks > 2)
      call({round % ranks, (round + 1) % ranks}, kSendReceive, "send", "recv");
  }
  for (int rank = 0; rank < ranks; ++rank) {
    out.traces.push_back(traces_of(events[to_size(rank)], rank).at(0));
    out.ranks.push_back(rank);
    out.names.push_back(fmt::format("rank {}", rank));
    out.keep.emplace_back(1, 1);
  }
  return out;
}

TEST(MatchedCalls, AlignsClocksAndFindsWhoWaits) {
  std::mt19937 random(3);
  for (const Recorded recorded : {Recorded::nothing, Recorded::groups, Recorded::numbers}) {
    for (int round = 0; round < 10; ++round) {
      const int ranks = 2 + round % 4;
      std::vector<std::int64_t> clocks(to_size(ranks), 0);
      for (std::int64_t& clock : clocks) clock = round < 2 ? 0 : static_cast<std::int64_t>(random() % 5'000'000);
      World of = world(ranks, recorded, clocks, random);
      MatchedCalls matched = matched_calls(of.traces, of.ranks);
      EXPECT_EQ(matched.calls.size(), recorded != Recorded::nothing && ranks > 2 ? 24U : 12U);
      EXPECT_EQ(matched.num_unmatched + matched.num_unmatched_sends + matched.num_alone, 0);
      align_clocks_by_calls(of.traces, matched);
      const std::vector<CallWaits> waits = call_waits(of.traces, matched, of.keep);
      std::int64_t last = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(waits[to_size(rank)].waits, of.waits[to_size(rank)]) << "rank " << rank << " round " << round;
        last += waits[to_size(rank)].last;
      }
      EXPECT_EQ(last, std::ssize(matched.calls));
    }
  }
}

TEST(MatchedCalls, CountsWhatHasNoPartner) {
  std::mt19937 random(5);
  World of = world(3, Recorded::groups, {0, 0, 0}, random);
  // Without rank 2: its messages to rank 0 and from rank 1 have no partner, collectives of the others are matched.
  of.traces.pop_back();
  of.ranks.pop_back();
  const MatchedCalls two = matched_calls(of.traces, of.ranks);
  EXPECT_EQ(two.calls.size(), 12U + 4);
  EXPECT_EQ(two.num_unmatched_sends, 8);
  EXPECT_THAT(two.notes.at(0), HasSubstr("8 kernels that send or receive were not matched"));
  of.traces.pop_back();
  of.ranks.pop_back();
  const MatchedCalls one = matched_calls(of.traces, of.ranks);
  EXPECT_TRUE(one.calls.empty());
  EXPECT_EQ(one.num_alone, 12);
}

TEST(KernelGraph, ReplaysWhatWasMeasured) {
  std::mt19937 random(11);
  for (int round = 0; round < 12; ++round) {
    const int ranks = 1 + round % 4;
    World of = world(ranks, Recorded::groups, std::vector<std::int64_t>(to_size(ranks), 0), random);
    const MatchedCalls matched = matched_calls(of.traces, of.ranks);
    const KernelGraph graph = kernel_graph(of.traces, matched, calls_of_kernels(of.traces, matched),
                                           std::vector<std::int32_t>(to_size(ranks), 0));
    Duration first = Duration::max();
    for (const GpuTrace& trace : of.traces) first = std::min(first, trace.kernels.front().start);
    std::size_t count = 0;
    replay<1>(
        graph, true, [&](std::size_t p, int) { return graph.transfer[p]; },
        [&](std::size_t p, const std::array<double, 1>& end) {
          const GpuTrace& trace = of.traces[to_size(graph.kernels[p].trace)];
          EXPECT_EQ(end[0], static_cast<double>((trace.kernels[to_size(graph.kernels[p].kernel)].end - first).count()));
          ++count;
        });
    std::size_t kernels = 0;
    for (const GpuTrace& trace : of.traces) kernels += trace.kernels.size();
    EXPECT_EQ(count, kernels);
  }
}

// A planted cause is found, and its replay is the trace without it.
TEST(KernelCauses, FindASlowRank) {
  const auto step_of = [](double slower, KernelCauses& causes) {
    std::mt19937 random(17);
    const World of = world(4, Recorded::groups, {0, 0, 0, 0}, random, slower);
    causes = kernel_causes(of.traces, of.ranks, of.names, matched_calls(of.traces, of.ranks), of.keep);
    return causes.measured;
  };
  KernelCauses even;
  KernelCauses slow;
  const double without = step_of(1, even);
  const double with = step_of(1.6, slow);
  EXPECT_DOUBLE_EQ(slow.replayed, slow.measured);
  const auto found = std::find_if(slow.causes.begin(), slow.causes.end(),
                                  [](const KernelCause& cause) { return cause.kind == "device"; });
  ASSERT_NE(found, slow.causes.end());
  EXPECT_EQ(found->rank, 1);
  // The sum of random times of rank 1 is not that of the median rank: up to some percent of its compute.
  EXPECT_NEAR(found->saved_seconds, with - without, 0.1 * (with - without));
}

TEST(GpuTrace, ErrorsNameFileAndCause) {
  const auto error_of = [](const std::vector<std::string>& events) -> std::string {
    return test::error_from([&] { static_cast<void>(traces_of(events)); }, "");
  };
  EXPECT_THAT(error_of({}), HasSubstr("rank.json: /traceEvents: expected kernels of a GPU"));
  EXPECT_THAT(error_of({event("cpu_op", "aten::mm", 1, 0, 5)}), HasSubstr("got 1 ops of the CPU only; record with"));
  EXPECT_THAT(error_of({R"({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 1, "ts": 5})"}),
              HasSubstr("rank.json: event 0: k: expected ts and dur"));
  EXPECT_THAT(error_of({event("kernel", kGemm, 1, 5, 1), event("user_annotation", "ProfilerStep#x", 1, 0, 5)}),
              HasSubstr("event 1: ProfilerStep#x: expected a number"));
}

}  // namespace
}  // namespace sluice::test
