#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "model/graph/lowering.h"
#include "model/scenario/costs.h"
#include "model/timeline/memory.h"
#include "sim/engine/prediction.h"
#include "sim/engine/steady_state.h"
#include "sim/planner/iteration_bound.h"

namespace sluice::sim {

enum class PlanStatus : std::uint8_t {
  open,       // may fit, not simulated yet
  refused,    // not supported by its family, the model or the cluster
  over,       // a lower bound of its memory exceeds the device; not simulated
  bounded,    // others are better than its lower bound; not simulated
  simulated,  // `fits` tells whether it fits
};
std::string_view name_of(PlanStatus status);

// The result of one configuration of a plan.
struct PlanResult {
  PlanStatus status = PlanStatus::open;
  bool fits = false;
  bool tight = false;             // fits only within the memory margin of the GPU; where not simulated, surely does
  bool extrapolated = false;      // times of the long run follow from a shorter one without a proof
  bool standing_over = false;     // does not fit by the bytes that are held for the whole run alone
  int rank = 0;                   // with the highest memory use
  std::int64_t needed_bytes = 0;  // device memory as in Fit; a lower bound unless simulated
  Duration bound{};               // lower bound of the iteration time
  Duration iteration{};           // as by `predict`, with the scenario's correction
  Duration makespan{};
  double bubble_fraction = 0;
  Throughput throughput;
  std::string reason;  // if refused
};

// What configurations share that are assessed one after another and differ in their families alone.
struct SharedCosts {
  std::optional<ScenarioCosts> costs;  // of the one before
  MicrobatchShape shape;
  std::array<std::vector<StageWork>, 2> times;  // of its stages, with whole and split backwards; empty: not computed
  PriceStore prices;
};

// Returns the scenario without its encoder, which is neither slower nor larger.
Scenario language_model_of(Scenario scenario);

// Simulates configurations of one structure: the same family, ranks, chunks, microbatches and slices, with different
// costs and sizes. They share schedules and graphs, and the steady state is simulated once. Not thread-safe.
class StructureRuns {
 public:
  // `scenario` is any of the configurations. Throws InputError if the family does not support it.
  explicit StructureRuns(const Scenario& scenario);

  // Returns a refused, over or open result with lower bounds, without simulating. `shared` is of other configurations
  // of one base and one thread.
  PlanResult assess(const Scenario& scenario, SharedCosts& shared);
  // Returns a refused or simulated result, whose times and bytes equal those of `predict`. Of one whose makespan is not
  // below `worth`, this may be a lower bound, the bytes are not computed, and it does not fit. Of runs of over 2^18
  // vertices that do not become periodic, times are extrapolated.
  PlanResult run(const Scenario& scenario, Duration worth = Duration::max());

  std::int64_t num_vertices() const { return num_vertices_; }  // of all graphs in memory
  std::int64_t num_ops() const;                                // of all schedules in memory

 private:
  using OptionsKey = std::tuple<bool, bool, bool, bool, bool, bool, bool, bool, bool, bool, bool, bool,
                                std::vector<int>, std::vector<int>>;
  struct Lowered {
    OpGraph graph;
    std::unique_ptr<SteadyState> steady;  // built by the first run
  };
  // A schedule of the structure, shortened or whole, and its graphs.
  struct Level {
    explicit Level(ShortSchedule schedule) : brief(std::move(schedule)) {}
    ShortSchedule brief;
    std::int64_t runs = 0;
    std::int64_t failures = 0;  // of these, to become periodic
    std::map<OptionsKey, std::unique_ptr<Lowered>> graphs;
  };

  // What an assessment needs: a schedule with the placement and the shapes of the structure's, and bounds of its peaks.
  struct Sketch {
    explicit Sketch(Schedule of) : schedule(std::move(of)), peaks(schedule) {}
    Schedule schedule;
    LeastPeaks peaks;
  };

  Sketch& sketch();
  std::unique_ptr<Sketch> lengthened_sketch() const;
  // A longer schedule for each index, the last being the whole one.
  Level& level(std::size_t index);
  std::size_t first_level() const;
  Lowered& lowered(Level& of, const ScenarioCosts& costs);
  PlanResult assess_apart(const Scenario& scenario, SharedCosts& shared);
  PlanResult assess_whole(const Scenario& scenario) const;
  PlanResult run_as_predicted(const Scenario& scenario) const;
  std::optional<PlanResult> run_lengthened(const Scenario& scenario) const;

  const Family& family_;
  FamilyParams params_;
  std::unique_ptr<Sketch> sketch_;
  std::vector<std::unique_ptr<Level>> levels_;  // with increasing numbers of microbatches, the last one whole
  PriceStore prices_;
  std::map<std::tuple<int, int, int, bool>, LinkSharing> sharing_;  // by tp, cp, dp and the order of world ranks
  std::int64_t num_vertices_ = 0;
  bool contend_ = false;  // transfers of the last run
};

}  // namespace sluice::sim
