// The products on the tensor cores of compute capability 8.0 and later (mma.sync), as kernels of three
// schedules: bf16 and fp16, and fp32 if it may round to tf32. Any shape, stride and alignment works: if rows
// cannot be copied 16 bytes at a time, elements are loaded one by one. Activations and the bias's gradient
// are separate passes.
#include "ops/matmul/cuda/mma.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/matmul/cuda/parts.hpp"
#include "ops/matmul/mma_selector.hpp"

namespace warpwright::ops::matmul::cuda {
void run(const Context& context, const MatmulForward& args, Schedule schedule,
         const MmaSelection& selection) {
  mma_forward(context, args, schedule, selection, context.scratch());
  if (ends_in_a_pass(args)) finish_forward(context, args, Tensor());
}
void run(const Context& context, const MatmulDx& args, Schedule schedule, const MmaSelection& selection) {
  mma_dx(context, args, schedule, selection, context.scratch());
  if (args.activation != Activation::none) finish_dx(context, args.dx, args.preact, args.activation);
}
// The scratch holds the partial sums of tiles, then those of dout's columns.
void run(const Context& context, const MatmulDw& args, Schedule schedule, const MmaSelection& selection) {
  if (args.x.shape[1] > 0) mma_dw(context, args, schedule, selection, context.scratch());
  if (!args.dbias) return;
  auto* const sums = static_cast<std::byte*>(context.scratch()) + selection.partial_bytes;
  column_sums(context, args.dout, args.dbias, args.store, reinterpret_cast<float*>(sums));
}
std::size_t workspace(const MatmulForwardProblem&, const MmaSelection& selection) {
  return selection.partial_bytes;
}
std::size_t workspace(const MatmulDxProblem&, const MmaSelection& selection) {
  return selection.partial_bytes;
}
std::size_t workspace(const MatmulDwProblem& p, const MmaSelection& selection) {
  return selection.partial_bytes + column_sums_bytes(p.M, p.N);
}

namespace {

// The functions of a Kernel object.
template <Schedule schedule, class Args>
struct Mma {
  using Problem = typename Args::Problem;

  static std::string name() { return fmt::format("cuda.mma_{}", name_of(schedule)); }
  // The selection that the tuned table names, or the one with the shortest predicted time.
  static MmaSelection selection(const Problem& p, const DeviceInfo& device) {
    const Request request = request_of(p);
    if (const auto tuned = tuned_configuration(operation_of(p), name(), p, device)) {
      for (const MmaSelection& s : mma_selections(request, schedule, in_chunks(p), device)) {
        if (describe(s) == *tuned) return s;
      }
    }
    return select_mma(request, schedule, in_chunks(p), device);
  }
  static std::vector<Configuration> configurations(const Problem& p, const DeviceInfo& device) {
    std::vector<Configuration> list;
    for (const MmaSelection& s : mma_selections(request_of(p), schedule, in_chunks(p), device)) {
      list.push_back({describe(s), rank(device) + s.seconds});
    }
    return list;
  }
  static Refusal refuse(const Problem& p, const DeviceInfo& device) {
    if constexpr (std::is_same_v<Args, MatmulForward>) {
      if (p.packed) return kNotPacked;
      if (p.batch_invariant && schedule == Schedule::stream_k) return kNotInvariant;
    }
    if (p.dtype == DType::f32 && !device.tf32) return "rounds fp32 to tf32, which this run does not allow";
    if (schedule == Schedule::stream_k && is_empty(p)) return kEmpty;
    if (!counts_in_32_bits(extent_of(p))) return kNot32Bits;
    if (selection(p, device).tile < 0) return "no tile fits this GPU's shared memory and a grid of this size";
    return {};
  }
  static std::size_t workspace(const Problem& p, const DeviceInfo& device) {
    return cuda::workspace(p, selection(p, device));
  }
  // On Hopper, every kernel on wgmma comes first.
  static double rank(const DeviceInfo& device) { return device.gpu.major == 8 ? 0 : kCostOfMma; }
  static double cost(const Problem& p, const DeviceInfo& device) {
    return rank(device) + selection(p, device).seconds;
  }
  static std::string configuration(const Problem& p, const DeviceInfo& device) {
    return describe(selection(p, device));
  }
  static void run(const Context& context, const Args& args) {
    const Problem p = args.problem();
    const Extent extent = extent_of(p);
    const bool leaves_rest = std::is_same_v<Args, MatmulDw>;  // dbias has no columns
    if (extent.rows == 0 || (extent.cols == 0 && !leaves_rest)) return;
    static constexpr char kOwner = 0;
    const MmaSelection& selected =
        derived(context, &kOwner, p, [&] { return selection(p, context.device()); });
    cuda::run(context, args, schedule, selected);
  }
};

template <Schedule schedule, class Args, class Functions = Mma<schedule, Args>>
constexpr Kernel<Args> kKernel = {.needs = Needs::gpu,
                                  .dtypes = kGpuDTypes,
                                  .run = Functions::run,
                                  .refuse = Functions::refuse,
                                  .workspace = Functions::workspace,
                                  .cost = Functions::cost,
                                  .configuration = Functions::configuration,
                                  .configurations = Functions::configurations};

}  // namespace
}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {
using matmul::Schedule;
using matmul::cuda::kKernel;

WARPWRIGHT_KERNEL(MatmulForward, "cuda.mma_block"_kernel) = kKernel<Schedule::block, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.mma_block"_kernel) = kKernel<Schedule::block, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.mma_block"_kernel) = kKernel<Schedule::block, MatmulDw>;
WARPWRIGHT_KERNEL(MatmulForward, "cuda.mma_persistent"_kernel) = kKernel<Schedule::persistent, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.mma_persistent"_kernel) = kKernel<Schedule::persistent, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.mma_persistent"_kernel) = kKernel<Schedule::persistent, MatmulDw>;
WARPWRIGHT_KERNEL(MatmulForward, "cuda.mma_stream_k"_kernel) = kKernel<Schedule::stream_k, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.mma_stream_k"_kernel) = kKernel<Schedule::stream_k, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.mma_stream_k"_kernel) = kKernel<Schedule::stream_k, MatmulDw>;

}  // namespace warpwright::ops
