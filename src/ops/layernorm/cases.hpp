// Shapes and arguments of normalizations, shared by the tests and benches of ops/layernorm, ops/rmsnorm and
// the fused operations.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/layernorm/layernorm.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::layernorm {

struct Case {
  std::int64_t N, C;
  double mean = 0;  // of x: a large one shows E[x²] − mean² for what it is
};

// Which of the tensors there are, and of which dtypes beside x.
struct Form {
  DType dtype = DType::f32;
  bool weight = true, bias = true;
  bool fp32_parameters = false, fp32_out = false;
  bool statistics = true;
  Store store = Store::assign;
  bool dsum = false;
  bool narrow_gradients = false;  // dweight and dbias of the parameters' dtype

  DType parameters() const { return fp32_parameters ? DType::f32 : dtype; }
  DType out() const { return fp32_out ? DType::f32 : dtype; }
};

// Every length of a vector's tail, rows fewer than threads and parts and more, zero rows, GPT-2's widths, and
// for GPUs rows of one warp, of several, of a whole block, of a cluster, and longer ones.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 8},      {3, 768},        {257, 96},   {64, 1600, 100.0}, {33, 1021},
                          {2, 8191},   {2100, 32, 5.0}, {9001, 128}, {5, 769},          {7, 1024},
                          {700, 2048}, {70, 4096},      {2, 12288},  {1, 16392},        {20, 12296},
                          {19, 40000}, {9, 2056},       {3, 3200},   {21, 5120},        {2, 10248}};
  for (std::int64_t C = 1; C <= 70; ++C) cases.push_back({1 + C % 5, C});
  return cases;
}

// For the forms that are not the plain one.
inline std::vector<Case> few_cases() {
  return {{0, 8}, {3, 768}, {37, 96},   {33, 1021}, {300, 40}, {2, 8192},
          {5, 1}, {9, 7},   {140, 264}, {9, 16384}, {35, 4096}};
}

// With a weight or without, with a bias or without, mixed dtypes, and everything that a backward can add to.
inline std::vector<Form> test_forms(const std::vector<DType>& dtypes, bool rms) {
  std::vector<Form> forms;
  for (const DType dtype : dtypes) {
    const bool narrow = size_of(dtype) == 2;
    Form form;
    form.dtype = dtype;
    form.bias = !rms;
    form.dsum = true;
    forms.push_back(form);
    form.dsum = false;
    form.statistics = false;
    form.bias = false;
    form.narrow_gradients = true;
    if (!rms) forms.push_back(form);
    form.weight = form.narrow_gradients = false;
    form.store = Store::add;
    forms.push_back(form);
    if (!narrow) continue;
    form.weight = form.fp32_parameters = true;
    form.bias = !rms;
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

// The widths of GPT-2, BERT and larger models, at 2^26 elements, of which nothing is found in the caches; B·T
// = 65,536 as steps of 124M and 1558M have it; few wide rows.
inline std::vector<Case> gpu_bench_cases() {
  std::vector<Case> cases{{65536, 768}, {65536, 1600}, {1024, 12288}};
  for (const std::int64_t C : {768, 1024, 1280, 1600, 2048, 4096, 5120, 8192, 12288, 16384}) {
    cases.push_back({(std::int64_t{1} << 26) / C, C});
  }
  return cases;
}

inline LayerNormForward make_forward(const Case& c, const Form& form, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(form.dtype);
  LayerNormForward a;
  a.x = f.random(form.dtype, {c.N, c.C}, 1, c.mean);
  if (form.weight) a.weight = f.random(form.parameters(), {c.C}, 0.5, 1);
  if (form.bias) a.bias = f.random(form.parameters(), {c.C});
  a.out = f.output(form.out(), {c.N, c.C});
  if (form.statistics) a.mean = f.output(accumulation, {c.N});
  if (form.statistics) a.rstd = f.output(accumulation, {c.N});
  return a;
}
inline LayerNormForward make_forward(const Case& c, DType dtype, bool statistics, testing::Fixture& f) {
  Form form;
  form.dtype = dtype;
  form.statistics = statistics;
  return make_forward(c, form, f);
}

// The statistics are inputs here: near those of x, as rounding leaves them.
inline LayerNormBackward make_backward(const Case& c, const Form& form, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(form.dtype);
  const DType gradients = form.narrow_gradients ? form.parameters() : accumulation;
  LayerNormBackward a;
  a.dout = f.random(form.out(), {c.N, c.C});
  a.x = f.random(form.dtype, {c.N, c.C});
  if (form.weight) a.weight = f.random(form.parameters(), {c.C}, 0.5, 1);
  a.mean = f.random(accumulation, {c.N}, 0.05);
  a.rstd = f.random(accumulation, {c.N}, 0.05, 1);
  a.dx = f.output(form.dtype, {c.N, c.C}, form.store);
  if (form.weight) a.dweight = f.output(gradients, {c.C}, form.store);
  if (form.bias) a.dbias = f.output(gradients, {c.C}, form.store);
  a.dx_store = a.dparameters_store = form.store;
  if (form.dsum) a.dsum = f.random(form.dtype, {c.N, c.C});
  return a;
}
inline LayerNormBackward make_backward(const Case& c, DType dtype, Store store, testing::Fixture& f) {
  Form form;
  form.dtype = dtype;
  form.store = store;
  return make_backward(c, form, f);
}

}  // namespace warpwright::ops::layernorm
