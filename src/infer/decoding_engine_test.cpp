#include "infer/decoding_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "infer/initial_weights.hpp"
#include "model/families.hpp"
#include "runtime/host_view.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

using End = DecodingEngine::End;
using Ids = std::vector<std::int32_t>;

constexpr GPT2Config kSizes{.layers = 2, .heads = 2, .channels = 32, .vocab = 50, .context = 100};

// Three layers, of which the first and the last have a window.
std::shared_ptr<const Decoder> windowed_decoder(const GPT2Config& sizes, std::int64_t window) {
  return decoder_of_config({{"model_type", "qwen3"},
                            {"num_hidden_layers", 3},
                            {"num_attention_heads", 4},
                            {"num_key_value_heads", 2},
                            {"head_dim", sizes.channels / 4},
                            {"hidden_size", sizes.channels},
                            {"intermediate_size", 2 * sizes.channels},
                            {"vocab_size", sizes.vocab},
                            {"max_position_embeddings", sizes.context},
                            {"use_sliding_window", true},
                            {"sliding_window", window},
                            {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}},
                           "config.json");
}

// Initial weights are so small that all tokens are about as likely; larger ones have opinions. They are the
// same in fp32 and bf16.
DecoderWeights decided_weights(const std::shared_ptr<const Decoder>& decoder, DType dtype, Device device) {
  const DecoderWeights weights = initial_weights(decoder, dtype, device);
  const Stream stream(device);
  for (const auto& [name, tensor] : weights.parameters) {
    if (name.find("ln_") != std::string::npos || name.find("norm") != std::string::npos) continue;
    const HostView host = downloaded(tensor, stream);
    const std::int64_t elements = tensor.elements();
    visit_dtype(tensor.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* values = host.tensor().template as<T>();
      for (std::int64_t i = 0; i < elements; ++i) {
        values[i] = static_cast<T>(static_cast<float>(bf16(static_cast<float>(values[i]))) * 8);
      }
    });
    host.upload(stream);
    stream.synchronize();
  }
  return weights;
}

DecoderWeights decided_weights(DType dtype, Device device = {}) {
  return decided_weights(std::make_shared<GPT2Decoder>(kSizes), dtype, device);
}

Ids random_tokens(std::mt19937& random, std::size_t count, std::int32_t vocab = kSizes.vocab) {
  Ids tokens(count);
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab));
  return tokens;
}

Ids continued(DecodingEngine& engine, const Ids& prompt, const GenerationOptions& options) {
  Ids tokens;
  generate(engine, prompt, options, [&](std::int32_t token) {
    tokens.push_back(token);
    return true;
  });
  return tokens;
}

// The logits of the last of the tokens, by a forward over all of them.
std::vector<float> scored(Context& context, const DecoderWeights& weights, const Ids& tokens) {
  struct Tensors {
    DecoderBatch batch;
    std::unique_ptr<ScoringPass> pass;
    Tensor logits;
  };
  const auto n = static_cast<std::int64_t>(tokens.size());
  HeapAllocator heap;
  Tensors t;
  t.batch = allocate_batch(1, n, heap);
  t.pass = weights.decoder->allocate_scoring(weights.parameters, weights.dtype, t.batch, heap);
  t.logits = weights.decoder->allocate_logits(1, weights.dtype, heap);
  t.pass->fill_constants(context.stream());
  for (std::int64_t i = 0; i < n; ++i) {
    t.batch.tokens.as<std::int32_t>()[i] = tokens[static_cast<std::size_t>(i)];
    t.batch.positions.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  }
  t.batch.cu_seqlens.as<std::int32_t>()[0] = 0;
  t.batch.cu_seqlens.as<std::int32_t>()[1] = static_cast<std::int32_t>(n);
  context.reserve_scratch(std::size_t{64} << 20);
  t.pass->head(context, t.pass->forward(context, n).slice(0, n - 1, 1), t.logits);
  std::vector<float> row(static_cast<std::size_t>(weights.decoder->vocab()));
  for (std::size_t v = 0; v < row.size(); ++v) row[v] = t.logits.as<float>()[v];
  return row;
}

// A model may have a context that is far longer than its sequences.
TEST(DecodingEngine, TakesACacheForTheContextThatItIsGiven) {
  const DecoderWeights weights = decided_weights(DType::f32);
  EXPECT_EQ(context_for(*weights.decoder, 7), 100);
  GPT2Config sizes = kSizes;
  sizes.context = 100'000;
  const GPT2Decoder decoder(sizes);
  EXPECT_EQ(context_for(decoder, 7), 1024);
  EXPECT_EQ(context_for(decoder, 1025), 2048);
  EXPECT_EQ(context_for(decoder, 70'000), 100'000);
  EXPECT_EQ(context_for(decoder, INT64_MAX), 100'000);

  Context context{ContextOptions{}};
  const auto bytes = [&](const DecodingOptions& options) {
    return DecodingEngine::planned(context, decoder, DType::f32, options).total_bytes();
  };
  EXPECT_LT(bytes({.context = 1024}) * 10, bytes({}));

  // Within a shorter context, tokens are the same, and a longer prompt is refused.
  DecodingEngine whole(context, weights), half(context, weights, {.context = 50});
  const Ids prompt = {1, 2, 3, 4, 5};
  const GenerationOptions options = {.max_tokens = 45};
  EXPECT_EQ(continued(half, prompt, options), continued(whole, prompt, options));
  EXPECT_THROW(half.add(Ids(51, 1), options), UsageError);
}

// The logits of every token that is drawn after these prompts, together, are those of a forward in fp32 over
// the whole sequence, up to a share of the largest.
void expect_logits_of_whole_forwards(Device device, DType dtype,
                                     const std::shared_ptr<const Decoder>& decoder,
                                     const DecodingOptions& options, const std::vector<std::size_t>& lengths,
                                     double tolerance) {
  constexpr std::int64_t kTokens = 20;
  const DecoderWeights weights = decided_weights(decoder, dtype, device);
  const DecoderWeights exact = decided_weights(decoder, DType::f32, {});
  Context context(ContextOptions{}, device), other{ContextOptions{}};
  DecodingEngine engine(context, weights, options);
  std::mt19937 random(1);
  std::map<DecodingEngine::Id, Ids> sequences;
  for (const std::size_t length : lengths) {
    const Ids prompt = random_tokens(random, length, static_cast<std::int32_t>(decoder->vocab()));
    sequences[engine.add(prompt, {.max_tokens = kTokens, .sampling = {.seed = length}})] = prompt;
  }
  double worst = 0;
  engine.on_logits = [&](DecodingEngine::Id id, std::span<const float> logits) {
    const std::vector<float> expected = scored(other, exact, sequences.at(id));
    double largest = 0, difference = 0;
    for (std::size_t v = 0; v < expected.size(); ++v) {
      largest = std::max(largest, static_cast<double>(std::abs(expected[v])));
      difference = std::max(difference, static_cast<double>(std::abs(logits[v] - expected[v])));
    }
    worst = std::max(worst, difference / largest);
  };
  while (!engine.idle()) {
    for (const auto& drawn : engine.step()) sequences.at(drawn.sequence).push_back(drawn.token);
  }
  EXPECT_LT(worst, tolerance) << lengths.size() << " sequences";
  for (const auto& [id, tokens] : sequences) EXPECT_GT(tokens.size(), static_cast<std::size_t>(kTokens));
}

// Around the edges of blocks, and of windows.
TEST(DecodingEngine, HasTheLogitsOfWholeForwards) {
  for (const auto& decoder : std::initializer_list<std::shared_ptr<const Decoder>>{
           std::make_shared<GPT2Decoder>(kSizes), windowed_decoder(kSizes, 16),
           windowed_decoder(kSizes, 9)}) {
    for (const std::int64_t batch_tokens : {0, 7}) {  // 7: prompts come in pieces
      expect_logits_of_whole_forwards({}, DType::f32, decoder, {.sequences = 6, .batch_tokens = batch_tokens},
                                      {1, 2, 15, 16, 17, 31, 33, 60, 80}, 1e-5);
    }
  }
}

// Around the edges of a GPU's splits of 256 keys and of their halves, with a vocabulary of many blocks. A GPU
// replays graphs whose kernels overlap.
void expect_logits_in_16_bits(Device device) {
  constexpr GPT2Config kLarger{.layers = 2, .heads = 2, .channels = 128, .vocab = 5000, .context = 700};
  const std::vector<std::size_t> lengths{500, 1, 127, 128, 129, 2, 100, 200, 255, 256, 257, 383, 512};
  // Ten results of each layer, the last normalization and the logit are rounded to 8 bits.
  const auto expect = [&](const std::shared_ptr<const Decoder>& decoder, std::size_t count, int layers) {
    expect_logits_of_whole_forwards(
        device, DType::bf16, decoder, {.sequences = static_cast<std::int64_t>(count)},
        {lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(count)}, (10 * layers + 2) * 0x1p-9);
  };
  for (const std::size_t count : {1, 5, 13}) expect(std::make_shared<GPT2Decoder>(kLarger), count, 2);
  for (const std::int64_t window : {100, 300}) expect(windowed_decoder(kLarger, window), 13, 3);
}
TEST(DecodingEngine, HasTheLogitsOfWholeForwardsIn16Bits) {
  expect_logits_in_16_bits({});
}
TEST(DecodingEngine, OnCudaHasTheLogitsOfWholeForwardsIn16Bits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  expect_logits_in_16_bits({DeviceKind::cuda, 0});
}

// Sequences come, go and are removed at random, and share beginnings. If it is crowded, some always wait, and
// the cache does not hold all that run. Each has the tokens that it has alone.
void expect_the_tokens_of_one_alone(Device device, DType dtype, int count, bool crowded) {
  const DecoderWeights weights = decided_weights(dtype, device);
  Context context(ContextOptions{}, device);
  const DecodingOptions options{
      .sequences = 5, .cache_tokens = crowded ? 240 : 0, .batch_tokens = 50, .batch_invariant = true};
  DecodingEngine engine(context, weights, options);
  std::mt19937 random(2);
  const Ids beginning = random_tokens(random, 70);
  struct Sequence {
    Ids prompt, tokens;
    GenerationOptions options;
    bool ended = false;
  };
  std::map<DecodingEngine::Id, Sequence> all;
  int added = 0;
  while (added < count || !engine.idle()) {
    const auto wants_more = [&] {
      return crowded ? engine.waiting() < 3 : engine.running() + engine.waiting() < 4;
    };
    while (added < count && wants_more()) {
      Sequence s;
      s.prompt.assign(beginning.begin(), beginning.begin() + static_cast<std::ptrdiff_t>(random() % 70));
      const Ids more = random_tokens(random, 1 + random() % 30);
      s.prompt.insert(s.prompt.end(), more.begin(), more.end());
      s.options.max_tokens = 1 + static_cast<std::int64_t>(random() % 60);
      s.options.end_of_text = {49, 7};
      s.options.sampling.seed = random();
      all[engine.add(s.prompt, s.options)] = s;
      ++added;
    }
    for (const auto& drawn : engine.step()) {
      Sequence& s = all.at(drawn.sequence);
      ASSERT_FALSE(s.ended);
      ASSERT_FALSE(drawn.error);
      if (drawn.end != End::end_of_text) s.tokens.push_back(drawn.token);
      s.ended = drawn.end != End::none;
    }
    if (random() % 15 == 0) {
      engine.on_logits = nullptr;
      if (random() % 3 == 0) engine.on_logits = [](DecodingEngine::Id, std::span<const float>) {};
    }
    if (random() % 20 == 0 && !all.empty()) {
      const auto any = std::next(all.begin(), static_cast<std::ptrdiff_t>(random() % all.size()));
      if (!any->second.ended) {
        engine.remove(any->first);
        all.erase(any);
      }
    }
  }
  Context other(ContextOptions{}, device);
  DecodingEngine alone(other, weights, {.batch_invariant = true});
  alone.on_logits = [](DecodingEngine::Id, std::span<const float>) {
  };  // no pass begins before the last one ends
  for (const auto& [id, s] : all) {
    ASSERT_TRUE(s.ended);
    ASSERT_EQ(continued(alone, s.prompt, s.options), s.tokens) << "sequence " << id;
  }
}

TEST(DecodingEngine, SequencesComeAndGoWithoutChangingOthers) {
  expect_the_tokens_of_one_alone({}, DType::f32, std::getenv("WARPWRIGHT_STORM") ? 10000 : 400, true);
  expect_the_tokens_of_one_alone({}, DType::f32, 100, false);
  expect_the_tokens_of_one_alone({}, DType::bf16, 100, true);
}
TEST(DecodingEngine, OnCudaSequencesComeAndGoWithoutChangingOthers) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool crowded : {true, false}) {
      expect_the_tokens_of_one_alone({DeviceKind::cuda, 0}, dtype, 400, crowded);
    }
  }
}

// A timer sees what is launched while it is there: nothing in a step that returns what runs already.
TEST(DecodingEngine, OnCudaAPassBeginsBeforeTheLastTokensAreSeen) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  const Device device{DeviceKind::cuda, 0};
  Context context(ContextOptions{}, device);
  DecodingEngine engine(context, decided_weights(DType::bf16, device), {.sequences = 2});
  engine.add(Ids{1, 2, 3}, {.max_tokens = 50});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(engine.step().size(), 1u);
  int calls = 0;
  {
    const Timing timing(context, [&](const Context::CallRecord&) { ++calls; });
    EXPECT_EQ(engine.step().size(), 1u);
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(engine.step().size(), 1u);
    EXPECT_GT(calls, 0);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(engine.step().size(), 1u);
  // The engine ends while a pass runs.
}

// A prompt's first blocks are computed once: the second sequence's prompt runs in a pass of fewer tokens, and
// both have the same tokens.
TEST(DecodingEngine, SharesABeginning) {
  const DecoderWeights weights = decided_weights(DType::f32);
  Context context{ContextOptions{}};
  DecodingEngine engine(context, weights, {.sequences = 4, .batch_invariant = true});
  std::mt19937 random(3);
  const Ids prompt = random_tokens(random, 50);
  const GenerationOptions options{.max_tokens = 10, .sampling = {.seed = 5}};
  std::map<DecodingEngine::Id, Ids> tokens;
  for (int i = 0; i < 3; ++i) tokens[engine.add(prompt, options)];
  engine.step();
  EXPECT_EQ(engine.running(), 1);  // the others wait for its blocks
  EXPECT_EQ(engine.waiting(), 2);
  engine.step();
  EXPECT_EQ(engine.running(), 3);
  while (!engine.idle()) engine.step();
  EXPECT_EQ(continued(engine, prompt, options).size(), 10u);
}

// A training run changes the weights between samples.
TEST(DecodingEngine, ForgetsTheBeginningsOfOtherWeights) {
  const DecoderWeights weights = decided_weights(DType::f32);
  Context context{ContextOptions{}}, other{ContextOptions{}};
  DecodingEngine engine(context, weights, {.batch_invariant = true});
  std::mt19937 random(4);
  const Ids prompt = random_tokens(random, 60);
  const GenerationOptions options{.max_tokens = 20, .sampling = {.seed = 3}};
  const Ids before = continued(engine, prompt, options);
  const Tensor& positions = weights.parameters.at("wpe.weight");
  for (std::int64_t i = 0; i < positions.elements(); ++i) positions.as<float>()[i] *= -1;
  DecodingEngine fresh(other, weights, {.batch_invariant = true});
  const Ids expected = continued(fresh, prompt, options);
  EXPECT_NE(continued(engine, prompt, options), expected);  // the cache has the old weights' keys and values
  engine.forget_beginnings();
  EXPECT_EQ(continued(engine, prompt, options), expected);
  EXPECT_NE(before, expected);
}

TEST(DecodingEngine, GoesOnBeyondTheContext) {
  const DecoderWeights weights = decided_weights(DType::f32);
  Context context{ContextOptions{}};
  DecodingEngine engine(context, weights);
  const Ids tokens = continued(engine, {1, 2, 3}, {.max_tokens = 350});
  ASSERT_EQ(tokens.size(), 350u);
  // The 98th token filled the context: the next ones see the last 51.
  const Ids window(tokens.begin() + 98 - 51, tokens.begin() + 98);
  GenerationOptions options{.max_tokens = 1, .sampling = {.temperature = 0}};
  EXPECT_EQ(continued(engine, {4, 5}, {.max_tokens = 0}), Ids());
  EXPECT_EQ(continued(engine, window, options).size(), 1u);
}

TEST(DecodingEngine, StopsAtTheEndOfText) {
  const DecoderWeights weights = decided_weights(DType::f32);
  Context context{ContextOptions{}};
  DecodingEngine engine(context, weights);
  const Ids free = continued(engine, {1, 2, 3}, {.max_tokens = 30, .sampling = {.seed = 1}});
  GenerationOptions options{.max_tokens = 30, .sampling = {.seed = 1}, .end_of_text = {free[12]}};
  const auto end = std::ranges::find(free, free[12]);
  EXPECT_EQ(continued(engine, {1, 2, 3}, options), Ids(free.begin(), end));
  EXPECT_TRUE(engine.idle());
}

TEST(DecodingEngine, RefusesPromptsAndOptionsThatDoNotFit) {
  const DecoderWeights weights = decided_weights(DType::f32);
  Context context{ContextOptions{}};
  DecodingEngine engine(context, weights, {.sequences = 2});
  const DecodingEngine::Id good = engine.add(Ids{1, 2}, {.max_tokens = 3});
  const auto expect_refused = [&](const std::string& why, const Ids& prompt,
                                  const GenerationOptions& options = {}) {
    const std::string message = message_of([&] { engine.add(prompt, options); });
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  expect_refused("has no tokens", {});
  expect_refused("has 101 tokens, the context is 100", Ids(101, 1));
  expect_refused("has the token 50", {1, 50});
  expect_refused("has the token -1", {-1});
  expect_refused("at least 1", {1}, {.max_tokens = 0});
  expect_refused("", {1}, {.sampling = {.temperature = -1}});
  std::size_t drawn = 0;
  while (!engine.idle()) {
    for (const auto& d : engine.step()) drawn += d.sequence == good ? 1 : 100;
  }
  EXPECT_EQ(drawn, 3u);
  EXPECT_NE(
      message_of([&] { DecodingEngine(context, weights, {.cache_tokens = 90}); }).find("holds 90 tokens"),
      std::string::npos);
  EXPECT_NE(message_of([&] { DecodingEngine(context, weights, {.sequences = 0}); }).find("at least 1"),
            std::string::npos);
}

// Weights that give no numbers end the sequences that see them, with an error, and no other.
TEST(DecodingEngine, LogitsThatAreNotFiniteEndTheirSequence) {
  const DecoderWeights weights = decided_weights(DType::f32);
  const Tensor& embedding = weights.parameters.at("wte.weight");
  embedding.as<float>()[49 * 32] = std::numeric_limits<float>::infinity();
  Context context{ContextOptions{}};
  DecodingEngine engine(context, weights, {.sequences = 2});
  const DecodingEngine::Id id = engine.add(Ids{1, 2}, {.max_tokens = 5});
  const auto drawn = engine.step();
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_EQ(drawn.front().sequence, id);
  EXPECT_EQ(drawn.front().end, End::error);
  EXPECT_TRUE(drawn.front().error);
  EXPECT_TRUE(engine.idle());
}

// The weights of position 20 are NaN: a sequence that gets there ends with an error. Others go on, and so
// does what is added later.
void expect_an_error_at_position_20(Device device) {
  const DecoderWeights weights = decided_weights(DType::bf16, device);
  const Tensor positions = weights.parameters.at("wpe.weight");
  Context context(ContextOptions{}, device);
  write_on_host(positions.slice(0, 20, 1), context.stream(), [](const Tensor& row) {
    std::fill_n(row.as<bf16>(), row.elements(), bf16(std::numeric_limits<float>::quiet_NaN()));
  });
  DecodingEngine engine(context, weights, {.sequences = 3});
  const auto run = [&](const DecodingEngine::Id failing) {
    std::map<DecodingEngine::Id, std::size_t> drawn;
    while (!engine.idle()) {
      for (const auto& d : engine.step()) {
        EXPECT_EQ(d.end == End::error, d.sequence == failing && drawn[d.sequence] == 18u);
        ++drawn[d.sequence];
      }
    }
    return drawn;
  };
  const auto longer = engine.add(Ids{1, 2, 3}, {.max_tokens = 50});
  const auto shorter = engine.add(Ids{4, 5}, {.max_tokens = 15});
  EXPECT_EQ(run(longer), (std::map<DecodingEngine::Id, std::size_t>{{longer, 19}, {shorter, 15}}));
  const auto after = engine.add(Ids{1, 2, 3}, {.max_tokens = 4});
  EXPECT_EQ(run(-1), (std::map<DecodingEngine::Id, std::size_t>{{after, 4}}));
}
TEST(DecodingEngine, OneSequenceMayFailLater) {
  expect_an_error_at_position_20({});
}
TEST(DecodingEngine, OnCudaOneSequenceMayFailLater) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  expect_an_error_at_position_20({DeviceKind::cuda, 0});
}

}  // namespace
}  // namespace warpwright
