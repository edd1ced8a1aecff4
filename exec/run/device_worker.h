#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/run/device_links.h"
#include "exec/run/worker.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "kernels/device.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

// Dynamic loss scale for float16, which keeps gradients from underflowing: halved when the gradients of a step overflow
// (the step is skipped), doubled after many steps without overflow (Micikevicius et al. 2018, 3.2). All workers have
// the same scale, since the norm that decides is the same.
class LossScale {
 public:
  // `dynamic`: for float16; otherwise the scale is constantly 1.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), scale_(dynamic ? kFirst : 1) {}
  double value() const { return scale_; }
  // Updates the scale after an optimizer step. Returns false if the gradients overflow at the minimum scale.
  bool update(bool overflowed) {
    if (!dynamic_) return !overflowed;
    if (overflowed) {
      good_steps_ = 0;
      if (scale_ <= 1) return false;
      scale_ /= 2;
    } else if (++good_steps_ == kStepsToDouble) {
      good_steps_ = 0;
      scale_ *= 2;
    }
    return true;
  }

 private:
  static constexpr double kFirst = 65536;
  static constexpr int kStepsToDouble = 1000;
  bool dynamic_;
  double scale_;
  int good_steps_ = 0;
};

// A worker whose ops run on a device. Its single thread enqueues them in the order of the graph, a few ops ahead of the
// device: computation on one stream, collectives on another, messages on the streams of their edges. Events order them
// as the graph does, so that the device never waits for the host. The flight recorder shows the progress of the device,
// not that of the thread.
class DeviceWorker final : public Worker {
 public:
  // Throws DoesNotFit or DeviceError if the device has no memory for the arena; InputError if it cannot compute in the
  // plan's precision.
  DeviceWorker(const RunPlan& plan, int world_rank, Transport& transport, const WorkerServices& services);
  ~DeviceWorker() override;

  void initialise() override;
  void run(std::int64_t first_step, std::span<const double> learning_rates,
           const std::function<void()>& meanwhile) override;
  void read_times() override;
  void read_state(int chunk, StatePart part, std::int64_t first, std::span<std::byte> out) override;
  void set_state(int chunk, const ChunkState& state) override;
  void settle() override;

  // Number of optimizer steps of the last run that were skipped because their gradients overflowed.
  int skipped_steps() const { return skipped_steps_; }

 private:
  // The next item of the worker: a step of its plan or a collective.
  struct Item {
    VertexId vertex = 0;
    bool collective = false;
    std::size_t index = 0;   // of the plan's steps or collectives
    Event* begin = nullptr;  // of this run; null for sends
    Event* end = nullptr;
    std::string name;  // "F(stage 2, mb 5)": for profilers
  };
  // Small results per unit or optimizer step, on the device and in pinned memory.
  struct Small {
    float* losses = nullptr;        // by unit
    std::int32_t* flags = nullptr;  // by item: a result was not finite
    float* squares = nullptr;       // by optimizer step
    float* scales = nullptr;
    float* norms = nullptr;
  };

  // The group of an expert exchange as ops use it.
  class ExpertStreams;

  // Events of a run, whose times are read during the next one.
  struct RunEvents {
    std::vector<std::unique_ptr<Event>> begins;  // by item; null for sends
    std::vector<std::unique_ptr<Event>> ends;
    std::vector<std::unique_ptr<Event>> sends;     // started and done of each
    std::vector<std::unique_ptr<Event>> receives;  // likewise
    std::unique_ptr<Event> base;                   // at base_ns of the host's clock
    std::int64_t base_ns = 0;
    std::vector<Event*> sends_began;                 // null: dropped
    std::vector<VertexPart> parts;                   // of layers with experts, without their times
    std::vector<std::unique_ptr<Event>> part_times;  // begin and end of each
  };

  void find_groups();
  void list_items();
  void make_messages();
  std::int64_t shard_bytes(std::int64_t bytes) const;
  void place_small();
  void fill_tables();
  void load_tokens();
  void rehearse();
  void take_weights(int chunk, std::int64_t bytes);
  void run_items();
  void use_events();
  void call_meanwhile();
  void relate_clocks();
  void keep_up();
  void pace();
  void observe();
  void query();
  void wait_until_done(Event& event);
  bool is_send(const Item& item) const;
  void update_recorder();
  void issue_step(Item& item);
  void issue_ops(const PlannedStep& step, std::size_t item);
  SliceCall call_of(const OpPlan& op, std::size_t item, int place);
  void issue_woven(const PlannedStep& step, std::span<const WovenStep> woven, std::size_t item);
  void issue_in_parts(const OpPlan& op, SliceCall& call, VertexId vertex);
  void issue_part(const Stage& stage, const SliceCall& call, const StagePart& part, VertexId vertex);
  void prepare_experts();
  std::byte* on_host(const OpPlan& op);
  void wait_for_counts(Stream& stream);
  void issue_send(const PlannedStep& step);
  void issue_optimizer(const PlannedStep& step, std::size_t item);
  void issue_collective(Item& item);
  void issue_norm(const PlannedCollective& collective, StreamGroup* group, std::size_t item);
  void check_gradients(int chunk, std::byte* gradients, std::size_t item, Stream& stream);
  void wait_on_device(DeviceMessage& message, VertexId vertex, VertexId transfer);
  bool checks_outcome(const OpPlan& op) const;
  void check_poisoned(const OpPlan& op, const SliceCall& call, std::size_t item);
  void free_receive(int receive, Event* freed);
  void finish();
  void check_flag(std::size_t item);
  void let_others_report(std::int64_t time_ns) const;
  void take_norms();
  void count_held();
  bool done(const Item& item) { return item.end == nullptr || device_.done(*item.end); }
  RunEvents& events_of(std::int64_t run) { return run_events_[static_cast<std::size_t>(run % 2)]; }
  Element element() const;
  bool has_norm() const;

  Transport& transport_;
  Device& device_;
  std::unique_ptr<DeviceConnection> links_;
  const DeviceKernels& kernels_;
  RunLinks run_links_;
  StreamGroup* tensor_ = nullptr;     // of the tensor-parallel ranks; null without tensor parallelism
  std::vector<StreamGroup*> groups_;  // by RankPlan::collectives; null for groups of one rank
  // With expert parallelism; of woven blocks a group of its own, on the stream `exchanges_`.
  std::unique_ptr<StreamGroup> experts_;
  std::unique_ptr<StreamGroup> woven_experts_;
  StreamGroup* expert_data_ = nullptr;             // of the ranks with the same experts; null if there are no others
  std::function<void(Stream&)> counts_wait_;       // wait_for_counts
  std::vector<std::int64_t> host_offsets_;         // by chunk, of the blocks of its units in counts_on_host_
  std::byte* counts_on_host_ = nullptr;            // SliceCall::on_host of all units
  std::unique_ptr<Event> counted_;                 // of wait_for_counts
  std::unique_ptr<Event> computed_;                // after the last computing part of a woven block that was enqueued
  std::vector<std::unique_ptr<Event>> exchanged_;  // after each exchange of a woven block
  bool dispatching_ = false;                       // waits for the ranks of an expert group
  bool rehearsing_ = false;
  Duration latency_{0};  // injected into exchanges
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> collectives_;
  std::unique_ptr<Stream> exchanges_;    // null without woven blocks
  std::array<RunEvents, 2> run_events_;  // of even and odd runs
  std::unique_ptr<Event> probe_;         // of relate_clocks
  std::unique_ptr<Event> last_;          // after everything of a run
  // After every kLaunchesPerMark launches of the compute stream, in turn; see pace.
  std::array<std::unique_ptr<Event>, 2> marks_;
  std::int64_t launches_ = 0;
  bool pacing_ = false;
  Event* awaited_ = nullptr;  // null once it is done
  std::int64_t next_query_ns_ = 0;
  std::function<void()> meanwhile_;  // see run; empty once it was called

  std::vector<Item> items_;
  std::vector<int> item_of_;                // by vertex; kNone
  std::vector<std::size_t> compute_items_;  // without sends
  std::vector<std::size_t> collective_items_;
  std::size_t compute_issued_ = 0;  // of compute_items_
  std::size_t compute_done_ = 0;
  std::size_t collective_issued_ = 0;
  std::size_t collective_done_ = 0;
  VertexId next_vertex_ = 0;                    // the next one to be enqueued
  VertexId next_waits_for_ = Doing::no_vertex;  // what another worker must enqueue first
  // The collective that is about to be enqueued (working), or that waits for the others to enqueue it (exchanging).
  Doing held_collective_{.vertex = Doing::no_vertex};
  bool meeting_ = false;  // inside a call of a group that waits for the others
  Doing recorded_[2];     // last recorded activity, by WorkerThread

  std::vector<DeviceMessage> sends_;
  std::vector<DeviceMessage> receives_;
  std::vector<std::vector<int>> edge_receives_;  // by edge of this worker: its receives in order
  std::vector<std::size_t> edge_of_receive_;     // index into edge_receives_
  std::vector<std::size_t> edge_posted_;         // number of posted receives per edge
  std::vector<char> freed_;                      // by receive: its buffer is free, or will be at `ready`
  Event* last_end_ = nullptr;                    // of the last op enqueued on the compute stream

  // By item, in pinned memory: a result was not finite. Written by the device.
  std::int32_t* flags_ = nullptr;
  bool crowded_ = false;  // more workers than half the cores: waiting threads yield their core soon
  std::byte* small_device_ = nullptr;
  std::byte* small_host_ = nullptr;
  std::int64_t small_bytes_ = 0;
  Small on_device_;
  Small on_host_;
  std::byte* tokens_host_ = nullptr;      // tokens of all units, then their targets
  std::vector<std::int64_t> token_rows_;  // by unit: rows before it
  std::int64_t all_rows_ = 0;

  std::span<const double> learning_rates_;
  LossScale loss_scale_;
  int skipped_steps_ = 0;
};

}  // namespace sluice::exec
