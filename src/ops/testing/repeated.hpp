// A problem past 2^31 elements for the variants of a GPU, without an oracle of its size: a small problem,
// many times over.
//
// A Fixture holds the small problem, which is checked against the fp64 reference as any. In the large one
// most tensors are those of the small one repeated along their rows, laid out on the GPU by copies that
// double what is there; what all rows share (weights) is there once. Then
//   - a repeated tensor must hold the small run's bits again and again (or match the reference, where a
//   variant
//     may sum otherwise in another size), looked at in a sample of the repetitions: the first, the last,
//     those at 2^31 and 2^32 elements and a few seeded ones,
//   - a written tensor that is there once is a sum over the rows: so many times the reference's, exactly
//   where
//     whole numbers are summed, so that a single row left out shows, else within the tolerance of a sum of
//     that length,
//   - what is not written there and the guard bytes around every tensor must come back unchanged.
#pragma once

#include <cmath>
#include <set>

#include "ops/element.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops::testing {

struct Repetition {
  // This argument gets more than so many elements; the number of repetitions follows.
  std::string_view beyond;
  std::int64_t elements = std::int64_t{1} << 31;

  // Arguments that are not repeated along their first axis:
  std::vector<std::string_view> once = {};     // shared by all rows, or sums over them
  std::vector<std::string_view> columns = {};  // (n, rows)
  std::vector<std::string_view> bounds = {};   // ascending from 0: where the sequences of the rows begin

  // Whole numbers in place of random ones, for products and sums of them that fp32 holds exactly. (Sums of
  // what repeats err by the same amount in every repetition, which no tolerance of a sum foresees.)
  bool exact_sums = false;
  bool same_bits = true;  // a row's results do not depend on how many rows there are
  bool tf32 = false;      // whose rounding has a test of its own: the small run is not checked
  // What a written tensor that is there once holds in the end, from what it held before (0 where it is not
  // read), what the reference makes of that in the small problem, and the number of repetitions.
  double (*sum)(double before, double after, double times) = [](double before, double after, double times) {
    return before + times * (after - before);
  };
};

// Rounds what an operation reads to whole numbers.
template <class A>
void make_whole(A args) {
  args.visit([](std::string_view, Tensor& tensor, Access access) {
    if (!tensor || access == Access::write || !is_floating(tensor.dtype)) return;
    for_each_element(tensor, [&](std::int64_t offset) {
      store_element(tensor, offset, std::nearbyint(load_element(tensor, offset)));
    });
  });
}

// A fixture's tensors in the memory of a GPU, repeated.
class RepeatedCopy {
 public:
  // `uses` are those of the small problem.
  RepeatedCopy(Fixture& fixture, const std::vector<TensorUse>& uses, const Repetition& how);
  std::size_t bytes() const;  // of all of them
  std::int64_t times() const { return times_; }
  std::vector<std::int64_t> sample() const;  // of the repetitions

  // Takes the memory and fills it with what the fixture holds.
  void lay_out(Device device, const Stream& stream);
  // The arguments with their tensors in that memory; before it is taken they have their shapes and no data.
  template <class A>
  A moved(A args) const {
    args.visit([&](std::string_view argument, Tensor& tensor, Access) {
      if (tensor) move(argument, tensor);
    });
    return args;
  }

  // Fails the present test where the bytes around a tensor have changed.
  void expect_guards(const Stream& stream) const;
  // Brings one repetition into the fixture, and what is there once.
  void fetch(std::int64_t repetition, const Stream& stream);
  // Whether a tensor of the fixture is there once.
  bool is_once(const Tensor& tensor) const { return regions_[storage_of(tensor)].kind == Kind::once; }
  // Fails the present test where a repeated tensor's bytes, as fetched, are not these.
  void expect_bits(const std::vector<std::vector<std::byte>>& storages) const;

 private:
  enum class Kind : std::uint8_t { unused, rows, columns, bounds, once };
  struct Region {
    Kind kind = Kind::unused;
    Buffer buffer;
  };
  std::size_t storage_of(const Tensor& tensor) const;
  std::size_t bytes_of(std::size_t storage) const;
  std::size_t chunks_of(std::size_t storage) const;  // what is repeated each for itself
  Tensor device_bytes(std::size_t storage, std::size_t first, std::size_t count) const;
  void move(std::string_view argument, Tensor& tensor) const;

  Fixture& fixture_;
  std::int64_t times_ = 1;
  std::set<std::int64_t> elements_;  // of one repetition of what is repeated
  Device device_;
  std::vector<Region> regions_;  // one for each storage of the fixture
};

// What is expected of the large problem's run. `before` and `after`: the elements of `uses` in the small
// problem, at the start and as the reference leaves them.
void expect_repeated(RepeatedCopy& copy, Fixture& fixture, const std::vector<TensorUse>& uses,
                     const std::vector<std::vector<double>>& before,
                     const std::vector<std::vector<double>>& after,
                     const std::vector<std::vector<std::byte>>& small_run, const ReductionLength& reduction,
                     const Repetition& how, const Stream& stream);

std::vector<std::vector<double>> all_elements(const std::vector<TensorUse>& uses);

// Checks a variant on `small`, whose reduction lengths are given, and on its repetition. Returns why it could
// not, else "".
template <class A>
std::string check_repeated(const Op<A>& op, std::string_view name, Fixture& fixture, A small,
                           const ReductionLength& reduction, const Repetition& how) {
  const auto& variant = find_variant(op, name);
  const DeviceInfo device = device_for(name);
  ContextOptions options;
  options.tf32 = how.tf32;
  Context context(options, device.device);  // not the one of all cases: its scratch may be large
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

// The names of an operation's variants for GPUs; none in a build without CUDA.
template <class A>
std::vector<std::string> gpu_variant_names(const Op<A>& op) {
  std::vector<std::string> names = variant_names(op);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("cuda."); });
  return names;
}

}  // namespace warpwright::ops::testing
