// Shapes and arguments of normalizations, shared by tests and benches.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/norm/norm.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::norm {

struct Case {
  std::int64_t N, C;
  double mean = 0;  // of x; a large mean exposes a variance that is computed as E[x²] − mean²
};

// The kind of normalization, the optional tensors that are present, and their dtypes.
struct Form {
  DType dtype = DType::f32;
  bool centered = true;
  bool weight = true, bias = true;  // a bias needs centered
  bool fp32_parameters = false, fp32_out = false;
  bool statistics = true;
  Store store = Store::assign;
  bool dsum = false;
  bool narrow_gradients = false;  // dweight and dbias have the parameters' dtype
  bool residual = false, x_bias = false, sum = false;

  DType parameters() const { return fp32_parameters ? DType::f32 : dtype; }
  DType out() const { return fp32_out ? DType::f32 : dtype; }
  bool has_bias() const { return bias && centered; }
};

// Every length of a vector's tail, fewer and more rows than threads and parts, zero rows, and GPT-2's widths.
// For GPUs: rows of one warp, of several warps, of a whole block, of a cluster, and longer ones.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 8},      {3, 768},        {257, 96},   {64, 1600, 100.0}, {33, 1021},
                          {2, 8191},   {2100, 32, 5.0}, {9001, 128}, {5, 769},          {7, 1024},
                          {700, 2048}, {70, 4096},      {2, 12288},  {1, 16392},        {20, 12296},
                          {19, 40000}, {9, 2056},       {3, 3200},   {21, 5120},        {2, 10248}};
  for (std::int64_t C = 1; C <= 70; ++C) cases.push_back({1 + C % 5, C});
  return cases;
}

// For all forms except the plain one.
inline std::vector<Case> few_cases() {
  return {{0, 8}, {3, 768}, {37, 96},   {33, 1021}, {300, 40}, {2, 8192},
          {5, 1}, {9, 7},   {140, 264}, {9, 16384}, {35, 4096}};
}

// With and without a weight, with and without a bias, mixed dtypes, and every tensor that a backward can add
// to.
inline std::vector<Form> test_forms(const std::vector<DType>& dtypes, bool centered) {
  std::vector<Form> forms;
  for (const DType dtype : dtypes) {
    const bool narrow = size_of(dtype) == 2;
    Form form;
    form.dtype = dtype;
    form.centered = centered;
    form.dsum = true;
    forms.push_back(form);
    form.dsum = false;
    form.statistics = false;
    form.bias = false;
    form.narrow_gradients = true;
    if (centered) forms.push_back(form);
    form.weight = form.narrow_gradients = false;
    form.store = Store::add;
    forms.push_back(form);
    if (!narrow) continue;
    form.weight = form.bias = form.fp32_parameters = true;
    forms.push_back(form);
    form.fp32_out = true;
    form.store = Store::assign;
    forms.push_back(form);
  }
  return forms;
}

inline std::vector<Case> bench_cases() {
  return {{256, 768}, {4096, 768}, {16384, 768}, {4096, 1600}, {1024, 4096}, {256, 16384}};
}

// Rows shorter than GPT-2's, and few rows.
inline std::vector<Case> small_bench_cases() {
  return {{65536, 64}, {65536, 128}, {65536, 256}, {65536, 384}, {1, 768}, {8, 768}, {32, 4096}, {1, 16384}};
}

// The widths of GPT-2, BERT and larger models at 2^26 elements, so that nothing is found in the caches; B·T =
// 65,536 at the widths of GPT-2 124M and 1558M; a few wide rows.
inline std::vector<Case> gpu_bench_cases() {
  std::vector<Case> cases{{65536, 768}, {65536, 1600}, {1024, 12288}};
  for (const std::int64_t C : {768, 1024, 1280, 1600, 2048, 4096, 5120, 8192, 12288, 16384}) {
    cases.push_back({(std::int64_t{1} << 26) / C, C});
  }
  return cases;
}

// Rounds the elements to multiples of `step`.
inline void coarsen(const Tensor& t, float step) {
  visit_dtype(t.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* elements = t.as<T>();
    const std::int64_t count = t.elements();
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
      elements[i] = T(std::nearbyint(static_cast<float>(elements[i]) / step) * step);
    }
  });
}

// x, x_bias and residual have so few bits that their sum is exact in any dtype. The contract defines how the
// sum is rounded before the statistics are taken, and fp64 copies of the arguments cannot reproduce that
// rounding.
inline void add_residual(const Case& c, const Form& form, testing::Fixture& f, NormForward& a) {
  a.residual = f.random(form.dtype, {c.N, c.C}, 0.5);
  if (form.x_bias) a.x_bias = f.random(form.dtype, {c.C}, 0.5);
  if (form.sum) a.sum = f.output(form.dtype, {c.N, c.C});
  for (const Tensor& t : {a.x, a.residual, a.x_bias}) {
    if (t && f.with_data()) coarsen(t, c.mean > 10 ? 0.5f : 0.0625f);
  }
}

inline NormForward make_forward(const Case& c, const Form& form, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(form.dtype);
  NormForward a;
  a.centered = form.centered;
  a.x = f.random(form.dtype, {c.N, c.C}, 1, c.mean);
  if (form.residual) add_residual(c, form, f, a);
  if (form.weight) a.weight = f.random(form.parameters(), {c.C}, 0.5, 1);
  if (form.has_bias()) a.bias = f.random(form.parameters(), {c.C});
  a.out = f.output(form.out(), {c.N, c.C});
  if (form.statistics && form.centered) a.mean = f.output(accumulation, {c.N});
  if (form.statistics) a.rstd = f.output(accumulation, {c.N});
  return a;
}

// The statistics are inputs here. They are near those of x, as if they had been rounded.
inline NormBackward make_backward(const Case& c, const Form& form, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(form.dtype);
  const DType gradients = form.narrow_gradients ? form.parameters() : accumulation;
  NormBackward a;
  a.centered = form.centered;
  a.dout = f.random(form.out(), {c.N, c.C});
  a.x = f.random(form.dtype, {c.N, c.C});
  if (form.weight) a.weight = f.random(form.parameters(), {c.C}, 0.5, 1);
  if (form.centered) a.mean = f.random(accumulation, {c.N}, 0.05);
  a.rstd = f.random(accumulation, {c.N}, 0.05, 1);
  a.dx = f.output(form.dtype, {c.N, c.C}, form.store);
  if (form.weight) a.dweight = f.output(gradients, {c.C}, form.store);
  if (form.has_bias()) a.dbias = f.output(gradients, {c.C}, form.store);
  a.dx_store = a.dparameters_store = form.store;
  if (form.dsum) a.dsum = f.random(form.dtype, {c.N, c.C});
  return a;
}

}  // namespace warpwright::ops::norm
