// The part of the optimizer's state that a rank holds.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder.hpp"
#include "train/shards.hpp"

namespace warpwright {

struct OptimizerShard {
  ShardPieces pieces;
  // One tensor for each piece. parameters: views, or the only copy with Sharding::parameters. remainders:
  // int16, with which bf16 parameters are fp32 masters (ops/adamw). A piece in fp32 has none; without masters
  // the list is empty. v: a piece that Muon updates has none.
  std::vector<Tensor> parameters, remainders, m, v;
};

struct OptimizerShardOptions {
  bool masters = true;             // of bf16 parameters
  bool stores_parameters = false;  // whether `parameters` are no views
  LayerMatrices muon{};            // the parameters that Muon updates
};
OptimizerShard allocate_optimizer(const DecoderParameters& parameters, const ShardPieces& pieces,
                                  const OptimizerShardOptions& options, Allocator& allocator);

// A tensor of the optimizer as a file holds it: whole, and named "m.", "v." or "remainder." and the
// parameter's name.
struct OptimizerTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::size_t parameter = 0;
  std::vector<Tensor> OptimizerShard::*set = nullptr;
};
inline constexpr std::string_view kRemainderPrefix = "remainder.";
// Those of which the shard holds a piece.
std::vector<OptimizerTensor> optimizer_tensors(const DecoderParameters& parameters,
                                               const OptimizerShard& shard);

// remainders: int16; masters: fp32, of the same shape. Both are contiguous and on the host.
void set_remainders(const Tensor& remainders, const Tensor& masters);

// "wte.weight[128:256]", or the tensor's name if the piece is all of its rows.
std::string name_of_piece(const std::string& tensor, const ShardPiece& piece, std::int64_t rows);

// Brings a parameter to the memory of a rank's host, piece by piece in order, and calls write(next bytes)
// there. Every rank makes this call.
// shards: the pieces of each rank. like: the whole. mine: this rank's pieces.
void gather_tensor(const Comm& comm, const Shards& shards, std::size_t parameter, const Tensor& like,
                   const std::vector<Tensor>& mine, int to, const Stream& stream,
                   const std::function<void(std::span<const std::byte> bytes)>& write);

}  // namespace warpwright
