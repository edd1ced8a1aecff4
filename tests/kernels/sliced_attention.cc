#include "tests/kernels/sliced_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "kernels/attention_library.h"
#include "kernels/cuda/attention.h"
#include "tests/support/test_device.h"

namespace sluice::test {

int AttentionCase::first_token(std::size_t slice) const {
  int sum = 0;
  for (std::size_t i = 0; i < slice; ++i) sum += slices[i];
  return sum;
}

std::ostream& operator<<(std::ostream& out, const AttentionCase& of) {
  out << (of.element == Element::float16 ? "float16" : "bfloat16") << ", " << of.heads << " heads of " << of.head_dim
      << " over " << of.kv_heads << ", " << of.sequences << " sequences of";
  for (const int slice : of.slices) out << ' ' << slice;
  return out;
}

TokenRows::TokenRows(const AttentionCase& of, int row_width)
    : tokens(of.tokens()), width(row_width), at(index(of.sequences, 0)) {}

AttentionNumbers::AttentionNumbers(const AttentionCase& of)
    : queries(of, of.heads * of.head_dim),
      keys(of, of.kv_heads * of.head_dim),
      values(keys),
      out(queries),
      log_sums(of, of.heads) {}

AttentionNumbers attention_inputs(const AttentionCase& of) {
  AttentionNumbers inputs(of);
  std::mt19937 random(static_cast<std::uint32_t>(of.tokens() * 31 + of.heads));
  std::normal_distribution<double> normal;
  for (TokenRows* const rows : {&inputs.queries, &inputs.keys, &inputs.values, &inputs.out}) {
    for (double& value : rows->at) value = (rows == &inputs.queries ? of.magnitude : 1) * normal(random);
    rows->at = rounded(of.element, rows->at);
  }
  return inputs;
}

void naive_attention(const AttentionCase& of, const AttentionNumbers& inputs, AttentionNumbers& results,
                     AttentionNumbers& gradients) {
  const int d = of.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (int sequence = 0; sequence < of.sequences; ++sequence) {
    for (int head = 0; head < of.heads; ++head) {
      const std::ptrdiff_t column = std::ptrdiff_t{head} * d;
      const std::ptrdiff_t key_column = std::ptrdiff_t{head / (of.heads / of.kv_heads)} * d;
      for (int query = of.first_token(of.first_run); query < of.tokens(); ++query) {
        const double* const q = inputs.queries.row(sequence, query) + column;
        const double* const out_gradient = inputs.out.row(sequence, query) + column;
        std::vector<double> p(static_cast<std::size_t>(query + 1));
        double most = -std::numeric_limits<double>::infinity();
        for (int key = 0; key <= query; ++key) {
          const double* const k = inputs.keys.row(sequence, key) + key_column;
          double& score = p[key];
          for (int i = 0; i < d; ++i) score += q[i] * k[i];
          score *= scale;
          most = std::max(most, score);
        }
        double sum = 0;
        for (const double score : p) sum += std::exp(score - most);
        results.log_sums.row(sequence, query)[head] = most + std::log(sum);
        double* const out = results.out.row(sequence, query) + column;
        for (int key = 0; key <= query; ++key) {
          double& share = p[key];
          share = std::exp(share - most) / sum;
          const double* const v = inputs.values.row(sequence, key) + key_column;
          for (int i = 0; i < d; ++i) out[i] += share * v[i];
        }
        double product = 0;
        for (int i = 0; i < d; ++i) product += out[i] * out_gradient[i];
        double* const q_gradient = gradients.queries.row(sequence, query) + column;
        for (int key = 0; key <= query; ++key) {
          const double share = p[key];
          const double* const k = inputs.keys.row(sequence, key) + key_column;
          const double* const v = inputs.values.row(sequence, key) + key_column;
          double* const k_gradient = gradients.keys.row(sequence, key) + key_column;
          double* const v_gradient = gradients.values.row(sequence, key) + key_column;
          double share_gradient = 0;
          for (int i = 0; i < d; ++i) share_gradient += out_gradient[i] * v[i];
          const double score_gradient = share * (share_gradient - product) * scale;
          for (int i = 0; i < d; ++i) {
            v_gradient[i] += share * out_gradient[i];
            k_gradient[i] += score_gradient * q[i];
            q_gradient[i] += score_gradient * k[i];
          }
        }
      }
    }
  }
}

namespace {

// Runs one case on a device.
class OnDevice {
 public:
  OnDevice(const AttentionCase& of, const AttentionNumbers& inputs, Device& device)
      : of_(of), inputs_(inputs), device_(device), stream_(device.make_stream(StreamPriority::normal)) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> before(-1, 1);
    const auto size = static_cast<std::size_t>(2 * values_at());
    keys_ = &put(of.element, std::vector<double>(size));
    for (std::size_t i = 0; i < size; ++i) gradients_before_.push_back(before(random));
    gradients_ = &put(Element::float32, gradients_before_);
  }

  void run(AttentionNumbers& results, AttentionNumbers& gradients) {
    std::vector<Kept> kept(of_.slices.size());
    for (std::size_t i = of_.first_run; i < of_.slices.size(); ++i) kept[i] = forward(i, results);
    for (std::size_t i = of_.slices.size(); i-- > of_.first_run;) backward(i, kept[i], gradients);
    if (!in_rows_) read_gradients(gradients);
    for (const auto& memory : memory_) EXPECT_TRUE(memory->intact());
  }

 private:
  // Buffers that live from a slice's forward to its backward pass.
  struct Kept {
    const DeviceMemory* queries = nullptr;
    const DeviceMemory* out = nullptr;
    const DeviceMemory* log_sums = nullptr;
  };

  DeviceMemory& room(std::int64_t bytes) {
    memory_.push_back(std::make_unique<DeviceMemory>(device_, *stream_, bytes));
    return *memory_.back();
  }
  DeviceMemory& put(Element element, const std::vector<double>& numbers) {
    const std::vector<std::byte> bytes = as_bytes(element, numbers);
    DeviceMemory& memory = room(static_cast<std::int64_t>(bytes.size()));
    memory.write(bytes);
    return memory;
  }

  AttentionSizes shape(std::size_t slice) const {
    return {.sequences = of_.sequences,
            .tokens = of_.slices[slice],
            .heads = of_.heads,
            .kv_heads = of_.kv_heads,
            .head_dim = of_.head_dim,
            .context = of_.first_token(slice)};
  }
  std::ptrdiff_t values_at() const {
    return values_after(std::int64_t{of_.sequences} * of_.tokens(), inputs_.keys.width);
  }
  // Writes the keys and values up to those of a slice; those of later slices, which it does not read, are not numbers.
  cuda::KeyRows keys_up_to(std::size_t slice) {
    std::vector<double> rows(static_cast<std::size_t>(2 * values_at()), std::numeric_limits<double>::quiet_NaN());
    for (std::size_t i = 0; i <= slice; ++i) {
      for_each_row(i, [&](int sequence, int token, std::size_t) {
        const auto at = static_cast<std::ptrdiff_t>(inputs_.keys.index(sequence, token));
        std::copy_n(inputs_.keys.row(sequence, token), inputs_.keys.width, rows.begin() + at);
        std::copy_n(inputs_.values.row(sequence, token), inputs_.values.width, rows.begin() + values_at() + at);
      });
    }
    keys_->write(as_bytes(of_.element, rows));
    return {
        .tokens = of_.tokens(), .keys = keys_->data(), .keys_gradient = reinterpret_cast<float*>(gradients_->data())};
  }

  // Calls visit(sequence, token of the sequence, row of the slice).
  template <class Visit>
  void for_each_row(std::size_t slice, const Visit& visit) const {
    std::size_t row = 0;
    for (int sequence = 0; sequence < of_.sequences; ++sequence) {
      for (int token = 0; token < of_.slices[slice]; ++token) {
        visit(sequence, of_.first_token(slice) + token, row++);
      }
    }
  }
  std::vector<double> slice_rows(std::size_t slice, const TokenRows& from) const {
    std::vector<double> out;
    for_each_row(slice, [&](int sequence, int token, std::size_t) {
      out.insert(out.end(), from.row(sequence, token), from.row(sequence, token) + from.width);
    });
    return out;
  }
  void put_rows(std::size_t slice, const std::vector<double>& from, TokenRows& to) const {
    for_each_row(slice, [&](int sequence, int token, std::size_t row) {
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(row) * to.width;
      std::copy(first, first + to.width, to.row(sequence, token));
    });
  }

  Kept forward(std::size_t slice, AttentionNumbers& results) {
    const AttentionSizes of = shape(slice);
    const DeviceMemory& queries = put(of_.element, slice_rows(slice, inputs_.queries));
    const DeviceMemory& out = room(of.rows() * of.query_width() * 2);
    const DeviceMemory& log_sums = room(of.rows() * of.heads * 4);
    cuda::attention_forward({.choice = of_.choice,
                             .shape = of,
                             .element = of_.element,
                             .queries = queries.data(),
                             .keys = keys_up_to(slice),
                             .out = out.data(),
                             .log_sums = reinterpret_cast<float*>(log_sums.data()),
                             .scratch = scratch(of).data()},
                            device_, *stream_);
    device_.synchronize(*stream_);
    put_rows(slice, as_numbers(of_.element, out.read()), results.out);
    const std::vector<double> sums = as_numbers(Element::float32, log_sums.read());
    const AttentionLibrary* const library = device_.attention_library();
    const bool by_sequence = of_.choice == AttentionChoice::cudnn && library != nullptr && library->has_run(of);
    const std::int64_t tokens = by_sequence ? of.tokens : of.rows();
    for_each_row(slice, [&](int sequence, int token, std::size_t row) {
      const std::int64_t before = by_sequence ? std::int64_t{sequence} * of.heads * of.tokens : 0;
      const std::int64_t in_head =
          by_sequence ? static_cast<std::int64_t>(row) % of.tokens : static_cast<std::int64_t>(row);
      for (int head = 0; head < of.heads; ++head) {
        results.log_sums.row(sequence, token)[head] = sums[static_cast<std::size_t>(before + head * tokens + in_head)];
      }
    });
    return {&queries, &out, &log_sums};
  }

  const DeviceMemory& scratch(const AttentionSizes& of) { return room(cuda::attention_scratch_bytes(of, of_.choice)); }

  void backward(std::size_t slice, const Kept& kept, AttentionNumbers& gradients) {
    const AttentionSizes of = shape(slice);
    // Rows as in the fused gradient of queries, keys and values: columns beside those of the queries must not change.
    constexpr double kUntouched = 4711;
    const std::int64_t stride = of.query_width() + 2 * of.key_width();
    const std::vector<double> untouched(static_cast<std::size_t>(of.rows() * stride), kUntouched);
    const DeviceMemory& queries_gradient = put(of_.element, untouched);
    const DeviceMemory& dot_products = room(of.rows() * of.heads * 4);
    in_rows_ = cuda::attention_backward(
        {.choice = of_.choice,
         .shape = of,
         .element = of_.element,
         .queries = kept.queries->data(),
         .keys = keys_up_to(slice),
         .accumulate = of_.accumulate,
         .key_rows_gradient = of_.in_rows ? queries_gradient.data() + 2 * of.query_width() : nullptr,
         .out = kept.out->data(),
         .log_sums = reinterpret_cast<float*>(kept.log_sums->data()),
         .out_gradient = put(of_.element, slice_rows(slice, inputs_.out)).data(),
         .dot_products = reinterpret_cast<float*>(dot_products.data()),
         .queries_gradient = queries_gradient.data(),
         .queries_gradient_stride = stride,
         .scratch = scratch(of).data()},
        device_, *stream_);
    device_.synchronize(*stream_);
    const std::vector<double> there = as_numbers(of_.element, queries_gradient.read());
    const double still = rounded(of_.element, {kUntouched})[0];
    for_each_row(slice, [&](int sequence, int token, std::size_t row) {
      const auto first = there.begin() + static_cast<std::ptrdiff_t>(row) * stride;
      const auto behind = first + gradients.queries.width;
      std::copy(first, behind, gradients.queries.row(sequence, token));
      if (in_rows_) {
        const auto values = behind + gradients.keys.width;
        std::copy(behind, values, gradients.keys.row(sequence, token));
        std::copy(values, values + gradients.values.width, gradients.values.row(sequence, token));
      } else {
        EXPECT_TRUE(std::all_of(behind, first + stride, [&](double value) { return value == still; }));
      }
    });
  }

  void read_gradients(AttentionNumbers& gradients) const {
    std::vector<double> added = as_numbers(Element::float32, gradients_->read());
    // As in float32.
    const std::vector<double> before = rounded(Element::float32, gradients_before_);
    for (std::size_t i = 0; i < added.size() && of_.accumulate; ++i) added[i] -= before[i];
    std::copy_n(added.begin(), gradients.keys.at.size(), gradients.keys.at.begin());
    std::copy_n(added.begin() + values_at(), gradients.values.at.size(), gradients.values.at.begin());
  }

  AttentionCase of_;
  const AttentionNumbers& inputs_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  DeviceMemory* keys_ = nullptr;
  DeviceMemory* gradients_ = nullptr;
  std::vector<double> gradients_before_;
  bool in_rows_ = false;  // gradients of keys and values are in rows
};

}  // namespace

void device_attention(const AttentionCase& of, const AttentionNumbers& inputs, Device& device,
                      AttentionNumbers& results, AttentionNumbers& gradients) {
  OnDevice(of, inputs, device).run(results, gradients);
}

void expect_attention_equals_naive(const AttentionCase& of, Device& device) {
  SCOPED_TRACE(::testing::PrintToString(of));
  const AttentionNumbers inputs = attention_inputs(of);
  AttentionNumbers expected(of);
  AttentionNumbers expected_gradients(of);
  naive_attention(of, inputs, expected, expected_gradients);
  AttentionNumbers results(of);
  AttentionNumbers gradients(of);
  device_attention(of, inputs, device, results, gradients);
  EXPECT_LT(distance(results.out, expected.out), allowed_error(of.element));
  EXPECT_LT(distance(results.log_sums, expected.log_sums), 1e-5);
  EXPECT_LT(distance(gradients.queries, expected_gradients.queries), allowed_error(of.element));
  EXPECT_LT(distance(gradients.keys, expected_gradients.keys), allowed_error(of.element));
  EXPECT_LT(distance(gradients.values, expected_gradients.values), allowed_error(of.element));
}

double distance(const TokenRows& a, const TokenRows& b) {
  double of_difference = 0;
  double of_b = 0;
  for (std::size_t i = 0; i < b.at.size(); ++i) {
    of_difference += (a.at[i] - b.at[i]) * (a.at[i] - b.at[i]);
    of_b += b.at[i] * b.at[i];
  }
  return std::sqrt(of_difference / std::max(of_b, 1e-4));
}

}  // namespace sluice::test
