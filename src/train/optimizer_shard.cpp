#include "train/optimizer_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ops/op.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {
namespace {

// "wte.weight[128:256]", or the parameter's name if the piece is all of it.
std::string name_of_piece(const std::string& parameter, const ShardPiece& piece, const Tensor& whole) {
  if (piece.rows == whole.shape[0]) return parameter;
  return fmt::format("{}[{}:{}]", parameter, piece.first, piece.first + piece.rows);
}

}  // namespace

OptimizerShard allocate_optimizer(const DecoderParameters& parameters, const ShardPieces& pieces,
                                  bool masters, Allocator& allocator) {
  OptimizerShard shard{.pieces = pieces, .masters = {}, .m = {}, .v = {}};
  for (const ShardPiece& piece : pieces) {
    const auto& [parameter, whole] = *(parameters.begin() + static_cast<std::ptrdiff_t>(piece.tensor));
    const Tensor like = piece.of(whole);
    const DType accumulation = ops::accumulation_dtype(like.dtype);
    const std::string name = name_of_piece(parameter, piece, whole);
    const auto allocate = [&](const char* prefix, Category category) {
      return allocator.allocate(prefix + name, accumulation, like.shape, category);
    };
    if (masters) {
      shard.masters.push_back(like.dtype == accumulation ? like
                                                         : allocate("master.", Category::master_weights));
    }
    shard.m.push_back(allocate("m.", Category::optimizer));
    shard.v.push_back(allocate("v.", Category::optimizer));
  }
  return shard;
}

std::vector<OptimizerTensor> optimizer_tensors(const DecoderParameters& parameters,
                                               const OptimizerShard& shard) {
  std::vector<OptimizerTensor> list;
  const auto append = [&](const char* prefix, std::vector<Tensor> OptimizerShard::*set) {
    if ((shard.*set).empty()) return;
    std::size_t index = 0;
    for (const auto& [name, t] : parameters) {
      list.push_back({prefix + name, ops::accumulation_dtype(t.dtype), t.shape, index++, set});
    }
  };
  append("m.", &OptimizerShard::m);
  append("v.", &OptimizerShard::v);
  append("master.", &OptimizerShard::masters);
  return list;
}

void gather_optimizer(
    const Comm& comm, const Shards& shards, const DecoderParameters& parameters, const OptimizerShard& mine,
    const Stream& stream,
    const std::function<void(const std::string& name, std::span<const std::byte> bytes)>& write) {
  // The index of the owner's piece that holds rows of the tensor, or nothing.
  const auto piece_of = [](const ShardPieces& pieces, std::size_t tensor) -> std::optional<std::size_t> {
    const auto found = std::ranges::find(pieces, tensor, &ShardPiece::tensor);
    if (found == pieces.end()) return std::nullopt;
    return static_cast<std::size_t>(found - pieces.begin());
  };
  for (const OptimizerTensor& tensor : optimizer_tensors(parameters, mine)) {
    const std::int64_t row = tensor.shape[0] > 0 ? tensor.shape.elements() / tensor.shape[0] : 0;
    for (int owner = 0; owner < static_cast<int>(shards.size()); ++owner) {
      const ShardPieces& pieces = shards[static_cast<std::size_t>(owner)];
      const auto index = piece_of(pieces, tensor.parameter);
      if (!index) continue;
      if (comm.rank() == owner) {
        const HostView piece = downloaded((mine.*tensor.set)[*index], stream);
        if (owner == 0) {
          write(tensor.name, bytes_of(piece.tensor()));
        } else {
          comm.all_to_all({{0, bytes_of(piece.tensor())}}, {});
        }
      } else if (comm.rank() == 0) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(pieces[*index].rows * row) *
                                     size_of(tensor.dtype));
        comm.all_to_all({}, {{owner, bytes}});
        write(tensor.name, bytes);
      }
    }
  }
}

}  // namespace warpwright
