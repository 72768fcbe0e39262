#include "model/bert_memory.hpp"

#include <fmt/format.h>

#include "ops/op.hpp"

namespace warpwright {
namespace {

BertActivations allocate_activations(const BertConfig& c, const BertPooling& pooling, DType dtype,
                                     const BertSizes& sizes, Allocator& allocator) {
  const auto in = [&](const std::string& name, const Shape& shape, DType as) {
    return allocator.allocate(name, as, shape, Category::activations);
  };
  const std::int64_t N = sizes.tokens, S = sizes.sequences;
  BertActivations a;
  a.hidden = in("hidden", {N, c.hidden}, dtype);
  a.other = in("other", {N, c.hidden}, dtype);
  a.qkv = in("qkv", {N, 3, c.heads, c.head_size()}, dtype);
  a.att = in("att", {N, c.heads, c.head_size()}, dtype);
  a.fc = in("fc", {N, c.intermediate}, dtype);
  const DType wide = ops::accumulation_dtype(dtype);
  a.pooled.push_back(in("pooled", {S, c.hidden}, wide));
  for (const BertDense& d : pooling.dense) {
    a.pooled.push_back(in(fmt::format("pooled.{}", a.pooled.size()), {S, d.out}, wide));
  }
  if (pooling.normalize && !pooling.dense.empty()) {
    a.pooled.push_back(in("normalized", a.pooled.back().shape, wide));
  }
  if (sizes.classifier) {
    a.first = in("first", {S, c.hidden}, dtype);
    a.pooler = in("pooler", {S, c.hidden}, dtype);
    a.logits = in("logits", {S, c.labels}, dtype);
  }
  return a;
}

}  // namespace

BertTensors allocate_forward(const BertConfig& config, const BertPooling& pooling, DType dtype,
                             const BertSizes& sizes, Allocator& allocator) {
  return {.activations = allocate_activations(config, pooling, dtype, sizes, allocator),
          .batch = allocator.allocate("batch", DType::i32, {batch_integers(sizes.tokens, sizes.sequences)},
                                      Category::batch)};
}

// The batch's integers are contiguous, so that one copy takes them to a device.
BertActivations narrow(const BertTensors& t, std::int64_t N, std::int64_t S, bool batch_invariant) {
  const auto first = [](const Tensor& tensor, std::int64_t n) {
    return tensor ? tensor.slice(0, 0, n) : tensor;
  };
  BertActivations a = t.activations;
  a.batch_invariant = batch_invariant;
  std::int64_t at = 0;
  const auto take = [&](std::int64_t count) {
    at += count;
    return t.batch.slice(0, at - count, count);
  };
  a.rows = take(1);
  a.cu_seqlens = take(S + 1);
  a.tokens = take(N);
  a.positions = take(N);
  a.types = take(N);
  for (Tensor* tensor : {&a.hidden, &a.other, &a.qkv, &a.att, &a.fc}) *tensor = first(*tensor, N);
  for (Tensor* tensor : {&a.first, &a.pooler, &a.logits}) *tensor = first(*tensor, S);
  for (Tensor& tensor : a.pooled) tensor = first(tensor, S);
  return a;
}

std::int64_t batch_integers(std::int64_t N, std::int64_t S) {
  return 2 + S + 3 * N;
}

}  // namespace warpwright
