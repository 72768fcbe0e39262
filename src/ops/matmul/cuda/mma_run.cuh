// The host code that the three products on mma.sync share.
#pragma once

#include <string_view>
#include <utility>

#include "ops/cuda/flags.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/matmul/cuda/mma.hpp"
#include "ops/matmul/cuda/mma/kernel.cuh"
#include "ops/matmul/cuda/workers.cuh"

namespace warpwright::ops::matmul::cuda::mma {

template <class K>
void launch(Parameters<typename K::In, typename K::Out> p, const MmaSelection& selection, cudaStream_t stream,
            std::string_view what) {
  p.work.rows = p.a.side;
  p.work.cols = p.b.side;
  p.work.slabs = (p.a.depth + K::kDepth - 1) / K::kDepth;
  p.work.col_tiles = (p.b.side + K::kCols - 1) / K::kCols;
  p.work.raster = selection.raster;
  constexpr std::size_t kShared = K::kStages * K::kStageBytes;
  static_assert(kShared == K::kTile.shared_bytes());
  gpu::allow_shared(multiply_kernel<K>, kShared);
  launch_workers(multiply_kernel<K>, p, selection.workers, K::kThreads, kShared, K::Schedule::kCutsDepth,
                 stream, what);
}

// C = A · B with the selected kernel. packs: as in Parameters.
template <bool a_transposed, bool b_transposed, class T, class Out>
void run(const Context& context, const Factor<T>& a, const Factor<T>& b, const Result<T, Out>& result,
         bool packs, Schedule schedule, const MmaSelection& selection, void* partials,
         std::string_view what) {
  Parameters<T, Out> p{.a = a, .b = b, .result = result, .packs = packs, .work = {}};
  const auto walk = [&]<class Walk>() {
    const auto with = [&]<int tile, bool aligned>() {
      if (selection.tile != tile || selection.aligned != aligned) return;
      launch<Kernel<tile, T, Out, a_transposed, b_transposed, aligned, Walk>>(p, selection,
                                                                              context.stream().get(), what);
    };
    [&]<int... tiles>(std::integer_sequence<int, tiles...>) {
      (with.template operator()<tiles, true>(), ...);
    }
    (std::make_integer_sequence<int, kMmaTileCount>());
    with.template operator()<kUnalignedMmaTile, false>();
  };
  if (schedule != Schedule::stream_k)
    return walk.template operator()<Persistent>();  // block: a tile per worker
  p.partials = static_cast<float*>(partials);
  p.flags = gpu::flags_of(context);
  walk.template operator()<StreamK>();
}

template <class T>
Factor<T> factor_of(const void* data, std::int64_t stride, std::int64_t side, std::int64_t depth) {
  return {static_cast<const T*>(data), stride, static_cast<int>(side), static_cast<int>(depth)};
}

}  // namespace warpwright::ops::matmul::cuda::mma
