#include "exec/device/cudnn_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "exec/device/cudnn_plans.h"

namespace sluice::exec {
namespace {

constexpr std::int64_t kWorkspaceAlignment = 256;

std::string problem_text(const AttentionProblem& problem, bool backward) {
  const AttentionSizes& of = problem.sizes;
  return fmt::format("{} pass of attention of {} x {} tokens after a prefix of {}, {} heads of {} over {}, {}",
                     backward ? "backward" : "forward", of.sequences, of.tokens, of.context, of.heads, of.head_dim,
                     of.kv_heads, problem.element == Element::float16 ? "float16" : "bfloat16");
}

class CudnnAttention final : public AttentionLibrary {
 public:
  CudnnAttention(std::function<const Cudnn&()> load, CudnnDevice device)
      : load_(std::move(load)), device_(std::move(device)) {}
  ~CudnnAttention() override {
    plans_.clear();
    if (handle_ != nullptr) library_->destroy(handle_);
  }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  bool forward(const AttentionProblem& problem, const LibraryForward& call, Stream& stream) override {
    Pointers pointers;
    pointers.add(AttentionTensor::queries, call.queries);
    pointers.add(AttentionTensor::keys, call.keys);
    pointers.add(AttentionTensor::values, call.values);
    pointers.add(AttentionTensor::out, call.out);
    pointers.add(AttentionTensor::log_sums, call.log_sums);
    if (!run({problem, false}, pointers, call.workspace, call.workspace_bytes, stream)) return false;
    ran_.insert(problem.sizes);
    return true;
  }

  bool backward(const AttentionProblem& problem, const LibraryBackward& call, Stream& stream) override {
    // Log sums of several sequences are read in the order in which a forward pass has written them.
    if (problem.sizes.sequences > 1 && !always_runs_forward(problem)) return false;
    Pointers pointers;
    pointers.add(AttentionTensor::queries, call.queries);
    pointers.add(AttentionTensor::keys, call.keys);
    pointers.add(AttentionTensor::values, call.values);
    pointers.add(AttentionTensor::out, call.out);
    pointers.add(AttentionTensor::out_gradient, call.out_gradient);
    pointers.add(AttentionTensor::log_sums, call.log_sums);
    pointers.add(AttentionTensor::queries_gradient, call.queries_gradient);
    pointers.add(AttentionTensor::keys_gradient, call.keys_gradient);
    pointers.add(AttentionTensor::values_gradient, call.values_gradient);
    const AttentionSizes& of = problem.sizes;
    std::byte* workspace = call.workspace;
    const auto take = [&](AttentionTensor id, std::int64_t bytes) {
      pointers.add(id, workspace);
      workspace += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    };
    take(AttentionTensor::dot_products, 4 * of.rows() * of.heads);
    take(AttentionTensor::queries_float, 4 * of.rows() * of.query_width());
    return run({problem, true}, pointers, workspace, call.workspace_bytes - (workspace - call.workspace), stream);
  }

  bool has_run(const AttentionSizes& sizes) const override { return ran_.contains(sizes); }
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  using Pass = std::pair<AttentionProblem, bool>;  // of the backward pass?

  // The tensors of a call, for a variant pack.
  struct Pointers {
    std::vector<std::int64_t> ids;
    std::vector<void*> data;
    void add(AttentionTensor id, const void* pointer) {
      ids.push_back(static_cast<std::int64_t>(id));
      data.push_back(const_cast<void*>(pointer));
    }
  };

  // Returns whether the forward pass of a problem has run, and has not failed.
  bool always_runs_forward(AttentionProblem problem) const {
    problem.queries_gradient_stride = 0;
    problem.keys_gradient_stride = 0;
    problem.keys_gradient_sequence_stride = 0;
    const auto found = plans_.find({problem, false});
    return has_run(problem.sizes) && found != plans_.end() && found->second.has_value();
  }

  bool run(const Pass& pass, Pointers& pointers, std::byte* workspace, std::int64_t bytes, Stream& stream) {
    const auto& [problem, backward] = pass;
    std::optional<CudnnPlan>& plan = plan_of(pass);
    if (!plan) return false;
    try {
      if (plan->workspace_bytes > bytes) {
        throw DeviceError(
            fmt::format("needs a workspace of {} bytes, of which {} are planned", plan->workspace_bytes, bytes));
      }
      execute(*plan, problem, backward, pointers, workspace, stream);
    } catch (const DeviceError& error) {
      note(fmt::format("{}: {}", problem_text(problem, backward), error.what()));
      plan.reset();
      return false;
    }
    stream.launched();
    return true;
  }

  void execute(const CudnnPlan& plan, const AttentionProblem& problem, bool backward, Pointers& pointers,
               std::byte* workspace, Stream& stream) {
    // Read when the pass is enqueued.
    float scale = 1 / std::sqrt(static_cast<float>(problem.sizes.head_dim));
    float one = 1;
    float minus_infinity = -std::numeric_limits<float>::infinity();
    auto number_of_keys = static_cast<std::int32_t>(problem.keys());
    auto number_of_queries = static_cast<std::int32_t>(problem.sizes.tokens);
    pointers.add(AttentionTensor::scale, &scale);
    if (backward) pointers.add(AttentionTensor::one, &one);
    pointers.add(AttentionTensor::minus_infinity, &minus_infinity);
    pointers.add(AttentionTensor::number_of_keys, &number_of_keys);
    pointers.add(AttentionTensor::number_of_queries, &number_of_queries);
    CudnnDescriptor pack(*library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const auto count = static_cast<std::int64_t>(pointers.ids.size());
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, pointers.ids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
    pack.finalize();
    check_cudnn(*library_, library_->set_stream(handle_, stream.native()), "cudnnSetStream");
    check_cudnn(*library_, library_->execute(handle_, plan.plan.get(), pack.get()), "cudnnBackendExecute");
  }

  // Returns the plan, built with the first call; without a value if cuDNN cannot run the pass.
  std::optional<CudnnPlan>& plan_of(const Pass& pass) {
    const auto [entry, fresh] = plans_.try_emplace(pass);
    const auto& [problem, backward] = pass;
    if (!fresh || !start()) return entry->second;
    try {
      const std::string why = why_not_cudnn(library_->version, device_.compute_capability, problem, backward);
      if (!why.empty()) throw DeviceError(why);
      const CudnnTarget target{.handle = handle_, .properties = {}};
      entry->second.emplace(backward ? plan_attention_backward(*library_, target, problem)
                                     : plan_attention_forward(*library_, target, problem));
    } catch (const DeviceError& error) {
      note(fmt::format("{}: {}", problem_text(problem, backward), error.what()));
    }
    return entry->second;
  }

  // Loads cuDNN with the first call. Returns whether it can be used.
  bool start() {
    if (started_) return handle_ != nullptr;
    started_ = true;
    try {
      library_ = &load_();
      check_cudnn(*library_, library_->create(&handle_), "cudnnCreate");
    } catch (const DeviceError& error) {
      handle_ = nullptr;
      note(error.what());
    }
    return handle_ != nullptr;
  }

  void note(const std::string& why) {
    std::string line = fmt::format("{}: {}", device_.name, why);
    if (std::find(notes_.begin(), notes_.end(), line) == notes_.end()) notes_.push_back(std::move(line));
  }

  std::function<const Cudnn&()> load_;
  CudnnDevice device_;
  bool started_ = false;
  const Cudnn* library_ = nullptr;
  cudnnHandle_t handle_ = nullptr;
  std::map<Pass, std::optional<CudnnPlan>> plans_;
  std::set<AttentionSizes> ran_;
  std::vector<std::string> notes_;
};

}  // namespace

std::unique_ptr<AttentionLibrary> make_cudnn_attention(std::function<const Cudnn&()> load, CudnnDevice device) {
  return std::make_unique<CudnnAttention>(std::move(load), std::move(device));
}

std::string why_not_cudnn(int version, int compute_capability, const AttentionProblem& problem, bool backward) {
  constexpr int kLastThatReadsBehindKeys = 91500;  // NVIDIA/cudnn-frontend masks the rest of the last tile until then
  constexpr int kKeysPerTile = 128;
  const AttentionSizes& of = problem.sizes;
  if (problem.element == Element::float32) return "expected 16-bit tensors";
  if (compute_capability < 80) return fmt::format("needs sm_80 or later, the device is sm_{}", compute_capability);
  const int most = compute_capability / 10 == 9 ? 256 : 128;
  if (of.head_dim % 8 != 0 || of.head_dim > most) {
    return fmt::format("heads of {} elements, expected a multiple of 8 up to {} on sm_{}", of.head_dim, most,
                       compute_capability);
  }
  if (of.rows() == 0 || problem.keys() == 1) return "expected more than one key";
  if (backward && version <= kLastThatReadsBehindKeys && problem.keys() % kKeysPerTile != 0) {
    return fmt::format("{} keys: until 9.15.0, cuDNN needs a multiple of {}", problem.keys(), kKeysPerTile);
  }
  return "";
}

}  // namespace sluice::exec
