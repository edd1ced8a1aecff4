#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/run/device_links.h"
#include "exec/run/loss_scale.h"
#include "exec/run/worker.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "kernels/device.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

// A worker whose ops run on a device. Its one thread puts them on streams in the order of the graph and goes ahead of
// the device by a few ops: compute on one stream, collectives on another, each message on its edge's; events order
// them as the graph does, so that the device never waits for the host. The flight recorder is told what the device is
// at, not what the thread has put there.
class DeviceWorker final : public Worker {
 public:
  // Throws DoesNotFit or DeviceError if the device has no memory for the arena; InputError if it cannot compute in the
  // plan's precision.
  DeviceWorker(const RunPlan& plan, int world_rank, Transport& transport, const WorkerServices& services);
  ~DeviceWorker() override;

  void initialise() override;
  void run(std::int64_t first_step, std::span<const double> learning_rates) override;
  ChunkState state(int chunk) override;
  void set_state(int chunk, const ChunkState& state) override;
  void settle() override;

  // How often a step of the last run was left out because its gradients overflowed.
  int skipped_steps() const { return skipped_steps_; }

 private:
  // What the worker does next in the graph: a step of its plan or a collective.
  struct Item {
    VertexId vertex = 0;
    bool collective = false;
    std::size_t index = 0;         // of the plan's steps or collectives
    std::unique_ptr<Event> begin;  // null of sends
    std::unique_ptr<Event> end;
    std::string name;  // "F(stage 2, mb 5)": for profilers
  };
  // Of the device: what there is one of for each unit or optimizer step, and the same in pinned memory.
  struct Small {
    float* losses = nullptr;        // by unit
    std::int32_t* flags = nullptr;  // by item: a number was not finite
    float* squares = nullptr;       // by optimizer step
    float* scales = nullptr;
    float* norms = nullptr;
  };

  void find_groups();
  void list_items();
  void make_messages();
  std::int64_t share_of(std::int64_t bytes) const;
  void place_small();
  void load_tokens();
  void rehearse();
  void run_items();
  void keep_up();
  void observe();
  void tell_recorder();
  void issue_step(Item& item);
  void issue_ops(const PlannedStep& step, std::size_t item);
  void issue_send(const PlannedStep& step);
  void issue_optimizer(const PlannedStep& step);
  void issue_collective(Item& item);
  void issue_norm(const PlannedCollective& collective, StreamGroup* group);
  void wait_on_device(DeviceMessage& message, VertexId vertex, VertexId transfer);
  void check_outcome(const OpPlan& op, const SliceCall& call, std::size_t item);
  void free_receive(int receive, Event* freed);
  void finish();
  void check_flag(std::size_t item);
  void take_norms();
  void read_times();
  void count_held();
  bool done(const Item& item) { return item.end == nullptr || device_.done(*item.end); }
  std::int64_t time_of(Event& event) { return base_ns_ + device_.nanoseconds_between(*base_, event); }
  Element element() const;
  bool has_norm() const;

  Transport& transport_;
  Device& device_;
  std::unique_ptr<DeviceConnection> links_;
  const DeviceKernels& kernels_;
  RunLinks run_links_;
  StreamGroup* tensor_ = nullptr;     // of the ranks that split a stage; null where nobody does
  std::vector<StreamGroup*> groups_;  // by RankPlan::collectives; null where there is nobody to sum with
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> collectives_;
  std::unique_ptr<Event> base_;
  std::unique_ptr<Event> last_;  // behind everything of a run
  std::int64_t base_ns_ = 0;

  std::vector<Item> items_;
  std::vector<int> item_of_;                // by vertex; kNone
  std::vector<std::size_t> compute_items_;  // without sends
  std::vector<std::size_t> collective_items_;
  std::size_t compute_issued_ = 0;  // of those
  std::size_t compute_done_ = 0;
  std::size_t collective_issued_ = 0;
  std::size_t collective_done_ = 0;
  VertexId next_vertex_ = 0;                    // about to be put on a stream, and
  VertexId next_waits_for_ = Doing::no_vertex;  // what must be put there first by another worker
  Doing told_[2];                               // the recorder, by WorkerThread

  std::vector<DeviceMessage> sends_;
  std::vector<DeviceMessage> receives_;
  std::vector<std::unique_ptr<Event>> message_events_;
  std::vector<std::vector<int>> edge_receives_;  // by edge of this worker: its receives in order
  std::vector<std::size_t> edge_of_receive_;     // of edge_receives_
  std::vector<std::size_t> edge_posted_;         // how many of them are posted
  std::vector<char> freed_;                      // by receive: its buffer is free, or will be at `ready`
  Event* last_end_ = nullptr;                    // of what was last put on the compute stream

  // By item, in pinned memory: a number was not finite. Written by the device.
  std::int32_t* flags_ = nullptr;
  bool crowded_ = false;  // more workers here than half the cores: whoever waits leaves them to others
  std::byte* small_device_ = nullptr;
  std::byte* small_host_ = nullptr;
  std::int64_t small_bytes_ = 0;
  Small on_device_;
  Small on_host_;
  std::byte* tokens_host_ = nullptr;      // tokens of all units, then targets
  std::vector<std::int64_t> token_rows_;  // by unit: rows before it
  std::int64_t all_rows_ = 0;

  std::span<const double> learning_rates_;
  LossScale loss_scale_;
  int skipped_steps_ = 0;
};

}  // namespace sluice::exec
