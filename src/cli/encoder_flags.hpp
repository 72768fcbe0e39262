// Shared by `embed`, `rank` and `bench encoder`: the flags of an encoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

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

// --dtype of an encoder.
void add_encoder_dtype_flag(CLI::App& command, std::string& dtype);

struct EncoderFlags {
  std::filesystem::path model;
  std::string weights_cache = "auto";
  std::string dtype = "fp32", over_limit = "truncate";
  std::int64_t max_length = 0, batch_tokens = 16384;
  bool batch_invariant = false, special_as_text = false;
  DeviceFlags device;

  void add_to(CLI::App& command);
  // UsageError for an unknown name, and for int8 on a device that has no kernels for it.
  EncoderOptions options(const DeviceInfo& info) const;
};

}  // namespace warpwright::cli
