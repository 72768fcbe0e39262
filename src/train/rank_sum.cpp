#include "train/rank_sum.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright {
namespace {

std::span<std::byte> bytes_of(const Tensor& t) {
  return {static_cast<std::byte*>(t.data), t.bytes()};
}

std::vector<Tensor> pieces_of(const std::vector<ShardPiece>& shard, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> pieces;
  for (const ShardPiece& piece : shard) pieces.push_back(piece.of(tensors));
  return pieces;
}

}  // namespace

RankSum::RankSum(const Comm& comm, std::int64_t slices) : comm_(comm) {
  const std::int64_t count = slices / comm.size();
  std::vector<SliceNode> nodes;
  for (int r = 0; r < comm.size(); ++r) {
    SliceTree tree = slice_tree(slice_nodes(r * count, count), slices);
    nodes.insert(nodes.end(), tree.whole.begin(), tree.whole.end());
    owners_.insert(owners_.end(), tree.whole.size(), r);
    if (r == comm.rank()) own_ = std::move(tree);
  }
  all_ = slice_tree(nodes, slices);
}

std::vector<std::vector<Tensor>> RankSum::allocate_received(const DecoderParameters& gradients,
                                                            Allocator& allocator) const {
  const std::vector<Tensor> tensors = gradients.tensors();
  const auto shard = shards_of(tensors, comm_.size())[static_cast<std::size_t>(comm_.rank())];
  std::vector<Pieces> received;
  for (const int owner : owners_) {
    if (owner == comm_.rank()) continue;
    Pieces& node = received.emplace_back();
    for (const ShardPiece& piece : shard) {
      const Tensor like = piece.of(tensors);
      node.push_back(allocator.allocate(fmt::format("received_{}.{}", received.size(), node.size()),
                                        like.dtype, like.shape, Category::gradients));
    }
  }
  return received;
}

std::vector<RankSum::Pieces> RankSum::exchanged(const Shards& shards,
                                                const std::vector<DecoderParameters>& sums,
                                                const std::vector<Pieces>& received) const {
  std::vector<Comm::Outgoing> send;
  std::vector<Comm::Incoming> receive;
  std::vector<Pieces> nodes;
  std::size_t own = 0, foreign = 0;
  for (const int owner : owners_) {
    if (owner != comm_.rank()) {
      nodes.push_back(received[foreign++]);
      for (const Tensor& piece : nodes.back()) receive.push_back({owner, bytes_of(piece)});
      continue;
    }
    const std::vector<Tensor> tensors = sums[own++].tensors();
    for (int r = 0; r < comm_.size(); ++r) {
      const Pieces pieces = pieces_of(shards[static_cast<std::size_t>(r)], tensors);
      if (r == comm_.rank()) {
        nodes.push_back(pieces);
      } else {
        for (const Tensor& piece : pieces) send.push_back({r, bytes_of(piece)});
      }
    }
  }
  comm_.all_to_all(send, receive);
  return nodes;
}

void RankSum::spread(const Shards& shards, const Pieces& shard, const DecoderParameters& gradients) const {
  const std::vector<Tensor> tensors = gradients.tensors();
  std::vector<Comm::Outgoing> send;
  std::vector<Comm::Incoming> receive;
  for (int r = 0; r < comm_.size(); ++r) {
    const Pieces pieces = pieces_of(shards[static_cast<std::size_t>(r)], tensors);
    if (r == comm_.rank()) {
      // The first rank's sum is in its place already.
      for (std::size_t i = 0; i < shard.size(); ++i) {
        if (shard[i].data != pieces[i].data)
          std::ranges::copy(bytes_of(shard[i]), bytes_of(pieces[i]).data());
      }
      continue;
    }
    for (const Tensor& piece : shard) send.push_back({r, bytes_of(piece)});
    for (const Tensor& piece : pieces) receive.push_back({r, bytes_of(piece)});
  }
  comm_.all_to_all(send, receive);
}

void RankSum::run(Context& context, const std::vector<DecoderParameters>& sums,
                  const std::vector<Pieces>& received) const {
  const Shards shards = shards_of(sums.front().tensors(), comm_.size());
  const std::vector<Pieces> nodes = exchanged(shards, sums, received);
  std::vector<Pieces> stack;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    stack.push_back(nodes[i]);
    for (int addition = 0; addition < all_.additions[i]; ++addition) {
      ops::gradient_sum(context, {.sums = stack[stack.size() - 2], .addends = stack.back()});
      stack.pop_back();
    }
  }
  spread(shards, stack.front(), sums.front());
}

}  // namespace warpwright
