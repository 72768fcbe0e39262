// The backward of a normalization with a row in the hands of a warp, of a block's warps, or of a cluster of
// blocks. Rows arrive in shared memory ahead of their turn, since dweight and dbias take the registers.
// Memory-bound: 3 passes of the tensor (dout, x or out, dx; 4 where something is added), and for each block
// or cluster a row of 2·C floats, its part of dweight and dbias, which column_sums.cuh adds up. What is short
// apart from bandwidth are places for instructions: all that a warp has in shared memory is at constant
// distances from two addresses, and weights are floats in registers from before the first row on.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "ops/cuda/hopper/barrier.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/layernorm/cuda/column_sums.cuh"
#include "ops/layernorm/cuda/lost_columns.cuh"
#include "ops/layernorm/cuda/rows.cuh"

namespace warpwright::ops::layernorm::cuda {

// A lane's packs of the rows of between 6 and 7 packs a lane that a warp has, and the blocks that a
// multiprocessor then has.
inline constexpr int kWideWarpPacks = 7, kWideWarpBlocks = 2;
// The warps of a multiprocessor that have a row each, or a part of one; and those if rows are roomy, and a
// thread has three packs.
inline constexpr int kBackwardWarps = 16, kRoomyWarps = 12;
inline constexpr int kMostBlocks = 8, kMostClusterWarps = 11;  // of a cluster; of each of its blocks
// Rows for which there is room in shared memory: in general, and if a cluster has them.
inline constexpr int kBackwardStages = 2, kClusterStages = 3;

// True where there are few kernels, as they are seldom used: with fp32 parameters for 16 bits, but for a
// backward from the input whose out is 16 bits too.
constexpr bool few_backward_kernels(bool fp32_parameters, bool from_out, bool fp32_out) {
  return fp32_parameters && (from_out || fp32_out);
}

// dtypes of x, of the parameters and of out.
template <class X, class P, class O>
struct BackwardRows {
  const O *dout, *out;  // out: in place of x
  const X *x, *addend;  // what dx is added to, or null; may be dx
  const P *weight, *bias;
  const float *mean, *rstd;
  X* dx;
  float* parts;  // (blocks or clusters, 2, C)
  KeptColumns<X> kept;
  LostRule<float> lost;
  std::int64_t N;
  int C;
  bool centered, streaming;
};

// Who has a row, how many packs of it a lane has, and whether in few enough warps (RowShape::roomy) to keep
// them in registers from one pass to the other, and the bias from row to row. Plain: rows are not centered
// and have no bias.
enum class Share { warp, block, cluster };
template <int packs_, Share share_, bool roomy_ = false, bool plain_ = false>
struct BackwardForm {
  static constexpr int packs = packs_;
  static constexpr Share share = share_;
  static constexpr bool one_warp = share == Share::warp, roomy = roomy_, plain = plain_;
  // A cluster takes the sums of the next row before it computes dx of the present one, which hides the time
  // that sums take from block to block.
  static constexpr bool ahead = share == Share::cluster;
  static constexpr bool keeps = roomy && !ahead;
  static constexpr int stages = ahead ? kClusterStages : kBackwardStages;
  static constexpr int warps = roomy && packs > 2 ? kRoomyWarps : kBackwardWarps;  // of a multiprocessor
  static constexpr int most_threads = one_warp ? kOneWarpThreads : warps * gpu::kWarp;
  static constexpr int least_blocks =
      packs == kWideWarpPacks ? kWideWarpBlocks : warps * gpu::kWarp / most_threads;
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
  struct Shared {};

  __device__ SumOfBoth(Shared*, int) {}
  __device__ void send(float a, float b, unsigned) { sum_ = to_every_lane(warp_sum_of_both(a, b)); }
  __device__ float2 get(unsigned) const { return sum_; }

 private:
  float2 sum_;
};

// Two places in turn: between two uses of one lies the barrier of the other.
template <>
class SumOfBoth<Share::block> {
 public:
  struct alignas(16) Shared {
    float2 parts[2][kMostWarps];
  };

  __device__ SumOfBoth(Shared* shared, int warps) : shared_(shared), warps_(warps) {
    if (threadIdx.x < 2 * kMostWarps) (&shared_->parts[0][0])[threadIdx.x] = {0, 0};
    __syncthreads();
  }
  __device__ void send(float a, float b, unsigned turn) {
    put_part_of_both(a, b, shared_->parts[turn % 2]);
    __syncthreads();
  }
  __device__ float2 get(unsigned turn) const { return sum_parts_of_both(shared_->parts[turn % 2], warps_); }

 private:
  Shared* shared_;
  int warps_;
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
    return to_every_lane(warp_sum_of_both(sum.x, sum.y));
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

template <int N>
__device__ void add_floats(float (&to)[N], const float* p) {
  float values[N];
  gpu::load_floats(p, values);
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] += values[j];
}

// One 16-byte unit of each of a warp's lanes after the other, in shared memory: a pack of T is N / kEach of
// them. `p` is the lane's place in the first.
template <class T, int N>
__device__ Lanes<T, N> lanes_from_shared(const uint4* p) {
  Lanes<T, N> lanes;
#pragma unroll
  for (int i = 0; i < Lanes<T, N>::kUnits; ++i) {
    lanes.units[i] = *reinterpret_cast<const typename Lanes<T, N>::Unit*>(p + i * gpu::kWarp);
  }
  return lanes;
}
template <class T, int N>
__device__ void lanes_to_shared(uint4* p, const float (&values)[N]) {
  const auto lanes = Lanes<T, N>::from_floats(values);
#pragma unroll
  for (int i = 0; i < Lanes<T, N>::kUnits; ++i) {
    *reinterpret_cast<typename Lanes<T, N>::Unit*>(p + i * gpu::kWarp) = lanes.units[i];
  }
}
template <class T, int N>
__device__ void copy_to_shared(uint4* p, const T* from, std::uint64_t priority) {
#pragma unroll
  for (int i = 0; i < Lanes<T, N>::kUnits; ++i) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     gpu::shared_address(p + i * gpu::kWarp)),
                 "l"(from + i * Lanes<T, N>::kEach), "l"(priority)
                 : "memory");
  }
}

// A lane's part of shared memory: its places in the rows that arrive, and, from the output, floats or
// parameters of its columns. Each thread copies and reads places of its own, so that waiting for its own
// copies is all that is needed. The statistics come the same way, to each thread: in registers they would be
// waited for where a register is short.
template <class X, class P, class O, class Form, bool from_out>
struct BackwardShared {
  using Y = std::conditional_t<from_out, O, X>;
  static constexpr int kLanes = gpu::kPackedLanes<X>, packs = Form::packs, kWarp = gpu::kWarp;
  static constexpr int kDout = Lanes<O, kLanes>::kUnits, kUnits = kDout + Lanes<Y, kLanes>::kUnits;
  static constexpr int kStage = packs * kUnits * kWarp;  // of a warp
  static constexpr int kFloats = kLanes / 4 * kWarp, kBias = Lanes<P, kLanes>::kUnits * kWarp;
  static constexpr bool kBiasInShared = !Form::roomy || sizeof(P) != sizeof(X);

  uint4* rows;               // (warps, stages, packs, units, lanes)
  float2* statistics;        // (warps, stages, lanes): mean, rstd
  uint4* inverse = nullptr;  // (warps of a row, packs, lanes) floats: 1/weight
  uint4* bias = nullptr;
  uint4* addends;  // (warps, stages, packs, lanes)

  __device__ BackwardShared(uint4* shared, int warps, int warp, int lane) {
    const int tables = Form::one_warp ? 1 : warps, table = Form::one_warp ? 0 : warp;
    const auto take = [&](int of, int which, int units) {
      uint4* place = shared + which * units + lane;
      shared += of * units;
      return place;
    };
    rows = take(warps, warp, Form::stages * kStage);
    statistics = reinterpret_cast<float2*>(shared) + warp * Form::stages * kWarp + lane;
    shared += warps * Form::stages * kWarp / 2;
    if constexpr (from_out) {
      inverse = take(tables, table, packs * kFloats);
      if constexpr (kBiasInShared) bias = take(tables, table, packs * kBias);
    }
    addends = take(warps, warp, Form::stages * packs * kWarp);
  }
  __device__ uint4* at(int stage, int k, int unit) const {
    return rows + stage * kStage + (k * kUnits + unit) * kWarp;
  }
};

// Persistent, with a grid that is a function of problem and device alone: a thread adds up dweight and dbias
// of its columns over its group's rows in registers, then the groups of a block add theirs in order.
// From the output, t = out − bias stands in for x̂ = t/weight: Σ g·x̂ = Σ dout·t, dweight = Σ dout·t / weight.
// If a column is lost and kept, x̂ (rounded to out's dtype, as all of out is) takes the place of out, its
// bias is 0 and its inverse weight 1 (put_kept_sums computes its dweight anew); where it is lost and not
// kept, its inverse weight is NaN.
template <class X, class P, class O, class Form, bool from_out>
__device__ void backward_of_rows(const BackwardRows<X, P, O>& a, int warps) {
  using Shared = BackwardShared<X, P, O, Form, from_out>;
  using Sums = SumOfBoth<Form::share>;
  using Y = typename Shared::Y;
  constexpr bool one_warp = Form::one_warp;
  constexpr int packs = Form::packs, stages = Form::stages;
  constexpr int kLanes = Shared::kLanes, kDout = Shared::kDout, kStep = gpu::kWarp * kLanes;
  constexpr bool kHeld = !few_backward_kernels(sizeof(P) != sizeof(X), from_out, sizeof(O) != sizeof(X));
  // Weights of 16 bits that are held as they came leave room for out − bias from pass to pass, where dout has
  // none.
  constexpr bool kPacked =
      from_out && kHeld && sizeof(X) == 2 && packs == 3 && Form::share == Share::block && !Form::roomy;
  constexpr bool kKeepsY = Form::keeps || kPacked;
  __shared__ typename Sums::Shared shared_sums;
  extern __shared__ uint4
      shared[];  // BackwardShared; at the end (2, C) floats where warps have rows of their own

  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp,
            warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const int block_warps = one_warp ? kOneWarpThreads / gpu::kWarp : warps;
  const Shared mine(shared, block_warps, warp, lane);
  int rank = 0, cluster = 1;
  if constexpr (Form::share == Share::cluster) {
    rank = rank_in_cluster();
    cluster = blocks_of_cluster();
  }
  // A warp's packs of a row are neighbours.
  const int first_pack = (one_warp ? 0 : (rank * warps + warp) * packs * gpu::kWarp) + lane;
  const int column = first_pack * kLanes, left = a.C / kLanes - first_pack;
  const int teams = one_warp ? block_warps : 1, team = one_warp ? warp : 0;
  const int groups = static_cast<int>(gridDim.x) / cluster * teams,
            group = static_cast<int>(blockIdx.x) / cluster * teams + team;
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  const auto inside = [&](int k) { return k * gpu::kWarp < left; };

  // The first rows are on their way while the parameters are read.
  for (int i = 0; i < stages * packs * Shared::kUnits; ++i) mine.rows[i * gpu::kWarp] = uint4{0, 0, 0, 0};
  for (int i = 0; i < stages; ++i) mine.statistics[i * gpu::kWarp].x = 0;
  const std::uint64_t priority = l2_priority(a.streaming);
  const auto copy_row = [&](std::int64_t row, int stage) {
    if (row < a.N) {
      const std::int64_t first = row * a.C + column;
      const O* dout = a.dout + first;
      const Y* y;
      if constexpr (from_out) {
        y = a.out + first;
      } else {
        y = a.x + first;
      }
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        if (!inside(k)) continue;
        copy_to_shared<O, kLanes>(mine.at(stage, k, 0), dout + k * kStep, priority);
        copy_to_shared<Y, kLanes>(mine.at(stage, k, kDout), y + k * kStep, priority);
      }
      if (a.addend) {
#pragma unroll
        for (int k = 0; k < packs; ++k) {
          if (!inside(k)) continue;
          copy_to_shared<X, kLanes>(mine.addends + (stage * packs + k) * gpu::kWarp,
                                    a.addend + first + k * kStep, priority);
        }
      }
      float2* statistic = mine.statistics + stage * gpu::kWarp;
      if (a.mean) __pipeline_memcpy_async(&statistic->x, a.mean + row, sizeof(float));
      __pipeline_memcpy_async(&statistic->y, a.rstd + row, sizeof(float));
    }
    __pipeline_commit();
  };
  for (int i = 0; i < stages - 1; ++i) copy_row(group + i * groups, i);

  Sums sums(&shared_sums, warps);
  // Held as floats or as they came, or read again for each row, from the first-level cache, in the few
  // kernels.
  [[maybe_unused]] float weights[packs][kLanes];
  Lanes<P, kLanes> packed_weights[packs];
  Lanes<P, kLanes> biases[packs];  // where they are not in shared memory: 0 behind the row's end
  if constexpr (from_out) {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      biases[k] = a.bias && inside(k) ? Lanes<P, kLanes>::load(a.bias + column + k * kStep)
                                      : Lanes<P, kLanes>::filled(0);
    }
  }
  const auto read_weight = [&](int k) {
    packed_weights[k] = a.weight && inside(k) ? Lanes<P, kLanes>::load(a.weight + column + k * kStep)
                                              : Lanes<P, kLanes>::filled(1);
  };
  if constexpr (kHeld) {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      read_weight(k);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        weights[k][j] = packed_weights[k][j];
        if constexpr (!kPacked) asm volatile("" : "+f"(weights[k][j]));  // not to be converted anew
      }
    }
  }
  const auto weight_of = [&](int k, float(&to)[kLanes]) {
    if constexpr (!kHeld) read_weight(k);
    if constexpr (kPacked) packed_weights[k].forget();
#pragma unroll
    for (int j = 0; j < kLanes; ++j) to[j] = kHeld && !kPacked ? weights[k][j] : packed_weights[k][j];
  };
  const auto floats_of = [&](const uint4* table, int k, float(&to)[kLanes]) {
    const auto floats = lanes_from_shared<float, kLanes>(table + k * Shared::kFloats);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) to[j] = floats[j];
  };
  float dweight[packs][kLanes] = {}, dbias[packs][kLanes] = {};
  unsigned kept = 0;  // a bit for each lane of each pack
  if constexpr (from_out) {
    static_assert(packs * kLanes <= 32);
    const int places = a.kept.places();
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(k)) continue;
      float w[kLanes], inverses[kLanes], shifts[kLanes];
      weight_of(k, w);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        inverses[j] = 1.0f / w[j];
        shifts[j] = biases[k][j];
        if (a.lost(w[j], biases[k][j])) {
          const bool has_place = a.kept.place(column + k * kStep + j, places) >= 0;
          inverses[j] = has_place ? 1.0f : __int_as_float(0x7fffffff);
          if (has_place) {
            shifts[j] = 0;
            kept |= 1u << (k * kLanes + j);
          }
        }
      }
      biases[k] = Lanes<P, kLanes>::from_floats(shifts);
      if (one_warp && warp > 0) continue;
      lanes_to_shared<float>(mine.inverse + k * Shared::kFloats, inverses);
      if constexpr (Shared::kBiasInShared) lanes_to_shared<P>(mine.bias + k * Shared::kBias, shifts);
    }
    if constexpr (one_warp) __syncthreads();
  }
  const auto bias_of = [&](int k) {
    if constexpr (Shared::kBiasInShared) {
      return lanes_from_shared<P, kLanes>(mine.bias + k * Shared::kBias);
    } else {
      biases[k].forget();
      return biases[k];
    }
  };
  // Puts x̂ of the kept columns in the place of out. Returns what Σ dout·t then lacks of Σ g·x̂.
  const auto patch = [&](std::int64_t row, int stage, float2 statistic) {
    constexpr int kEach = Lanes<O, kLanes>::kEach;
    const int places = a.kept.places();
    float lacking = 0;
    for (unsigned bits = kept; bits != 0; bits &= bits - 1) {
      const int bit = __ffsll(bits) - 1, k = bit / kLanes, j = bit % kLanes;
      const int c = column + k * kStep + j;
      const float x = gpu::to_float(a.kept.values[row * a.kept.capacity + a.kept.place(c, places)]);
      auto* y = reinterpret_cast<O*>(mine.at(stage, k, kDout + j / kEach)) + j % kEach;
      *y = gpu::from_float<O>((x - statistic.x) * statistic.y);
      const O dout = reinterpret_cast<const O*>(mine.at(stage, k, j / kEach))[j % kEach];
      const float w = a.weight ? gpu::to_float(a.weight[c]) : 1.0f;
      lacking += gpu::to_float(dout) * gpu::to_float(*y) * (w - 1);
    }
    asm volatile("" ::: "memory");  // the row is read in other units than it was patched in
    return lacking;
  };

  // Kept numbers of a row, all of them in a line or few, on their way to the L2 while the rows before it are
  // worked on.
  const auto patch_soon = [&](std::int64_t row) {
    if (row >= a.N) return;
    constexpr int kLine = 128 / sizeof(X);
    const X* values = a.kept.values + row * a.kept.capacity;
    for (int i = 0; i < a.kept.places(); i += kLine)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(values + i));
  };

  // Behind the row's end there are zeros, weights of 1, and nothing else but what a bias in shared memory is.
  constexpr bool kEverywhere = kHeld && !(from_out && Shared::kBiasInShared) && packs < kWideWarpPacks;
  float kept_dout[packs][kLanes],
      kept_y[packs][kLanes];  // from pass to pass: dout, and x − mean or out − bias
  // For a row that has arrived: its part of dweight and dbias, and both sums on their way.
  const auto take_sums = [&](std::int64_t row, int stage, unsigned turn) {
    const float2 statistic = mine.statistics[stage * gpu::kWarp];
    float sum_g = 0, sum_gx = 0;
    if constexpr (from_out) {
      if (kept != 0) sum_gx = patch(row, stage, statistic);
    }
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!kEverywhere && !inside(k)) continue;
      const auto dout = lanes_from_shared<O, kLanes>(mine.at(stage, k, 0));
      const auto y = lanes_from_shared<Y, kLanes>(mine.at(stage, k, kDout));
      float w[kLanes];
      weight_of(k, w);
      float part_g = 0, part_gx = 0;  // so that the packs' additions do not wait for each other
      if constexpr (from_out) {
        Lanes<P, kLanes> b;
        if constexpr (!Form::plain) b = bias_of(k);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float d = dout[j], t = Form::plain ? y[j] : y[j] - b[j];
          if constexpr (Form::keeps) kept_dout[k][j] = d;
          if constexpr (kKeepsY) kept_y[k][j] = t;
          if constexpr (!Form::plain) part_g = fmaf(d, w[j], part_g);
          part_gx = fmaf(d, t, part_gx);
          dweight[k][j] = fmaf(d, t, dweight[k][j]);
          if constexpr (!Form::plain) dbias[k][j] += d;
        }
      } else {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float d = dout[j], t = Form::plain ? y[j] : y[j] - statistic.x;
          const float normalized = t * statistic.y, g = d * w[j];
          if constexpr (Form::keeps) kept_dout[k][j] = d;
          if constexpr (kKeepsY) kept_y[k][j] = t;
          if constexpr (!Form::plain) part_g += g;
          part_gx = fmaf(g, normalized, part_gx);
          dweight[k][j] = fmaf(d, normalized, dweight[k][j]);
          if constexpr (!Form::plain) dbias[k][j] += d;
        }
      }
      sum_g += part_g;
      sum_gx += part_gx;
    }
    sums.send(sum_g, sum_gx, turn);
  };

  const auto put_dx = [&](std::int64_t row, int stage, unsigned turn) {
    const float2 sum = sums.get(turn), statistic = mine.statistics[stage * gpu::kWarp];
    const float mean = statistic.x, rstd = statistic.y;
    const float mean_g = !Form::plain && a.centered ? sum.x * inverse_C : 0.0f, mean_gx = sum.y * inverse_C;
    const float slope = from_out ? -mean_gx : -mean_gx * rstd;
    X* dx = a.dx + row * a.C + column;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(k)) continue;
      float w[kLanes], gradient[kLanes], d[kLanes], t[kLanes];
      const auto dout = lanes_from_shared<O, kLanes>(mine.at(stage, k, 0));
      const auto y = lanes_from_shared<Y, kLanes>(mine.at(stage, k, kDout));
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        d[j] = Form::keeps ? kept_dout[k][j] : dout[j];
        t[j] = kKeepsY ? kept_y[k][j] : Form::plain ? y[j] : y[j] - mean;
      }
      if constexpr (from_out && !Form::plain && !kKeepsY) {
        const auto b = bias_of(k);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) t[j] = y[j] - b[j];
      }
      weight_of(k, w);
      if constexpr (from_out) {
        float inverses[kLanes];
        floats_of(mine.inverse, k, inverses);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) t[j] *= inverses[j];
      }
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float g = Form::plain ? d[j] * w[j] : fmaf(d[j], w[j], -mean_g);
        gradient[j] = rstd * fmaf(t[j], slope, g);
      }
      if (a.addend) {
        const auto addend = lanes_from_shared<X, kLanes>(mine.addends + (stage * packs + k) * gpu::kWarp);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) gradient[j] += addend[j];
      }
      Lanes<X, kLanes>::from_floats(gradient).store(dx + k * kStep, a.streaming);
    }
  };

  if constexpr (Form::share == Share::cluster) hopper::cluster_barrier();  // everybody's barriers are there
  if constexpr (Form::ahead) {
    __pipeline_wait_prior(stages - 2);
    if (group < a.N) take_sums(group, 0, 0);
  }
  int stage = 0;
  unsigned turn = 0;
  for (std::int64_t row = group; row < a.N; row += groups, ++turn) {
    const int next = stage + 1 == stages ? 0 : stage + 1;
    copy_row(row + static_cast<std::int64_t>(stages - 1) * groups, stage == 0 ? stages - 1 : stage - 1);
    if constexpr (from_out) {
      if (kept != 0) patch_soon(row + static_cast<std::int64_t>(stages - 1) * groups);
    }
    if constexpr (Form::ahead) {
      __pipeline_wait_prior(stages - 2);
      if (row + groups < a.N) take_sums(row + groups, next, turn + 1);
    } else {
      __pipeline_wait_prior(stages - 1);
      take_sums(row, stage, turn);
      // No thread reads another's places: this makes the compiler read the row again, not keep it in
      // registers.
      if constexpr (one_warp) __syncwarp();
    }
    put_dx(row, stage, turn);
    stage = next;
  }

  __pipeline_wait_prior(0);
  if constexpr (from_out) {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(k)) continue;
      float inverses[kLanes];
      floats_of(mine.inverse, k, inverses);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) dweight[k][j] *= inverses[j];
    }
  }
  float* part = a.parts + static_cast<std::int64_t>(blockIdx.x / cluster) * 2 * a.C;
  float* to = one_warp ? reinterpret_cast<float*>(shared) : part;
  for (int turn_of = 0; turn_of < teams; ++turn_of) {
    if constexpr (one_warp) __syncthreads();
    if (team != turn_of) continue;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      if (!inside(k)) continue;
      float *w = to + column + k * kStep, *b = w + a.C;
      if (turn_of > 0) {
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
      gpu::Packed<float>::load(to + c).store(part + c);
    }
  }
  if constexpr (Form::share == Share::cluster) hopper::cluster_barrier();  // nobody is sent anything any more
}

template <class X, class P, class O, class Form, bool from_out>
__global__ void __launch_bounds__(Form::most_threads, Form::least_blocks)
    backward_rows(const __grid_constant__ BackwardRows<X, P, O> a, int warps) {
#if __CUDA_ARCH__ >= 900
  constexpr bool has_clusters = true;
#else
  constexpr bool has_clusters = false;
#endif
  if constexpr (has_clusters || Form::share != Share::cluster) {
    backward_of_rows<X, P, O, Form, from_out>(a, warps);
  }
}

// The shape of a row, the parts, and the bytes of shared memory for that.
struct BackwardLaunch {
  RowShape shape;
  int parts;
  std::size_t shared;
};

template <class Form, bool from_out, class X, class P, class O>
void launch_backward_as(const BackwardRows<X, P, O>& a, const BackwardLaunch& launch, cudaStream_t stream) {
  const auto kernel = backward_rows<X, P, O, Form, from_out>;
  gpu::allow_shared(kernel, launch.shared);
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(launch.parts * launch.shape.blocks);
  config.blockDim = static_cast<unsigned>(launch.shape.threads());
  config.dynamicSmemBytes = launch.shared;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(launch.shape.blocks), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = Form::share == Share::cluster ? 1 : 0;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, kernel, a, launch.shape.warps),
                          "norm backward cuda.warp_row");
}

// For a shape that warp_row_backward.cu gives.
template <bool from_out, class X, class P, class O>
void launch_backward(const BackwardRows<X, P, O>& a, const BackwardLaunch& launch, cudaStream_t stream) {
  const auto as = [&]<int packs, Share share, bool roomy = false, bool plain = false>() {
    launch_backward_as<BackwardForm<packs, share, roomy, plain>, from_out>(a, launch, stream);
  };
  const bool plain = !a.centered && !a.bias;  // its own kernels where it makes a difference
  const auto [packs, warps, blocks, roomy] = launch.shape;
  if constexpr (few_backward_kernels(sizeof(P) != sizeof(X), from_out, sizeof(O) != sizeof(X))) {
    if (blocks > 1) return as.template operator()<3, Share::cluster>();
    return warps == 1 ? as.template operator()<3, Share::warp>() : as.template operator()<3, Share::block>();
  } else {
    if (blocks > 1 && plain) {
      return roomy ? as.template operator()<3, Share::cluster, true, true>()
                   : as.template operator()<3, Share::cluster, false, true>();
    }
    if (blocks > 1) {
      return roomy ? as.template operator()<3, Share::cluster, true>()
                   : as.template operator()<3, Share::cluster>();
    }
    if (warps == 1) {
      switch (packs) {
        case 1:
          return as.template operator()<1, Share::warp>();
        case 2:
          return as.template operator()<2, Share::warp>();
        case 3:
          return as.template operator()<3, Share::warp, sizeof(X) == 2>();
        default:
          if constexpr (!from_out && sizeof(X) == 2) as.template operator()<kWideWarpPacks, Share::warp>();
          return;
      }
    }
    switch (packs) {
      case 2:
        if constexpr (from_out) {
          if (plain) return as.template operator()<2, Share::block, true, true>();
        }
        return as.template operator()<2, Share::block, true>();
      case 3:
        if constexpr (from_out) {
          if (roomy && plain) return as.template operator()<3, Share::block, true, true>();
        }
        return roomy ? as.template operator()<3, Share::block, true>()
                     : as.template operator()<3, Share::block>();
      default:
        return as.template operator()<4, Share::block>();
    }
  }
}

}  // namespace warpwright::ops::layernorm::cuda
