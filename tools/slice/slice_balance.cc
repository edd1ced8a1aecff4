#include "tools/slice/slice_balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "sim/engine/predict.h"
#include "sim/planner/batch_setup.h"
#include "tools/command/assumptions.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/document.h"
#include "tools/command/scenario_flags.h"
#include "tools/slice/slice_cut.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

struct BalanceCandidate {
  Packer packer = Packer::given;
  MicrobatchOrder order = MicrobatchOrder::given;
  std::shared_ptr<const Batch> batch;
  BatchRun run;
  std::int64_t needed_bytes = 0;  // 0: not known
  std::string refused;

  Duration makespan() const { return run.replicas[to_size(run.slowest)].makespan; }
};

// Returns the word at `key` of the batch, or all words if it has its default.
std::vector<int> words_to_compare(const nlohmann::json& document, const char* key,
                                  const std::vector<std::string>& words) {
  const nlohmann::json::json_pointer place(std::string("/batch/") + key);
  std::vector<int> out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool limited = document.contains(place) && document[place].is_string() && document[place] != "given";
    if (i == 0 || !limited || document[place] == words[i]) out.push_back(static_cast<int>(i));
  }
  return out;
}

class Balance {
 public:
  Balance(nlohmann::json document, const SliceRequest& request)
      : document_(std::move(document)), file_(request.file), stop_(request.stop), budget_s_(request.time_budget_s) {
    const nlohmann::json::json_pointer lengths("/batch/lengths");
    if (!document_.contains(lengths) || document_[lengths].is_null()) {
      throw InputError("slice: --balance needs the lengths of documents (--lengths)");
    }
    const std::vector<int> packers = words_to_compare(document_, "pack", kPackers);
    const std::vector<int> orders = words_to_compare(document_, "order", kMicrobatchOrders);
    if (packers.size() == 1 || orders.size() == 1) ScenarioFlags::read(document_, file_);  // names the wrong word
    for (const int packer : packers) {
      if (static_cast<Packer>(packer) == Packer::balanced && replicas_ == 1) continue;  // as given
      try_orders(static_cast<Packer>(packer), orders);
    }
    if (std::find(orders.begin(), orders.end(), static_cast<int>(MicrobatchOrder::best)) != orders.end()) {
      const BalanceCandidate* const packed = fastest([](const BalanceCandidate& each) { return !is_given(each); });
      if (of(Packer::given, MicrobatchOrder::given) != nullptr) try_order(Packer::given, MicrobatchOrder::best);
      if (packed != nullptr) try_order(packed->packer, MicrobatchOrder::best);
    }
    best_ = fastest([](const BalanceCandidate&) { return true; });
    if (best_ == nullptr) throw InputError(candidates_.front()->refused);
  }

  SliceCut cut() const {
    SliceCut out{.table = text(), .json = json(), .assumed = assumed_};
    add_assumptions(out.json, out.table, {scenario_of(best_->packer), document_});
    out.feasible = fits(*best_);
    out.interrupted = is_stopped();
    for (int i = 0; i < best_->batch->microbatches(); ++i) {
      for (const Microbatches& replica : best_->run.microbatches) out.batch.push_back(replica[to_size(i)]);
    }
    return out;
  }

 private:
  bool is_stopped() const { return stop_ != nullptr && *stop_; }
  bool is_out_of_time() const {
    return budget_s_ >= 0 && std::chrono::steady_clock::now() - begin_ >= std::chrono::duration<double>(budget_s_);
  }
  static bool is_given(const BalanceCandidate& each) { return each.packer == Packer::given; }
  bool fits(const BalanceCandidate& each) const { return capacity_ == 0 || each.needed_bytes <= capacity_; }

  Scenario scenario_of(Packer packer) const {
    nlohmann::json document = document_;
    document["batch"].erase("order");
    document["batch"]["pack"] = kPackers[to_size(static_cast<int>(packer))];
    return ScenarioFlags::read(document, file_);
  }

  void try_orders(Packer packer, const std::vector<int>& orders) {
    for (const int order : orders) {
      if (static_cast<MicrobatchOrder>(order) != MicrobatchOrder::best) {
        try_order(packer, static_cast<MicrobatchOrder>(order));
      }
    }
  }

  void try_order(Packer packer, MicrobatchOrder order) {
    out_of_time_ = out_of_time_ || (is_out_of_time() && !candidates_.empty());
    if (out_of_time_ || (is_stopped() && !candidates_.empty())) return;
    BalanceCandidate& out = *candidates_.emplace_back(std::make_unique<BalanceCandidate>());
    out.packer = packer;
    out.order = order;
    try {
      std::unique_ptr<Scenario>& of_packer = scenarios_[to_size(static_cast<int>(packer))];
      if (of_packer == nullptr) of_packer = std::make_unique<Scenario>(scenario_of(packer));
      Scenario scenario = *of_packer;
      if (scenario.context_grouping != ContextGrouping::none) {
        throw InputError(
            "slice: --balance excludes dynamic context parallelism, which distributes documents over ranks");
      }
      assumed_ = assumed_times_line(scenario);
      schedule_ = scenario.schedule;
      replicas_ = scenario.documents->request.replicas;
      if (scenario.cluster && scenario.model) capacity_ = scenario.cluster->gpu.memory_bytes;
      auto batch = std::make_shared<Batch>(*scenario.documents);
      batch->before.clear();
      order_microbatches(*batch, order, scenario.model ? &*scenario.model : nullptr);
      scenario.documents = batch;
      out.run = batch_setup(scenario).run;
      out.batch = std::move(batch);
      if (capacity_ == 0) return;
      for (const ReplicaRun& replica : out.run.replicas) {
        out.needed_bytes = std::max(out.needed_bytes, needed_bytes(scenario.cluster->gpu, replica.peak_bytes));
      }
    } catch (const InputError& error) {
      out.refused = error.what();
    }
  }

  // Returns a simulated candidate, or null.
  const BalanceCandidate* of(Packer packer, MicrobatchOrder order) const {
    const auto found = std::find_if(candidates_.begin(), candidates_.end(), [&](const auto& each) {
      return each->packer == packer && each->order == order && each->batch != nullptr;
    });
    return found == candidates_.end() ? nullptr : found->get();
  }

  // Returns the fastest of those that fit in memory, or else the one that needs the least; the first of equal ones.
  template <typename Accept>
  const BalanceCandidate* fastest(const Accept& accept) const {
    const BalanceCandidate* out = nullptr;
    for (const auto& each : candidates_) {
      if (each->batch == nullptr || !accept(*each)) continue;
      const bool better = out == nullptr || (fits(*each) && !fits(*out)) ||
                          (fits(*each) == fits(*out) &&
                           (fits(*each) ? each->makespan() < out->makespan() : each->needed_bytes < out->needed_bytes));
      if (better) out = each.get();
    }
    return out;
  }

  // Returns by how much the fastest of the accepted candidates shortens the batch as loaded; unknown without that one.
  template <typename Accept>
  std::optional<double> saved(const Accept& accept) const {
    const BalanceCandidate* const loaded = of(Packer::given, MicrobatchOrder::given);
    const BalanceCandidate* const other = fastest(accept);
    if (loaded == nullptr || other == nullptr) return std::nullopt;
    return 1 - to_seconds(other->makespan()) / to_seconds(loaded->makespan());
  }

  OrderedJson candidates_json() const {
    OrderedJson out = OrderedJson::array();
    for (const auto& each : candidates_) {
      OrderedJson& row =
          out.emplace_back(OrderedJson{{"pack", kPackers[to_size(static_cast<int>(each->packer))]},
                                       {"order", kMicrobatchOrders[to_size(static_cast<int>(each->order))]}});
      if (each->batch == nullptr) {
        row["refused"] = each->refused;
        continue;
      }
      row["microbatches_per_replica"] = each->batch->microbatches();
      row["time_s"] = each->makespan();
      row["needed_bytes"] = capacity_ > 0 ? OrderedJson(each->needed_bytes) : OrderedJson();
      row["fits"] = fits(*each);
    }
    return out;
  }

  OrderedJson json() const {
    const BatchRun& run = best_->run;
    Duration first = best_->makespan();
    for (const ReplicaRun& replica : run.replicas) first = std::min(first, replica.makespan);
    const BalanceCandidate* const loaded = of(Packer::given, MicrobatchOrder::given);
    const auto order_alone = [](const BalanceCandidate& each) { return is_given(each); };
    const auto replicas_alone = [](const BalanceCandidate& each) {
      return each.packer == Packer::balanced && each.order == MicrobatchOrder::given;
    };
    const auto packing_alone = [](const BalanceCandidate& each) {
      return each.packer > Packer::balanced && each.order == MicrobatchOrder::given;
    };
    const Batch& batch = *best_->batch;
    std::int64_t documents = 0;
    batch.for_each_document([&](std::int64_t) { ++documents; });
    return {{"schema", "sluice.slice/1"},
            {"method", "balance"},
            {"schedule", schedule_},
            {"documents", documents},
            {"tokens", batch.tokens()},
            {"replicas", batch.request.replicas},
            {"pack", kPackers[to_size(static_cast<int>(best_->packer))]},
            {"packing_proven", batch.proven},
            {"order", kMicrobatchOrders[to_size(static_cast<int>(best_->order))]},
            {"order_proven", run.best_order},
            {"orders_tried", run.orders},
            {"microbatches_per_replica", batch.microbatches()},
            {"time_s", best_->makespan()},
            {"fastest_replica_s", first},
            {"even_s", run.even},
            {"as_loaded_s", loaded != nullptr ? OrderedJson(loaded->makespan()) : OrderedJson()},
            {"saved",
             {{"all", saved([](const BalanceCandidate&) { return true; })},
              {"order", saved(order_alone)},
              {"replicas", saved(replicas_alone)},
              {"packing", saved(packing_alone)}}},
            {"fits", fits(*best_)},
            {"out_of_time", out_of_time_},
            {"batch", run.microbatches},
            {"candidates", candidates_json()}};
  }

  // A row for each packing, with the times of its orders.
  std::string text() const {
    OrderedJson rows = OrderedJson::array();
    std::string refused;
    for (const auto& each : candidates_) {
      const std::string& name = kPackers[to_size(static_cast<int>(each->packer))];
      if (each->batch == nullptr) {
        if (refused.find(each->refused) == std::string::npos) refused += fmt::format("  {}\n", each->refused);
        continue;
      }
      std::size_t at = 0;
      while (at < rows.size() && rows[at]["pack"] != name) ++at;
      if (at == rows.size()) {
        rows.push_back({{"pack", name}, {"count", each->batch->microbatches()}, {"bytes", nullptr}});
        for (const std::string& order : kMicrobatchOrders) rows.back()[order] = nullptr;
        if (capacity_ > 0) rows.back()["bytes"] = each->needed_bytes;
      }
      rows[at][kMicrobatchOrders[to_size(static_cast<int>(each->order))]] = to_seconds(each->makespan());
    }
    OrderedJson found = json();
    if (replicas_ == 1) found["fastest_replica_s"] = nullptr;
    std::string out = fmt::format("{}: {} of {} tokens in {}\n", schedule_,
                                  counted(found["documents"].get<std::int64_t>(), "document", "s"),
                                  found["tokens"].get<std::int64_t>(), counted(replicas_, "replica", "s"));
    out += table(
        "<  packing=  {pack}|  microbatches={count}|  given={given:t}|  ascending={ascending:t}|"
        "  descending={descending:t}|  best={best:t}|  memory={bytes:B}",
        rows);
    out += refused + "\n" +
           filled(
               "  {pack}, {order} order: {time_s:t}[; fastest replica {fastest_replica_s:t}]; {even_s:t} if every "
               "microbatch took the mean time\n"
               "[  as loaded {as_loaded_s:t}: saves {saved/all:.1%}][; order alone {saved/order:.1%}][, balanced "
               "replicas alone {saved/replicas:.1%}][, packing alone {saved/packing:.1%}]\n",
               found);
    if (!fits(*best_)) out += "  no packing fits in memory\n";
    if (out_of_time_) out += "  time budget exhausted: further packings and orders were not tried\n";
    return out;
  }

  nlohmann::json document_;
  std::string file_;
  const std::atomic<bool>* stop_;
  double budget_s_;  // below 0: no limit
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool out_of_time_ = false;
  std::string assumed_;
  std::string schedule_;
  int replicas_ = 0;
  std::int64_t capacity_ = 0;  // 0: not known
  std::vector<std::unique_ptr<Scenario>> scenarios_ = std::vector<std::unique_ptr<Scenario>>(kPackers.size());
  std::vector<std::unique_ptr<BalanceCandidate>> candidates_;
  const BalanceCandidate* best_ = nullptr;
};

}  // namespace

SliceCut balance_batch(const SliceRequest& request, nlohmann::json document) {
  if (!request.schedule.empty()) {
    if (!names_file(request.schedule)) find_family(request.schedule, "--for");
    set_schedule(document, request.schedule);
  }
  return Balance(std::move(document), request).cut();
}

std::string batch_lengths_text(const std::vector<Documents>& batch, bool json) {
  if (json) return OrderedJson(batch).dump() + "\n";
  std::string out;
  for (const Documents& documents : batch) out += fmt::format("{}\n", fmt::join(documents, " "));
  return out;
}

}  // namespace sluice::tools
