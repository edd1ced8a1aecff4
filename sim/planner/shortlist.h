#pragma once

#include <span>
#include <vector>

namespace sluice::sim {

// A predicted configuration to choose from.
struct Candidate {
  double predicted_s = 0;
  int group = 0;  // predictions of one group err alike
};

// Standard deviations of the logarithm of measured over predicted times. The error that all candidates share does not
// matter for a choice between them.
struct ChoiceErrors {
  double group = 0;  // the same for the candidates of a group
  double own = 0;    // of each candidate
};

struct Shortlist {
  std::vector<int> chosen;  // indices of candidates: the predicted fastest, then always the one that helps most
  double probability = 0;   // that the measured fastest of all is among them
  double loss = 0;          // expected (time of their measured fastest) / (time of the measured fastest of all) - 1
};

// Returns `size` candidates to measure (or all, if there are fewer). After the predicted fastest, each lowers the
// expected time of the fastest of the list most, so the lists for several sizes begin alike. Measured times are sampled
// with a fixed seed; candidates that cannot be the fastest come last, in the predicted order.
Shortlist shortlist(std::span<const Candidate> candidates, int size, const ChoiceErrors& errors);

}  // namespace sluice::sim
