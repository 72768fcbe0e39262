// The host code that the three products on mma.sync share.
#pragma once

#include <string_view>
#include <utility>

#include "ops/cuda/launch.cuh"
#include "ops/matmul/cuda/flags.cuh"
#include "ops/matmul/cuda/mma.hpp"
#include "ops/matmul/cuda/mma/kernel.cuh"

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
  cudaLaunchAttribute together{};  // blocks that wait for each other run at once
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(selection.workers));
  config.blockDim = dim3(K::kThreads);
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = K::Schedule::kCutsDepth ? 1 : 0;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, multiply_kernel<K>, p), what);
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
  p.flags = flags_of(context, selection.workers * kMmaTiles[selection.tile].threads() / 128);
  walk.template operator()<StreamK>();
}

template <class T>
Factor<T> factor_of(const void* data, std::int64_t stride, std::int64_t side, std::int64_t depth) {
  return {static_cast<const T*>(data), stride, static_cast<int>(side), static_cast<int>(depth)};
}

}  // namespace warpwright::ops::matmul::cuda::mma
