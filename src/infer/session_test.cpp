// Sessions of a decoder: generation and scoring over weights that they share.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/error.hpp"
#include "infer/decoding_engine.hpp"
#include "infer/initial_weights.hpp"
#include "infer/score.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

constexpr GPT2Config kSizes{.layers = 2, .heads = 2, .channels = 32, .vocab = 50, .context = 24};
const std::vector<std::int32_t> kPrompt = {3, 1, 4, 1, 5, 9, 2, 6};

// The logits of the tokens after the prompt, beyond the context.
std::vector<float> logits_of(DecodingEngine& engine) {
  std::vector<float> all;
  engine.on_logits = [&](DecodingEngine::Id, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  generate(engine, kPrompt, {.max_tokens = 40}, [](std::int32_t) { return true; });
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
    DecoderWeights weights = initial_weights(dtype, kSizes);
    std::vector<float> logits, losses;
    {
      Context context{ContextOptions{}};
      DecodingEngine generator(context, weights);
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
        DecodingEngine generator(own, weights);
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

// Chunks and batches of every size use the scratch that was planned.
void expect_scratch_suffices(Device device) {
  constexpr GPT2Config kWide{.layers = 1, .heads = 4, .channels = 256, .vocab = 500, .context = 256};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const DecoderWeights weights = initial_weights(dtype, kWide, device);
    const std::vector<std::int32_t> tokens(256, 7);
    const std::span<const std::int32_t> all(tokens);
    Context context(ContextOptions{}, device);
    DecodingEngine generator(context, weights, {.sequences = 3});
    std::size_t planned = context.scratch_bytes();
    for (std::size_t n = 1; n <= 256; n += n < 8 ? 1 : 31) {
      for (int i = 0; i < 3; ++i) generator.add(all.first(n), {.max_tokens = 2});
      while (!generator.idle()) generator.step();
      ASSERT_EQ(context.scratch_bytes(), planned) << name_of(dtype) << ", " << n << " tokens";
    }
    Context other(ContextOptions{}, device);
    Scorer scorer(other, weights, 4, 1024);
    planned = other.scratch_bytes();
    for (std::size_t n = 1; n <= 256; n += n < 8 ? 1 : 31) {
      scorer.score(std::vector<Scorer::Sequence>(n % 4 + 1, {all.first(n), all.first(n)}));
      ASSERT_EQ(other.scratch_bytes(), planned) << name_of(dtype) << ", " << n << " tokens";
    }
  }
}

TEST(DecoderSessions, PlanScratchForEverySize) {
  expect_scratch_suffices({});
}
TEST(DecoderSessions, OnCudaPlanScratchForEverySize) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  expect_scratch_suffices({DeviceKind::cuda, 0});
}

TEST(DecoderParameters, AreFoundByName) {
  const DecoderWeights weights = initial_weights(DType::bf16, kSizes);
  EXPECT_EQ(weights.parameters.at("h.1.mlp.c_fc.weight").shape, (Shape{128, 32}));
  EXPECT_EQ(weights.parameters.at("h.1.mlp.c_fc.weight").dtype, DType::bf16);
  EXPECT_EQ(weights.parameters.at("ln_f.bias").dtype, DType::f32);
  EXPECT_NE(message_of([&] { weights.parameters.at("h.2.ln_1.weight"); }).find("h.2.ln_1.weight"),
            std::string::npos);
}

TEST(DecoderSessions, RefuseSequencesThatLackTokens) {
  Context context{ContextOptions{}};
  const DecoderWeights weights = initial_weights(DType::f32, kSizes);
  Scorer scorer(context, weights, 2, 16);
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  const std::span<const std::int32_t> all = tokens;
  for (const Scorer::Sequence& sequence :
       {Scorer::Sequence{all, all.first(2)}, {all.first(2), all}, {all.first(0), all.first(0)}}) {
    const std::vector<Scorer::Sequence> sequences = {sequence};
    EXPECT_NE(message_of([&] { scorer.score(sequences); }).find("a target for each"), std::string::npos);
  }
  for (const Choice& choice : {Choice{{}, {{1}}, 0}, Choice{{1}, {}, 0}, Choice{{1}, {{2}, {}}, 0}}) {
    const std::string error =
        message_of([&] { evaluate_choices(context, weights, std::vector<Choice>{choice}, {}); });
    EXPECT_NE(error.find("at least one token each"), std::string::npos) << error;
  }
}

// Process 0 comes last here, because it takes what the others have given.
TEST(DecoderSessions, ProcessesShareQuestions) {
  Context context{ContextOptions{}};
  const DecoderWeights weights = initial_weights(DType::f32, kSizes);
  std::vector<Choice> choices;
  for (std::int32_t q = 0; q < 11; ++q) {
    choices.push_back({.text = {q, 2, 3}, .endings = {{4, q}, {q, 5, 6}, {7}}, .label = q % 3});
  }
  const ChoiceReport alone = evaluate_choices(context, weights, choices, {});
  EXPECT_EQ(alone.questions, 11);
  EXPECT_GT(alone.right + alone.right_normalized, 0);
  std::vector<std::string> given(3);
  for (const int rank : {1, 2, 0}) {
    Share share{.rank = rank, .ranks = 3};
    share.gather = [&](std::string_view mine) {
      given[static_cast<std::size_t>(rank)] = mine;
      return rank == 0 ? given : std::vector<std::string>();
    };
    const ChoiceReport report = evaluate_choices(context, weights, choices, {}, share);
    if (rank > 0) continue;
    EXPECT_EQ(report.questions, alone.questions);
    EXPECT_EQ(report.right, alone.right);
    EXPECT_EQ(report.right_normalized, alone.right_normalized);
  }
}

}  // namespace
}  // namespace warpwright
