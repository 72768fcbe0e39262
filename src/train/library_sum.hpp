// The sum of gradients over ranks by the library that connects them (Comm::reduce).
//
// A rank adds up its own slices along a tree of their own, down to one sum (once), or takes each slice. The
// library adds up these sums in the gradients' own memory, each piece in that of its owner. So no room is
// needed for what others send. In each slice, the owner adds the rounds one after the other.
#pragma once

#include <memory>
#include <vector>

#include "train/rank_sum.hpp"

namespace warpwright {

class LibrarySum final : public RankSum {
 public:
  explicit LibrarySum(const SumLayout& layout);

  Memory allocate(const std::vector<Tensor>& gradients, Allocator& allocator) const override;
  // Throws Error for gradients that are not fp32.
  void prepare(const std::vector<DecoderParameters>& sums, const Memory& memory) override;
  void run(Context& context, std::size_t unit, std::size_t round) const override;

 private:
  struct Unit {
    std::unique_ptr<const Comm::Exchange> reduction;
    Pieces summed;  // this rank's, after the reduction
    Pieces rounds;  // in each slice: their sum so far
  };

  std::vector<Unit> prepared_;
};

}  // namespace warpwright
