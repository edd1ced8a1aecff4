#include <string>
#include <vector>

#include "exec/checkpoint/checkpoint.h"
#include "exec/run/faults.h"
#include "exec/watch/recorder_file.h"
#include "model/graph/lowering.h"
#include "model/input/files.h"
#include "model/schedule/family.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/targets.h"
#include "tests/support/command.h"

namespace sluice::test::fuzz {
namespace {

// Returns the file of a recorder with events of both threads.
std::string recorder_bytes() {
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 3});
  const OpGraph graph = lower(schedule);
  const TemporaryFolder folder;
  Recorder recorder(folder.path("a.rec"), {.world_size = 2, .process = 1, .host = "elsewhere"}, graph);
  for (VertexId v = 0; v < graph.size(); ++v) {
    recorder.doing(WorkerThread::compute, Activity::waiting, 0, v, graph.size() - 1 - v);
    recorder.doing(WorkerThread::collective, Activity::working, 1, v);
  }
  recorder.control(ControlPhase::checkpoint, 1, 1);
  return read_file(folder.path("a.rec"));
}

}  // namespace

void try_recorder(std::string_view text) {
  static const std::string whole = recorder_bytes();
  std::string damaged = whole;
  for (; text.size() >= 4; text.remove_prefix(4)) {  // three bytes of an offset, and the byte that is written there
    const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(text[i])); };
    damaged[(byte(0) << 16U | byte(1) << 8U | byte(2)) % damaged.size()] = text[3];
  }
  if (!text.empty()) damaged.resize(damaged.size() * static_cast<unsigned char>(text[0]) / 255);
  const MemoryFile file(damaged);
  accepts([&] {
    const RecorderFile recorder(file.path());
    require(recorder.owner().world_rank >= 0, "a negative rank");
    for (const WorkerThread thread : {WorkerThread::compute, WorkerThread::collective}) {
      accepts([&] { to_string(recorder.last(thread)); });
    }
    for (const RecordedEvent& event : recorder.events()) to_string(event);
  });
}

void try_checkpoint(std::string_view text) {
  const MemoryFile file(text);
  accepts([&] {
    const CheckpointReader reader(file.path());
    require(reader.step() >= 0, "a negative step");
    for (const std::string& name : reader.names()) {
      // Only names are known here; the shapes are mostly wrong.
      Parameter block{.name = name, .all_rows = 2, .all_columns = 3, .rows = 2, .columns = 3};
      std::vector<std::byte> values(2 * 3 * 8);
      accepts([&] { reader.read(block, "", Precision::float32, values.data()); });
      accepts([&] { reader.read(block, "", Precision::float64, values.data()); });
    }
  });
}

void try_fault(std::string_view text) {
  accepts([&] {
    const Fault fault = parse_fault(text);
    require(fault.text == text, "the text of the fault changed");
    require((fault.kind == FaultKind::delay) == (fault.delay.count() > 0), "a delay of 0");
  });
}

}  // namespace sluice::test::fuzz
