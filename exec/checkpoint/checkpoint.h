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

// A checkpoint is one file in safetensors format: 8 bytes of length (little-endian), a JSON header that gives each
// tensor's dtype (F32 or F64), shape and place, and the tensors, row-major and without gaps (Hugging Face's
// safetensors, format of version 0.3 and later). Tensors have the global names of Parameter, with a suffix for what
// goes with a weight (".exp_avg", ...), and are whole, so that a run may resume with another cut into stages, tensor
// ranks and replicas. A parameter of one column is a vector. The header's __metadata__ has the keys "schema",
// "model" and "step", and what else the writer was given.
inline constexpr std::string_view kCheckpointSchema = "sluice.checkpoint/1";

using CheckpointMetadata = std::map<std::string, std::string>;

// Puts the tensors of a checkpoint together from the blocks that workers hold, in any order. Keeps one copy of them.
class CheckpointWriter {
 public:
  // `step`: how many optimizer steps the weights have behind them. `extra` must not have the keys named above.
  CheckpointWriter(const std::string& model, std::int64_t step, CheckpointMetadata extra = {});
  ~CheckpointWriter();

  // Copies a block of the tensor `block.name + suffix`: rows x columns elements from `data` on, without gaps. A block
  // may come again from another worker, if it holds the same bits. By any thread. Throws std::logic_error naming the
  // tensor for a block that overlaps another, differs from itself, or disagrees about the tensor's shape or precision.
  void add(const Parameter& block, std::string_view suffix, Precision precision, const std::byte* data);

  // Writes the file, whole or not at all. Throws std::logic_error naming a tensor that is not covered, InputError
  // naming `path` if it cannot be written.
  void write(const std::string& path) const;

 private:
  struct Tensor;

  CheckpointMetadata metadata_;
  std::mutex mutex_;  // of the tensors
  std::map<std::string, Tensor> tensors_;
};

// Reads a checkpoint, or blocks of it, from a mapped file.
class CheckpointReader {
 public:
  // Throws InputError naming the file, and the tensor where there is one, if it cannot be read, is cut short, or its
  // header breaks a rule of the format or of checkpoints.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& path() const { return path_; }
  const std::string& model() const { return metadata_.at("model"); }
  std::int64_t step() const { return step_; }
  const CheckpointMetadata& metadata() const { return metadata_; }
  std::vector<std::string> names() const;  // of the tensors, sorted
  bool has(const std::string& name) const { return tensors_.contains(name); }

  // Fills a block of `block.name + suffix` at `data`, rows x columns elements. Throws InputError naming file and tensor
  // if it is missing, or of another shape or precision.
  void read(const Parameter& block, std::string_view suffix, Precision precision, std::byte* data) const;

 private:
  struct Tensor {
    Precision precision = Precision::float32;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  // bytes behind the header
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
