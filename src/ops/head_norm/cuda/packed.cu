// QK norm on a GPU, 16 bytes per access. Memory-bound: forward 2 passes over (N, NH, HS), backward 3 (dout,
// x, dx) and 2·HS floats for each block.
//
// A group of lanes has a head at a time, and each lane has up to kPacks packs of it. A block has some rows.
// Its groups take the rows' heads of q, then those of k, so that a lane loads its part of a weight once. In
// the backward a lane also sums its part of a weight's gradient over the heads it takes. The block's sums
// meet in shared memory and become one part in the scratch, and a second kernel adds up the parts. If a head
// is not made of whole packs, or does not begin at one, a pack is one element.
#include <algorithm>
#include <bit>

#include "ops/cuda/column_sum.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/head_norm/kernels.hpp"
#include "runtime/context.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::head_norm {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / gpu::kWarp;
constexpr int kBlocks = 3;         // of the backward on a multiprocessor
constexpr int kHeadsPerGroup = 8;  // that the forward's groups take, at least

// Packs of L elements that a lane has of a head.
template <int L>
constexpr int kPacks = L == 1 ? 8 : 2;

// The lanes of the group that has a head: a power of two, at most a warp.
int lanes_for(std::int64_t HS, int L) {
  const auto in_lane = static_cast<std::int64_t>(L == 1 ? kPacks<1> : kPacks<2> * L);
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>((HS + in_lane - 1) / in_lane)));
}

template <class T>
struct Heads {
  T* data;
  std::int64_t row, head;  // strides

  explicit Heads(const Tensor& t) : data(static_cast<T*>(t.data)), row(t.strides[0]), head(t.strides[1]) {}
  __device__ T* at(std::int64_t n, std::int64_t h) const { return data + n * row + h * head; }
};

// The arguments that forward and backward share.
struct Sizes {
  std::int64_t N;
  int NH, q_heads, HS;
  int lanes;  // of a group
  const float *q_weight, *k_weight;

  Sizes(const HeadNormProblem& p, int L, const Tensor& q_weight, const Tensor& k_weight)
      : N(p.N),
        NH(static_cast<int>(p.NH)),
        q_heads(static_cast<int>(p.q_heads)),
        HS(static_cast<int>(p.HS)),
        lanes(lanes_for(p.HS, L)),
        q_weight(static_cast<const float*>(q_weight.data)),
        k_weight(static_cast<const float*>(k_weight.data)) {}
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % lanes; }
  __device__ std::int64_t rstd_at(std::int64_t n, int h) const { return n * NH + h; }
};

// The heads of some rows that share a weight. A block has fewer than 2^31 of them.
struct Range {
  std::int64_t begin, end;  // rows
  int first, heads;

  __device__ Range(const Sizes& s, std::int64_t begin, std::int64_t end, bool is_q)
      : begin(begin), end(end), first(is_q ? 0 : s.q_heads), heads(is_q ? s.q_heads : s.NH - s.q_heads) {}

  // Calls f(n, h, there) for the heads of this thread's group. All threads call it equally often; `there` is
  // false if no head is left for the group.
  template <class F>
  __device__ void for_each_head(int lanes, const F& f) const {
    const auto count = static_cast<unsigned>(end - begin) * static_cast<unsigned>(heads);
    const unsigned groups = static_cast<unsigned>(kThreads) / static_cast<unsigned>(lanes);
    for (unsigned base = 0; base < count; base += groups) {
      const unsigned i = base + threadIdx.x / static_cast<unsigned>(lanes);
      const unsigned row = i / static_cast<unsigned>(heads), head = i - row * static_cast<unsigned>(heads);
      f(begin + row, first + static_cast<int>(head), i < count);
    }
  }
};

// A lane's part of a head: kPacks packs, `lanes` packs apart.
template <int L>
struct Part {
  int lane, lanes, HS;

  __device__ explicit Part(const Sizes& s) : lane(s.lane()), lanes(s.lanes), HS(s.HS) {}

  // Calls f(p, element) for the packs that the head has.
  template <class F>
  __device__ void for_each_pack(const F& f) const {
#pragma unroll
    for (int p = 0; p < kPacks<L>; ++p) {
      const int element = (p * lanes + lane) * L;
      if (element < HS) f(p, element);
    }
  }
  __device__ void load(const float* from, float (&to)[kPacks<L>][L]) const {
    for_each_pack([&](int p, int element) { gpu::load_floats(from + element, to[p]); });
  }
  template <class T>
  __device__ void load(const T* from, bool there, gpu::Packed<T, L> (&to)[kPacks<L>]) const {
#pragma unroll
    for (int p = 0; p < kPacks<L>; ++p) to[p] = gpu::Packed<T, L>::zero();
    if (!there) return;
    for_each_pack([&](int p, int element) { to[p] = gpu::Packed<T, L>::load_streaming(from + element); });
  }
  // The sum over the head.
  __device__ float sum(float value) const {
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      value += __shfl_xor_sync(gpu::kAllLanes, value, distance);
    return value;
  }
};

template <int L, class T>
__global__ void __launch_bounds__(kThreads)
    normalize(Sizes s, Heads<const T> x, Heads<T> out, float* rstd, float eps, int rows) {
  const Part<L> part(s);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * rows, end = min(begin + rows, s.N);
  for (int which = 0; which < 2; ++which) {
    const bool is_q = which == 0;
    float weight[kPacks<L>][L] = {};
    part.load(is_q ? s.q_weight : s.k_weight, weight);
    Range(s, begin, end, is_q).for_each_head(s.lanes, [&](std::int64_t n, int h, bool there) {
      gpu::Packed<T, L> packs[kPacks<L>];
      part.load(x.at(n, h), there, packs);
      float squares = 0;
#pragma unroll
      for (int p = 0; p < kPacks<L>; ++p) {
#pragma unroll
        for (int i = 0; i < L; ++i) squares += packs[p][i] * packs[p][i];
      }
      const float r = rsqrtf(part.sum(squares) / static_cast<float>(s.HS) + eps);
      if (!there) return;
      if (rstd && part.lane == 0) rstd[s.rstd_at(n, h)] = r;
      part.for_each_pack([&](int p, int element) {
        float y[L];
#pragma unroll
        for (int i = 0; i < L; ++i) y[i] = packs[p][i] * r * weight[p][i];
        gpu::Packed<T, L>::from_floats(y).store(out.at(n, h) + element);
      });
    });
  }
}

// Adds up the threads' sums over the groups of a block, in a fixed order. `to` has HS floats.
template <int L>
__device__ void write_sums(const Part<L>& part, float (&sums)[kPacks<L>][L], float* to) {
  __shared__ float shared[kWarps][kMostHead];
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp, i = static_cast<int>(threadIdx.x);
  const bool first = static_cast<int>(threadIdx.x) % gpu::kWarp < part.lanes;
#pragma unroll
  for (int p = 0; p < kPacks<L>; ++p) {
#pragma unroll
    for (int j = 0; j < L; ++j) {
      for (int distance = part.lanes; distance < gpu::kWarp; distance *= 2)
        sums[p][j] += __shfl_xor_sync(gpu::kAllLanes, sums[p][j], distance);
      const int element = (p * part.lanes + part.lane) * L + j;
      if (first && element < part.HS) shared[warp][element] = sums[p][j];
    }
  }
  __syncthreads();
  if (i < part.HS) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][i];
    to[i] = total;
  }
  __syncthreads();  // before the next sums
}

template <class T>
struct Gradients {
  Heads<const T> dout, x;
  Heads<T> dx;
  const float* rstd;
};

// Block b has part b of the rows. It writes dx, and its part of dq_weight and dk_weight.
template <int L, class T>
__global__ void __launch_bounds__(kThreads, kBlocks) differentiate(Sizes s, Gradients<T> g, float* parts) {
  using Pack = gpu::Packed<T, L>;
  const Part<L> part(s);
  const std::int64_t begin = s.N * blockIdx.x / gridDim.x, end = s.N * (blockIdx.x + 1) / gridDim.x;
  for (int which = 0; which < 2; ++which) {
    const bool is_q = which == 0;
    float weight[kPacks<L>][L] = {}, dweight[kPacks<L>][L] = {};
    part.load(is_q ? s.q_weight : s.k_weight, weight);
    Range(s, begin, end, is_q).for_each_head(s.lanes, [&](std::int64_t n, int h, bool there) {
      Pack d[kPacks<L>], x[kPacks<L>];
      part.load(g.dout.at(n, h), there, d);
      part.load(g.x.at(n, h), there, x);
      const float r = there ? g.rstd[s.rstd_at(n, h)] : 0;
      float products = 0;
#pragma unroll
      for (int p = 0; p < kPacks<L>; ++p) {
#pragma unroll
        for (int i = 0; i < L; ++i) {
          const float x_hat = x[p][i] * r;
          products += d[p][i] * weight[p][i] * x_hat;
          dweight[p][i] += d[p][i] * x_hat;
        }
      }
      const float mean = part.sum(products) / static_cast<float>(s.HS);
      if (!there) return;
      part.for_each_pack([&](int p, int element) {
        float dx[L];
#pragma unroll
        for (int i = 0; i < L; ++i) dx[i] = r * (d[p][i] * weight[p][i] - x[p][i] * r * mean);
        Pack::from_floats(dx).store(g.dx.at(n, h) + element);
      });
    });
    write_sums(part, dweight, parts + (2 * blockIdx.x + which) * s.HS);
  }
}

// dq_weight and dk_weight (= or +=) the sums of their parts (count, 2, HS).
constexpr int kSumWarps = 32;
__global__ void __launch_bounds__(kSumWarps* gpu::kWarp)
    add_parts(const float* parts, int count, int HS, float* dq_weight, float* dk_weight, bool add) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const int column = static_cast<int>(blockIdx.x) * gpu::kWarp + lane;
  const auto load = [&](int part) { return parts[static_cast<std::int64_t>(part) * 2 * HS + column]; };
  gpu::sum_column<kSumWarps, 4, float>(warp, lane, column < 2 * HS, count, load, [&](float sum) {
    float* to = column < HS ? dq_weight + column : dk_weight + (column - HS);
    *to = add ? *to + sum : sum;
  });
}

// Rows of a block of the forward.
int rows_of_block(const Sizes& s) {
  const int heads = kHeadsPerGroup * kThreads / s.lanes;
  return (heads + s.NH - 1) / s.NH;
}

// Blocks, and parts of the weights' gradients. Each block has less than 2^31 heads.
int part_count(const HeadNormBackwardProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kMostHeads = std::int64_t{1} << 30;
  const std::int64_t most = std::int64_t{kBlocks} * std::max(device.gpu.multiprocessors, 1);
  const std::int64_t least = (p.N + kMostHeads / p.NH - 1) / (kMostHeads / p.NH);
  return static_cast<int>(std::max(std::min(p.N, most), least));
}

std::size_t workspace(const HeadNormBackwardProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(part_count(p, device)) * 2 * static_cast<std::size_t>(p.HS) * sizeof(float);
}

bool in_packs(const HeadNormProblem& p) {
  return p.aligned && p.HS % static_cast<std::int64_t>(16 / size_of(p.dtype)) == 0;
}
template <class Problem>
std::string packs(const Problem& p, const DeviceInfo&) {
  return in_packs(p) ? "16 bytes" : "elements";
}

// Calls f(L, T) as types, where L is the number of elements in a pack.
template <class F>
void visit_packs(const HeadNormProblem& p, const F& f) {
  gpu::visit_gpu_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    in_packs(p) ? f(std::integral_constant<int, gpu::kPackedLanes<T>>{}, type)
                : f(std::integral_constant<int, 1>{}, type);
  });
}

void forward(const Context& context, const HeadNormForward& a) {
  const HeadNormForwardProblem p = a.problem();
  if (p.N == 0) return;
  visit_packs(p, [&]<int L, class T>(std::integral_constant<int, L>, TypeTag<T>) {
    const Sizes sizes(p, L, a.q_weight, a.k_weight);
    const int rows = rows_of_block(sizes);
    const auto blocks = static_cast<unsigned>((p.N + rows - 1) / rows);
    normalize<L, T><<<blocks, kThreads, 0, context.stream().get()>>>(
        sizes, Heads<const T>(a.x), Heads<T>(a.out), static_cast<float*>(a.rstd.data),
        static_cast<float>(a.eps), rows);
  });
  warpwright::cuda::check_launch("head_norm.forward cuda.packed");
}

void backward(const Context& context, const HeadNormBackward& a) {
  const HeadNormBackwardProblem p = a.problem();
  const int parts = part_count(p, context.device()), HS = static_cast<int>(p.HS);
  auto* scratch = static_cast<float*>(context.scratch());
  if (p.N > 0) {
    visit_packs(p, [&]<int L, class T>(std::integral_constant<int, L>, TypeTag<T>) {
      const Gradients<T> gradients{Heads<const T>(a.dout), Heads<const T>(a.x), Heads<T>(a.dx),
                                   static_cast<const float*>(a.rstd.data)};
      differentiate<L, T><<<static_cast<unsigned>(parts), kThreads, 0, context.stream().get()>>>(
          Sizes(p, L, a.q_weight, a.k_weight), gradients, scratch);
    });
    warpwright::cuda::check_launch("head_norm.backward cuda.packed");
  }
  const auto blocks = static_cast<unsigned>((2 * HS + gpu::kWarp - 1) / gpu::kWarp);
  add_parts<<<blocks, kSumWarps * gpu::kWarp, 0, context.stream().get()>>>(
      scratch, parts, HS, static_cast<float*>(a.dq_weight.data), static_cast<float*>(a.dk_weight.data),
      a.dweights_store == Store::add);
  warpwright::cuda::check_launch("head_norm.backward cuda.packed, sums");
}

}  // namespace
}  // namespace warpwright::ops::head_norm

namespace warpwright::ops {

WARPWRIGHT_KERNEL(HeadNormForward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = head_norm::forward,
    .configuration = head_norm::packs<HeadNormForwardProblem>};
WARPWRIGHT_KERNEL(HeadNormBackward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = head_norm::backward,
    .workspace = head_norm::workspace,
    .configuration = head_norm::packs<HeadNormBackwardProblem>};

}  // namespace warpwright::ops
