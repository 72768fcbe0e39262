// Layer normalization with every row in registers: a row is read from memory once, and its statistics are
// taken in two passes over the registers. 16-byte accesses; a warp has a row, or a block's warps share a
// longer one. The backward's rows arrive in shared memory, one ahead, since dweight and dbias take the
// registers. Memory-bound:
//   forward   2 passes of the tensor (x, out)
//   backward  3 passes (dout, x, dx; 4 where dx is +=), and for each block a row of 2·C floats, its part of
//             dweight and dbias, which column_sums.cuh adds up
#include <cuda_pipeline_primitives.h>

#include "ops/layernorm/cuda/column_sums.cuh"
#include "ops/layernorm/cuda/rows.cuh"

namespace warpwright::ops::layernorm::cuda {
namespace {

template <class T>
struct BackwardRows {
  const T *dout, *x, *weight;
  const float *mean, *rstd;
  T* dx;
  float* parts;  // (blocks, 2, C)
  std::int64_t N;
  int C;
};

// The sums of both over a row's threads. `shared` may be used again behind the next barrier.
template <bool one_warp>
__device__ void sum_both(float& a, float& b, float2* shared) {
  a = gpu::warp_sum(a);
  b = gpu::warp_sum(b);
  if constexpr (!one_warp) {
    const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp,
              warps = static_cast<int>(blockDim.x) / gpu::kWarp;
    if (lane == 0) shared[threadIdx.x / gpu::kWarp] = {a, b};
    __syncthreads();
    const float2 part = lane < warps ? shared[lane] : float2{0, 0};
    a = gpu::warp_sum(part.x);
    b = gpu::warp_sum(part.y);
  }
}

template <int N>
__device__ void add_floats(float (&to)[N], const float* p) {
  float values[N];
  gpu::load_floats(p, values);
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] += values[j];
}

// Where a thread's packs arrive: while one row is computed, the next is copied. Each thread copies and reads
// places of its own, so that waiting for its own copies is all that is needed. The statistics come the same
// way, to each thread: in registers they would be waited for where a register is short.
template <class T, int packs, bool one_warp, int tensors>
struct Stages {
  gpu::Packed<T>* mine;  // of (2, tensors, packs, threads)
  float* statistics;     // of (2, 2, threads)

  static __device__ int threads() { return one_warp ? kOneWarpThreads : static_cast<int>(blockDim.x); }
  __device__ explicit Stages(uint4* shared)
      : mine(reinterpret_cast<gpu::Packed<T>*>(shared) + threadIdx.x),
        statistics(reinterpret_cast<float*>(shared + 2 * tensors * packs * threads()) + threadIdx.x) {}
  __device__ gpu::Packed<T>& at(int stage, int tensor, int k) const {
    return mine[((stage * tensors + tensor) * packs + k) * threads()];
  }
  __device__ float& statistic(int stage, int which) const {
    return statistics[(stage * 2 + which) * threads()];
  }
};

// Persistent, with a grid that is a function of problem and device alone: a thread adds up dweight and dbias
// of its columns over its group's rows in registers, then the groups of a block add theirs in order.
template <class T, int packs, bool one_warp, bool add_dx>
__global__ void __launch_bounds__(one_warp ? kOneWarpThreads : kMostThreads,
                                  one_warp ? backward_warps(packs) * gpu::kWarp / kOneWarpThreads : 1)
    backward_rows(BackwardRows<T> a) {
  using G = Group<one_warp>;
  using Pack = gpu::Packed<T>;
  constexpr int kLanes = Pack::kLanes, kDout = 0, kX = 1, kDx = 2, kTensors = add_dx ? 3 : 2;
  __shared__ float2 sums[2][kMostThreads / gpu::kWarp];
  extern __shared__ uint4 shared[];  // the stages; at the end (2, C) floats
  const Stages<T, packs, one_warp, kTensors> stages(shared);
  const int thread = G::thread(), threads = G::threads(), left = a.C / kLanes - thread;
  const float inverse_C = 1.0f / static_cast<float>(a.C);

  Pack weight[packs];
  float dweight[packs][kLanes] = {}, dbias[packs][kLanes] = {};
  load_packs<false>(weight, a.weight + thread * kLanes, left, threads);
#pragma unroll
  for (int i = 0; i < 2 * kTensors * packs; ++i) stages.at(0, 0, i) = Pack::zero();
  const auto copy_row = [&](std::int64_t row, int stage) {
    if (row < a.N) {
      const std::int64_t first = row * a.C + thread * kLanes;
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        if (k * threads >= left) continue;
        const std::int64_t from = first + k * threads * kLanes;
        __pipeline_memcpy_async(&stages.at(stage, kDout, k), a.dout + from, sizeof(Pack));
        __pipeline_memcpy_async(&stages.at(stage, kX, k), a.x + from, sizeof(Pack));
        if constexpr (add_dx) __pipeline_memcpy_async(&stages.at(stage, kDx, k), a.dx + from, sizeof(Pack));
      }
      __pipeline_memcpy_async(&stages.statistic(stage, 0), a.mean + row, sizeof(float));
      __pipeline_memcpy_async(&stages.statistic(stage, 1), a.rstd + row, sizeof(float));
    }
    __pipeline_commit();
  };
  copy_row(G::index(), 0);

  int stage = 0;
  for (std::int64_t row = G::index(); row < a.N; row += G::count(), stage ^= 1) {
    copy_row(row + G::count(), stage ^ 1);
    __pipeline_wait_prior(1);
    const float mean = stages.statistic(stage, 0), rstd = stages.statistic(stage, 1);

    float mean_g = 0, mean_gx = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const Pack dout = stages.at(stage, kDout, k), x = stages.at(stage, kX, k);
      weight[k].forget();
      float sum_g = 0, sum_gx = 0;  // so that the packs' additions do not wait for each other
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float d = dout[j], normalized = (x[j] - mean) * rstd, g = d * weight[k][j];
        sum_g += g;
        sum_gx = fmaf(g, normalized, sum_gx);
        dweight[k][j] = fmaf(d, normalized, dweight[k][j]);
        dbias[k][j] += d;
      }
      mean_g += sum_g;
      mean_gx += sum_gx;
    }
    sum_both<one_warp>(mean_g, mean_gx, sums[stage]);
    mean_g *= inverse_C;
    mean_gx *= inverse_C;
    // No thread reads another's places: this makes the compiler read the row again, not keep it in registers.
    if constexpr (one_warp) __syncwarp();
    const std::int64_t first = row * a.C + thread * kLanes;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      const Pack dout = stages.at(stage, kDout, k), x = stages.at(stage, kX, k);
      weight[k].forget();
      float gradient[kLanes];
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float normalized = (x[j] - mean) * rstd;
        gradient[j] = rstd * (fmaf(dout[j], weight[k][j], -mean_g) - normalized * mean_gx);
        if constexpr (add_dx) gradient[j] += stages.at(stage, kDx, k)[j];
      }
      Pack::from_floats(gradient).store(a.dx + first + k * threads * kLanes);
    }
  }

  __pipeline_wait_prior(0);
  float* part = a.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * a.C;
  auto* block_part = reinterpret_cast<float*>(shared);
  for (int group = 0; group < (one_warp ? kOneWarpThreads / gpu::kWarp : 1); ++group) {
    if constexpr (one_warp) __syncthreads();
    if (one_warp && static_cast<int>(threadIdx.x) / gpu::kWarp != group) continue;
    float* to = one_warp ? block_part : part;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      float *w = to + (thread + k * threads) * kLanes, *b = w + a.C;
      if (one_warp && group > 0) {
        add_floats(dweight[k], w);
        add_floats(dbias[k], b);
      }
      gpu::store_floats(w, dweight[k]);
      gpu::store_floats(b, dbias[k]);
    }
  }
  if constexpr (one_warp) {
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < 2 * a.C; c += kOneWarpThreads * 4) {
      gpu::Packed<float>::load(block_part + c).store(part + c);
    }
  }
}

template <int packs, bool one_warp, class T>
void launch_backward(const BackwardRows<T>& a, RowShape shape, int blocks, Store store, cudaStream_t stream) {
  const int threads = one_warp ? kOneWarpThreads : shape.warps * gpu::kWarp;
  const std::size_t shared = backward_stage_bytes(shape, store);
  const auto kernel = store == Store::add ? backward_rows<T, packs, one_warp, true>
                                          : backward_rows<T, packs, one_warp, false>;
  gpu::allow_shared(kernel, shared);
  kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(a);
  warpwright::cuda::check_launch("layernorm.backward cuda.warp_row");
}

template <class T>
void launch_backward(const BackwardRows<T>& a, RowShape shape, int blocks, Store store, cudaStream_t stream) {
  const bool one_warp = shape.warps == 1;
  switch (shape.packs) {
    case 1:
      return launch_backward<1, true>(a, shape, blocks, store, stream);
    case 2:
      return one_warp ? launch_backward<2, true>(a, shape, blocks, store, stream)
                      : launch_backward<2, false>(a, shape, blocks, store, stream);
    case 3:
      return one_warp ? launch_backward<3, true>(a, shape, blocks, store, stream)
                      : launch_backward<3, false>(a, shape, blocks, store, stream);
    default:
      return launch_backward<4, true>(a, shape, blocks, store, stream);
  }
}

template <class T>
void backward(const Context& context, const NormBackward& args) {
  const std::int64_t N = args.x.shape[0];
  const int C = static_cast<int>(args.x.shape[1]);
  auto* parts = static_cast<float*>(context.scratch());
  const BackwardRows<T> a{static_cast<const T*>(args.dout.data),
                          static_cast<const T*>(args.x.data),
                          static_cast<const T*>(args.weight.data),
                          static_cast<const float*>(args.mean.data),
                          static_cast<const float*>(args.rstd.data),
                          static_cast<T*>(args.dx.data),
                          parts,
                          N,
                          C};
  if (!gpu::aligned16(a.dout, a.x, a.weight, a.dx)) return shared_partials_backward(context, args);
  const RowShape shape = backward_shape(C, args.x.dtype);
  const int blocks = warp_row_parts(N, shape, context.device());
  const cudaStream_t stream = context.stream().get();
  if (blocks > 0) launch_backward(a, shape, blocks, args.dx_store, stream);
  add_column_sums(parts, blocks, args, stream);
}

template <class T>
void forward(const Context& context, const NormForward& args) {
  const int C = static_cast<int>(args.x.shape[1]);
  const ForwardRows<T> a{static_cast<const T*>(args.x.data),
                         nullptr,
                         static_cast<const T*>(args.weight.data),
                         static_cast<const T*>(args.bias.data),
                         nullptr,
                         static_cast<T*>(args.out.data),
                         static_cast<float*>(args.mean.data),
                         static_cast<float*>(args.rstd.data),
                         args.x.shape[0],
                         C,
                         static_cast<float>(args.eps)};
  if (!gpu::aligned16(a.x, a.weight, a.bias, a.out)) return warp_loop_forward(context, args);
  launch_forward<false>(a, forward_shape(C, args.x.dtype), context, "layernorm.forward cuda.warp_row");
}

}  // namespace

void warp_row_forward(const Context& context, const NormForward& args) {
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) { forward<typename decltype(tag)::type>(context, args); });
}

void warp_row_backward(const Context& context, const NormBackward& args) {
  gpu::visit_gpu_dtype(args.x.dtype,
                       [&](auto tag) { backward<typename decltype(tag)::type>(context, args); });
}

}  // namespace warpwright::ops::layernorm::cuda
