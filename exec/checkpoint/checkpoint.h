#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/stage.h"
#include "model/input/files.h"

namespace sluice::exec {

// A checkpoint is a file in the safetensors format (Hugging Face, 0.3 and later): 8 bytes of header length
// (little-endian), a JSON header with dtype (F32 or F64), shape and offsets of each tensor, and the tensors, row-major
// and contiguous. Tensors have the global names of Parameter, with a suffix for optimizer states (".exp_avg", ...), and
// are stored whole, so that a run can resume with other pipeline, tensor and data parallelism. A parameter with one
// column is a vector. The __metadata__ of the header has the keys "schema", "model" and "step", those passed by the
// writer, "crc32.TENSOR" with the CRC-32 of each tensor's bytes as eight hexadecimal digits, and "header_crc32" with
// that of the header, in which these eight digits are zeros. Files of sluice.checkpoint/1, without the latter, are
// read.
inline constexpr std::string_view kCheckpointSchema = "sluice.checkpoint/2";

using CheckpointMetadata = std::map<std::string, std::string>;

// Writes a checkpoint from the blocks of the workers, in any order, straight into the file: first all blocks are
// declared, then the file is opened, then their elements are added in pieces.
class CheckpointWriter {
 public:
  // `step`: optimizer steps contained in the weights. `extra` must not contain the keys named above.
  CheckpointWriter(const std::string& model, std::int64_t step, CheckpointMetadata extra = {});
  ~CheckpointWriter();

  // Declares a block of the tensor `block.name + suffix`. The same block may be declared by several workers. Throws
  // std::logic_error naming the tensor for a block that overlaps another one or disagrees about shape or precision.
  void declare(const Parameter& block, std::string_view suffix, Precision precision);

  // Reserves the space of the file. Throws std::logic_error naming a tensor that the blocks do not cover, InputError
  // naming `path` if it cannot be written.
  void open(const std::string& path);

  // Writes elements of a declared block, [rows, columns] and contiguous, from byte `first` on; the pieces of a block
  // come in order. A block that several workers add must have the same bits. Throws std::logic_error naming the tensor
  // if it does not, InputError naming the file if it cannot be written.
  void add(const Parameter& block, std::string_view suffix, std::int64_t first, std::span<const std::byte> data);

  // Adds the checksums; afterwards the file has its name. Throws std::logic_error naming a tensor that is incomplete,
  // InputError naming the file if it cannot be written.
  void commit();

 private:
  struct Block;
  struct Tensor;

  std::string header() const;

  CheckpointMetadata metadata_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::pair<const std::string, Tensor>*> order_;  // in the file
  std::int64_t first_byte_ = 0;                               // of the tensors in the file
  std::unique_ptr<WholeFile> file_;
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
  // the tensor is missing, has another shape or precision, or does not match its checksum (checked once; older files
  // have none).
  void read(const Parameter& block, std::string_view suffix, Precision precision, std::byte* data) const;

 private:
  struct Tensor {
    Precision precision = Precision::float32;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  // bytes after the header
    std::int64_t end = 0;
    std::optional<std::uint32_t> checksum;
    mutable bool checked = false;
  };

  void map();
  void read_header();
  // The digits of the header's checksum are at byte `digits` of it.
  void check_header(std::string_view header, std::size_t digits) const;
  // Requires the checksums of all tensors, or, in old files, of none.
  void read_checksums(bool required);
  void check_places(std::int64_t bytes) const;
  void check_data(const std::string& name, const Tensor& tensor) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  const std::byte* file_ = nullptr;
  std::int64_t file_bytes_ = 0;
  std::int64_t first_byte_ = 0;  // of the tensors
  CheckpointMetadata metadata_;
  std::int64_t step_ = 0;
  std::map<std::string, Tensor> tensors_;
  mutable std::mutex checking_;  // guards Tensor::checked
};

}  // namespace sluice::exec
