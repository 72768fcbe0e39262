// The test of every operation compares each variant with the fp64 reference.
//
// An operation's cases.hpp builds the arguments from a Fixture. Then
//   - inputs are drawn at random (seeded), and outputs are filled with NaN,
//   - the reference runs on fp64 copies of the same (rounded) inputs,
//   - every byte that no output covers, guard bytes included, must be unchanged,
//   - an element that is unwritten or not finite fails if the reference is finite there,
//   - ‖out − ref‖/‖ref‖ and the error of each element must not exceed a tolerance that is computed from the
//     dtype and the number of terms in a sum,
//   - two runs must give the same bits, unless the kernel says that it does not repeat them; on a CPU,
//     one run uses one thread and the other three.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/testing/device_copy.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::testing {

// The largest relative error that rounding explains: half an ulp of the output's dtype for the store, plus
// four times the error of a sum of `reduction` terms in fp32 (fp64 for fp64), which grows as the square root
// of `reduction`. With tf32, both factors of a product are also rounded to 11 significant bits, which changes
// each of them by at most 2^-11.
double tolerance(DType output, double reduction, bool tf32 = false);

// The error of an output relative to the reference.
struct Deviation {
  double relative = 0;   // ‖out − ref‖ / ‖ref‖
  double worst = 0;      // largest |out − ref| / max(|ref|, rms(ref))
  double worst_ulp = 0;  // `worst` in ulps of the output's dtype
  std::int64_t not_finite = 0;
};
Deviation compare(const std::vector<double>& out, const std::vector<double>& reference, DType dtype);

// Fails the current test if bytes outside the written tensors have changed.
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

// The device on which the variant of this name runs. For a GPU's variant on a machine without a GPU it is the
// CPU, so that the variant's refusal says so.
DeviceInfo device_for(std::string_view variant);

// The feature that this machine lacks to run the variant of this name, such as "needs an NVIDIA GPU"; "" if
// none.
std::string missing_for(std::string_view variant);

// A test of one variant, which is given by its name. It is skipped on a machine that cannot run the variant.
class VariantTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_for(GetParam()); !missing.empty()) GTEST_SKIP() << missing;
  }
};

// The dtypes that the variant takes, except fp64, which is the reference's.
template <class A>
std::vector<DType> dtypes_for(const Op<A>& op, std::string_view name) {
  std::vector<DType> dtypes;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (find_variant(op, name).takes(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

// A Context on a GPU that all cases share: making one takes longer than most cases.
Context& gpu_context(Device device, bool tf32);

// True if this case is left out. With WARPWRIGHT_TEST_EVERY=N in the environment, a process takes only every
// Nth case. This is for tools that make each kernel a hundred times slower.
bool passed_over();
// True if a case of this much work is left out. WARPWRIGHT_TEST_FLOPS=N sets the largest work that is taken.
bool too_long(double flops);
// The cases for which passed_over() is false.
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

// Runs the variant on arguments in this process's memory. For a GPU's variant, they are copied to the GPU and
// back.
template <class A>
void run_variant(const Op<A>& op, const Variant<A>& variant, const A& args, int threads, bool tf32 = false) {
  const Device device = device_for(variant.name).device;
  if (device.kind == DeviceKind::cuda) return run_variant(gpu_context(device, tf32), op, variant, args);
  ContextOptions options;
  options.threads = threads;
  Context context(options, device);
  run_variant(context, op, variant, args);
}

// The number of terms that are summed into an element of an argument, by the argument's name.
using ReductionLength = std::function<double(std::string_view argument)>;

// Checks one variant on one case. Returns the variant's reason if it refuses, otherwise "".
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
    if (!tensor || access == Access::read || access == Access::scratch || !is_floating(tensor.dtype)) return;
    const Deviation error = compare(elements_of(tensor), elements_of(wanted), tensor.dtype);
    const double bound = tolerance(tensor.dtype, reduction(argument), tf32);
    EXPECT_EQ(error.not_finite, 0) << argument;
    EXPECT_LE(error.relative, bound) << argument;
    EXPECT_LE(error.worst, 16 * bound) << argument << ", " << error.worst_ulp << " ulp";
  });
  for (const auto& storage : fixture.storages()) first_run.push_back(storage.bytes);
  fixture.restore();
  run_variant(op, variant, args, 3, tf32);
  for (std::size_t i = 0; variant.kernel->repeats && i < first_run.size(); ++i) {
    EXPECT_TRUE(first_run[i] == fixture.storages()[i].bytes)
        << "two runs differ (on a CPU with one and with three threads)";
  }
  return "";
}

// Checks each GPU variant that offers a choice of configurations to read and to compare with (only_forced),
// in all of them. make(Fixture&) builds the arguments.
template <class A, class Make>
void check_configurations(const Op<A>& op, Make&& make, const ReductionLength& reduction) {
  for (const auto& variant : op.variants) {
    if (!variant.kernel->only_forced || !variant.kernel->configurations) continue;
    const Device device = device_for(variant.name).device;
    Context& context = gpu_context(device, false);
    Fixture shapes = Fixture::of_shapes();
    for (const Configuration& c : variant.configurations(op.problem(make(shapes)), context.device())) {
      SCOPED_TRACE(c.text);
      Fixture fixture(1);
      const A args = make(fixture);
      auto table = std::make_shared<TunedTable>(TunedFor{});
      table->set(op.name, tuned_problem(op.problem(args), context.device()),
                 choice_text(variant.name, c.text));
      context.set_tuned(table);
      EXPECT_EQ(variant.configuration(op.problem(args), context.device()), c.text);
      EXPECT_EQ(check_variant(op, variant.name, fixture, args, reduction), "");
      context.set_tuned(nullptr);
    }
  }
}

// Counts the cases on which a variant was checked. The variant may refuse some of them; if it refuses all,
// the test is skipped.
class Tally {
 public:
  void add(const std::string& refusal) { refusal.empty() ? void(++checked_) : void(refusal_ = refusal); }
  bool none() const { return checked_ == 0; }
  const std::string& refusal() const { return refusal_; }

 private:
  int checked_ = 0;
  std::string refusal_;
};

// Checks by finite differences in fp64 that the reference's backward is the derivative of its forward. `loss`
// runs the forward and returns Σ out·dout. A sample of the elements of `input` is perturbed, and the change
// of the loss is compared with `gradient`.
void check_gradient(const std::function<double()>& loss, const Tensor& input, const Tensor& gradient,
                    std::string_view name, double step = 1e-5);

// The names of an operation's variants except the reference, for INSTANTIATE_TEST_SUITE_P.
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
