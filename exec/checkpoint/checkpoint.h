#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/stage.h"

namespace sluice::exec {

// A checkpoint is a file in the safetensors format (Hugging Face, 0.3 and later): 8 bytes of header length
// (little-endian), a JSON header with dtype (F32 or F64), shape and offsets of each tensor, and the tensors, row-major
// and contiguous. Tensors have the global names of Parameter, with a suffix for optimizer states (".exp_avg", ...), and
// are stored whole, so that a run can resume with other pipeline, tensor and data parallelism. A parameter with one
// column is a vector. The __metadata__ of the header has the keys "schema", "model" and "step", and those passed by the
// writer.
inline constexpr std::string_view kCheckpointSchema = "sluice.checkpoint/1";

using CheckpointMetadata = std::map<std::string, std::string>;

// Assembles the tensors of a checkpoint from the blocks of the workers, in any order. Keeps one copy of them.
class CheckpointWriter {
 public:
  // `step`: optimizer steps contained in the weights. `extra` must not contain the keys named above.
  CheckpointWriter(const std::string& model, std::int64_t step, CheckpointMetadata extra = {});
  ~CheckpointWriter();

  // Copies a block of the tensor `block.name + suffix`: [rows, columns], contiguous. The same block may be added by
  // several workers with the same bits. Thread-safe. Throws std::logic_error naming the tensor for a block that
  // overlaps another one, differs from an equal one, or disagrees about shape or precision of the tensor.
  void add(const Parameter& block, std::string_view suffix, Precision precision, const std::byte* data);

  // Writes the file atomically. Throws std::logic_error naming a tensor that is incomplete, InputError naming `path` if
  // it cannot be written.
  void write(const std::string& path) const;

 private:
  struct Tensor;

  CheckpointMetadata metadata_;
  std::mutex mutex_;  // guards the tensors
  std::map<std::string, Tensor> tensors_;
};

// Reads blocks of tensors from a memory-mapped checkpoint.
class CheckpointReader {
 public:
  // Throws InputError naming the file, and the tensor if there is one, if it cannot be read, is truncated, or violates
  // the format.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& path() const { return path_; }
  const std::string& model() const { return metadata_.at("model"); }
  std::int64_t step() const { return step_; }
  const CheckpointMetadata& metadata() const { return metadata_; }
  // Returns the names of the tensors, sorted.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return tensors_.contains(name); }

  // Reads a block of `block.name + suffix` into `data`, [rows, columns]. Throws InputError naming file and tensor if
  // the tensor is missing, or has another shape or precision.
  void read(const Parameter& block, std::string_view suffix, Precision precision, std::byte* data) const;

 private:
  struct Tensor {
    Precision precision = Precision::float32;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  // bytes after the header
    std::int64_t end = 0;
  };

  void map();
  void read_header();
  void check_places(std::int64_t bytes) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  const std::byte* file_ = nullptr;
  std::int64_t file_bytes_ = 0;
  std::int64_t first_byte_ = 0;  // of the tensors
  CheckpointMetadata metadata_;
  std::int64_t step_ = 0;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace sluice::exec
