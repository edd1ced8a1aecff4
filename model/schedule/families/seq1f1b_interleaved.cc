#include <fmt/format.h>

#include "model/schedule/families/families.h"
#include "model/schedule/orders.h"

namespace sluice::model::families {
namespace {

// A group has units of one slice: whole microbatches (k divides G), all groups of the same size (G divides m·k), and
// enough of them that the first is back at rank 0 when the last has left it (G >= p). The paper's text has G = p, its
// figure p·k.
int group_of_units(const FamilyParams& params) {
  const int slices = params.slices();
  const int units = params.microbatches * slices;
  if (units < params.ranks) {
    orders::refuse(seq1f1b_interleaved(),
                   fmt::format("{} microbatches of {} slices are {} units, fewer than the {} ranks",
                               params.microbatches, slices, units, params.ranks));
  }
  const int group = params.group == 0 ? orders::default_group_of_slices(params) : params.group;
  if (group < params.ranks || group % slices != 0 || units % group != 0) {
    orders::refuse(seq1f1b_interleaved(),
                   fmt::format("group: expected at least {} units (ranks), a multiple of {} (slices) that divides {} "
                               "(microbatches x slices), got {}",
                               params.ranks, slices, units, group));
  }
  return group;
}

ScheduleParts make_seq1f1b_interleaved(const FamilyParams& params) {
  if (params.chunks == 1) return orders::alternating(seq1f1b_interleaved(), params, 1, params.microbatches);  // seq1f1b
  return orders::alternating(seq1f1b_interleaved(), params, 2, group_of_units(params) / params.slices());
}

}  // namespace

Family seq1f1b_interleaved() {
  return {.name = "seq1f1b-interleaved",
          .aliases = {"Seq1F1B-I"},
          .summary = "interleaved-1f1b over slices of sequences",
          .source = "Sun et al. 2024, arXiv:2406.03488, eq. 6",
          .fixed_chunks = 0,
          .default_chunks = 2,
          .with_one_chunk = "seq1f1b",
          .sliced = true,
          .grouped = true,
          .leaner = {"seq1f1b"},
          .make = make_seq1f1b_interleaved};
}

}  // namespace sluice::model::families
