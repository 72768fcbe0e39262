#include "ops/variants.hpp"

#include "ops/padding/padding.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kLengths[] = {
    "cuda.rows",
    "cpu.rows",
    "reference",
};

constexpr std::string_view kPairs[] = {
    "cuda.rows",
    "cpu.rows",
    "reference",
};

constexpr std::string_view kPack[] = {
    "cuda.rows",
    "cpu.rows",
    "reference",
};

constexpr std::string_view kUnpack[] = {
    "cuda.rows",
    "cpu.rows",
    "reference",
};

}  // namespace

const Op<PaddingLengths>& padding_lengths_op() {
  return operation<PaddingLengths, kLengths>("padding.lengths");
}

const Op<PaddingPairs>& padding_pairs_op() {
  return operation<PaddingPairs, kPairs>("padding.pairs");
}

const Op<PaddingPack>& padding_pack_op() {
  return operation<PaddingPack, kPack>("padding.pack");
}

const Op<PaddingUnpack>& padding_unpack_op() {
  return operation<PaddingUnpack, kUnpack>("padding.unpack");
}

std::vector<OpInfo> padding_ops(const DeviceInfo& device) {
  return {info_of(padding_lengths_op(), device), info_of(padding_pairs_op(), device),
          info_of(padding_pack_op(), device), info_of(padding_unpack_op(), device)};
}

}  // namespace warpwright::ops
