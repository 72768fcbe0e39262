#include "train/rank_sum.hpp"

#include <fmt/format.h>

#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright {

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

std::vector<std::vector<Tensor>> RankSum::allocate_received(const Shards& shards,
                                                            const DecoderParameters& gradients,
                                                            Allocator& allocator) const {
  const std::vector<Tensor> tensors = gradients.tensors();
  const ShardPieces& shard = shards[static_cast<std::size_t>(comm_.rank())];
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
                                                const std::vector<Pieces>& received,
                                                const Stream& stream) const {
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
  comm_.all_to_all(send, receive, stream);
  return nodes;
}

void RankSum::run(Context& context, const Shards& shards, const std::vector<DecoderParameters>& sums,
                  const std::vector<Pieces>& received) const {
  const std::vector<Pieces> nodes = exchanged(shards, sums, received, context.stream());
  std::vector<Pieces> stack;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    stack.push_back(nodes[i]);
    for (int addition = 0; addition < all_.additions[i]; ++addition) {
      ops::gradient_sum(context, {.sums = stack[stack.size() - 2], .addends = stack.back()});
      stack.pop_back();
    }
  }
  const Pieces& sum = stack.front();
  const Pieces mine = pieces_of(shards[static_cast<std::size_t>(comm_.rank())], sums.front().tensors());
  for (std::size_t i = 0; i < sum.size(); ++i) {  // rank 0's are in their place already
    if (sum[i].data != mine[i].data) copy(mine[i], sum[i], context.stream());
  }
}

}  // namespace warpwright
