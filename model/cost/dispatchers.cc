#include "model/cost/dispatchers.h"

#include <cmath>
#include <limits>

namespace sluice::model {
namespace {

struct Rates {
  double fixed_s;
  double rank_s;           // per rank of an NVLink domain
  double token_s;          // of one multiprocessor, per token
  double copy_s;           // of one multiprocessor, per copy of a token
  double bytes_per_s;      // of one multiprocessor
  double nvlink_fraction;  // of the nominal bandwidth
  double between_domains;  // times as long on the multiprocessors, if copies are forwarded
};
constexpr Rates kDeepEpDispatch = {39e-6, 0, 0.44e-6, 0.085e-6, 29.4e9, 1, 1.6};
constexpr Rates kDeepEpCombine = {48e-6, 0, 0.99e-6, 0, 29.4e9, 0.74, 2.5};
constexpr Rates kHybridEpDispatch = {75e-6, 0, 0, 0.051e-6, 90e9, 0.72, 1};
// Each copy is read from its rank: the latency of reads in flight, whatever their size.
constexpr Rates kHybridEpCombine = {8e-6, 2.7e-6, 0.03e-6, 0.38e-6, std::numeric_limits<double>::infinity(), 0.71, 1};

const Rates& rates_of(Training::TokenDispatcher dispatcher, bool combines) {
  if (dispatcher == Training::TokenDispatcher::deepep) return combines ? kDeepEpCombine : kDeepEpDispatch;
  return combines ? kHybridEpCombine : kHybridEpDispatch;
}

double fourth_power(double x) { return x * x * x * x; }

}  // namespace

double expert_exchange_s(Training::TokenDispatcher dispatcher, const ExpertExchange& sent) {
  const Rates& rates = rates_of(dispatcher, sent.combines);
  const double copy_s = rates.copy_s + sent.token_bytes / rates.bytes_per_s;
  double busy_s = 0;
  if (sent.multiprocessors > 0) {
    busy_s = sent.tokens * (rates.token_s + sent.copies * copy_s) / sent.multiprocessors;
    if (sent.domains > 1) busy_s *= rates.between_domains;
  }
  const double bytes = sent.tokens * sent.token_bytes;
  const double near_s =
      bytes * sent.copies * (sent.ranks - 1) / sent.ranks / (sent.nvlink_bytes_per_s * rates.nvlink_fraction);
  const double far_s = sent.domains > 1 ? bytes * sent.copies_to_other_domains / sent.network_bytes_per_s : 0;
  return rates.fixed_s + sent.ranks * rates.rank_s +
         std::sqrt(std::sqrt(fourth_power(busy_s) + fourth_power(near_s) + fourth_power(far_s)));
}

}  // namespace sluice::model
