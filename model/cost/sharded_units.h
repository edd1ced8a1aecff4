#pragma once

#include <span>

namespace sluice::model {

// Times of a unit of sharded parameters in one op, in seconds.
struct ShardedUnit {
  double gather_s = 0;  // all-gather of its parameters, before its compute
  double compute_s = 0;
  double reduce_s = 0;  // reduction of its gradients, after its compute
};

// What collectives add to the sum of compute_s of an op.
struct ShardingTime {
  double gather_s = 0;    // waiting for parameters
  double reduce_s = 0;    // reductions after the last unit
  double slowdown_s = 0;  // compute that runs beside collectives
};

// Computes the times of units that an op visits in this order. One stream has all collectives: the gather of a unit
// starts when the previous unit starts (prefetch of one unit, as in FSDP2), the reduction of a unit when it ends.
// Compute beside collectives takes `slowdown` times as long.
ShardingTime sharding_time(std::span<const ShardedUnit> units, double slowdown);

}  // namespace sluice::model
