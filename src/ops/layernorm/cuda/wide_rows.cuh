// As backward_rows.cuh, for rows that a cluster of blocks shares, and for those of which a warp has seven
// packs a lane, where a block's warps would leave a third of their lanes idle.
#pragma once

#include "ops/cuda/hopper/barrier.cuh"
#include "ops/layernorm/cuda/backward_rows.cuh"

namespace warpwright::ops::layernorm::cuda {

// Who has a row, and how many packs of it a lane has.
enum class Share { warp, cluster };
template <int packs_, Share share_>
struct WideForm {
  static constexpr int packs = packs_;
  static constexpr Share share = share_;
  // A cluster takes the sums of the next row before it computes dx of the present one, which hides the time
  // that sums take from block to block.
  static constexpr bool ahead = share == Share::cluster;
  static constexpr int stages = ahead ? kClusterStages : kBackwardStages;
  static constexpr int most_threads = ahead ? kMostThreads : kOneWarpThreads;
  static constexpr int least_blocks = ahead ? 1 : kWideWarpBlocks;
};

__device__ inline int rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));  // not to be held in a register
  return static_cast<int>(rank);
}
__device__ inline int blocks_of_cluster() {
  unsigned blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return static_cast<int>(blocks);
}

// The sums of both over the threads that share a row, in two steps, so that a thread may do something else
// between sending its part and having the sums. Each sum of a thread has a turn, 0, 1, 2, …
template <Share share>
class SumOfBoth;

template <>
class SumOfBoth<Share::warp> {
 public:
  __device__ void send(float a, float b, unsigned) { sum_ = {gpu::warp_sum(a), gpu::warp_sum(b)}; }
  __device__ float2 get(unsigned) const { return sum_; }

 private:
  float2 sum_;
};

// Every warp sends its part to each block of the cluster. Four places in turn: a warp sends for a row when it
// has read the sums of the second before, and the fourth row's senders have the sums of the second, to which
// every reader of the first has added its part since.
template <>
class SumOfBoth<Share::cluster> {
 public:
  static constexpr int kPlaces = 4;
  struct Shared {
    float2 parts[kPlaces][kMostBlocks * kMostClusterWarps];
    hopper::Barrier barriers[kPlaces];
  };

  // Another barrier of the cluster is needed before anything is sent.
  __device__ SumOfBoth(Shared* shared, int warps) : shared_(shared), warps_(warps) {
    if (threadIdx.x != 0) return;
    for (auto& barrier : shared_->barriers) hopper::initialize(&barrier, 1);
    hopper::fence_initialized_barriers();
  }
  __device__ void send(float a, float b, unsigned turn) {
    const float2 part{gpu::warp_sum(a), gpu::warp_sum(b)};
    const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
    hopper::Barrier* barrier = shared_->barriers + turn % kPlaces;
    if (threadIdx.x == 0) {
      hopper::arrive_expecting(barrier, blocks_of_cluster() * warps_ * static_cast<int>(sizeof(float2)));
    }
    float2* to = shared_->parts[turn % kPlaces] + rank_in_cluster() * warps_ +
                 static_cast<int>(threadIdx.x) / gpu::kWarp;
    if (lane < blocks_of_cluster()) send_to(lane, to, part, barrier);
  }
  __device__ float2 get(unsigned turn) const {
    hopper::wait(shared_->barriers + turn % kPlaces, turn / kPlaces % 2);
    const int count = blocks_of_cluster() * warps_;
    float2 sum{0, 0};
    for (int i = static_cast<int>(threadIdx.x) % gpu::kWarp; i < count; i += gpu::kWarp) {
      const float2 part = shared_->parts[turn % kPlaces][i];
      sum.x += part.x;
      sum.y += part.y;
    }
    return {gpu::warp_sum(sum.x), gpu::warp_sum(sum.y)};
  }

 private:
  static __device__ void send_to(int block, float2* to, float2 value, hopper::Barrier* barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .b32 to, barrier;\n"
        "mapa.shared::cluster.u32 to, %0, %4;\n"
        "mapa.shared::cluster.u32 barrier, %1, %4;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%2, %3}, [barrier];\n"
        "}\n" ::"r"(gpu::shared_address(to)),
        "r"(gpu::shared_address(barrier)), "f"(value.x), "f"(value.y), "r"(block)
        : "memory");
#endif
  }

  Shared* shared_;
  int warps_;
};

struct NothingShared {};
template <Share share>
struct SharedSums {
  using type = NothingShared;
};
template <>
struct SharedSums<Share::cluster> {
  using type = SumOfBoth<Share::cluster>::Shared;
};

// To an ulp, for what is neither subnormal nor more than 2^126.
__device__ inline float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Persistent, as backward_rows, which has the comments on what they share.
// From the output, t = out − bias stands in for x̂ = t/weight: Σ g·x̂ = Σ dout·t, dweight = Σ dout·t / weight.
// Odd columns, which are lost and kept or whose weight has no quick reciprocal, are put right one by one
// (put_kept_sums computes the dweight of the kept ones anew); what is lost and not kept gets NaN.
template <class X, class P, class O, class Form, bool from_out>
__device__ void backward_of_wide_rows(const BackwardRows<X, P, O>& a, int warps) {
  using Y = std::conditional_t<from_out, O, X>;
  using Sums = SumOfBoth<Form::share>;
  constexpr bool one_warp = Form::share == Share::warp;
  constexpr int packs = Form::packs, stages_count = Form::stages;
  using Stage = Stages<X, Y, O, packs, one_warp, stages_count>;
  constexpr int kLanes = gpu::kPackedLanes<X>;
  __shared__ typename SharedSums<Form::share>::type shared_sums;
  extern __shared__ uint4
      shared[];  // the stages; at the end (2, C) floats where warps have rows of their own
  const Stage stages(shared, a.addend != nullptr);

  const int team_threads = one_warp ? gpu::kWarp : warps * gpu::kWarp;
  const int team = one_warp ? static_cast<int>(threadIdx.x) / team_threads : 0,
            teams = one_warp ? static_cast<int>(blockDim.x) / team_threads : 1;
  int rank = 0, cluster = 1;
  if constexpr (Form::share == Share::cluster) {
    rank = rank_in_cluster();
    cluster = blocks_of_cluster();
  }
  const int threads = team_threads * cluster,
            thread = static_cast<int>(threadIdx.x) - team * team_threads + rank * team_threads,
            left = a.C / kLanes - thread, column = thread * kLanes;
  const int groups = static_cast<int>(gridDim.x) / cluster * teams,
            group = static_cast<int>(blockIdx.x) / cluster * teams + team;
  const unsigned zero = threadIdx.z;
  const float inverse_C = 1.0f / static_cast<float>(a.C);

  Sums sums = [&] {
    if constexpr (Form::share == Share::warp) return Sums();
    if constexpr (Form::share == Share::cluster) return Sums(&shared_sums, warps);
  }();
  Parameters<X, P, packs> weight(a.weight ? a.weight + column : nullptr, 1, left, threads);
  using Bias = Parameters<X, P, from_out ? packs : 1>;
  Bias bias(from_out && a.bias ? a.bias + column : nullptr, 0, left, threads);
  float dweight[packs][kLanes] = {}, dbias[packs][kLanes] = {};

  unsigned odd = 0, gone = 0;  // a bit for each lane of each pack
  if constexpr (from_out) {
    static_assert(packs * kLanes <= 32);
    const int places = a.kept.places();
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      const auto w = weight.at(k, threads);
      const auto b = bias.at(k, threads);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const bool lost = a.lost(w[j], b[j]);
        if (!lost && fabsf(w[j]) <= 0x1p126f) continue;
        const bool kept = a.kept.place(column + k * threads * kLanes + j, places) >= 0;
        (lost && !kept ? gone : odd) |= 1u << (k * kLanes + j);
      }
    }
  }
  // Calls f(dout, t, x̂, weight, where the addend is, column) for each odd column of a row.
  const auto visit_odd = [&](std::int64_t row, int stage, const auto& f) {
    constexpr int kEach = Lanes<O, kLanes>::kEach;
    const float mean = stages.statistic(stage, 0), rstd = stages.statistic(stage, 1);
    const int places = a.kept.places();
    for (unsigned bits = odd; bits != 0; bits &= bits - 1) {
      const int bit = __ffs(static_cast<int>(bits)) - 1, k = bit / kLanes, j = bit % kLanes;
      const int c = column + k * threads * kLanes + j, place = a.kept.place(c, places);
      const auto element = [&](int unit) {
        return gpu::to_float(reinterpret_cast<const O*>(stages.place(stage, k, unit + j / kEach))[j % kEach]);
      };
      const float w = a.weight ? gpu::to_float(a.weight[c]) : 1.0f,
                  b = a.bias ? gpu::to_float(a.bias[c]) : 0.0f;
      const float t = element(Stage::kDout) - b;
      float normalized = t / w;
      if (place >= 0) {
        const float x = gpu::to_float(a.kept.values[row * a.kept.capacity + place]);
        normalized = (x - (a.centered ? mean : 0.0f)) * rstd;
      }
      const uint4* addend = stages.place(stage, k, Stage::kDout + Stage::kX);
      f(element(0), t, normalized, w, reinterpret_cast<const X*>(addend) + j, c);
    }
  };
  // Where out does not tell x̂ and dx is to be NaN, out becomes NaN once it has been added up.
  const auto forget_gone = [&](int stage) {
    constexpr int kEach = Lanes<O, kLanes>::kEach;
    for (unsigned bits = gone; bits != 0; bits &= bits - 1) {
      const int bit = __ffs(static_cast<int>(bits)) - 1, k = bit / kLanes, j = bit % kLanes;
      uint4* units = stages.place(stage, k, Stage::kDout + j / kEach);
      reinterpret_cast<O*>(units)[j % kEach] = gpu::from_float<O>(__int_as_float(0x7fffffff));
    }
    asm volatile("" ::: "memory");  // the row is read in other units
  };

  for (int i = 0; i < stages_count * packs * stages.units; ++i) *stages.place(0, 0, i) = uint4{0, 0, 0, 0};
  for (int i = 0; i < stages_count; ++i) stages.statistic(i, 0) = 0;
  const auto copy_row = [&](std::int64_t row, int stage) {
    if (row < a.N) {
      const std::int64_t first = row * a.C + column;
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        if (k * threads >= left) continue;
        const std::int64_t from = first + k * threads * kLanes;
        stages.copy(stage, k, 0, a.dout + from);
        if constexpr (from_out) {
          stages.copy(stage, k, Stage::kDout, a.out + from);
        } else {
          stages.copy(stage, k, Stage::kDout, a.x + from);
        }
        if (a.addend) stages.copy(stage, k, Stage::kDout + Stage::kX, a.addend + from);
      }
      if (a.mean) __pipeline_memcpy_async(&stages.statistic(stage, 0), a.mean + row, sizeof(float));
      __pipeline_memcpy_async(&stages.statistic(stage, 1), a.rstd + row, sizeof(float));
    }
    __pipeline_commit();
  };

  // Of a row that has arrived: its part of dweight and dbias, and both sums on their way.
  const auto take_sums = [&](std::int64_t row, int stage, unsigned turn) {
    float sum_g = 0, sum_gx = 0;
    if constexpr (from_out) {
      if (odd != 0) {
        visit_odd(row, stage, [&](float d, float t, float normalized, float w, const X*, int) {
          sum_gx += d * fmaf(w, normalized, -t);
        });
      }
    }
    const float mean = from_out ? 0.0f : stages.statistic(stage, 0),
                rstd = from_out ? 1.0f : stages.statistic(stage, 1);
    float sum_gc = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      // Behind the row's end there are no parameters that are read each time.
      if (!Bias::kHeld && k * threads >= left) continue;
      const auto dout = stages.template at<O>(stage, k, 0);
      const auto y = stages.template at<Y>(stage, k, Stage::kDout);
      const auto w = weight.at(k, threads);
      float part_g = 0, part_gc = 0;  // so that the packs' additions do not wait for each other
      if constexpr (from_out) {
        const auto b = bias.at(k, threads);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float d = dout[j], t = y[j] - b[j];
          part_g = fmaf(d, w[j], part_g);
          part_gc = fmaf(d, t, part_gc);
          dweight[k][j] = fmaf(d, t, dweight[k][j]);
          dbias[k][j] += d;
        }
      } else {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float d = dout[j], product = d * (y[j] - mean);
          part_g = fmaf(d, w[j], part_g);
          part_gc = fmaf(product, w[j], part_gc);
          dweight[k][j] = fmaf(product, rstd, dweight[k][j]);
          dbias[k][j] += d;
        }
      }
      sum_g += part_g;
      sum_gc += part_gc;
    }
    if constexpr (from_out) {
      if (gone != 0) forget_gone(stage);
    }
    sums.send(sum_g, fmaf(sum_gc, rstd, sum_gx), turn);
  };

  const auto put_dx = [&](std::int64_t row, int stage, unsigned turn) {
    const float2 sum = sums.get(turn);
    const float mean_g = a.centered ? sum.x * inverse_C : 0.0f, mean_gx = sum.y * inverse_C;
    const float mean = stages.statistic(stage, 0), rstd = stages.statistic(stage, 1);
    const float slope = from_out ? -mean_gx : -mean_gx * rstd;
    const std::int64_t first = row * a.C + column;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      const auto dout = stages.template at<O>(stage, k, 0);
      const auto y = stages.template at<Y>(stage, k, Stage::kDout);
      const auto w = weight.at(k, threads, zero);
      float gradient[kLanes];
      if constexpr (from_out) {
        const auto b = bias.at(k, threads, zero);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float normalized = (y[j] - b[j]) * reciprocal(w[j]);
          gradient[j] = rstd * fmaf(normalized, slope, fmaf(dout[j], w[j], -mean_g));
        }
      } else {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          gradient[j] = rstd * fmaf(y[j] - mean, slope, fmaf(dout[j], w[j], -mean_g));
        }
      }
      if (a.addend) {
        const auto addend = stages.template at<X>(stage, k, Stage::kDout + Stage::kX);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) gradient[j] += addend[j];
      }
      Lanes<X, kLanes>::from_floats(gradient).store(a.dx + first + k * threads * kLanes, a.streaming);
    }
    if constexpr (from_out) {
      if (odd == 0) return;
      visit_odd(row, stage, [&](float d, float, float normalized, float w, const X* addend, int c) {
        float gradient = rstd * fmaf(normalized, slope, fmaf(d, w, -mean_g));
        if (a.addend) gradient += gpu::to_float(*addend);
        a.dx[row * a.C + c] = gpu::from_float<X>(gradient);
      });
    }
  };

  if constexpr (Form::ahead) {
    hopper::cluster_barrier();  // everybody's barriers are there
    for (int i = 0; i < stages_count - 1; ++i) copy_row(group + i * groups, i);
    __pipeline_wait_prior(stages_count - 2);
    if (group < a.N) take_sums(group, 0, 0);
    int stage = 0;
    unsigned turn = 0;
    for (std::int64_t row = group; row < a.N; row += groups, ++turn) {
      const int next = stage + 1 == stages_count ? 0 : stage + 1;
      copy_row(row + (stages_count - 1) * groups, stage == 0 ? stages_count - 1 : stage - 1);
      __pipeline_wait_prior(stages_count - 2);
      if (row + groups < a.N) take_sums(row + groups, next, turn + 1);
      put_dx(row, stage, turn);
      stage = next;
    }
  } else {
    copy_row(group, 0);
    int stage = 0;
    for (std::int64_t row = group; row < a.N; row += groups, stage ^= 1) {
      copy_row(row + groups, stage ^ 1);
      __pipeline_wait_prior(1);
      take_sums(row, stage, stage);
      // No thread reads another's places: this makes the compiler read the row again, not keep it in
      // registers.
      if constexpr (one_warp) __syncwarp();
      put_dx(row, stage, stage);
    }
  }

  __pipeline_wait_prior(0);
  if constexpr (from_out) {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      const auto w = weight.at(k, threads);
      const auto b = bias.at(k, threads);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        dweight[k][j] *= a.lost(w[j], b[j]) ? __int_as_float(0x7fffffff) : 1.0f / w[j];
      }
    }
  }
  float* part = a.parts + static_cast<std::int64_t>(blockIdx.x / cluster) * 2 * a.C;
  float* to = teams == 1 ? part : reinterpret_cast<float*>(shared);
  for (int turn = 0; turn < teams; ++turn) {
    if (teams > 1) __syncthreads();
    if (team != turn) continue;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (k * threads >= left) continue;
      float *w = to + (thread + k * threads) * kLanes, *b = w + a.C;
      if (turn > 0) {
        add_floats(dweight[k], w);
        add_floats(dbias[k], b);
      }
      gpu::store_floats(w, dweight[k]);
      gpu::store_floats(b, dbias[k]);
    }
  }
  if (teams > 1) {
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < 2 * a.C; c += static_cast<int>(blockDim.x) * 4) {
      gpu::Packed<float>::load(to + c).store(part + c);
    }
  }
  if constexpr (Form::share == Share::cluster) hopper::cluster_barrier();  // nobody is sent anything any more
}

template <class X, class P, class O, class Form, bool from_out>
__global__ void __launch_bounds__(Form::most_threads, Form::least_blocks)
    backward_wide_rows(const __grid_constant__ BackwardRows<X, P, O> a, int warps) {
#if __CUDA_ARCH__ >= 900
  constexpr bool has_clusters = true;
#else
  constexpr bool has_clusters = false;
#endif
  if constexpr (has_clusters || Form::share != Share::cluster)
    backward_of_wide_rows<X, P, O, Form, from_out>(a, warps);
}

template <class Form, bool from_out, class X, class P, class O>
void launch_wide_as(const BackwardRows<X, P, O>& a, RowShape shape, int parts, std::size_t shared,
                    cudaStream_t stream) {
  const auto kernel = backward_wide_rows<X, P, O, Form, from_out>;
  gpu::allow_shared(kernel, shared);
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(parts * shape.blocks);
  config.blockDim = static_cast<unsigned>(shape.threads());
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.blocks), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = Form::share == Share::cluster ? 1 : 0;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, kernel, a, shape.warps), "norm backward cuda.warp_row");
}

// For a shape of backward_shape's that is wide.
template <bool from_out, class X, class P, class O>
void launch_wide(const BackwardRows<X, P, O>& a, RowShape shape, int parts, std::size_t shared,
                 cudaStream_t stream) {
  if (shape.blocks > 1) {
    launch_wide_as<WideForm<3, Share::cluster>, from_out>(a, shape, parts, shared, stream);
  } else if constexpr (!from_out && sizeof(X) == 2 && sizeof(P) == 2) {
    launch_wide_as<WideForm<kWideWarpPacks, Share::warp>, from_out>(a, shape, parts, shared, stream);
  }
}

}  // namespace warpwright::ops::layernorm::cuda
