// Two sums over the threads that share a row of the backward. They are computed in two steps, send() and
// get(), and a thread may do other work between them.
#pragma once

#include "ops/cuda/hopper/barrier.cuh"
#include "ops/norm/cuda/row_sums.cuh"

namespace warpwright::ops::norm::cuda {

__device__ inline int rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));  // volatile: occupies no register
  return static_cast<int>(rank);
}
__device__ inline int blocks_of_cluster() {
  unsigned blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return static_cast<int>(blocks);
}

// The turns of a thread's sums are numbered 0, 1, 2, …
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

// Two arrays are used in turn. Between two uses of one lies the barrier of the other.
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

// Every warp sends its part to each block of the cluster. Four arrays are used in turn. A warp sends its part
// for turn t after it has read the sums of turn t − 2. These contain the parts of all warps, and each warp
// sent its part for turn t − 2 only after it had read the sums of turn t − 4. Nobody therefore still reads
// the array that turn t overwrites.
template <>
class SumOfBoth<Share::cluster> {
 public:
  static constexpr int kPlaces = 4;
  struct Shared {
    float2 parts[kPlaces][kMostBlocks * kMostClusterWarps];
    hopper::Barrier barriers[kPlaces];
  };

  // The caller must synchronize the cluster before anything is sent.
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

}  // namespace warpwright::ops::norm::cuda
