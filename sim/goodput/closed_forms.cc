#include "sim/goodput/closed_forms.h"

#include <algorithm>
#include <cmath>

namespace sluice::sim {

double young_interval(double stall, double mtbf) { return std::sqrt(2 * stall * mtbf); }

double daly_interval(double stall, double mtbf) {
  if (stall >= 2 * mtbf) return mtbf;
  const double ratio = stall / (2 * mtbf);
  return young_interval(stall, mtbf) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - stall;
}

double exact_interval(double stall, double mtbf) {
  // With x = interval / mtbf: the root of exp(-x - s/M) = 1 - x, by Newton's method from above, where it is concave.
  double x = std::min(1.0, std::sqrt(2 * stall / mtbf));
  for (int i = 0; i < 60; ++i) {
    const double decay = std::exp(-x - stall / mtbf);
    const double slope = 1 - decay;
    if (slope <= 0) break;
    x -= (decay - 1 + x) / slope;
  }
  return mtbf * x;
}

double useful_fraction(const CheckpointTimes& times, double mtbf) {
  const double cycles = std::expm1((times.interval + times.stall) / mtbf);
  const double between = mtbf * std::exp(times.restart / mtbf) + times.downtime;
  return times.interval * std::exp(-(times.durable - times.stall) / mtbf) / (between * cycles);
}

double erlang_b(int servers, double load) {
  double blocked = 1;
  for (int i = 1; i <= servers; ++i) blocked = load * blocked / (i + load * blocked);
  return blocked;
}

double waiting_fraction(int spares, int crews, double load) {
  double weight = 1;
  double sum = 1;
  for (int broken = 1; broken <= spares + 1; ++broken) {
    weight *= load / std::min(broken, crews);
    sum += weight;
  }
  return weight / sum;
}

double copies_survive(int hosts, int copies, int lost) {
  if (lost < copies) return 1;
  // (N/m) groups; C(N-m, k-m) / C(N, k) is the probability that a given group is lost.
  double group = 1;
  for (int i = 0; i < copies; ++i) group *= static_cast<double>(lost - i) / (hosts - i);
  return std::max(0.0, 1 - hosts / static_cast<double>(copies) * group);
}

}  // namespace sluice::sim
