#include "exec/run/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "tests/support/command.h"
#include "tests/support/count_allocations.h"
#include "tests/support/errors.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

struct Batch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

Batch fill(const TokenSource& source, std::int64_t step, std::int64_t first, int sequences, std::int64_t from,
           std::int64_t count) {
  Batch batch;
  batch.tokens.assign(sequences * count, -1);
  batch.targets.assign(sequences * count, -1);
  source.fill(step, first, sequences, from, count, batch.tokens, batch.targets);
  return batch;
}

class TokenSourceTest : public ::testing::Test {
 protected:
  TokenSourceTest() {
    for (int i = 0; i < 5000; ++i) text_ += static_cast<char>(i * i % 251);
    text_ += '\xff';
    write_file_whole(path(), text_);
  }
  std::string path() const { return folder_.path("text"); }
  TokenSource text(std::int64_t length, std::uint64_t seed = 1) const {
    return TokenSource::of_text(path(), 256, length, seed);
  }

  TemporaryFolder folder_;
  std::string text_;
};

TEST_F(TokenSourceTest, PartsOfABatchAgreeWithTheWholeBatch) {
  for (const TokenSource& source : {text(32), TokenSource::synthetic(40, 32, 1)}) {
    const Batch whole = fill(source, 7, 0, 6, 0, 32);
    for (const int per : {1, 2, 3}) {
      for (const std::int64_t slice : {1, 8, 16, 32}) {
        for (int first = 0; first < 6; first += per) {
          for (std::int64_t from = 0; from < 32; from += slice) {
            const Batch part = fill(source, 7, first, per, from, slice);
            for (int s = 0; s < per; ++s) {
              for (std::int64_t i = 0; i < slice; ++i) {
                const auto at = static_cast<std::size_t>((first + s) * 32 + from + i);
                const auto in_part = static_cast<std::size_t>(s * slice + i);
                ASSERT_EQ(part.tokens[in_part], whole.tokens[at]);
                ASSERT_EQ(part.targets[in_part], whole.targets[at]);
              }
            }
          }
        }
      }
    }
    for (std::size_t i = 0; i < whole.tokens.size(); ++i) {
      if (i % 32 != 31) {
        ASSERT_EQ(whole.targets[i], whole.tokens[i + 1]);
      }
    }
  }
}

TEST_F(TokenSourceTest, WindowsCoverTheText) {
  const std::int64_t length = 100;
  const TokenSource source = text(length);
  std::size_t first = text_.size();
  std::size_t last = 0;
  std::set<std::size_t> places;
  for (int step = 0; step < 400; ++step) {
    const Batch batch = fill(source, step, 0, 1, 0, length);
    std::string window;
    for (const std::int32_t token : batch.tokens) window += static_cast<char>(token);
    window += static_cast<char>(batch.targets.back());
    const std::size_t at = text_.find(window);
    ASSERT_NE(at, std::string::npos) << step;
    // i^2 mod 251 repeats after 251, so that `at` is the position modulo 251, except for the window with the last byte.
    first = std::min(first, at);
    last = std::max(last, at);
    places.insert(at);
  }
  EXPECT_LT(first, 5U);
  EXPECT_GT(last, 240U);
  // 400 draws out of 251 residues hit 251 (1 - (1 - 1/251)^400) = 200 of them in the mean.
  EXPECT_GT(places.size(), 160U);
}

TEST_F(TokenSourceTest, WindowMayBeTheWholeText) {
  const std::int64_t length = static_cast<std::int64_t>(text_.size()) - 1;
  const Batch batch = fill(text(length), 3, 5, 1, 0, length);
  EXPECT_EQ(batch.tokens.front(), 0);
  EXPECT_EQ(batch.targets.back(), 255);  // bytes above 127 are not negative
  EXPECT_THAT(test::error_from([&] { text(length + 1); }), HasSubstr(path() + ": expected at least 5002 bytes"));
}

TEST_F(TokenSourceTest, SampleDependsOnSeedStepAndIndex) {
  for (const bool synthetic : {false, true}) {
    const auto sample = [&](std::uint64_t seed, int step, int index) {
      const TokenSource source = synthetic ? TokenSource::synthetic(64, 24, seed) : text(24, seed);
      return fill(source, step, index, 1, 0, 24).tokens;
    };
    std::set<std::vector<std::int32_t>> samples;
    for (std::uint64_t seed : {0, 1, 2}) {
      for (int step = 0; step < 3; ++step) {
        for (int index = 0; index < 3; ++index) samples.insert(sample(seed, step, index));
      }
    }
    // 27 draws: of the 251 different windows of the text, two may coincide by chance (27 x 26 / 2 / 251 = 1.4 pairs).
    EXPECT_GE(samples.size(), synthetic ? 27U : 20U);
    EXPECT_EQ(sample(2, 2, 1), sample(2, 2, 1));
  }
}

TEST_F(TokenSourceTest, SyntheticTokensHaveTheStatedEntropy) {
  const int vocabulary = 50;
  const std::int64_t length = 2000;
  const TokenSource source = TokenSource::synthetic(vocabulary, length, 3);
  std::map<std::int32_t, std::map<std::int32_t, int>> followers;
  const Batch batch = fill(source, 0, 0, 20, 0, length);
  std::map<std::int32_t, int> seen;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    ASSERT_GE(batch.tokens[i], 0);
    ASSERT_LT(batch.tokens[i], vocabulary);
    ++followers[batch.tokens[i]][batch.targets[i]];
    ++seen[batch.tokens[i]];
  }
  // The conditional entropy of the successor of a token: at most 1.75 bits, and above 0.
  double nats = 0;
  for (const auto& [token, counts] : followers) {
    EXPECT_LE(counts.size(), 4U) << token;
    for (const auto& [next, count] : counts) {
      nats -= count * std::log(static_cast<double>(count) / seen[token]);
    }
  }
  nats /= static_cast<double>(batch.tokens.size());
  EXPECT_LT(nats, 1.75 * std::log(2.0) + 0.01);
  EXPECT_GT(nats, 0.8);
  EXPECT_GT(followers.size(), 20U) << "the chain reaches too few tokens";
}

TEST_F(TokenSourceTest, FillAllocatesNoMemory) {
  for (const TokenSource& source : {text(32), TokenSource::synthetic(40, 32, 1)}) {
    Batch batch = fill(source, 0, 0, 4, 0, 32);
    const std::int64_t before = test::allocations();
    source.fill(1, 4, 4, 16, 16, std::span(batch.tokens).first(64), std::span(batch.targets).first(64));
    EXPECT_EQ(test::allocations(), before);
  }
}

TEST_F(TokenSourceTest, InvalidSourcesAreRejected) {
  const auto error_of = [](const std::string& file, int vocabulary, std::int64_t length) -> std::string {
    return test::error_from([&] { TokenSource::of_text(file, vocabulary, length, 1); }, "none");
  };
  EXPECT_THAT(error_of(folder_.path("missing"), 256, 8), HasSubstr("missing: cannot open"));
  EXPECT_THAT(error_of(folder_.path(), 256, 8), HasSubstr("is a folder"));
  write_file_whole(folder_.path("empty"), "");
  EXPECT_THAT(error_of(folder_.path("empty"), 256, 8), HasSubstr("empty: expected at least 9 bytes"));
  EXPECT_THAT(error_of(path(), 255, 8), HasSubstr("expected a vocabulary of at least 256, got 255"));
  EXPECT_THAT(error_of(path(), 256, 0), HasSubstr("sequence length"));
  EXPECT_EQ(error_of(path(), 50257, 8), "none");
  EXPECT_THROW(TokenSource::synthetic(1, 8, 1), InputError);
  EXPECT_THROW(TokenSource::synthetic(8, -1, 1), InputError);
}

}  // namespace
}  // namespace sluice::test
