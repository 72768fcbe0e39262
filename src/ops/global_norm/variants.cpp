#include "ops/variants.hpp"

#include "ops/global_norm/global_norm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kSquares[] = {
    "cuda.multi_tensor",
    "cpu.avx512",
    "cpu.avx2",
    "reference",
};

constexpr std::string_view kNorm[] = {
    "cuda.one_block",
    "cpu.in_order",
    "reference",
};

}  // namespace

const Op<Squares>& squares_op() {
  return operation<Squares, kSquares>("global_norm.squares");
}

const Op<GlobalNorm>& global_norm_op() {
  return operation<GlobalNorm, kNorm>("global_norm.norm");
}

std::vector<OpInfo> global_norm_ops(const DeviceInfo& device) {
  return {info_of(squares_op(), device), info_of(global_norm_op(), device)};
}

}  // namespace warpwright::ops
