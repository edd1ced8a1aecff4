#include "model/scenario/pipeline_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "model/errors.h"

namespace sluice::test {
namespace {

using Layers = std::vector<int>;

Layers layers_of_layout(const std::string& text) {
  const PipelineLayout layout = read_layout(text);
  EXPECT_EQ(layout.mtp_layers, 0);
  return layout.layers;
}

TEST(PipelineLayout, IsReadAsByMegatron) {
  EXPECT_EQ(layers_of_layout("EttL"), (Layers{2}));
  EXPECT_EQ(layers_of_layout("Et*3|(tt|)*2ttL"), (Layers{3, 2, 2, 2}));
  EXPECT_EQ(layers_of_layout("E|t|t*2,| (t|)*2 L"), (Layers{0, 1, 2, 1, 1, 0}));
  EXPECT_EQ(layers_of_layout("Et|(t*2|)*62tL").size(), 64U);
  EXPECT_EQ(layers_of_layout("E|(t|t|)*3L"), (Layers{0, 1, 1, 1, 1, 1, 1, 0}));
}

// DeepSeek-V3's 61 layers: on 32 virtual stages in Megatron-Core's model zoo and Megatron-Bridge's recipe, both without
// the layer of multi-token prediction, and with it on pp 4, vpp 4 in Megatron-Bridge's for GB200.
TEST(PipelineLayout, OfPublishedRecipes) {
  const auto sum = [](const Layers& layers) { return std::accumulate(layers.begin(), layers.end(), 0); };
  const Layers zoo = layers_of_layout("Et|(tt|)*30L");
  EXPECT_EQ(zoo.size(), 32U);
  EXPECT_EQ(sum(zoo), 61);
  EXPECT_EQ(zoo.back(), 0);
  EXPECT_EQ(layout_of(zoo), "Et|(t*2|)*30L");
  const Layers bridge = layers_of_layout("Et*2|(tt|)*22t|(tt|)*7L");
  EXPECT_EQ(bridge.size(), 32U);
  EXPECT_EQ(sum(bridge), 61);
  EXPECT_EQ(bridge[23], 1);
  EXPECT_EQ(layers_of_layout("Et*9|t*7|t*7|t*7|t*8|t*8|t*8|t*7L"), (Layers{9, 7, 7, 7, 8, 8, 8, 7}));
}

TEST(PipelineLayout, WithMultiTokenPrediction) {
  const PipelineLayout bridge = read_layout("Et*4|(t*4|)*14tmL");
  Layers layers(16, 4);
  layers.back() = 1;
  EXPECT_EQ(bridge, (PipelineLayout{.layers = layers, .mtp_layers = 1, .mtp_stage = 15}));
  EXPECT_EQ(layout_of(bridge.layers, 1), "Et*4|(t*4|)*14tmL");
  EXPECT_EQ(layout_of(bridge.layers, 1, 15), "Et*4|(t*4|)*14tmL");
  // Megatron-Core's example: the prediction alone, before an only loss.
  const PipelineLayout alone = read_layout("Et*3|(tt|)*29,m|L");
  EXPECT_EQ(alone.layers.size(), 32U);
  EXPECT_EQ(alone.layers[30], 0);
  EXPECT_EQ(alone.mtp_stage, 30);
  EXPECT_EQ(layout_of(alone.layers, 1, 30), "Et*3|(t*2|)*29m|L");
  EXPECT_EQ(read_layout("Etm*2L"), (PipelineLayout{.layers = {1}, .mtp_layers = 2, .mtp_stage = 0}));
  for (const PipelineLayout& each : {PipelineLayout{{2, 2, 2, 0}, 2, 2},
                                     {{2, 2, 2, 2}, 1, 3},
                                     {{3}, 1, 0},
                                     {{2, 2, 0, 0}, 1, 1},
                                     {{2, 2, 0, 0}, 3, 2}}) {
    const std::string text = layout_of(each.layers, each.mtp_layers, each.mtp_stage);
    EXPECT_EQ(read_layout(text), each) << text;
  }
}

// The examples of Megatron-LM's pull requests 5318 and 5329.
TEST(PipelineLayout, WithPredictionsAndLossesOnSeveralStages) {
  const PipelineLayout both = read_layout("E|(t|)*10m|m|m|LL|LL");
  EXPECT_EQ(both.layers.size(), 16U);
  EXPECT_EQ(both.mtp_layers, 3);
  EXPECT_EQ(both.mtp_stage, 11);
  EXPECT_EQ(both.predictions[13], (Predictions{.layers = 1}));
  EXPECT_EQ(both.predictions[14], (Predictions{.losses = 2}));
  EXPECT_EQ(layout_of(both.layers, 3, 11, both.predictions), "E|(t|)*10(m|)*3L*2|L*2");
  const PipelineLayout one_loss = read_layout("E|(t|)*11m|m|m|L");
  EXPECT_EQ(one_loss.predictions[15], (Predictions{.losses = 4}));
  EXPECT_EQ(layout_of(one_loss.layers, 3, 12, one_loss.predictions), "E|(t|)*11(m|)*3L");
  for (const PipelineLayout& read : {both, one_loss, read_layout("Et|tm*2L|L*2"), read_layout("Etm|mL*3")}) {
    EXPECT_EQ(read_layout(layout_of(read.layers, read.mtp_layers, read.mtp_stage, read.predictions)), read);
  }
  EXPECT_EQ(read_layout("Et|tmLL"), read_layout("Et|tmL"));
}

TEST(PipelineLayout, IsReadBackAsWritten) {
  for (const Layers& layers : {Layers{4}, Layers{0, 4, 4, 0}, Layers{1, 2, 2, 2, 1}, Layers{3, 4, 4, 1, 0, 4, 2},
                               Layers{0, 0}, Layers(64, 2)}) {
    EXPECT_EQ(layers_of_layout(layout_of(layers)), layers) << layout_of(layers);
  }
  EXPECT_EQ(layout_of(Layers{1, 2, 2, 2, 1}), "Et|(t*2|)*3tL");
  EXPECT_EQ(layout_of(Layers{0, 4, 3, 0}), "E|t*4|t*3|L");
}

TEST(PipelineLayout, ErrorsNameThePlace) {
  const auto error = [](const std::string& text) {
    try {
      read_layout(text);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(""), "expected an embedding E in the first stage");
  EXPECT_EQ(error("Ett"), "expected a loss L in the last stage");
  EXPECT_EQ(error("tt|EL"), "stage 1: expected one embedding E, at the begin of the first stage");
  EXPECT_EQ(error("EtL|t"), "stage 0: expected the loss L at the end of the last stage");
  EXPECT_EQ(error("Et*100001|L"), "position 4: expected a number of at most 100000, got 100001");
  EXPECT_EQ(error("E(t|)* 99999999999tL"), "position 8: expected a number of at most 100000, got 99999999999");
  EXPECT_EQ(error("EtmtL"), "stage 0: expected transformer layers t before multi-token prediction m");
  EXPECT_EQ(error("Etm|tL"), "stage 1: expected transformer layers t before multi-token prediction m");
  EXPECT_EQ(error("Et|tm|mtL"), "stage 2: expected transformer layers t before multi-token prediction m");
  EXPECT_EQ(error("Et|tmL|mL"), "stage 1: expected the loss L at the end of the last stage");
  EXPECT_EQ(error("Et|tm|mL|L"), "expected one loss L, or 3 for the main model and each m, got 2");
  EXPECT_EQ(error("Et|tLL"), "expected one loss L, or 1 for the main model and each m, got 2");
  EXPECT_EQ(error("mEtL"), "stage 0: expected one embedding E, at the begin of the first stage");
  EXPECT_EQ(error("EtxL"), "position 3: expected E, t, m, L, | or (, got 'x'");
  EXPECT_EQ(error("Et*|L"), "position 4: expected a positive number after *, got '|'");
  EXPECT_EQ(error("E(t|L"), "position 6: expected E, t, m, L, | or (, got the end");
  EXPECT_EQ(error("E(t|)L"), "position 6: expected * and a number after a group, got 'L'");
  EXPECT_EQ(error("E((t|)*2)*2L"), "position 3: expected E, t, m, L, | or (, got '('");
  EXPECT_EQ(error("E(t*99999|)*99999L"), "position 18: expected a shorter layout, got 'L'");
  EXPECT_EQ(error("E(|)*40000L"), "more than 32767 stages");
}

}  // namespace
}  // namespace sluice::test
