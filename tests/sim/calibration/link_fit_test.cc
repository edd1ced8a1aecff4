#include "sim/calibration/link_fit.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "model/cost/collectives.h"
#include "model/errors.h"
#include "model/input/json_reader.h"
#include "sim/calibration/catalogue_files.h"
#include "tests/support/errors.h"
#include "traces/chrome/trace_events.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MeasuredLink times_of(const Link& link) {
  Cluster node;
  node.gpus_per_node = 8;
  node.intra_node = link;
  const Collectives collectives(node, Placement(Training{}, node));
  MeasuredLink out;
  out.origin = "us";
  for (const int gpus : {2, 4, 8}) {
    for (double bytes = 1e5; bytes < 1e9; bytes *= 3) {
      const double seconds = collectives.all_reduce_s({.size = gpus, .nodes = 1, .per_node = gpus}, bytes);
      out.all_reduces.push_back({.gpus = gpus, .bytes = bytes, .seconds = seconds});
    }
  }
  return out;
}

TEST(LinkFit, RecoversTheConstantsOfTheTimes) {
  Link link = catalogue_link("nvlink4");
  link.collective_latency_s = 1.7e-5;
  link.collective_step_s = 3e-6;
  link.collective_efficiency = 0.5;
  link.ring_bytes_per_s = {1e11, 2e11, 2e11, 225e9, 225e9, 225e9};  // of 2 to 7
  const LinkFit fit = fit_link(catalogue_link("nvlink4"), times_of(link));
  EXPECT_NEAR(fit.link.collective_latency_s, 1.7e-5, 3e-7);
  EXPECT_NEAR(fit.link.collective_step_s, 3e-6, 1e-7);
  EXPECT_NEAR(fit.link.collective_efficiency, 0.5, 0.005);
  // Three GPUs were not timed and have the bandwidth of four; 5 to 7 that of eight.
  ASSERT_EQ(fit.link.ring_bytes_per_s.size(), 6u);
  EXPECT_NEAR(fit.link.ring_bandwidth(2), 1e11, 1e9);
  EXPECT_NEAR(fit.link.ring_bandwidth(3), 2e11, 2e9);
  EXPECT_NEAR(fit.link.ring_bandwidth(4), 2e11, 2e9);
  EXPECT_NEAR(fit.link.ring_bandwidth(7), 225e9, 2e9);
  EXPECT_NEAR(fit.link.ring_bandwidth(8), 225e9, 2e9);
  EXPECT_LT(fit.all_reduce.held_out.worst, 0.01);
  EXPECT_EQ(fit.link.latency_s, catalogue_link("nvlink4").latency_s);  // no messages were timed
}

TEST(LinkFit, RingIsNotFasterThanItsLinks) {
  Link link = catalogue_link("nvlink4");
  link.collective_efficiency = 1.5;  // as fitted to times of another link
  link.ring_bytes_per_s.clear();
  const LinkFit fit = fit_link(catalogue_link("nvlink4"), times_of(link));
  for (int gpus = 2; gpus <= 8; ++gpus) EXPECT_LE(fit.link.ring_bandwidth(gpus), 1.000001 * 450e9);
}

TEST(LinkFit, ReadsBothKindsOfTables) {
  const CsvTable timed("gpu,gpus,bytes,time_us\na100,4,1000,50\nv100,2,8,9\nmi300,2,8,9\n", "t.csv");
  ASSERT_TRUE(has_measured_links(timed));
  const auto times = read_measured_links(timed);
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times.at("nvlink3").all_reduces.at(0).gpus, 4);
  EXPECT_DOUBLE_EQ(times.at("nvlink2").all_reduces.at(0).seconds, 9e-6);

  const std::string head = "network,collective,workers,devices_per_node,min_bytes,max_bytes,alpha_us,busbw_GBps\n";
  const CsvTable lines(head +
                           "h100_dgx,send_recv,2,2,1,9,7,300\nh100_dgx,send_recv,2,1,1,9,20,36\n"
                           "h100_dgx,all_reduce,4,4,1000,4000,30,150\nh100_dgx,all_reduce,4,2,1000,4000,30,150\n",
                       "l.csv");
  ASSERT_TRUE(has_measured_links(lines));
  const auto read = read_measured_links(lines);
  EXPECT_DOUBLE_EQ(read.at("nvlink4").message_latency_s, 7e-6);
  EXPECT_DOUBLE_EQ(read.at("infiniband-ndr").message_bytes_per_s, 36e9);
  // 1000, 2000 and 4000 bytes over four: 30 us and 1.5 times the bytes at 150 GB/s.
  ASSERT_EQ(read.at("nvlink4").all_reduces.size(), 3u);
  EXPECT_DOUBLE_EQ(read.at("nvlink4").all_reduces[2].seconds, 30e-6 + 4e-8);
  EXPECT_EQ(
      test::error_from([&] { read_measured_links(CsvTable(head + "h100_dgx,send_recv,2,2,1,9,-7,300\n", "n.csv")); }),
      "n.csv: row 1, column alpha_us: expected a number from 0 to 1000000, got '-7'");
}

TEST(LinkFit, FindsTheBandwidthOfAllToAlls) {
  std::string rows = "gpu,op,gpus,elements_fp16,latency_us\nB200,alltoall,8,1000,1\nB200,all_gather,8,90000000,1\n";
  Cluster node;
  node.gpus_per_node = 8;
  node.intra_node = catalogue_link("nvlink5");
  node.intra_node.exchange_efficiency = 0.45;
  node.intra_node.exchange_copy_rate = 0.65;  // limits 2 GPUs alone, whose own part is half of all
  const Collectives collectives(node, Placement(Training{}, node));
  for (const int gpus : {2, 4, 8}) {
    for (const double elements : {2e7, 8e7, 3e8}) {
      const double seconds = collectives.all_to_all_s({.size = gpus, .nodes = 1, .per_node = gpus}, 2 * elements);
      rows += fmt::format("B200,alltoall,{},{},{}\n", gpus, elements, 1e6 * seconds);
    }
  }
  const auto read = read_measured_links(CsvTable(rows, "n.csv"));
  const LinkFit fit = fit_link(catalogue_link("nvlink5"), read.at("nvlink5"));
  EXPECT_EQ(fit.all_to_all.in_sample.rows, 9);  // less the small one and the all-gather
  EXPECT_NEAR(fit.link.exchange_efficiency, 0.45, 1e-3);
  EXPECT_NEAR(fit.link.exchange_copy_rate, 0.65, 1e-2);
  EXPECT_GT(fit.all_to_all.known.mean, 0.2);
  const Json file = parse_json(link_file_with("nvlink5", fit, "sluice calibrate"), "out");
  EXPECT_NEAR(file["exchange_efficiency"]["value"].get<double>(), 0.45, 2e-3);
}

TEST(CatalogueFiles, ContainFittedConstantsAndKeepOtherLines) {
  Link link = catalogue_link("infiniband-ndr");
  link.collective_step_s = 3e-6;
  const LinkFit fit = fit_link(catalogue_link("infiniband-ndr"), times_of(link));
  const std::string text = link_file_with("infiniband-ndr", fit, "sluice calibrate");
  const Json json = parse_json(text, "out");
  EXPECT_NEAR(json["collective_step_s"]["value"].get<double>(), 3e-6, 1e-7);
  EXPECT_THAT(json["collective_step_s"]["source"].get<std::string>(),
              HasSubstr("sluice calibrate, 27 all-reduces (us)"));
  EXPECT_EQ(json["ring_bandwidths"]["bytes_per_s"].size(), 6u);  // added
  EXPECT_EQ(json["latency_s"]["value"], 1.91e-5);                // kept
  // The file is valid in a cluster.
  const Json node = {{"node", {{"gpu", "h100-80gb"}, {"gpus", 8}, {"intra_node", "nvlink4"}, {"inter_node", json}}}};
  EXPECT_EQ(cluster_from_json(JsonReader(node, "out")).inter_node.name, "InfiniBand NDR");

  GpuFit gpu{.gpu = catalogue_gpu("v100-32gb"),
             .origin = "us \"quoted\"",
             .gemm = {},
             .narrow = {},
             .grouped = {},
             .attention = {}};
  gpu.gpu.gemm.launch_s = 7.126e-6;
  gpu.gemm.in_sample = {.rows = 12, .mean = 0.05, .median = 0.04, .worst = 0.2};
  const Json found = parse_json(gpu_file_with("v100-32gb", gpu, "sluice calibrate"), "out");
  EXPECT_EQ(found["gemm"]["launch_s"], 7.13e-6);
  EXPECT_EQ(found["gemm"]["source"],
            "sluice calibrate, 12 GEMMs (us \"quoted\"): mean error 5.0 %, held out 0.0 %, worst 0 %; group_s given");
  EXPECT_EQ(found["sms"]["value"], 80);
  EXPECT_THROW(gpu_file_with("v200", gpu, ""), InputError);

  gpu.gpu = catalogue_gpu("gb200-186gb");
  gpu.gpu.attention_8bit_backward->overhead_keys = 321;
  gpu.attention[1][1].in_sample = {.rows = 12, .mean = 0.05, .median = 0.04, .worst = 0.2};
  const Json narrow = parse_json(gpu_file_with("gb200-186gb", gpu, "sluice calibrate"), "out");
  EXPECT_EQ(narrow["attention_8bit_backward"]["overhead_keys"], 321);
  EXPECT_EQ(narrow["attention_8bit_backward"]["padded_values"], false);
  const Json own = {
      {"node", {{"gpu", narrow}, {"gpus", 4}, {"intra_node", "nvlink5"}, {"inter_node", "infiniband-ndr"}}}};
  EXPECT_EQ(cluster_from_json(JsonReader(own, "out")).gpu.attention_8bit_backward->overhead_keys, 321);
}

TEST(LinkFit, CatalogueAgreesWithTheTables) {
  const char* folder = std::getenv("SLUICE_DATA");
  if (folder == nullptr) {
    std::cerr << "SKIPPED: SLUICE_DATA does not name the folder of measured data\n";
    GTEST_SKIP();
  }
  for (const auto& [name, measured] :
       read_measured_links(read_csv(std::string(folder) + "/nccl_allreduce_one_node.csv"))) {
    const Link known = catalogue_link(name);
    const LinkFit fit = fit_link(known, measured);
    EXPECT_LT(fit.all_reduce.held_out.mean, 0.06) << name;
    EXPECT_NEAR(fit.link.collective_step_s / known.collective_step_s, 1, 0.02) << name;
    for (int gpus = 2; gpus <= 8; ++gpus) {
      EXPECT_NEAR(fit.link.ring_bandwidth(gpus) / known.ring_bandwidth(gpus), 1, 0.01) << name << gpus;
    }
  }
  traces::TraceSource collectives(std::string(folder) + "/nccl_one_node.csv.gz");
  for (const auto& [name, measured] : read_measured_links(CsvTable(collectives.text(), "nccl_one_node"))) {
    const LinkFit fit = fit_link(catalogue_link(name), measured);
    EXPECT_NEAR(fit.link.exchange_efficiency / catalogue_link(name).exchange_efficiency, 1, 0.01) << name;
    EXPECT_NEAR(fit.link.exchange_copy_rate / catalogue_link(name).exchange_copy_rate, 1, 0.01) << name;
    EXPECT_LT(fit.all_to_all.held_out.mean, 0.12) << name;
  }
}

}  // namespace
}  // namespace sluice::test
