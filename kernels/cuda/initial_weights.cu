#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/over_elements.h"
#include "kernels/initial_number.h"

namespace sluice::kernels::cuda {
namespace {

struct DrawWeights {
  static constexpr int kThreads = kElementThreads;
  InitialValues values;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t all_columns;
  std::int64_t first;  // index of the first element in the whole matrix
  float* to;
  SLUICE_DEVICE void operator()() const {
    for_each_element(rows * columns, [&](std::int64_t i) {
      const std::int64_t index = first + i / columns * all_columns + i % columns;
      to[i] = values.deviation == 0 ? static_cast<float>(values.constant)
                                    : static_cast<float>(values.deviation * normal_number(values.key, index));
    });
  }
};

}  // namespace

void draw_weights(Stream& stream, const StageSpec& spec, const WeightOffsets& offsets, std::uint64_t seed, float* to) {
  for (const Parameter& parameter : offsets.parameters) {
    if (parameter.size() == 0) continue;
    launch(stream, element_grid(parameter.size()),
           DrawWeights{initial_values(spec, parameter, seed), parameter.rows, parameter.columns, parameter.all_columns,
                       parameter.index_in_whole(0), to + parameter.offset});
  }
}

}  // namespace sluice::kernels::cuda
