// warpwright bench encoder: a BERT-family forward over packed texts, by operation.
#pragma once

#include <cstdint>
#include <string>

#include "cli/command.hpp"

namespace warpwright::cli {

struct BenchEncoderFlags {
  std::string model, dtype;
  std::string lengths = "128x64";  // "5,17x3" or @FILE
  bool batch_invariant = false;
  bool layers_alone = false;  // from hidden states to hidden states
  std::int64_t batch_tokens = 16384, repetitions = 5;
  bool json = false;
};

void bench_encoder(const BenchEncoderFlags& flags, const DeviceFlags& device);

}  // namespace warpwright::cli
