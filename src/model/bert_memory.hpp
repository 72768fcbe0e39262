// Names and shapes of the tensors of an encoder's forward.
#pragma once

#include <cstdint>

#include "model/bert.hpp"
#include "runtime/memory.hpp"

namespace warpwright {

// For batches of at most this many tokens and sequences.
struct BertTensors {
  BertActivations activations;  // without the batch's integers
  Tensor batch;                 // (2 + S + 3N) int32: everything that goes to the device for a batch
};

struct BertSizes {
  std::int64_t tokens, sequences;
  bool classifier;
};
BertTensors allocate_forward(const BertConfig& config, const BertPooling& pooling, DType dtype,
                             const BertSizes& sizes, Allocator& allocator);

// The first N tokens and S sequences, with the batch's integers.
BertActivations narrow(const BertTensors& tensors, std::int64_t N, std::int64_t S, bool batch_invariant);
// The number of integers at the start of `batch` that these take.
std::int64_t batch_integers(std::int64_t N, std::int64_t S);

}  // namespace warpwright
