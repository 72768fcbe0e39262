// Sessions of a decoder: generation and scoring over weights that they share.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "infer/generate.hpp"
#include "infer/score.hpp"
#include "model/gpt2_decoder.hpp"
#include "runtime/planned.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

constexpr GPT2Config kSizes{.layers = 2, .heads = 2, .channels = 32, .vocab = 50, .context = 24};
const std::vector<std::int32_t> kPrompt = {3, 1, 4, 1, 5, 9, 2, 6};

DecoderWeights random_weights(DType dtype) {
  const auto decoder = std::make_shared<GPT2Decoder>(kSizes);
  const auto planned = std::make_shared<Planned<DecoderParameters>>([=](Allocator& allocator) {
    return decoder->allocate_parameters(dtype, Category::parameters, "", allocator);
  });
  planned->take(Device{});
  decoder->initialize(1, planned->tensors());
  return {.decoder = decoder, .dtype = dtype, .parameters = planned->tensors(), .memory = planned};
}

// The logits after the prompt and after each of many more tokens, beyond the context.
std::vector<float> logits_of(Generator& generator) {
  std::vector<float> all;
  const auto keep = [&](std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  keep(generator.append(kPrompt));
  for (std::int32_t token = 0; token < 40; ++token) keep(generator.append({&token, 1}));
  return all;
}

std::vector<float> losses_of(Scorer& scorer) {
  const std::span<const std::int32_t> tokens(kPrompt);
  const std::span<const float> losses = scorer.score(
      std::vector<Scorer::Sequence>{{tokens.first(7), tokens.last(7)}, {tokens.first(3), tokens.last(3)}});
  return {losses.begin(), losses.end()};
}

TEST(DecoderSessions, ShareWeights) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DecoderWeights weights = random_weights(dtype);
    std::vector<float> logits, losses;
    {
      Context context{ContextOptions{}};
      Generator generator(context, weights);
      EXPECT_EQ(generator.plan().arena_bytes[static_cast<int>(Category::parameters)], 0u);
      logits = logits_of(generator);
      Scorer scorer(context, weights, 2, 16);
      losses = losses_of(scorer);
      EXPECT_EQ(losses.size(), 10u);
    }
    const std::weak_ptr<const void> memory = weights.memory;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, weights] {
        ContextOptions single;
        single.threads = 1;
        Context own(single);
        Generator generator(own, weights);
        EXPECT_EQ(logits_of(generator), logits) << name_of(dtype);
        Scorer scorer(own, weights, 2, 16);
        EXPECT_EQ(losses_of(scorer), losses) << name_of(dtype);
      });
    }
    weights = {};  // the sessions keep the memory
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    EXPECT_TRUE(memory.expired());
  }
}

TEST(DecoderParameters, AreFoundByName) {
  const DecoderWeights weights = random_weights(DType::bf16);
  EXPECT_EQ(weights.parameters.at("h.1.mlp.c_fc.weight").shape, (Shape{128, 32}));
  EXPECT_EQ(weights.parameters.at("h.1.mlp.c_fc.weight").dtype, DType::bf16);
  EXPECT_EQ(weights.parameters.at("ln_f.bias").dtype, DType::f32);
  EXPECT_NE(message_of([&] { weights.parameters.at("h.2.ln_1.weight"); }).find("h.2.ln_1.weight"),
            std::string::npos);
}

}  // namespace
}  // namespace warpwright
