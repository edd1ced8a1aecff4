#include "exec/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "tests/support/command.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The block of a whole matrix, or of a part of it.
Parameter block_of(const std::string& name, std::int64_t all_rows, std::int64_t all_columns) {
  Parameter block{.name = name, .all_rows = all_rows, .all_columns = all_columns};
  block.rows = all_rows;
  block.columns = all_columns;
  return block;
}
Parameter part(Parameter whole, std::int64_t first_row, std::int64_t rows, std::int64_t first_column,
               std::int64_t columns) {
  whole.first_row = first_row;
  whole.rows = rows;
  whole.first_column = first_column;
  whole.columns = columns;
  return whole;
}

// A distinct value for every element (row, column).
template <typename Scalar>
std::vector<Scalar> values_of(const Parameter& block, double base = 0) {
  std::vector<Scalar> values;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    for (std::int64_t c = 0; c < block.columns; ++c) {
      values.push_back(
          static_cast<Scalar>(base + static_cast<double>((block.first_row + r) * 1000 + block.first_column + c)));
    }
  }
  return values;
}

// Bit by bit, from the definition of CRC-32.
std::string crc32_of(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  return fmt::format("{:08x}", ~crc);
}
template <typename Scalar>
std::string crc32_of(const Parameter& block) {
  const std::vector<Scalar> values = values_of<Scalar>(block);
  return crc32_of(std::as_bytes(std::span(values)));
}

template <typename Scalar>
constexpr Precision precision_of() {
  return sizeof(Scalar) == 8 ? Precision::float64 : Precision::float32;
}

// The blocks of a checkpoint, which `write` declares and adds one after the other.
class Blocks {
 public:
  explicit Blocks(std::string model, std::int64_t step, CheckpointMetadata extra = {})
      : model_(std::move(model)), step_(step), extra_(std::move(extra)) {}

  template <typename Scalar>
  Blocks& add(const Parameter& block, const std::string& suffix = "", double base = 0) {
    const std::vector<Scalar> values = values_of<Scalar>(block, base);
    const auto data = std::as_bytes(std::span(values));
    blocks_.push_back({block, suffix, precision_of<Scalar>(), {data.begin(), data.end()}});
    return *this;
  }
  // In pieces of `piece` bytes.
  void write(const std::string& path, std::int64_t piece = 1 << 20) const {
    CheckpointWriter writer(model_, step_, extra_);
    for (const Block& block : blocks_) writer.declare(block.parameter, block.suffix, block.precision);
    writer.open(path);
    for (const Block& block : blocks_) {
      const std::span<const std::byte> data(block.data);
      for (std::int64_t first = 0; first < std::ssize(data); first += piece) {
        const std::int64_t count = std::min(piece, std::ssize(data) - first);
        writer.add(block.parameter, block.suffix, first,
                   data.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
      }
    }
    writer.commit();
  }

 private:
  struct Block {
    Parameter parameter;
    std::string suffix;
    Precision precision;
    std::vector<std::byte> data;
  };
  std::string model_;
  std::int64_t step_;
  CheckpointMetadata extra_;
  std::vector<Block> blocks_;
};

template <typename Scalar>
std::vector<Scalar> read(const CheckpointReader& reader, const Parameter& block, const std::string& suffix = "") {
  std::vector<Scalar> values(static_cast<std::size_t>(block.size()), Scalar{-1});
  reader.read(block, suffix, precision_of<Scalar>(), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

// Partitions a matrix into a grid of blocks.
std::vector<Parameter> grid(const Parameter& whole, std::mt19937_64& random) {
  const auto cuts = [&](std::int64_t size) {
    std::vector<std::int64_t> at = {0, size};
    for (int i = static_cast<int>(random() % 4); i > 0; --i) {
      at.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size)));
    }
    std::sort(at.begin(), at.end());
    at.erase(std::unique(at.begin(), at.end()), at.end());
    return at;
  };
  std::vector<Parameter> blocks;
  const auto rows = cuts(whole.all_rows);
  const auto columns = cuts(whole.all_columns);
  for (std::size_t r = 0; r + 1 < rows.size(); ++r) {
    for (std::size_t c = 0; c + 1 < columns.size(); ++c) {
      blocks.push_back(part(whole, rows[r], rows[r + 1] - rows[r], columns[c], columns[c + 1] - columns[c]));
    }
  }
  return blocks;
}

class CheckpointTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path("run.safetensors"); }
  std::string error_of(const std::string& file) const {
    return test::error_from([&] { const CheckpointReader reader(file); }, "none");
  }
  // Returns the error for a file with this header and `data` bytes of tensors.
  std::string error_of_header(const std::string& header, std::size_t data) const {
    const std::uint64_t length = header.size();
    std::string content(reinterpret_cast<const char*>(&length), 8);
    content += header + std::string(data, '\0');
    write_file_whole(path(), content);
    return error_of(path());
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointTest, BlocksCanBeReadInAnyOtherPartition) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    const auto size = [&] { return static_cast<std::int64_t>(1 + random() % 40); };
    const Parameter matrix = block_of("layers.0.attention.query.weight", size(), size());
    const Parameter vector = block_of("layers.0.norm.gain", size(), 1);
    Blocks writer("tiny", round);
    std::vector<std::pair<Parameter, bool>> blocks;  // of double?
    for (const bool wide : {false, true}) {
      for (const Parameter& whole : {matrix, vector}) {
        for (const Parameter& block : grid(whole, random)) blocks.emplace_back(block, wide);
      }
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    // Some are added twice, as by replicas.
    for (int i = 0; i < 3; ++i) blocks.push_back(blocks[random() % blocks.size()]);
    for (const auto& [block, wide] : blocks) {
      wide ? writer.add<double>(block, ".exp_avg", 0.5) : writer.add<float>(block);
    }
    writer.write(path(), static_cast<std::int64_t>(8 + random() % 400));

    const CheckpointReader reader(path());
    EXPECT_EQ(reader.step(), round);
    EXPECT_EQ(reader.names().size(), 4U);
    for (const Parameter& whole : {matrix, vector}) {
      for (const Parameter& block : grid(whole, random)) {
        ASSERT_EQ(read<float>(reader, block), values_of<float>(block));
        ASSERT_EQ(read<double>(reader, block, ".exp_avg"), values_of<double>(block, 0.5));
      }
    }
  }
}

TEST_F(CheckpointTest, FileIsValidSafetensors) {
  Blocks writer("tiny", 12, {{"seed", "7"}});
  writer.add<float>(block_of("b", 2, 3));
  writer.add<float>(block_of("a", 3, 1));
  writer.add<double>(block_of("c", 1, 2));
  writer.write(path());
  const std::string file = read_file(path());
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0U);  // so that tensors are aligned in a mapped file
  const std::string text = file.substr(8, length);
  EXPECT_EQ(text.front(), '{');
  const Json header = parse_json(text, "header");
  // float64 first, then by name; offsets count from the end of the header to the end of the file.
  const Json expected = {{"__metadata__",
                          {{"schema", "sluice.checkpoint/2"},
                           {"header_crc32", header["__metadata__"]["header_crc32"]},
                           {"model", "tiny"},
                           {"step", "12"},
                           {"seed", "7"},
                           {"crc32.a", crc32_of<float>(block_of("a", 3, 1))},
                           {"crc32.b", crc32_of<float>(block_of("b", 2, 3))},
                           {"crc32.c", crc32_of<double>(block_of("c", 1, 2))}}},
                         {"c", {{"dtype", "F64"}, {"shape", {1, 2}}, {"data_offsets", {0, 16}}}},
                         {"a", {{"dtype", "F32"}, {"shape", {3}}, {"data_offsets", {16, 28}}}},
                         {"b", {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {28, 52}}}}};
  EXPECT_EQ(header, expected);
  ASSERT_EQ(file.size(), 8 + length + 52);
  // That of the header is of the header with eight zeros in its place.
  const auto checksum = header["__metadata__"]["header_crc32"].get<std::string>();
  std::string zeroed = text;
  zeroed.replace(zeroed.find(checksum), 8, 8, '0');
  EXPECT_EQ(checksum, crc32_of(std::as_bytes(std::span(zeroed))));
  const auto of_c = values_of<double>(block_of("c", 1, 2));
  EXPECT_EQ(std::memcmp(file.data() + 8 + length, of_c.data(), 16), 0);
  const auto of_b = values_of<float>(block_of("b", 2, 3));
  EXPECT_EQ(std::memcmp(file.data() + 8 + length + 28, of_b.data(), 24), 0);

  const CheckpointReader reader(path());
  EXPECT_EQ(reader.model(), "tiny");
  EXPECT_EQ(reader.step(), 12);
  EXPECT_EQ(reader.metadata().at("seed"), "7");
  EXPECT_THAT(reader.names(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(reader.has("c"));
  EXPECT_FALSE(reader.has("d"));
}

TEST_F(CheckpointTest, IncompleteTensorsAreNotWritten) {
  const Parameter whole = block_of("layers.1.mlp.up.weight", 4, 6);
  const Parameter left = part(whole, 0, 4, 0, 3);
  const Parameter right = part(whole, 0, 4, 3, 3);
  const auto message = [&](const Blocks& blocks) -> std::string {
    try {
      blocks.write(path());
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "none";
  };
  const auto blocks = [] { return Blocks("tiny", 0); };
  EXPECT_EQ(message(blocks().add<float>(left)), "checkpoint: layers.1.mlp.up.weight: 12 of 24 elements are missing");
  EXPECT_THAT(message(blocks().add<float>(left).add<float>(part(whole, 3, 1, 2, 2))),
              HasSubstr("layers.1.mlp.up.weight: overlapping blocks"));
  EXPECT_THAT(message(blocks().add<float>(left).add<float>(right).add<float>(left, "", 0.5)),
              HasSubstr("the same block with different values"));
  EXPECT_THAT(message(blocks().add<float>(left).add<double>(right)), HasSubstr("different precisions"));
  EXPECT_THAT(message(blocks().add<float>(left).add<float>(block_of("layers.1.mlp.up.weight", 6, 4))),
              HasSubstr("a block of 4 x 6 and one of 6 x 4"));
  EXPECT_THAT(message(blocks().add<float>(part(whole, 3, 2, 3, 3))), HasSubstr("a block outside the tensor"));
  EXPECT_THAT(message(blocks().add<float>(part(whole, -1, 2, 3, 3))), HasSubstr("outside the tensor"));
  EXPECT_EQ(folder_.num_files(), 0);
  EXPECT_EQ(message(blocks().add<float>(left).add<float>(left).add<float>(right)), "none");
  EXPECT_EQ(read<float>(CheckpointReader(path()), whole), values_of<float>(whole));
  EXPECT_THROW(CheckpointWriter("tiny", 0, {{"step", "3"}}), std::logic_error);

  // Data that never comes, comes twice, or in the wrong order.
  CheckpointWriter writer("tiny", 0);
  writer.declare(whole, "", Precision::float32);
  writer.open(folder_.path("other"));
  const std::vector<float> values = values_of<float>(whole);
  const auto data = std::as_bytes(std::span(values));
  EXPECT_THROW(writer.add(whole, "", 8, data.subspan(8, 8)), std::logic_error);
  writer.add(whole, "", 0, data.first(8));
  EXPECT_THROW(writer.commit(), std::logic_error);
  EXPECT_THROW(writer.add(whole, "", 4, data.subspan(4, 8)), std::logic_error);
  EXPECT_THROW(writer.add(left, "", 0, data.first(8)), std::logic_error);
  EXPECT_THROW(writer.add(whole, ".exp_avg", 0, data.first(8)), std::logic_error);
  writer.add(whole, "", 8, data.subspan(8));
  writer.commit();
  EXPECT_EQ(read<float>(CheckpointReader(folder_.path("other")), whole), values);
}

// Every changed bit of the data is noticed.
TEST_F(CheckpointTest, ChecksumsFindEveryChangedBit) {
  const Parameter a = block_of("a", 3, 2);
  const Parameter b = block_of("b", 5, 1);
  Blocks writer("tiny", 4);
  writer.add<float>(a);
  writer.add<double>(b);
  writer.write(path());
  const std::string whole = read_file(path());
  const std::size_t data = 24 + 40;
  for (std::size_t bit = 0; bit < 8 * data; ++bit) {
    std::string content = whole;
    const std::size_t at = whole.size() - data + bit / 8;
    content[at] = static_cast<char>(content[at] ^ (1 << bit % 8));
    write_file_whole(path(), content);
    const CheckpointReader reader(path());
    const bool in_b = bit < 8 * 40;  // float64 comes first
    EXPECT_THAT(test::error_from([&] {
                  in_b ? static_cast<void>(read<double>(reader, b)) : static_cast<void>(read<float>(reader, a));
                }),
                HasSubstr(path() + (in_b ? ": b: damaged" : ": a: damaged")));
    // The other tensor is as it was.
    in_b ? static_cast<void>(read<float>(reader, a)) : static_cast<void>(read<double>(reader, b));
  }
}

TEST_F(CheckpointTest, FailedWriteKeepsTheOldFile) {
  Blocks writer("tiny", 1);
  writer.add<float>(block_of("a", 2, 2));
  writer.write(path());
  const std::string before = read_file(path());
  Blocks second("tiny", 2);
  second.add<float>(part(block_of("a", 2, 2), 0, 1, 0, 2));
  EXPECT_THROW(second.write(path()), std::logic_error);
  EXPECT_EQ(read_file(path()), before);
  EXPECT_EQ(folder_.num_files(), 1);
  EXPECT_THROW(writer.write(folder_.path("none/run.safetensors")), InputError);
}

TEST_F(CheckpointTest, ReadErrorsNameFileAndTensor) {
  Blocks writer("tiny", 1);
  writer.add<float>(block_of("a", 4, 2));
  writer.add<float>(block_of("v", 4, 1));
  writer.write(path());
  const CheckpointReader reader(path());
  const auto error = [&](const Parameter& block, bool wide = false) -> std::string {
    try {
      wide ? static_cast<void>(read<double>(reader, block)) : static_cast<void>(read<float>(reader, block));
    } catch (const InputError& failure) {
      return failure.what();
    }
    return "none";
  };
  EXPECT_EQ(error(block_of("b", 4, 2)), path() + ": b: no such tensor");
  EXPECT_EQ(error(block_of("a", 4, 2), true), path() + ": a: expected F64, got F32");
  EXPECT_EQ(error(block_of("a", 2, 4)), path() + ": a: expected the shape [2, 4], got [4, 2]");
  EXPECT_EQ(error(block_of("v", 5, 1)), path() + ": v: expected the shape [5], got [4]");
  EXPECT_EQ(error(block_of("v", 1, 4)), path() + ": v: expected the shape [1, 4], got [4]");
  EXPECT_EQ(error(block_of("v", 4, 1)), "none");
  EXPECT_THROW(read<float>(reader, part(block_of("a", 4, 2), 3, 2, 0, 2)), std::logic_error);
}

constexpr const char* kMeta = R"("__metadata__":{"schema":"sluice.checkpoint/1","model":"m","step":"3"})";

TEST_F(CheckpointTest, InvalidHeadersAreRejected) {
  const auto with = [&](const std::string& tensors, std::size_t data) {
    return error_of_header(std::string("{") + kMeta + (tensors.empty() ? "" : ",") + tensors + "}", data);
  };
  const std::string good = R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
  EXPECT_EQ(with(good, 24), "none");
  EXPECT_EQ(with("", 0), "none");
  EXPECT_EQ(with(R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]})", 8), "none");
  // Other writers may pad with blanks and order tensors differently.
  EXPECT_EQ(with(R"("b":{"dtype":"F64","shape":[1],"data_offsets":[24,32]},)" + good + "   ", 32), "none");

  EXPECT_THAT(with(good, 23), HasSubstr("a: truncated: ends at byte 24 of the tensors, the file has 23"));
  EXPECT_THAT(with(good, 25), HasSubstr("1 bytes at the end belong to no tensor"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]})", 28),
              HasSubstr("a: 4 bytes before it belong to no tensor"));
  EXPECT_THAT(with(good + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[20,28]})", 28),
              HasSubstr("b: overlaps a"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]})", 20),
              HasSubstr("/a/data_offsets: expected 24 bytes, the size of the shape"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[24,0]})", 24),
              HasSubstr("/a/data_offsets/1: expected a whole number from 24"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[-24,0]})", 24),
              HasSubstr("/a/data_offsets/0: expected a whole number"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0]})", 24),
              HasSubstr("/a/data_offsets: expected begin and end"));
  EXPECT_THAT(with(R"("a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]})", 12),
              HasSubstr("/a/dtype: expected one of F32, F64"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]})", 0), HasSubstr("/a/shape/1: expected"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]})", 4),
              HasSubstr("/a/shape: expected one or two sizes"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[1,1,1],"data_offsets":[0,4]})", 4),
              HasSubstr("/a/shape: expected one or two sizes"));
  EXPECT_THAT(with(R"("a":{"dtype":"F64","shape":[4611686018427387904,8],"data_offsets":[0,0]})", 0),
              HasSubstr("/a/shape: expected a size below 2^63 bytes"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,3]})", 24), HasSubstr("/a/data_offsets: required key is missing"));
  EXPECT_THAT(with(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24],"x":1})", 24), HasSubstr("unknown key"));
  EXPECT_THAT(with(R"("a":7)", 0), HasSubstr("/a: expected an object"));
  EXPECT_THAT(with(good + "," + good, 24), HasSubstr("occurs twice"));

  EXPECT_THAT(error_of_header("{}", 0), HasSubstr("/__metadata__: required key is missing"));
  EXPECT_THAT(error_of_header("[]", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(error_of_header("{\"a\"", 0), HasSubstr("header: line 1"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"schema":"other/1","model":"m","step":"3"}})", 0),
              HasSubstr("/__metadata__/schema: expected \"sluice.checkpoint/2\""));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"schema":"sluice.checkpoint/1","model":"m","step":3}})", 0),
              HasSubstr("/__metadata__/step: expected a string"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"schema":"sluice.checkpoint/1","model":"m","step":"x"}})", 0),
              HasSubstr("/__metadata__/step: expected a whole number"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"schema":"sluice.checkpoint/1","step":"1"}})", 0),
              HasSubstr("/__metadata__/model: required key is missing"));
}

// Files of the first schema are read; they have the checksums of all tensors, or of none.
TEST_F(CheckpointTest, OldFilesHaveAllChecksumsOrNone) {
  const auto with = [&](const std::string& checksums) {
    return error_of_header(R"({"__metadata__":{"schema":"sluice.checkpoint/1","model":"m","step":"3")" + checksums +
                               R"(},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                               R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                           8);
  };
  EXPECT_EQ(with(""), "none");
  EXPECT_EQ(with(R"(,"crc32.a":"00000000","crc32.b":"00000000")"), "none");
  EXPECT_THAT(with(R"(,"crc32.a":"00000000","crc33.b":"00000000")"),
              HasSubstr("header: /__metadata__/crc32.b: required key is missing"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"schema":"sluice.checkpoint/2","model":"m","step":"3"}})", 0),
              HasSubstr("/__metadata__/header_crc32: required key is missing"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"header_crc32":"0)", 0), HasSubstr("header: truncated"));
}

TEST_F(CheckpointTest, OtherFilesAreRejectedByName) {
  EXPECT_THAT(error_of(folder_.path("missing")), HasSubstr("missing: cannot open"));
  EXPECT_THAT(error_of(folder_.path()), HasSubstr("is a folder"));
  EXPECT_THAT(error_of("/dev/null"), HasSubstr("/dev/null: not a checkpoint"));
  write_file_whole(path(), "");
  EXPECT_THAT(error_of(path()), HasSubstr("truncated: expected 8 bytes"));
  write_file_whole(path(), "sluice is no checkpoint");
  EXPECT_THAT(error_of(path()), HasSubstr("expected a header of 2 to 100000000 bytes"));
  write_file_whole(path(), std::string("\xff\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(error_of(path()), HasSubstr("truncated: expected a header of 255 bytes, got 2"));
}

TEST_F(CheckpointTest, TruncatedAndDamagedFilesNeverCrash) {
  Blocks writer("tiny", 4);
  const Parameter a = block_of("a", 3, 2);
  const Parameter b = block_of("b", 5, 1);
  writer.add<float>(a);
  writer.add<double>(b);
  writer.write(path());
  const std::string whole = read_file(path());
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  const std::string file = folder_.path("damaged");
  const auto look = [&](const std::string& content) {
    std::filesystem::remove(file);  // some file systems flush a file that is written over
    std::ofstream(file, std::ios::binary) << content;
    try {
      const CheckpointReader reader(file);
      read<float>(reader, a);
      read<double>(reader, b);
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(file + ": "));
      return false;
    }
    return true;
  };
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(look(whole.substr(0, size))) << size;
  std::mt19937_64 random(3);
  for (std::size_t at = 0; at < 8 + length; ++at) {
    for (const int flip : {1, 2, 16, 128, static_cast<int>(1 + random() % 255)}) {
      std::string content = whole;
      content[at] = static_cast<char>(content[at] ^ flip);
      EXPECT_FALSE(look(content)) << "byte " << at << ", flipped " << flip;
    }
  }
  for (int i = 0; i < 2000; ++i) {
    std::string content = whole;
    for (int changes = 0; changes < 4; ++changes) {
      content[random() % content.size()] = static_cast<char>(random());
    }
    look(content);
  }
}

TEST_F(CheckpointTest, NamesAndMetadataMayContainAnyBytes) {
  Blocks writer("tiny \"x\"\n", 4, {{"text", "caf\xe9"}, {"path", "a/b~c"}});
  writer.add<float>(block_of("odd/name~\"1\"", 1, 1));
  writer.write(path());
  const CheckpointReader reader(path());
  EXPECT_EQ(reader.model(), "tiny \"x\"\n");
  EXPECT_EQ(reader.metadata().at("path"), "a/b~c");
  EXPECT_EQ(reader.metadata().at("text"), "caf\xef\xbf\xbd");  // U+FFFD for what is not UTF-8
  EXPECT_THAT(reader.names(), ElementsAre("odd/name~\"1\""));
}

}  // namespace
}  // namespace sluice::test
