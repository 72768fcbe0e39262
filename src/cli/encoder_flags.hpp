// Shared by `embed`, `rank` and `bench encoder`: the flags of an encoder, and texts read from lines or JSONL.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "core/error.hpp"
#include "infer/encode.hpp"

namespace warpwright::cli {

// The error with the flag as its place if its place is an encoder's option: "--max-length" for "max_length".
UsageError naming_flag(const UsageError& error);

// Makes an encoder. If the encoder refuses one of its options, the error names the flag.
template <class Make>
auto naming_flags(const Make& make) {
  try {
    return make();
  } catch (const UsageError& error) {
    throw naming_flag(error);
  }
}

struct EncoderFlags {
  std::filesystem::path model;
  std::string weights_cache = "auto";
  std::string dtype = "fp32", over_limit = "truncate";
  std::int64_t max_length = 0, batch_tokens = 16384;
  bool batch_invariant = false, special_as_text = false;
  DeviceFlags device;

  void add_to(CLI::App& command);
  // UsageError for an unknown name.
  EncoderOptions options() const;
};

// A line of the input.
struct InputText {
  std::int64_t line = 0;  // counts from 1
  std::string text;       // any bytes
  nlohmann::json id{};    // the JSONL object's "id", or null
  std::string error{};    // why there is no text, or empty
};

// The texts encoded together.
struct TextWindow {
  std::vector<InputText> texts{};
  std::uint64_t begin = 0, end = 0;  // their bytes in the input
};

struct TextInputFlags {
  std::filesystem::path input;
  bool jsonl = false, stream = false;
  std::string field = "text";

  void add_to(CLI::App& command);
  // The size of the input in bytes; 0 if unknown.
  std::uint64_t size() const;
  // Calls visit with the texts in order. A window has as many as make good batches and fit in memory; with
  // `stream`, it has the whole lines that have arrived.
  void for_each_window(const std::function<void(const TextWindow&)>& visit) const;
};

}  // namespace warpwright::cli
