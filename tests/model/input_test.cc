#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <tuple>

#include "model/errors.h"
#include "model/input/csv.h"
#include "model/input/file_set.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"
#include "model/input/numbers.h"
#include "model/input/printable.h"
#include "model/units.h"
#include "tests/support/command.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using testing::HasSubstr;

TEST(Units, RoundsOnceToTheNearestNanosecond) {
  EXPECT_EQ(from_seconds(0.1, "t").count(), 100'000'000);
  EXPECT_EQ(from_seconds(1.0 / 3.0, "t").count(), 333'333'333);
  EXPECT_EQ(from_seconds(1e8, "t").count(), 100'000'000'000'000'000);
}

TEST(Units, RejectsInvalidTimes) {
  for (const double bad : {-1.0, 1.1e8, std::nan(""), HUGE_VAL}) {
    EXPECT_NE(error_from([&] { from_seconds(bad, "f"); }).find("f: expected seconds"), std::string::npos) << bad;
  }
}

TEST(Json, ErrorsNameSourceLocationAndValue) {
  EXPECT_EQ(error_from([] { parse_json("{\"a\": 1,\n \"b\": }", "s.json"); }).substr(0, 24),
            "s.json: line 2, column 7");
  EXPECT_EQ(error_from([] { parse_json(R"({"a":1,"a":2})", "s.json"); }),
            "s.json: key \"a\" occurs twice in one object");
  const Json doc = parse_json(R"({"cluster": {"gpus": -3, "nods": 1}})", "s.json");
  JsonReader root(doc, "s.json");
  JsonReader cluster = root.at("cluster");
  EXPECT_EQ(error_from([&] { cluster.integer("gpus", 1, 8); }),
            "s.json: /cluster/gpus: expected a whole number from 1 to 8, got -3");
  EXPECT_EQ(error_from([&] { cluster.integer("nodes", 1, 8); }), "s.json: /cluster/nodes: required key is missing");
  EXPECT_EQ(error_from([&] { cluster.finish(); }), "s.json: /cluster/nods: unknown key; did you mean 'nodes'?");
}

TEST(Json, IntegersAbove63BitsAndFractionsAreRejected) {
  const Json doc = parse_json("[18446744073709551615, 1.5, 9223372036854775807]", "x");
  const JsonReader root(doc, "x");
  EXPECT_THROW(root.element(0).integer(0, INT64_MAX), InputError);
  EXPECT_THROW(root.element(1).integer(0, 10), InputError);
  EXPECT_EQ(root.element(2).integer(0, INT64_MAX), INT64_MAX);
}

TEST(Json, RefusesNamesThatATerminalWouldObey) {
  const Json object =
      parse_json(R"({"name": "a\u001b[31m", "next": "b\u009b2J", "lines": "one\n\ttwo", "accent": "é"})", "x");
  JsonReader reader(object, "x");
  EXPECT_EQ(reader.string("lines"), "one\n\ttwo");
  EXPECT_EQ(reader.string("accent"), "é");
  for (const char* key : {"name", "next"}) {
    EXPECT_THAT(error_from([&] { reader.string(key); }), HasSubstr("expected a string without control characters"))
        << key;
  }
  EXPECT_EQ(error_from([] { parse_json("{\"a\x7f\": 1}", "x"); }), "x: key \"a\\x7f\" has control characters");
}

TEST(Printable, EscapesWhatIsNotText) {
  EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"), "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("a\x1b[2J\xc2\x9b\n\xff"), "a\\x1b[2J\\x9b\n\\xff");
  // Truncated, overlong, a surrogate, beyond the last code point.
  EXPECT_EQ(printable("\xc3", true), "\\xc3");
  EXPECT_EQ(printable("\xc0\xaf\xe0\x80\xaf"), "\\xc0\\xaf\\xe0\\x80\\xaf");
  EXPECT_EQ(printable("\xed\xa0\x80\xf4\x90\x80\x80"), "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(error_from([] { parse_json("{\"a\xff\": 1}", "x"); }).find('\xff'), std::string::npos);
}

TEST(Nearest, FindsOnlyLikelyTypos) {
  const std::vector<std::string> names = {"gpipe", "1f1b", "interleaved-1f1b"};
  EXPECT_EQ(nearest("gpip", names), "gpipe");
  EXPECT_EQ(nearest("Interleaved_1F1B", names), "interleaved-1f1b");
  EXPECT_EQ(nearest("quantum", names), "");
  EXPECT_EQ(nearest("interleaved", names), "interleaved-1f1b");
}

TEST(Files, AreReplacedAtomically) {
  std::string dir = std::filesystem::temp_directory_path() / "sluice_files_XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const std::string path = dir + "/out.json";
  write_file_whole(path, "first");
  write_file_whole(path, "second");
  EXPECT_EQ(read_file(path), "second");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir), {}), 1) << "a temporary file was left behind";
  EXPECT_THROW(write_file_whole(dir + "/no/such/folder/x", "x"), InputError);
  EXPECT_THROW(write_file_whole(dir, "x"), InputError);
  EXPECT_THROW(read_file(dir), InputError);
  EXPECT_THROW(read_file(path, 3), InputError);
  std::filesystem::remove_all(dir);
}

TEST(Files, NothingStaysOfAKilledWriter) {
  std::string dir = std::filesystem::temp_directory_path() / "sluice_files_XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const std::string path = dir + "/out.json";
  write_file_whole(path, "whole");
  for (int times = 0; times < 2; ++times) {
    const pid_t child = ::fork();
    if (child == 0) {
      WholeFile file(path);
      file.append("half");
      ::raise(SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
  }
  write_file_whole(path, "again");  // where files have names: removes those of dead processes
  EXPECT_EQ(read_file(path), "again");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir), {}), 1);
  std::filesystem::remove_all(dir);
}

TEST(Files, KeepLinksAndPermissions) {
  std::string dir = std::filesystem::temp_directory_path() / "sluice_files_XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const mode_t before = ::umask(027);
  write_file_whole(dir + "/new", "1");
  ::umask(before);
  const auto mode = [](const std::string& path) { return std::filesystem::status(path).permissions(); };
  EXPECT_EQ(static_cast<int>(mode(dir + "/new")), 0640);
  std::filesystem::permissions(dir + "/new", std::filesystem::perms(0604));
  std::filesystem::create_symlink("new", dir + "/link");
  write_file_whole(dir + "/link", "2");
  EXPECT_TRUE(std::filesystem::is_symlink(dir + "/link"));
  EXPECT_EQ(read_file(dir + "/new"), "2");
  EXPECT_EQ(static_cast<int>(mode(dir + "/new")), 0604);
  std::filesystem::create_symlink("nothing", dir + "/dangling");
  EXPECT_EQ(error_from([&] { write_file_whole(dir + "/dangling", "3"); }),
            dir + "/dangling: is a link to a file that does not exist");
  EXPECT_TRUE(std::filesystem::is_symlink(dir + "/dangling"));
  std::filesystem::remove_all(dir);
}

TEST(Csv, CellsMayContainCommasQuotesAndLineBreaks) {
  const CsvTable table(
      "\xEF\xBB\xBF"
      "a,b\r\n\"1,5\",\"say \"\"x\"\"\nand go\"\r\n\n2,\n",
      "t.csv");
  ASSERT_EQ(table.num_rows(), 2);
  EXPECT_EQ(table.text(0, "a"), "1,5");
  EXPECT_EQ(table.text(0, "b"), "say \"x\"\nand go");
  EXPECT_EQ(table.integer(1, "a", 0, 9), 2);
  EXPECT_EQ(table.text(1, "b"), "");
  EXPECT_TRUE(table.has("b"));
  EXPECT_FALSE(table.has("c"));
}

TEST(Csv, ErrorsNameFileRowAndColumn) {
  EXPECT_EQ(error_from([] { CsvTable("a,b\n1,\x1b[2J\n", "t.csv"); }),
            "t.csv: row 1: '\\x1b[2J' has control characters");
  EXPECT_EQ(error_from([] { CsvTable("", "t.csv"); }), "t.csv: expected a header and rows, got nothing");
  EXPECT_EQ(error_from([] { CsvTable("a,b,a\n", "t.csv"); }), "t.csv: header: column 'a' is there twice");
  EXPECT_EQ(error_from([] { CsvTable("a,b\n1,2\n3\n", "t.csv"); }),
            "t.csv: row 2: expected 2 cells, as the header has, got 1");
  EXPECT_EQ(error_from([] { CsvTable("a\n\"1\n", "t.csv"); }), "t.csv: row 1: a quote is not closed");
  EXPECT_EQ(error_from([] { CsvTable("a\n\"1\"2\n", "t.csv"); }),
            "t.csv: row 1: expected a comma or the end of the line after a quote");
  const CsvTable table("layers,time\n12,nan\n-1,2.5x\n", "t.csv");
  EXPECT_EQ(error_from([&] { table.text(0, "layer"); }),
            "t.csv: header: expected a column 'layer'; did you mean 'layers'?");
  EXPECT_EQ(error_from([&] { (void)table.number(0, "time", 0, 1); }),
            "t.csv: row 1, column time: expected a number, got 'nan'");
  EXPECT_EQ(error_from([&] { (void)table.number(1, "time", 0, 1); }),
            "t.csv: row 2, column time: expected a number, got '2.5x'");
  EXPECT_EQ(error_from([&] { (void)table.integer(1, "layers", 1, 10); }),
            "t.csv: row 2, column layers: expected a whole number from 1 to 10, got '-1'");
}

TEST(Numbers, AreDecimalWithoutBlanksAndPlusSign) {
  for (const auto& [text, value, rest] : {std::tuple("60GiB", 60.0, "GiB"),
                                          {"-1.5e3", -1500.0, ""},
                                          {".5,", 0.5, ","},
                                          {"0x10", 0.0, "x10"},
                                          {"1-2", 1.0, "-2"},
                                          {"0.1", 0.1, ""}}) {
    const LeadingNumber number = leading_number(text);
    EXPECT_TRUE(number.found) << text;
    EXPECT_EQ(number.value, value) << text;
    EXPECT_EQ(number.rest, rest) << text;
  }
  for (const char* text : {"", "+1", " 1", "e5", "GiB", "1e400"}) EXPECT_FALSE(leading_number(text).found) << text;
  double value = 0;
  EXPECT_TRUE(parse_number("2.25", value));
  EXPECT_EQ(value, 2.25);
  EXPECT_FALSE(parse_number("2.25 ", value));
}

TEST(FileSet, LeavesAllFilesOrNone) {
  const TemporaryFolder folder;
  const auto write = [&](bool fails) {
    FileSet files(folder.path("set"));
    files.write(".a", [](const ByteSink& sink) { sink("one"); });
    files.write(".b", [&](const ByteSink& sink) {
      sink("two");
      if (fails) throw InputError("stopped");
    });
    files.commit();
  };
  EXPECT_THROW(write(true), InputError);
  EXPECT_EQ(folder.num_files(), 0);
  write(false);
  EXPECT_EQ(folder.num_files(), 2);
  EXPECT_EQ(read_file(folder.path("set.b")), "two");
  EXPECT_THAT(
      error_from([&] { FileSet(folder.path("none/set")).write(".a", [](const ByteSink& sink) { sink("one"); }); }),
      HasSubstr("none/set.a: cannot create"));
  // What a killed process has left. Numbers of processes are below 2^22.
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  std::filesystem::create_directory(folder.path(std::string("set.") + host + ".99999999.0.tmp"));
  write(false);
  EXPECT_EQ(folder.num_files(), 2);
}

}  // namespace
}  // namespace sluice::test
