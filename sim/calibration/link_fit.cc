#include "sim/calibration/link_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "model/cost/collectives.h"
#include "sim/calibration/measured_table.h"

namespace sluice::sim {
namespace {

struct LinkName {
  std::string_view table;
  std::string_view inside;   // of a node
  std::string_view outside;  // empty: not reliable
};
constexpr LinkName kLinkNames[] = {{"a100", "nvlink3", ""},
                                   {"v100", "nvlink2", ""},
                                   {"a100_dgx", "nvlink3", ""},  // 7.8 GB/s between nodes with ports of 25
                                   {"h100_dgx", "nvlink4", "infiniband-ndr"},
                                   {"A100", "nvlink3", ""},
                                   {"H100", "nvlink4", ""},
                                   {"B200", "nvlink5", ""}};

const LinkName* known(const std::string& name) {
  const auto* found =
      std::find_if(std::begin(kLinkNames), std::end(kLinkNames), [&](const LinkName& n) { return n.table == name; });
  return found == std::end(kLinkNames) ? nullptr : found;
}

bool has_timed_all_reduces(const CsvTable& table) { return has_all(table, {"gpu", "gpus", "bytes", "time_us"}); }
bool has_timed_collectives(const CsvTable& table) {
  return has_all(table, {"gpu", "op", "gpus", "elements_fp16", "latency_us"});
}
bool has_fitted_lines(const CsvTable& table) {
  return has_all(table, {"network", "collective", "workers", "devices_per_node", "min_bytes", "max_bytes", "alpha_us",
                         "busbw_GBps"});
}

// Smaller ones are those of decoding. The tokens of a layer are many MiB.
constexpr double kFewestBytes = 1 << 20;
constexpr double kFewestExchangedBytes = 16 << 20;

void read_collective(const CsvTable& table, int row, MeasuredLink& link) {
  const MeasuredCollective one{.gpus = static_cast<int>(table.integer(row, "gpus", 2, 1024)),
                               .bytes = 2 * table.number(row, "elements_fp16", 1, 1e15),
                               .seconds = table.number(row, "latency_us", 1e-3, 1e12) * 1e-6};
  if (one.bytes < kFewestBytes) return;
  const std::string& op = table.text(row, "op");
  if (op == "all_reduce") link.all_reduces.push_back(one);
  if (op == "alltoall" && one.bytes >= kFewestExchangedBytes) link.all_to_alls.push_back(one);
}

void read_line(const CsvTable& table, int row, const LinkName& name, std::map<std::string, MeasuredLink>& out) {
  const auto gpus = static_cast<int>(table.integer(row, "workers", 2, 1024));
  const bool inside = table.integer(row, "devices_per_node", 1, 1024) == gpus;
  const double latency = table.number(row, "alpha_us", 0, 1e6) * 1e-6;
  const double bandwidth = table.number(row, "busbw_GBps", 1e-3, 1e5) * 1e9;
  const std::string& collective = table.text(row, "collective");
  if (collective == "send_recv") {
    const std::string link(inside ? name.inside : name.outside);
    if (link.empty()) return;
    out[link].origin = origin_of(table, row);
    out[link].message_latency_s = latency;
    out[link].message_bytes_per_s = bandwidth;
  } else if (collective == "all_reduce" && inside) {
    const double most = table.number(row, "max_bytes", 1, 1e15);
    double bytes = table.number(row, "min_bytes", 1, most);
    while (bytes <= most) {
      out[std::string(name.inside)].all_reduces.push_back(
          {.gpus = gpus, .bytes = bytes, .seconds = latency + 2.0 * (gpus - 1) / gpus * bytes / bandwidth});
      bytes *= 2;
    }
  }
}

// The link with fitted constants: latency, step, and a bandwidth for each of `sizes`.
Link with_constants(Link link, const std::vector<int>& sizes, std::span<const double> x) {
  link.collective_latency_s = x[0];
  link.collective_step_s = x[1];
  link.collective_efficiency = x[x.size() - 1] / link.bandwidth_bytes_per_s;
  link.ring_bytes_per_s.clear();
  std::size_t next = 0;
  for (int gpus = 2; gpus < sizes.back(); ++gpus) {
    // Sizes that were not measured have the bandwidth of the next larger one.
    while (sizes[next] < gpus) ++next;
    link.ring_bytes_per_s.push_back(x[2 + next]);
  }
  return link;
}

}  // namespace

bool has_measured_links(const CsvTable& table) {
  return has_timed_all_reduces(table) || has_timed_collectives(table) || has_fitted_lines(table);
}

std::map<std::string, MeasuredLink> read_measured_links(const CsvTable& table) {
  std::map<std::string, MeasuredLink> out;
  const bool timed = has_timed_all_reduces(table);
  const bool lines = has_fitted_lines(table);
  for (int row = 0; row < table.num_rows(); ++row) {
    const LinkName* name = known(table.text(row, lines ? "network" : "gpu"));
    if (name == nullptr) continue;
    MeasuredLink& inside = out[std::string(name->inside)];
    if (inside.origin.empty()) inside.origin = origin_of(table, row);
    if (lines) read_line(table, row, *name, out);
    if (!lines && !timed) read_collective(table, row, inside);
    if (!timed) continue;
    inside.all_reduces.push_back({.gpus = static_cast<int>(table.integer(row, "gpus", 2, 1024)),
                                  .bytes = table.number(row, "bytes", 1, 1e15),
                                  .seconds = table.number(row, "time_us", 1e-3, 1e12) * 1e-6});
  }
  return out;
}

namespace {

// What both kinds of collectives are fitted to.
struct Sample {
  std::vector<double> seconds;
  std::vector<int> groups;  // by size and number of GPUs
  std::vector<int> sizes;   // distinct numbers of GPUs, ascending
};
Sample sample_of(const std::vector<MeasuredCollective>& measured) {
  Sample out;
  std::set<int> sizes;
  for (const MeasuredCollective& one : measured) {
    sizes.insert(one.gpus);
    out.seconds.push_back(one.seconds);
    out.groups.push_back(static_cast<int>(std::lround(std::log2(one.bytes))) * 7 + one.gpus);
  }
  out.sizes.assign(sizes.begin(), sizes.end());
  return out;
}

// Prices a collective as in predictions, on one node that is large enough.
template <typename Price>
double on_one_node(const Link& link, int largest, const MeasuredCollective& one, const Price& price) {
  Cluster node;
  node.gpus_per_node = largest;
  node.intra_node = link;
  const Collectives collectives(node, Placement(Training{}, node));
  return (collectives.*price)({.size = one.gpus, .nodes = 1, .per_node = one.gpus}, one.bytes);
}

void fit_all_reduces(const std::vector<MeasuredCollective>& measured, LinkFit& out) {
  const Sample rows = sample_of(measured);
  std::vector<FitConstant> constants = {{.guess = 3e-5, .low = 1e-7, .high = 1e-2, .spread = 1},
                                        {.guess = 2e-6, .low = 1e-8, .high = 1e-3, .spread = 1}};
  const double nominal = out.link.bandwidth_bytes_per_s;
  constants.insert(constants.end(), rows.sizes.size(),
                   {.guess = 0.7 * nominal, .low = 1e-3 * nominal, .high = nominal, .spread = 1});
  const Link known = out.link;
  const FitModel predict = [&](std::span<const double> x, int row) {
    return on_one_node(with_constants(known, rows.sizes, x), rows.sizes.back(), measured[row],
                       &Collectives::all_reduce_s);
  };
  out.all_reduce = fit_logarithms(constants, predict, rows.seconds, rows.groups);
  out.link = with_constants(known, rows.sizes, out.all_reduce.constants);
}

void fit_all_to_alls(const std::vector<MeasuredCollective>& measured, LinkFit& out) {
  const Sample rows = sample_of(measured);
  constexpr FitConstant kEfficiencies[] = {{.guess = 0.6, .low = 1e-3, .high = 1, .spread = 1},
                                           {.guess = 1, .low = 1e-3, .high = 10, .spread = 1}};
  Link link = out.link;
  const auto seconds = [&](const Link& of, int row) {
    return on_one_node(of, rows.sizes.back(), measured[row], &Collectives::all_to_all_s);
  };
  const auto set = [](Link& of, std::span<const double> x) {
    of.exchange_efficiency = x[0];
    of.exchange_copy_rate = x[1];
  };
  const FitModel predict = [&](std::span<const double> x, int row) {
    set(link, x);
    return seconds(link, row);
  };
  out.all_to_all = fit_logarithms(kEfficiencies, predict, rows.seconds, rows.groups);
  std::vector<double> known;
  for (int row = 0; row < std::ssize(measured); ++row) known.push_back(seconds(out.link, row));
  out.all_to_all.known = fit_errors(known, rows.seconds);
  set(out.link, out.all_to_all.constants);
}

}  // namespace

LinkFit fit_link(const Link& link, const MeasuredLink& measured) {
  LinkFit out{.link = link, .origin = measured.origin, .all_reduce = {}, .all_to_all = {}};
  if (measured.message_bytes_per_s > 0) {
    out.link.latency_s = measured.message_latency_s;
    out.link.transfer_efficiency = std::min(1.0, measured.message_bytes_per_s / link.bandwidth_bytes_per_s);
  }
  if (measured.all_to_alls.size() >= kFewestRows) fit_all_to_alls(measured.all_to_alls, out);
  if (measured.all_reduces.size() >= kFewestRows) fit_all_reduces(measured.all_reduces, out);
  return out;
}

}  // namespace sluice::sim
