#include "tools/simulation_output.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// "891.4 ms": four significant digits, the unit that suits.
std::string time_text(Duration duration) {
  const double seconds = to_seconds(duration);
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} us", seconds * 1e6);
}

// "36 760": thousands apart.
std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::ptrdiff_t i = std::ssize(digits) - 3; i > 0; i -= 3) digits.insert(static_cast<std::size_t>(i), 1, ' ');
  return digits;
}

OrderedJson by_class(const BytesByClass& bytes) {
  OrderedJson out = OrderedJson::object();
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    out[std::string(kMemoryClassNames[static_cast<std::size_t>(i)])] = bytes[static_cast<std::size_t>(i)];
  }
  return out;
}

}  // namespace

std::string simulation_json(const Setup& setup, const Prediction& prediction) {
  const Schedule& schedule = setup.schedule();
  const Metrics& metrics = prediction.metrics;
  OrderedJson out;
  out["schema"] = "sluice.simulation/1";
  out["schedule"] = {{"family", schedule.family()},
                     {"ranks", schedule.num_ranks()},
                     {"stages", schedule.num_stages()},
                     {"chunks", schedule.num_chunks()},
                     {"microbatches", schedule.num_microbatches()},
                     {"batches", schedule.num_batches()},
                     {"slices", schedule.max_slices()},
                     {"slice_lengths", schedule.shapes()[0].slice_lengths}};
  out["makespan_s"] = to_seconds(metrics.makespan);
  out["ideal_s"] = to_seconds(metrics.ideal);
  out["bubble_fraction"] = metrics.bubble_fraction;
  out["bubble_over_ideal"] = metrics.bubble_over_ideal;
  out["span_s"] = to_seconds(metrics.span);
  out["period_s"] = to_seconds(prediction.period);
  OrderedJson ranks = OrderedJson::array();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const RankMetrics& of = metrics.ranks[static_cast<std::size_t>(rank)];
    const RankMemory& memory = prediction.memory[static_cast<std::size_t>(rank)];
    ranks.push_back({{"rank", rank},
                     {"busy_s", to_seconds(of.busy)},
                     {"peak_in_flight", of.peak_in_flight},
                     {"peak_memory_bytes", memory.peak_bytes},
                     {"peak_memory_at_s", to_seconds(memory.peak_time)},
                     {"memory_at_peak_bytes", by_class(memory.at_peak)},
                     {"weight_versions", num_weight_versions(schedule, rank)},
                     {"first_start_s", to_seconds(of.first_start)},
                     {"last_end_s", to_seconds(of.last_end)}});
  }
  out["ranks"] = std::move(ranks);
  out["throughput"] = {{"tokens_per_s", prediction.throughput.tokens_per_s},
                       {"model_tflops_per_device", prediction.throughput.model_tflops_per_device},
                       {"hardware_tflops_per_device", prediction.throughput.hardware_tflops_per_device},
                       {"mfu", prediction.throughput.mfu}};
  if (prediction.fit) {
    out["fits"] = prediction.fit->fits;
    out["memory"] = {{"rank", prediction.fit->rank},
                     {"needed_bytes", prediction.fit->needed_bytes},
                     {"capacity_bytes", prediction.fit->capacity_bytes}};
  }
  return out.dump(2) + "\n";
}

std::string simulation_table(const Setup& setup, const Prediction& prediction) {
  const Schedule& schedule = setup.schedule();
  const Metrics& metrics = prediction.metrics;
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "{}: {} ranks x {} chunks, {} microbatches", schedule.family(), schedule.num_ranks(),
                 schedule.num_chunks(), schedule.num_microbatches());
  if (schedule.sliced()) fmt::format_to(to, " x {} slices", schedule.max_slices());
  if (schedule.num_batches() > 1) fmt::format_to(to, ", {} batches", schedule.num_batches());
  if (setup.scenario().model) {
    const Training& training = setup.scenario().training;
    fmt::format_to(to, "; {}: tp {}, pp {}, dp {}", setup.scenario().model->name, training.tp, training.pp,
                   training.dp);
  }
  if (setup.scenario().cluster) {
    fmt::format_to(to, "; {} x {}", setup.scenario().cluster->nodes, setup.scenario().cluster->name);
  }
  const bool flush = schedule.weight_policy() == WeightPolicy::flush;
  fmt::format_to(to, "\n  iteration {}", time_text(flush ? metrics.makespan : prediction.period));
  if (prediction.throughput.tokens_per_s > 0) {
    fmt::format_to(to, "    tokens/s {}", grouped(prediction.throughput.tokens_per_s));
  }
  if (prediction.throughput.model_tflops_per_device > 0) {
    fmt::format_to(to, "    {:.1f} TFLOP/s a device", prediction.throughput.model_tflops_per_device);
  }
  if (prediction.throughput.mfu > 0) fmt::format_to(to, "    MFU {:.1f} %", 100 * prediction.throughput.mfu);
  if (prediction.fit) {
    fmt::format_to(to, "    memory {:.1f} / {:.1f} GiB (rank {})",
                   static_cast<double>(prediction.fit->needed_bytes) / kGiB,
                   static_cast<double>(prediction.fit->capacity_bytes) / kGiB, prediction.fit->rank);
    if (!prediction.fit->fits) out += "  DOES NOT FIT";
  }
  fmt::format_to(to, "\n  makespan {}    bubble {:.1f} % of the time, {:.1f} % over ideal    span {}    period {}\n",
                 time_text(metrics.makespan), 100 * metrics.bubble_fraction, 100 * metrics.bubble_over_ideal,
                 time_text(metrics.span), time_text(prediction.period));
  const bool bytes = setup.graph().has_bytes();
  fmt::format_to(to, "\n  rank   busy  in flight  first start    last end{}\n",
                 bytes ? "  peak GiB  weights  grads  optim.  activ.    k/v  buffers  reached" : "");
  constexpr int kMostRows = 32;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    if (schedule.num_ranks() > kMostRows && rank == kMostRows / 2) {
      rank = schedule.num_ranks() - kMostRows / 2;
      fmt::format_to(to, "   ... ({} ranks left out; --json has all)\n", schedule.num_ranks() - kMostRows);
    }
    const RankMetrics& of = metrics.ranks[static_cast<std::size_t>(rank)];
    const double busy = metrics.makespan.count() > 0 ? to_seconds(of.busy) / to_seconds(metrics.makespan) : 0;
    fmt::format_to(to, "  {:>4}  {:4.1f}%  {:>9.4g}  {:>11}  {:>10}", rank, 100 * busy, of.peak_in_flight,
                   time_text(of.first_start), time_text(of.last_end));
    if (bytes) {
      const RankMemory& memory = prediction.memory[static_cast<std::size_t>(rank)];
      const auto gib = [&](MemoryClass c) {
        return static_cast<double>(memory.at_peak[static_cast<std::size_t>(c)]) / kGiB;
      };
      fmt::format_to(to, "  {:>8.2f}  {:>7.2f}  {:>5.2f}  {:>6.2f}  {:>6.2f}  {:>5.2f}  {:>7.2f}  {}",
                     static_cast<double>(memory.peak_bytes) / kGiB, gib(MemoryClass::weights),
                     gib(MemoryClass::gradients), gib(MemoryClass::optimizer), gib(MemoryClass::activations),
                     gib(MemoryClass::keys_values), gib(MemoryClass::buffers), time_text(memory.peak_time));
    }
    out += '\n';
  }
  return out;
}

}  // namespace sluice::tools
