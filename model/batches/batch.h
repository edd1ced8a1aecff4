#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "model/batches/context_groups.h"
#include "model/batches/documents.h"
#include "model/blocks/model.h"
#include "model/schedule/schedule.h"
#include "model/workload/training.h"

namespace sluice::model {

enum class Packer : std::uint8_t { given, balanced, greedy, differencing, exact };
enum class MicrobatchOrder : std::uint8_t { given, ascending, descending, best };

// How the data-parallel ranks share documents: not at all, by Megatron-LM's rule, or in the fastest way that is found
// with the times of the scenario.
enum class ContextGrouping : std::uint8_t { none, megatron, fastest };

inline const std::vector<std::string> kContextGroupings = {"none", "megatron", "fastest"};
inline const std::vector<std::string> kPackers = {"given", "balanced", "greedy", "karmarkar-karp", "exact"};
inline const std::vector<std::string> kMicrobatchOrders = {"given", "ascending", "descending", "best"};

// What a batch of documents of different length is made from.
struct BatchRequest {
  std::vector<Documents> loaded;  // microbatches as the data loader has them
  std::string place;              // of errors: "FILE: /batch/lengths"
  Packer packer = Packer::given;
  MicrobatchOrder order = MicrobatchOrder::given;
  int replicas = 1;
  int microbatches = 0;          // per replica; 0: follows from the documents
  std::int64_t most_tokens = 0;  // of a microbatch; 0: any number
  // Replicas wait for each other at every microbatch, since they share its experts or parameters.
  bool in_step = false;
  ContextGrouping grouping = ContextGrouping::none;
  std::int64_t most_tokens_per_rank = 0;  // with grouping
  bool pipelined = false;                 // a group is one microbatch of a pipeline; else its documents run one by one
};

using Microbatches = std::vector<Documents>;

// Whether replicas wait for each other at every microbatch, since they share its experts or parameters.
bool replicas_in_step(const Training& training);

// A batch of documents, distributed over data-parallel replicas and their microbatches.
struct Batch {
  BatchRequest request;
  std::vector<Microbatches> replicas;
  bool proven = false;  // no packing into microbatches has a lighter heaviest one
  // With dynamic context parallelism, by microbatch. Then `replicas` has one entry: of each group, what the rank with
  // the most tokens has at a time.
  std::vector<ContextGroup> groups;
  // As loaded, if that has the same number of microbatches and was packed again or ordered otherwise; or empty.
  std::vector<Microbatches> before;

  int microbatches() const { return static_cast<int>(replicas.front().size()); }
  std::int64_t tokens() const;
  std::int64_t longest() const;  // tokens of the longest microbatch
  template <typename Visit>
  void for_each_document(const Visit& visit) const {
    for (const Documents& documents : request.loaded) std::for_each(documents.begin(), documents.end(), visit);
  }
};

// The time of a microbatch, in proportion: executed FLOPs of forward and backward, or without a model its tokens.
double work_of(const Documents& documents, const Model* model);

// Distributes the documents. As given, the microbatches of the loader go to the replicas in turn, as in Megatron-LM.
// Balanced, they are distributed over the replicas so that their sums are equal, or in step, so that those with the
// same number are. Otherwise documents are first packed into microbatches of equal work, as many as the loader has if
// neither their number nor their tokens are limited. Throws InputError if they do not fit.
// With dynamic context parallelism the groups follow from Megatron-LM's rule.
Batch make_batch(BatchRequest request, const Model* model);
// Changes the order of the microbatches of every replica, except for `best`, which depends on the schedule.
void order_microbatches(Batch& batch, MicrobatchOrder order, const Model* model);
// The batch of these groups of the documents.
Batch batch_of_groups(BatchRequest request, std::vector<ContextGroup> groups);
// The problem of `grouping`; without times.
ContextProblem context_problem(const BatchRequest& request);

// Returns the schedule with a batch's microbatches of one replica in place of its own, in every batch. Slices divide a
// microbatch evenly. Throws InputError "PLACE: ..." for fewer tokens than slices, another number of microbatches, or
// slices of groups.
Schedule with_microbatches(const Schedule& schedule, const Batch& batch, const Microbatches& microbatches);

}  // namespace sluice::model
