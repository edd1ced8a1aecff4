#include "exec/device/cudnn_plans.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>

#include "model/to_size.h"

namespace sluice::exec {
namespace {

using Dimensions = std::array<std::int64_t, 4>;  // sequence, head, token, element
using T = AttentionTensor;

Dimensions packed(const Dimensions& of) { return {of[1] * of[2] * of[3], of[2] * of[3], of[3], 1}; }
Dimensions transposed(const Dimensions& of) { return {of[0], of[1], of[3], of[2]}; }

// One operation graph. Tensors are numbered in `tensors_`; intermediate ones are virtual: never in memory.
class AttentionGraph {
 public:
  AttentionGraph(const Cudnn& library, const AttentionProblem& problem)
      : library_(library),
        problem_(problem),
        half_(problem.element == Element::float16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16),
        b_(problem.sizes.sequences),
        h_(problem.sizes.heads),
        q_(problem.sizes.tokens),
        k_(problem.keys()),
        d_(problem.sizes.head_dim) {}

  void forward();
  void backward();
  CudnnPlan plan(const CudnnTarget& target);

 private:
  using Tensor = std::size_t;

  CudnnDescriptor make(cudnnBackendDescriptorType_t type) const { return {library_, type}; }
  Tensor add(cudnnDataType_t type, const Dimensions& dimensions, const Dimensions& strides, std::int64_t id,
             std::optional<cudnnBackendAttributeName_t> kind = std::nullopt);
  Tensor given(T id, cudnnDataType_t type, const Dimensions& dimensions, const Dimensions& strides) {
    return add(type, dimensions, strides, static_cast<std::int64_t>(id));
  }
  Tensor by_value(T id, cudnnDataType_t type) {
    return add(type, {1, 1, 1, 1}, {1, 1, 1, 1}, static_cast<std::int64_t>(id), CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  }
  Tensor between(cudnnDataType_t type, const Dimensions& dimensions, const Dimensions& strides) {
    return add(type, dimensions, strides, next_id_++, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  }
  Tensor between(cudnnDataType_t type, const Dimensions& dimensions) {
    return between(type, dimensions, packed(dimensions));
  }
  Tensor scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) { return between(type, {b_, h_, q_, k_}); }
  Tensor rows() { return between(CUDNN_DATA_FLOAT, {b_, h_, q_, 1}); }

  // Tensors of one row per token: heads are adjacent.
  Tensor dense(T id) { return rows_of(id, h_, q_, h_ * d_, q_ * h_ * d_); }
  Tensor rows_of(T id, std::int64_t heads, std::int64_t tokens, std::int64_t stride, std::int64_t sequence_stride) {
    return given(id, half_, {b_, heads, tokens, d_}, {sequence_stride, d_, stride, 1});
  }
  // Keys or values as [head_dim, keys], for the second operand of a multiplication by their transposes.
  Tensor keys_transposed(T id) {
    return given(id, half_, {b_, problem_.sizes.kv_heads, d_, k_},
                 {problem_.key_sequence_stride, d_, 1, problem_.key_stride});
  }
  Tensor log_sums() { return given(T::log_sums, CUDNN_DATA_FLOAT, {b_, h_, q_, 1}, packed({b_, h_, q_, 1})); }

  // Operations append to the graph and return y.
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, std::optional<Tensor> b, Tensor y,
                   cudnnDataType_t precision = CUDNN_DATA_FLOAT, std::optional<Tensor> t = std::nullopt,
                   std::int64_t axis = -1);
  Tensor reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y);
  Tensor multiply(Tensor a, Tensor b, Tensor c);
  Tensor reshape(Tensor x, Tensor y);
  // Sums the products of the heads of a group: c has one head per key head.
  void multiply_by_group(Tensor a, Tensor b, Tensor c);
  // Masks the scores of later keys: query i reads keys up to i + keys - queries.
  Tensor masked(Tensor scores);

  void connect(CudnnDescriptor& operation, cudnnBackendAttributeName_t name, Tensor tensor) const {
    operation.set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, tensors_[tensor].get());
  }
  void append(CudnnDescriptor operation) {
    operation.finalize();
    operations_.push_back(std::move(operation));
  }

  const Cudnn& library_;
  const AttentionProblem& problem_;
  cudnnDataType_t half_;
  std::int64_t b_, h_, q_, k_, d_;  // sequences, query heads, queries, keys, head_dim
  std::int64_t next_id_ = 100;
  std::vector<CudnnDescriptor> tensors_;
  std::vector<CudnnDescriptor> settings_;
  std::vector<CudnnDescriptor> operations_;
};

AttentionGraph::Tensor AttentionGraph::add(cudnnDataType_t type, const Dimensions& dimensions,
                                           const Dimensions& strides, std::int64_t id,
                                           std::optional<cudnnBackendAttributeName_t> kind) {
  constexpr std::int64_t kAlignment = 16;
  CudnnDescriptor tensor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dimensions.data());
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  if (kind) tensor.set(*kind, CUDNN_TYPE_BOOLEAN, true);
  tensor.finalize();
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

AttentionGraph::Tensor AttentionGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, std::optional<Tensor> b, Tensor y,
                                                 cudnnDataType_t precision, std::optional<Tensor> t,
                                                 std::int64_t axis) {
  CudnnDescriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
  if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  how.finalize();
  CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, how.get());
  connect(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  connect(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b) connect(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  if (t) connect(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t);
  append(std::move(operation));
  settings_.push_back(std::move(how));
  return y;
}

AttentionGraph::Tensor AttentionGraph::reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y) {
  CudnnDescriptor reduction = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
  reduction.finalize();
  CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, reduction.get());
  connect(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  connect(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  append(std::move(operation));
  settings_.push_back(std::move(reduction));
  return y;
}

AttentionGraph::Tensor AttentionGraph::multiply(Tensor a, Tensor b, Tensor c) {
  CudnnDescriptor product = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  product.finalize();
  CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  connect(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  connect(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  connect(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, product.get());
  append(std::move(operation));
  settings_.push_back(std::move(product));
  return c;
}

AttentionGraph::Tensor AttentionGraph::reshape(Tensor x, Tensor y) {
  CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  connect(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  connect(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  append(std::move(operation));
  return y;
}

void AttentionGraph::multiply_by_group(Tensor a, Tensor b, Tensor c) {
  if (h_ == problem_.sizes.kv_heads) {
    multiply(a, b, c);
  } else {
    reduce(CUDNN_REDUCE_TENSOR_ADD, multiply(a, b, between(half_, {b_, h_, k_, d_})), c);
  }
}

AttentionGraph::Tensor AttentionGraph::masked(Tensor unmasked) {
  const auto index = [&](std::int64_t axis) {
    return pointwise(CUDNN_POINTWISE_GEN_INDEX, unmasked, std::nullopt, scores(CUDNN_DATA_INT32), CUDNN_DATA_FLOAT,
                     std::nullopt, axis);
  };
  Tensor query = index(2);
  const Tensor key = index(3);
  query = pointwise(CUDNN_POINTWISE_ADD, query, by_value(T::number_of_keys, CUDNN_DATA_INT32), scores(CUDNN_DATA_INT32),
                    CUDNN_DATA_INT32);
  query = pointwise(CUDNN_POINTWISE_SUB, query, by_value(T::number_of_queries, CUDNN_DATA_INT32),
                    scores(CUDNN_DATA_INT32), CUDNN_DATA_INT32);
  const Tensor visible = pointwise(CUDNN_POINTWISE_CMP_GE, query, key, scores(CUDNN_DATA_BOOLEAN), CUDNN_DATA_BOOLEAN);
  return pointwise(CUDNN_POINTWISE_BINARY_SELECT, unmasked, by_value(T::minus_infinity, CUDNN_DATA_FLOAT), scores(),
                   CUDNN_DATA_FLOAT, visible);
}

void AttentionGraph::forward() {
  const Tensor queries = dense(T::queries);
  Tensor score = multiply(queries, keys_transposed(T::keys), scores());
  score = pointwise(CUDNN_POINTWISE_MUL, score, by_value(T::scale, CUDNN_DATA_FLOAT), scores());
  score = masked(score);
  const Tensor maximum = reduce(CUDNN_REDUCE_TENSOR_MAX, score, rows());
  const Tensor shifted = pointwise(CUDNN_POINTWISE_SUB, score, maximum, scores());
  const Tensor exponential = pointwise(CUDNN_POINTWISE_EXP, shifted, std::nullopt, scores());
  const Tensor sum = reduce(CUDNN_REDUCE_TENSOR_ADD, exponential, rows());
  const Tensor log = pointwise(CUDNN_POINTWISE_LOG, sum, std::nullopt, rows());
  pointwise(CUDNN_POINTWISE_ADD, maximum, log, log_sums());
  const Tensor probability = pointwise(CUDNN_POINTWISE_DIV, exponential, sum, scores(half_));
  const Tensor values =
      rows_of(T::values, problem_.sizes.kv_heads, k_, problem_.key_stride, problem_.key_sequence_stride);
  multiply(probability, values, dense(T::out));
}

void AttentionGraph::backward() {
  const std::int64_t gradient_stride = problem_.queries_gradient_stride;
  const Tensor queries = dense(T::queries);
  const Tensor keys = keys_transposed(T::keys);
  const Tensor out_gradient = dense(T::out_gradient);
  const Tensor scale = by_value(T::scale, CUDNN_DATA_FLOAT);
  const auto gradient_of_keys = [&](T id) {
    return rows_of(id, problem_.sizes.kv_heads, k_, problem_.keys_gradient_stride,
                   problem_.keys_gradient_sequence_stride);
  };

  // Sums of out x out_gradient per row.
  const Tensor product =
      pointwise(CUDNN_POINTWISE_MUL, out_gradient, dense(T::out), between(CUDNN_DATA_FLOAT, {b_, h_, q_, d_}));
  const Tensor sum = reduce(CUDNN_REDUCE_TENSOR_ADD, product, rows());
  const Tensor dot_products =
      pointwise(CUDNN_POINTWISE_MUL, sum, by_value(T::one, CUDNN_DATA_FLOAT),
                given(T::dot_products, CUDNN_DATA_FLOAT, {b_, h_, q_, 1}, packed({b_, h_, q_, 1})));

  // The probabilities again.
  Tensor score = multiply(queries, keys, scores());
  score = pointwise(CUDNN_POINTWISE_MUL, score, scale, scores());
  score = pointwise(CUDNN_POINTWISE_SUB, score, log_sums(), scores());
  score = masked(score);
  const Tensor probability = pointwise(CUDNN_POINTWISE_EXP, score, std::nullopt, scores());

  // Values: the transposed probabilities times the gradient of the output, summed over the heads of a group.
  const Dimensions across = transposed({b_, h_, q_, k_});
  const auto across_scores = [&] { return between(half_, across, {h_ * q_ * k_, q_ * k_, 1, k_}); };
  multiply_by_group(reshape(probability, across_scores()), out_gradient, gradient_of_keys(T::values_gradient));

  // Scores.
  Tensor gradient = multiply(out_gradient, keys_transposed(T::values), scores());
  gradient = pointwise(CUDNN_POINTWISE_SUB, gradient, dot_products, scores());
  gradient = pointwise(CUDNN_POINTWISE_MUL, gradient, probability, scores());
  gradient = pointwise(CUDNN_POINTWISE_MUL, gradient, scale, scores());

  multiply_by_group(reshape(gradient, across_scores()), queries, gradient_of_keys(T::keys_gradient));

  const Tensor rows_of_keys = reshape(keys, between(CUDNN_DATA_FLOAT, {b_, problem_.sizes.kv_heads, k_, d_},
                                                    {problem_.key_sequence_stride, d_, problem_.key_stride, 1}));
  const Tensor in_float = multiply(
      gradient, rows_of_keys, given(T::queries_float, CUDNN_DATA_FLOAT, {b_, h_, q_, d_}, packed({b_, h_, q_, d_})));
  pointwise(CUDNN_POINTWISE_IDENTITY, in_float, std::nullopt,
            rows_of(T::queries_gradient, h_, q_, gradient_stride, q_ * gradient_stride));
}

CudnnPlan AttentionGraph::plan(const CudnnTarget& target) {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.get());
  CudnnDescriptor graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(operations.size()),
            operations.data());
  std::optional<CudnnDescriptor> properties;
  if (target.handle != nullptr) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  } else {
    properties.emplace(make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
    properties->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                    static_cast<std::int64_t>(target.properties.size()), target.properties.data());
    properties->finalize();
  }
  graph.finalize();

  std::string why = "cuDNN has no engine for this graph";
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    CudnnDescriptor engines = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    engines.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph.get());
    engines.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    if (properties) engines.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, properties->get());
    std::vector<CudnnDescriptor> configurations;
    std::vector<cudnnBackendDescriptor_t> found;
    try {
      engines.finalize();
      const std::int64_t count = engines.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
      for (std::int64_t i = 0; i < count; ++i) {
        configurations.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
        found.push_back(configurations.back().get());
      }
      if (count > 0) {
        found.resize(
            to_size(engines.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, found.data())));
      }
    } catch (const DeviceError& error) {
      why = error.what();
      continue;
    }
    for (const cudnnBackendDescriptor_t configuration : found) {
      try {
        CudnnDescriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        if (properties) {
          plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, properties->get());
        } else {
          plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
        }
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, configuration);
        plan.finalize();
        std::int64_t workspace = 0;
        plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
        CudnnPlan built{.plan = std::move(plan), .workspace_bytes = workspace};
        for (auto* const parts : {&tensors_, &settings_, &operations_, &configurations}) {
          for (CudnnDescriptor& part : *parts) built.parts.push_back(std::move(part));
        }
        built.parts.push_back(std::move(graph));
        return built;
      } catch (const DeviceError& error) {
        why = error.what();
      }
    }
  }
  throw DeviceError(why);
}

}  // namespace

void check_cudnn(const Cudnn& library, cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> last{};
  library.last_error(last.data(), last.size());
  std::string text(last.data());
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (char& c : text) c = c == '\n' ? ' ' : c;
  throw DeviceError(fmt::format("{}: {}{}{}", call, library.status_text(status), text.empty() ? "" : ": ", text));
}

CudnnDescriptor::CudnnDescriptor(const Cudnn& library, cudnnBackendDescriptorType_t type) : library_(&library) {
  check_cudnn(library, library.create_descriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) library_->destroy_descriptor(descriptor_);
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                          const void* values) {
  check_cudnn(*library_, library_->set_attribute(descriptor_, name, type, count, values), "cudnnBackendSetAttribute");
}

void CudnnDescriptor::finalize() { check_cudnn(*library_, library_->finalize(descriptor_), "cudnnBackendFinalize"); }

std::int64_t CudnnDescriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                  std::int64_t count, void* values) const {
  std::int64_t number = 0;
  check_cudnn(*library_, library_->get_attribute(descriptor_, name, type, count, &number, values),
              "cudnnBackendGetAttribute");
  return number;
}

CudnnPlan plan_attention_forward(const Cudnn& library, const CudnnTarget& target, const AttentionProblem& problem) {
  AttentionGraph graph(library, problem);
  graph.forward();
  return graph.plan(target);
}

CudnnPlan plan_attention_backward(const Cudnn& library, const CudnnTarget& target, const AttentionProblem& problem) {
  AttentionGraph graph(library, problem);
  graph.backward();
  return graph.plan(target);
}

}  // namespace sluice::exec
