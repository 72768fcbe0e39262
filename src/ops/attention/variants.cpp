#include "ops/variants.hpp"

#include "ops/attention/attention.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.flash_sm90",
    "cuda.flash_packed",
    "cuda.flash",
    "cuda.flash_short",
    "cuda.flash_sm90_pairs",
    "cuda.flash_pairs",
    "cuda.flash_tf32",
    "cuda.flash_fma",
    "cuda.staged",
    // The refusals of these two depend on the sequences' lengths and on their sum. They come after
    // cuda.staged, which refuses less, so they run only if they are forced.
    "cuda.staged_registers",
    "cuda.staged_shared",
    "cuda.ladder_library",
    "cuda.ladder_half2",
    "cpu.amx_bf16",
    "cpu.avx512_bf16",
    "cpu.avx512",
    "cpu.avx2",
    "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.flash_sm90",     "cuda.flash",   "cuda.flash_tf32", "cuda.flash_fma", "cuda.staged",
    "cuda.ladder_library", "cpu.amx_bf16", "cpu.avx512_bf16", "cpu.avx512",     "cpu.avx2",
    "reference",
};

}  // namespace

const Op<AttentionForward>& attention_forward_op() {
  return operation<AttentionForward, kForward>("attention.forward");
}

const Op<AttentionBackward>& attention_backward_op() {
  return operation<AttentionBackward, kBackward>("attention.backward");
}

std::vector<OpInfo> attention_ops(const DeviceInfo& device) {
  return {info_of(attention_forward_op(), device), info_of(attention_backward_op(), device)};
}

}  // namespace warpwright::ops
