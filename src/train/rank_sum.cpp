#include "train/rank_sum.hpp"

#include <fmt/format.h>

#include "train/library_sum.hpp"
#include "train/tree_sum.hpp"

namespace warpwright {

std::string_view name_of(Reduce reduce) {
  return reduce == Reduce::ring ? "ring" : "tree";
}

std::int64_t RankSum::slice_of_rank(std::int64_t round) const {
  const Comm& comm = layout_.comm;
  if (layout_.each_slice) return round * comm.size() + comm.rank();
  return layout_.slices_of_rank() * comm.rank() + round;
}

std::vector<RankSum::Pieces> RankSum::allocate_levels(std::size_t count, const std::vector<Tensor>& gradients,
                                                      Allocator& allocator) const {
  std::vector<Pieces> levels(count);
  for (std::size_t level = 0; level < count; ++level) {
    for (const ShardPiece& piece : layout_.shard()) {
      levels[level].push_back(allocator.allocate(fmt::format("sum_{}.{}", level + 1, levels[level].size()),
                                                 gradients.front().dtype, piece.of(gradients).shape,
                                                 Category::gradients));
    }
  }
  return levels;
}

void RankSum::set_sum(const std::vector<std::size_t>& mine, const Pieces& pieces) {
  sum_.resize(layout_.shard().size());
  for (std::size_t i = 0; i < mine.size(); ++i) sum_[mine[i]] = pieces[i];
}

std::unique_ptr<RankSum> make_rank_sum(Reduce reduce, const SumLayout& layout) {
  if (reduce == Reduce::ring) return std::make_unique<LibrarySum>(layout);
  return std::make_unique<TreeSum>(layout);
}

}  // namespace warpwright
