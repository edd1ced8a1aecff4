#include "tools/simulate/batch_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "model/batches/batch.h"
#include "model/to_size.h"
#include "tools/command/document.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

OrderedJson replicas_json(const BatchRun& run) {
  OrderedJson out = OrderedJson::array();
  for (const ReplicaRun& replica : run.replicas) {
    out.push_back({{"makespan_s", replica.makespan},
                   {"documents", replica.documents},
                   {"tokens", replica.tokens},
                   {"peak_memory_bytes", nullptr}});
    if (replica.peak_bytes > 0) out.back()["peak_memory_bytes"] = replica.peak_bytes;
  }
  return out;
}

// Documents by the number of ranks that share each.
OrderedJson sharing_json(const Batch& batch) {
  if (batch.groups.empty()) return nullptr;
  std::map<int, std::int64_t> of_ranks;
  for (const ContextGroup& group : batch.groups) {
    for (const SharedDocument& document : group) ++of_ranks[document.ranks];
  }
  OrderedJson documents = OrderedJson::array();
  for (const auto& [ranks, count] : of_ranks) documents.push_back({{"ranks", ranks}, {"documents", count}});
  return {{"by", kContextGroupings[static_cast<std::size_t>(batch.request.grouping)]},
          {"groups", batch.groups.size()},
          {"sharing", documents}};
}

std::string sharing_line(const OrderedJson& shared) {
  std::string counts;
  for (const OrderedJson& each : shared["sharing"]) {
    counts += fmt::format("{}{} on {}", counts.empty() ? "" : ", ", each["documents"].get<std::int64_t>(),
                          counted(each["ranks"].get<std::int64_t>(), "rank", "s"));
  }
  return fmt::format("  context parallelism per document ({}), in groups ({}): {}\n", shared["by"].get<std::string>(),
                     shared["groups"].get<std::int64_t>(), counts);
}

std::string contents_line(const OrderedJson& documents) {
  const auto whole = [&](const char* key) { return documents[key].get<std::int64_t>(); };
  std::string out = fmt::format("  {} of {} to {} tokens", counted(whole("count"), "document", "s"), whole("shortest"),
                                whole("longest"));
  const OrderedJson& shared = documents["dynamic_context_parallelism"];
  if (!shared.is_null()) return out + "\n" + sharing_line(shared);
  out += " in " + counted(whole("microbatches_per_replica"), "microbatch", "es");
  if (whole("replicas_of_batch") > 1) out += fmt::format(" of each of {} replicas", whole("replicas_of_batch"));
  const auto pack = documents["pack"].get<std::string>();
  if (pack != "given") out += fmt::format(", packed by {}", pack);
  if (documents["packing_proven"].get<bool>()) out += " (proven: no packing has a lighter heaviest microbatch)";
  const auto order = documents["order"].get<std::string>();
  if (order == "best") {
    out += fmt::format(", the {} of {} orders", documents["order_proven"].get<bool>() ? "best" : "best found",
                       whole("orders_tried"));
  } else if (order != "given") {
    out += ", " + order;
  }
  return out + "\n";
}

}  // namespace

OrderedJson batch_json(const Scenario& scenario, const BatchRun& run) {
  const Batch& batch = *scenario.documents;
  std::int64_t count = 0;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t longest = 0;
  batch.for_each_document([&](std::int64_t tokens) {
    ++count;
    shortest = std::min(shortest, tokens);
    longest = std::max(longest, tokens);
  });
  const BatchRequest& request = batch.request;
  return {{"count", count},
          {"tokens", batch.tokens()},
          {"shortest", shortest},
          {"longest", longest},
          {"microbatches_per_replica", batch.microbatches()},
          {"longest_microbatch", batch.longest()},
          {"replicas_of_batch", request.replicas},
          {"in_step", request.in_step},
          {"pack", kPackers[static_cast<std::size_t>(request.packer)]},
          {"packing_proven", batch.proven},
          {"order", kMicrobatchOrders[static_cast<std::size_t>(request.order)]},
          {"order_proven", run.best_order},
          {"orders_tried", run.orders},
          {"dynamic_context_parallelism", sharing_json(batch)},
          {"makespan_s", run.replicas[to_size(run.slowest)].makespan},
          {"even_s", run.even},
          {"as_loaded_s", run.before ? OrderedJson(*run.before) : OrderedJson()},
          {"slowest_replica", run.slowest},
          {"replicas", replicas_json(run)}};
}

std::string batch_text(const OrderedJson& documents) {
  OrderedJson values = documents;
  const double makespan = documents["makespan_s"].get<double>();
  const OrderedJson& before = documents["as_loaded_s"];
  if (const auto even = documents["even_s"].get<double>(); even > 0) values["slowdown"] = makespan / even - 1;
  if (!before.is_null()) values["saved"] = 1 - makespan / before.get<double>();
  double fastest = makespan;
  for (const OrderedJson& replica : documents["replicas"]) {
    fastest = std::min(fastest, replica["makespan_s"].get<double>());
  }
  if (documents["replicas"].size() > 1) values["fastest_s"] = fastest;
  for (const char* key : {"slowdown", "saved", "fastest_s"}) values.emplace(key, nullptr);
  std::string out = contents_line(documents);
  if (!documents["dynamic_context_parallelism"].is_null()) {
    return out + filled("[  all on as many ranks as the longest needs {as_loaded_s:t}: saves {saved:.1%}\n]", values);
  }
  out += filled(
      "[  different lengths cost {slowdown:+.1%}: {even_s:t} if every microbatch took the mean time\n]"
      "[  as the data loader has it {as_loaded_s:t}: packing and order save {saved:.1%}\n]"
      "[  replica {slowest_replica} is the slowest, {makespan_s:t}; the fastest {fastest_s:t}\n]",
      values);
  if (!documents["in_step"].get<bool>()) return out;
  return out + "  replicas wait for each other at every microbatch: the one with the most work counts\n";
}

}  // namespace sluice::tools
