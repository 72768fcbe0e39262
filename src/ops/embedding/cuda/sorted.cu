// Embedding backward on a GPU without floating-point atomics. Both tables are treated as one table of V + P
// rows. The 2·N pairs (row, n), or N without positions, are sorted by row with a stable sort, so that each
// row's segment of pairs is in the order of n (CUB's radix sort over as many bits as V + P has). Then
//   1. sum_windows: one warp for each window of 64 sorted pairs and each slice of 128 columns adds up
//      dout[n], segment by segment. The sum of a segment within the window goes to the gradient. A segment
//      that crosses the window's bounds leaves its part in the scratch. With Store::assign, other warps zero
//      the rows that no pair selects.
//   2. join_windows adds the parts of such segments in the order of their windows. It divides the windows of
//      a long segment into eight runs and adds the runs' sums in order.
// A token that makes up half of the batch is thus as much work for each warp as any other, and no row is
// written twice.
//
// Memory-bound: dout is read once for each table. Each selected row of a gradient is moved once
// (twice with +=). With Store::assign, each other row is written once. The sort moves 16 bytes per pair and
// pass.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::embedding {
namespace {

using warpwright::cuda::check;
using warpwright::cuda::check_launch;

constexpr int kWindow = 64;  // sorted pairs per warp
constexpr int kAhead = 8;    // rows of dout that a thread loads before it adds the first of them
constexpr int kThreads = 256;
constexpr int kRuns = kThreads / gpu::kWarp;  // runs of windows of a long segment

struct Table {
  float* gradient;
  std::int64_t rows;
  bool add;
};

// Both tables as one: the rows of wte, then those of wpe.
struct Tables {
  Table wte, wpe;
  std::int64_t C;

  __device__ const Table& of(std::int64_t row) const { return row < wte.rows ? wte : wpe; }
  __device__ float* gradient(std::int64_t row) const {
    return row < wte.rows ? wte.gradient + row * C : wpe.gradient + (row - wte.rows) * C;
  }
  // The rows that are assigned, not added to: [first_zeroed, last_zeroed).
  __host__ __device__ std::int64_t first_zeroed() const { return wte.add ? wte.rows : 0; }
  __host__ __device__ std::int64_t last_zeroed() const { return wte.rows + (wpe.add ? 0 : wpe.rows); }
};

struct Sorted {
  const std::uint32_t* rows;
  const std::int32_t* n;
  std::int64_t count;  // 2·N; N without positions
  int windows;

  __device__ std::uint32_t row(std::int64_t at) const { return rows[at]; }
  // True if the pair at this index has the same row as the pair before it.
  __device__ bool goes_on(std::int64_t at) const { return 0 < at && at < count && row(at - 1) == row(at); }
};

unsigned blocks_for(std::int64_t pieces, int in_block) {
  return static_cast<unsigned>((pieces + in_block - 1) / in_block);
}

__global__ void __launch_bounds__(kThreads)
    make_pairs(const std::int32_t* tokens, const std::int32_t* positions, int N, std::int64_t V,
               std::uint32_t* rows, std::int32_t* n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= N) return;
  rows[i] = static_cast<std::uint32_t>(tokens[i]);
  n[i] = i;
  if (!positions) return;
  rows[N + i] = static_cast<std::uint32_t>(positions[i] + V);
  n[N + i] = i;
}

// One warp zeroes those of the 32 rows from `first` on that no pair selects.
template <int lanes>
__device__ void zero_unnamed(const Tables& tables, const Sorted& sorted, std::int64_t first) {
  const std::int64_t row = first + threadIdx.x;
  std::int64_t low = 0;  // the first pair of this row or of a later one
  for (std::int64_t high = sorted.count; low < high;) {
    const std::int64_t middle = (low + high) / 2;
    if (sorted.row(middle) < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool named = low < sorted.count && sorted.row(low) == row;
  unsigned left = __ballot_sync(gpu::kAllLanes, row < tables.last_zeroed() && !named);
  for (; left != 0; left &= left - 1) {
    float* gradient = tables.gradient(first + __ffs(static_cast<int>(left)) - 1);
    for (std::int64_t c = threadIdx.x * lanes; c < tables.C; c += gpu::kWarp * lanes) {
      gpu::Packed<float, lanes>::zero().store(gradient + c);
    }
  }
}

// The destination of the sum that ends at a pair.
enum class Goes : std::uint8_t { nowhere, assign, add, head, tail };

struct Window {
  std::uint32_t rows[kWindow];
  std::int32_t from[kWindow];
  Goes goes[kWindow];
};

// Called by a whole warp. Returns the window's number of pairs.
__device__ int read_window(Window& window, const Tables& tables, const Sorted& sorted, std::int64_t first) {
  const int count = static_cast<int>(min(std::int64_t{kWindow}, sorted.count - first));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += gpu::kWarp) {
    const std::uint32_t row = sorted.row(first + i);
    const bool ends = !sorted.goes_on(first + i + 1);
    const bool began_before = sorted.goes_on(first) && sorted.row(first) == row;
    window.rows[i] = row;
    window.from[i] = sorted.n[first + i];
    window.goes[i] = !ends && i + 1 < count ? Goes::nowhere
                     : began_before         ? Goes::head
                     : !ends                ? Goes::tail
                     : tables.of(row).add   ? Goes::add
                                            : Goes::assign;
  }
  __syncwarp();
  return count;
}

// parts (windows, 2, C) receives the sum of the segment that comes from the window before (head), and of the
// segment that begins here and continues into the next window (tail). The first `zeroing` blocks zero rows.
// Each other block has one window and one slice; the windows of a slice follow each other.
template <class T, int lanes, bool add>
__global__ void __launch_bounds__(gpu::kWarp)
    sum_windows(const T* dout, Tables tables, Sorted sorted, float* parts, unsigned zeroing) {
  if (blockIdx.x < zeroing) {
    return zero_unnamed<lanes>(tables, sorted, tables.first_zeroed() + std::int64_t{blockIdx.x} * gpu::kWarp);
  }
  __shared__ Window window;
  const std::int64_t slice = (blockIdx.x - zeroing) / sorted.windows;
  const std::int64_t at = (blockIdx.x - zeroing) % sorted.windows;
  const int count = read_window(window, tables, sorted, at * kWindow);
  const std::int64_t c = (slice * gpu::kWarp + threadIdx.x) * lanes;
  if (c >= tables.C) return;

  float sum[lanes] = {};
  for (int i = 0; i < count; i += kAhead) {
    gpu::Packed<T, lanes> rows_ahead[kAhead];
    float before[add ? kAhead : 1][lanes] = {};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j >= count) continue;
      rows_ahead[j] = gpu::Packed<T, lanes>::load(dout + window.from[i + j] * tables.C + c);
      if constexpr (add) {
        if (window.goes[i + j] == Goes::add) {
          gpu::load_floats(tables.gradient(window.rows[i + j]) + c, before[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j >= count) continue;
#pragma unroll
      for (int lane = 0; lane < lanes; ++lane) sum[lane] += rows_ahead[j][lane];
      const Goes where = window.goes[i + j];
      if (where == Goes::nowhere) continue;
      float* to = tables.gradient(window.rows[i + j]) + c;
      if (where == Goes::head) to = parts + 2 * at * tables.C + c;
      if (where == Goes::tail) to = parts + (2 * at + 1) * tables.C + c;
      if constexpr (add) {
#pragma unroll
        for (int lane = 0; lane < lanes; ++lane) sum[lane] += before[j][lane];
      }
      gpu::store_floats(to, sum);
#pragma unroll
      for (int lane = 0; lane < lanes; ++lane) sum[lane] = 0;
    }
  }
}

// Adds the heads of windows [begin, end) to sum, in order.
template <int lanes>
__device__ void add_heads(float (&sum)[lanes], const float* parts, std::int64_t begin, std::int64_t end,
                          std::int64_t C) {
#pragma unroll 4
  for (std::int64_t window = begin; window < end; ++window) {
    float values[lanes];
    gpu::load_floats(parts + 2 * window * C, values);
#pragma unroll
    for (int j = 0; j < lanes; ++j) sum[j] += values[j];
  }
}

template <int lanes>
__device__ void put(const float (&sum)[lanes], const Tables& tables, std::uint32_t row, std::int64_t c) {
  float* gradient = tables.gradient(row) + c;
  float total[lanes] = {};
  if (tables.of(row).add) gpu::load_floats(gradient, total);
#pragma unroll
  for (int j = 0; j < lanes; ++j) total[j] += sum[j];
  gpu::store_floats(gradient, total);
}

// A segment that begins in `window`, where its part is the tail, and continues into `further` later windows.
struct Crossing {
  std::int64_t window;
  std::uint32_t row;
  int further;
};

__device__ Crossing crossing_from(const Sorted& sorted, std::int64_t window) {
  const std::uint32_t row = sorted.row((window + 1) * kWindow);
  int further = 0;
  for (int seen = kThreads; seen == kThreads; further += seen) {
    const std::int64_t other = window + 1 + further + threadIdx.x;
    seen = __syncthreads_count(other < sorted.windows && sorted.row(other * kWindow) == row);
  }
  return {window, row, further};
}

// Joins a segment of few windows. Each warp has its own slices.
template <int lanes>
__device__ void join_short(const Crossing& crossing, const Tables& tables, const float* parts, int slices) {
  const std::int64_t next = crossing.window + 1;
  for (int slice = static_cast<int>(threadIdx.x) / gpu::kWarp; slice < slices; slice += kRuns) {
    const std::int64_t c = (std::int64_t{slice} * gpu::kWarp + threadIdx.x % gpu::kWarp) * lanes;
    if (c >= tables.C) continue;
    float sum[lanes];
    gpu::load_floats(parts + (2 * next - 1) * tables.C + c, sum);
    add_heads(sum, parts + c, next, next + crossing.further, tables.C);
    put(sum, tables, crossing.row, c);
  }
}

// Joins one slice of a segment of many windows. Each warp has a run of windows.
template <int lanes>
__device__ void join_long(const Crossing& crossing, const Tables& tables, const float* parts, int slice) {
  __shared__ float sums[kRuns][gpu::kWarp][lanes];
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const std::int64_t next = crossing.window + 1, end = next + crossing.further;
  const std::int64_t c = (std::int64_t{slice} * gpu::kWarp + lane) * lanes;
  const int in_run = (crossing.further + kRuns - 1) / kRuns;
  float sum[lanes] = {};
  if (c < tables.C) {
    if (warp == 0) gpu::load_floats(parts + (2 * next - 1) * tables.C + c, sum);
    add_heads(sum, parts + c, min(next + warp * in_run, end), min(next + (warp + 1) * in_run, end), tables.C);
  }
#pragma unroll
  for (int j = 0; j < lanes; ++j) sums[warp][lane][j] = sum[j];
  __syncthreads();
  for (int other = 1; warp == 0 && other < kRuns; ++other) {
#pragma unroll
    for (int j = 0; j < lanes; ++j) sum[j] += sums[other][lane][j];
  }
  if (warp == 0 && c < tables.C) put(sum, tables, crossing.row, c);
  __syncthreads();
}

// Persistent: the items are all combinations of a slice and a window. A block takes every gridDim-th item,
// and each lane of a warp checks one of them. If a segment begins in the window and continues in the next
// one, the block that has the window in the first slice joins it for all slices. If the segment is long, each
// slice is joined by its own block.
template <int lanes>
__global__ void __launch_bounds__(kThreads)
    join_windows(Tables tables, Sorted sorted, const float* parts, int slices) {
  const std::int64_t all = std::int64_t{sorted.windows} * slices;
  for (std::int64_t first = blockIdx.x; first < all; first += std::int64_t{gridDim.x} * gpu::kWarp) {
    const std::int64_t mine = first + std::int64_t{threadIdx.x % gpu::kWarp} * gridDim.x;
    const std::int64_t begin = mine % sorted.windows * kWindow, end = begin + kWindow;
    const bool crosses =
        mine < all && sorted.goes_on(end) && !(sorted.goes_on(begin) && sorted.row(begin) == sorted.row(end));
    const std::int64_t beyond = end + kRuns * kWindow;
    const bool is_long = crosses && beyond < sorted.count && sorted.row(beyond) == sorted.row(end);
    const unsigned longs = __ballot_sync(gpu::kAllLanes, is_long);
    unsigned left = __ballot_sync(gpu::kAllLanes, is_long || (crosses && mine < sorted.windows));
    for (; left != 0; left &= left - 1) {
      const int lane = __ffs(static_cast<int>(left)) - 1;
      const std::int64_t item = first + std::int64_t{lane} * gridDim.x;
      const Crossing crossing = crossing_from(sorted, item % sorted.windows);
      if (longs >> lane & 1) {
        join_long<lanes>(crossing, tables, parts, static_cast<int>(item / sorted.windows));
      } else {
        join_short<lanes>(crossing, tables, parts, slices);
      }
    }
  }
}

// The pieces of the scratch.
struct Scratch {
  std::uint32_t *rows, *sorted_rows;
  std::int32_t *n, *sorted_n;
  float* parts;
  void* sort;
  std::size_t sort_bytes, bytes;
};

// If `scratch` is null, it only sets `bytes` to the size that the sort needs.
cudaError_t sort(void* scratch, std::size_t& bytes, const Scratch& s, int count, std::int64_t rows,
                 cudaStream_t stream) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(rows - 1, 1)));
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, s.rows, s.sorted_rows, s.n, s.sorted_n, count, 0,
                                         bits, stream);
}

Scratch lay_out(void* base, std::int64_t pairs, std::int64_t C, std::int64_t rows) {
  Scratch s{};
  const auto count = static_cast<std::size_t>(pairs);
  auto* next = static_cast<std::byte*>(base);
  const auto take = [&](std::size_t bytes) {
    auto* piece = next;
    next += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    s.bytes = static_cast<std::size_t>(next - static_cast<std::byte*>(base));
    return piece;
  };
  s.rows = reinterpret_cast<std::uint32_t*>(take(count * 4));
  s.sorted_rows = reinterpret_cast<std::uint32_t*>(take(count * 4));
  s.n = reinterpret_cast<std::int32_t*>(take(count * 4));
  s.sorted_n = reinterpret_cast<std::int32_t*>(take(count * 4));
  const std::size_t windows = (count + kWindow - 1) / kWindow;
  s.parts = reinterpret_cast<float*>(take(windows * 2 * static_cast<std::size_t>(C) * 4));
  check(sort(nullptr, s.sort_bytes, s, static_cast<int>(count), rows, nullptr), "sizing a radix sort");
  s.sort = take(s.sort_bytes);
  return s;
}

// Pairs (row, n) of N tokens and, if there are P > 0, of their positions.
std::int64_t pairs_of(std::int64_t N, std::int64_t P) {
  return (P > 0 ? 2 : 1) * N;
}

Sorted sort_pairs(const EmbeddingBackward& args, const Scratch& scratch, std::int64_t V, std::int64_t rows,
                  cudaStream_t stream) {
  const auto N = static_cast<int>(args.dout.shape[0]);
  const std::int64_t count = pairs_of(N, rows - V);
  if (N > 0) {
    make_pairs<<<blocks_for(N, kThreads), kThreads, 0, stream>>>(
        static_cast<const std::int32_t*>(args.tokens.data),
        static_cast<const std::int32_t*>(args.positions.data), N, V, scratch.rows, scratch.n);
    check_launch("embedding.backward cuda.sorted, pairs");
    std::size_t bytes = scratch.sort_bytes;
    check(sort(scratch.sort, bytes, scratch, static_cast<int>(count), rows, stream),
          "embedding.backward cuda.sorted, sort");
  }
  return {scratch.sorted_rows, scratch.sorted_n, count, static_cast<int>(blocks_for(count, kWindow))};
}

template <class T, int lanes>
void sum_rows(const T* dout, const Tables& tables, const Sorted& sorted, float* parts,
              const DeviceInfo& device, cudaStream_t stream) {
  const int slices = static_cast<int>(blocks_for(tables.C, gpu::kWarp * lanes));
  const std::int64_t zeroed = std::max(tables.last_zeroed() - tables.first_zeroed(), std::int64_t{0});
  const unsigned zeroing = blocks_for(zeroed, gpu::kWarp);
  const unsigned blocks = zeroing + static_cast<unsigned>(sorted.windows * slices);
  if (blocks == 0) return;
  const bool add = tables.wte.add || tables.wpe.add;
  const auto kernel = add ? sum_windows<T, lanes, true> : sum_windows<T, lanes, false>;
  kernel<<<blocks, gpu::kWarp, 0, stream>>>(dout, tables, sorted, parts, zeroing);
  check_launch("embedding.backward cuda.sorted, windows");
  if (sorted.windows == 0) return;
  join_windows<lanes><<<static_cast<unsigned>(4 * device.gpu.multiprocessors), kThreads, 0, stream>>>(
      tables, sorted, parts, slices);
  check_launch("embedding.backward cuda.sorted, segments");
}

std::size_t sorted_workspace(const EmbeddingBackwardProblem& p, const DeviceInfo&) {
  return lay_out(nullptr, pairs_of(p.N, p.P), p.C, p.V + p.P).bytes;
}

void sorted_backward(const Context& context, const EmbeddingBackward& args) {
  const std::int64_t N = args.dout.shape[0], C = args.dout.shape[1];
  const std::int64_t P = args.dwpe ? args.dwpe.shape[0] : 0;
  const Tables tables{
      {static_cast<float*>(args.dwte.data), args.dwte.shape[0], args.dwte_store == Store::add},
      {static_cast<float*>(args.dwpe.data), P, args.dwpe_store == Store::add},
      C};
  const std::int64_t rows = tables.wte.rows + tables.wpe.rows;
  const Scratch scratch = lay_out(context.scratch(), pairs_of(N, P), C, rows);
  const cudaStream_t stream = context.stream().get();
  const Sorted sorted = sort_pairs(args, scratch, tables.wte.rows, rows, stream);
  gpu::visit_gpu_dtype(args.dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kLanes = 4;
    const auto* dout = static_cast<const T*>(args.dout.data);
    const bool packed = C % kLanes == 0 && gpu::aligned16(dout, tables.wte.gradient, tables.wpe.gradient);
    packed ? sum_rows<T, kLanes>(dout, tables, sorted, scratch.parts, context.device(), stream)
           : sum_rows<T, 1>(dout, tables, sorted, scratch.parts, context.device(), stream);
  });
}

Refusal refuse_sorted(const EmbeddingBackwardProblem& p, const DeviceInfo&) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // the sort's counts have 32 bits
  if (p.N >= kMost || p.V + p.P >= kMost) return "more than 2^30 tokens or rows";
  return {};
}

std::string packs(const EmbeddingBackwardProblem& p, const DeviceInfo&) {
  return p.aligned && p.C % 4 == 0 ? "4 elements" : "elements";
}

}  // namespace
}  // namespace warpwright::ops::embedding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(EmbeddingBackward, "cuda.sorted"_kernel) = {.needs = Needs::gpu,
                                                              .dtypes = kGpuDTypes,
                                                              .run = embedding::sorted_backward,
                                                              .refuse = embedding::refuse_sorted,
                                                              .workspace = embedding::sorted_workspace,
                                                              .configuration = embedding::packs};

}  // namespace warpwright::ops
