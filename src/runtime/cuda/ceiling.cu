// The loops that measure what a GPU can do at best.
//   fp32   multiply-adds in registers, 16 chains to a thread
//   bf16   products of the tensor cores: on sm_90a from shared memory (wgmma, 64 × 256 × 64 bytes of depth,
//          two warpgroups a multiprocessor), elsewhere from registers (mma.sync); tf32 alike. mma.sync is
//          also measured by itself
//   bytes  16 to a thread and access, marked as not to be used again; the copy is CUDA's own, which is faster
// Operands are random: a GPU at its power limit multiplies zeros faster.
#include <cuda_bf16.h>

#include <algorithm>
#include <chrono>

#include "runtime/cuda/backend.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/memory.hpp"
#include "runtime/stream.hpp"

namespace warpwright::cuda {
namespace {

// The shortest time of one launch, over as many as the budget allows.
template <class Launch>
double shortest_seconds(const DeviceInfo& device, double budget, const Launch& launch) {
  constexpr int kMinRuns = 5;
  const CurrentDevice current(device.device);
  const Stream stream(device.device);
  Event start(device.device), end(device.device);
  const auto once = [&] {
    start.record(stream);
    launch(stream.get());
    check_launch("measuring the GPU's ceilings");
    end.record(stream);
    end.synchronize();
    return end.seconds_since(start);
  };
  once();  // loads the kernel
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double best = once();
  for (int run = 1; run < kMinRuns || spent() < budget; ++run) best = std::min(best, once());
  return best;
}

// In (−½, ½), different for each index.
__device__ float random_number(unsigned index) {
  unsigned x = index * 0x9e3779b9u + 0x85ebca6bu;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return static_cast<float>(x ^ (x >> 16)) * 0x1p-32f - 0.5f;
}

// Keeps a result from being optimized away.
__device__ void keep(float result, float* sink) {
  if (result == 1.2345678e33f) *sink = result;
}

constexpr int kFmaThreads = 256, kFmaBlocks = 8;  // of a multiprocessor
constexpr int kChains = 16, kFmasInARow = 16;

__global__ void __launch_bounds__(kFmaThreads) multiply_add(int iterations, float* sink) {
  float x[kChains];
  const float factor = 0.9f + random_number(blockIdx.x) * 0.01f, term = random_number(threadIdx.x);
#pragma unroll
  for (int c = 0; c < kChains; ++c) x[c] = random_number(threadIdx.x * kChains + c);
  for (int i = 0; i < iterations; ++i) {
#pragma unroll
    for (int k = 0; k < kFmasInARow; ++k) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) x[c] = fmaf(x[c], factor, term);
    }
  }
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += x[c];
  keep(sum, sink);
}

double fp32_flops(const DeviceInfo& device, double budget, float* sink) {
  constexpr int kIterations = 1000;
  const int blocks = device.gpu.multiprocessors * kFmaBlocks;
  const double seconds = shortest_seconds(device, budget, [&](cudaStream_t stream) {
    multiply_add<<<blocks, kFmaThreads, 0, stream>>>(kIterations, sink);
  });
  return 2.0 * kChains * kFmasInARow * kIterations * kFmaThreads * blocks / seconds;
}

// An iteration of a block multiplies (64, K) by (K, 256) twice, where K elements are 128 bytes.
constexpr int kProductThreads = 256;
constexpr int kM = 64, kN = 256, kDepthBytes = 128;

struct alignas(1024) Operands {
  unsigned a[kM * kDepthBytes / 4], b[kN * kDepthBytes / 4];
};

// Four bytes of operands: one tf32 or two bf16.
template <class T>
__device__ unsigned random_word(unsigned index) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(random_number(index));
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(random_number(2 * index), random_number(2 * index + 1));
    return *reinterpret_cast<const unsigned*>(&pair);
  }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Rows of 128 bytes in groups of eight, swizzled.
__device__ std::uint64_t descriptor(const void* shared) {
  constexpr std::uint64_t kGroupBytes = 1024, kSwizzle128 = std::uint64_t{1} << 62;
  const std::uint64_t address = __cvta_generic_to_shared(shared);
  return (address & 0x3ffff) >> 4 | (kGroupBytes >> 4) << 32 | kSwizzle128;
}

// d += a · b, 32 bytes of depth. The two instructions share their 128 operands.
template <class T>
__device__ void multiply(float (&d)[128], std::uint64_t a, std::uint64_t b) {
#define WARPWRIGHT_WGMMA(instruction, tail)                                                               \
  asm volatile(                                                                                           \
      instruction                                                                                         \
      " {"                                                                                                \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"    \
      "}, %128, %129, 1, 1, 1" tail ";"                                                                   \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),   \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),          \
        "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),        \
        "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),        \
        "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),        \
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),        \
        "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),        \
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),        \
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),        \
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),        \
        "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),        \
        "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),        \
        "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),        \
        "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]),        \
        "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]),  \
        "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), \
        "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), \
        "+f"(d[127])                                                                                      \
      : "l"(a), "l"(b))
  if constexpr (sizeof(T) == 2) {
    WARPWRIGHT_WGMMA("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", ", 0, 0");
  } else {
    WARPWRIGHT_WGMMA("wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32", "");
  }
#undef WARPWRIGHT_WGMMA
}

template <class T>
__device__ float products_of_shared(const Operands& operands, int iterations) {
  constexpr int kSteps = kDepthBytes / 32, kRounds = 2;
  float d[128] = {};
  const std::uint64_t a = descriptor(operands.a), b = descriptor(operands.b);
  for (int i = 0; i < iterations; i += kRounds) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < kRounds * kSteps; ++step) {
      const std::uint64_t offset = static_cast<std::uint64_t>(step % kSteps) * 32 >> 4;
      multiply<T>(d, a + offset, b + offset);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += d[i];
  return sum;
}

#endif

// d += a · b, (16, 32 bytes) by (32 bytes, 8).
template <class T>
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (sizeof(T) == 2) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

template <class T>
__device__ float products_of_registers(const Operands& operands, int iterations) {
  constexpr int kTiles = 8;
  constexpr int kRounds = 2 * (kM / 16) * (kN / 8) * (kDepthBytes / 32) / kTiles / (kProductThreads / 32);
  unsigned a[4], b[kTiles][2];
  float d[kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = operands.a[threadIdx.x * 4 + i];
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) b[i / 2][i % 2] = operands.b[threadIdx.x * 2 * kTiles + i];
  for (int i = 0; i < iterations * kRounds; ++i) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) multiply<T>(d[tile], a, b[tile]);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) sum += d[i / 4][i % 4];
  return sum;
}

// by_warps: by mma.sync even where there is wgmma.
template <class T, bool by_warps>
__global__ void __launch_bounds__(kProductThreads, 1) multiply_matrices(int iterations, float* sink) {
  __shared__ Operands operands;
  auto* words = reinterpret_cast<unsigned*>(&operands);
  for (unsigned i = threadIdx.x; i < sizeof operands / 4; i += kProductThreads) words[i] = random_word<T>(i);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (!by_warps) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    return keep(products_of_shared<T>(operands, iterations), sink);
  }
#endif
  __syncthreads();
  keep(products_of_registers<T>(operands, iterations), sink);
}

template <class T, bool by_warps = false>
double matrix_flops(const DeviceInfo& device, double budget, float* sink) {
  constexpr int kIterations = 1000;
  const double seconds = shortest_seconds(device, budget, [&](cudaStream_t stream) {
    multiply_matrices<T, by_warps>
        <<<device.gpu.multiprocessors, kProductThreads, 0, stream>>>(kIterations, sink);
  });
  constexpr double kFlops = 2.0 * 2 * kM * kN * (kDepthBytes / sizeof(T));
  return kFlops * kIterations * device.gpu.multiprocessors / seconds;
}

constexpr int kStreamThreads = 256, kAccesses = 4;        // 16 bytes each, of a thread
constexpr int kStreamBlock = kStreamThreads * kAccesses;  // float4s
constexpr int kReadBlocks = 8;                            // of kStreamBlock, read by one thread block

__global__ void __launch_bounds__(kStreamThreads) fill(float4* a) {
  const unsigned i = blockIdx.x * kStreamThreads + threadIdx.x;
  a[i] = {random_number(4 * i), random_number(4 * i + 1), random_number(4 * i + 2), random_number(4 * i + 3)};
}

// c = a + b. Every array is a multiple of kStreamBlock long.
__global__ void __launch_bounds__(kStreamThreads) add(const float4* a, const float4* b, float4* c) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kStreamBlock + threadIdx.x;
  float4 x[kAccesses], y[kAccesses];
#pragma unroll
  for (int k = 0; k < kAccesses; ++k) {
    x[k] = __ldcs(a + first + k * kStreamThreads);
    y[k] = __ldcs(b + first + k * kStreamThreads);
  }
#pragma unroll
  for (int k = 0; k < kAccesses; ++k) {
    const float4 sum = {x[k].x + y[k].x, x[k].y + y[k].y, x[k].z + y[k].z, x[k].w + y[k].w};
    __stcs(c + first + k * kStreamThreads, sum);
  }
}

__global__ void __launch_bounds__(kStreamThreads) read(const float4* a, float* sink) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kReadBlocks * kStreamBlock + threadIdx.x;
  float sum = 0;
#pragma unroll 16
  for (int k = 0; k < kReadBlocks * kAccesses; ++k) {
    const float4 x = __ldcs(a + first + k * kStreamThreads);
    sum += (x.x + x.y) + (x.z + x.w);
  }
  keep(sum, sink);
}

}  // namespace

PeakFlops measure_peak_flops(const DeviceInfo& device, double seconds) {
  const Buffer sink(sizeof(float), device.device, "measurement of the GPU's arithmetic");
  auto* result = reinterpret_cast<float*>(sink.data());
  PeakFlops peak;
  peak.fp32 = device.tf32 ? matrix_flops<float>(device, seconds / 2, result)
                          : fp32_flops(device, seconds / 2, result);
  peak.bf16 = matrix_flops<__nv_bfloat16>(device, seconds / 2, result);
  return peak;
}

double measure_mma_flops(const DeviceInfo& device, DType dtype, double seconds) {
  const Buffer sink(sizeof(float), device.device, "measurement of the GPU's arithmetic");
  auto* result = reinterpret_cast<float*>(sink.data());
  return dtype == DType::f32 ? matrix_flops<float, true>(device, seconds, result)
                             : matrix_flops<__nv_bfloat16, true>(device, seconds, result);
}

Bandwidth measure_bandwidth(const DeviceInfo& device, std::size_t working_set, double seconds) {
  constexpr std::size_t kLeast = std::size_t{1} << 30;
  constexpr std::size_t kUnit = 3 * kReadBlocks * kStreamBlock;  // float4s; the arrays are halves and thirds
  const std::size_t units = std::max(working_set, kLeast) / sizeof(float4) / (2 * kUnit) * 2;
  const std::size_t count = units * kUnit, blocks = count / kStreamBlock;
  const Buffer buffer(count * sizeof(float4), device.device, "bandwidth measurement");
  auto* a = reinterpret_cast<float4*>(buffer.data());
  auto* sink = reinterpret_cast<float*>(buffer.data());
  const auto bytes = static_cast<double>(count * sizeof(float4));
  const auto rate = [&](const auto& launch) { return bytes / shortest_seconds(device, seconds / 3, launch); };
  const auto grid = [](std::size_t n) { return static_cast<unsigned>(n); };

  shortest_seconds(device, 0,
                   [&](cudaStream_t s) { fill<<<grid(count / kStreamThreads), kStreamThreads, 0, s>>>(a); });
  Bandwidth bandwidth;
  bandwidth.copy = rate([&](cudaStream_t s) {
    cudaMemcpyAsync(a + count / 2, a, count / 2 * sizeof(float4), cudaMemcpyDeviceToDevice, s);
  });
  bandwidth.mixed = rate([&](cudaStream_t s) {
    add<<<grid(blocks / 3), kStreamThreads, 0, s>>>(a, a + count / 3, a + 2 * (count / 3));
  });
  bandwidth.read =
      rate([&](cudaStream_t s) { read<<<grid(blocks / kReadBlocks), kStreamThreads, 0, s>>>(a, sink); });
  return bandwidth;
}

}  // namespace warpwright::cuda
