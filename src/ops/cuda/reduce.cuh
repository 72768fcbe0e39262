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

// Reduces groups of `lanes` consecutive lanes. Every lane gets the result. All lanes get the same bits,
// because both partners of a step combine the same two numbers.
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

// Reduces over a one-dimensional block of whole warps. Every thread takes part and gets the result. `shared`
// has one element for each warp. It may be reused after the next barrier, so two arrays that are used in turn
// need only the barrier inside this function.
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
