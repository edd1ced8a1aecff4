#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "exec/device/cublas.h"
#include "exec/device/cudnn_attention.h"
#include "exec/device/green_contexts.h"
#include "kernels/cuda/check.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

// Recommended by cuBLAS for Hopper; enough for earlier GPUs.
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

cudaDataType type_of(Element element) {
  switch (element) {
    case Element::float16: return CUDA_R_16F;
    case Element::bfloat16: return CUDA_R_16BF;
    case Element::float32: return CUDA_R_32F;
  }
  return CUDA_R_32F;
}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  SLUICE_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, ordinal));
  return value;
}

class CudaDevice;

class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaStream() override;
  void* native() const override { return stream_; }

 private:
  CudaDevice& device_;
  cudaStream_t stream_;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  void* native() const override { return event_; }

 private:
  cudaEvent_t event_;
};

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }
cudaEvent_t native(const Event& event) { return static_cast<cudaEvent_t>(event.native()); }

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::string name, std::optional<GreenPartition> partition)
      : ordinal_(ordinal), name_(std::move(name)), partition_(std::move(partition)) {
    use();
    capability_ = 10 * attribute(cudaDevAttrComputeCapabilityMajor, ordinal) +
                  attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
    multiprocessors_ = partition_ ? partition_->multiprocessors() : attribute(cudaDevAttrMultiProcessorCount, ordinal);
    int least_priority = 0;
    check(cudaDeviceGetStreamPriorityRange(&least_priority, &high_priority_), "cudaDeviceGetStreamPriorityRange");
    try {
      make_products();
    } catch (...) {
      close();
      throw;
    }
    attention_ = make_cudnn_attention(cudnn, {name_, capability_});
  }
  ~CudaDevice() override { close(); }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return name_; }
  int ordinal() const override { return ordinal_; }
  int multiprocessors() const override { return multiprocessors_; }
  int compute_capability() const override { return capability_; }
  bool has_bfloat16() const override { return capability_ >= 80; }

  bool can_access(const Device& other) override {
    if (other.ordinal() == ordinal_) return true;
    const auto known = peers_.find(other.ordinal());
    if (known != peers_.end()) return known->second;
    use();
    const cudaError_t error = cudaDeviceEnablePeerAccess(other.ordinal(), 0);
    if (error != cudaSuccess) (void)cudaGetLastError();  // or the next launch would find it
    return peers_[other.ordinal()] = error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
  }
  void reserve_multiprocessors(int count) override {
    const int rest = multiprocessors_ - std::min(count, multiprocessors_ / 2);
    check(cublas().set_multiprocessors(blas_, rest), "cublasSetSmCountTarget");
  }

  void make_current() override { use(); }

  std::byte* allocate(std::int64_t bytes) override {
    use();
    void* memory = nullptr;
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    const cudaError_t error = cudaMalloc(&memory, size);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw DoesNotFit(fmt::format("{:.2f} GiB on {}, of which {:.2f} GiB are free", static_cast<double>(bytes) / kGib,
                                   name_, static_cast<double>(free_bytes()) / kGib));
    }
    check(error, "cudaMalloc");
    // Not on the default stream, which the other streams would not wait for.
    check(cudaMemsetAsync(memory, 0, size, cudaStreamPerThread), "cudaMemsetAsync");
    check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) noexcept override {
    cudaSetDevice(ordinal_);
    cudaFree(memory);
    (void)cudaGetLastError();
  }
  std::byte* allocate_host(std::int64_t bytes) override {
    use();
    void* memory = nullptr;
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    const cudaError_t error = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw DoesNotFit(fmt::format("{:.2f} GiB of pinned memory of the host", static_cast<double>(bytes) / kGib));
    }
    check(error, "cudaHostAlloc");
    std::memset(memory, 0, size);
    return static_cast<std::byte*>(memory);
  }
  void release_host(std::byte* memory) noexcept override {
    cudaFreeHost(memory);
    (void)cudaGetLastError();
  }
  std::int64_t free_bytes() const override {
    use();
    std::size_t free = 0;
    std::size_t all = 0;
    check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
    return static_cast<std::int64_t>(free);
  }

  std::unique_ptr<Stream> make_stream(StreamPriority priority) override {
    use();
    const int number = priority == StreamPriority::high ? high_priority_ : 0;
    cudaStream_t stream = nullptr;
    if (partition_) {
      stream = partition_->make_stream(number);
    } else {
      check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, number), "cudaStreamCreateWithPriority");
    }
    return std::make_unique<CudaStream>(*this, stream);
  }
  std::unique_ptr<Event> make_event() override {
    use();
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
    return std::make_unique<CudaEvent>(event);
  }

  void record(Event& event, Stream& stream) override {
    check(cudaEventRecord(native(event), native(stream)), "cudaEventRecord");
  }
  void wait(Stream& stream, Event& event) override {
    check(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent");
  }
  bool done(Event& event) override {
    use();  // the calling thread may not have a current device
    const cudaError_t error = cudaEventQuery(native(event));
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // or the next launch would find it
      return false;
    }
    check(error, "cudaEventQuery");
    return true;
  }
  void synchronize(Stream& stream) override {
    use();
    check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
  }
  void synchronize(Event& event) override {
    use();
    check(cudaEventSynchronize(native(event)), "cudaEventSynchronize");
  }
  std::int64_t nanoseconds_between(Event& first, Event& second) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, native(first), native(second)), "cudaEventElapsedTime");
    return std::llround(static_cast<double>(milliseconds) * 1e6);
  }

  void copy(void* to, const void* from, std::int64_t bytes, Stream& stream) override {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, native(stream)),
          "cudaMemcpyAsync");
    stream.launched();
  }
  void zero(void* memory, std::int64_t bytes, Stream& stream) override {
    check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), native(stream)), "cudaMemsetAsync");
    stream.launched();
  }

  void begin_range(const char* name) override { nvtxRangePushA(name); }
  void end_range() override { nvtxRangePop(); }
  void multiply(const GemmCall& product, Stream& stream) override {
    if (product.in == Element::float32) throw std::logic_error("GEMM inputs have 16 bits");
    const ColumnMajorGemm how = column_major(product);
    if (how.m == 0 || how.n == 0 || how.batch == 0) return;
    give_workspace_to(stream);
    const Cublas& blas = cublas();
    const cudaDataType in = type_of(product.in);
    const cudaDataType out = type_of(product.out);
    if (how.batch == 1) {
      check(blas.gemm(blas_, how.first_operation, how.second_operation, how.m, how.n, how.k, &product.alpha, product.b,
                      in, how.first_stride, product.a, in, how.second_stride, &product.beta, product.c, out,
                      how.out_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            "cublasGemmEx", how);
    } else {
      check(blas.gemm_batched(blas_, how.first_operation, how.second_operation, how.m, how.n, how.k, &product.alpha,
                              product.b, in, how.first_stride, product.b_step, product.a, in, how.second_stride,
                              product.a_step, &product.beta, product.c, out, how.out_stride, product.c_step, how.batch,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            "cublasGemmStridedBatchedEx", how);
    }
    stream.launched();
  }

  AttentionLibrary* attention_library() override { return attention_.get(); }

  // Called before the stream is destroyed, while its work may still run.
  void forget(const Stream& stream) {
    if (multiplies_on_ != &stream) return;
    cudaEventRecord(workspace_free_, native(stream));
    multiplies_on_ = nullptr;
  }

 private:
  void use() const { check(cudaSetDevice(ordinal_), "cudaSetDevice"); }

  void check(cudaError_t error, const char* call) const {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();
    throw DeviceError(
        fmt::format("{} on {}: {} ({})", call, name_, cudaGetErrorString(error), cudaGetErrorName(error)));
  }
  void check(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw DeviceError(fmt::format("{} on {}: {}", call, name_, cublas().status_text(status)));
  }
  void check(cublasStatus_t status, const char* call, const ColumnMajorGemm& how) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw DeviceError(fmt::format("{} of {} x {} x {} (batch of {}) on {}: {}", call, how.n, how.k, how.m, how.batch,
                                  name_, cublas().status_text(status)));
  }

  void make_products() {
    const Cublas& blas = cublas();
    check(blas.create(&blas_), "cublasCreate");
    // Keep partial sums in float32 until the last one is added.
    check(blas.set_math_mode(
              blas_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
          "cublasSetMathMode");
    if (partition_) check(blas.set_multiprocessors(blas_, multiprocessors_), "cublasSetSmCountTarget");
    workspace_ = allocate(kWorkspaceBytes);
    check(cudaEventCreateWithFlags(&workspace_free_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }

  // GEMMs of one stream leave the workspace before those of another one get it.
  void give_workspace_to(const Stream& stream) {
    if (multiplies_on_ == &stream) return;
    if (multiplies_on_ != nullptr) check(cudaEventRecord(workspace_free_, native(*multiplies_on_)), "cudaEventRecord");
    check(cudaStreamWaitEvent(native(stream), workspace_free_, 0), "cudaStreamWaitEvent");
    const Cublas& blas = cublas();
    check(blas.set_stream(blas_, native(stream)), "cublasSetStream");
    // Setting the stream resets the workspace.
    check(blas.set_workspace(blas_, workspace_, static_cast<std::size_t>(kWorkspaceBytes)), "cublasSetWorkspace");
    multiplies_on_ = &stream;
  }

  // Ignores errors.
  void close() noexcept {
    cudaSetDevice(ordinal_);
    attention_.reset();
    if (blas_ != nullptr) cublas().destroy(blas_);
    if (workspace_free_ != nullptr) cudaEventDestroy(workspace_free_);
    if (workspace_ != nullptr) cudaFree(workspace_);
  }

  int ordinal_;
  std::string name_;
  std::optional<GreenPartition> partition_;
  int multiprocessors_ = 0;
  int capability_ = 0;
  int high_priority_ = 0;
  std::map<int, bool> peers_;  // by ordinal: its memory can be accessed
  cublasHandle_t blas_ = nullptr;
  std::byte* workspace_ = nullptr;
  cudaEvent_t workspace_free_ = nullptr;
  const Stream* multiplies_on_ = nullptr;
  std::unique_ptr<AttentionLibrary> attention_;
};

CudaStream::~CudaStream() {
  device_.forget(*this);
  cudaStreamDestroy(stream_);
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(int ordinal, std::string name, std::optional<GreenPartition> partition) {
  return std::make_unique<CudaDevice>(ordinal, std::move(name), std::move(partition));
}

}  // namespace sluice::exec
