#pragma once

#include "model/namespaces.h"

namespace sluice::sim {

// Closed forms of long runs with exponential failures. All times have one unit: `mtbf` is the mean running time between
// failures, `stall` the time that a checkpoint stops training, and an interval the work between two checkpoints.

// The checkpoint interval of Young (1974), of Daly (2006, eq. 37), and the optimum, M (1 + W0(-exp(-1 - s/M))).
double young_interval(double stall, double mtbf);
double daly_interval(double stall, double mtbf);
double exact_interval(double stall, double mtbf);

struct CheckpointTimes {
  double interval = 0;
  double stall = 0;
  double durable = 0;   // from the begin of the stall until the checkpoint can be loaded; synchronous: the stall
  double restart = 0;   // after a failure; another failure starts it again
  double downtime = 0;  // after a failure, before the restart; without failures
};

// Returns the fraction of time spent on work that is not lost (Daly 2006, eq. 20, extended by `durable`).
double useful_fraction(const CheckpointTimes& times, double mtbf);

// Returns the probability that all of `servers` are busy at `load` Erlang. With S spares and a failure rate times a
// mean repair time of `load`, a run waits for erlang_b(S + 1, load) of its time, whatever the distribution of repairs.
double erlang_b(int servers, double load);

// Returns the same fraction with `crews` that repair one node each, in times that are exponentially distributed.
double waiting_fraction(int spares, int crews, double load);

// Returns a lower bound of the probability that some copy of everything is left when `lost` of `hosts` fail, each with
// the state of `copies` hosts (Wang et al., Gemini, SOSP 2023).
double copies_survive(int hosts, int copies, int lost);

}  // namespace sluice::sim
