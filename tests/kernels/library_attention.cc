#include "tests/kernels/library_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/attention_library.h"
#include "tests/support/test_device.h"

namespace sluice::test {

void expect_library_equals_naive(const AttentionCase& of, Device& device) {
  SCOPED_TRACE(::testing::PrintToString(of));
  AttentionCase last = of;
  last.first_run = of.slices.size() - 1;
  const AttentionNumbers inputs = attention_inputs(last);
  AttentionNumbers expected(last);
  AttentionNumbers expected_gradients(last);
  naive_attention(last, inputs, expected, expected_gradients);

  const AttentionSizes sizes{.sequences = of.sequences,
                             .tokens = of.slices.back(),
                             .heads = of.heads,
                             .kv_heads = of.kv_heads,
                             .head_dim = of.head_dim,
                             .context = last.first_token(last.first_run)};
  const std::unique_ptr<Stream> stream = device.make_stream(StreamPriority::normal);
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  const auto put = [&](const std::vector<double>& numbers) {
    const std::vector<std::byte> bytes = as_bytes(of.element, numbers);
    memory.push_back(std::make_unique<DeviceMemory>(device, *stream, static_cast<std::int64_t>(bytes.size())));
    memory.back()->write(bytes);
    return memory.back().get();
  };
  const auto room = [&](std::int64_t bytes) {
    memory.push_back(std::make_unique<DeviceMemory>(device, *stream, bytes));
    return memory.back().get();
  };
  // Calls visit(sequence, token, row) for the queries.
  const auto for_each_query = [&](const auto& visit) {
    for (int row = 0; row < sizes.rows(); ++row) {
      visit(row / sizes.tokens, static_cast<int>(sizes.context) + row % sizes.tokens, static_cast<std::ptrdiff_t>(row));
    }
  };
  const auto rows_of = [&](const TokenRows& from) {
    std::vector<double> out;
    for_each_query([&](int sequence, int token, std::ptrdiff_t) {
      out.insert(out.end(), from.row(sequence, token), from.row(sequence, token) + from.width);
    });
    return out;
  };

  AttentionProblem problem{.sizes = sizes, .element = of.element, .key_stride = sizes.key_width()};
  problem.key_sequence_stride = problem.keys() * sizes.key_width();
  const std::int64_t bytes = library_workspace_bytes(sizes);
  const DeviceMemory* const queries = put(rows_of(inputs.queries));
  const DeviceMemory* const keys = put(inputs.keys.at);
  const DeviceMemory* const values = put(inputs.values.at);
  const DeviceMemory* const out = room(2 * sizes.rows() * sizes.query_width());
  const DeviceMemory* const log_sums = room(4 * sizes.rows() * sizes.heads);
  const DeviceMemory* const workspace = room(bytes);
  AttentionLibrary& library = *device.attention_library();
  EXPECT_TRUE(library.forward(problem,
                              {.queries = queries->data(),
                               .keys = keys->data(),
                               .values = values->data(),
                               .out = out->data(),
                               .log_sums = reinterpret_cast<float*>(log_sums->data()),
                               .workspace = workspace->data(),
                               .workspace_bytes = bytes},
                              *stream));
  // Gradients of queries in rows of which they are a part.
  problem.queries_gradient_stride = sizes.query_width() + 2 * sizes.key_width();
  problem.keys_gradient_stride = problem.key_stride;
  problem.keys_gradient_sequence_stride = problem.key_sequence_stride;
  const DeviceMemory* const queries_gradient = room(2 * sizes.rows() * problem.queries_gradient_stride);
  const DeviceMemory* const keys_gradient = room(keys->size());
  const DeviceMemory* const values_gradient = room(values->size());
  EXPECT_TRUE(library.backward(problem,
                               {.queries = queries->data(),
                                .keys = keys->data(),
                                .values = values->data(),
                                .out = out->data(),
                                .out_gradient = put(rows_of(inputs.out))->data(),
                                .log_sums = reinterpret_cast<const float*>(log_sums->data()),
                                .queries_gradient = queries_gradient->data(),
                                .keys_gradient = keys_gradient->data(),
                                .values_gradient = values_gradient->data(),
                                .workspace = workspace->data(),
                                .workspace_bytes = bytes},
                               *stream));
  device.synchronize(*stream);
  for (const std::string& note : library.notes()) ADD_FAILURE() << note;
  for (const auto& each : memory) EXPECT_TRUE(each->intact());

  AttentionNumbers results(last);
  AttentionNumbers gradients(last);
  const std::vector<double> outs = as_numbers(of.element, out->read());
  const std::vector<double> sums = as_numbers(Element::float32, log_sums->read());
  const std::vector<double> of_queries = as_numbers(of.element, queries_gradient->read());
  for_each_query([&](int sequence, int token, std::ptrdiff_t row) {
    std::copy_n(outs.begin() + row * results.out.width, results.out.width, results.out.row(sequence, token));
    std::copy_n(of_queries.begin() + row * problem.queries_gradient_stride, gradients.queries.width,
                gradients.queries.row(sequence, token));
    for (int head = 0; head < of.heads; ++head) {
      const std::int64_t at = (std::int64_t{sequence} * of.heads + head) * sizes.tokens + row % sizes.tokens;
      results.log_sums.row(sequence, token)[head] = sums[static_cast<std::size_t>(at)];
    }
  });
  gradients.keys.at = as_numbers(of.element, keys_gradient->read());
  gradients.values.at = as_numbers(of.element, values_gradient->read());
  EXPECT_LT(distance(results.out, expected.out), allowed_error(of.element));
  EXPECT_LT(distance(results.log_sums, expected.log_sums), 1e-5);
  EXPECT_LT(distance(gradients.queries, expected_gradients.queries), allowed_error(of.element));
  EXPECT_LT(distance(gradients.keys, expected_gradients.keys), allowed_error(of.element));
  EXPECT_LT(distance(gradients.values, expected_gradients.values), allowed_error(of.element));
}

}  // namespace sluice::test
