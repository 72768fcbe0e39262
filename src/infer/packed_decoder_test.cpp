// Decoders whose matrices are packed for a CPU, in fp32, bf16 and int8, on tiny random models of each family.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "infer/decoding_engine.hpp"
#include "infer/score.hpp"
#include "model/families.hpp"
#include "model/gpt2_decoder.hpp"
#include "model/gpt2_llmc.hpp"
#include "model/packed_decoder.hpp"
#include "model/test_distance.hpp"
#include "ops/int8_linear/int8_linear.hpp"
#include "runtime/philox.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

using nlohmann::json;

const GPT2Config kGPT2{.layers = 2, .heads = 4, .channels = 72, .vocab = 203, .context = 64};

// GPT-2 has a tied head and biases; Llama a head of its own, fewer key heads and a gate; Qwen3 QK norm and a
// window in its second layer; GPT-NeoX both branches in parallel.
std::vector<std::shared_ptr<const Decoder>> decoders() {
  json llama = {{"model_type", "llama"},    {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                {"hidden_size", 72},        {"num_key_value_heads", 2}, {"head_dim", 16},
                {"intermediate_size", 100}, {"vocab_size", 203},        {"max_position_embeddings", 64},
                {"rms_norm_eps", 1e-5},     {"hidden_act", "silu"},     {"tie_word_embeddings", false}};
  json qwen3 = llama;
  qwen3["model_type"] = "qwen3";
  qwen3["tie_word_embeddings"] = true;
  qwen3.update({{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 1}});
  const json neox = {{"model_type", "gpt_neox"},      {"num_hidden_layers", 2},
                     {"num_attention_heads", 4},      {"hidden_size", 64},
                     {"intermediate_size", 100},      {"vocab_size", 203},
                     {"max_position_embeddings", 64}, {"layer_norm_eps", 1e-5},
                     {"hidden_act", "gelu"},          {"rotary_pct", 0.25},
                     {"use_parallel_residual", true}};
  return {std::make_shared<GPT2Decoder>(kGPT2), decoder_of_config(llama, "llama"),
          decoder_of_config(qwen3, "qwen3"), decoder_of_config(neox, "gpt_neox")};
}

std::string family_of(const Decoder& decoder) {
  return decoder.config({}).at("model_type").get<std::string>();
}

// Random values. Some elements of norms and biases are much larger than the rest.
void write_values(const Decoder& decoder, const ParameterWriter& write) {
  Recorder recorder;
  const DecoderParameters parameters =
      decoder.allocate_parameters(DType::f32, Category::parameters, "", recorder);
  std::uint32_t index = 0;
  for (const auto& [name, tensor] : parameters) {
    const PhiloxStream random(3, index);
    const bool is_table = tensor.shape.rank() == 2 && tensor.shape[0] == decoder.padded_vocab();
    const std::int64_t count = is_table ? decoder.vocab() * tensor.shape[1] : tensor.elements();
    const bool is_vector = tensor.shape.rank() == 1;
    write(index++, [&](const Tensor& host) {
      visit_dtype(host.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (std::int64_t i = 0; i < count; ++i) {
          const double drawn = random.normal(static_cast<std::uint64_t>(i));
          const double value = is_vector ? (0.6 + 0.2 * drawn) * (i % 23 == 5 ? 4 : 1) : 0.15 * drawn;
          host.as<T>()[i] = static_cast<T>(static_cast<float>(value));
        }
      });
    });
  }
}

DecoderWeights plain_weights(const std::shared_ptr<const Decoder>& decoder, DType dtype) {
  return unpacked_weights(decoder, dtype, Device{},
                          [&](const ParameterWriter& write) { write_values(*decoder, write); });
}

DecoderWeights packed_weights(const Context& context, const std::shared_ptr<const Decoder>& decoder,
                              const Precision& precision) {
  return inference_weights(context, decoder, precision,
                           [&](const ParameterWriter& write) { write_values(*decoder, write); });
}

// The logits of the tokens drawn after some prompts.
std::vector<float> logits_of(Context& context, const DecoderWeights& weights, int sequences = 2,
                             bool batch_invariant = true) {
  DecodingEngine engine(context, weights,
                        {.sequences = sequences, .context = 32, .batch_invariant = batch_invariant});
  std::vector<float> all;
  engine.on_logits = [&](DecodingEngine::Id, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const GenerationOptions options{.max_tokens = 8, .sampling = {.temperature = 0}};
  engine.add(std::vector<std::int32_t>{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3}, options);
  for (std::int32_t i = 1; i < sequences; ++i)
    engine.add(std::vector<std::int32_t>{200, 100, 7 * i}, options);
  while (!engine.idle()) engine.step();
  return all;
}

// The logits of a prompt's last token, which follow no drawn token.
std::vector<float> first_logits_of(Context& context, const DecoderWeights& weights) {
  std::vector<float> logits = logits_of(context, weights);
  logits.resize(static_cast<std::size_t>(weights.decoder->vocab()));
  return logits;
}

class PackedDecoder : public TestFolder {
 protected:
  Context context{ContextOptions{}};
};

class Int8Decoder : public PackedDecoder {
 protected:
  void SetUp() override {
    PackedDecoder::SetUp();
    if (const std::string reason = ops::refuse_int8(context.device()); !reason.empty())
      GTEST_SKIP() << reason;
  }
};

TEST_F(PackedDecoder, GivesTheBitsOfPlainWeights) {
  for (const auto& decoder : decoders()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const DecoderWeights packed = packed_weights(context, decoder, {.dtype = dtype}),
                           plain = plain_weights(decoder, dtype);
      for (const int sequences : {1, 3, 6}) {
        EXPECT_EQ(logits_of(context, packed, sequences), logits_of(context, plain, sequences))
            << family_of(*decoder) << " " << name_of(dtype) << " " << sequences;
      }
    }
  }
}

// A matrix is kept in one form; the embedding that is also the head in both.
TEST_F(PackedDecoder, KeepsOneFormOfEachMatrix) {
  for (const auto& decoder : decoders()) {
    const DecoderWeights weights = packed_weights(context, decoder, {});
    const bool packs = !PackedLayout({}, context.device()).name.empty();
    const std::vector<ForwardMatrix> matrices = decoder->forward_matrices();
    EXPECT_EQ(weights.parameters.packed.size(), packs ? matrices.size() : 0);
    const std::vector<Tensor> tensors = weights.parameters.tensors();
    for (const ForwardMatrix& matrix : matrices) {
      EXPECT_EQ(static_cast<bool>(tensors[matrix.parameter]), matrix.looked_up || !packs);
    }
  }
}

TEST_F(PackedDecoder, KnowsTheNormalizationBeforeEachMatrix) {
  const auto names_in = [](const Decoder& decoder) {
    Recorder recorder;
    std::vector<std::string> names, found;
    for (const auto& [name, tensor] :
         decoder.allocate_parameters(DType::f32, Category::parameters, "", recorder)) {
      names.push_back(name);
    }
    for (const ForwardMatrix& m : decoder.forward_matrices()) {
      found.push_back(names[m.parameter] + " " + (m.norm_weight ? names[*m.norm_weight] : "-") + " " +
                      (m.norm_bias ? names[*m.norm_bias] : "-") + " " + std::to_string(m.first_row));
    }
    return found;
  };
  const auto all = decoders();
  const std::vector<std::string> gpt2 = names_in(*all[0]), llama = names_in(*all[1]),
                                 qwen3 = names_in(*all[2]);
  ASSERT_EQ(gpt2.size(), 9u);
  EXPECT_EQ(gpt2[4], "h.1.attn.c_attn.weight h.1.ln_1.weight h.1.ln_1.bias 144");
  EXPECT_EQ(gpt2[5], "h.1.attn.c_proj.weight - - 0");
  EXPECT_EQ(gpt2[6], "h.1.mlp.c_fc.weight h.1.ln_2.weight h.1.ln_2.bias 0");
  EXPECT_EQ(gpt2[7], "h.1.mlp.c_proj.weight - - 0");
  EXPECT_EQ(gpt2[8], "wte.weight ln_f.weight ln_f.bias 0");
  ASSERT_EQ(llama.size(), 9u);
  EXPECT_EQ(llama[8], "lm_head.weight model.norm.weight - 0");
  for (const std::vector<std::string>& names : {llama, qwen3}) {
    EXPECT_NE(names[4].find(" model.layers.1.input_layernorm.weight - 96"), std::string::npos) << names[4];
    EXPECT_NE(names[6].find(" model.layers.1.post_attention_layernorm.weight - 0"), std::string::npos)
        << names[6];
  }
}

// A .bin holds its parameters in another order than the folder of a model.
TEST_F(PackedDecoder, LoadsFilesInAnyOrder) {
  const auto decoder = decoders()[0];
  const DecoderWeights plain = plain_weights(decoder, DType::f32);
  const Stream stream{Device{}};
  write_gpt2_llmc(folder / "model.bin", kGPT2, plain.parameters, stream);
  create_folders(folder / "model");
  decoder->save(folder / "model", plain.parameters, reader_of(plain.parameters, stream), {});
  for (const bool int8 : {false, ops::refuse_int8(context.device()).empty()}) {
    const std::vector<float> wanted = logits_of(context, packed_weights(context, decoder, {.int8 = int8}));
    for (const char* source : {"model.bin", "model"}) {
      EXPECT_EQ(logits_of(context, load_inference_weights(context, folder / source, {.int8 = int8})), wanted)
          << source << (int8 ? " int8" : "");
    }
  }
}

// Rounding to 8 bits costs about 1 % of each product.
TEST_F(Int8Decoder, IsCloseToFp32) {
  for (const auto& decoder : decoders()) {
    const std::vector<float> wanted = first_logits_of(context, plain_weights(decoder, DType::f32));
    for (const DType rest : {DType::f32, DType::bf16}) {
      const double error = relative_error(
          first_logits_of(context, packed_weights(context, decoder, {.dtype = rest, .int8 = true})), wanted);
      EXPECT_LT(error, 0.1) << family_of(*decoder) << " " << name_of(rest);
      EXPECT_GT(error, 1e-3) << family_of(*decoder) << ": the products are not in int8";
    }
  }
}

// All kernels but the reference give the same bits. The reference takes unpacked weights, so it has no
// factors.
TEST_F(Int8Decoder, GivesTheBitsOfEveryKernel) {
  const auto decoder = decoders()[1];
  const std::vector<float> wanted = logits_of(context, packed_weights(context, decoder, {.int8 = true}));
  for (const auto& variant : ops::int8_linear_op().variants) {
    if (!ops::refuse_device(variant.needs(), context.device()).empty()) continue;
    ContextOptions options;
    options.force["int8_linear"] = variant.name;
    Context forced(options);
    const DecoderWeights weights = packed_weights(forced, decoder, {.int8 = true});
    if (variant.name == ops::kReference) {
      EXPECT_TRUE(weights.parameters.packed.empty());
      const double error = relative_error(first_logits_of(forced, weights),
                                          first_logits_of(context, plain_weights(decoder, DType::f32)));
      EXPECT_LT(error, 0.3);
    } else {
      EXPECT_EQ(logits_of(forced, weights), wanted) << variant.name;
    }
  }
}

TEST_F(Int8Decoder, ScoresAndRunsWithoutBatchInvariance) {
  for (const auto& decoder : decoders()) {
    const DecoderWeights weights = packed_weights(context, decoder, {.int8 = true});
    EXPECT_LT(relative_error(logits_of(context, weights, 2, false), logits_of(context, weights)), 1e-4)
        << family_of(*decoder);
    const auto losses_of = [&](const DecoderWeights& scored) {
      const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
      const std::span<const std::int32_t> all(tokens);
      Scorer scorer(context, scored, 1, 16);
      const auto losses = scorer.score(std::vector<Scorer::Sequence>{{all.first(7), all.last(7)}});
      return std::vector<float>(losses.begin(), losses.end());
    };
    EXPECT_LT(relative_error(losses_of(weights), losses_of(plain_weights(decoder, DType::f32))), 0.1)
        << family_of(*decoder);
  }
}

// One is named where the error is, in the normalization. One that is only large is no error.
TEST_F(Int8Decoder, LooksAtTheNormalizations) {
  const auto decoder = decoders()[0];
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
    const auto write = [&](const ParameterWriter& to) {
      write_values(*decoder, [&](std::size_t index, const auto& fill) {
        to(index, [&](const Tensor& host) {
          fill(host);
          if (index == 8) host.as<float>()[7] = value;
        });
      });
    };
    std::string message;
    try {
      inference_weights(context, decoder, {.int8 = true}, write);
    } catch (const Error& error) {
      message = error.what();
    }
    if (value > std::numeric_limits<float>::max()) {
      EXPECT_NE(message.find("h.0.ln_2.weight: element 7 is not finite"), std::string::npos) << message;
    } else {
      EXPECT_EQ(message, "");
    }
  }
}

TEST_F(Int8Decoder, NamesAMatrixThatIsNotFinite) {
  const auto decoder = decoders()[0];
  const auto write = [&](const ParameterWriter& to) {
    write_values(*decoder, [&](std::size_t index, const auto& fill) {
      to(index, [&](const Tensor& host) {
        fill(host);
        if (index == 6) host.as<float>()[5] = std::numeric_limits<float>::infinity();
      });
    });
  };
  try {
    inference_weights(context, decoder, {.int8 = true}, write);
    FAIL() << "took it";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("h.0.attn.c_proj.weight"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("row 0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace warpwright
