#include "exec/watch/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "exec/steady_clock.h"
#include "exec/watch/process_state.h"
#include "exec/watch/recorder_layout.h"
#include "model/errors.h"
#include "model/input/protected_files.h"

namespace sluice::exec {
namespace {

[[noreturn]] void throw_errno(const std::string& path, std::string_view what, int error) {
  throw InputError(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

RecordedVertex recorded(const OpGraph& graph, VertexId v) {
  const Vertex& vertex = graph[v];
  RecordedVertex out{.microbatch = vertex.microbatch,
                     .stage = vertex.stage,
                     .slice = vertex.slice,
                     .kind = static_cast<std::uint8_t>(vertex.kind),
                     .op = static_cast<std::uint8_t>(vertex.op)};
  if (vertex.kind == VertexKind::transfer) {
    const Lane& lane = graph.lanes()[vertex.lane];
    out.from = static_cast<std::int16_t>(lane.rank);
    out.to = static_cast<std::int16_t>(lane.peer);
  } else if (vertex.kind == VertexKind::joint) {
    const Vertex& partner = graph.joint_partner(vertex);
    out.partner_op = static_cast<std::uint8_t>(partner.op);
    out.partner_microbatch = partner.microbatch;
    out.partner_stage = partner.stage;
    out.partner_slice = partner.slice;
  } else if (vertex.kind == VertexKind::collective) {
    const Collective collective = graph.collective(vertex);
    out.collective = static_cast<std::uint8_t>(collective.kind);
    out.stage = static_cast<std::int16_t>(collective.stage);
  }
  return out;
}

// Creates and maps a file of the size of the layout under a temporary name. Its blocks are allocated here, so that a
// full disk is an error now and not a SIGBUS at a later store.
void* map_new_file(const std::string& path, std::string& temporary) {
  check_replaceable(path);
  temporary = path + ".new";
  ::unlink(temporary.c_str());  // left over by a worker that died while creating it
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) throw_errno(path, "cannot create", errno);
  void* memory = MAP_FAILED;
  int error = ::posix_fallocate(fd, 0, sizeof(RecorderLayout));
  if (error == 0) {
    memory = ::mmap(nullptr, sizeof(RecorderLayout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    error = errno;
  }
  ::close(fd);
  if (memory == MAP_FAILED) {
    ::unlink(temporary.c_str());
    throw_errno(path, "cannot map", error);
  }
  return memory;
}

}  // namespace

Recorder::Recorder(const std::string& path, const RecorderOwner& owner, const OpGraph& graph) : graph_(&graph) {
  std::string temporary;
  file_ = new (map_new_file(path, temporary)) RecorderLayout;
  use(graph);
  file_->world_rank = owner.world_rank;
  file_->pipeline_rank = owner.pipeline_rank;
  file_->data_rank = owner.data_rank;
  file_->tensor_rank = owner.tensor_rank;
  file_->expert_ranks = owner.expert_ranks;
  file_->world_size = owner.world_size;
  file_->process = owner.process;
  file_->process_started = process_start(owner.process);
  std::copy_n(owner.host.begin(), std::min(owner.host.size(), file_->host.size() - 1), file_->host.begin());
  doing(WorkerThread::compute, Activity::starting, 0);
  doing(WorkerThread::collective, Activity::starting, 0);
  // Renamed only now, so that no reader finds an incomplete file. Readers that have mapped the old one keep it.
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    ::munmap(file_, sizeof(RecorderLayout));
    throw_errno(path, "cannot replace", error);
  }
}

Recorder::~Recorder() { ::munmap(file_, sizeof(RecorderLayout)); }

void Recorder::use(const OpGraph& graph) {
  graph_ = &graph;
  if (graph.schedule().sliced()) file_->sliced = 1;
}

void Recorder::doing(WorkerThread thread, Activity activity, int step, VertexId vertex, VertexId waits_for) {
  RecorderRing& ring = file_->rings[static_cast<std::size_t>(thread)];
  RecordedEntry entry;
  if (activity == Activity::failed || activity == Activity::stopped) {
    ring.read(ring.count.load(std::memory_order_relaxed) - 1, entry);
    if (entry.op.kind == RecordedVertex::kNone) entry.vertex = Doing::no_vertex;
    entry.awaited = {};
  } else {
    entry.step = step;
    entry.vertex = vertex;
    const bool outside = activity == Activity::starting || activity == Activity::between ||
                         activity == Activity::finished || activity == Activity::coordinating;
    if (!outside && vertex < graph_->size()) entry.op = recorded(*graph_, vertex);
  }
  entry.time_ns = now_ns();
  entry.activity = static_cast<std::uint32_t>(activity);
  entry.waits_for = waits_for;
  if (activity == Activity::waiting && waits_for < graph_->size()) entry.awaited = recorded(*graph_, waits_for);
  ring.append(entry);
}

void Recorder::control(ControlPhase phase, int last_step, int waits_for) {
  const auto what = static_cast<VertexId>(phase);
  if (waits_for < 0) return doing(WorkerThread::compute, Activity::between, last_step, what);
  doing(WorkerThread::compute, Activity::coordinating, last_step, what, static_cast<VertexId>(waits_for));
}

}  // namespace sluice::exec
