#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/adamw/kernels.hpp"
#include "ops/adamw/rounding.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "adamw";

// narrowest: the dtype of all tensors' narrowest parameter.
void require_fitting(const AdamWTensor& t, DType narrowest, bool masters) {
  const bool wide = size_of(narrowest) == 2 && t.parameter.dtype == DType::f32;
  const DType dtype = wide ? DType::f32 : narrowest;
  const DType accumulation = accumulation_dtype(dtype);
  const Shape& shape = t.parameter.shape;
  require_tensor(kName, "parameter", t.parameter, dtype, shape);
  require_tensor(kName, "gradient", t.gradient, accumulation, shape);
  require_tensor(kName, "m", t.m, accumulation, shape);
  require_tensor(kName, "v", t.v, accumulation, shape);
  require(!t.master || dtype != DType::f32, kName, "an fp32 parameter has a master");
  require(!t.master || masters, kName, "some parameters of 16 bits have masters, and others have none");
  require(t.first % adamw_kernels::kRandomElements == 0, kName,
          "a tensor begins within a block of random bits");
  const bool needed = size_of(dtype) == 2 && masters;
  if (t.master || needed) require_tensor(kName, "master", t.master, accumulation, shape);
}

}  // namespace

AdamWProblem AdamW::problem() const {
  const DType dtype = adamw_kernels::narrowest_dtype(*this);
  const bool masters = !adamw_kernels::without_masters(*this);
  AdamWProblem made{.tensors = static_cast<std::int64_t>(tensors.size()), .dtype = dtype, .masters = masters};
  for (const AdamWTensor& t : tensors) {
    require_fitting(t, dtype, masters);
    made.elements += t.parameter.elements();
  }
  require_tensor(kName, "scalars", scalars, accumulation_dtype(dtype), {4});
  require(masters || dtype == DType::bf16, kName, "only bf16 parameters may go without masters");
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

DType adamw_kernels::narrowest_dtype(const AdamW& a) {
  for (const AdamWTensor& t : a.tensors) {
    if (size_of(t.parameter.dtype) == 2) return t.parameter.dtype;
  }
  return a.tensors.empty() ? a.scalars.dtype : a.tensors[0].parameter.dtype;
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

}  // namespace warpwright::ops
