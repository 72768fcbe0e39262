// Groups that share the queries of a tile. Each has a part of the keys.
#pragma once

#include "ops/attention/cuda/sm90/forward_producer.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// Hands the sums of a group to the first group, at the end of its keys. Jobs alternate between two stages, so
// the stage of a job is also the phase of these barriers.
template <class S>
__device__ void hand_over_share(const float (&o)[S::kHeadSize / 2], const float (&largest)[2],
                                const float (&sum)[2], const ForwardMemory<S>& memory, int share,
                                const JobCursor& job, const Lane& lane) {
  constexpr int kSums = S::kHeadSize / 2, kNumbers = shared_numbers(S::kHeadSize);
  float* const mine = memory.sums + (share - 1) * kNumbers * kGroupThreads + lane.thread;
  wait(&memory.channels.sums_empty, job.stage ^ 1);
#pragma unroll
  for (int i = 0; i < kSums; ++i) mine[i * kGroupThreads] = o[i];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    mine[(kSums + r) * kGroupThreads] = largest[r];
    mine[(kSums + 2 + r) * kGroupThreads] = sum[r];
  }
  arrive(&memory.channels.sums_full);
}

// Adds the other groups' sums to those of the first group.
template <class S>
__device__ void add_shares(float (&o)[S::kHeadSize / 2], float (&largest)[2], float (&sum)[2],
                           const ForwardMemory<S>& memory, float scale2, const JobCursor& job,
                           const Lane& lane) {
  constexpr int kSums = S::kHeadSize / 2, kNumbers = shared_numbers(S::kHeadSize);
  wait(&memory.channels.sums_full, job.stage);
#pragma unroll
  for (int other = 1; other < S::kShares; ++other) {
    const float* const theirs = memory.sums + (other - 1) * kNumbers * kGroupThreads + lane.thread;
    float mine_shrinks[2], theirs_shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float their_largest = theirs[(kSums + r) * kGroupThreads];
      const float top = fmaxf(largest[r], their_largest);
      const float base = top == -INFINITY ? 0.0f : top * scale2;
      mine_shrinks[r] = exp2_fast(largest[r] * scale2 - base);
      theirs_shrink[r] = exp2_fast(their_largest * scale2 - base);
      largest[r] = top;
      sum[r] = sum[r] * mine_shrinks[r] + theirs[(kSums + 2 + r) * kGroupThreads] * theirs_shrink[r];
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      o[i] = o[i] * mine_shrinks[i / 2 % 2] + theirs[i * kGroupThreads] * theirs_shrink[i / 2 % 2];
    }
  }
  arrive(&memory.channels.sums_empty);
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
