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
// "the checkpoint"; "" for `none` and unknown values.
std::string_view name_of(ControlPhase phase);

// "rank-0003.rec"
std::string recorder_name(int world_rank);

// One entry of a recorder: what `thread` began to do at doing.since_ns.
struct RecordedEvent {
  WorkerThread thread = WorkerThread::compute;
  Doing doing;
  std::string op;         // name of doing.vertex, as OpGraph::name; "" if it has no meaning
  std::string waits_for;  // name of doing.waits_for; "" unless waiting
};

// "compute, step 3: waiting for send F(stage 1, mb 0) 1->2 before F(stage 2, mb 0)"
std::string to_string(const RecordedEvent& event);

// Reads the file of a recorder while its worker runs or after it has ended. Needs no graph.
class RecorderFile {
 public:
  // Throws InputError naming `path` if it cannot be read, is not a recorder file, or is truncated or damaged.
  explicit RecorderFile(const std::string& path);

  const std::string& path() const { return path_; }
  const RecorderOwner& owner() const { return owner_; }
  // Returns the current or last activity of a thread. Throws InputError if the entry is damaged.
  Doing doing(WorkerThread thread) const;
  RecordedEvent last(WorkerThread thread) const;
  // Returns the state of the owner process; nothing if it runs on another host.
  std::optional<ProcessState> process() const;
  // Returns the events of both threads in order of time: the last Recorder::kEvents of each, or fewer if the writer
  // overtakes the reader. Throws InputError if an entry is damaged.
  std::vector<RecordedEvent> events() const;
  // Returns whether the file at `path` has been removed or replaced by a later run.
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

// Opens the recorder at `path`, or all recorders of a folder in the order of their names. Throws InputError as above,
// and if the folder has none.
std::vector<RecorderFile> open_recorders(const std::string& path);

}  // namespace sluice::exec
