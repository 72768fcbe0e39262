#include "train/tree_sum.hpp"

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

// The part of the tree that a rank adds up until an exchange.
SliceTree tree_of_rank(const SumLayout& layout, int rank) {
  const std::int64_t count = layout.slices_of_rank();
  if (!layout.each_slice) return slice_tree(slice_nodes(rank * count, count), layout.slices);
  return {.additions = std::vector<int>(static_cast<std::size_t>(count)), .whole = {{rank, 0}}, .depth = 1};
}

}  // namespace

TreeSum::TreeSum(const SumLayout& layout) : RankSum(layout, tree_of_rank(layout, layout.comm.rank())) {
  std::vector<SliceNode> nodes;
  for (int r = 0; r < layout.comm.size(); ++r) {
    const std::vector<SliceNode> whole = tree_of_rank(layout, r).whole;
    for (std::size_t set = 0; set < whole.size(); ++set) nodes_.push_back({r, set});
    nodes.insert(nodes.end(), whole.begin(), whole.end());
  }
  additions_ = slice_tree(layout.each_slice ? slice_nodes(0, layout.slices) : nodes, layout.slices).additions;
  std::size_t height = 0;
  for (const int additions : additions_) {
    heights_.push_back(height);
    height = height + 1 - static_cast<std::size_t>(additions);
  }
}

std::int64_t TreeSum::elements_of_largest_unit(const std::vector<Tensor>& gradients) const {
  std::vector<std::int64_t> elements(layout_.units.count());
  for (const ShardPiece& piece : layout_.shard())
    elements[layout_.units.of(piece.tensor)] += place_of(piece.of(gradients));
  return std::ranges::max(elements);
}

std::vector<RankSum::Pieces> TreeSum::allocate_received(const std::vector<Tensor>& gradients,
                                                        Allocator& allocator) const {
  std::vector<Pieces> all;
  const auto allocate = [&](const std::string& name, const Shape& shape) {
    return allocator.allocate(name, gradients.front().dtype, shape, Category::gradients);
  };
  for (const Node& node : nodes_) {
    if (node.owner == layout_.comm.rank()) continue;
    const std::string name = fmt::format("received_{}", all.size() + 1);
    Pieces& received = all.emplace_back();
    // In each slice, a unit's gradients take the place of another's.
    const Tensor shared =
        layout_.each_slice ? allocate(name, {elements_of_largest_unit(gradients)}) : Tensor();
    std::vector<std::int64_t> taken(layout_.units.count());
    for (const ShardPiece& piece : layout_.shard()) {
      const Tensor like = piece.of(gradients);
      std::int64_t& first = taken[layout_.units.of(piece.tensor)];
      received.push_back(shared ? shared.slice(0, first, like.elements()).view(like.shape)
                                : allocate(fmt::format("{}.{}", name, received.size()), like.shape));
      first += place_of(like);
    }
  }
  return all;
}

std::size_t TreeSum::levels() const {
  std::size_t depth = 0;
  for (std::size_t i = 0; i < additions_.size() && layout_.each_slice; ++i) {
    if (additions_[i] == 0) depth = std::max(depth, heights_[i] + 1);
  }
  return depth;
}

RankSum::Memory TreeSum::allocate(const std::vector<Tensor>& gradients, Allocator& allocator) const {
  return {.received = allocate_received(gradients, allocator),
          .levels = allocate_levels(levels(), gradients, allocator)};
}

void TreeSum::prepare(const std::vector<DecoderParameters>& sums, const Memory& memory) {
  const Comm& comm = layout_.comm;
  std::vector<std::vector<Tensor>> sets;
  for (const DecoderParameters& set : sums) sets.push_back(set.tensors());
  for (std::size_t u = 0; u < layout_.units.count(); ++u) {
    const Shards pieces = layout_.units.part(u, layout_.shards);
    const ShardPieces& own = pieces[static_cast<std::size_t>(comm.rank())];
    const std::vector<std::size_t> mine = layout_.units.indices(u, layout_.shard());
    Unit& unit = prepared_.emplace_back();
    for (const Pieces& level : memory.levels) unit.levels.push_back(at(level, mine));
    std::vector<Comm::Outgoing> send;
    std::vector<Comm::Incoming> receive;
    std::size_t foreign = 0;
    for (const Node& node : nodes_) {
      if (node.owner != comm.rank()) {
        unit.nodes.push_back(at(memory.received[foreign++], mine));
        for (const auto bytes : memory_of(own, sets.front(), unit.nodes.back()))
          receive.push_back({node.owner, bytes});
        continue;
      }
      unit.nodes.push_back(pieces_of(own, sets[node.set]));
      for (int r = 0; r < comm.size(); ++r) {
        if (r == comm.rank()) continue;
        const ShardPieces& others = pieces[static_cast<std::size_t>(r)];
        for (const auto bytes : memory_of(others, sets.front(), pieces_of(others, sets[node.set]))) {
          send.push_back({r, bytes});
        }
      }
    }
    unit.exchange = comm.prepare(std::move(send), std::move(receive));
    set_sum(mine, layout_.each_slice ? unit.levels.front() : unit.nodes.front());
  }
}

// The same additions, in the same order, as on a stack of all gradients.
void TreeSum::run(Context& context, std::size_t index, std::size_t round) const {
  const bool each_slice = layout_.each_slice;
  const Unit& unit = prepared_[index];
  unit.exchange->run(context.stream());
  const std::size_t first = each_slice ? round * nodes_.size() : 0;
  std::vector<Pieces> stack(unit.levels.begin(),
                            unit.levels.begin() + static_cast<std::ptrdiff_t>(heights_[first]));
  for (std::size_t i = 0; i < unit.nodes.size(); ++i) {
    stack.push_back(unit.nodes[i]);
    for (int addition = 0; addition < additions_[first + i]; ++addition) {
      const Pieces addend = std::exchange(stack.back(), {});
      stack.pop_back();
      const Pieces& sum = each_slice ? unit.levels[stack.size() - 1] : stack.back();
      ops::gradient_sum(context, {.sums = sum, .firsts = stack.back(), .addends = addend});
      stack.back() = sum;
    }
  }
  // The next unit takes the nodes' places.
  for (std::size_t level = 0; each_slice && level < stack.size(); ++level) {
    bring(unit.levels[level], stack[level], context.stream());
  }
}

}  // namespace warpwright
