#include "train/rank_sum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright {
namespace {

// The elements from a tensor's place to the next one's.
std::int64_t place_of(const Tensor& t) {
  const auto unit = static_cast<std::int64_t>(kAlignment / size_of(t.dtype));
  return (t.elements() + unit - 1) / unit * unit;
}

}  // namespace

RankSum::RankSum(const Comm& comm, const Units& units, const Shards& shards, std::int64_t slices,
                 bool each_slice)
    : comm_(comm), units_(units), shards_(shards), each_slice_(each_slice) {
  const std::int64_t of_rank = slices / comm.size();
  std::vector<SliceNode> nodes;
  for (int r = 0; r < comm.size(); ++r) {
    SliceTree tree = slice_tree(slice_nodes(r * of_rank, of_rank), slices);
    if (each_slice)
      tree = {
          .additions = std::vector<int>(static_cast<std::size_t>(of_rank)), .whole = {{r, 0}}, .depth = 1};
    for (std::size_t set = 0; set < tree.whole.size(); ++set) nodes_.push_back({r, set});
    nodes.insert(nodes.end(), tree.whole.begin(), tree.whole.end());
    if (r == comm.rank()) own_ = std::move(tree);
  }
  additions_ = slice_tree(each_slice ? slice_nodes(0, slices) : nodes, slices).additions;
  std::size_t height = 0;
  for (const int additions : additions_) {
    heights_.push_back(height);
    height = height + 1 - static_cast<std::size_t>(additions);
  }
}

std::int64_t RankSum::slice_of_rank(std::int64_t round) const {
  if (each_slice_) return round * comm_.size() + comm_.rank();
  return static_cast<std::int64_t>(rounds()) * comm_.rank() + round;
}

std::int64_t RankSum::elements_of_largest_unit(const std::vector<Tensor>& gradients) const {
  std::vector<std::int64_t> elements(units_.count());
  for (const ShardPiece& piece : shard()) elements[units_.of(piece.tensor)] += place_of(piece.of(gradients));
  return std::ranges::max(elements);
}

RankSum::Memory RankSum::allocate(const std::vector<Tensor>& gradients, Allocator& allocator) const {
  Memory memory;
  const auto allocate = [&](const std::string& name, const Shape& shape) {
    return allocator.allocate(name, gradients.front().dtype, shape, Category::gradients);
  };
  for (const Node& node : nodes_) {
    if (node.owner == comm_.rank()) continue;
    const std::string name = fmt::format("received_{}", memory.received.size() + 1);
    Pieces& received = memory.received.emplace_back();
    // In each slice, a unit's gradients take the place of another's.
    const Tensor shared = each_slice_ ? allocate(name, {elements_of_largest_unit(gradients)}) : Tensor();
    std::vector<std::int64_t> taken(units_.count());
    for (const ShardPiece& piece : shard()) {
      const Tensor like = piece.of(gradients);
      std::int64_t& first = taken[units_.of(piece.tensor)];
      received.push_back(shared ? shared.slice(0, first, like.elements()).view(like.shape)
                                : allocate(fmt::format("{}.{}", name, received.size()), like.shape));
      first += place_of(like);
    }
  }
  std::size_t depth = 0;
  for (std::size_t i = 0; i < additions_.size() && each_slice_; ++i) {
    if (additions_[i] == 0) depth = std::max(depth, heights_[i] + 1);
  }
  for (std::size_t level = 0; level < depth; ++level) {
    Pieces& pieces = memory.levels.emplace_back();
    for (const ShardPiece& piece : shard()) {
      pieces.push_back(
          allocate(fmt::format("sum_{}.{}", level + 1, pieces.size()), piece.of(gradients).shape));
    }
  }
  return memory;
}

void RankSum::prepare(const std::vector<DecoderParameters>& sums, const Memory& memory) {
  std::vector<std::vector<Tensor>> sets;
  for (const DecoderParameters& set : sums) sets.push_back(set.tensors());
  for (std::size_t u = 0; u < units_.count(); ++u) {
    const Shards pieces = units_.part(u, shards_);
    const ShardPieces& own = pieces[static_cast<std::size_t>(comm_.rank())];
    Unit& unit = prepared_.emplace_back();
    unit.mine = units_.indices(u, shard());
    for (const Pieces& level : memory.levels) unit.levels.push_back(at(level, unit.mine));
    std::vector<Comm::Outgoing> send;
    std::vector<Comm::Incoming> receive;
    std::size_t foreign = 0;
    for (const Node& node : nodes_) {
      if (node.owner != comm_.rank()) {
        unit.nodes.push_back(at(memory.received[foreign++], unit.mine));
        for (const auto bytes : memory_of(own, sets.front(), unit.nodes.back()))
          receive.push_back({node.owner, bytes});
        continue;
      }
      unit.nodes.push_back(pieces_of(own, sets[node.set]));
      for (int r = 0; r < comm_.size(); ++r) {
        if (r == comm_.rank()) continue;
        const ShardPieces& others = pieces[static_cast<std::size_t>(r)];
        for (const auto bytes : memory_of(others, sets.front(), pieces_of(others, sets[node.set]))) {
          send.push_back({r, bytes});
        }
      }
    }
    unit.exchange = comm_.prepare(std::move(send), std::move(receive));
  }
  sum_.resize(shard().size());
  for (const Unit& unit : prepared_) {
    const Pieces& lowest = each_slice_ ? unit.levels.front() : unit.nodes.front();
    for (std::size_t i = 0; i < unit.mine.size(); ++i) sum_[unit.mine[i]] = lowest[i];
  }
}

// The same additions, in the same order, as on a stack of all gradients.
void RankSum::run(Context& context, std::size_t index, std::size_t round) const {
  const Unit& unit = prepared_[index];
  unit.exchange->run(context.stream());
  const std::size_t first = each_slice_ ? round * nodes_.size() : 0;
  std::vector<Pieces> stack(unit.levels.begin(),
                            unit.levels.begin() + static_cast<std::ptrdiff_t>(heights_[first]));
  for (std::size_t i = 0; i < unit.nodes.size(); ++i) {
    stack.push_back(unit.nodes[i]);
    for (int addition = 0; addition < additions_[first + i]; ++addition) {
      const Pieces addend = std::exchange(stack.back(), {});
      stack.pop_back();
      const Pieces& sum = each_slice_ ? unit.levels[stack.size() - 1] : stack.back();
      ops::gradient_sum(context, {.sums = sum, .firsts = stack.back(), .addends = addend});
      stack.back() = sum;
    }
  }
  // The next unit takes the nodes' places.
  for (std::size_t level = 0; each_slice_ && level < stack.size(); ++level) {
    bring(unit.levels[level], stack[level], context.stream());
  }
}

}  // namespace warpwright
