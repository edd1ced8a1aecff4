#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

SLUICE_DEVICE float sigmoid(float x) { return reciprocal(1.0F + exponential(-x)); }

// gelu(x) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
constexpr float kGeluLinear = 2 * 0.79788456F;
constexpr float kGeluCubic = kGeluLinear * 0.044715F;
SLUICE_DEVICE float gelu_sigmoid(float x) { return sigmoid(x * (kGeluLinear + kGeluCubic * x * x)); }

// Input of an activation function.
template <class T>
struct Preactivation {
  const T* inputs;
  const T* bias;
  int width;
  bool whole;

  // Loads a chunk of a row, or of its right half, plus bias.
  SLUICE_DEVICE void load(std::int64_t row_at, int half_at, int column, float (&numbers)[kChunk]) const {
    load_chunk(inputs + row_at + half_at, column, width, whole, numbers);
    if (bias == nullptr) return;
    float biases[kChunk];
    load_chunk(bias + half_at, column, width, whole, biases);
    for (int i = 0; i < kChunk; ++i) numbers[i] += biases[i];
  }
};

template <class T>
struct Activate {
  static constexpr int kThreads = kRowThreads;
  bool gated;
  Preactivation<T> pre;
  T* out;
  RowFactors factors;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const int width = pre.width;
    const float factor = factors.at == nullptr ? 1.0F : factors.at[row * factors.stride];
    const std::int64_t at = row * width * (gated ? 2 : 1);
    for_each_chunk(width, [&](int column) {
      float numbers[kChunk];
      pre.load(at, 0, column, numbers);
      if (gated) {
        float ups[kChunk];
        pre.load(at, width, column, ups);
        for (int i = 0; i < kChunk; ++i) numbers[i] *= sigmoid(numbers[i]) * ups[i];
      } else {
        for (float& number : numbers) number *= gelu_sigmoid(number);
      }
      if (factors.at != nullptr) {
        for (float& number : numbers) number *= factor;
      }
      store_chunk(out + row * width, column, width, pre.whole, numbers);
    });
  }
};

template <class T>
struct ActivateGradient {
  static constexpr int kThreads = kRowThreads;
  bool gated;
  Preactivation<T> pre;
  T* gradient;
  RowFactors factors;

  SLUICE_DEVICE void operator()() const {
    const int width = pre.width;
    const bool whole = pre.whole;
    const std::int64_t row = block_x();
    const std::int64_t at = row * width * (gated ? 2 : 1);
    const float factor = factors.at == nullptr ? 1.0F : factors.at[row * factors.stride];
    float dot_product = 0;  // of the gradient and the output without its factor
    for_each_chunk(width, [&](int column) {
      float numbers[kChunk];
      float gradients[kChunk];
      pre.load(at, 0, column, numbers);
      if (gated) {
        float ups[kChunk];
        pre.load(at, width, column, ups);
        load_chunk(gradient + at + width, column, width, whole, gradients);
        for (int i = 0; i < kChunk; ++i) {
          const float gate = numbers[i];
          const float s = sigmoid(gate);
          if (factors.at != nullptr) {
            dot_product += gradients[i] * gate * s * ups[i];
            gradients[i] *= factor;
          }
          numbers[i] = gradients[i] * ups[i] * (s + gate * s * (1.0F - s));
          gradients[i] *= gate * s;
        }
        store_chunk(gradient + at, column, width, whole, numbers);
        store_chunk(gradient + at + width, column, width, whole, gradients);
      } else {
        load_chunk(gradient + at, column, width, whole, gradients);
        for (int i = 0; i < kChunk; ++i) {
          const float x = numbers[i];
          const float s = gelu_sigmoid(x);
          if (factors.at != nullptr) {
            dot_product += gradients[i] * x * s;
            gradients[i] *= factor;
          }
          gradients[i] *= s + x * s * (1.0F - s) * (kGeluLinear + 3.0F * kGeluCubic * x * x);
        }
        store_chunk(gradient + at, column, width, whole, gradients);
      }
    });
    if (factors.at == nullptr) return;
    dot_product = block_sum(dot_product);
    if (thread() == 0) factors.gradients[row * factors.stride] = dot_product;
  }
};

struct RotaryAngles {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kTokens = 16;  // per block
  std::int64_t context;
  std::int64_t tokens;
  int half;
  float* angles;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t first = static_cast<std::int64_t>(block_x()) * kTokens;
    for (int i = thread(); i < half; i += threads()) {
      const double frequency = ::pow(10000.0, -static_cast<double>(i) / half);
      for (std::int64_t token = first; token < first + kTokens && token < tokens; ++token) {
        const double angle = static_cast<double>(context + token) * frequency;
        angles[2 * token * half + i] = static_cast<float>(::cos(angle));
        angles[(2 * token + 1) * half + i] = static_cast<float>(::sin(angle));
      }
    }
  }
};

// Halves of a head, whose elements a rotary embedding pairs. If the head size is odd, which excludes rotary embeddings,
// the second half is shorter.
struct Halves {
  int first;
  int second;
  int chunks;  // per head
  bool whole;
  explicit Halves(int head_dim)
      : first((head_dim + 1) / 2),
        second(head_dim / 2),
        chunks((first + kChunk - 1) / kChunk),
        whole(in_whole_chunks({first, second})) {}
};

// Calls visit(head, column in its halves) for the chunks of a row's heads.
template <class Visit>
SLUICE_DEVICE void for_each_head_chunk(int heads, int chunks, const Visit& visit) {
  for (int i = thread(); i < heads * chunks; i += threads()) visit(i / chunks, i % chunks * kChunk);
}

SLUICE_DEVICE void rotate(const float* cosines, const float* sines, bool back, float (&a)[kChunk], float (&b)[kChunk]) {
  for (int i = 0; i < kChunk; ++i) {
    const float sine = back ? -sines[i] : sines[i];
    const float before = a[i];
    a[i] = before * cosines[i] - b[i] * sine;
    b[i] = b[i] * cosines[i] + before * sine;
  }
}

// Returns the row of keys and values of a row of queries.
SLUICE_DEVICE std::int64_t key_row(const QkvShape& shape, std::int64_t row) {
  return row / shape.tokens * shape.key_tokens + shape.key_context + row % shape.tokens;
}

template <class T>
struct SplitQkv {
  static constexpr int kThreads = kRowThreads;
  QkvShape shape;
  Halves halves;
  const T* qkv;
  const T* bias;
  T* queries;
  T* keys;
  T* values;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const int d = shape.head_dim;
    const int rotated = shape.heads + shape.kv_heads;
    const T* const from = qkv + row * (rotated + shape.kv_heads) * d;
    const std::int64_t of_keys = key_row(shape, row);
    const std::int64_t angles = row % shape.tokens * 2 * halves.first;
    for_each_head_chunk(rotated + shape.kv_heads, halves.chunks, [&](int head, int column) {
      float a[kChunk];
      float b[kChunk];
      part(from, head, column, a, b);
      if (shape.angles != nullptr && head < rotated) {
        float cosines[kChunk];
        float sines[kChunk];
        load_chunk(shape.angles + angles, column, halves.first, halves.whole, cosines);
        load_chunk(shape.angles + angles + halves.first, column, halves.first, halves.whole, sines);
        rotate(cosines, sines, false, a, b);
      }
      T* to = queries + (row * shape.heads + head) * d;
      if (head >= shape.heads) to = keys + (of_keys * shape.kv_heads + head - shape.heads) * d;
      if (head >= rotated) to = values + (of_keys * shape.kv_heads + head - rotated) * d;
      store_chunk(to, column, halves.first, halves.whole, a);
      store_chunk(to + halves.first, column, halves.second, halves.whole, b);
    });
  }
  SLUICE_DEVICE void part(const T* from, int head, int column, float (&a)[kChunk], float (&b)[kChunk]) const {
    const int at = head * shape.head_dim;
    load_chunk(from + at, column, halves.first, halves.whole, a);
    load_chunk(from + at + halves.first, column, halves.second, halves.whole, b);
    if (bias == nullptr) return;
    float of_a[kChunk];
    float of_b[kChunk];
    load_chunk(bias + at, column, halves.first, halves.whole, of_a);
    load_chunk(bias + at + halves.first, column, halves.second, halves.whole, of_b);
    for (int i = 0; i < kChunk; ++i) {
      a[i] += of_a[i];
      b[i] += of_b[i];
    }
  }
};

template <class T>
struct MergeQkvGradients {
  static constexpr int kThreads = kRowThreads;
  QkvShape shape;
  Halves halves;
  const float* keys;
  const float* values;
  T* qkv;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const int d = shape.head_dim;
    const int rotated = shape.heads + shape.kv_heads;
    const bool rotates = shape.angles != nullptr;
    const std::int64_t of_keys = key_row(shape, row);
    const std::int64_t angles = row % shape.tokens * 2 * halves.first;
    // Without rotary embedding, the gradient of the queries is already in place.
    const int skipped = rotates ? 0 : shape.heads;
    const int in_place = keys == nullptr ? rotated : shape.heads;
    const int end = keys == nullptr ? rotated : rotated + shape.kv_heads;
    for_each_head_chunk(end - skipped, halves.chunks, [&](int index, int column) {
      const int head = index + skipped;
      T* const to = qkv + (row * (rotated + shape.kv_heads) + head) * d;
      float a[kChunk];
      float b[kChunk];
      if (head < in_place) {
        load_chunk(to, column, halves.first, halves.whole, a);
        load_chunk(to + halves.first, column, halves.second, halves.whole, b);
      } else {
        const float* const from = head < rotated ? keys + (of_keys * shape.kv_heads + head - shape.heads) * d
                                                 : values + (of_keys * shape.kv_heads + head - rotated) * d;
        load_chunk(from, column, halves.first, halves.whole, a);
        load_chunk(from + halves.first, column, halves.second, halves.whole, b);
      }
      if (rotates && head < rotated) {
        float cosines[kChunk];
        float sines[kChunk];
        load_chunk(shape.angles + angles, column, halves.first, halves.whole, cosines);
        load_chunk(shape.angles + angles + halves.first, column, halves.first, halves.whole, sines);
        rotate(cosines, sines, true, a, b);
      }
      store_chunk(to, column, halves.first, halves.whole, a);
      store_chunk(to + halves.first, column, halves.second, halves.whole, b);
    });
  }
};

template <class T>
struct Embed {
  static constexpr int kThreads = kRowThreads;
  EmbeddingShape shape;
  bool whole;
  const std::int32_t* tokens;
  const T* words;
  const T* positions;
  T* out;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const auto width = static_cast<int>(shape.hidden);
    const std::int64_t word = tokens[row] - shape.first_token;
    const bool here = word >= 0 && word < shape.vocab_rows;
    const T* const position = positions == nullptr ? nullptr : positions + row % shape.tokens * width;
    for_each_chunk(width, [&](int column) {
      float numbers[kChunk];
      float others[kChunk];
      load_optional_chunk(here ? words + word * width : nullptr, column, width, whole, numbers);
      load_optional_chunk(position, column, width, whole, others);
      for (int i = 0; i < kChunk; ++i) numbers[i] += others[i];
      store_chunk(out + row * width, column, width, whole, numbers);
    });
  }
};

template <class T>
struct WordGradient {
  static constexpr int kThreads = kRowThreads;
  EmbeddingShape shape;
  bool whole;
  const std::int32_t* tokens;
  const T* gradient;
  float* words;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const auto width = static_cast<int>(shape.hidden);
    const std::int64_t word = tokens[row] - shape.first_token;
    if (word < 0 || word >= shape.vocab_rows) return;
    float* const to = words + word * width;
    for_each_chunk(width, [&](int column) {
      float numbers[kChunk];
      load_chunk(gradient + row * width, column, width, whole, numbers);
      if (whole) {
        const float first[4] = {numbers[0], numbers[1], numbers[2], numbers[3]};
        const float second[4] = {numbers[4], numbers[5], numbers[6], numbers[7]};
        atomic_add_4(to + column, first);
        atomic_add_4(to + column + 4, second);
      } else {
        for (int i = 0; i < kChunk; ++i) {
          if (column + i < width) atomic_add(to + column + i, numbers[i]);
        }
      }
    });
  }
};

template <class T>
struct PositionGradient {
  static constexpr int kThreads = kRowThreads;
  EmbeddingShape shape;
  bool whole;
  const T* gradient;
  float* positions;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t token = block_x();
    const auto width = static_cast<int>(shape.hidden);
    for_each_chunk(width, [&](int column) {
      float sums[kChunk];
      float* const position = positions + token * width;
      load_chunk(position, column, width, whole, sums);
      for (std::int64_t row = token; row < shape.rows; row += shape.tokens) {
        float numbers[kChunk];
        load_chunk(gradient + row * width, column, width, whole, numbers);
        for (int i = 0; i < kChunk; ++i) sums[i] += numbers[i];
      }
      store_chunk(position, column, width, whole, sums);
    });
  }
};

template <class T>
Preactivation<T> preactivation(const Half* inputs, const Half* bias, std::int64_t width) {
  return {as<T>(inputs), as<T>(bias), static_cast<int>(width), in_whole_chunks({width})};
}

Grid head_grid(const QkvShape& shape, const Halves& halves) {
  return row_grid(shape.rows, std::int64_t{shape.heads + 2 * shape.kv_heads} * halves.chunks * kChunk);
}

}  // namespace

void activate(Stream& stream, Element element, bool gated, const Half* inputs, const Half* bias, std::int64_t rows,
              std::int64_t width, Half* out, const RowFactors& factors) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(rows, width),
           Activate<T>{gated, preactivation<T>(inputs, bias, width), as<T>(out), factors});
  });
}

void activate_gradient(Stream& stream, Element element, bool gated, const Half* inputs, const Half* bias,
                       std::int64_t rows, std::int64_t width, Half* gradient, const RowFactors& factors) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(rows, width),
           ActivateGradient<T>{gated, preactivation<T>(inputs, bias, width), as<T>(gradient), factors});
  });
}

void rotary_angles(Stream& stream, std::int64_t context, std::int64_t tokens, std::int64_t head_dim, float* angles) {
  const std::int64_t half = head_dim / 2;
  launch(stream,
         Grid{.blocks_x = static_cast<int>((tokens + RotaryAngles::kTokens - 1) / RotaryAngles::kTokens),
              .threads = row_grid(tokens, half * kChunk).threads},
         RotaryAngles{context, tokens, static_cast<int>(half), angles});
}

void split_qkv(Stream& stream, Element element, const QkvShape& shape, const Half* qkv, const Half* bias, Half* queries,
               Half* keys, Half* values) {
  const Halves halves(shape.head_dim);
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, head_grid(shape, halves),
           SplitQkv<T>{shape, halves, as<T>(qkv), as<T>(bias), as<T>(queries), as<T>(keys), as<T>(values)});
  });
}

void merge_qkv_gradients(Stream& stream, Element element, const QkvShape& shape, const float* keys_gradient,
                         const float* values_gradient, Half* qkv_gradient) {
  if (keys_gradient == nullptr && shape.angles == nullptr) return;
  const Halves halves(shape.head_dim);
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, head_grid(shape, halves),
           MergeQkvGradients<T>{shape, halves, keys_gradient, values_gradient, as<T>(qkv_gradient)});
  });
}

void embed(Stream& stream, Element element, const EmbeddingShape& shape, const std::int32_t* tokens, const Half* words,
           const Half* positions, Half* out) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(shape.rows, shape.hidden),
           Embed<T>{shape, in_whole_chunks({shape.hidden}), tokens, as<T>(words), as<T>(positions), as<T>(out)});
  });
}

void embedding_gradient(Stream& stream, Element element, const EmbeddingShape& shape, const std::int32_t* tokens,
                        const Half* gradient, float* words, float* positions) {
  const bool whole = in_whole_chunks({shape.hidden});
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(shape.rows, shape.hidden), WordGradient<T>{shape, whole, tokens, as<T>(gradient), words});
    if (positions == nullptr) return;
    launch(stream, row_grid(shape.tokens, shape.hidden), PositionGradient<T>{shape, whole, as<T>(gradient), positions});
  });
}

}  // namespace sluice::kernels::cuda
