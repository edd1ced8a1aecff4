#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "model/scenario/costs.h"
#include "sim/prediction.h"
#include "sim/steady_state.h"

namespace sluice::sim {

enum class PlanStatus : std::uint8_t {
  open,       // may fit, not simulated yet
  refused,    // its family, the model or the cluster cannot do it
  over,       // what it holds for certain is more than a device has; not simulated
  bounded,    // others are certainly better; not simulated
  simulated,  // and it fits or not
};
std::string_view name_of(PlanStatus status);

// What became of one configuration of a plan.
struct PlanResult {
  PlanStatus status = PlanStatus::open;
  bool fits = false;
  int rank = 0;                   // that needs most
  std::int64_t needed_bytes = 0;  // of a device, as Fit; at least so many where it was not simulated
  Duration bound{};               // no iteration is shorter
  Duration iteration{};           // as `predict` has it, with the scenario's correction
  Duration makespan{};
  double bubble_fraction = 0;
  Throughput throughput;
  std::string reason;  // of a refusal
};

// Runs configurations that differ in costs and sizes alone: one family, ranks, chunks, microbatches and slices. They
// share schedules and graphs, and the steady state is simulated once. Not for several threads at a time.
class StructureRuns {
 public:
  // `scenario` is any of the configurations. Throws InputError for what the family refuses.
  explicit StructureRuns(const Scenario& scenario);

  // Refused, over or open, with what is certain without simulating.
  PlanResult assess(const Scenario& scenario);
  // Refused or simulated. The same to the nanosecond and the byte as `predict`.
  PlanResult run(const Scenario& scenario);

  std::int64_t num_vertices() const { return num_vertices_; }  // of all graphs that it holds

 private:
  using OptionsKey = std::tuple<bool, bool, bool, bool, bool, bool, bool>;
  struct Lowered {
    OpGraph graph;
    std::unique_ptr<SteadyState> steady;  // made for the first run
  };
  // A schedule of the structure, shortened or whole, and the graphs of it.
  struct Level {
    explicit Level(ShortSchedule schedule) : brief(std::move(schedule)) {}
    ShortSchedule brief;
    std::map<OptionsKey, std::unique_ptr<Lowered>> graphs;
  };

  Level& level(std::size_t index);
  Lowered& lowered(Level& of, const ScenarioCosts& costs);
  PlanResult run_as_predicted(const Scenario& scenario) const;

  const Family& family_;
  FamilyParams params_;
  std::vector<std::unique_ptr<Level>> levels_;                 // of more and more microbatches, the last one whole
  std::map<std::tuple<int, int, bool>, LinkSharing> sharing_;  // by tp, dp and the order of world ranks
  std::int64_t num_vertices_ = 0;
};

// No iteration of `microbatches` microbatches is shorter: what each rank computes, after the way of the first slice to
// it and before the way of the last gradient back. Precondition: one shape, and routes take equal shares.
Duration least_iteration(const Schedule& schedule, int microbatches, const ScenarioCosts& costs);

}  // namespace sluice::sim
