// The products on Hopper's tensor cores as kernels of three schedules: their refusals, and the choice of the
// tile.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/matmul/cuda/parts.hpp"
#include "ops/matmul/cuda/wgmma.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

// For dbias, dw computes one partial sum of dout's columns per slab.
std::size_t row_sums_bytes(const MatmulDwProblem& p) {
  return p.bias ? static_cast<std::size_t>(ceil_div(p.M, kSlab) * p.N) * sizeof(float) : 0;
}

}  // namespace

void run(const Context& context, const MatmulForward& args, Schedule schedule, const Selection& selection) {
  wgmma_forward(context, args, schedule, selection);
}
void run(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection) {
  wgmma_dx(context, args, schedule, selection);
}
void run(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection) {
  wgmma_dw(context, args, schedule, selection);
  if (!args.dbias) return;
  const auto* sums = static_cast<const std::byte*>(context.scratch()) + selection.partial_bytes;
  total_sums(context, reinterpret_cast<const float*>(sums), ceil_div(args.x.shape[0], kSlab), args.dbias,
             args.store);
}
std::size_t workspace(const MatmulForwardProblem&, const Selection& selection) {
  return selection.partial_bytes;
}
std::size_t workspace(const MatmulDxProblem&, const Selection& selection) {
  return selection.partial_bytes;
}
std::size_t workspace(const MatmulDwProblem& p, const Selection& selection) {
  return selection.partial_bytes + row_sums_bytes(p);
}

namespace {

Refusal refuse(const Request& r, Schedule schedule, bool aligned, const DeviceInfo& device) {
  // Elements of a row of the first factor: the depth, or extent.rows in dw, whose first factor is transposed.
  const std::int64_t rows = r.direction == Direction::dw ? r.extent.rows : r.extent.depth;
  if (rows % 8 != 0 || r.extent.cols % 8 != 0) return "rows of the matrices are not multiples of 16 bytes";
  if (!aligned) return "a tensor does not begin at a multiple of 16 bytes, or one of its rows does not";
  if (!counts_in_32_bits(r.extent)) return kNot32Bits;
  if (select(r, schedule, device).tile < 0) {
    constexpr const char* kFinish[] = {"", " with a residual or a scale", " with fp32 results"};
    return fmt::format("no kernel of this schedule for {} {}{}", name_of(r.dtype), name_of(r.activation),
                       kFinish[static_cast<int>(r.finish)]);
  }
  return {};
}

// The functions of a Kernel object.
template <Schedule schedule, class Args>
struct Wgmma {
  using Problem = typename Args::Problem;

  static std::string name() { return fmt::format("cuda.{}", name_of(schedule)); }
  // The selection that the user forced or that the tuned table names; otherwise the one with the shortest
  // predicted time. The bits of a batch-invariant product must not depend on a table's numbers of rows.
  static Selection selection(const Problem& p, const DeviceInfo& device) {
    const Request request = request_of(p);
    const auto required =
        request.batch_invariant ? std::nullopt : tuned_configuration(operation_of(p), name(), p, device);
    if (required) {
      for (const Selection& s : selections(request, schedule, device)) {
        if (describe(s) == *required) return s;
      }
    }
    return select(request, schedule, device);
  }
  static std::vector<Configuration> configurations(const Problem& p, const DeviceInfo& device) {
    std::vector<Configuration> list;
    for (const Selection& s : selections(request_of(p), schedule, device)) {
      list.push_back({describe(s), s.seconds});
    }
    return list;
  }
  static Refusal refuse(const Problem& p, const DeviceInfo& device) {
    if constexpr (std::is_same_v<Args, MatmulForward>) {
      if (p.packed) return kNotPacked;
      if (p.preact && p.activation == Activation::none) return "keeps a pre-activation only of an activation";
      if (p.batch_invariant && schedule != Schedule::persistent) return kNotInvariant;
    }
    if (is_empty(p)) return kEmpty;
    return cuda::refuse(request_of(p), schedule, p.aligned, device);
  }
  static std::size_t workspace(const Problem& p, const DeviceInfo& device) {
    return cuda::workspace(p, selection(p, device));
  }
  static double cost(const Problem& p, const DeviceInfo& device) { return selection(p, device).seconds; }
  static std::string configuration(const Problem& p, const DeviceInfo& device) {
    return describe(selection(p, device));
  }
  static void run(const Context& context, const Args& args) {
    const Problem p = args.problem();
    const Extent extent = extent_of(p);
    if (extent.rows == 0 || extent.cols == 0) return;
    static constexpr char kOwner = 0;
    const Selection& selected = derived(context, &kOwner, p, [&] { return selection(p, context.device()); });
    cuda::run(context, args, schedule, selected);
  }
};

template <Schedule schedule, class Args, class Functions = Wgmma<schedule, Args>>
constexpr Kernel<Args> kKernel = {.needs = Needs::hopper,
                                  .dtypes = k16Bits,
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

WARPWRIGHT_KERNEL(MatmulForward, "cuda.block"_kernel) = kKernel<Schedule::block, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.block"_kernel) = kKernel<Schedule::block, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.block"_kernel) = kKernel<Schedule::block, MatmulDw>;
WARPWRIGHT_KERNEL(MatmulForward, "cuda.persistent"_kernel) = kKernel<Schedule::persistent, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.persistent"_kernel) = kKernel<Schedule::persistent, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.persistent"_kernel) = kKernel<Schedule::persistent, MatmulDw>;
WARPWRIGHT_KERNEL(MatmulForward, "cuda.stream_k"_kernel) = kKernel<Schedule::stream_k, MatmulForward>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.stream_k"_kernel) = kKernel<Schedule::stream_k, MatmulDx>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.stream_k"_kernel) = kKernel<Schedule::stream_k, MatmulDw>;

}  // namespace warpwright::ops
