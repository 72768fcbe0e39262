// A folder with a small BERT of random weights, its vocabulary and an optional head, for tests that run a
// model.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tiny_tensors.hpp"

namespace warpwright {

inline constexpr int kTinyBertSize = 32;  // elements of its vectors

// "boom" has an embedding that is not finite. labels > 0: a classification head with this many labels.
inline void make_tiny_bert(const std::filesystem::path& folder, int labels = 0) {
  constexpr int H = kTinyBertSize, I = 40, layers = 2, positions = 48;
  const std::vector<std::string> vocab = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the",
                                          "cat",   "sat",   "dog",   "##s",   "on",     "a",
                                          "mat",   ".",     "caf",   "##e",   "boom",   "\u4f60"};
  std::filesystem::create_directories(folder);
  const auto put = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  };
  std::string lines;
  for (const std::string& token : vocab) lines += token + "\n";
  put("vocab.txt", lines);
  put("tokenizer_config.json", R"({"do_lower_case": true})");
  const nlohmann::json config = {{"model_type", "bert"},
                                 {"num_hidden_layers", layers},
                                 {"num_attention_heads", 2},
                                 {"hidden_size", H},
                                 {"intermediate_size", I},
                                 {"vocab_size", vocab.size()},
                                 {"max_position_embeddings", positions},
                                 {"type_vocab_size", 2},
                                 {"layer_norm_eps", 1e-12},
                                 {"hidden_act", "gelu"},
                                 {"num_labels", std::max(labels, 1)}};
  put("config.json", config.dump());

  TinyTensors tensors;
  const auto linear = [&](const std::string& name, int out, int in) {
    tensors.add_linear(name, {out, in}, out);
  };
  const std::string prefix = labels > 0 ? "bert." : "";
  tensors.add(prefix + "embeddings.word_embeddings.weight", {static_cast<int>(vocab.size()), H});
  tensors.data[16 * H] = std::numeric_limits<float>::quiet_NaN();  // in the embedding of "boom"
  tensors.add(prefix + "embeddings.position_embeddings.weight", {positions, H});
  tensors.add(prefix + "embeddings.token_type_embeddings.weight", {2, H});
  tensors.add_norm(prefix + "embeddings.LayerNorm", H);
  for (int l = 0; l < layers; ++l) {
    const std::string layer = prefix + "encoder.layer." + std::to_string(l) + ".";
    for (const char* part : {"query", "key", "value"}) linear(layer + "attention.self." + part, H, H);
    linear(layer + "attention.output.dense", H, H);
    tensors.add_norm(layer + "attention.output.LayerNorm", H);
    linear(layer + "intermediate.dense", I, H);
    linear(layer + "output.dense", H, I);
    tensors.add_norm(layer + "output.LayerNorm", H);
  }
  if (labels > 0) {
    linear(prefix + "pooler.dense", H, H);
    linear("classifier", labels, H);
  }
  tensors.write(folder / "model.safetensors");
}

}  // namespace warpwright
