#include "model/scenario/pipeline_layout.h"

#include <gtest/gtest.h>

#include "model/errors.h"

namespace sluice::test {
namespace {

using Layers = std::vector<int>;

TEST(PipelineLayout, IsReadAsByMegatron) {
  EXPECT_EQ(layers_of_layout("EttL"), (Layers{2}));
  EXPECT_EQ(layers_of_layout("Et*3|(tt|)*2ttL"), (Layers{3, 2, 2, 2}));
  EXPECT_EQ(layers_of_layout("E|t|t*2,| (t|)*2 L"), (Layers{0, 1, 2, 1, 1, 0}));
  EXPECT_EQ(layers_of_layout("Et|(t*2|)*62tL").size(), 64U);
  EXPECT_EQ(layers_of_layout("E|(t|t|)*3L"), (Layers{0, 1, 1, 1, 1, 1, 1, 0}));
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
      layers_of_layout(text);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(""), "expected an embedding E in the first stage");
  EXPECT_EQ(error("Ett"), "expected a loss L in the last stage");
  EXPECT_EQ(error("tt|EL"), "stage 1: expected one embedding E, at the begin of the first stage");
  EXPECT_EQ(error("EtL|t"), "stage 0: expected the loss L at the end of the last stage");
  EXPECT_EQ(error("Et*4|(t*4|)*14tmL"),
            "position 16: expected E, t, L or | (multi-token prediction is not modeled), got 'm'");
  EXPECT_EQ(error("Et*|L"), "position 4: expected a positive number after *, got '|'");
  EXPECT_EQ(error("E(t|L"), "position 6: expected E, t, L, | or (, got the end");
  EXPECT_EQ(error("E(t|)L"), "position 6: expected * and a number after a group, got 'L'");
  EXPECT_EQ(error("E((t|)*2)*2L"), "position 3: expected E, t, L, | or (, got '('");
  EXPECT_EQ(error("E(t*99999|)*99999L"), "position 18: expected a shorter layout, got 'L'");
  EXPECT_EQ(error("E(|)*40000L"), "more than 32767 stages");
}

}  // namespace
}  // namespace sluice::test
