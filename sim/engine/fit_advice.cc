#include "sim/engine/fit_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/slicing/balanced.h"
#include "sim/engine/parallel.h"
#include "sim/engine/shortened.h"

namespace sluice::sim {
namespace {

constexpr VertexId kMostVertices = 2'000'000;
constexpr std::size_t kMostRemedies = 5;

struct Change {
  std::string flags;
  std::function<void(Scenario&)> apply;
};

// Changes that keep the schedule, cheapest first. `layers`: the largest number of layers of a stage.
std::vector<Change> changes_of_training(const Training& training, int layers) {
  using Recompute = Training::Recompute;
  std::vector<Change> out;
  if (training.dp > 1 && !training.distributed_optimizer) {
    out.push_back({"--use-distributed-optimizer", [](Scenario& s) { s.training.distributed_optimizer = true; }});
  }
  if (training.tp > 1 && !training.sequence_parallel) {
    out.push_back({"--sequence-parallel", [](Scenario& s) { s.training.sequence_parallel = true; }});
  }
  if (training.recompute == Recompute::none && !training.flash_attention) {
    out.push_back({"--recompute selective", [](Scenario& s) { s.training.recompute = Recompute::selective; }});
  }
  if (training.recompute != Recompute::full) {
    if (layers > 1) {
      out.push_back({fmt::format("--recompute full --recompute-num-layers {}", layers / 2), [layers](Scenario& s) {
                       s.training.recompute = Recompute::full;
                       s.training.recompute_layers = layers / 2;
                     }});
    }
    out.push_back({"--recompute full", [](Scenario& s) { s.training.recompute = Recompute::full; }});
  }
  return out;
}

void cut_evenly(Scenario& scenario, int slices) {
  const std::int64_t tokens = scenario.training.sequence_length;
  scenario.shape.slice_lengths.clear();
  for (int i = 0; i < slices; ++i) {
    scenario.shape.slice_lengths.push_back(tokens / slices + (i < tokens % slices ? 1 : 0));
  }
}

std::vector<Change> changes_of_schedule(const Scenario& scenario) {
  std::vector<Change> out;
  if (names_file(scenario.schedule) || scenario.schedule == kAutomatic || scenario.encoder.apart()) return out;
  const Family& family = find_family(scenario.schedule);
  if (scenario.training.micro_batch % 2 == 0) {
    const int half = scenario.training.micro_batch / 2;
    out.push_back({fmt::format("--mbs {} --microbatches {}", half, 2 * scenario.microbatches), [half](Scenario& s) {
                     s.training.micro_batch = s.shape.sequences = half;
                     s.microbatches *= 2;
                   }});
  }
  const int slices = 2 * scenario.shape.num_slices();
  if (family.sliced && slices <= scenario.training.sequence_length) {
    out.push_back({fmt::format("--slices {}", slices), [slices](Scenario& s) { cut_evenly(s, slices); }});
  }
  // Slices reduce the activations that are held per microbatch.
  constexpr int kSlices = 4;
  if (!family.sliced_variant.empty() && scenario.training.cp == 1 && scenario.training.sequence_length >= kSlices &&
      scenario.model) {
    const std::string sliced(family.sliced_variant);
    out.push_back({fmt::format("--schedule {} --slices {} --slicing balanced", sliced, kSlices), [sliced](Scenario& s) {
                     const std::int64_t tokens = s.training.sequence_length;
                     s.schedule = sliced;
                     s.shape.slice_lengths =
                         balanced_slices(*s.model, tokens, kSlices, balanced_multiple(tokens, kSlices));
                   }});
  }
  for (const std::string_view name : family.leaner) {
    const bool chunked = scenario.chunks > 1 && find_family(name).fixed_chunks == 1;
    out.push_back({fmt::format("--schedule {}{}", name, chunked ? " --vpp 1" : ""), [name](Scenario& s) {
                     s.schedule = name;
                     s.chunks = s.group = 0;
                   }});
  }
  return out;
}

// The changes to try: each one, and pairs of those of training.
std::vector<Change> changes_of(const Scenario& scenario, int layers) {
  std::vector<Change> out = changes_of_training(scenario.training, layers);
  const std::size_t singles = out.size();
  for (std::size_t a = 0; a < singles; ++a) {
    for (std::size_t b = a + 1; b < singles; ++b) {
      // Two settings of recomputation exclude each other.
      if (out[a].flags.starts_with("--recompute") && out[b].flags.starts_with("--recompute")) continue;
      out.push_back({out[a].flags + " " + out[b].flags, [first = out[a].apply, second = out[b].apply](Scenario& s) {
                       first(s);
                       second(s);
                     }});
    }
  }
  const std::vector<Change> schedule = changes_of_schedule(scenario);
  out.insert(out.end(), schedule.begin(), schedule.end());
  return out;
}

// Whether the graph has more than the most vertices, most of which are ops and transfers.
bool is_long(const Scenario& scenario) {
  return !names_file(scenario.schedule) && scenario.schedule != kAutomatic &&
         2 * num_ops(find_family(scenario.schedule), family_params(scenario)) > kMostVertices;
}

}  // namespace

bool fit_advice_is_quick(const Setup& setup) { return setup.graph().size() <= kMostVertices; }

std::vector<Remedy> what_would_fit(const Setup& setup) {
  Scenario plain = setup.scenario();
  plain.perturbation.jitter = {};
  plain.perturbation.trials = 0;
  int layers = 0;
  for (const StageContents& stage : setup.stages()) layers = std::max(layers, stage.layers);
  const std::vector<Change> changes = changes_of(plain, layers);
  std::vector<std::optional<Remedy>> found(changes.size());
  parallel_for(std::ssize(changes), [&](std::int64_t i) {
    const Change& change = changes[i];
    try {
      Scenario changed = plain;
      change.apply(changed);
      const auto brief = predict_shortened(changed);
      if (!brief && is_long(changed)) return;
      const Prediction prediction = brief ? brief->prediction : predict(Setup(changed));
      if (!prediction.fit || !prediction.fit->fits) return;
      found[i] = {change.flags, prediction.iteration_s(), prediction.fit->needed_bytes};
    } catch (const InputError&) {
      // Not supported: sizes that do not divide, too few microbatches.
    }
  });
  std::vector<Remedy> out;
  for (std::optional<Remedy>& remedy : found) {
    if (remedy) out.push_back(std::move(*remedy));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Remedy& a, const Remedy& b) { return a.iteration_s < b.iteration_s; });
  if (out.size() > kMostRemedies) out.resize(kMostRemedies);
  return out;
}

}  // namespace sluice::sim
