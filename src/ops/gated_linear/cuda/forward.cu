// gate_up = x·Wᵀ and out = act(gate) · up on Hopper's tensor cores. A tile has 96 columns of gate and the
// same 96 of up: one block of the cluster copies the rows of W for gate, the other those for up. So a thread
// has both numbers that it multiplies.
#include "ops/gated_linear/cuda/kernel.cuh"
#include "ops/gated_linear/cuda/persistent.hpp"
#include "ops/matmul/cuda/wgmma_run.cuh"

namespace warpwright::ops::gated_linear::cuda {
namespace {

using TileOfPairs = matmul::cuda::TileOf<matmul::tile_of(kTile)>;

template <GateActivation activation, class T>
struct Forward {
  using K = matmul::cuda::Kernel<TileOfPairs, T, T, false, false, matmul::cuda::Persistent,
                                 matmul::cuda::Epilogue<>>;
  static constexpr int kCols = TileOfPairs::kCols / 2;
  using Parameters = GatedParameters;

  static __device__ void produce(const GatedParameters& p, const Shared<TileOfPairs>& shared,
                                 const Place<TileOfPairs>& place, matmul::cuda::Persistent& schedule) {
    const matmul::cuda::Parameters& product = p.product;
    const Shared<TileOfPairs> mine(hopper::kept_in_register(shared.tiles));
    const int half = product.work.cols / 2;
    matmul::cuda::Cursor cursor;
    Piece piece;
    while (schedule.next(piece)) {
      const int row = place.first_row(piece), w_row = place.down * half + place.col_tile(piece) * kCols;
      gpu::wait_for_kernels_before();
      matmul::cuda::copy_slabs<K>(
          mine.full, mine.empty, piece.end, 0, cursor,
          [&](int slab, int stage) {
            hopper::copy_box(mine.tiles + stage * TileOfPairs::kStageBytes, &product.a, mine.full + stage,
                             slab * matmul::kSlab, row);
          },
          [&](int slab, int stage) {
            std::byte* const b = mine.tiles + stage * TileOfPairs::kStageBytes + TileOfPairs::kABytes;
            hopper::copy_box_to_blocks(b + place.down * kCols * kRowBytes, &product.b, mine.full + stage,
                                       slab * matmul::kSlab, w_row, 3);
          });
    }
  }

  // Sends chunks of 64 rows and 32 columns: a box of gate, one of up and one of out.
  class Epilogue {
    static constexpr int kChunkCols = 32, kChunkSums = kChunkCols / 2, kChunks = kCols / kChunkCols;
    using ChunkBoxes = Boxes<kChunkCols * 2>;
    static constexpr int kSlots =
        TileOfPairs::kBuffers * kBoxBytes / (3 * ChunkBoxes::kBytesOfBox);  // places for chunks

   public:
    __device__ Epilogue(const GatedParameters& p, const Shared<TileOfPairs>& shared, int group)
        : p_(p), boxes_(shared.buffers + group * TileOfPairs::kBuffers * kBoxBytes) {}

    __device__ void begin(int row, int col) { row_ = row + first_row_of_warp(), col_ = col; }

    __device__ void finish(const float (&sums)[TileOfPairs::kBlocks][TileOfPairs::kSums]) {
#pragma unroll
      for (int b = 0; b < TileOfPairs::kBlocks; ++b) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const int slot = count_++ % kSlots * 3;
          if (hopper::elected()) hopper::wait_until_stores_have_read<kSlots - 1>();
          __syncwarp();
          write(sums[b] + c * kChunkSums, sums[b] + TileOfPairs::kSums / 2 + c * kChunkSums, slot);
          send(row_ + b * kBoxRows, col_ + c * kChunkCols, slot);
        }
      }
    }

   private:
    // The gate's activation sees the rounded numbers, as it does if it reads them from memory.
    __device__ void write(const float* gate, const float* up, int slot) const {
      using Pair = gpu::detail::Pair<T>;
#pragma unroll
      for (int j = 0; j < kChunkSums / 4; j += 2) {
        std::uint32_t g[4], u[4], out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * j + 2 * i;
          g[i] = Pair::of(gate[at], gate[at + 1]);
          u[i] = Pair::of(up[at], up[at + 1]);
          out[i] = Pair::of(gate::act<activation, T>(Pair::low(g[i])) * Pair::low(u[i]),
                            gate::act<activation, T>(Pair::high(g[i])) * Pair::high(u[i]));
        }
        store_matrices(boxes_.place(slot, j), g);
        store_matrices(boxes_.place(slot + 1, j), u);
        store_matrices(boxes_.place(slot + 2, j), out);
      }
    }
    __device__ void send(int row, int col, int slot) const {
      hopper::fence_stores_to_shared();
      __syncwarp();
      if (!hopper::elected()) return;
      hopper::store_box(&p_.product.extra, boxes_.part(slot), col, row);
      hopper::store_box(&p_.up, boxes_.part(slot + 1), col, row);
      hopper::store_box(&p_.product.out, boxes_.part(slot + 2), col, row);
      hopper::commit_stores();
    }

    const GatedParameters& p_;
    ChunkBoxes boxes_;
    int row_ = 0, col_ = 0, count_ = 0;
  };
};

template <GateActivation activation, DType dtype, class T>
void run(const Context& context, const GatedForward& args, const Selection& selection) {
  using D = Forward<activation, T>;
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], F = args.out.shape[1];
  const matmul::cuda::Product product{
      M, 2 * F, K, dtype, dtype, matmul::cuda::matrix_of(args.x), {args.weight.data, K}, {}, {}};
  const auto map = [&](void* data, std::int64_t stride) {
    return hopper::map_boxes<2>(data, dtype, {F, M}, {stride}, {32, kWarpRows}, 64);
  };
  GatedParameters p{matmul::cuda::describe_factors<typename D::K>(product, selection.raster), {}};
  p.product.out = map(args.out.data, F);
  p.product.extra = map(args.gate_up.data, 2 * F);
  p.up = map(static_cast<T*>(args.gate_up.data) + F, 2 * F);
  launch<D>(p, selection.workers, context.stream().get(), "gated_linear.forward on wgmma");
}

}  // namespace

void forward(const Context& context, const GatedForward& args, const Selection& selection) {
  visit_activation(args.activation, [&](auto activation) {
    if (args.x.dtype == DType::bf16) {
      run<activation, DType::bf16, __nv_bfloat16>(context, args, selection);
    } else {
      run<activation, DType::f16, __half>(context, args, selection);
    }
  });
}

}  // namespace warpwright::ops::gated_linear::cuda
