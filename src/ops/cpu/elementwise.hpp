// Element-wise loops over contiguous tensors. They are memory-bound, and the threads share the blocks.
#pragma once

#include "core/tensor.hpp"
#include "ops/cpu/simd.hpp"

namespace warpwright::ops::simd {
namespace {

constexpr std::int64_t kElementwiseBlock = 16384;  // a multiple of every vector's length

// Like for_each_vector over [0, count), on several threads.
template <class F>
void for_each_vector_parallel(std::int64_t count, int threads, const F& f) {
  const std::int64_t blocks = (count + kElementwiseBlock - 1) / kElementwiseBlock;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const F local = f;  // keeps the captures in registers: a vector store could alias the captures of f
    const std::int64_t begin = block * kElementwiseBlock;
    const std::int64_t end = count - begin < kElementwiseBlock ? count : begin + kElementwiseBlock;
    for_each_vector(begin, end, local);
  }
}

// The number of elements of a tensor whose shape has been checked. Shape::elements() can throw, and a call
// that can throw in a parallel region makes clang export a weak symbol.
inline std::int64_t count_elements(const Tensor& tensor) {
  std::int64_t count = 1;
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) count *= tensor.shape[axis];
  return count;
}

// The number of blocks of several tensors. The tensors form one sequence of blocks, and no block spans two
// tensors. elements(i) is the size of tensor i.
template <class Elements>
std::int64_t count_blocks(std::int64_t tensors, const Elements& elements) {
  std::int64_t blocks = 0;
  for (std::int64_t i = 0; i < tensors; ++i) {
    blocks += (elements(i) + kElementwiseBlock - 1) / kElementwiseBlock;
  }
  return blocks;
}

// Calls f(tensor, block, begin, end) for blocks [first, last) of that sequence. The block holds elements
// [begin, end) of the tensor.
template <class Elements, class F>
void for_each_block(std::int64_t tensors, const Elements& elements, std::int64_t first, std::int64_t last,
                    const F& f) {
  std::int64_t block = 0;
  for (std::int64_t i = 0; i < tensors && block < last; ++i) {
    const std::int64_t count = elements(i), start = block;
    block += (count + kElementwiseBlock - 1) / kElementwiseBlock;
    const std::int64_t to = block < last ? block : last;
    for (std::int64_t b = start < first ? first : start; b < to; ++b) {
      const std::int64_t begin = (b - start) * kElementwiseBlock;
      f(i, b, begin, count - begin < kElementwiseBlock ? count : begin + kElementwiseBlock);
    }
  }
}

// Does the same for all blocks; each thread gets an equal share.
template <class Elements, class F>
void for_each_block_parallel(std::int64_t tensors, const Elements& elements, int threads, const F& f) {
  const std::int64_t blocks = count_blocks(tensors, elements);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int part = 0; part < threads; ++part) {
    for_each_block(tensors, elements, part * blocks / threads, (part + 1) * blocks / threads, f);
  }
}

}  // namespace
}  // namespace warpwright::ops::simd
