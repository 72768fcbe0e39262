#include "train/shards.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/global_norm/global_norm.hpp"

namespace warpwright {

std::string_view name_of(Sharding sharding) {
  constexpr std::string_view kNames[] = {"none", "optimizer", "gradients", "parameters"};
  return kNames[static_cast<int>(sharding)];
}

std::int64_t shard_rows(std::int64_t columns) {
  constexpr std::int64_t kRows = 128;
  const std::int64_t block = ops::kSquaresBlock / std::gcd(ops::kSquaresBlock, columns);
  return std::lcm(kRows, block);
}

Shards shards_of(const std::vector<Tensor>& tensors, int ranks) {
  std::int64_t all = 0;
  for (const Tensor& t : tensors) all += t.elements();
  Shards shards(static_cast<std::size_t>(ranks));
  std::int64_t before = 0;  // elements of earlier groups of rows
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t rows = tensors[i].shape[0];
    const std::int64_t columns = rows > 0 ? tensors[i].elements() / rows : 0;
    const std::int64_t group = shard_rows(columns);
    for (std::int64_t first = 0; first < rows; first += group) {
      const std::int64_t count = std::min(group, rows - first);
      // The rank in whose share of the elements the group begins.
      auto& shard = shards[static_cast<std::size_t>(before * ranks / all)];
      const bool continues = !shard.empty() && shard.back().tensor == i;
      if (continues) {
        shard.back().rows += count;
      } else {
        shard.push_back({i, first, count});
      }
      before += count * columns;
    }
  }
  return shards;
}

std::vector<SquaresRun> squares_runs(const ShardPieces& pieces, const std::vector<Tensor>& tensors) {
  std::vector<std::int64_t> before{0};  // blocks of earlier tensors
  for (const Tensor& t : tensors) before.push_back(before.back() + ops::squares_blocks({t}));
  std::vector<SquaresRun> runs;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ShardPiece& piece = pieces[i];
    const std::int64_t columns = piece.of(tensors).elements() / piece.rows;
    const std::int64_t first = before[piece.tensor] + piece.first * columns / ops::kSquaresBlock;
    if (runs.empty() || runs.back().blocks.first + runs.back().blocks.rows != first) {
      runs.push_back({.blocks = {0, first, 0}, .first = i, .count = 0});
    }
    runs.back().blocks.rows += ops::squares_blocks({piece.of(tensors)});
    ++runs.back().count;
  }
  return runs;
}

std::vector<Tensor> pieces_of(const ShardPieces& pieces, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> list;
  for (const ShardPiece& piece : pieces) list.push_back(piece.of(tensors));
  return list;
}

std::vector<std::span<std::byte>> memory_of(const ShardPieces& pieces, const std::vector<Tensor>& like,
                                            const std::vector<Tensor>& memory) {
  std::vector<std::span<std::byte>> spans;
  const ShardPiece* before = nullptr;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ShardPiece& piece = pieces[i];
    const std::span<std::byte> bytes = bytes_of(memory[i]);
    const bool follows = before && piece.tensor == before->tensor + 1 && piece.first == 0 &&
                         before->first + before->rows == like[before->tensor].shape[0];
    if (follows) {
      spans.back() = {spans.back().data(), bytes.data() + bytes.size()};
    } else {
      spans.push_back(bytes);
    }
    before = &piece;
  }
  return spans;
}

std::unique_ptr<const Comm::Exchange> prepare_gather(const Comm& comm, const Shards& shards,
                                                     const std::vector<Tensor>& tensors) {
  std::vector<Comm::Outgoing> send;
  std::vector<Comm::Incoming> receive;
  const auto memory_of_rank = [&](int r) {
    const ShardPieces& pieces = shards[static_cast<std::size_t>(r)];
    return memory_of(pieces, tensors, pieces_of(pieces, tensors));
  };
  for (int r = 0; r < comm.size(); ++r) {
    if (r == comm.rank()) continue;
    for (const auto bytes : memory_of_rank(comm.rank())) send.push_back({r, bytes});
    for (const auto bytes : memory_of_rank(r)) receive.push_back({r, bytes});
  }
  return comm.prepare(std::move(send), std::move(receive));
}

void bring(const std::vector<Tensor>& to, const std::vector<Tensor>& from, const Stream& stream) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i].data != from[i].data) copy(to[i], from[i], stream);
  }
}

std::span<std::byte> bytes_of(const Tensor& t) {
  return {static_cast<std::byte*>(t.data), t.bytes()};
}

}  // namespace warpwright
