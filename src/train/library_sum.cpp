#include "train/library_sum.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"
#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright {
namespace {

SliceTree tree_of_own_slices(const SumLayout& layout) {
  const std::int64_t count = layout.slices_of_rank();
  if (!layout.each_slice) return slice_tree(slice_nodes(0, count), count);
  return {.additions = std::vector<int>(static_cast<std::size_t>(count)), .whole = {}, .depth = 1};
}

std::span<float> floats_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

LibrarySum::LibrarySum(const SumLayout& layout) : RankSum(layout, tree_of_own_slices(layout)) {}

RankSum::Memory LibrarySum::allocate(const std::vector<Tensor>& gradients, Allocator& allocator) const {
  return {.received = {}, .levels = allocate_levels(layout_.each_slice ? 1 : 0, gradients, allocator)};
}

void LibrarySum::prepare(const std::vector<DecoderParameters>& sums, const Memory& memory) {
  const std::vector<Tensor> gradients = sums.front().tensors();
  if (gradients.front().dtype != DType::f32) {
    throw Error(fmt::format("adds fp32, and the gradients are {}", name_of(gradients.front().dtype)),
                "--reduce ring", "use --reduce tree");
  }
  const Comm& comm = layout_.comm;
  for (std::size_t u = 0; u < layout_.units.count(); ++u) {
    const Shards pieces = layout_.units.part(u, layout_.shards);
    const std::vector<std::size_t> mine = layout_.units.indices(u, layout_.shard());
    Unit& unit = prepared_.emplace_back();
    std::vector<Comm::Summed> places;
    for (int r = 0; r < comm.size(); ++r) {
      const ShardPieces& of_rank = pieces[static_cast<std::size_t>(r)];
      for (const auto bytes : memory_of(of_rank, gradients, pieces_of(of_rank, gradients)))
        places.push_back({r, floats_of(bytes)});
    }
    unit.reduction = comm.prepare_reduce(std::move(places));
    unit.summed = pieces_of(pieces[static_cast<std::size_t>(comm.rank())], gradients);
    if (layout_.each_slice) unit.rounds = at(memory.levels.front(), mine);
    set_sum(mine, layout_.each_slice ? unit.rounds : unit.summed);
  }
}

void LibrarySum::run(Context& context, std::size_t index, std::size_t round) const {
  const Unit& unit = prepared_[index];
  unit.reduction->run(context.stream());
  if (!layout_.each_slice) return;
  if (round == 0) return bring(unit.rounds, unit.summed, context.stream());
  ops::gradient_sum(context, {.sums = unit.rounds, .firsts = unit.rounds, .addends = unit.summed});
}

}  // namespace warpwright
