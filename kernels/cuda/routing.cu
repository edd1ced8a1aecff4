#include "kernels/cuda/over_elements.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

Grid warp_grid(std::int64_t rows) {
  return {.blocks_x = static_cast<int>((rows + kWarpsPerBlock - 1) / kWarpsPerBlock),
          .threads = kWarpsPerBlock * kWarp};
}
SLUICE_DEVICE std::int64_t row_of_warp() { return static_cast<std::int64_t>(block_x()) * kWarpsPerBlock + warp(); }

// One warp per row.
struct ChooseExperts {
  static constexpr int kThreads = kWarpsPerBlock * kWarp;
  std::int64_t rows;
  int experts;
  int k;
  float* scores;
  std::int32_t* choices;

  // Experts are ordered by descending logits, then by index. NaN is the lowest, so that all choices differ.
  SLUICE_DEVICE static float order_of(float logit) { return logit == logit ? logit : -INFINITY; }
  SLUICE_DEVICE static bool precedes(float a, int at_a, float b, int at_b) { return a > b || (a == b && at_a < at_b); }

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = row_of_warp();
    if (row >= rows) return;
    float* const logits = scores + row * experts;
    float last = INFINITY;
    int last_at = -1;
    float highest = 0;
    for (int j = 0; j < k; ++j) {
      float best = -INFINITY;
      int best_at = experts;
      for (int e = lane(); e < experts; e += kWarp) {
        const float logit = order_of(logits[e]);
        if (precedes(last, last_at, logit, e) && precedes(logit, e, best, best_at)) {
          best = logit;
          best_at = e;
        }
      }
      for (int mask = kWarp / 2; mask > 0; mask /= 2) {
        const float other = shuffle_xor(best, mask);
        const int other_at = shuffle_xor(best_at, mask);
        if (precedes(other, other_at, best, best_at)) {
          best = other;
          best_at = other_at;
        }
      }
      if (lane() == 0) choices[row * k + j] = best_at;
      if (j == 0) highest = best;
      last = best;
      last_at = best_at;
    }
    const auto counts = [&](float logit, int e) { return k == 1 || !precedes(last, last_at, order_of(logit), e); };
    float sum = 0;
    for (int e = lane(); e < experts; e += kWarp) sum += counts(logits[e], e) ? exponential(logits[e] - highest) : 0.0F;
    sum = warp_sum(sum);
    for (int e = lane(); e < experts; e += kWarp) {
      logits[e] = counts(logits[e], e) ? exponential(logits[e] - highest) / sum : 0.0F;
    }
  }
};

// One block per expert. Each thread counts consecutive choices, and then places them.
struct PlaceChoices {
  static constexpr int kThreads = 256;
  std::int64_t count;
  const std::int32_t* choices;
  std::int32_t* places;
  std::int32_t* sent;

  SLUICE_DEVICE void operator()() const {
    const int expert = block_x();
    const std::int64_t each = (count + threads() - 1) / threads();
    const std::int64_t begin = thread() * each;
    const std::int64_t end = begin + each < count ? begin + each : count;
    std::int32_t equal = 0;
    std::int32_t lower = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      equal += choices[i] == expert ? 1 : 0;
      lower += choices[i] < expert ? 1 : 0;
    }
    auto* const equals = reinterpret_cast<std::int32_t*>(shared_memory());
    auto* const lowers = equals + kThreads;
    equals[thread()] = equal;
    lowers[thread()] = lower;
    sync_block();
    std::int32_t place = 0;
    std::int32_t all = 0;
    for (int i = 0; i < threads(); ++i) {
      place += lowers[i] + (i < thread() ? equals[i] : 0);
      all += equals[i];
    }
    if (thread() == 0) sent[expert] = all;
    for (std::int64_t i = begin; i < end; ++i) {
      if (choices[i] == expert) places[i] = place++;
    }
  }
};

// One block per row of the shard.
struct SendRows {
  static constexpr int kThreads = kRowThreads;
  RoutedRows routed;
  const Half* matrix;
  int width;
  bool whole;
  bool with_scores;
  std::int64_t stride;
  Half* out;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const Half* const from = matrix + (routed.first + row) * width;
    for (int j = 0; j < routed.k; ++j) {
      Half* const to = out + routed.places[row * routed.k + j] * stride;
      for_each_chunk(width, [&](int column) {
        if (whole) {
          store_vector(to + column, load_vector<Half, kChunk>(from + column));
        } else {
          for (int i = column; i < column + kChunk && i < width; ++i) to[i] = from[i];
        }
      });
      if (!with_scores || thread() != 0) continue;
      *reinterpret_cast<float*>(to + RoutedRow(width).tail) =
          routed.scores[row * routed.experts + routed.choices[row * routed.k + j]];
    }
  }
};

// One block per row.
template <class T>
struct AddRoutedRows {
  static constexpr int kThreads = kRowThreads;
  RoutedRows routed;
  const T* results;
  std::int64_t stride;
  int width;
  bool whole;
  bool add;
  const T* factors;
  const T* direction;
  T* out;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const std::int64_t in_shard = row - routed.first;
    const bool own = in_shard >= 0 && in_shard < routed.rows;
    if (!own && add) return;
    T* const to = out + row * width;
    const float factor = own && direction != nullptr ? to_float(factors[row]) : 0.0F;
    for_each_chunk(width, [&](int column) {
      float sums[kChunk] = {};
      float numbers[kChunk];
      if (add) load_chunk(to, column, width, whole, sums);
      for (int j = 0; own && j < routed.k; ++j) {
        load_chunk(results + routed.places[in_shard * routed.k + j] * stride, column, width, whole, numbers);
        for (int i = 0; i < kChunk; ++i) sums[i] += numbers[i];
      }
      load_optional_chunk(direction, column, width, whole, numbers);
      for (int i = 0; i < kChunk; ++i) sums[i] += factor * numbers[i];
      store_chunk(to, column, width, whole, sums);
    });
  }
};

// One warp per row.
template <class T>
struct LogitGradients {
  static constexpr int kThreads = kWarpsPerBlock * kWarp;
  RoutedRows routed;
  const Half* results;
  RoutedRow at;
  std::int64_t all_rows;
  T* gradients;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = row_of_warp();
    if (row >= all_rows) return;
    const std::int64_t in_shard = row - routed.first;
    const bool own = in_shard >= 0 && in_shard < routed.rows;
    const std::int32_t* const choices = routed.choices + (own ? in_shard * routed.k : 0);
    const float* const scores = routed.scores + (own ? in_shard * routed.experts : 0);
    const auto gradient_of = [&](int j) {
      return *reinterpret_cast<const float*>(results + routed.places[in_shard * routed.k + j] * at.stride + at.tail);
    };
    float total = 0;
    for (int j = 0; own && j < routed.k; ++j) total += scores[choices[j]] * gradient_of(j);
    for (int e = lane(); e < routed.experts; e += kWarp) {
      float gradient = 0;
      for (int j = 0; own && j < routed.k; ++j) {
        if (choices[j] == e) gradient = gradient_of(j);
      }
      gradients[row * routed.experts + e] = from_float<T>(own ? scores[e] * (gradient - total) : 0.0F);
    }
  }
};

struct ApplySigmoid {
  static constexpr int kThreads = kElementThreads;
  std::int64_t count;
  float* numbers;
  SLUICE_DEVICE void operator()() const {
    for_each_element(count, [this](std::int64_t i) { numbers[i] = reciprocal(1.0F + exponential(-numbers[i])); });
  }
};

template <class T>
struct SigmoidGradient {
  static constexpr int kThreads = kElementThreads;
  std::int64_t count;
  const float* outputs;
  const float* output_gradients;
  T* gradients;
  SLUICE_DEVICE void operator()() const {
    for_each_element(count, [this](std::int64_t i) {
      gradients[i] = from_float<T>(output_gradients[i] * outputs[i] * (1.0F - outputs[i]));
    });
  }
};

}  // namespace

void choose_experts(Stream& stream, std::int64_t rows, std::int64_t experts, std::int64_t k, float* scores,
                    std::int32_t* choices) {
  if (rows == 0) return;
  launch(stream, warp_grid(rows), ChooseExperts{rows, static_cast<int>(experts), static_cast<int>(k), scores, choices});
}

void place_choices(Stream& stream, std::int64_t count, std::int64_t experts, const std::int32_t* choices,
                   std::int32_t* places, std::int32_t* sent) {
  launch(stream,
         Grid{.blocks_x = static_cast<int>(experts),
              .threads = PlaceChoices::kThreads,
              .shared_bytes = 2 * PlaceChoices::kThreads * static_cast<int>(sizeof(std::int32_t))},
         PlaceChoices{count, choices, places, sent});
}

void send_rows(Stream& stream, const RoutedRows& routed, const Half* matrix, std::int64_t width, bool with_scores,
               std::int64_t stride, Half* out) {
  if (routed.rows == 0) return;
  launch(stream, row_grid(routed.rows, width),
         SendRows{routed, matrix, static_cast<int>(width), in_whole_chunks({width, stride}), with_scores, stride, out});
}

void add_routed_rows(Stream& stream, Element element, const RoutedRows& routed, const Half* results,
                     std::int64_t stride, std::int64_t all_rows, std::int64_t width, bool add, const Half* factors,
                     const Half* direction, Half* out) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(all_rows, width),
           AddRoutedRows<T>{routed, as<T>(results), stride, static_cast<int>(width), in_whole_chunks({width, stride}),
                            add, as<T>(factors), as<T>(direction), as<T>(out)});
  });
}

void logit_gradients(Stream& stream, Element element, const RoutedRows& routed, const Half* results,
                     const RoutedRow& row, std::int64_t all_rows, Half* gradients) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, warp_grid(all_rows), LogitGradients<T>{routed, results, row, all_rows, as<T>(gradients)});
  });
}

void apply_sigmoid(Stream& stream, std::int64_t count, float* numbers) {
  launch(stream, element_grid(count), ApplySigmoid{count, numbers});
}

void sigmoid_gradient(Stream& stream, Element element, std::int64_t count, const float* outputs,
                      const float* output_gradients, Half* gradients) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, element_grid(count), SigmoidGradient<T>{count, outputs, output_gradients, as<T>(gradients)});
  });
}

}  // namespace sluice::kernels::cuda
