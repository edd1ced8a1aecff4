#include "model/weave/part_kernels.h"

#include <utility>
#include <vector>

#include "model/median.h"

namespace sluice::model {

double extent_s(const PartKernels& part, const StreamGaps& gaps) {
  return part.busy_s + gaps.kernel_s * part.kernels + gaps.second_exposed * part.second_busy_s;
}

StreamGaps fit_gaps(std::span<const TracedExtent> parts) {
  StreamGaps gaps;
  std::vector<double> each;
  for (const TracedExtent& part : parts) {
    if (part.kernels.second_busy_s > 0 || part.kernels.kernels == 0) continue;
    each.push_back((part.seconds - part.kernels.busy_s) / part.kernels.kernels);
  }
  gaps.kernel_s = median(std::move(each));
  std::vector<double> exposed;
  for (const TracedExtent& part : parts) {
    if (part.kernels.second_busy_s == 0) continue;
    exposed.push_back((part.seconds - extent_s(part.kernels, {.kernel_s = gaps.kernel_s})) /
                      part.kernels.second_busy_s);
  }
  gaps.second_exposed = median(std::move(exposed));
  return gaps;
}

}  // namespace sluice::model
