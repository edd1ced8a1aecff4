#include "tests/support/fake_cudnn.h"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "kernels/emulation/device.h"
#include "model/to_size.h"

namespace sluice::test {
namespace {

constexpr auto kFailed = static_cast<cudnnStatus_t>(2000);  // CUDNN_STATUS_BAD_PARAM
using Coordinates = std::array<std::int64_t, 4>;

std::size_t size_of_attribute(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
  }
}

struct FakeDescriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, std::vector<std::byte>> attributes;
  std::map<int, std::vector<std::shared_ptr<FakeDescriptor>>> parts;  // attributes that are descriptors

  template <class T>
  std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const std::vector<std::byte>& bytes = attributes.at(name);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  template <class T>
  T one(cudnnBackendAttributeName_t name) const {
    const std::vector<T> values = all<T>(name);
    if (values.size() != 1) throw std::logic_error("expected one value");
    return values[0];
  }
  bool flag(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  const FakeDescriptor* part(cudnnBackendAttributeName_t name) const {
    const auto found = parts.find(name);
    return found == parts.end() ? nullptr : found->second.at(0).get();
  }
};

std::map<void*, std::shared_ptr<FakeDescriptor>>& living() {
  static std::map<void*, std::shared_ptr<FakeDescriptor>> all;
  return all;
}

struct FakeHandle {
  Stream* stream = nullptr;
};

// A tensor of a graph in double, in the order of its coordinates.
struct Numbers {
  Coordinates sizes{};
  std::vector<double> at;

  explicit Numbers(const Coordinates& dimensions)
      : sizes(dimensions), at(to_size(sizes[0] * sizes[1] * sizes[2] * sizes[3])) {}
  // A dimension of 1 is broadcast; a dimension that divides that of `of` is one of groups.
  double& operator()(const Coordinates& of, const Coordinates& range) {
    std::int64_t index = 0;
    for (std::size_t i = 0; i < 4; ++i) index = index * sizes[i] + of[i] * sizes[i] / range[i];
    return at[to_size(index)];
  }
};

template <class Visit>
void for_each_coordinate(const Coordinates& sizes, const Visit& visit) {
  Coordinates at{};
  for (at[0] = 0; at[0] < sizes[0]; ++at[0]) {
    for (at[1] = 0; at[1] < sizes[1]; ++at[1]) {
      for (at[2] = 0; at[2] < sizes[2]; ++at[2]) {
        for (at[3] = 0; at[3] < sizes[3]; ++at[3]) visit(at);
      }
    }
  }
}

Coordinates four(const FakeDescriptor& tensor, cudnnBackendAttributeName_t name) {
  const auto values = tensor.all<std::int64_t>(name);
  Coordinates out{};
  std::copy_n(values.begin(), 4, out.begin());
  return out;
}

std::int64_t offset_of(const Coordinates& at, const Coordinates& strides) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < 4; ++i) offset += at[i] * strides[i];
  return offset;
}

double load_number(const std::byte* data, cudnnDataType_t type, std::int64_t i) {
  const auto read = [&]<class T>(T number) {
    std::memcpy(&number, data + i * std::int64_t{sizeof(T)}, sizeof(T));
    return static_cast<double>(number);
  };
  switch (type) {
    case CUDNN_DATA_HALF: return read(Eigen::half());
    case CUDNN_DATA_BFLOAT16: return read(Eigen::bfloat16());
    case CUDNN_DATA_INT32: return read(std::int32_t{});
    default: return read(float{});
  }
}

void store_number(std::byte* data, cudnnDataType_t type, std::int64_t i, double value) {
  const auto write = [&]<class T>(const T& number) {
    std::memcpy(data + i * std::int64_t{sizeof(T)}, &number, sizeof(T));
  };
  switch (type) {
    case CUDNN_DATA_HALF: return write(Eigen::half(static_cast<float>(value)));
    case CUDNN_DATA_BFLOAT16: return write(Eigen::bfloat16(static_cast<float>(value)));
    default: return write(static_cast<float>(value));
  }
}

// Runs the operations of a graph.
class Interpreter {
 public:
  explicit Interpreter(std::map<std::int64_t, std::byte*> memory) : memory_(std::move(memory)) {}

  void run(const FakeDescriptor& operation) {
    switch (operation.type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return pointwise(operation);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return reduce(operation);
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return multiply(operation);
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return reshape(operation);
      default: throw std::logic_error("unknown operation");
    }
  }

 private:
  Numbers& load(const FakeDescriptor* tensor) {
    const auto known = numbers_.find(tensor);
    if (known != numbers_.end()) return known->second;
    if (tensor->flag(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) throw std::logic_error("read before it is written");
    const std::byte* const data = memory_.at(tensor->one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
    const Coordinates strides = four(*tensor, CUDNN_ATTR_TENSOR_STRIDES);
    Numbers out(four(*tensor, CUDNN_ATTR_TENSOR_DIMENSIONS));
    for_each_coordinate(out.sizes, [&](const Coordinates& at) {
      out(at, out.sizes) =
          load_number(data, tensor->one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE), offset_of(at, strides));
    });
    return numbers_.emplace(tensor, std::move(out)).first->second;
  }
  void store(const FakeDescriptor* tensor, Numbers values) {
    if (!tensor->flag(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {
      std::byte* const data = memory_.at(tensor->one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
      const Coordinates strides = four(*tensor, CUDNN_ATTR_TENSOR_STRIDES);
      for_each_coordinate(values.sizes, [&](const Coordinates& at) {
        store_number(data, tensor->one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE), offset_of(at, strides),
                     values(at, values.sizes));
      });
    }
    if (!numbers_.emplace(tensor, std::move(values)).second) throw std::logic_error("written twice");
  }

  void pointwise(const FakeDescriptor& operation) {
    const FakeDescriptor& how = *operation.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    Numbers& x = load(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    const FakeDescriptor* const of_b = operation.part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const FakeDescriptor* const of_t = operation.part(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    Numbers* const b = of_b == nullptr ? nullptr : &load(of_b);
    Numbers* const t = of_t == nullptr ? nullptr : &load(of_t);
    Numbers y(four(*operation.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC), CUDNN_ATTR_TENSOR_DIMENSIONS));
    for_each_coordinate(y.sizes, [&](const Coordinates& at) {
      const double of_x = x(at, y.sizes);
      const auto second = [&] { return (*b)(at, y.sizes); };
      double& out = y(at, y.sizes);
      switch (mode) {
        case CUDNN_POINTWISE_ADD: out = of_x + second(); break;
        case CUDNN_POINTWISE_SUB: out = of_x - second(); break;
        case CUDNN_POINTWISE_MUL: out = of_x * second(); break;
        case CUDNN_POINTWISE_DIV: out = of_x / second(); break;
        case CUDNN_POINTWISE_EXP: out = std::exp(of_x); break;
        case CUDNN_POINTWISE_LOG: out = std::log(of_x); break;
        case CUDNN_POINTWISE_IDENTITY: out = of_x; break;
        case CUDNN_POINTWISE_CMP_GE: out = of_x >= second() ? 1 : 0; break;
        case CUDNN_POINTWISE_GEN_INDEX:
          out = static_cast<double>(at[to_size(how.one<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS))]);
          break;
        case CUDNN_POINTWISE_BINARY_SELECT: out = (*t)(at, y.sizes) != 0 ? of_x : second(); break;
      }
    });
    store(operation.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC), std::move(y));
  }

  void reduce(const FakeDescriptor& operation) {
    const auto how =
        operation.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
    Numbers& x = load(operation.part(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    Numbers y(four(*operation.part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC), CUDNN_ATTR_TENSOR_DIMENSIONS));
    const bool adds = how == CUDNN_REDUCE_TENSOR_ADD;
    if (!adds) std::fill(y.at.begin(), y.at.end(), -INFINITY);
    for_each_coordinate(x.sizes, [&](const Coordinates& at) {
      double& out = y(at, x.sizes);
      out = adds ? out + x(at, x.sizes) : std::max(out, x(at, x.sizes));
    });
    store(operation.part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC), std::move(y));
  }

  void multiply(const FakeDescriptor& operation) {
    Numbers& a = load(operation.part(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    Numbers& b = load(operation.part(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    Numbers c(four(*operation.part(CUDNN_ATTR_OPERATION_MATMUL_CDESC), CUDNN_ATTR_TENSOR_DIMENSIONS));
    const std::int64_t inner = a.sizes[3];
    if (b.sizes[2] != inner) throw std::logic_error("inner sizes differ");
    for_each_coordinate(c.sizes, [&](const Coordinates& at) {
      double sum = 0;
      for (std::int64_t i = 0; i < inner; ++i) {
        sum += a({at[0], at[1], at[2], i}, {c.sizes[0], c.sizes[1], c.sizes[2], inner}) *
               b({at[0], at[1], i, at[3]}, {c.sizes[0], c.sizes[1], inner, c.sizes[3]});
      }
      c(at, c.sizes) = sum;
    });
    store(operation.part(CUDNN_ATTR_OPERATION_MATMUL_CDESC), std::move(c));
  }

  // The same elements at the same offsets.
  void reshape(const FakeDescriptor& operation) {
    const FakeDescriptor* const from = operation.part(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    const FakeDescriptor* const to = operation.part(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    Numbers& x = load(from);
    std::map<std::int64_t, double> memory;
    for_each_coordinate(x.sizes, [&](const Coordinates& at) {
      memory[offset_of(at, four(*from, CUDNN_ATTR_TENSOR_STRIDES))] = x(at, x.sizes);
    });
    Numbers y(four(*to, CUDNN_ATTR_TENSOR_DIMENSIONS));
    for_each_coordinate(y.sizes, [&](const Coordinates& at) {
      y(at, y.sizes) = memory.at(offset_of(at, four(*to, CUDNN_ATTR_TENSOR_STRIDES)));
    });
    store(to, std::move(y));
  }

  std::map<std::int64_t, std::byte*> memory_;
  std::map<const FakeDescriptor*, Numbers> numbers_;
};

bool fails_now() { return ++fake_cudnn_state().calls == fake_cudnn_state().fails_at; }

cudnnStatus_t create_handle(cudnnHandle_t* handle) {
  if (fails_now()) return kFailed;
  ++fake_cudnn_state().handles;
  *handle = reinterpret_cast<cudnnHandle_t>(new FakeHandle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t destroy_handle(cudnnHandle_t handle) {
  --fake_cudnn_state().handles;
  delete reinterpret_cast<FakeHandle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_fake_stream(cudnnHandle_t handle, void* stream) {
  if (fails_now()) return kFailed;
  reinterpret_cast<FakeHandle*>(handle)->stream = static_cast<Stream*>(stream);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* out) {
  if (fails_now()) return kFailed;
  ++fake_cudnn_state().descriptors;
  auto made = std::make_shared<FakeDescriptor>();
  made->type = type;
  *out = made.get();
  living()[*out] = std::move(made);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t descriptor) {
  --fake_cudnn_state().descriptors;
  if (living().erase(descriptor) != 1) throw std::logic_error("destroyed twice");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
  FakeDescriptor& of = *living().at(descriptor);
  if (fails_now() || of.finalized) return kFailed;
  for (const auto& [name, parts] : of.parts) {
    for (const auto& part : parts) {
      if (!part->finalized) return kFailed;
    }
  }
  of.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  FakeDescriptor& of = *living().at(descriptor);
  if (fails_now() || of.finalized || count < 1 || values == nullptr) return kFailed;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto& parts = of.parts[name];
    for (std::int64_t i = 0; i < count; ++i) {
      parts.push_back(living().at(static_cast<const cudnnBackendDescriptor_t*>(values)[i]));
    }
    return CUDNN_STATUS_SUCCESS;
  }
  auto& bytes = of.attributes[name];
  if (!bytes.empty()) return kFailed;
  const auto* const first = static_cast<const std::byte*>(values);
  bytes.assign(first, first + size_of_attribute(type) * to_size(count));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t, std::int64_t asked, std::int64_t* count, void* values) {
  FakeDescriptor& of = *living().at(descriptor);
  if (fails_now() || !of.finalized) return kFailed;
  *count = 1;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<std::int64_t*>(values) = fake_cudnn_state().workspace_bytes;
  } else if (asked > 0) {
    FakeDescriptor& configuration = *living().at(*static_cast<cudnnBackendDescriptor_t*>(values));
    configuration.parts = of.parts;
    configuration.finalized = true;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  const FakeDescriptor& bound = *living().at(pack);
  if (fails_now() || !living().at(plan)->finalized || !bound.finalized) return kFailed;
  ++fake_cudnn_state().executed;
  const auto ids = bound.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = bound.all<std::byte*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const std::shared_ptr<FakeDescriptor> graph = living()
                                                    .at(plan)
                                                    ->parts.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                                                    .at(0)
                                                    ->parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)[0];
  const auto& operations = graph->parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  std::set<std::int64_t> by_value;
  for (const auto& operation : operations) {
    for (const auto& [name, parts] : operation->parts) {
      for (const auto& part : parts) {
        if (part->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && part->flag(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {
          by_value.insert(part->one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
        }
      }
    }
  }
  // Values are read now, tensors when the stream arrives here.
  auto values = std::make_shared<std::map<std::int64_t, std::array<std::byte, 4>>>();
  std::map<std::int64_t, std::byte*> memory;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    memory[ids[i]] = pointers[i];
    if (!by_value.contains(ids[i])) continue;
    std::array<std::byte, 4>& value = (*values)[ids[i]];
    std::memcpy(value.data(), pointers[i], value.size());
    memory[ids[i]] = value.data();
  }
  auto* const workspace = bound.one<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const std::int64_t bytes = fake_cudnn_state().workspace_bytes;
  kernels::emulation::put(*reinterpret_cast<FakeHandle*>(handle)->stream, [=] {
    std::fill_n(workspace, bytes, std::byte{0xff});  // as a plan may
    Interpreter interpreter(memory);
    for (const auto& operation : graph->parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) interpreter.run(*operation);
    (void)values;
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

FakeCudnnState& fake_cudnn_state() {
  static FakeCudnnState state;
  return state;
}

const Cudnn& fake_cudnn() {
  static const Cudnn table{.get_version = [] { return std::size_t{91600}; },
                           .create = create_handle,
                           .destroy = destroy_handle,
                           .set_stream = set_fake_stream,
                           .status_text = [](cudnnStatus_t) { return "CUDNN_STATUS_BAD_PARAM"; },
                           .last_error = [](char* text, std::size_t size) { std::strncpy(text, "fake\n", size); },
                           .create_descriptor = create_descriptor,
                           .destroy_descriptor = destroy_descriptor,
                           .finalize = finalize,
                           .set_attribute = set_attribute,
                           .get_attribute = get_attribute,
                           .execute = execute,
                           .version = 91600,
                           .text = "9.16.0",
                           .path = "fake"};
  return table;
}

}  // namespace sluice::test
