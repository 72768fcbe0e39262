// A folder with a small BERT of random weights, its vocabulary and an optional head, for tests that run a
// model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

  nlohmann::ordered_json header;
  std::vector<float> data;
  std::uint32_t state = 1;
  const auto add = [&](const std::string& name, std::vector<int> shape, float center) {
    std::size_t count = 1;
    for (const int size : shape) count *= static_cast<std::size_t>(size);
    const std::size_t begin = data.size() * sizeof(float);
    for (std::size_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      data.push_back(center + static_cast<float>(state >> 8) / static_cast<float>(1 << 24) * 0.6f - 0.3f);
    }
    header[name] = {
        {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size() * sizeof(float)}}};
  };
  const auto linear = [&](const std::string& name, int out, int in) {
    add(name + ".weight", {out, in}, 0);
    add(name + ".bias", {out}, 0);
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {H}, 1);
    add(name + ".bias", {H}, 0);
  };
  const std::string prefix = labels > 0 ? "bert." : "";
  add(prefix + "embeddings.word_embeddings.weight", {static_cast<int>(vocab.size()), H}, 0);
  data[16 * H] = std::numeric_limits<float>::quiet_NaN();  // in the embedding of "boom"
  add(prefix + "embeddings.position_embeddings.weight", {positions, H}, 0);
  add(prefix + "embeddings.token_type_embeddings.weight", {2, H}, 0);
  norm(prefix + "embeddings.LayerNorm");
  for (int l = 0; l < layers; ++l) {
    const std::string layer = prefix + "encoder.layer." + std::to_string(l) + ".";
    for (const char* part : {"query", "key", "value"}) linear(layer + "attention.self." + part, H, H);
    linear(layer + "attention.output.dense", H, H);
    norm(layer + "attention.output.LayerNorm");
    linear(layer + "intermediate.dense", I, H);
    linear(layer + "output.dense", H, I);
    norm(layer + "output.LayerNorm");
  }
  if (labels > 0) {
    linear(prefix + "pooler.dense", H, H);
    linear("classifier", labels, H);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof size);
  file += text;
  file.append(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
  put("model.safetensors", file);
}

}  // namespace warpwright
