#include "ops/variants.hpp"

#include "ops/cached_attention/cached_attention.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kAppend[] = {
    "cuda.rows",
    "cpu.rows",
    "reference",
};

constexpr std::string_view kAttention[] = {
    "cuda.split", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<CacheAppend>& cache_append_op() {
  return operation<CacheAppend, kAppend>("cache.append");
}

const Op<CachedAttention>& cached_attention_op() {
  return operation<CachedAttention, kAttention>("cached_attention.forward");
}

std::vector<OpInfo> cached_attention_ops(const DeviceInfo& device) {
  return {info_of(cache_append_op(), device), info_of(cached_attention_op(), device)};
}

}  // namespace warpwright::ops
