#include "exec/watch/recorder_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "exec/watch/recorder_layout.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

// Larger counts mean that the file is damaged.
constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 62;

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw InputError(fmt::format("{}: {}", path, what));
}

[[noreturn]] void damaged(const std::string& path, std::string_view what) {
  fail(path, fmt::format("damaged recorder file: {}", what));
}

// Returns the name that OpGraph::name gives to the vertex.
std::string name_of(const RecordedVertex& vertex, bool sliced) {
  std::string op = to_string(Op{.microbatch = vertex.microbatch,
                                .stage = vertex.stage,
                                .slice = vertex.slice,
                                .kind = static_cast<OpKind>(vertex.op)},
                             sliced);
  switch (static_cast<VertexKind>(vertex.kind)) {
    case VertexKind::compute: return op;
    case VertexKind::joint:
      return op + "+" +
             to_string(Op{.microbatch = vertex.partner_microbatch,
                          .stage = vertex.partner_stage,
                          .slice = vertex.partner_slice,
                          .kind = static_cast<OpKind>(vertex.partner_op)},
                       sliced);
    case VertexKind::recompute: return "recompute for " + op;
    case VertexKind::transfer: return fmt::format("send {} {}->{}", op, vertex.from, vertex.to);
    case VertexKind::optimizer: return fmt::format("optimizer(stage {}, step {})", vertex.stage, vertex.microbatch);
    case VertexKind::offload: break;  // runs have none
    case VertexKind::collective: {
      const std::string_view kind = model::name_of(static_cast<CollectiveKind>(vertex.collective));
      return vertex.stage < 0 ? fmt::format("{}(step {})", kind, vertex.microbatch)
                              : fmt::format("{}(stage {}, step {})", kind, vertex.stage, vertex.microbatch);
    }
  }
  return "";
}

void check_vertex(const RecordedVertex& vertex, const std::string& path) {
  if (vertex.kind == RecordedVertex::kNone) return;
  if (vertex.kind > static_cast<int>(VertexKind::optimizer)) damaged(path, "unknown kind of vertex");
  if (vertex.op > static_cast<int>(OpKind::W) || vertex.partner_op > static_cast<int>(OpKind::W)) {
    damaged(path, "unknown op, expected F, B, I or W");
  }
  if (vertex.collective > static_cast<int>(CollectiveKind::parameter_gather)) {
    damaged(path, "unknown kind of collective");
  }
}

void check_entry(const RecordedEntry& entry, const std::string& path) {
  if (entry.activity > static_cast<std::uint32_t>(Activity::dispatching)) damaged(path, "unknown activity");
  check_vertex(entry.op, path);
  check_vertex(entry.awaited, path);
}

RecordedEvent event_of(const RecordedEntry& entry, WorkerThread thread, bool sliced) {
  const auto name = [sliced](const RecordedVertex& vertex) {
    return vertex.kind == RecordedVertex::kNone ? "" : name_of(vertex, sliced);
  };
  return {.thread = thread,
          .doing = {.activity = static_cast<Activity>(entry.activity),
                    .step = entry.step,
                    .vertex = entry.vertex,
                    .waits_for = entry.waits_for,
                    .since_ns = entry.time_ns},
          .op = name(entry.op),
          .waits_for = name(entry.awaited)};
}

std::uint64_t count_of(const RecorderRing& ring, const std::string& path) {
  const std::uint64_t count = ring.count.load(std::memory_order_acquire);
  if (count == 0 || count > kMaxCount) damaged(path, "implausible number of events");
  return count;
}

RecordedEntry newest(const RecorderLayout& layout, WorkerThread thread, const std::string& path) {
  const RecorderRing& ring = layout.rings[static_cast<std::size_t>(thread)];
  RecordedEntry entry;
  while (!ring.read(count_of(ring, path) - 1, entry)) {
  }
  check_entry(entry, path);
  return entry;
}

RecorderOwner owner_of(const RecorderLayout& layout, const std::string& path) {
  if (layout.world_size < 1 || layout.world_rank < 0 || layout.world_rank >= layout.world_size ||
      layout.pipeline_rank < 0 || layout.pipeline_rank >= layout.world_size || layout.data_rank < 0 ||
      layout.data_rank >= layout.world_size || layout.tensor_rank < 0 || layout.tensor_rank >= layout.world_size ||
      layout.expert_ranks < 0 || layout.expert_ranks > layout.world_size) {
    damaged(path, "its ranks are out of the range of its world size");
  }
  if (layout.host.back() != '\0') damaged(path, "its host name is not terminated");
  return {.world_rank = layout.world_rank,
          .pipeline_rank = layout.pipeline_rank,
          .data_rank = layout.data_rank,
          .tensor_rank = layout.tensor_rank,
          .expert_ranks = layout.expert_ranks,
          .world_size = layout.world_size,
          .process = layout.process,
          .host = layout.host.data()};
}

}  // namespace

std::string_view name_of(Activity activity) {
  switch (activity) {
    case Activity::starting: return "starting";
    case Activity::working: return "working";
    case Activity::waiting: return "waiting";
    case Activity::reducing: return "reducing";
    case Activity::exchanging: return "exchanging";
    case Activity::between: return "between";
    case Activity::finished: return "finished";
    case Activity::failed: return "failed";
    case Activity::stopped: return "stopped";
    case Activity::coordinating: return "coordinating";
    case Activity::dispatching: return "dispatching";
  }
  return "?";
}

std::string_view name_of(ControlPhase phase) {
  switch (phase) {
    case ControlPhase::none: return "";
    case ControlPhase::start: return "the start of the run";
    case ControlPhase::next_step: return "the start of the next step";
    case ControlPhase::report: return "the report of the step";
    case ControlPhase::checkpoint: return "the checkpoint";
    case ControlPhase::measurement: return "the measurement";
  }
  return "";
}

std::string_view name_of(WorkerThread thread) { return thread == WorkerThread::compute ? "compute" : "collective"; }

std::string recorder_name(int world_rank) { return fmt::format("rank-{:04}.rec", world_rank); }

std::string to_string(const RecordedEvent& event) {
  std::string text =
      fmt::format("{}, step {}: {}", name_of(event.thread), event.doing.step + 1, name_of(event.doing.activity));
  const std::string_view phase = name_of(static_cast<ControlPhase>(event.doing.vertex));
  if (event.doing.activity == Activity::coordinating) {
    return fmt::format("{} {} with rank {}", text, phase, event.doing.waits_for);
  }
  if (event.doing.activity == Activity::between && !phase.empty()) return fmt::format("{}, at {}", text, phase);
  if (!event.waits_for.empty()) return fmt::format("{} for {} before {}", text, event.waits_for, event.op);
  return event.op.empty() ? text : fmt::format("{} in {}", text, event.op);
}

void RecorderFile::Unmap::operator()(const RecorderLayout* layout) const {
  // munmap takes a non-const pointer.
  ::munmap(const_cast<RecorderLayout*>(layout), sizeof(RecorderLayout));
}

RecorderFile::RecorderFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(path, fmt::format("cannot open: {}", std::strerror(errno)));
  struct stat status {};
  ::fstat(fd, &status);
  void* memory = MAP_FAILED;
  if (S_ISREG(status.st_mode) && status.st_size == static_cast<off_t>(sizeof(RecorderLayout))) {
    memory = ::mmap(nullptr, sizeof(RecorderLayout), PROT_READ, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (S_ISDIR(status.st_mode)) fail(path, "is a folder, expected a file");
  if (!S_ISREG(status.st_mode)) fail(path, "not a recorder file");
  if (status.st_size != static_cast<off_t>(sizeof(RecorderLayout))) {
    fail(path, fmt::format("not a recorder file, or truncated: expected {} bytes, got {}", sizeof(RecorderLayout),
                           status.st_size));
  }
  if (memory == MAP_FAILED) fail(path, fmt::format("cannot map: {}", std::strerror(error)));
  layout_.reset(static_cast<const RecorderLayout*>(memory));
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (layout_->magic != RecorderLayout::kMagic) fail(path, "not a recorder file");
  if (layout_->version != RecorderLayout::kVersion) {
    fail(path, fmt::format("recorder file of another version or byte order: expected version {}, got {}",
                           RecorderLayout::kVersion, layout_->version));
  }
  owner_ = owner_of(*layout_, path_);
  newest(*layout_, WorkerThread::compute, path_);
  newest(*layout_, WorkerThread::collective, path_);
}

RecordedEvent RecorderFile::last(WorkerThread thread) const {
  return event_of(newest(*layout_, thread, path_), thread, layout_->sliced != 0);
}

Doing RecorderFile::doing(WorkerThread thread) const {
  const RecordedEntry entry = newest(*layout_, thread, path_);
  return {.activity = static_cast<Activity>(entry.activity),
          .step = entry.step,
          .vertex = entry.vertex,
          .waits_for = entry.waits_for,
          .since_ns = entry.time_ns};
}

std::optional<ProcessState> RecorderFile::process() const {
  if (owner_.host != host_name()) return std::nullopt;
  return process_state(owner_.process, layout_->process_started);
}

std::vector<RecordedEvent> RecorderFile::events() const {
  std::vector<RecordedEvent> events;
  for (const WorkerThread thread : {WorkerThread::compute, WorkerThread::collective}) {
    const RecorderRing& ring = layout_->rings[static_cast<std::size_t>(thread)];
    const std::uint64_t count = count_of(ring, path_);
    for (std::uint64_t n = count - std::min<std::uint64_t>(count, Recorder::kEvents); n < count; ++n) {
      RecordedEntry entry;
      if (!ring.read(n, entry)) continue;
      check_entry(entry, path_);
      events.push_back(event_of(entry, thread, layout_->sliced != 0));
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const RecordedEvent& a, const RecordedEvent& b) { return a.doing.since_ns < b.doing.since_ns; });
  return events;
}

bool RecorderFile::replaced() const {
  struct stat status {};
  return ::stat(path_.c_str(), &status) != 0 || status.st_dev != device_ || status.st_ino != inode_;
}

std::vector<RecorderFile> open_recorders(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<RecorderFile> files;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    files.emplace_back(path);
    return files;
  }
  std::vector<std::string> paths;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".rec")) paths.push_back(entry->path().string());
  }
  if (error) fail(path, fmt::format("cannot read the folder: {}", error.message()));
  if (paths.empty()) fail(path, fmt::format("contains no recorder files: expected {}, ...", recorder_name(0)));
  std::sort(paths.begin(), paths.end());
  for (const std::string& file : paths) files.emplace_back(file);
  return files;
}

}  // namespace sluice::exec
