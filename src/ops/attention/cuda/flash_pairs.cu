// Attention forward in bf16 and fp16 on the tensor cores of sm_80 and later, by mma.sync, with a bias, a mask
// for each sequence, or both. FLOPs: 4 per visible pair and head element.
//
// The tile of the bias and that of the mask travel with the keys, by asynchronous copies of 16 bytes. In
// shared memory, their rows have 8 elements or 16 bytes in addition, so that the eight rows that a warp reads
// at a time are in different banks. A thread reads two adjacent scores' values at a time.
//
// Long sequences with heads of up to 64 have tiles of 128 queries, all others tiles of 64.
#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/mma_engine.cuh"
#include "ops/attention/cuda/refuse.cuh"

namespace warpwright::ops::attention::cuda {
namespace {

template <class E>
class PairTiles {
 public:
  using T = typename E::Stored;
  static constexpr bool kAny = true;

  static constexpr std::size_t shared_bytes(bool bias, bool visible) {
    return E::kStages * ((bias ? kBiasBytes : 0) + (visible ? kMaskBytes : 0));
  }
  static std::size_t shared_bytes(const ForwardParameters& p) {
    return shared_bytes(p.bias.data != nullptr, p.visible.data != nullptr);
  }

  __device__ PairTiles(const ForwardParameters& p, const Tile& tile, void* shared)
      : p_(p),
        tile_(tile),
        bias_(static_cast<std::byte*>(shared)),
        mask_(bias_ + (p.bias.data ? E::kStages * kBiasBytes : 0)) {}

  __device__ void load(int key, int stage) const {
    if (p_.bias.data) load_tile<sizeof(T), kBiasRow>(bias_ + stage * kBiasBytes, p_.bias, key);
    if (p_.visible.data) load_tile<1, kMaskRow>(mask_ + stage * kMaskBytes, p_.visible, key);
  }

  // s: the scaled scores to base 2.
  __device__ void add(typename E::Scores& s, int, int stage) const {
    if (p_.bias.data) {
      for_each_two(s, bias_ + stage * kBiasBytes, kBiasRow, sizeof(T),
                   [](float& left, float& right, const std::byte* at) {
                     const float2 bias = unpack(*reinterpret_cast<const std::uint32_t*>(at), T{});
                     left = fmaf(bias.x, kLog2e, left);
                     right = fmaf(bias.y, kLog2e, right);
                   });
    }
    if (p_.visible.data) {
      for_each_two(s, mask_ + stage * kMaskBytes, kMaskRow, 1,
                   [](float& left, float& right, const std::byte* at) {
                     const std::uint32_t seen = *reinterpret_cast<const std::uint16_t*>(at);
                     left = (seen & 0xff) != 0 ? left : -INFINITY;
                     right = seen >= 0x100 ? right : -INFINITY;
                   });
    }
  }

 private:
  static constexpr int kBiasRow = (E::kCols + 8) * sizeof(T), kMaskRow = E::kCols + 16;  // bytes
  static constexpr int kBiasBytes = E::kRows * kBiasRow, kMaskBytes = E::kRows * kMaskRow;
  static_assert(sizeof(T) == 2);

  // Copies the tile's part of `from` from this key on. What `from` does not have becomes zeros.
  template <int kSize, int kRow>
  __device__ void load_tile(std::byte* to, const PairTensor& from, int key) const {
    constexpr int kElements = 16 / kSize, kChunks = E::kCols / kElements;
    constexpr int kSteps = E::kRows * kChunks / E::kThreads;
    static_assert(E::kRows * kChunks % E::kThreads == 0);
    const int queries = min(tile_.rows, static_cast<int>(from.places.Lq) - tile_.first);
    const int keys = static_cast<int>(from.places.Lk) - key;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * E::kThreads;
      const int r = index / kChunks, chunk = index % kChunks;
      const int elements = r < queries ? min(max(keys - chunk * kElements, 0), kElements) : 0;
      const std::int64_t at = from.at(tile_, tile_.first + r, key + chunk * kElements);
      cp_async<16>(to + r * kRow + chunk * 16, from.data + (elements > 0 ? at * kSize : 0), elements * kSize);
    }
  }

  // Calls f(two adjacent scores, their place in a tile of rows of `row` bytes).
  template <class F>
  __device__ static void for_each_two(typename E::Scores& s, const std::byte* tile, int row, int size,
                                      F&& f) {
#pragma unroll
    for (int r = 0; r < E::R; ++r) {
#pragma unroll
      for (int c = 0; c < E::C; c += 2) f(s[r][c], s[r][c + 1], tile + E::row(r) * row + E::col(c) * size);
    }
  }

  const ForwardParameters& p_;
  const Tile& tile_;
  std::byte *bias_, *mask_;
};

template <class T, int kHeadSize>
using Small = MmaEngine<T, kHeadSize, 1, 64, kHeadSize <= 64 ? 3 : 2>;
template <class T, int kHeadSize>
using Large = MmaEngine<T, kHeadSize, 2, 64, 2>;
constexpr std::int64_t kLargeHead = 64;  // the largest head of which there are large tiles

template <class E>
constexpr std::size_t most_shared() {
  return forward_shared<E>() + PairTiles<E>::shared_bytes(true, true);
}

bool takes_large_tiles(const AttentionForward& a, const DeviceInfo& device) {
  constexpr std::int64_t kShort = 128;
  const std::int64_t sequences = a.cu_seqlens_q.shape[0] - 1;
  return !a.batch_invariant && a.q.shape[2] <= kLargeHead &&
         std::max(a.q.shape[0], a.k.shape[0]) > kShort * sequences &&
         most_shared<Large<__half, kLargeHead>>() <= device.gpu.shared_bytes_per_block;
}

Refusal refuse_forward(const AttentionForwardProblem& p, const DeviceInfo& device) {
  if (!p.bias && !p.visible) return "there is neither a bias nor a mask for each sequence";
  if (Refusal refusal = refuse_groups(p)) return refusal;
  if (!p.layout.aligned) return "a row or a head does not begin at a multiple of 16 bytes";
  if (!p.pairs_aligned) return "a row of bias or visible does not begin at a multiple of 16 bytes";
  std::size_t bytes = 0;
  visit_head_size(p.HS, [&](auto size) { bytes = most_shared<Small<__half, decltype(size)::value>>(); });
  return refuse_shared(bytes, p.HS, device);
}

template <class E>
void launch_pairs(const Context& context, const AttentionForward& a) {
  launch_forward<E, PairTiles<E>>(context, a, "attention.forward cuda.flash_pairs");
}

void flash_pairs_forward(const Context& context, const AttentionForward& a) {
  const bool large = takes_large_tiles(a, context.device());
  const auto run = [&]<class T, int kSize>() {
    if constexpr (kSize <= kLargeHead) {
      if (large) return launch_pairs<Large<T, kSize>>(context, a);
    }
    launch_pairs<Small<T, kSize>>(context, a);
  };
  visit_head_size(a.q.shape[2], [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    a.q.dtype == DType::bf16 ? run.template operator()<__nv_bfloat16, kSize>()
                             : run.template operator()<__half, kSize>();
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "cuda.flash_pairs"_kernel) = {.needs = Needs::gpu,
                                                                  .dtypes = k16Bits,
                                                                  .run = attention::cuda::flash_pairs_forward,
                                                                  .refuse = attention::cuda::refuse_forward};

}  // namespace warpwright::ops
