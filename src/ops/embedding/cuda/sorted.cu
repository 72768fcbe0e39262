// Embedding backward on a GPU without a floating-point atomic. Both tables are taken as one of V + P rows,
// and the 2·N pairs (row, n) are sorted by row, stably, so that a row's segment has its n in order (CUB's
// radix sort, as many bits as V + P has). Then
//   1. sum_windows: a block for each 128 sorted pairs adds up dout[n] from segment to segment. What lies
//      within the window goes to the gradient; a segment that goes on from or into another window leaves its
//      part in the scratch.
//   2. join_windows adds up the parts of such segments in the order of their windows, those of a long one in
//      eight runs that are added in order. What there is to join is a list that sum_windows makes: its order
//      depends on timing, the sums do not.
// So a token that is half the batch is as much work to each block as any other. With Store::assign the rows
// that nothing names are zeroed, once.
//
// Memory-bound: dout twice (once for each table), each row of a gradient that is named once (+= twice), with
// Store::assign all other rows once; the sort moves 16 bytes a pair and pass.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::embedding::cuda {
namespace {

using warpwright::cuda::check;
using warpwright::cuda::check_launch;

constexpr int kWindow = 128;  // sorted pairs of a block
constexpr int kThreads = 256;
constexpr int kRuns = kThreads / gpu::kWarp;  // of the windows that join_windows adds up

struct Table {
  float* gradient;
  std::int64_t rows;
  bool add;
};

// Both tables, one below the other.
struct Tables {
  Table wte, wpe;
  std::int64_t C;

  __device__ const Table& of(std::int64_t row) const { return row < wte.rows ? wte : wpe; }
  __device__ float* gradient(std::int64_t row) const {
    return row < wte.rows ? wte.gradient + row * C : wpe.gradient + (row - wte.rows) * C;
  }
};

struct Pairs {
  int count;  // 2·N
  const std::uint32_t* rows;
  const std::int32_t* n;
};

// A segment that goes on from the window where it begins: one group of its columns, or all of them.
struct Task {
  std::int32_t window, group;
};
constexpr std::int32_t kAllGroups = -1;

struct Joins {
  // (windows, 2, C): of the segment that comes from the window before (head), and of the one that begins here
  // and goes on into the next (tail).
  float* parts;
  Task* tasks;
  int* count;
};

unsigned blocks_for(std::int64_t pieces, int in_block) {
  return static_cast<unsigned>((pieces + in_block - 1) / in_block);
}

// Sets a flag that many threads set: where it is set already nothing is written, since writes to one address
// queue up.
__device__ void set(std::uint8_t& flag) {
  if (flag == 0) flag = 1;
}

__global__ void __launch_bounds__(kThreads)
    make_pairs(const std::int32_t* tokens, const std::int32_t* positions, int N, Tables tables,
               std::uint32_t* rows, std::int32_t* n, std::uint8_t* named) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= N) return;
  const auto token = static_cast<std::uint32_t>(tokens[i]);
  const auto position = static_cast<std::uint32_t>(positions[i] + tables.wte.rows);
  rows[i] = token;
  rows[N + i] = position;
  n[i] = n[N + i] = i;
  if (!tables.wte.add) set(named[token]);
  if (!tables.wpe.add) set(named[position]);
}

// A warp for each row of [first, last).
template <int lanes>
__global__ void __launch_bounds__(kThreads)
    zero_unnamed(Tables tables, const std::uint8_t* named, std::int64_t first, std::int64_t last) {
  const std::int64_t row = first + static_cast<std::int64_t>(blockIdx.x) * kRuns + threadIdx.x / gpu::kWarp;
  if (row >= last || named[row]) return;
  float* gradient = tables.gradient(row);
  for (std::int64_t c = threadIdx.x % gpu::kWarp * lanes; c < tables.C; c += gpu::kWarp * lanes) {
    gpu::Packed<float, lanes>::zero().store(gradient + c);
  }
}

// Where the sum goes that a pair ends.
enum class Goes : std::uint8_t { nowhere, assign, add, head, tail };

// groups: of columns, in join_windows.
template <class T, int lanes, bool add>
__global__ void __launch_bounds__(kThreads)
    sum_windows(const T* dout, Tables tables, Pairs pairs, Joins joins, int groups) {
  constexpr int kAhead = add ? 4 : 8;  // rows of dout that a thread loads before it adds the first
  __shared__ std::uint32_t rows[kWindow];
  __shared__ std::int32_t from[kWindow];
  __shared__ Goes goes[kWindow];
  const int first = static_cast<int>(blockIdx.x) * kWindow;
  const int count = min(kWindow, pairs.count - first);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int at = first + i;
    const std::uint32_t row = pairs.rows[at];
    const bool ends = at + 1 == pairs.count || pairs.rows[at + 1] != row;
    const bool began_before = first > 0 && pairs.rows[first - 1] == row;
    rows[i] = row;
    from[i] = pairs.n[at];
    goes[i] = !ends && i + 1 < count ? Goes::nowhere
              : began_before         ? Goes::head
              : !ends                ? Goes::tail
              : tables.of(row).add   ? Goes::add
                                     : Goes::assign;
  }
  __syncthreads();
  if (blockIdx.y == 0 && threadIdx.x == 0 && goes[count - 1] == Goes::tail) {
    const std::int64_t beyond = first + std::int64_t{kRuns + 1} * kWindow;
    const bool is_long = beyond < pairs.count && pairs.rows[beyond] == rows[count - 1];
    Task* task = joins.tasks + atomicAdd(joins.count, is_long ? groups : 1);
    if (!is_long) *task = {static_cast<int>(blockIdx.x), kAllGroups};
    for (int group = 0; is_long && group < groups; ++group)
      task[group] = {static_cast<int>(blockIdx.x), group};
  }
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y * blockDim.x + threadIdx.x) * lanes;
  if (c >= tables.C) return;

  float sum[lanes] = {};
  for (int i = 0; i < count; i += kAhead) {
    gpu::Packed<T, lanes> rows_ahead[kAhead];
    float before[add ? kAhead : 1][lanes] = {};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j >= count) continue;
      rows_ahead[j] = gpu::Packed<T, lanes>::load(dout + from[i + j] * tables.C + c);
      if constexpr (add) {
        if (goes[i + j] == Goes::add) gpu::load_floats(tables.gradient(rows[i + j]) + c, before[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j >= count) continue;
#pragma unroll
      for (int lane = 0; lane < lanes; ++lane) sum[lane] += rows_ahead[j][lane];
      const Goes where = goes[i + j];
      if (where == Goes::nowhere) continue;
      float* to = tables.gradient(rows[i + j]) + c;
      if (where == Goes::head) to = joins.parts + 2 * blockIdx.x * tables.C + c;
      if (where == Goes::tail) to = joins.parts + (2 * blockIdx.x + 1) * tables.C + c;
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

// Adds the parts of windows [begin, end) to sum, in order.
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

// Persistent: a block takes every gridDim-th task. Of a segment of few windows each warp has groups of
// columns of its own; of a long one the warps have a run of windows each.
template <int lanes>
__global__ void __launch_bounds__(kThreads)
    join_windows(Tables tables, Pairs pairs, Joins joins, int windows, int groups) {
  __shared__ float sums[kRuns][gpu::kWarp][lanes];
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  for (int i = static_cast<int>(blockIdx.x); i < *joins.count; i += static_cast<int>(gridDim.x)) {
    const Task task = joins.tasks[i];
    const std::uint32_t row = pairs.rows[task.window * kWindow + kWindow - 1];
    int further = 0;  // windows that the segment goes on into
    for (int seen = kThreads; seen == kThreads; further += seen) {
      const int other = task.window + 1 + further + static_cast<int>(threadIdx.x);
      seen = __syncthreads_count(other < windows && pairs.rows[other * kWindow] == row);
    }
    const std::int64_t next = task.window + 1;
    const float* tail = joins.parts + (2 * next - 1) * tables.C;
    if (task.group == kAllGroups) {
      for (int group = warp; group < groups; group += kRuns) {
        const std::int64_t c = static_cast<std::int64_t>(group * gpu::kWarp + lane) * lanes;
        if (c >= tables.C) continue;
        float sum[lanes];
        gpu::load_floats(tail + c, sum);
        add_heads(sum, joins.parts + c, next, next + further, tables.C);
        put(sum, tables, row, c);
      }
      continue;
    }
    const std::int64_t c = static_cast<std::int64_t>(task.group * gpu::kWarp + lane) * lanes;
    const int in_run = (further + kRuns - 1) / kRuns;
    float sum[lanes] = {};
    if (c < tables.C) {
      if (warp == 0) gpu::load_floats(tail + c, sum);
      add_heads(sum, joins.parts + c, next + min(warp * in_run, further),
                next + min((warp + 1) * in_run, further), tables.C);
    }
#pragma unroll
    for (int j = 0; j < lanes; ++j) sums[warp][lane][j] = sum[j];
    __syncthreads();
    for (int other = 1; warp == 0 && other < kRuns; ++other) {
#pragma unroll
      for (int j = 0; j < lanes; ++j) sum[j] += sums[other][lane][j];
    }
    if (warp == 0 && c < tables.C) put(sum, tables, row, c);
    __syncthreads();
  }
}

// The scratch, piece after piece.
struct Scratch {
  std::uint32_t *rows, *sorted_rows;
  std::int32_t *n, *sorted_n;
  std::uint8_t* named;  // by row, of tables that are not added to
  Joins joins;
  std::size_t cleared_bytes;  // of named and joins.count, 0 at the start
  void* sort;
  std::size_t sort_bytes, bytes;
};

// Writes nothing where `sort` is null: says how much it needs.
cudaError_t sort(void* scratch, std::size_t& bytes, const Scratch& s, int count, std::int64_t rows,
                 cudaStream_t stream) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(rows - 1, 1)));
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, s.rows, s.sorted_rows, s.n, s.sorted_n, count, 0,
                                         bits, stream);
}

Scratch lay_out(void* base, std::int64_t N, std::int64_t C, std::int64_t rows) {
  Scratch s{};
  const auto count = static_cast<std::size_t>(2 * N);
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
  const std::size_t flags = (static_cast<std::size_t>(rows) + 3) / 4 * 4;
  s.cleared_bytes = flags + sizeof(int);
  s.named = reinterpret_cast<std::uint8_t*>(take(s.cleared_bytes));
  s.joins.count = reinterpret_cast<int*>(s.named + flags);
  const std::size_t windows = (count + kWindow - 1) / kWindow;
  s.joins.parts = reinterpret_cast<float*>(take(windows * 2 * static_cast<std::size_t>(C) * 4));
  // A long segment has more than kRuns windows; with one lane there are the most groups of columns.
  const std::size_t groups = (static_cast<std::size_t>(C) + gpu::kWarp - 1) / gpu::kWarp;
  s.joins.tasks = reinterpret_cast<Task*>(take((windows + (windows / kRuns + 1) * groups) * sizeof(Task)));
  check(sort(nullptr, s.sort_bytes, s, static_cast<int>(count), rows, nullptr), "sizing a radix sort");
  s.sort = take(s.sort_bytes);
  return s;
}

template <int lanes>
void zero_rows(const Tables& tables, const Scratch& s, cudaStream_t stream) {
  const std::int64_t first = tables.wte.add ? tables.wte.rows : 0;
  const std::int64_t last = tables.wte.rows + (tables.wpe.add ? 0 : tables.wpe.rows);
  if (first >= last) return;
  zero_unnamed<lanes><<<blocks_for(last - first, kRuns), kThreads, 0, stream>>>(tables, s.named, first, last);
  check_launch("embedding.backward cuda.sorted, rows that nothing names");
}

template <class T, int lanes>
void sum_rows(const T* dout, const Tables& tables, const Pairs& pairs, const Joins& joins,
              const DeviceInfo& device, cudaStream_t stream) {
  constexpr int kJoinLanes = lanes < 4 ? lanes : 4;
  const unsigned windows = blocks_for(pairs.count, kWindow);
  const auto groups = static_cast<int>(blocks_for(tables.C, gpu::kWarp * kJoinLanes));
  const std::int64_t packs = (tables.C + lanes - 1) / lanes;
  const int threads =
      packs < kThreads ? static_cast<int>(blocks_for(packs, gpu::kWarp)) * gpu::kWarp : kThreads;
  const dim3 grid(windows, blocks_for(packs, threads));
  const bool add = tables.wte.add || tables.wpe.add;
  const auto kernel = add ? sum_windows<T, lanes, true> : sum_windows<T, lanes, false>;
  kernel<<<grid, threads, 0, stream>>>(dout, tables, pairs, joins, groups);
  check_launch("embedding.backward cuda.sorted, windows");
  const auto blocks = static_cast<unsigned>(4 * device.gpu.multiprocessors);
  join_windows<kJoinLanes>
      <<<blocks, kThreads, 0, stream>>>(tables, pairs, joins, static_cast<int>(windows), groups);
  check_launch("embedding.backward cuda.sorted, segments");
}

}  // namespace

std::size_t sorted_workspace(const EmbeddingBackwardProblem& p, const DeviceInfo&) {
  return lay_out(nullptr, p.N, p.C, p.V + p.P).bytes;
}

void sorted_backward(const Context& context, const EmbeddingBackward& args) {
  const std::int64_t N = args.dout.shape[0], C = args.dout.shape[1];
  const Tables tables{
      {static_cast<float*>(args.dwte.data), args.dwte.shape[0], args.dwte_store == Store::add},
      {static_cast<float*>(args.dwpe.data), args.dwpe.shape[0], args.dwpe_store == Store::add},
      C};
  const std::int64_t rows = tables.wte.rows + tables.wpe.rows;
  Scratch s = lay_out(context.scratch(), N, C, rows);
  const cudaStream_t stream = context.stream().get();
  check(cudaMemsetAsync(s.named, 0, s.cleared_bytes, stream), "embedding.backward cuda.sorted");
  if (N > 0) {
    make_pairs<<<blocks_for(N, kThreads), kThreads, 0, stream>>>(
        static_cast<const std::int32_t*>(args.tokens.data),
        static_cast<const std::int32_t*>(args.positions.data), static_cast<int>(N), tables, s.rows, s.n,
        s.named);
    check_launch("embedding.backward cuda.sorted, pairs");
  }
  const bool aligned = C % 4 == 0 && gpu::aligned16(tables.wte.gradient, tables.wpe.gradient);
  aligned ? zero_rows<4>(tables, s, stream) : zero_rows<1>(tables, s, stream);
  if (N == 0) return;
  check(sort(s.sort, s.sort_bytes, s, static_cast<int>(2 * N), rows, stream),
        "embedding.backward cuda.sorted, sort");
  const Pairs pairs{static_cast<int>(2 * N), s.sorted_rows, s.sorted_n};
  gpu::visit_gpu_dtype(args.dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kLanes = gpu::kPackedLanes<T>;
    const auto* dout = static_cast<const T*>(args.dout.data);
    const bool packed = aligned && C % kLanes == 0 && gpu::aligned16(dout);
    packed ? sum_rows<T, kLanes>(dout, tables, pairs, s.joins, context.device(), stream)
           : sum_rows<T, 1>(dout, tables, pairs, s.joins, context.device(), stream);
  });
}

}  // namespace warpwright::ops::embedding::cuda
