#include "exec/watch/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exec/watch/diagnosis.h"
#include "exec/watch/recorder_file.h"
#include "exec/watch/recorder_layout.h"
#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/input/files.h"
#include "model/schedule/family.h"
#include "tests/support/command.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecorderTest : public ::testing::Test {
 protected:
  RecorderTest()
      : schedule_(make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 3})), graph_(lower(schedule_)) {}

  RecorderOwner owner(int rank = 0) const {
    return {.world_rank = rank,
            .pipeline_rank = rank % 2,
            .data_rank = rank / 2,
            .tensor_rank = 0,
            .expert_ranks = 2,
            .world_size = 4,
            .process = ::getpid(),
            .host = host_name()};
  }
  std::string path(int rank = 0) const { return folder_.path(recorder_name(rank)); }
  VertexId vertex(const std::string& name) const {
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (graph_.name(v) == name) return v;
    }
    ADD_FAILURE() << name;
    return 0;
  }
  std::string error_of(const std::string& file) const {
    return test::error_from(
        [&] {
          RecorderFile opened(file);
          opened.events();
        },
        "none");
  }

  TemporaryFolder folder_;
  Schedule schedule_;
  OpGraph graph_;
};

TEST_F(RecorderTest, HasOwnerAndActivitiesOfBothThreads) {
  Recorder recorder(path(3), owner(3), graph_);
  const RecorderFile file(path(3));
  EXPECT_EQ(file.owner().world_rank, 3);
  EXPECT_EQ(file.owner().pipeline_rank, 1);
  EXPECT_EQ(file.owner().data_rank, 1);
  EXPECT_EQ(file.owner().tensor_rank, 0);
  EXPECT_EQ(file.owner().expert_ranks, 2);
  EXPECT_EQ(file.owner().world_size, 4);
  EXPECT_EQ(file.owner().process, ::getpid());
  EXPECT_EQ(file.owner().host, host_name());
  EXPECT_EQ(file.process(), ProcessState::running);
  EXPECT_EQ(file.doing(WorkerThread::compute).activity, Activity::starting);
  EXPECT_EQ(file.doing(WorkerThread::collective).activity, Activity::starting);

  const VertexId op = vertex("F(stage 1, mb 2)");
  const VertexId transfer = vertex("send F(stage 0, mb 2) 0->1");
  const auto before = std::chrono::steady_clock::now().time_since_epoch();
  recorder.doing(WorkerThread::compute, Activity::waiting, 7, op, transfer);
  const Doing doing = file.doing(WorkerThread::compute);
  EXPECT_EQ(doing.activity, Activity::waiting);
  EXPECT_EQ(doing.step, 7);
  EXPECT_EQ(doing.vertex, op);
  EXPECT_EQ(doing.waits_for, transfer);
  EXPECT_GE(doing.since_ns, std::chrono::nanoseconds(before).count());
  EXPECT_LE(doing.since_ns, std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
  EXPECT_EQ(file.doing(WorkerThread::collective).activity, Activity::starting);
  EXPECT_EQ(to_string(file.last(WorkerThread::compute)),
            "compute, step 8: waiting for send F(stage 0, mb 2) 0->1 before F(stage 1, mb 2)");
}

TEST_F(RecorderTest, FailureKeepsThePreviousVertex) {
  Recorder recorder(path(), owner(), graph_);
  const RecorderFile file(path());
  recorder.doing(WorkerThread::compute, Activity::failed, 0);
  EXPECT_EQ(to_string(file.last(WorkerThread::compute)), "compute, step 1: failed");
  const VertexId op = vertex("F(stage 1, mb 2)");
  recorder.doing(WorkerThread::compute, Activity::waiting, 7, op, vertex("send F(stage 0, mb 2) 0->1"));
  recorder.doing(WorkerThread::compute, Activity::failed, 0);
  EXPECT_EQ(file.doing(WorkerThread::compute).step, 7);
  EXPECT_EQ(file.doing(WorkerThread::compute).vertex, op);
  EXPECT_EQ(to_string(file.last(WorkerThread::compute)), "compute, step 8: failed in F(stage 1, mb 2)");
  recorder.doing(WorkerThread::compute, Activity::between, 8);
  recorder.doing(WorkerThread::compute, Activity::failed, 0);
  EXPECT_EQ(to_string(file.last(WorkerThread::compute)), "compute, step 9: failed");
  recorder.doing(WorkerThread::compute, Activity::working, 9, op);
  recorder.doing(WorkerThread::compute, Activity::stopped, 0);
  EXPECT_EQ(to_string(file.last(WorkerThread::compute)), "compute, step 10: stopped in F(stage 1, mb 2)");
}

TEST_F(RecorderTest, NamesVerticesLikeTheGraph) {
  // All kinds of vertices: joint blocks and replicas in dualpipe, slices, collectives, recomputation.
  const auto check = [&](const std::string& family, FamilyParams params, LoweringOptions options) {
    const Schedule schedule = make_schedule(find_family(family), std::move(params));
    const OpGraph graph = lower(schedule, options);
    Recorder recorder(path(), owner(), graph);
    for (VertexId v = 0; v < graph.size(); ++v) recorder.doing(WorkerThread::compute, Activity::working, 0, v);
    const RecorderFile file(path());
    const std::vector<RecordedEvent> events = file.events();
    ASSERT_GE(events.size(), graph.size());
    const std::size_t first = events.size() - graph.size();
    for (VertexId v = 0; v < graph.size(); ++v) {
      EXPECT_EQ(events[first + v].op, graph.name(v));
      EXPECT_EQ(events[first + v].doing.vertex, v);
    }
  };
  check("dualpipe", {.ranks = 4, .microbatches = 10},
        {.data_parallel = 2, .tied_embedding = true, .global_norm = true});
  check("seq1f1b", {.ranks = 3, .microbatches = 4, .shape = {.slice_lengths = {1, 1, 1}}},
        {.data_parallel = 2, .gather_parameters = true, .recompute = true});
}

TEST_F(RecorderTest, KeepsTheLastEventsOfEachThreadInOrder) {
  Recorder recorder(path(), owner(), graph_);
  const RecorderFile file(path());
  EXPECT_EQ(file.events().size(), 2U);  // both started
  recorder.doing(WorkerThread::collective, Activity::exchanging, 1, 5);
  for (int step = 0; step < 3 * Recorder::kEvents; ++step) {
    recorder.doing(WorkerThread::compute, Activity::working, step, 2);
  }
  recorder.doing(WorkerThread::collective, Activity::finished, 9);
  const std::vector<RecordedEvent> events = file.events();
  // kEvents of compute; of collective starting, exchanging and finished.
  ASSERT_EQ(events.size(), static_cast<std::size_t>(Recorder::kEvents) + 3);
  int next = 2 * Recorder::kEvents;
  std::int64_t time = 0;
  std::vector<Activity> collective;
  for (const RecordedEvent& event : events) {
    EXPECT_GE(event.doing.since_ns, time);
    time = event.doing.since_ns;
    if (event.thread == WorkerThread::collective) {
      collective.push_back(event.doing.activity);
    } else {
      EXPECT_EQ(event.doing.step, next++);
    }
  }
  EXPECT_THAT(collective, ElementsAre(Activity::starting, Activity::exchanging, Activity::finished));
  EXPECT_EQ(events.back().thread, WorkerThread::collective);
}

TEST_F(RecorderTest, ConcurrentReadsAreConsistent) {
  // All fields of an entry follow from one number, so that inconsistent reads are detected.
  const VertexId size = graph_.size();
  Recorder recorder(path(), owner(), graph_);
  const RecorderFile file(path());
  std::atomic<bool> stop{false};
  const auto write = [&](WorkerThread thread) {
    for (int step = 0; !stop.load(); ++step) {
      const auto v = static_cast<VertexId>(step) % size;
      recorder.doing(thread, Activity::waiting, step, v, size - 1 - v);
    }
  };
  std::thread compute(write, WorkerThread::compute);
  std::thread collective(write, WorkerThread::collective);
  const auto agrees = [&](const Doing& doing) {
    if (doing.activity == Activity::starting) return true;
    const auto v = static_cast<VertexId>(doing.step) % size;
    return doing.vertex == v && doing.waits_for == size - 1 - v;
  };
  std::int64_t looks = 0;
  int last_step = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
  // On a busy machine until the writer has wrapped around, however long that takes.
  while (std::chrono::steady_clock::now() < until || looks <= 100 || last_step <= Recorder::kEvents) {
    for (int i = 0; i < 100; ++i, ++looks) {
      const Doing doing = file.doing(WorkerThread::compute);
      ASSERT_TRUE(agrees(doing));
      ASSERT_GE(doing.step, last_step);
      last_step = doing.step;
      ASSERT_TRUE(agrees(file.doing(WorkerThread::collective)));
    }
    for (const RecordedEvent& event : file.events()) {
      ASSERT_TRUE(agrees(event.doing));
      if (event.doing.activity != Activity::starting) {
        ASSERT_EQ(event.op, graph_.name(event.doing.vertex));
      }
    }
  }
  stop = true;
  compute.join();
  collective.join();
}

TEST_F(RecorderTest, CanBeReadAfterTheProcessWasKilled) {
  const VertexId op = vertex("B(stage 0, mb 1)");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RecorderOwner own = owner(2);
    own.process = ::getpid();
    Recorder recorder(path(2), own, graph_);
    recorder.doing(WorkerThread::collective, Activity::between, 4);
    recorder.doing(WorkerThread::compute, Activity::working, 5, op);
    [[maybe_unused]] const auto written = ::write(ready[1], "x", 1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const RecorderFile live(path(2));
  EXPECT_EQ(live.process(), ProcessState::running);
  ::kill(child, SIGSTOP);
  ::waitpid(child, nullptr, WUNTRACED);
  EXPECT_EQ(live.process(), ProcessState::suspended);
  ::kill(child, SIGKILL);
  // Dead even before it is reaped.
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(live.process(), ProcessState::dead);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_EQ(live.process(), ProcessState::dead);

  const std::vector<RecorderFile> files = open_recorders(folder_.path());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].owner().world_rank, 2);
  EXPECT_EQ(files[0].owner().process, child);
  EXPECT_EQ(files[0].process(), ProcessState::dead);
  EXPECT_EQ(files[0].doing(WorkerThread::compute).activity, Activity::working);
  EXPECT_EQ(files[0].doing(WorkerThread::compute).step, 5);
  EXPECT_EQ(files[0].last(WorkerThread::compute).op, "B(stage 0, mb 1)");
  EXPECT_EQ(files[0].doing(WorkerThread::collective).activity, Activity::between);
  EXPECT_EQ(files[0].events().size(), 4U);
}

TEST_F(RecorderTest, OwnersOnOtherHostsHaveNoState) {
  RecorderOwner far = owner();
  far.host = host_name() + "-other";
  const Recorder recorder(path(), far, graph_);
  EXPECT_EQ(RecorderFile(path()).process(), std::nullopt);
}

TEST_F(RecorderTest, ProcessWithAReusedIdIsNotTheOwner) {
  const std::uint64_t started = process_start(::getpid());
  ASSERT_GT(started, 0U);
  EXPECT_EQ(process_state(::getpid(), started), ProcessState::running);
  EXPECT_EQ(process_state(::getpid(), started + 1), ProcessState::dead);
  EXPECT_EQ(process_state(0), ProcessState::dead);
  EXPECT_EQ(process_state(-1), ProcessState::dead);
}

TEST_F(RecorderTest, ReplacingKeepsMappedFilesReadable) {
  auto first = std::make_unique<Recorder>(path(), owner(), graph_);
  first->doing(WorkerThread::compute, Activity::working, 11, 3);
  const RecorderFile old(path());
  EXPECT_FALSE(old.replaced());
  const Recorder second(path(), owner(), graph_);
  EXPECT_TRUE(old.replaced());
  EXPECT_EQ(old.doing(WorkerThread::compute).step, 11);
  EXPECT_EQ(RecorderFile(path()).doing(WorkerThread::compute).activity, Activity::starting);
  EXPECT_EQ(folder_.num_files(), 1);
}

TEST_F(RecorderTest, OtherFilesAreRejectedByName) {
  EXPECT_THAT(error_of(folder_.path("missing.rec")), HasSubstr("missing.rec: cannot open"));
  EXPECT_THAT(error_of(folder_.path()), HasSubstr("is a folder"));
  EXPECT_THAT(error_of("/dev/null"), HasSubstr("/dev/null: not a recorder file"));
  { const Recorder recorder(path(), owner(), graph_); }
  const std::string whole = read_file(path());
  const auto with = [&](const std::string& content) {
    const std::string file = folder_.path("other.rec");
    write_file_whole(file, content);
    return error_of(file);
  };
  EXPECT_EQ(with(whole), "none");
  EXPECT_THAT(with(""), HasSubstr("other.rec: not a recorder file, or truncated"));
  EXPECT_THAT(with(whole.substr(0, whole.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(with(whole + "x"), HasSubstr("expected"));
  EXPECT_THAT(with(std::string(whole.size(), 'x')), HasSubstr("not a recorder file"));
  std::string other = whole;
  other[8] = 99;  // the version
  EXPECT_THAT(with(other), HasSubstr("expected version 1, got 99"));
  other = whole;
  other[16] = 5;  // the world rank, of 4
  EXPECT_THAT(with(other), HasSubstr("damaged recorder file: its ranks are out of the range of its world size"));
  other = whole;
  other[36] = 5;  // the expert ranks, of 4
  EXPECT_THAT(with(other), HasSubstr("damaged recorder file: its ranks are out of the range of its world size"));
  EXPECT_THROW(open_recorders(folder_.path("none")), InputError);
  const TemporaryFolder empty;
  EXPECT_THROW(open_recorders(empty.path()), InputError);
  EXPECT_THROW(Recorder(folder_.path("none/rank-0000.rec"), owner(), graph_), InputError);
}

TEST_F(RecorderTest, DamagedFilesNeverCrash) {
  {
    Recorder recorder(path(), owner(), graph_);
    for (VertexId v = 0; v < graph_.size(); ++v) recorder.doing(WorkerThread::compute, Activity::waiting, 0, v, v);
  }
  const std::string whole = read_file(path());
  std::mt19937_64 random(1);
  int refused = 0;
  const auto look = [&](const std::string& content) {
    const std::string file = folder_.path("damaged.rec");
    std::filesystem::remove(file);  // some file systems flush a file that is written over
    std::ofstream(file, std::ios::binary) << content;
    const std::string error = error_of(file);
    if (error == "none") return;
    ++refused;
    EXPECT_THAT(error, HasSubstr("damaged.rec: ")) << error;
  };
  // Every byte of the header and of both counts, and some entries.
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at < offsetof(RecorderLayout, rings) + 64 + 2 * sizeof(RecorderRing::Slot); ++at) {
    places.push_back(at);
  }
  for (std::size_t at = 0; at < 64; ++at) places.push_back(offsetof(RecorderLayout, rings) + sizeof(RecorderRing) + at);
  for (const std::size_t at : places) {
    std::string content = whole;
    content[at] = static_cast<char>(content[at] ^ (1 + static_cast<int>(random() % 255)));
    look(content);
  }
  EXPECT_GT(refused, 20);
}

TEST(Diagnosis, IsReadAsItWasWritten) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_diagnosis(folder.path()));
  const RunFailure failure(FailureKind::stuck, 3, "rank 3 has been inside F\nrank 2 waits for it");
  for (const RunFailure& found : {agree_on_diagnosis(folder.path(), failure),
                                  agree_on_diagnosis(folder.path(), {FailureKind::lost, 1, "rank 1 died"}),
                                  read_diagnosis(folder.path()).value()}) {
    EXPECT_EQ(found.kind(), FailureKind::stuck);
    EXPECT_EQ(found.world_rank(), 3);
    EXPECT_STREQ(found.what(), failure.what());
  }
  EXPECT_EQ(folder.num_files(), 1);
  remove_diagnosis(folder.path());
  EXPECT_FALSE(read_diagnosis(folder.path()));
}

// The processes find different failures at the same moment: one of them is the diagnosis of all.
TEST(Diagnosis, ProcessesAgreeOnOne) {
  constexpr int kProcesses = 8;
  for (int round = 0; round < 20; ++round) {
    const TemporaryFolder folder;
    std::array<int, 2> gate{};
    ASSERT_EQ(::pipe(gate.data()), 0);
    std::array<pid_t, kProcesses> children{};
    for (int rank = 0; rank < kProcesses; ++rank) {
      children[rank] = ::fork();
      if (children[rank] != 0) continue;
      ::close(gate[1]);
      char opened = 0;
      [[maybe_unused]] const auto end_of_file = ::read(gate[0], &opened, 1);
      const std::string own(10000 + rank, static_cast<char>('a' + rank));
      const RunFailure found = agree_on_diagnosis(folder.path(), {FailureKind::stuck, rank, own});
      ::_exit(std::string(found.what()).size() == 10000U + found.world_rank() ? found.world_rank() : 99);
    }
    ::close(gate[0]);
    ::close(gate[1]);
    const auto result = [](pid_t child) {
      int status = 0;
      ::waitpid(child, &status, 0);
      return WEXITSTATUS(status);
    };
    const int first = result(children[0]);
    EXPECT_LT(first, kProcesses);
    for (int rank = 1; rank < kProcesses; ++rank) EXPECT_EQ(result(children[rank]), first);
    EXPECT_EQ(read_diagnosis(folder.path()).value().world_rank(), first);
    EXPECT_EQ(folder.num_files(), 1);
  }
}

// A process keeps its own failure where there is no folder, and where a file is not a diagnosis.
TEST(Diagnosis, WithoutAFolderTheOwnFailureIsReported) {
  const RunFailure own(FailureKind::lost, 1, "rank 1 died");
  EXPECT_EQ(agree_on_diagnosis("/nowhere", own).world_rank(), 1);
  for (const std::string text :
       {"", "sluice diagnosis 1\n", "sluice diagnosis 1\nstuck\nx\nrank 0", "other\nstuck\n0\n"}) {
    const TemporaryFolder folder;
    std::ofstream(folder.path(kDiagnosisName)) << text;
    EXPECT_FALSE(read_diagnosis(folder.path())) << text;
    EXPECT_EQ(agree_on_diagnosis(folder.path(), own).world_rank(), 1);
  }
}

}  // namespace
}  // namespace sluice::test
