#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/graph/communicator_options.h"
#include "model/namespaces.h"

namespace sluice::model {

// A message between two ranks, with one send and one receive in a HostProgram.
struct Message {
  int from = 0;
  int to = 0;
  int stage = 0;        // that sends it
  bool forward = true;  // an activation; otherwise a gradient
  int microbatch = 0;
  int slice = 0;
};

// A send or receive of a group.
struct Post {
  std::uint32_t message = 0;
  bool send = false;
};

// What the host of a rank issues: a compute op, a group of sends and receives that progress independently (a single one
// is a group of one), or a collective.
struct HostItem {
  enum class Kind : std::uint8_t { compute, group, collective };
  Kind kind = Kind::compute;
  std::uint32_t first = 0;  // group: its first entry of `posts`; collective: its index in `collectives`
  std::uint32_t count = 0;  // group: number of posts
};

// The lists of all ranks.
struct HostProgram {
  std::vector<Message> messages;
  std::vector<Post> posts;
  std::vector<std::string> collectives;  // the communicator of each; its members are the ranks that have it
  std::vector<std::vector<HostItem>> ranks;
  // By rank: pairs of items of which the second starts after the end of the first: an op before the send of its result,
  // a receive before the op that reads it.
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> data;
  std::function<std::string(int rank, std::size_t item)> describe;  // "0SEND_F1 on rank 0"

  // Appends an item and returns its index in the list of `rank`.
  std::uint32_t add_compute(int rank);
  std::uint32_t add_group(int rank, const std::vector<Post>& group);
  std::uint32_t add_collective(int rank, std::uint32_t collective);
};

// How the communication of a program is executed. A communicator is one queue per rank: its items run in issue order,
// and the k-th send from a to b pairs with the k-th receive at b from a (NCCL's documentation, 2.28). Nothing is
// buffered: a send ends after its receive has started.
struct CommunicatorModel {
  std::function<std::string(const Message&)> communicator;
  HostWait wait = HostWait::device;
  bool serialized = false;  // all communication of a rank is one queue, as in captured CUDA graphs
  bool buffered = false;    // a send ends without its receive
};

// One item of a cycle, which waits for the next one, and why: "match" (its partner has not started), "queue NAME",
// "data", "compute" (the op before it), "stream" or "host" (HostWait).
struct CycleStep {
  int rank = 0;
  std::string item;
  std::string reason;
};

// Messages of one direction between two ranks, on one communicator, whose sends and receives are in different orders:
// they are received in place of each other, which is not a hang if their sizes are equal.
struct CrossedMessages {
  std::string communicator;
  int from = 0;
  int to = 0;
  std::vector<std::string> sent;      // items, from the first message that differs to the last
  std::vector<std::string> received;  // the items that receive them
  std::int64_t count = 0;             // messages received in place of another one
};

struct CommunicatorVerdict {
  std::vector<CycleStep> cycle;          // empty: the program does not hang
  std::vector<CrossedMessages> crossed;  // by communicator, sender and receiver

  bool hangs() const { return !cycle.empty(); }
  bool passes() const { return cycle.empty() && crossed.empty(); }
  std::int64_t num_crossed() const;
};

// Decides whether a program hangs: it does if and only if the graph of the starts and ends of its items has a cycle.
// The cycle that is returned is the shortest one, or the shortest that was found within a limited number of steps of
// the search if the program is large. Linear in the size of the program if it does not hang.
// Preconditions: each message has one send and one receive, each collective is at most once in a list.
CommunicatorVerdict check_communicators(const HostProgram& program, const CommunicatorModel& model);

// "0SEND_F1 on rank 0 -[match]-> 1RECV_F1 on rank 1 -[queue pipeline]-> ...": each waits for the next.
std::string to_string(const std::vector<CycleStep>& cycle);

}  // namespace sluice::model
