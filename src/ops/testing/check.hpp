// What every operation's test does: each variant against the fp64 reference.
//
// With arguments from a Fixture (an operation's cases.hpp builds them),
//   - inputs are drawn at random (seeded) and outputs are poisoned with NaN,
//   - the reference runs on fp64 copies of the same (rounded) inputs,
//   - every element that no output covers, guard bytes included, must come back unchanged,
//   - an element left unwritten or not finite where the reference is finite fails,
//   - ‖out − ref‖/‖ref‖ and each element's error are held against a tolerance computed from dtype and
//   reduction length,
//   - two runs, on a CPU with one and with three threads, must give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/testing/device_copy.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::testing {

// A relative error that rounding explains: half an ulp of the output's dtype for the store, plus fp32 (fp64
// for fp64) accumulation over `reduction` terms, whose error grows as its square root, four times over for
// the constant. tf32: the factors of the products were rounded to 11 significant bits, which moves each of
// the two by 2^-11 at most.
double tolerance(DType output, double reduction, bool tf32 = false);

// How far an output is from the reference.
struct Deviation {
  double relative = 0;   // ‖out − ref‖ / ‖ref‖
  double worst = 0;      // largest |out − ref| / max(|ref|, rms(ref))
  double worst_ulp = 0;  // the same in ulps of the output's dtype
  std::int64_t not_finite = 0;
};
Deviation compare(const std::vector<double>& out, const std::vector<double>& reference, DType dtype);

// Fails the present test where bytes outside the written tensors have changed.
void expect_only_written(Fixture& fixture, const std::vector<TensorUse>& uses);

// An fp64 copy of the arguments: floating tensors become contiguous fp64 tensors with the same elements.
template <class A>
A fp64_twin(A args, Fixture& twin) {
  args.visit([&](std::string_view, Tensor& tensor, Access) {
    if (!tensor || !is_floating(tensor.dtype)) return;
    const std::vector<double> values = elements_of(tensor);
    const Tensor copy = twin.output(DType::f64, tensor.shape);
    std::copy(values.begin(), values.end(), copy.as<double>());
    tensor = copy;
  });
  return args;
}

template <class A>
const Variant<A>& find_variant(const Op<A>& op, std::string_view name) {
  for (const auto& variant : op.variants) {
    if (variant.name == name) return variant;
  }
  throw Error("no such variant", std::string(name), "see the operation's variants.cpp");
}

// The device that a variant of that name runs on; the CPU where it runs on a GPU and this machine has none,
// so that its refusal says so.
DeviceInfo device_for(std::string_view variant);

// What this machine lacks for a variant of that name: "needs an NVIDIA GPU"; "" if nothing.
std::string missing_for(std::string_view variant);

// A test of one variant, by name, which is skipped on a machine that cannot run it.
class VariantTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_for(GetParam()); !missing.empty()) GTEST_SKIP() << missing;
  }
};

// The dtypes it takes, fp64 aside, which is the reference's.
template <class A>
std::vector<DType> dtypes_for(const Op<A>& op, std::string_view name) {
  std::vector<DType> dtypes;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (find_variant(op, name).takes(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

// A Context on a GPU, one for all cases: to make one takes longer than most of them.
Context& gpu_context(Device device, bool tf32);

// Whether this case is left out: WARPWRIGHT_TEST_EVERY=N in the environment takes every Nth that a process
// asks about, for tools that make each kernel a hundred times slower.
bool passed_over();
// Whether a case of so much work is: WARPWRIGHT_TEST_FLOPS=N takes those of N at most.
bool too_long(double flops);
// The cases that are not passed over.
template <class Case>
std::vector<Case> taken(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case&) { return passed_over(); });
  return cases;
}

template <class A>
void run_variant(Context& context, const Op<A>& op, const Variant<A>& variant, const A& args) {
  const typename A::Problem problem = op.problem(args);
  context.reserve_scratch(std::max<std::size_t>(variant.workspace(problem, context.device()), 1));
  if (context.device().device.kind == DeviceKind::cpu) {
    variant.run(context, args);
  } else {
    DeviceCopy copy(uses_of(args), context.device().device, context.stream());
    variant.run(context, copy.moved(args));
    copy.download(context.stream());
  }
}

// Runs it on arguments in this process's memory, which go to a GPU and back for a GPU's variant.
template <class A>
void run_variant(const Op<A>& op, const Variant<A>& variant, const A& args, int threads, bool tf32 = false) {
  const Device device = device_for(variant.name).device;
  if (device.kind == DeviceKind::cuda) return run_variant(gpu_context(device, tf32), op, variant, args);
  ContextOptions options;
  options.threads = threads;
  Context context(options, device);
  run_variant(context, op, variant, args);
}

// `reduction`: the number of terms summed into an output, by the name of the argument.
using ReductionLength = std::function<double(std::string_view argument)>;

// Checks one variant on one case; returns the variant's reason where it refuses, else "".
template <class A>
std::string check_variant(const Op<A>& op, std::string_view name, Fixture& fixture, A args,
                          const ReductionLength& reduction, bool tf32 = false) {
  const auto& variant = find_variant(op, name);
  const typename A::Problem problem = op.problem(args);
  SCOPED_TRACE(fmt::format("{} {} {}", op.name, name, problem.describe()));
  if (std::string reason = variant.refuse(problem, device_for(name)); !reason.empty()) return reason;
  if (too_long(problem.flops())) return "";

  Fixture twin_fixture(0);
  A twin = fp64_twin(args, twin_fixture);
  run_variant(op, find_variant(op, kReference), twin, 1);

  fixture.snapshot();
  run_variant(op, variant, args, 1, tf32);
  expect_only_written(fixture, uses_of(args));
  std::vector<TensorUse> expected;
  twin.visit([&](std::string_view argument, Tensor& t, Access access) {
    expected.push_back({argument, t, access});
  });
  std::size_t index = 0;
  std::vector<std::vector<std::byte>> first_run;
  args.visit([&](std::string_view argument, Tensor& tensor, Access access) {
    const Tensor& wanted = expected[index++].tensor;
    if (!tensor || access == Access::read || !is_floating(tensor.dtype)) return;
    const Deviation error = compare(elements_of(tensor), elements_of(wanted), tensor.dtype);
    const double bound = tolerance(tensor.dtype, reduction(argument), tf32);
    EXPECT_EQ(error.not_finite, 0) << argument;
    EXPECT_LE(error.relative, bound) << argument;
    EXPECT_LE(error.worst, 16 * bound) << argument << ", " << error.worst_ulp << " ulp";
  });
  for (const auto& storage : fixture.storages()) first_run.push_back(storage.bytes);
  fixture.restore();
  run_variant(op, variant, args, 3, tf32);
  for (std::size_t i = 0; i < first_run.size(); ++i) {
    EXPECT_TRUE(first_run[i] == fixture.storages()[i].bytes)
        << "two runs differ (on a CPU with one and with three threads)";
  }
  return "";
}

// Counts the cases that a variant was checked on. It may refuse some; a test that it refuses all of is
// skipped.
class Tally {
 public:
  void add(const std::string& refusal) { refusal.empty() ? void(++checked_) : void(refusal_ = refusal); }
  bool none() const { return checked_ == 0; }
  const std::string& refusal() const { return refusal_; }

 private:
  int checked_ = 0;
  std::string refusal_;
};

// Finite differences in fp64: that the reference's backward is the derivative of its forward. `loss` runs the
// forward and returns Σ out·dout; `input` is perturbed at a sample of its elements and compared with
// `gradient`.
void check_gradient(const std::function<double()>& loss, const Tensor& input, const Tensor& gradient,
                    std::string_view name, double step = 1e-5);

// The names of an operation's variants but the reference, for INSTANTIATE_TEST_SUITE_P.
template <class A>
std::vector<std::string> variant_names(const Op<A>& op) {
  std::vector<std::string> names;
  for (const auto& variant : op.variants) {
    if (variant.name != kReference) names.emplace_back(variant.name);
  }
  return names;
}
inline std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

}  // namespace warpwright::ops::testing
