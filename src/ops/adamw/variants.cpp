#include <algorithm>
#include <array>

#include "ops/adamw/kernels.hpp"
#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "adamw";

// `narrowest`: of all tensors.
void require_fitting(const AdamWTensor& t, DType narrowest, bool masters) {
  const bool wide = size_of(narrowest) == 2 && t.parameter.dtype == DType::f32;
  const DType dtype = wide ? DType::f32 : narrowest;
  const DType accumulation = accumulation_dtype(dtype);
  const Shape& shape = t.parameter.shape;
  require_tensor(kName, "parameter", t.parameter, dtype, shape);
  require_tensor(kName, "gradient", t.gradient, accumulation, shape);
  require_tensor(kName, "m", t.m, accumulation, shape);
  require_tensor(kName, "v", t.v, accumulation, shape);
  require(!t.master || dtype != DType::f32, kName, "master stands beside an fp32 parameter");
  require(!t.master || masters, kName,
          "masters stand beside some parameters of 16 bits and not beside others");
  const bool needed = size_of(dtype) == 2 && masters;
  if (t.master || needed) require_tensor(kName, "master", t.master, accumulation, shape);
}

AdamWProblem problem_of(const AdamW& a) {
  const DType dtype = adamw_kernels::narrowest_dtype(a);
  const bool masters = !adamw_kernels::without_masters(a);
  AdamWProblem problem{0, static_cast<std::int64_t>(a.tensors.size()), dtype, masters};
  for (const AdamWTensor& t : a.tensors) {
    require_fitting(t, dtype, masters);
    problem.elements += t.parameter.elements();
  }
  require_tensor(kName, "schedule", a.schedule, accumulation_dtype(dtype), {4});
  require(masters || dtype == DType::bf16, kName, "only bf16 parameters may go without masters");
  if (!masters) require_tensor(kName, "random", a.random, DType::i32, {3});
  return problem;
}

#if WARPWRIGHT_CUDA
std::string refuse_plain(const AdamWProblem& p, const DeviceInfo& device) {
  const std::string reason = refuse_cuda(p, device);
  return reason.empty() && !p.masters ? "rounds to nearest, and there are no masters" : reason;
}
#endif

using Run = Variant<AdamWProblem, AdamW>;

constexpr std::array kVariants {
#if WARPWRIGHT_CUDA
  Run{"cuda.multi_tensor", refuse_cuda, adamw_kernels::cuda::multi_tensor},
      Run{"cuda.plain", refuse_plain, adamw_kernels::cuda::plain},
#endif
      Run{"cpu.avx512", refuse_avx512, adamw_kernels::avx512::run},
      Run{"cpu.avx2", refuse_avx2, adamw_kernels::avx2::run},
      Run{kReference, refuse_other_devices, adamw_kernels::reference},
};

}  // namespace

DType adamw_kernels::narrowest_dtype(const AdamW& a) {
  for (const AdamWTensor& t : a.tensors) {
    if (size_of(t.parameter.dtype) == 2) return t.parameter.dtype;
  }
  return a.tensors.empty() ? a.schedule.dtype : a.tensors[0].parameter.dtype;
}

bool adamw_kernels::without_masters(const AdamW& a) {
  return std::any_of(a.tensors.begin(), a.tensors.end(),
                     [](const AdamWTensor& t) { return size_of(t.parameter.dtype) == 2 && !t.master; });
}

std::string AdamWProblem::describe() const {
  return fmt::format("elements={} tensors={} {}{}", elements, tensors, name_of(dtype),
                     masters ? "" : " without masters");
}
double AdamWProblem::flops() const {
  return 15.0 * static_cast<double>(elements);
}
double AdamWProblem::bytes() const {
  const double wide = static_cast<double>(size_of(accumulation_dtype(dtype)));
  const double parameter = size_of(dtype) != 2 ? 2 * wide : masters ? 2 * wide + 2 : 2 + 2;
  return static_cast<double>(elements) * (5 * wide + parameter);
}

const Op<AdamWProblem, AdamW>& adamw_op() {
  static const Op<AdamWProblem, AdamW> op{kName, kVariants, problem_of};
  return op;
}

}  // namespace warpwright::ops
