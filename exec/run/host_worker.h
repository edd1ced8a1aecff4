#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "exec/run/exchange_lane.h"
#include "exec/run/worker.h"
#include "exec/transport/all_reduce.h"
#include "exec/transport/expert_exchange.h"
#include "exec/transport/transport.h"

namespace sluice::exec {

// A worker on the CPU: one thread computes and sends, another runs collectives, and with woven blocks a third runs
// their exchanges.
class HostWorker final : public Worker {
 public:
  // Throws std::bad_alloc if there is no memory for the arena.
  HostWorker(const RunPlan& plan, int world_rank, Transport& transport, const WorkerServices& services);
  ~HostWorker() override;

  void initialise() override;
  void run(std::int64_t first_step, std::span<const double> learning_rates,
           const std::function<void()>& meanwhile) override;
  void rethrow_own_error() override;
  void read_state(int chunk, StatePart part, std::int64_t first, std::span<std::byte> out) override;
  void set_state(int chunk, const ChunkState& state) override;

 private:
  void post_receive(int receive);
  void await(const PlannedStep& step);
  template <typename Condition>
  void wait_for(VertexId vertex, VertexId waits_for, Condition&& condition);
  void run_ops(const PlannedStep& step, std::span<const WovenStep> woven);
  void run_op(const OpPlan& op, const PlannedStep& step, SliceCall& call);
  void run_woven(const PlannedStep& step, std::span<const WovenStep> woven, std::array<SliceCall, 2>& calls);
  void run_parts(const PlannedStep& step, std::span<const WovenStep> woven, std::array<SliceCall, 2>& calls);
  void finish_exchange(int number);
  void keep_part(VertexId vertex, const PartTime& time);
  void run_steps(std::int64_t first_step, std::span<const double> learning_rates);
  void run_send(const PlannedStep& step);
  void run_optimizer(const PlannedStep& step);
  SliceCall call_of(const OpPlan& op, int place);
  void check_finite(const Stage& stage, const OpPlan& op, VertexId vertex, const SliceCall& call) const;
  void check_gradients(int chunk, std::byte* gradients, VertexId vertex) const;
  void poison(const Stage& stage, SliceCall& call) const;
  void poison_gradients(std::byte* gradients, VertexId vertex) const;
  void count_held(std::size_t step);
  void collective_loop();
  void run_collective(const PlannedCollective& collective, AllReduceGroup& group);
  void make_groups();
  template <typename MakeGroup>
  void make_expert_groups(const MakeGroup& make_group);

  Transport& transport_;
  std::unique_ptr<AllReduceGroup> tensor_;   // null without tensor parallelism
  std::unique_ptr<ExpertExchange> experts_;  // null without expert parallelism
  // Of woven blocks, if there are any, used by the communication lane.
  std::unique_ptr<ExpertExchange> woven_experts_;
  AllReduceGroup* expert_data_ = nullptr;  // the ranks with the same experts; null without experts
  std::vector<std::unique_ptr<AllReduceGroup>> groups_;
  std::vector<AllReduceGroup*> group_of_;  // by RankPlan::collectives
  std::vector<Message> sends_;
  std::vector<Message> receives_;
  std::vector<char> consumed_;           // by receive, in this run: its buffer has been read
  std::vector<int> awaiting_;            // receives posted and not read
  std::vector<char> wakes_collectives_;  // by step: a collective begins after it
  bool optimizer_reads_first_;

  VertexId running_ = 0;     // or about to run
  VertexId exchanging_ = 0;  // of the collective thread
  std::span<const double> learning_rates_;
  double gradient_scale_ = 1;
  PartLog part_log_;  // of one op

  // Shared by the two threads. The counts grow over all runs, so that nothing is reset.
  // run * size + vertex + 1 of the last vertex that the compute thread has completed
  std::atomic<std::int64_t> progress_{0};
  std::atomic<std::int64_t> collectives_done_{0};  // run * number of collectives + those completed
  std::atomic<std::int64_t> runs_begun_{0};
  std::atomic<bool> leaving_{false};
  std::exception_ptr collective_error_;  // read after joining the thread
  std::thread collective_thread_;
  std::unique_ptr<ExchangeLane> lane_;  // null without woven blocks
};

}  // namespace sluice::exec
