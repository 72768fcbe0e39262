// The host's side: the parameters of a product, and its launch.
#pragma once

#include <string_view>

#include "ops/cuda/hopper/tensor_map.hpp"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/matmul/cuda/hopper/kernel.cuh"

namespace warpwright::ops::matmul::cuda {

struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  DType in = DType::bf16, out = DType::bf16;
  Matrix a, b, result, extra;
};

template <int kSide, bool kTransposed, int kParts>
CUtensorMap map_factor(const Matrix& m, DType dtype, std::int64_t side, std::int64_t depth) {
  if (kTransposed) {
    return map_boxes<2>(m.data, dtype, {side, depth}, {m.stride}, {slab_cols(kSide), kSlab / kParts},
                        2 * slab_cols(kSide));
  }
  return map_boxes<2>(m.data, dtype, {depth, side}, {m.stride}, {kSlab, kSide / kParts}, 2 * kSlab);
}

// Everything except the maps of out and extra.
template <class K>
Parameters describe_factors(const Product& product, int raster) {
  using Tile = typename K::Tile;
  const auto [rows, cols, depth, in, out, a, b, result, extra] = product;
  Parameters p;
  p.a = map_factor<Tile::kRows, K::kATransposed, Tile::kClusterAcross>(a, in, rows, depth);
  p.b = map_factor<Tile::kCols, K::kBTransposed, Tile::kClusterDown>(b, in, cols, depth);
  p.plain_out = result;
  p.plain_extra = extra;
  p.work.rows = static_cast<int>(rows);
  p.work.cols = static_cast<int>(cols);
  p.work.slabs = static_cast<int>((depth + kSlab - 1) / kSlab);
  p.work.col_tiles = static_cast<int>((cols + Tile::kCols * Tile::kClusterAcross - 1) /
                                      (Tile::kCols * Tile::kClusterAcross));
  p.work.raster = raster;
  return p;
}

template <class K>
Parameters describe(const Product& product, int raster) {
  const auto [rows, cols, depth, in, out, a, b, result, extra] = product;
  Parameters p = describe_factors<K>(product, raster);
  const auto map = [&](const Matrix& m, DType dtype) {
    return map_boxes<2>(m.data, dtype, {cols, rows}, {m.stride}, {K::kChunkCols, kWarpRows},
                        K::kChunkRowBytes);
  };
  p.out = map(result, out);
  p.extra = extra.data ? map(extra, out) : p.out;
  return p;
}

// together: all blocks run at once, and the kernel before has ended. Blocks that wait for each other need
// that.
template <class K>
void launch(const Parameters& p, int workers, bool together, cudaStream_t stream, std::string_view what) {
  using Tile = typename K::Tile;
  gpu::allow_shared(multiply_kernel<K>, Tile::kSharedBytes);
  // A single block is not launched as a cluster of one: such a cluster begins 0.1 to 0.3 µs later.
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if constexpr (Tile::kCluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = Tile::kCluster;
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (together) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  } else if (p.overlaps) {
    attributes[count++] = gpu::overlap_attribute();
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(workers * Tile::kCluster));
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = Tile::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, multiply_kernel<K>, p), what);
}

}  // namespace warpwright::ops::matmul::cuda
