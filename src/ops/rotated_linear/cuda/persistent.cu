// The product and the rotation in one kernel on Hopper's tensor cores (ops/gated_linear/cuda/kernel.cuh). A
// pair is two columns of a head, i and i + R/2. A tile has 96 pairs: one block of the cluster copies the rows
// of W for their first columns, the other those for their second. So a thread has both numbers of a pair.
#include "ops/gated_linear/cuda/kernel.cuh"
#include "ops/gated_linear/cuda/persistent.hpp"
#include "ops/matmul/cuda/wgmma_run.cuh"
#include "ops/rotated_linear/kernels.hpp"

namespace warpwright::ops::rotated_linear::cuda {
namespace {

using namespace gated_linear::cuda;

using TileOfPairs = matmul::cuda::TileOf<matmul::tile_of(kTile)>;
constexpr int kBox = 32;  // pairs of a box; a head has whole boxes

struct RotatedParameters {
  matmul::cuda::Parameters product;
  const std::int32_t* positions;
  const float *cos, *sin;
  unsigned long long* wrong;  // −1 is the largest number
  std::int64_t P;
  int half;            // pairs of a head
  int pairs, rotated;  // pairs of a row, and how many of them are rotated
};

// The first column of a pair.
__device__ int column_of(int pair, int half) {
  return pair / half * (2 * half) + pair % half;
}

// cos and sin for the pairs of a box, in the two rows of this thread.
struct Angles {
  const float *cos[2], *sin[2];

  __device__ Angles(const RotatedParameters& p, int row, int lane_column) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int n = row + 8 * r;
      std::int64_t position = n < p.product.work.rows ? p.positions[n] : 0;
      if (position < 0 || position >= p.P) {
        atomicMin(p.wrong, static_cast<unsigned long long>(n));
        position = 0;
      }
      cos[r] = p.cos + position * p.half + lane_column;
      sin[r] = p.sin + position * p.half + lane_column;
    }
  }
  static __device__ float2 load(const float* p) {
    return __ldg(reinterpret_cast<const float2*>(p));
  }
};

template <class T>
struct Forward {
  using K = matmul::cuda::Kernel<TileOfPairs, T, T, false, false, matmul::cuda::Persistent,
                                 matmul::cuda::Epilogue<>>;
  static constexpr int kCols = TileOfPairs::kCols / 2;  // pairs
  using Parameters = RotatedParameters;

  static __device__ void produce(const RotatedParameters& p, const Shared<TileOfPairs>& shared,
                                 const Place<TileOfPairs>& place, matmul::cuda::Persistent& schedule) {
    const matmul::cuda::Parameters& product = p.product;
    const Shared<TileOfPairs> mine(hopper::kept_in_register(shared.tiles));
    matmul::cuda::Cursor cursor;
    Piece piece;
    while (schedule.next(piece)) {
      const int row = place.first_row(piece), pair = place.col_tile(piece) * kCols;
      int w_row[kCols / kBox];
#pragma unroll
      for (int i = 0; i < kCols / kBox; ++i)
        w_row[i] = column_of(pair + i * kBox, p.half) + place.down * p.half;
      gpu::wait_for_kernels_before();
      matmul::cuda::copy_slabs<K>(
          mine.full, mine.empty, piece.end, 0, cursor,
          [&](int slab, int stage) {
            hopper::copy_box(mine.tiles + stage * TileOfPairs::kStageBytes, &product.a, mine.full + stage,
                             slab * matmul::kSlab, row);
          },
          [&](int slab, int stage) {
            std::byte* const b = mine.tiles + stage * TileOfPairs::kStageBytes + TileOfPairs::kABytes;
#pragma unroll
            for (int i = 0; i < kCols / kBox; ++i) {
              hopper::copy_box_to_blocks(b + (place.down * kCols + i * kBox) * kRowBytes, &product.b,
                                         mine.full + stage, slab * matmul::kSlab, w_row[i], 3);
            }
          });
    }
  }

  // Sends chunks of 64 rows and 32 pairs: a box of their first columns, and one of their second.
  class Epilogue {
    static constexpr int kChunkSums = kBox / 2, kChunks = kCols / kBox;
    using ChunkBoxes = Boxes<kBox * 2>;
    static constexpr int kSlots =
        TileOfPairs::kBuffers * kBoxBytes / (2 * ChunkBoxes::kBytesOfBox);  // places for chunks

   public:
    __device__ Epilogue(const RotatedParameters& p, const Shared<TileOfPairs>& shared, int group)
        : p_(p), boxes_(shared.buffers + group * TileOfPairs::kBuffers * kBoxBytes) {}

    __device__ void begin(int row, int col) { row_ = row, pair_ = col; }

    __device__ void finish(const float (&sums)[TileOfPairs::kBlocks][TileOfPairs::kSums]) {
#pragma unroll
      for (int b = 0; b < TileOfPairs::kBlocks; ++b) {
        const int row = row_ + b * kBoxRows;
        const Angles angles(p_, row + lane_.row(), lane_.column());
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const int pair = pair_ + c * kBox;
          if (pair >= p_.pairs) break;
          const int col = column_of(pair, p_.half), slot = count_++ % kSlots * 2;
          if (hopper::elected()) hopper::wait_until_stores_have_read<kSlots - 1>();
          __syncwarp();
          const float *first = sums[b] + c * kChunkSums, *second = first + TileOfPairs::kSums / 2;
          if (pair < p_.rotated) {
            write<true>(first, second, angles, pair % p_.half, col, slot);
          } else {
            write<false>(first, second, angles, 0, col, slot);
          }
          send(row + first_row_of_warp(), col, slot);
        }
      }
    }

   private:
    template <bool rotates>
    __device__ void write(const float* first, const float* second, const Angles& angles, int i, int col,
                          int slot) const {
#pragma unroll
      for (int j = 0; j < kChunkSums / 4; j += 2) {
        std::uint32_t out[2][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int at = 4 * j + 2 * k, eight = 8 * (j + k / 2), r = k % 2;
          const float2 bias_a = bias(col + eight), bias_b = bias(col + p_.half + eight);
          const float2 a = {first[at] + bias_a.x, first[at + 1] + bias_a.y};
          const float2 b = {second[at] + bias_b.x, second[at + 1] + bias_b.y};
          if constexpr (rotates) {
            const float2 cos = Angles::load(angles.cos[r] + i + eight);
            const float2 sin = Angles::load(angles.sin[r] + i + eight);
            out[0][k] = Pair::of(a.x * cos.x - b.x * sin.x, a.y * cos.y - b.y * sin.y);
            out[1][k] = Pair::of(b.x * cos.x + a.x * sin.x, b.y * cos.y + a.y * sin.y);
          } else {
            out[0][k] = Pair::of(a.x, a.y);
            out[1][k] = Pair::of(b.x, b.y);
          }
        }
        store_matrices(boxes_.place(slot, j), out[0]);
        store_matrices(boxes_.place(slot + 1, j), out[1]);
      }
    }
    // The bias of this thread's two columns from `col` on.
    __device__ float2 bias(int col) const {
      if (!p_.product.bias) return {0, 0};
      const auto* const at = static_cast<const T*>(p_.product.bias) + col + lane_.column();
      const std::uint32_t pair = __ldg(reinterpret_cast<const std::uint32_t*>(at));
      return {Pair::low(pair), Pair::high(pair)};
    }
    __device__ void send(int row, int col, int slot) const {
      hopper::fence_stores_to_shared();
      __syncwarp();
      if (!hopper::elected()) return;
      hopper::store_box(&p_.product.out, boxes_.part(slot), col, row);
      hopper::store_box(&p_.product.out, boxes_.part(slot + 1), col + p_.half, row);
      hopper::commit_stores();
    }

    using Pair = gpu::detail::Pair<T>;
    const RotatedParameters& p_;
    ChunkBoxes boxes_;
    matmul::cuda::Lane lane_;
    int row_ = 0, pair_ = 0, count_ = 0;
  };
};

template <DType dtype, class T>
void run_with(const Context& context, const RotatedForward& args, const Selection& selection) {
  using D = Forward<T>;
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  const matmul::cuda::Product product{
      M, N, K, dtype, dtype, matmul::cuda::matrix_of(args.x), {args.weight.data, K}, {}, {}};
  const std::int64_t half = args.out.shape[2] / 2;
  RotatedParameters p{.product = matmul::cuda::describe_factors<typename D::K>(product, selection.raster),
                      .positions = args.positions.as<std::int32_t>(),
                      .cos = args.cos.as<float>(),
                      .sin = args.sin.as<float>(),
                      .wrong = static_cast<unsigned long long*>(args.wrong.data),
                      .P = args.cos.shape[0],
                      .half = static_cast<int>(half),
                      .pairs = static_cast<int>(N / 2),
                      .rotated = static_cast<int>(args.rotated * half)};
  p.product.b =
      hopper::map_boxes<2>(args.weight.data, dtype, {K, N}, {K}, {matmul::kSlab, kBox}, 2 * matmul::kSlab);
  p.product.out = hopper::map_boxes<2>(args.out.data, dtype, {N, M}, {N}, {kBox, kWarpRows}, 2 * kBox);
  p.product.extra = p.product.out;
  p.product.bias = args.bias.data;
  launch<D>(p, selection.workers, context.stream().get(), "rotated_linear.forward on wgmma");
}

Refusal refuse(const RotatedForwardProblem& p, const DeviceInfo& device) {
  if (p.product.packed) return matmul::kNotPacked;
  if (p.product.batch_invariant) return "not batch-invariant";
  if (forces_parts(p, device)) return kPartsForced;
  if (p.rope.layout != RopeLayout::half) return "takes the pairs (i, i + R/2) only";
  if (p.rope.R != p.rope.HS) return "rotates whole heads only";
  if (p.rope.R % (2 * kBox) != 0) return "the head size is no multiple of 64";
  if (p.rope.P == 0) return "there are no positions";
  if (p.product.K % 8 != 0) return "rows of the matrices are not multiples of 16 bytes";
  if (!p.product.aligned || !p.rope.aligned)
    return "a tensor does not begin at a multiple of 16 bytes, or one of its rows does not";
  return refuse_extent(matmul::extent_of(p.product));
}

Selection selection_of(const RotatedForwardProblem& p, const DeviceInfo& device) {
  return select_fused(matmul::request_of(p.product), p.bytes(), device);
}
double cost(const RotatedForwardProblem& p, const DeviceInfo& device) {
  return selection_of(p, device).seconds;
}
std::string configuration(const RotatedForwardProblem& p, const DeviceInfo& device) {
  return matmul::describe(selection_of(p, device));
}

void run(const Context& context, const RotatedForward& args) {
  const RotatedForwardProblem p = args.problem();
  static constexpr char kOwner = 0;
  const Selection& s = derived(context, &kOwner, p, [&] { return selection_of(p, context.device()); });
  if (p.dtype == DType::bf16) {
    run_with<DType::bf16, __nv_bfloat16>(context, args, s);
  } else {
    run_with<DType::f16, __half>(context, args, s);
  }
}

}  // namespace
}  // namespace warpwright::ops::rotated_linear::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RotatedForward, "cuda.persistent"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = rotated_linear::cuda::run,
    .refuse = rotated_linear::cuda::refuse,
    .cost = rotated_linear::cuda::cost,
    .configuration = rotated_linear::cuda::configuration};

}  // namespace warpwright::ops
