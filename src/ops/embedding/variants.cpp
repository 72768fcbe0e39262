#include "ops/variants.hpp"

#include "ops/embedding/embedding.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.sorted", "cuda.plain", "cuda.ladder_atomics", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<EmbeddingForward>& embedding_forward_op() {
  return operation<EmbeddingForward, kForward>("embedding.forward");
}

const Op<EmbeddingBackward>& embedding_backward_op() {
  return operation<EmbeddingBackward, kBackward>("embedding.backward");
}

std::vector<OpInfo> embedding_ops(const DeviceInfo& device) {
  return {info_of(embedding_forward_op(), device), info_of(embedding_backward_op(), device)};
}

}  // namespace warpwright::ops
