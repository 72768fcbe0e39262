// Rotary position embedding on a GPU, 16 bytes per access. 2 passes over (N, NH, HS), in place over the R
// rotary elements of each head.
//
// An item is a slice of a head and a group of up to 4 heads of one row. The slice has two packs whose
// elements are each other's partners: packs at i and at i + R/2, or two adjacent ones if pairs are
// interleaved. A thread loads the packs of the whole group before it rotates the first, and reads cos and sin
// once for the group. A block has some rows, or one row with more items than threads. If half the rotary
// elements or the rest of a head are not whole packs, or a head does not begin at a pack, a pack is one
// element.
#include <algorithm>

#include "ops/rope/cuda/heads.cuh"
#include "ops/rope/cuda/pairs.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::rope {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 4;  // heads

// Rotates slice `slice` of heads [first, last) of row n.
template <RopeLayout layout, int L, class T>
__device__ void rotate_slice(const Heads<T>& heads, std::int64_t n, std::int64_t position, int slice,
                             int first, int last) {
  using Pack = gpu::Packed<T, L>;
  const int a = layout == RopeLayout::half ? slice * L : 2 * slice * L;
  const int b = a + (layout == RopeLayout::half ? heads.pairs : L);
  float cos[L], sin[L];
  gpu::load_floats(heads.cos + position * heads.pairs + slice * L, cos);
  gpu::load_floats(heads.sin + position * heads.pairs + slice * L, sin);
#pragma unroll
  for (int i = 0; i < L; ++i) sin[i] *= heads.sign;
  Pack packs[kGroup][2];
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    if (first + j >= last) continue;
    const T* from = heads.from_at(n, first + j);
    packs[j][0] = Pack::load_streaming(from + a);
    packs[j][1] = Pack::load_streaming(from + b);
  }
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    if (first + j >= last) continue;
    rotate_packs<layout>(packs[j][0], packs[j][1], cos, sin);
    T* to = heads.to_at(n, first + j);
    packs[j][0].store(to + a);
    packs[j][1].store(to + b);
  }
}

// Copies the pack at element `at` of heads [first, last) of row n.
template <int L, class T>
__device__ void copy_pack(const Heads<T>& heads, std::int64_t n, int at, int first, int last) {
  for (int head = first; head < last; ++head) {
    gpu::Packed<T, L>::load_streaming(heads.from_at(n, head) + at).store(heads.to_at(n, head) + at);
  }
}

// A block has blockDim.y rows. The threads of a row share its items: `slices` for each group of heads. First
// come the slices that are rotated, then the packs that are copied.
template <RopeLayout layout, int L, class T>
__global__ void __launch_bounds__(kThreads) rotate_rows(Heads<T> heads, int slices, int items) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (n >= heads.N) return;
  const std::int64_t position = heads.positions[n];
  if (!heads.has(position)) {
    if (threadIdx.x == 0) heads.report(n);
    return;
  }
  const int rotated = heads.pairs / L;
  for (int item = static_cast<int>(threadIdx.x); item < items; item += static_cast<int>(blockDim.x)) {
    const int slice = item % slices, first = item / slices * kGroup, last = min(first + kGroup, heads.NH);
    if (slice < rotated) {
      rotate_slice<layout, L>(heads, n, position, slice, first, last);
    } else {
      copy_pack<L>(heads, n, 2 * heads.pairs + (slice - rotated) * L, first, last);
    }
  }
}

template <RopeLayout layout, int L, class T>
void launch(const Heads<T>& heads, cudaStream_t stream, const char* name) {
  const int slices = (heads.pairs + heads.rest) / L;
  const int items = slices * ((heads.NH + kGroup - 1) / kGroup);
  const int threads = std::min(items, kThreads), rows = kThreads / threads;
  const auto blocks = static_cast<unsigned>((heads.N + rows - 1) / rows);
  rotate_rows<layout, L>
      <<<blocks, dim3(static_cast<unsigned>(threads), static_cast<unsigned>(rows)), 0, stream>>>(
          heads, slices, items);
  warpwright::cuda::check_launch(name);
}

bool in_packs(const RopeProblem& p) {
  const auto lanes = static_cast<std::int64_t>(16 / size_of(p.dtype));
  return p.aligned && p.R / 2 % lanes == 0 && (p.in_place || (p.HS - p.R) % lanes == 0);
}

void run(const Context& context, const Rotation& r, bool packs, const char* name) {
  visit_heads(
      r, [&]<RopeLayout layout, class T>(std::integral_constant<RopeLayout, layout>, const Heads<T>& heads) {
        if (heads.N == 0) return;
        packs ? launch<layout, gpu::kPackedLanes<T>>(heads, context.stream().get(), name)
              : launch<layout, 1>(heads, context.stream().get(), name);
      });
}

void forward(const Context& context, const RopeForward& args) {
  run(context, rotation_of(args), in_packs(args.problem()), "rope.forward cuda.packed");
}
void backward(const Context& context, const RopeBackward& args) {
  run(context, rotation_of(args), in_packs(args.problem()), "rope.backward cuda.packed");
}

std::string packs(const RopeProblem& p, const DeviceInfo&) {
  return in_packs(p) ? "16 bytes" : "elements";
}

}  // namespace
}  // namespace warpwright::ops::rope

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RopeForward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = rope::forward, .configuration = rope::packs};
WARPWRIGHT_KERNEL(RopeBackward, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = rope::backward, .configuration = rope::packs};

}  // namespace warpwright::ops
