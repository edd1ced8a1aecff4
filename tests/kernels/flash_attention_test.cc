// Flash attention against a naive one in double: every shape that cuts tiles, segments and groups differently.

#include "kernels/cuda/flash_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/lanes.h"
#include "kernels/emulation/device.h"

namespace sluice::cuda {
namespace {

struct Case {
  Element element = Element::bfloat16;
  int head_dim = 64;
  int heads = 1;
  int kv_heads = 1;
  int sequences = 1;
  std::vector<int> slices;    // tokens of each
  std::size_t first_run = 0;  // slices from this one on are run, the earlier ones are context alone
  float magnitude = 1;        // of queries
  emulation::Schedule schedule;

  int tokens() const {
    int sum = 0;
    for (const int slice : slices) sum += slice;
    return sum;
  }
  int first_token(std::size_t slice) const {
    int sum = 0;
    for (std::size_t i = 0; i < slice; ++i) sum += slices[i];
    return sum;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& of) {
  out << (of.element == Element::float16 ? "float16" : "bfloat16") << ", " << of.heads << " heads of " << of.head_dim
      << " over " << of.kv_heads << ", " << of.sequences << " sequences of";
  for (const int slice : of.slices) out << ' ' << slice;
  return out;
}

double rounded(Element element, double value) {
  const auto narrow = static_cast<float>(value);
  return element == Element::float16 ? to_float(from_float<float16>(narrow)) : to_float(from_float<bfloat16>(narrow));
}
std::uint16_t bits(Element element, double value) {
  const auto narrow = static_cast<float>(value);
  return element == Element::float16 ? from_float<float16>(narrow).bits : from_float<bfloat16>(narrow).bits;
}
double number(Element element, std::uint16_t value) {
  return element == Element::float16 ? to_float(float16{value}) : to_float(bfloat16{value});
}

// [sequences][tokens of the whole sequence][width]
struct Rows {
  Rows(const Case& of, int row_width)
      : tokens(of.tokens()), width(row_width), at(static_cast<std::size_t>(of.sequences * tokens * row_width)) {}
  double* row(int sequence, int token) {
    return at.data() + static_cast<std::ptrdiff_t>(sequence * tokens + token) * width;
  }
  const double* row(int sequence, int token) const {
    return at.data() + static_cast<std::ptrdiff_t>(sequence * tokens + token) * width;
  }
  int tokens;
  int width;
  std::vector<double> at;
};

struct Numbers {
  explicit Numbers(const Case& of)
      : queries(of, of.heads * of.head_dim),
        keys(of, of.kv_heads * of.head_dim),
        values(keys),
        out(queries),
        log_sums(of, of.heads) {}
  Rows queries;
  Rows keys;
  Rows values;
  Rows out;
  Rows log_sums;
};

// What attention is, and its gradients, of all slices from first_run on; `inputs.out` is the gradient of the output.
void naive(const Case& of, const Numbers& inputs, Numbers& results, Numbers& gradients) {
  const int d = of.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (int sequence = 0; sequence < of.sequences; ++sequence) {
    for (int head = 0; head < of.heads; ++head) {
      const int key_head = head / (of.heads / of.kv_heads);
      for (int query = of.first_token(of.first_run); query < of.tokens(); ++query) {
        const double* const q = inputs.queries.row(sequence, query) + head * d;
        const double* const out_gradient = inputs.out.row(sequence, query) + head * d;
        std::vector<double> p(static_cast<std::size_t>(query + 1));
        double most = -std::numeric_limits<double>::infinity();
        for (int key = 0; key <= query; ++key) {
          const double* const k = inputs.keys.row(sequence, key) + key_head * d;
          double& score = p[static_cast<std::size_t>(key)];
          for (int i = 0; i < d; ++i) score += q[i] * k[i];
          score *= scale;
          most = std::max(most, score);
        }
        double sum = 0;
        for (const double score : p) sum += std::exp(score - most);
        results.log_sums.row(sequence, query)[head] = most + std::log(sum);
        double* const out = results.out.row(sequence, query) + head * d;
        for (int key = 0; key <= query; ++key) {
          double& share = p[static_cast<std::size_t>(key)];
          share = std::exp(share - most) / sum;
          const double* const v = inputs.values.row(sequence, key) + key_head * d;
          for (int i = 0; i < d; ++i) out[i] += share * v[i];
        }
        double product = 0;
        for (int i = 0; i < d; ++i) product += out[i] * out_gradient[i];
        double* const q_gradient = gradients.queries.row(sequence, query) + head * d;
        for (int key = 0; key <= query; ++key) {
          const double share = p[static_cast<std::size_t>(key)];
          const double* const k = inputs.keys.row(sequence, key) + key_head * d;
          const double* const v = inputs.values.row(sequence, key) + key_head * d;
          double* const k_gradient = gradients.keys.row(sequence, key) + key_head * d;
          double* const v_gradient = gradients.values.row(sequence, key) + key_head * d;
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

// Memory of a device with what a vector has, and back.
class Memory {
 public:
  Memory(Device& device, Stream& stream) : device_(device), stream_(stream) {}
  ~Memory() {
    for (std::byte* const held : held_) device_.release(held);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T>
  T* put(const std::vector<T>& from) {
    const auto bytes = static_cast<std::int64_t>(from.size() * sizeof(T));
    std::byte* const host = device_.allocate_host(bytes);
    std::memcpy(host, from.data(), static_cast<std::size_t>(bytes));
    held_.push_back(device_.allocate(bytes));
    device_.copy(held_.back(), host, bytes, stream_);
    device_.synchronize(stream_);
    device_.release_host(host);
    return reinterpret_cast<T*>(held_.back());
  }
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) {
    const auto bytes = static_cast<std::int64_t>(count * sizeof(T));
    std::byte* const host = device_.allocate_host(bytes);
    device_.copy(host, from, bytes, stream_);
    device_.synchronize(stream_);
    std::vector<T> out(count);
    std::memcpy(out.data(), host, static_cast<std::size_t>(bytes));
    device_.release_host(host);
    return out;
  }

 private:
  Device& device_;
  Stream& stream_;
  std::vector<std::byte*> held_;
};

// The same on a device, slice by slice: forward from the first to the last, backward from the last to the first.
class OnDevice {
 public:
  OnDevice(const Case& of, const Numbers& inputs)
      : of_(of),
        device_(emulation::make_device({.schedule = of.schedule})),
        stream_(device_->make_stream(StreamPriority::normal)),
        memory_(*device_, *stream_),
        inputs_(inputs) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> before(-1, 1);
    for (std::size_t i = 0; i < of.slices.size(); ++i) {
      const auto rows = static_cast<std::int64_t>(of.sequences) * of.slices[i];
      const std::int64_t width = inputs.keys.width;
      std::vector<std::uint16_t> block(static_cast<std::size_t>(2 * values_after(rows, width)));
      copy_rows(i, inputs.keys, block.data());
      copy_rows(i, inputs.values, block.data() + values_after(rows, width));
      key_blocks_.push_back(memory_.put(block));
      std::vector<float> gradient(block.size());
      for (float& value : gradient) value = before(random);
      gradients_before_.push_back(gradient);
      gradient_blocks_.push_back(memory_.put(gradient));
    }
  }

  void run(Numbers& results, Numbers& gradients) {
    std::vector<const float*> log_sums(of_.slices.size());
    std::vector<const std::uint16_t*> queries(of_.slices.size());
    for (std::size_t i = of_.first_run; i < of_.slices.size(); ++i) forward(i, results, queries[i], log_sums[i]);
    for (std::size_t i = of_.slices.size(); i-- > of_.first_run;) {
      backward(i, results, queries[i], log_sums[i], gradients);
    }
    for (std::size_t i = 0; i < of_.slices.size(); ++i) read_gradients(i, gradients);
  }

 private:
  template <class Visit>
  void for_each_row(std::size_t slice, const Visit& visit) const {
    const int tokens = of_.slices[slice];
    for (int sequence = 0; sequence < of_.sequences; ++sequence) {
      for (int token = 0; token < tokens; ++token) {
        visit(sequence, of_.first_token(slice) + token, std::int64_t{sequence} * tokens + token);
      }
    }
  }
  void copy_rows(std::size_t slice, const Rows& from, std::uint16_t* to) const {
    for_each_row(slice, [&](int sequence, int token, std::int64_t row) {
      for (int i = 0; i < from.width; ++i) to[row * from.width + i] = bits(of_.element, from.row(sequence, token)[i]);
    });
  }
  AttentionShape shape(std::size_t slice) const {
    return {.sequences = of_.sequences,
            .tokens = of_.slices[slice],
            .heads = of_.heads,
            .kv_heads = of_.kv_heads,
            .head_dim = of_.head_dim,
            .context = of_.first_token(slice)};
  }
  KeySegments segments(std::size_t slice, bool with_gradients) const {
    KeySegments out;
    out.count = static_cast<int>(slice) + 1;
    for (std::size_t i = 0; i <= slice; ++i) {
      out.tokens[i] = of_.slices[i];
      out.keys[i] = key_blocks_[i];
      if (with_gradients) out.keys_gradient[i] = gradient_blocks_[i];
    }
    return out;
  }
  std::vector<std::uint16_t> slice_rows(std::size_t slice, const Rows& from) const {
    std::vector<std::uint16_t> out(static_cast<std::size_t>(of_.sequences * of_.slices[slice] * from.width));
    copy_rows(slice, from, out.data());
    return out;
  }

  void forward(std::size_t slice, Numbers& results, const std::uint16_t*& queries, const float*& log_sums) {
    const AttentionShape of = shape(slice);
    ASSERT_TRUE(flash_fits(of, device_->compute_capability()));
    const auto rows = static_cast<std::size_t>(of.rows());
    std::uint16_t* const out =
        memory_.put(std::vector<std::uint16_t>(rows * static_cast<std::size_t>(of.query_width())));
    float* const sums = memory_.put(std::vector<float>(rows * static_cast<std::size_t>(of_.heads)));
    queries = memory_.put(slice_rows(slice, inputs_.queries));
    log_sums = sums;
    flash_attention_forward({.shape = of,
                             .element = of_.element,
                             .queries = queries,
                             .segments = segments(slice, false),
                             .out = out,
                             .log_sums = sums,
                             .scratch = nullptr},
                            *device_, *stream_);
    const auto out_here = memory_.get(out, rows * static_cast<std::size_t>(of.query_width()));
    const auto sums_here = memory_.get(sums, rows * static_cast<std::size_t>(of_.heads));
    for_each_row(slice, [&](int sequence, int token, std::int64_t row) {
      for (int i = 0; i < results.out.width; ++i) {
        results.out.row(sequence, token)[i] =
            number(of_.element, out_here[static_cast<std::size_t>(row * results.out.width + i)]);
      }
      for (int head = 0; head < of_.heads; ++head) {
        results.log_sums.row(sequence, token)[head] = sums_here[static_cast<std::size_t>(head * of.rows() + row)];
      }
    });
  }

  void backward(std::size_t slice, const Numbers& results, const std::uint16_t* queries, const float* log_sums,
                Numbers& gradients) {
    const AttentionShape of = shape(slice);
    const int d = of_.head_dim;
    std::vector<float> products(static_cast<std::size_t>(of.rows() * of_.heads));
    for_each_row(slice, [&](int sequence, int token, std::int64_t row) {
      for (int head = 0; head < of_.heads; ++head) {
        double sum = 0;
        for (int i = head * d; i < (head + 1) * d; ++i) {
          sum += results.out.row(sequence, token)[i] * inputs_.out.row(sequence, token)[i];
        }
        products[static_cast<std::size_t>(head * of.rows() + row)] = static_cast<float>(sum);
      }
    });
    // As in the gradient of queries, keys and values together: what is beside the queries' stays.
    constexpr std::uint16_t kUntouched = 0x1234;
    const std::int64_t stride = of.query_width() + 2 * of.key_width();
    const std::vector<std::uint16_t> untouched(static_cast<std::size_t>(of.rows() * stride), kUntouched);
    std::uint16_t* const queries_gradient = memory_.put(untouched);
    std::byte* const scratch =
        memory_.put(std::vector<std::byte>(static_cast<std::size_t>(flash_scratch_bytes(of)), std::byte{0xff}));
    flash_attention_backward({.shape = of,
                              .element = of_.element,
                              .queries = queries,
                              .segments = segments(slice, true),
                              .log_sums = log_sums,
                              .out_gradient = memory_.put(slice_rows(slice, inputs_.out)),
                              .products = memory_.put(products),
                              .queries_gradient = queries_gradient,
                              .queries_gradient_stride = stride,
                              .scratch = scratch},
                             *device_, *stream_);
    const auto here = memory_.get(queries_gradient, untouched.size());
    for_each_row(slice, [&](int sequence, int token, std::int64_t row) {
      for (int i = 0; i < stride; ++i) {
        const std::uint16_t value = here[static_cast<std::size_t>(row * stride + i)];
        if (i < gradients.queries.width) {
          gradients.queries.row(sequence, token)[i] = number(of_.element, value);
        } else {
          ASSERT_EQ(value, kUntouched);
        }
      }
    });
  }

  void read_gradients(std::size_t slice, Numbers& gradients) {
    const auto& before = gradients_before_[slice];
    const auto now = memory_.get(gradient_blocks_[slice], before.size());
    const auto rows = static_cast<std::int64_t>(of_.sequences) * of_.slices[slice];
    for_each_row(slice, [&](int sequence, int token, std::int64_t row) {
      for (int i = 0; i < gradients.keys.width; ++i) {
        const auto key = static_cast<std::size_t>(row * gradients.keys.width + i);
        const auto value = key + static_cast<std::size_t>(values_after(rows, gradients.keys.width));
        gradients.keys.row(sequence, token)[i] = double{now[key]} - double{before[key]};
        gradients.values.row(sequence, token)[i] = double{now[value]} - double{before[value]};
      }
    });
  }

  Case of_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Memory memory_;
  const Numbers& inputs_;
  std::vector<const std::uint16_t*> key_blocks_;
  std::vector<float*> gradient_blocks_;
  std::vector<std::vector<float>> gradients_before_;
};

Numbers random_inputs(const Case& of) {
  Numbers inputs(of);
  std::mt19937 random(static_cast<std::uint32_t>(of.tokens() * 31 + of.heads));
  std::normal_distribution<double> normal;
  for (double& value : inputs.queries.at) value = rounded(of.element, of.magnitude * normal(random));
  for (Rows* const rows : {&inputs.keys, &inputs.values, &inputs.out}) {
    for (double& value : rows->at) value = rounded(of.element, normal(random));
  }
  return inputs;
}

// ||a - b|| / ||b||; a number that is not finite makes it so. Where there is but one key, the gradients of queries and
// keys are 0: then ||a - b|| is to be small beside numbers of the order of 1.
double distance(const Rows& a, const Rows& b) {
  double of_difference = 0;
  double of_b = 0;
  for (std::size_t i = 0; i < b.at.size(); ++i) {
    of_difference += (a.at[i] - b.at[i]) * (a.at[i] - b.at[i]);
    of_b += b.at[i] * b.at[i];
  }
  return std::sqrt(of_difference / std::max(of_b, 1e-4));
}

void expect_as_naive(const Case& of) {
  SCOPED_TRACE(::testing::PrintToString(of));
  const Numbers inputs = random_inputs(of);
  Numbers expected(of);
  Numbers expected_gradients(of);
  naive(of, inputs, expected, expected_gradients);
  Numbers results(of);
  Numbers gradients(of);
  OnDevice(of, inputs).run(results, gradients);
  // bfloat16 has 8 bits, float16 11.
  const double most = of.element == Element::bfloat16 ? 1e-2 : 2e-3;
  EXPECT_LT(distance(results.out, expected.out), most);
  EXPECT_LT(distance(results.log_sums, expected.log_sums), 1e-5);
  EXPECT_LT(distance(gradients.queries, expected_gradients.queries), most);
  EXPECT_LT(distance(gradients.keys, expected_gradients.keys), most);
  EXPECT_LT(distance(gradients.values, expected_gradients.values), most);
}

TEST(FlashAttention, FitsWhatItIsMadeFor) {
  const AttentionShape shape{.sequences = 2, .tokens = 65, .heads = 4, .kv_heads = 2, .head_dim = 128};
  EXPECT_TRUE(flash_fits(shape, 80));
  EXPECT_FALSE(flash_fits(shape, 75));
  AttentionShape wide = shape;
  wide.head_dim = 96;
  EXPECT_FALSE(flash_fits(wide, 90));
  EXPECT_EQ(flash_scratch_bytes(wide), 0);
  // Two tiles of 64 queries, in float32.
  EXPECT_EQ(flash_scratch_bytes(shape), 2 * 128 * 4 * 128 * 4);
}

TEST(FlashAttention, OneSlice) {
  for (const Element element : {Element::float16, Element::bfloat16}) {
    for (const int head_dim : {64, 128}) {
      expect_as_naive({.element = element, .head_dim = head_dim, .slices = {130}});
    }
  }
}

TEST(FlashAttention, LengthsAroundTiles) {
  for (const int tokens : {1, 63, 64, 65, 129}) {
    expect_as_naive({.slices = {tokens}});
    expect_as_naive({.head_dim = 128, .slices = {tokens}});
  }
}

TEST(FlashAttention, UnevenSlicesFromLastToFirst) {
  expect_as_naive({.slices = {1, 7, 64, 65, 130}});
  expect_as_naive({.element = Element::float16, .head_dim = 128, .slices = {70, 33, 2}});
}

TEST(FlashAttention, LongContext) {
  expect_as_naive({.slices = {500, 300, 20}, .first_run = 2});
  expect_as_naive({.head_dim = 128, .slices = {300, 129, 40}, .first_run = 2});
}

TEST(FlashAttention, SequencesAndGroups) {
  expect_as_naive({.heads = 2, .kv_heads = 2, .sequences = 3, .slices = {20, 67}});
  expect_as_naive({.heads = 4, .kv_heads = 2, .sequences = 2, .slices = {65, 30}});
  expect_as_naive({.head_dim = 128, .heads = 4, .kv_heads = 1, .slices = {40, 70}});
  expect_as_naive({.heads = 8, .kv_heads = 1, .slices = {66}});
}

TEST(FlashAttention, LargeScores) {
  // Scores of up to some 300 times sqrt(64): their exponentials have no place in float32. Almost all goes to one key,
  // and what gradients are left is the difference of equals: only that they are finite can be asked.
  for (const Element element : {Element::float16, Element::bfloat16}) {
    const Case of{.element = element, .slices = {70, 80}, .magnitude = 300};
    const Numbers inputs = random_inputs(of);
    Numbers expected(of);
    Numbers expected_gradients(of);
    naive(of, inputs, expected, expected_gradients);
    Numbers results(of);
    Numbers gradients(of);
    OnDevice(of, inputs).run(results, gradients);
    EXPECT_LT(distance(results.out, expected.out), 1e-2);
    EXPECT_LT(distance(results.log_sums, expected.log_sums), 1e-5);
    EXPECT_LT(distance(gradients.values, expected_gradients.values), 1e-2);
    for (const Rows* const rows : {&gradients.queries, &gradients.keys}) {
      EXPECT_TRUE(std::all_of(rows->at.begin(), rows->at.end(), [](double value) { return std::isfinite(value); }));
    }
  }
}

// Whichever warp is ahead, and whenever copies are done.
TEST(FlashAttention, WarpsNeedNoOrder) {
  using emulation::Schedule;
  for (const int head_dim : {64, 128}) {
    for (const Schedule& schedule : {Schedule{Schedule::Warps::first_ahead, Schedule::Copies::at_once},
                                     Schedule{Schedule::Warps::last_ahead, Schedule::Copies::at_once},
                                     Schedule{Schedule::Warps::first_ahead, Schedule::Copies::at_wait},
                                     Schedule{Schedule::Warps::last_ahead, Schedule::Copies::at_wait},
                                     Schedule{Schedule::Warps::random, Schedule::Copies::random, 3},
                                     Schedule{Schedule::Warps::random, Schedule::Copies::random, 4}}) {
      expect_as_naive({.head_dim = head_dim, .heads = 2, .slices = {129, 70}, .first_run = 1, .schedule = schedule});
    }
  }
}

}  // namespace
}  // namespace sluice::cuda
