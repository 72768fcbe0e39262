// Sums and maxima over the lanes of a warp and the warps of a block, always in the same order.
#pragma once

namespace warpwright::ops::gpu {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
  template <class T>
  static __device__ T neutral() {
    return T(0);
  }
};

struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
  template <class T>
  static __device__ T neutral() {
    return -T(INFINITY);
  }
};

// Over groups of `lanes` neighbours. Every lane gets the result, the same bits in each of them: the partners
// of a step add the same two numbers.
template <int lanes = kWarp, class T, class Operation>
__device__ T warp_reduce(T value, Operation operation) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = operation(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}
template <int lanes = kWarp, class T>
__device__ T warp_sum(T value) {
  return warp_reduce<lanes>(value, Sum());
}
template <int lanes = kWarp, class T>
__device__ T warp_max(T value) {
  return warp_reduce<lanes>(value, Max());
}

// Over a block of whole warps (a one-dimensional block), in which every thread takes part and gets the
// result. `shared` has a place for each warp; it may be used again behind the next barrier, so that two
// places used in turn need no barrier beside the one in here.
template <class T, class Operation>
__device__ T block_reduce(T value, T* shared, Operation operation) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_reduce(value, operation);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? shared[lane] : Operation::template neutral<T>(), operation);
}
template <class T>
__device__ T block_sum(T value, T* shared) {
  return block_reduce(value, shared, Sum());
}
template <class T>
__device__ T block_max(T value, T* shared) {
  return block_reduce(value, shared, Max());
}

}  // namespace warpwright::ops::gpu
