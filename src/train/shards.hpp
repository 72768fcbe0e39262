// The parts of a model's tensors for which the ranks are responsible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/comm.hpp"
#include "core/tensor.hpp"

namespace warpwright {

// The ranks divide this among themselves; each has a copy of everything else.
//   none       nothing: every rank updates all parameters
//   optimizer  masters and moments: a rank updates its shard of the parameters, and sends it to the others
//   gradients  also the gradients, except those of the layer at hand
//   parameters also the parameters, except those of the layer at hand
enum class Sharding : std::uint8_t { none, optimizer, gradients, parameters };
inline constexpr Sharding kShardings[] = {Sharding::none, Sharding::optimizer, Sharding::gradients,
                                          Sharding::parameters};  // each divides more than the one before
std::string_view name_of(Sharding sharding);

// Rows of a tensor: all of them, or a range whose bounds are multiples of shard_rows() or the tensor's end.
struct ShardPiece {
  std::size_t tensor = 0;
  std::int64_t first = 0, rows = 0;

  Tensor of(const Tensor& whole) const { return whole.slice(0, first, rows); }
  Tensor of(const std::vector<Tensor>& tensors) const { return of(tensors[tensor]); }
  bool operator==(const ShardPiece&) const = default;
};
using ShardPieces = std::vector<ShardPiece>;
using Shards = std::vector<ShardPieces>;  // by rank

// The fewest rows that are a multiple of 128 and fill whole blocks of squares (ops/global_norm), so that the
// norm of the gradients can be computed by shard.
std::int64_t shard_rows(std::int64_t columns);

// Cuts the tensors, in order, into one shard for each rank, of about as many elements each. A function of the
// shapes and the number of ranks alone.
Shards shards_of(const std::vector<Tensor>& tensors, int ranks);

// The blocks of squares (ops/global_norm) of a rank's pieces. Pieces whose blocks follow each other form a
// run.
struct SquaresRun {
  ShardPiece blocks;                 // of the tensor of all sums
  std::size_t first = 0, count = 0;  // pieces
};
std::vector<SquaresRun> squares_runs(const ShardPieces& pieces, const std::vector<Tensor>& tensors);

std::vector<Tensor> pieces_of(const ShardPieces& pieces, const std::vector<Tensor>& tensors);

// The memory of pieces of such tensors: one span for pieces of neighbours that follow each other. The pieces,
// or the tensors, must have come in order from an arena, which places neighbours next to each other.
std::vector<std::span<std::byte>> memory_of(const ShardPieces& pieces, const std::vector<Tensor>& like,
                                            const std::vector<Tensor>& memory);

// Every rank sends its shard of the tensors to all others. The tensors are then the same everywhere.
std::unique_ptr<const Comm::Exchange> prepare_gather(const Comm& comm, const Shards& shards,
                                                     const std::vector<Tensor>& tensors);

// Copies the tensors that are not in these places yet.
void bring(const std::vector<Tensor>& to, const std::vector<Tensor>& from, const Stream& stream);

std::span<std::byte> bytes_of(const Tensor& t);

}  // namespace warpwright
