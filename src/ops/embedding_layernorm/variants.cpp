#include "ops/variants.hpp"

#include "ops/embedding_layernorm/embedding_layernorm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.warp_row", "cuda.warp_loop", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<EmbeddingLayerNormForward>& embedding_layernorm_forward_op() {
  return operation<EmbeddingLayerNormForward, kForward>("embedding_layernorm.forward");
}

std::vector<OpInfo> embedding_layernorm_ops(const DeviceInfo& device) {
  return {info_of(embedding_layernorm_forward_op(), device)};
}

}  // namespace warpwright::ops
