// The gradients of gate and up on Hopper's tensor cores: the epilogue of dout·W reads gate and up, and writes
// their gradients in their place.
#include "ops/gated_linear/cuda/kernel.cuh"
#include "ops/gated_linear/cuda/persistent.hpp"
#include "ops/matmul/cuda/wgmma_run.cuh"

namespace warpwright::ops::gated_linear::cuda {
namespace {

using TileOfProducts = matmul::cuda::TileOf<matmul::tile_of(kTile)>;

// The tile with more buffers and fewer stages: gate and up of the first kSlots of a
// tile's six chunks arrive while it is multiplied. again: the epilogue also writes out.
template <bool again>
struct TileOfDx : TileOfProducts {
  static constexpr int kSlots = again ? 2 : 3;         // of a box of gate and one of up
  static constexpr int kBuffers = 2 * kSlots + again;  // and a box of out
  static constexpr int kBufferBytes = kGroups * kBuffers * kBoxBytes;
  static constexpr int kRestBytes = kBufferBytes + kBarrierBytes + kBiasBytes;
  static constexpr int kStages = (matmul::cuda::kSharedLimit - 1024 - kRestBytes) / kStageBytes;
  static constexpr std::size_t kSharedBytes = 1024 + kStages * kStageBytes + kRestBytes;
  static_assert(kStages >= 3);
};

template <GateActivation activation, class T, bool again>
struct Dx {
  using Tile = TileOfDx<again>;
  using K = matmul::cuda::Kernel<Tile, T, T, false, true, matmul::cuda::Persistent, matmul::cuda::Epilogue<>>;
  static constexpr int kCols = Tile::kCols;
  using Parameters = GatedParameters;

  static __device__ void produce(const GatedParameters& p, const Shared<Tile>& shared,
                                 const Place<Tile>& place, matmul::cuda::Persistent& schedule) {
    matmul::cuda::produce<K>(p.product, shared, place, schedule);
  }

  // Works on chunks of 64 rows and 64 columns.
  class Epilogue {
    static constexpr int kChunkCols = 64, kChunkSums = kChunkCols / 2;
    static constexpr int kAcross = kCols / kChunkCols, kChunks = Tile::kBlocks * kAcross;
    static constexpr int kSlots = Tile::kSlots;

   public:
    __device__ Epilogue(const GatedParameters& p, const Shared<Tile>& shared, int group)
        : p_(p),
          boxes_(shared.buffers + group * Tile::kBuffers * kBoxBytes),
          arrived_(shared.extra + group * Tile::kBuffers) {}

    __device__ void begin(int row, int col) {
      row_ = row + first_row_of_warp(), col_ = col;
#pragma unroll
      for (int chunk = 0; chunk < min(kSlots, kChunks); ++chunk) fetch(chunk);
    }

    __device__ void finish(const float (&sums)[Tile::kBlocks][Tile::kSums]) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        // The slot of the chunk before takes the next chunk that has none.
        if (chunk > 0 && chunk + kSlots - 1 < kChunks) fetch(chunk + kSlots - 1);
        const int index = count_ + chunk, slot = index % kSlots;
        hopper::wait(arrived_ + slot, index / kSlots & 1);
        if constexpr (again) {
          if (hopper::elected()) hopper::wait_until_stores_have_read<0>();
          __syncwarp();
        }
        differentiate(sums[chunk / kAcross] + chunk % kAcross * kChunkSums, 2 * slot);
        send(row_ + chunk / kAcross * kBoxRows, col_ + chunk % kAcross * kChunkCols, 2 * slot);
      }
      count_ += kChunks;
    }

   private:
    // Requests this warp's rows of gate and up for a chunk of the present tile, once its slot is free.
    __device__ void fetch(int chunk) const {
      if (!hopper::elected()) return;
      hopper::wait_until_stores_have_read<0>();
      const int slot = (count_ + chunk) % kSlots;
      const int row = row_ + chunk / kAcross * kBoxRows, col = col_ + chunk % kAcross * kChunkCols;
      hopper::arrive_expecting(arrived_ + slot, 2 * kWarpRows * kRowBytes);
      hopper::copy_box(boxes_.part(2 * slot), &p_.product.extra, arrived_ + slot, col, row);
      hopper::copy_box(boxes_.part(2 * slot + 1), &p_.up, arrived_ + slot, col, row);
    }

    __device__ void differentiate(const float* d, int slot) const {
      using Pair = gpu::detail::Pair<T>;
#pragma unroll
      for (int j = 0; j < kChunkSums / 4; j += 2) {
        const std::uint32_t gate_place = boxes_.place(slot, j), up_place = boxes_.place(slot + 1, j);
        std::uint32_t g[4], u[4];
        [[maybe_unused]] std::uint32_t out[4];
        gpu::load_matrices(g, gate_place);
        gpu::load_matrices(u, up_place);
        __syncwarp();  // the stores of a warp overwrite numbers that its lanes have read
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const gate::Curve low = curve_of_16_bits<activation, T>(Pair::low(g[i]));
          const gate::Curve high = curve_of_16_bits<activation, T>(Pair::high(g[i]));
          const float up_low = Pair::low(u[i]), up_high = Pair::high(u[i]);
          const float d_low = d[4 * j + 2 * i], d_high = d[4 * j + 2 * i + 1];
          if constexpr (again) out[i] = Pair::of(low.value * up_low, high.value * up_high);
          g[i] = Pair::of(d_low * up_low * low.slope, d_high * up_high * high.slope);
          u[i] = Pair::of(d_low * low.value, d_high * high.value);
        }
        store_matrices(gate_place, g);
        store_matrices(up_place, u);
        if constexpr (again) store_matrices(boxes_.place(2 * kSlots, j), out);
      }
    }

    __device__ void send(int row, int col, int slot) const {
      hopper::fence_stores_to_shared();
      __syncwarp();
      if (!hopper::elected()) return;
      hopper::store_box(&p_.product.extra, boxes_.part(slot), col, row);
      hopper::store_box(&p_.up, boxes_.part(slot + 1), col, row);
      if constexpr (again) hopper::store_box(&p_.product.out, boxes_.part(2 * kSlots), col, row);
      hopper::commit_stores();
    }

    const GatedParameters& p_;
    Boxes<kRowBytes> boxes_;
    hopper::Barrier* arrived_;
    int row_ = 0, col_ = 0, count_ = 0;
  };
};

template <GateActivation activation, DType dtype, class T, bool again>
void run(const Context& context, const GatedDx& args, const Selection& selection) {
  using D = Dx<activation, T, again>;
  const std::int64_t M = args.dout.shape[0], C = args.dout.shape[1], F = args.weight.shape[1];
  const matmul::cuda::Product product{
      M, F, C, dtype, dtype, matmul::cuda::matrix_of(args.dout), {args.weight.data, F}, {}, {}};
  const auto map = [&](void* data, std::int64_t stride) {
    return hopper::map_boxes<2>(data, dtype, {F, M}, {stride}, {64, kWarpRows}, kRowBytes);
  };
  GatedParameters p{matmul::cuda::describe_factors<typename D::K>(product, selection.raster), {}};
  p.product.extra = map(args.gate_up.data, 2 * F);
  p.up = map(static_cast<T*>(args.gate_up.data) + F, 2 * F);
  p.product.out = again ? map(args.out.data, F) : p.up;
  launch<D>(p, selection.workers, context.stream().get(), "gated_linear.dx on wgmma");
}

}  // namespace

void dx(const Context& context, const GatedDx& args, const Selection& selection) {
  visit_activation(args.activation, [&](auto activation) {
    const auto run_as = [&]<DType dtype, class T>() {
      args.out ? run<activation, dtype, T, true>(context, args, selection)
               : run<activation, dtype, T, false>(context, args, selection);
    };
    if (args.dout.dtype == DType::bf16) {
      run_as.template operator()<DType::bf16, __nv_bfloat16>();
    } else {
      run_as.template operator()<DType::f16, __half>();
    }
  });
}

}  // namespace warpwright::ops::gated_linear::cuda
