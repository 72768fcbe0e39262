#include "train/optimizer_shard.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ops/adamw/master.hpp"
#include "ops/op.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {

OptimizerShard allocate_optimizer(const DecoderParameters& parameters, const ShardPieces& pieces,
                                  const OptimizerShardOptions& options, Allocator& allocator) {
  OptimizerShard shard{.pieces = pieces, .parameters = {}, .remainders = {}, .m = {}, .v = {}};
  for (const ShardPiece& piece : pieces) {
    const auto& [parameter, whole] = *(parameters.begin() + static_cast<std::ptrdiff_t>(piece.tensor));
    const Tensor view = piece.of(whole);
    const DType dtype = view.dtype, accumulation = ops::accumulation_dtype(dtype);
    const std::string name = name_of_piece(parameter, piece, whole.shape[0]);
    const auto allocate = [&](const char* prefix, DType as, Category category) {
      return allocator.allocate(prefix + name, as, view.shape, category);
    };
    const Tensor kept = options.stores_parameters ? allocate("shard.", dtype, Category::parameters) : view;
    shard.parameters.push_back(kept);
    if (options.masters) {
      const bool is_master = dtype == accumulation;
      shard.remainders.push_back(is_master ? Tensor()
                                           : allocate("remainder.", DType::i16, Category::master_weights));
    }
    shard.m.push_back(allocate("m.", accumulation, Category::optimizer));
    const bool has_v = !options.muon.contains(piece.tensor);
    shard.v.push_back(has_v ? allocate("v.", accumulation, Category::optimizer) : Tensor());
  }
  return shard;
}

void set_remainders(const Tensor& remainders, const Tensor& masters) {
  for (std::int64_t i = 0; i < masters.elements(); ++i) {
    const float master = masters.as<float>()[i];
    remainders.as<std::int16_t>()[i] = ops::adamw_kernels::remainder_of(master, bf16(master).bits);
  }
}

std::string name_of_piece(const std::string& tensor, const ShardPiece& piece, std::int64_t rows) {
  if (piece.rows == rows) return tensor;
  return fmt::format("{}[{}:{}]", tensor, piece.first, piece.first + piece.rows);
}

std::vector<OptimizerTensor> optimizer_tensors(const DecoderParameters& parameters,
                                               const OptimizerShard& shard) {
  std::vector<OptimizerTensor> list;
  const auto append = [&](std::string_view prefix, std::vector<Tensor> OptimizerShard::*set) {
    for (std::size_t i = 0; i < (shard.*set).size(); ++i) {
      if (!(shard.*set)[i]) continue;
      const std::size_t index = shard.pieces[i].tensor;
      const auto& [name, t] = *(parameters.begin() + static_cast<std::ptrdiff_t>(index));
      list.push_back({std::string(prefix) + name, (shard.*set)[i].dtype, t.shape, index, set});
    }
  };
  append("m.", &OptimizerShard::m);
  append("v.", &OptimizerShard::v);
  append(kRemainderPrefix, &OptimizerShard::remainders);
  return list;
}

void gather_tensor(const Comm& comm, const Shards& shards, std::size_t parameter, const Tensor& like,
                   const std::vector<Tensor>& mine, int to, const Stream& stream,
                   const std::function<void(std::span<const std::byte> bytes)>& write) {
  for (int owner = 0; owner < static_cast<int>(shards.size()); ++owner) {
    const ShardPieces& pieces = shards[static_cast<std::size_t>(owner)];
    const auto piece = std::ranges::find(pieces, parameter, &ShardPiece::tensor);
    if (piece == pieces.end()) continue;
    const Shape shape = piece->of(like).shape;
    if (comm.rank() == owner) {
      const Tensor& own = mine[static_cast<std::size_t>(piece - pieces.begin())];
      if (owner == to) {
        write(bytes_of(downloaded(own, stream).tensor()));
      } else {
        comm.all_to_all({{to, bytes_of(own)}}, {}, stream);
      }
    } else if (comm.rank() == to) {
      HeapAllocator landing(mine.empty() ? like.device : mine.front().device);
      const Tensor received = landing.allocate("received", like.dtype, shape, Category::optimizer);
      comm.all_to_all({}, {{owner, bytes_of(received)}}, stream);
      write(bytes_of(downloaded(received, stream).tensor()));
    }
  }
}

}  // namespace warpwright
