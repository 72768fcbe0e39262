// Checks a GPU's variants on problems of more than 2^31 elements without an oracle of that size. The large
// problem is a small problem, repeated many times.
//
// A Fixture holds the small problem, which is checked against the fp64 reference in the usual way. In the
// large problem, most tensors are those of the small one, repeated along their rows. They are made on the GPU
// by copies that double what is already there. Tensors that all rows share (weights) are stored once. Then
//   - a repeated tensor must hold the bits of the small run in each repetition. If a variant may sum in
//     another order at another size, it must match the reference instead. A sample of the repetitions is
//     checked: the first, the last, those at 2^31 and 2^32 elements, and a few that are drawn with a seed.
//   - a written tensor that is stored once is a sum over the rows. It must be the reference's value times the
//     number of repetitions. If whole numbers are summed, this holds exactly, so that a single missing row
//     shows. Otherwise it holds within the tolerance of a sum of that length.
//   - unwritten elements and the guard bytes around every tensor must be unchanged.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "ops/element.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops::testing {

struct Repetition {
  // This argument gets more than this many elements. The number of repetitions follows from it.
  std::string_view beyond;
  std::int64_t elements = std::int64_t{1} << 31;

  // Arguments that are not repeated along their first axis:
  std::vector<std::string_view> once = {};     // shared by all rows, or sums over them
  std::vector<std::string_view> columns = {};  // (n, rows)
  std::vector<std::string_view> bounds = {};   // ascending from 0: offsets of the sequences of the rows

  // Draws whole numbers, such that fp32 holds products and sums of them exactly. (Sums of repeated numbers
  // repeat the same rounding error, which the tolerance of a sum does not allow for.)
  bool exact_sums = false;
  bool same_bits = true;  // a row's results do not depend on the number of rows
  bool tf32 = false;      // skips the check of the small run; the rounding to tf32 has its own test
  // The expected value of a written tensor that is stored once. before: its value at the start (0 if it is
  // not read). after: the reference's result for the small problem. times: the number of repetitions.
  double (*sum)(double before, double after, double times) = [](double before, double after, double times) {
    return before + times * (after - before);
  };
};

// Rounds all inputs to whole numbers.
template <class A>
void make_whole(A args) {
  args.visit([](std::string_view, Tensor& tensor, Access access) {
    if (!tensor || access == Access::write || !is_floating(tensor.dtype)) return;
    for_each_element(tensor, [&](std::int64_t offset) {
      store_element(tensor, offset, std::nearbyint(load_element(tensor, offset)));
    });
  });
}

// A fixture's tensors, repeated, in the memory of a GPU.
class RepeatedCopy {
 public:
  // `uses` are those of the small problem.
  RepeatedCopy(Fixture& fixture, const std::vector<TensorUse>& uses, const Repetition& how);
  std::size_t bytes() const;  // of all tensors
  std::int64_t times() const { return times_; }
  std::vector<std::int64_t> sample() const;  // the repetitions that are checked

  // Allocates the memory and fills it with repetitions of the fixture's tensors.
  void lay_out(Device device, const Stream& stream);
  // The arguments with their tensors in that memory. Before lay_out() the tensors have shapes but no data.
  template <class A>
  A moved(A args) const {
    args.visit([&](std::string_view argument, Tensor& tensor, Access) {
      if (tensor) move(argument, tensor);
    });
    return args;
  }

  // Fails the current test if the bytes around a tensor have changed.
  void expect_guards(const Stream& stream) const;
  // Copies one repetition, and the tensors that are stored once, into the fixture.
  void fetch(std::int64_t repetition, const Stream& stream);
  // True if a tensor of the fixture is stored once.
  bool is_once(const Tensor& tensor) const { return regions_[storage_of(tensor)].kind == Kind::once; }
  // Fails the current test if the fetched bytes of a repeated tensor differ from these.
  void expect_bits(const std::vector<std::vector<std::byte>>& storages) const;

 private:
  enum class Kind : std::uint8_t { unused, rows, columns, bounds, once };
  struct Region {
    Kind kind = Kind::unused;
    Buffer buffer;
  };
  std::size_t storage_of(const Tensor& tensor) const;
  std::size_t bytes_of(std::size_t storage) const;
  std::size_t chunks_of(std::size_t storage) const;  // parts that are repeated separately
  Tensor device_bytes(std::size_t storage, std::size_t first, std::size_t count) const;
  void move(std::string_view argument, Tensor& tensor) const;

  Fixture& fixture_;
  std::int64_t times_ = 1;
  std::set<std::int64_t> elements_;  // the elements of one repetition, for each repeated tensor
  Device device_;
  std::vector<Region> regions_;  // one for each storage of the fixture
};

// Checks the results of the large problem. `before` and `after` hold the elements of `uses` in the small
// problem, at the start and after the reference has run.
void expect_repeated(RepeatedCopy& copy, Fixture& fixture, const std::vector<TensorUse>& uses,
                     const std::vector<std::vector<double>>& before,
                     const std::vector<std::vector<double>>& after,
                     const std::vector<std::vector<std::byte>>& small_run, const ReductionLength& reduction,
                     const Repetition& how, const Stream& stream);

std::vector<std::vector<double>> all_elements(const std::vector<TensorUse>& uses);

// Checks a variant on `small`, whose lengths of sums are given, and on its repetition. Returns the reason if
// it could not, otherwise "".
template <class A>
std::string check_repeated(const Op<A>& op, std::string_view name, Fixture& fixture, A small,
                           const ReductionLength& reduction, const Repetition& how) {
  const auto& variant = find_variant(op, name);
  const DeviceInfo device = device_for(name);
  ContextOptions options;
  options.tf32 = how.tf32;
  Context context(options, device.device);  // not gpu_context(): its scratch may be large
  if (how.exact_sums) make_whole(small);
  const auto uses = uses_of(small);
  RepeatedCopy copy(fixture, uses, how);
  const typename A::Problem problem = op.problem(copy.moved(small));
  SCOPED_TRACE(fmt::format("{} {} {}", op.name, name, problem.describe()));
  for (const typename A::Problem& p : {op.problem(small), problem}) {
    if (std::string reason = variant.refuse(p, context.device()); !reason.empty()) return reason;
  }
  const std::size_t scratch = variant.workspace(problem, context.device());
  const std::size_t needed = (copy.bytes() + scratch + (std::size_t{1} << 30)) >> 30;
  if (available_memory(device.device) >> 30 < needed) {
    return fmt::format("needs an NVIDIA GPU with {} GiB of free memory", needed);
  }

  if (how.tf32) {
    fixture.snapshot();
    run_variant(context, op, variant, small);
  } else {
    check_variant(op, name, fixture, small, reduction);
  }
  std::vector<std::vector<std::byte>> small_run;
  for (const auto& storage : fixture.storages()) small_run.push_back(storage.bytes);
  fixture.restore();
  const auto before = all_elements(uses);
  Fixture twin_fixture(0);
  const A twin = fp64_twin(small, twin_fixture);
  run_variant(op, find_variant(op, kReference), twin, 1);

  copy.lay_out(device.device, context.stream());
  context.reserve_scratch(scratch);
  variant.run(context, copy.moved(small));
  context.synchronize();
  expect_repeated(copy, fixture, uses, before, all_elements(uses_of(twin)), small_run, reduction, how,
                  context.stream());
  return "";
}

// The names of an operation's variants for GPUs. A build without CUDA has none.
template <class A>
std::vector<std::string> gpu_variant_names(const Op<A>& op) {
  std::vector<std::string> names = variant_names(op);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("cuda."); });
  return names;
}

}  // namespace warpwright::ops::testing
