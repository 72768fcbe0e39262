#include "data/ngram.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "data/shard.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

class NgramTest : public TestFolder {
 protected:
  TokenStream stream(Split split, const std::vector<std::int32_t>& ids, std::int64_t vocabulary) {
    ShardWriter writer(folder, std::string(name_of(split)), vocabulary, 1000);
    writer.append(ids);
    writer.finish();
    return TokenStream(folder, split, vocabulary);
  }
};

// Worked by hand: train is 0 1 0 1 0 2, V = 4. The counts are 3, 2, 1, 0, so n1 = 1, n2 = 1, D = 1/3.
TEST_F(NgramTest, UnigramIsTheDiscountedCounts) {
  const TokenStream train = stream(Split::train, {0, 1, 0, 1, 0, 2}, 4);
  const TokenStream val = stream(Split::val, {0, 3, 2, 2}, 4);
  const double shared = (1.0 / 3) * 3 / 6 / 4;
  const double p3 = shared, p2 = (1 - 1.0 / 3) / 6 + shared;
  EXPECT_NEAR(ngram_loss(train, val, 2, 1, 4).unigram, -(std::log(p3) + std::log(p2)) / 2, 1e-12);
}

// The pairs are 01 ×2, 10 ×2, 02 ×1, so n1 = 1, n2 = 2, D = 1/5. One word precedes each of 0, 1 and 2, so n1
// = 3, n2 = 0, D0 = 1.
TEST_F(NgramTest, BigramIsInterpolatedKneserNey) {
  const TokenStream train = stream(Split::train, {0, 1, 0, 1, 0, 2}, 4);
  const TokenStream val = stream(Split::val, {0, 1, 3, 0}, 4);
  const double lower = 1.0 * 3 / 3 / 4;  // all mass is discounted and spread evenly
  // Two kinds of words followed 0, three times in all.
  const double p01 = (2 - 0.2) / 3 + 0.2 * 2 / 3 * lower;
  const double p13 = 0.2 * 1 / 2 * lower;
  EXPECT_NEAR(ngram_loss(train, val, 2, 1, 4).bigram, -(std::log(p01) + std::log(p13)) / 2, 1e-12);
}

TEST_F(NgramTest, DistributionsSumToOne) {
  const TokenStream train = stream(Split::train, {0, 1, 0, 3, 3, 3, 0, 2, 1, 1, 4, 0, 1}, 6);
  double sum = 0;
  for (std::int32_t w = 0; w < 6; ++w) {
    std::filesystem::remove(folder / "val_000000.bin");
    sum += std::exp(-ngram_loss(train, stream(Split::val, {3, w}, 6), 1, 1, 6).bigram);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

}  // namespace
}  // namespace warpwright
