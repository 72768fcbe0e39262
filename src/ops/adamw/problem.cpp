#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/adamw/kernels.hpp"
#include "ops/adamw/rounding.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "adamw";

// The parameters' narrowest dtype.
DType narrowest_dtype(const AdamW& a) {
  for (const AdamWTensor& t : a.tensors) {
    if (t.parameter.dtype == DType::bf16) return t.parameter.dtype;
  }
  return a.tensors.empty() ? a.scalars.dtype : a.tensors[0].parameter.dtype;
}

// narrowest: the dtype of all tensors' narrowest parameter.
void require_fitting(const AdamWTensor& t, DType narrowest, bool masters) {
  const bool wide = narrowest == DType::bf16 && t.parameter.dtype == DType::f32;
  const DType dtype = wide ? DType::f32 : narrowest;
  const DType accumulation = accumulation_dtype(dtype);
  const Shape& shape = t.parameter.shape;
  require_tensor(kName, "parameter", t.parameter, dtype, shape);
  require_tensor(kName, "gradient", t.gradient, accumulation, shape);
  require_tensor(kName, "m", t.m, accumulation, shape);
  require_tensor(kName, "v", t.v, accumulation, shape);
  require(!t.remainder || masters, kName, "some bf16 parameters have masters, and others have none");
  require(t.first % adamw_kernels::kRandomElements == 0, kName,
          "a tensor begins within a block of random bits");
  // The oracle runs on an fp64 copy of a bf16 parameter, which keeps the remainder.
  require(!t.remainder || dtype != DType::f32, kName, "an fp32 parameter has a remainder");
  const bool needed = dtype == DType::bf16 && masters;
  if (t.remainder || needed) require_tensor(kName, "remainder", t.remainder, DType::i16, shape);
}

}  // namespace

AdamWProblem AdamW::problem() const {
  const DType dtype = narrowest_dtype(*this);
  const bool masters = !adamw_kernels::without_masters(*this);
  AdamWProblem made{.tensors = static_cast<std::int64_t>(tensors.size()), .dtype = dtype, .masters = masters};
  for (const AdamWTensor& t : tensors) {
    require_fitting(t, dtype, masters);
    made.elements += t.parameter.elements();
  }
  require(dtype != DType::f16, kName, "the parameters are fp16");
  require_tensor(kName, "scalars", scalars, accumulation_dtype(dtype), {4});
  if (!masters) require_tensor(kName, "random", random, DType::i32, {3});
  return made;
}

void store_host_scalars(const Tensor& host_scalars, double learning_rate, double beta1, double beta2,
                        std::int64_t step) {
  if (step < 1) throw Error(fmt::format("step is {}", step), std::string(kName), "count the steps from 1");
  const auto correction = [&](double beta) { return 1 - std::pow(beta, static_cast<double>(step)); };
  store_element(host_scalars, 0, learning_rate);
  store_element(host_scalars, 1, correction(beta1));
  store_element(host_scalars, 2, correction(beta2));
}

bool adamw_kernels::without_masters(const AdamW& a) {
  return std::any_of(a.tensors.begin(), a.tensors.end(),
                     [](const AdamWTensor& t) { return t.parameter.dtype == DType::bf16 && !t.remainder; });
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
  const double parameter = dtype != DType::bf16 ? 2 * wide : masters ? 2 * (2 + 2) : 2 * 2;
  return static_cast<double>(elements) * (5 * wide + parameter);
}

}  // namespace warpwright::ops
