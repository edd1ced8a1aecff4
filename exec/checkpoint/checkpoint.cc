#include "exec/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/protected_files.h"
#include "model/to_size.h"

namespace sluice::exec {
namespace {

// The format is little-endian; so are all supported hosts.
static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // limit of the reference implementation
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostSteps = 1'000'000'000'000'000;  // steps of a run can be added to it
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kChecksum = "crc32.";
constexpr std::string_view kOldSchema = "sluice.checkpoint/1";  // without the checksum of the header
constexpr std::string_view kHeaderChecksum = "header_crc32";
const std::string kHeaderMark = fmt::format("\"{}\":\"", kHeaderChecksum);  // before the digits
constexpr std::size_t kDigits = 8;

std::int64_t bytes_of(Precision precision) { return precision == Precision::float64 ? 8 : 4; }
const std::string& dtype_name(Precision precision) {
  static const std::array<std::string, 2> names = {"F32", "F64"};
  return names[precision == Precision::float64 ? 1 : 0];
}

// Returns rows x columns x bytes, or -1 on overflow.
std::int64_t volume(std::int64_t rows, std::int64_t columns, std::int64_t bytes) {
  std::int64_t total = 0;
  if (__builtin_mul_overflow(rows, columns, &total) || __builtin_mul_overflow(total, bytes, &total)) return -1;
  return total;
}

std::vector<std::int64_t> tensor_shape(const Parameter& block) {
  if (block.all_columns == 1) return {block.all_rows};
  return {block.all_rows, block.all_columns};
}

bool lies_within(const Parameter& block) {
  return block.rows >= 1 && block.columns >= 1 && block.first_row >= 0 && block.first_column >= 0 &&
         block.rows <= block.all_rows - block.first_row && block.columns <= block.all_columns - block.first_column;
}

// Calls `visit(offset in the tensor, offset in the block, size)`, in bytes, for each run that is contiguous in both,
// over the bytes `from` to `to` of the block.
template <typename Visit>
void for_each_run(const Parameter& block, std::int64_t element, std::int64_t from, std::int64_t to,
                  const Visit& visit) {
  const bool whole_rows = block.columns == block.all_columns;
  const std::int64_t run = (whole_rows ? block.rows * block.columns : block.columns) * element;
  while (from < to) {
    const std::int64_t row = block.first_row + from / run;
    const std::int64_t in_run = from % run;
    const std::int64_t bytes = std::min(run - in_run, to - from);
    visit((row * block.all_columns + block.first_column) * element + in_run, from, bytes);
    from += bytes;
  }
}

std::string checksum_text(std::uint32_t checksum) { return fmt::format("{:08x}", checksum); }

std::uint32_t crc32_of(std::uint32_t before, const void* data, std::size_t bytes) {
  return static_cast<std::uint32_t>(::crc32_z(before, static_cast<const unsigned char*>(data), bytes));
}

// Returns the checksum of a header, with zeros in the place of the digits at `digits`.
std::string header_checksum(std::string header, std::size_t digits) {
  header.replace(digits, kDigits, kDigits, '0');
  return checksum_text(crc32_of(0, header.data(), header.size()));
}

}  // namespace

// --- writing ---------------------------------------------------------------------------------------------------------

struct CheckpointWriter::Block {
  Parameter place;           // name left empty
  std::int64_t written = 0;  // bytes
};

struct CheckpointWriter::Tensor {
  Precision precision = Precision::float32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<Block> blocks;
  std::int64_t covered = 0;  // elements of the blocks
  std::int64_t begin = 0;    // bytes after the header
  std::string checksum = checksum_text(0);

  std::int64_t bytes() const { return rows * columns * bytes_of(precision); }
};

CheckpointWriter::CheckpointWriter(const std::string& model, std::int64_t step, CheckpointMetadata extra)
    : metadata_(std::move(extra)) {
  const CheckpointMetadata own = {{"schema", std::string(kCheckpointSchema)},
                                  {"model", model},
                                  {"step", std::to_string(step)},
                                  {std::string(kHeaderChecksum), std::string(kDigits, '0')}};
  for (const auto& [key, value] : own) {
    if (!metadata_.emplace(key, value).second) throw std::logic_error("reserved metadata key of a checkpoint: " + key);
  }
}

CheckpointWriter::~CheckpointWriter() = default;

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw std::logic_error(fmt::format("checkpoint: {}: {}", name, what));
}

bool same_place(const Parameter& a, const Parameter& b) {
  return a.first_row == b.first_row && a.rows == b.rows && a.first_column == b.first_column && a.columns == b.columns;
}

bool are_apart(const Parameter& a, const Parameter& b) {
  return a.first_row + a.rows <= b.first_row || b.first_row + b.rows <= a.first_row ||
         a.first_column + a.columns <= b.first_column || b.first_column + b.columns <= a.first_column;
}

}  // namespace

void CheckpointWriter::declare(const Parameter& block, std::string_view suffix, Precision precision) {
  const std::string name = block.name + std::string(suffix);
  if (volume(block.all_rows, block.all_columns, bytes_of(precision)) < 0 || !lies_within(block)) {
    refuse(name, "a block outside the tensor");
  }
  if (name == kMetadata) refuse(name, "reserved name");
  auto [at, added] = tensors_.try_emplace(name);
  Tensor& tensor = at->second;
  if (added) {
    tensor.precision = precision;
    tensor.rows = block.all_rows;
    tensor.columns = block.all_columns;
  }
  if (tensor.precision != precision) refuse(name, "blocks of different precisions");
  if (tensor.rows != block.all_rows || tensor.columns != block.all_columns) {
    refuse(name, fmt::format("a block of {} x {} and one of {} x {}", tensor.rows, tensor.columns, block.all_rows,
                             block.all_columns));
  }
  for (const Block& other : tensor.blocks) {
    if (same_place(block, other.place)) return;
    if (!are_apart(block, other.place)) refuse(name, "overlapping blocks");
  }
  tensor.blocks.push_back({block});
  tensor.blocks.back().place.name.clear();
  tensor.covered += block.rows * block.columns;
}

std::string CheckpointWriter::header() const {
  CheckpointMetadata metadata = metadata_;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header[std::string(kMetadata)] = nullptr;  // first
  for (const auto* entry : order_) {
    const auto& [name, tensor] = *entry;
    metadata[std::string(kChecksum) + name] = tensor.checksum;
    auto shape = nlohmann::ordered_json::array({tensor.rows});
    if (tensor.columns != 1) shape.push_back(tensor.columns);
    header[name] = {{"dtype", dtype_name(tensor.precision)},
                    {"shape", shape},
                    {"data_offsets", {tensor.begin, tensor.begin + tensor.bytes()}}};
  }
  header[std::string(kMetadata)] = metadata;
  // Replace text that is not UTF-8, such as a file name, rather than lose the checkpoint.
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (std::ssize(text) > kMaxHeaderBytes) throw std::logic_error("checkpoint: header too long");
  const std::size_t digits = text.find(kHeaderMark) + kHeaderMark.size();
  text.replace(digits, kDigits, header_checksum(text, digits));
  return text;
}

void CheckpointWriter::open(const std::string& path) {
  // Wide elements first, as in the reference implementation: every tensor is aligned to its elements.
  std::int64_t bytes = 0;
  for (const Precision precision : {Precision::float64, Precision::float32}) {
    for (auto& entry : tensors_) {
      auto& [name, tensor] = entry;
      if (tensor.precision != precision) continue;
      const std::int64_t elements = tensor.rows * tensor.columns;
      if (tensor.covered != elements) {
        refuse(name, fmt::format("{} of {} elements are missing", elements - tensor.covered, elements));
      }
      tensor.begin = bytes;
      bytes += tensor.bytes();
      order_.push_back(&entry);
    }
  }
  first_byte_ = kLengthBytes + std::ssize(header());
  file_ = std::make_unique<WholeFile>(path);
  file_->reserve(first_byte_ + bytes);
}

void CheckpointWriter::add(const Parameter& block, std::string_view suffix, std::int64_t first,
                           std::span<const std::byte> data) {
  const std::string name = block.name + std::string(suffix);
  const auto found = tensors_.find(name);
  if (file_ == nullptr || found == tensors_.end()) refuse(name, "was not declared");
  Tensor& tensor = found->second;
  const auto known = std::find_if(tensor.blocks.begin(), tensor.blocks.end(),
                                  [&](const Block& other) { return same_place(block, other.place); });
  if (known == tensor.blocks.end()) refuse(name, "a block that was not declared");
  const std::int64_t element = bytes_of(tensor.precision);
  const std::int64_t to = first + std::ssize(data);
  if (first < 0 || to > block.rows * block.columns * element) refuse(name, "more data than the block has");
  const bool again = first < known->written;  // another worker has added it
  if (first > known->written || (again && to > known->written)) refuse(name, "pieces out of order");
  std::vector<char> there;
  for_each_run(block, element, first, to, [&](std::int64_t in_tensor, std::int64_t in_block, std::int64_t count) {
    const char* const from = reinterpret_cast<const char*>(data.data()) + (in_block - first);
    const std::int64_t at = first_byte_ + tensor.begin + in_tensor;
    if (!again) return file_->write_at(at, {from, to_size(count)});
    there.resize(to_size(count));
    file_->read_at(at, there);
    if (std::memcmp(there.data(), from, there.size()) != 0) {
      refuse(name, "two workers added the same block with different values");
    }
  });
  if (!again) known->written = to;
}

void CheckpointWriter::commit() {
  std::vector<char> piece(std::size_t{1} << 20);
  for (auto* entry : order_) {
    auto& [name, tensor] = *entry;
    for (const Block& block : tensor.blocks) {
      const std::int64_t bytes = block.place.rows * block.place.columns * bytes_of(tensor.precision);
      if (block.written != bytes) refuse(name, fmt::format("{} bytes of a block are missing", bytes - block.written));
    }
    std::uint32_t checksum = 0;
    for (std::int64_t at = 0; at < tensor.bytes(); at += std::ssize(piece)) {
      const std::span<char> part(piece.data(), to_size(std::min(std::ssize(piece), tensor.bytes() - at)));
      file_->read_at(first_byte_ + tensor.begin + at, part);
      checksum = crc32_of(checksum, part.data(), part.size());
    }
    tensor.checksum = checksum_text(checksum);
  }
  const std::string text = header();
  const std::uint64_t length = text.size();
  file_->write_at(0, {reinterpret_cast<const char*>(&length), kLengthBytes});
  file_->write_at(kLengthBytes, text);
  file_->commit();
  file_.reset();
}

// --- reading ---------------------------------------------------------------------------------------------------------

CheckpointReader::CheckpointReader(const std::string& path) : path_(path) {
  note_input(path, true);
  map();
  try {
    read_header();
  } catch (...) {
    ::munmap(const_cast<std::byte*>(file_), to_size(file_bytes_));
    throw;
  }
}

CheckpointReader::~CheckpointReader() { ::munmap(const_cast<std::byte*>(file_), to_size(file_bytes_)); }

void CheckpointReader::fail(const std::string& what) const { throw InputError(path_ + ": " + what); }

void CheckpointReader::map() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(fmt::format("cannot open: {}", std::strerror(errno)));
  struct stat status {};
  ::fstat(fd, &status);
  void* memory = MAP_FAILED;
  file_bytes_ = status.st_size;
  const bool regular = S_ISREG(status.st_mode);
  if (regular && file_bytes_ >= kLengthBytes) {
    memory = ::mmap(nullptr, to_size(file_bytes_), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (S_ISDIR(status.st_mode)) fail("is a folder, expected a checkpoint");
  if (!regular) fail("not a checkpoint: expected a regular file");
  if (file_bytes_ < kLengthBytes) {
    fail(fmt::format("truncated: expected 8 bytes with the length of a header, got {} bytes", file_bytes_));
  }
  if (memory == MAP_FAILED) fail(fmt::format("cannot map: {}", std::strerror(error)));
  file_ = static_cast<const std::byte*>(memory);
}

void CheckpointReader::read_header() {
  std::uint64_t length = 0;
  std::memcpy(&length, file_, kLengthBytes);
  if (length < 2 || length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    fail(fmt::format("not a checkpoint: expected a header of 2 to {} bytes, got {}", kMaxHeaderBytes, length));
  }
  first_byte_ = kLengthBytes + static_cast<std::int64_t>(length);
  if (first_byte_ > file_bytes_) {
    fail(fmt::format("truncated: expected a header of {} bytes, got {}", length, file_bytes_ - kLengthBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file_) + kLengthBytes, length);
  if (text.front() != '{') fail("not a checkpoint: its header does not begin with '{'");
  const std::size_t mark = text.find(kHeaderMark);
  const bool checked = mark != std::string_view::npos;
  if (checked) check_header(text, mark + kHeaderMark.size());
  const Json json = parse_json(text, path_ + ": header");
  const JsonReader header(json, path_ + ": header");

  JsonReader root = header;
  JsonReader metadata = root.at(std::string(kMetadata));
  if (!metadata.json().is_object()) metadata.fail("expected an object");
  for (const auto& [key, value] : metadata.json().items()) metadata_[key] = metadata.string(key);
  const std::string schema = metadata.string("schema");
  if (schema != kCheckpointSchema && schema != kOldSchema) {
    metadata.at("schema").fail(fmt::format("expected \"{}\"", kCheckpointSchema));
  }
  if (schema == kCheckpointSchema && !checked) metadata.string(std::string(kHeaderChecksum));
  metadata.string("model");
  const std::string step = metadata.string("step");
  const auto [rest, error] = std::from_chars(step.data(), step.data() + step.size(), step_);
  if (error != std::errc() || rest != step.data() + step.size() || step_ < 0 || step_ > kMostSteps) {
    metadata.at("step").fail(fmt::format("expected a whole number from 0 to {}, as a string", kMostSteps));
  }

  const std::vector<std::string> dtypes = {dtype_name(Precision::float32), dtype_name(Precision::float64)};
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) continue;
    JsonReader reader = root.at(name);
    Tensor tensor;
    tensor.precision = reader.at("dtype").one_of(dtypes) == "F64" ? Precision::float64 : Precision::float32;
    for (const JsonReader& size : reader.at("shape").elements()) tensor.shape.push_back(size.integer(1, kMost));
    if (tensor.shape.empty() || tensor.shape.size() > 2) reader.at("shape").fail("expected one or two sizes");
    const std::vector<JsonReader> offsets = reader.at("data_offsets").elements();
    if (offsets.size() != 2) reader.at("data_offsets").fail("expected begin and end");
    tensor.begin = offsets[0].integer(0, kMost);
    tensor.end = offsets[1].integer(tensor.begin, kMost);
    reader.finish();
    const std::int64_t bytes =
        volume(tensor.shape[0], tensor.shape.size() == 2 ? tensor.shape[1] : 1, bytes_of(tensor.precision));
    if (bytes < 0) reader.at("shape").fail("expected a size below 2^63 bytes");
    if (tensor.end - tensor.begin != bytes) {
      reader.at("data_offsets").fail(fmt::format("expected {} bytes, the size of the shape", bytes));
    }
    tensors_.emplace(name, std::move(tensor));
  }
  check_places(file_bytes_ - first_byte_);
  read_checksums(checked);
}

void CheckpointReader::check_header(std::string_view header, std::size_t digits) const {
  const std::string_view expected = header.substr(digits, kDigits);
  if (expected.size() < kDigits) fail("header: truncated");
  const std::string checksum = header_checksum(std::string(header), digits);
  if (checksum != expected) {
    fail(fmt::format("header: damaged: its checksum is {}, expected {}", checksum, expected));
  }
}

void CheckpointReader::read_checksums(bool required) {
  int found = 0;
  for (const auto& [key, text] : metadata_) {
    if (!key.starts_with(kChecksum)) continue;
    const std::string where = fmt::format("header: /{}/{}", kMetadata, key);
    const auto tensor = tensors_.find(key.substr(kChecksum.size()));
    if (tensor == tensors_.end()) fail(where + ": there is no such tensor");
    std::uint32_t checksum = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), checksum, 16);
    if (error != std::errc() || rest != text.data() + text.size() || text.size() != 8) {
      fail(where + ": expected eight hexadecimal digits");
    }
    tensor->second.checksum = checksum;
    ++found;
  }
  if (found == 0 && !required) return;
  for (const auto& [name, tensor] : tensors_) {
    if (!tensor.checksum) fail(fmt::format("header: /{}/{}{}: required key is missing", kMetadata, kChecksum, name));
  }
}

void CheckpointReader::check_data(const std::string& name, const Tensor& tensor) const {
  if (!tensor.checksum) return;
  const std::lock_guard lock(checking_);
  if (tensor.checked) return;
  const std::uint32_t checksum = crc32_of(0, file_ + first_byte_ + tensor.begin, to_size(tensor.end - tensor.begin));
  if (checksum != *tensor.checksum) {
    fail(fmt::format("{}: damaged: its checksum is {}, expected {}", name, checksum_text(checksum),
                     checksum_text(*tensor.checksum)));
  }
  tensor.checked = true;
}

// Checks that the tensors are contiguous, from the first to the last byte.
void CheckpointReader::check_places(std::int64_t bytes) const {
  std::vector<const std::pair<const std::string, Tensor>*> order;
  for (const auto& entry : tensors_) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->second.begin < b->second.begin; });
  std::int64_t at = 0;
  const std::string* before = nullptr;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    if (tensor.begin < at) fail(fmt::format("{}: overlaps {}", name, *before));
    if (tensor.begin > at) fail(fmt::format("{}: {} bytes before it belong to no tensor", name, tensor.begin - at));
    if (tensor.end > bytes) {
      fail(fmt::format("{}: truncated: ends at byte {} of the tensors, the file has {}", name, tensor.end, bytes));
    }
    at = tensor.end;
    before = &name;
  }
  if (at != bytes) fail(fmt::format("{} bytes at the end belong to no tensor", bytes - at));
}

std::vector<std::string> CheckpointReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

void CheckpointReader::read(const Parameter& block, std::string_view suffix, Precision precision,
                            std::byte* data) const {
  const std::string name = block.name + std::string(suffix);
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail(fmt::format("{}: no such tensor", name));
  const Tensor& tensor = found->second;
  if (tensor.precision != precision) {
    fail(fmt::format("{}: expected {}, got {}", name, dtype_name(precision), dtype_name(tensor.precision)));
  }
  std::vector<std::int64_t> shape = tensor.shape;
  if (shape.size() == 2 && shape[1] == 1) shape.pop_back();
  if (shape != tensor_shape(block)) {
    fail(fmt::format("{}: expected the shape [{}], got [{}]", name, fmt::join(tensor_shape(block), ", "),
                     fmt::join(tensor.shape, ", ")));
  }
  if (!lies_within(block)) throw std::logic_error(fmt::format("checkpoint: {}: a block outside the tensor", name));
  check_data(name, tensor);
  const std::byte* from = file_ + first_byte_ + tensor.begin;
  const std::int64_t bytes = block.rows * block.columns * bytes_of(precision);
  for_each_run(block, bytes_of(precision), 0, bytes,
               [&](std::int64_t in_tensor, std::int64_t in_block, std::int64_t count) {
                 std::memcpy(data + in_block, from + in_tensor, to_size(count));
               });
}

}  // namespace sluice::exec
