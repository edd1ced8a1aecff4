#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/watch/process_state.h"
#include "exec/watch/recorder.h"

namespace sluice::exec {

std::string_view name_of(Activity activity);  // "waiting"
std::string_view name_of(WorkerThread thread);

// "rank-0003.rec"
std::string recorder_name(int world_rank);

// One entry of a recorder: what `thread` began to do at doing.since_ns.
struct RecordedEvent {
  WorkerThread thread = WorkerThread::compute;
  Doing doing;
  std::string op;         // of doing.vertex, as OpGraph::name has it; "" where it means nothing
  std::string waits_for;  // of doing.waits_for; "" unless waiting
};

// "compute, step 3: waiting for send F(stage 1, mb 0) 1->2 before F(stage 2, mb 0)"
std::string to_string(const RecordedEvent& event);

// A recorder's file, read while its worker runs or after it has ended in whatever way. Needs no graph.
class RecorderFile {
 public:
  // Throws InputError naming `path` if it cannot be read, is none of a recorder, or is short or damaged.
  explicit RecorderFile(const std::string& path);

  const std::string& path() const { return path_; }
  const RecorderOwner& owner() const { return owner_; }
  // What the thread does now, or did last. Throws InputError if the entry is damaged.
  Doing doing(WorkerThread thread) const;
  RecordedEvent last(WorkerThread thread) const;
  // Of its owner; none on another host.
  std::optional<ProcessState> process() const;
  // Of both threads, in order of time: the last Recorder::kEvents of each, or fewer where the writer overtakes the
  // reader. Throws InputError if one is damaged.
  std::vector<RecordedEvent> events() const;
  // Whether `path` is by now another file, of a later run, or gone.
  bool replaced() const;

 private:
  struct Unmap {
    void operator()(const RecorderLayout* layout) const;
  };

  std::string path_;
  RecorderOwner owner_;
  std::unique_ptr<const RecorderLayout, Unmap> layout_;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

// The recorder at `path`, or all of a folder's, in order of their names. Throws InputError as above, and naming a
// folder that has none.
std::vector<RecorderFile> open_recorders(const std::string& path);

}  // namespace sluice::exec
