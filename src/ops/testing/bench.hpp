// What every operation's bench does: all of its variants, interleaved, on the shapes of its cases.hpp.
//
// NAME_bench.cpp calls Bench::run() once per case. There
//   - the arguments are built once and copied until all copies together exceed the L2 caches of all threads,
//   or
//     the working set that is asked for; calls go around the copies, so that data comes from where a training
//     step would find it,
//   - each variant that does not refuse (the reference aside) runs in turn, so that a disturbance hits all of
//     them, and in turn with them a plain copy that moves as many bytes,
//   - the median and the shortest time of a call are kept, and set against that copy's median and against the
//     least time that the measured ceilings of this machine allow (runtime/ceiling.hpp), for a working set of
//     the same size.
#pragma once

#include <algorithm>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "ops/op.hpp"
#include "ops/testing/fixture.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/load.hpp"

namespace warpwright::ops {

struct BenchOptions {
  ContextOptions context;
  Device device;
  std::string filter;           // only rows whose "op variant problem" contains it
  double case_seconds = 0.5;    // of wall clock for all variants on one case
  std::size_t working_set = 0;  // bytes that a case's copies take at least
  bool json = false;            // one JSON object at the end instead of a table
};

struct BenchRow {
  std::string op, variant, problem;
  DType dtype = DType::f32;
  double median_seconds = 0, min_seconds = 0;  // of one call
  double bytes = 0, flops = 0;                 // of one call: the least any variant must move and do
  double ceiling_seconds = 0;                  // the least time that the measured ceilings allow
  double copy_seconds = 0;                     // median of a copy of as many bytes
  bool chosen = false;                         // what a plan takes here

  double bytes_per_second() const { return bytes / median_seconds; }
  double flops_per_second() const { return flops / median_seconds; }
  double share_of_ceiling() const { return ceiling_seconds / median_seconds; }
  double share_of_copy() const { return copy_seconds / median_seconds; }
};

namespace testing {

// Copies of an operation's tensors, packed one behind the other as an arena would.
class Copies {
 public:
  // At least one, and as many (1,024 at most) as `footprint` bytes need.
  Copies(Fixture& fixture, std::size_t footprint, const Context& context);
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return buffer_.bytes(); }
  std::byte* data() const { return buffer_.data(); }
  // Where the byte at this address of the fixture stands in the given copy.
  void* address(const void* in_fixture, std::size_t copy) const;

 private:
  Fixture& fixture_;
  std::vector<std::size_t> offsets_;  // of each storage in a copy
  std::size_t stride_ = 0, count_ = 1;
  Buffer buffer_;
};

// Copies within the device's memory that read and write so many bytes together, each of bytes that are not in
// the L2: it goes around as much memory as `content` takes at least, and copies what stands there.
class PlainCopy {
 public:
  PlainCopy(double bytes, const Copies& content, const Context& context);
  void run();

 private:
  Tensor half(std::size_t index) const;  // sources are even, targets odd

  const Context& context_;
  std::size_t half_bytes_ = 0, count_ = 1, next_ = 0;
  Buffer buffer_;
};

// The share of written bytes among those the arguments name.
double write_share(const std::vector<TensorUse>& uses);

struct Timing {
  double median = 0, min = 0;  // seconds a call
};
// Runs calls[i](copy) in turn for that long.
std::vector<Timing> time_interleaved(const Context& context,
                                     const std::vector<std::function<void(std::size_t copy)>>& calls,
                                     std::size_t copies, double seconds);

}  // namespace testing

class Bench {
 public:
  using Sink = std::function<void(const BenchRow&)>;
  Bench(BenchOptions options, Sink sink);

  // make(Fixture&) builds the arguments of one case; `note` is what its problem does not tell.
  template <class A, class Make>
  void run(const Op<A>& op, Make&& make, std::string_view note = "") {
    testing::Fixture shapes = testing::Fixture::of_shapes();
    const typename A::Problem problem = op.problem(make(shapes));
    const std::string text = problem.describe() + std::string(note);
    const auto variants = runnable(op, problem, text);
    if (variants.empty()) return;
    testing::Fixture fixture(1);
    A args = make(fixture);
    const Variant<A>* chosen = choose(context_, op, problem).variant;

    const testing::Copies copies(fixture, footprint(), context_);
    const double least =
        ceilings(copies.bytes())
            .seconds(problem.flops(), problem.dtype, problem.bytes(), testing::write_share(uses_of(args)));
    std::vector<A> copied(copies.count(), args);
    for (std::size_t i = 0; i < copied.size(); ++i) {
      copied[i].visit([&](std::string_view, Tensor& tensor, Access) {
        if (!tensor) return;
        tensor.data = copies.address(tensor.data, i);
        tensor.device = device().device;
      });
    }
    std::vector<std::function<void(std::size_t)>> calls;
    for (const auto* variant : variants) {
      calls.push_back([&, variant](std::size_t copy) {
        const CallThreads threads(context_, problem.flops(), problem.bytes());
        variant->run(context_, copied[copy]);
      });
    }
    testing::PlainCopy plain(problem.bytes(), copies, context_);
    calls.push_back([&](std::size_t) { plain.run(); });
    const auto timings = testing::time_interleaved(context_, calls, copies.count(), options_.case_seconds);
    for (std::size_t i = 0; i < variants.size(); ++i) {
      sink_({std::string(op.name),
             choice_text(variants[i]->name, variants[i]->configuration(problem, device())), text,
             problem.dtype, timings[i].median, timings[i].min, problem.bytes(), problem.flops(), least,
             timings.back().median, variants[i] == chosen});
    }
  }

  // Beyond the L2 caches, and what is asked for.
  std::size_t footprint() const { return std::max(options_.working_set, bandwidth_footprint(device())); }
  // With the bandwidth of a working set of about that size (a power of two).
  Ceilings ceilings(std::size_t working_set);
  // Of everything since construction: measures the first ceilings again.
  Disturbance disturbance();
  const DeviceInfo& device() const { return context_.device(); }
  bool on_gpu() const { return device().device.kind == DeviceKind::cuda; }

 private:
  bool wanted(std::string_view op, std::string_view variant, const std::string& problem) const;

  // The variants to time, their scratch reserved.
  template <class A>
  std::vector<const Variant<A>*> runnable(const Op<A>& op, const typename A::Problem& problem,
                                          const std::string& text) {
    std::vector<const Variant<A>*> list;
    for (const auto& variant : op.variants) {
      if (variant.name == kReference || !variant.refuse(problem, context_.device()).empty() ||
          !wanted(op.name, variant.name, text)) {
        continue;
      }
      context_.reserve_scratch(variant.workspace(problem, context_.device()));
      list.push_back(&variant);
    }
    return list;
  }

  BenchOptions options_;
  Context context_;
  OtherLoad others_;
  PeakFlops flops_;
  std::map<std::size_t, Bandwidth> bandwidth_;  // by working set
  Sink sink_;
};

// Names of the operations' folders that have a bench.
std::vector<std::string> bench_names();

// Runs these benches (none named: all) and writes a table, row by row, or JSON; returns what disturbed them.
// An unknown name is a UsageError.
Disturbance run_benches(const std::vector<std::string>& names, const BenchOptions& options,
                        std::ostream& out);
Disturbance write_benches(const std::vector<void (*)(Bench&)>& benches, const BenchOptions& options,
                          std::ostream& out);

}  // namespace warpwright::ops
