// The persistent kernel with clock stamps, for `warpwright bench products --timeline`.
#include "ops/matmul/cuda/wgmma_run.cuh"
#include "ops/matmul/timeline.hpp"

namespace warpwright::ops::matmul::cuda {

Timeline trace_forward(const Context& context, const MatmulForward& args) {
  using K = Kernel<TileOf<tile_of({128, 192, 1, 1, 2, 1})>, __nv_bfloat16, __nv_bfloat16, false, false,
                   TracedPersistent, Epilogue<AddBias>>;
  const std::int64_t M = args.x.shape[0], depth = args.x.shape[1], N = args.weight.shape[0];
  Parameters p = describe<K>({M,
                              N,
                              depth,
                              DType::bf16,
                              DType::bf16,
                              matrix_of(args.x),
                              {args.weight.data, depth},
                              matrix_of(args.out),
                              {}},
                             4);
  p.bias = args.bias.data;
  const int blocks = context.device().gpu.multiprocessors / K::Tile::kCluster * K::Tile::kCluster;
  const std::int64_t count = std::int64_t{blocks} * K::Tile::kGroups * kTracedTiles;
  Buffer there(static_cast<std::size_t>(count) * sizeof(Stamps), context.device().device, "stamps");
  p.stamps = reinterpret_cast<Stamps*>(there.data());
  warpwright::cuda::check(cudaMemsetAsync(there.data(), 0, there.bytes(), context.stream().get()),
                          "clearing stamps");
  launch<K>(p, blocks / K::Tile::kCluster, false, context.stream().get(), "matmul.forward, traced");
  context.synchronize();
  std::vector<Stamps> stamps(static_cast<std::size_t>(count));
  warpwright::cuda::check(cudaMemcpy(stamps.data(), there.data(), there.bytes(), cudaMemcpyDeviceToHost),
                          "reading stamps");
  int kilohertz = 0;
  warpwright::cuda::check(
      cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, context.device().device.index),
      "asking for the clock");
  Timeline timeline;
  timeline.clocks_per_second = 1e3 * kilohertz;
  auto next = stamps.begin();
  for (int b = 0; b < blocks; ++b) {
    auto& groups = timeline.blocks.emplace_back();
    for (int g = 0; g < K::Tile::kGroups; ++g) {
      auto& tiles = groups.emplace_back();
      for (int i = 0; i < kTracedTiles; ++i, ++next) {
        if (next->end != 0) tiles.push_back(*next);
      }
    }
  }
  return timeline;
}

}  // namespace warpwright::ops::matmul::cuda
