// The writers of documents: text, tables and CSV.

#include "tools/command/document.h"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

TEST(Document, FillsPatternsWithValuesInTheirUnits) {
  const OrderedJson values = {
      {"time_s", 0.0032},  {"late_s", -2.5}, {"share", 0.125},  {"bytes", 3 << 29},
      {"tokens", 12345.6}, {"name", "1f1b"}, {"none", nullptr}, {"memory", {{"peaks", {7, 8}}}}};
  EXPECT_EQ(filled("{name}: {time_s:t}, {time_s:+t}, {late_s:+t}", values), "1f1b: 3.2 ms, +3.2 ms, -2.5 s");
  EXPECT_EQ(filled("{share:.1%} {share:+.0p} {bytes:.2G} {bytes:B}", values), "12.5 % +12 pts 1.50 1.50 GiB");
  EXPECT_EQ(filled("{tokens:k} {tokens:.3g} {memory/peaks/1}", values), "12 346 1.23e+04 8");
  EXPECT_EQ(filled("a{none}[ b{none} {share}][ c{absent/too}][ d{name}]", values), "a- d1f1b");
}

TEST(Document, AlignsColumnsAndLeavesOutEmptyOnesAndTheMiddle) {
  OrderedJson rows = OrderedJson::array();
  for (int i = 0; i < 6; ++i) rows.push_back({{"rank", i}, {"what", i == 0 ? "µ" : "long"}});
  EXPECT_EQ(table("  rank={rank}|none=[{none}]|<what={what}|<=[{none}]{rank}", rows, 4),
            "    rank  what\n"
            "       0  µ     0\n"
            "       1  long  1\n"
            "  ... (2 omitted; see --json)\n"
            "       4  long  4\n"
            "       5  long  5\n");
}

// RFC 4180: cells with commas or quotes are quoted, and quotes doubled.
TEST(Document, WritesCsv) {
  const OrderedJson rows = {{{"a", 1.5}, {"b", true}, {"c", R"(x, "y")"}}, {{"a", nullptr}, {"axes", {"8mb"}}}};
  EXPECT_EQ(csv("pp=axes/0,a,b,c", rows), "pp,a,b,c\n,1.5,1,\"x, \"\"y\"\"\"\n8mb,,,\n");
}

TEST(Document, JsonHasTheVersionAndTheScenario) {
  const OrderedJson document = {{"schema", "sluice.simulation/1"}, {"makespan_s", 1}};
  EXPECT_EQ(OrderedJson::parse(json_text(document)).begin().key(), "schema");
  EXPECT_TRUE(OrderedJson::parse(json_text(document)).at("sluice").is_string());
  EXPECT_FALSE(OrderedJson::parse(json_text(document)).contains("scenario"));
  EXPECT_EQ(OrderedJson::parse(json_text(document, {{"schedule", "1f1b"}})).at("scenario").at("schedule"), "1f1b");
}

}  // namespace
}  // namespace sluice::tools
