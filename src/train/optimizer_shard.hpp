// The part of the optimizer's state that a rank holds.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/decoder.hpp"
#include "train/shards.hpp"

namespace warpwright {

struct OptimizerShard {
  ShardPieces pieces;
  // By piece. masters: fp32 copies of bf16 parameters, and views of parameters that are fp32 themselves;
  // empty if there are no copies.
  std::vector<Tensor> masters, m, v;
};

// `masters`: whether bf16 parameters have masters.
OptimizerShard allocate_optimizer(const DecoderParameters& parameters, const ShardPieces& pieces,
                                  bool masters, Allocator& allocator);

// A tensor of the optimizer as a file holds it: whole, and named "m.", "v." or "master." and the parameter's
// name.
struct OptimizerTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::size_t parameter = 0;
  std::vector<Tensor> OptimizerShard::*set = nullptr;
};
std::vector<OptimizerTensor> optimizer_tensors(const DecoderParameters& parameters,
                                               const OptimizerShard& shard);

// Brings the tensors to the memory of rank 0's host, piece by piece in order, and calls write(name of the
// tensor, its next bytes) there. Every rank makes this call. shards: the pieces of each rank that holds some.
void gather_optimizer(
    const Comm& comm, const Shards& shards, const DecoderParameters& parameters, const OptimizerShard& mine,
    const Stream& stream,
    const std::function<void(const std::string& name, std::span<const std::byte> bytes)>& write);

}  // namespace warpwright
