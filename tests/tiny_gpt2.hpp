// A folder with a small GPT-2 of random weights and a tokenizer with a token for each byte, for tests that
// run a model.
#pragma once

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/tiny_tensors.hpp"

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

  TinyTensors tensors;
  const auto linear = [&](const std::string& name, int in, int out) {
    tensors.add_linear(name, {in, out}, out);
  };
  const std::size_t embedding = tensors.add("wte.weight", {vocab, C});
  for (int id = 0; id < vocab; ++id) {
    for (int c = 0; c < C && (id < ' ' || id > '~'); ++c) {
      tensors.data[embedding + static_cast<std::size_t>(id * C + c)] = 0;
    }
  }
  const std::size_t position_embedding = tensors.add("wpe.weight", {positions, C});
  tensors.data[position_embedding + odd_position * C] = std::numeric_limits<float>::quiet_NaN();
  for (int l = 0; l < layers; ++l) {
    const std::string block = "h." + std::to_string(l) + ".";
    tensors.add_norm(block + "ln_1", C);
    linear(block + "attn.c_attn", C, 3 * C);
    linear(block + "attn.c_proj", C, C);
    tensors.add_norm(block + "ln_2", C);
    linear(block + "mlp.c_fc", C, 4 * C);
    linear(block + "mlp.c_proj", 4 * C, C);
  }
  tensors.add_norm("ln_f", C);
  tensors.write(folder / "model.safetensors");
  if (!without_tokenizer) make_byte_tokenizer(folder);
}

}  // namespace warpwright
