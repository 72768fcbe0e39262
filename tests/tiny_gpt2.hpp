// A folder with a small GPT-2 of random weights and a tokenizer with a token for each byte, for tests that
// run a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace warpwright {

// A token for each byte, and 256, which ends a text.
inline void make_byte_tokenizer(const std::filesystem::path& folder) {
  // GPT-2 spells printable bytes as themselves, and the others as the characters from U+0100 on.
  nlohmann::json bytes;
  for (int byte = 0, others = 0; byte < 256; ++byte) {
    const bool printable = (byte > ' ' && byte <= '~') || (byte > 0xa0 && byte != 0xad);
    const int character = printable ? byte : 256 + others++;
    std::string spelled;
    if (character > 127) spelled += static_cast<char>(0xc0 | character >> 6);
    spelled += static_cast<char>(character > 127 ? 0x80 | (character & 0x3f) : character);
    bytes[spelled] = byte;
  }
  bytes["<|endoftext|>"] = 256;
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json end = {
      {"id", 256},       {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array({end})},
      {"pre_tokenizer", byte_level},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", bytes}, {"merges", nlohmann::json::array()}}}};
  std::ofstream(folder / "tokenizer.json", std::ios::binary) << tokenizer.dump();
}

// The tokenizer lacks the ids 257 and 258. The most likely token is a printable ASCII character, because the
// embeddings of all others are 0. The embedding of position 40 is not finite, so a sequence of more tokens
// fails. without_tokenizer: the model alone.
inline void make_tiny_gpt2(const std::filesystem::path& folder, bool without_tokenizer = false) {
  constexpr int C = 32, layers = 2, positions = 48, vocab = 259, odd_position = 40;
  std::filesystem::create_directories(folder);
  const auto put = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  };
  const nlohmann::json config = {{"model_type", "gpt2"}, {"n_layer", layers},
                                 {"n_head", 2},          {"n_embd", C},
                                 {"n_ctx", positions},   {"n_positions", positions},
                                 {"vocab_size", vocab},  {"eos_token_id", 256},
                                 {"bos_token_id", 256},  {"activation_function", "gelu_new"}};
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
  const auto linear = [&](const std::string& name, int in, int out) {
    add(name + ".weight", {in, out}, 0);
    add(name + ".bias", {out}, 0);
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {C}, 1);
    add(name + ".bias", {C}, 0);
  };
  add("wte.weight", {vocab, C}, 0);
  for (int id = 0; id < vocab; ++id) {
    for (int c = 0; c < C && (id < ' ' || id > '~'); ++c) data[static_cast<std::size_t>(id * C + c)] = 0;
  }
  const std::size_t position_embedding = data.size();
  add("wpe.weight", {positions, C}, 0);
  data[position_embedding + odd_position * C] = std::numeric_limits<float>::quiet_NaN();
  for (int l = 0; l < layers; ++l) {
    const std::string block = "h." + std::to_string(l) + ".";
    norm(block + "ln_1");
    linear(block + "attn.c_attn", C, 3 * C);
    linear(block + "attn.c_proj", C, C);
    norm(block + "ln_2");
    linear(block + "mlp.c_fc", C, 4 * C);
    linear(block + "mlp.c_proj", 4 * C, C);
  }
  norm("ln_f");
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof size);
  file += text;
  file.append(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
  put("model.safetensors", file);
  if (!without_tokenizer) make_byte_tokenizer(folder);
}

}  // namespace warpwright
