// The bench of every operation times all of its variants, interleaved, on the shapes of its cases.hpp.
//
// NAME_bench.cpp calls Bench::run() once per case. Bench::run()
//   - builds the arguments once and copies them until all copies together exceed the L2 caches of all
//     threads, or the working set that the user asked for. Calls cycle through the copies, so that the data
//     comes from the same level of memory as in a training step.
//   - runs each variant that does not refuse, except the reference, in turn, so that a disturbance affects
//     all of them. A plain copy of as many bytes takes its turn with them.
//   - keeps the median and the shortest time of a call. It compares them with the copy's median and with the
//     least time that this machine's measured ceilings allow (runtime/ceiling.hpp) for a working set of this
//     size.
#pragma once

#include <algorithm>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/op.hpp"
#include "ops/testing/fixture.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/load.hpp"

namespace warpwright::ops {

struct BenchOptions {
  ContextOptions context;
  Device device;
  std::string filter;           // only rows whose "op variant problem" contains this text
  double case_seconds = 0.5;    // wall-clock time for all variants of one case
  std::size_t working_set = 0;  // least bytes that the copies of a case occupy
  bool configurations = false;  // every configuration of a variant is timed, not only its own choice
  bool json = false;            // one JSON object at the end instead of a table
};

struct BenchRow {
  std::string op, variant, problem;
  DType dtype = DType::f32;
  double median_seconds = 0, min_seconds = 0;  // of one call
  double bytes = 0, flops = 0;  // of one call: the least that any variant must move and compute
  double ceiling_seconds = 0;   // the least time that the measured ceilings allow
  double copy_seconds = 0;      // median time of a copy of as many bytes
  bool chosen = false;          // true if a plan would choose this variant

  double bytes_per_second() const { return bytes / median_seconds; }
  double flops_per_second() const { return flops / median_seconds; }
  double share_of_ceiling() const { return ceiling_seconds / median_seconds; }
  double share_of_copy() const { return copy_seconds / median_seconds; }
};

namespace testing {

// Copies of an operation's tensors. Within a copy, the tensors follow each other as in an arena.
class Copies {
 public:
  // Makes as many copies as `footprint` bytes need: at least one, at most 1,024.
  Copies(Fixture& fixture, std::size_t footprint, const Context& context);
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return buffer_.bytes(); }
  std::byte* data() const { return buffer_.data(); }
  // Maps an address in the fixture to the address of the same byte in the given copy.
  void* address(const void* in_fixture, std::size_t copy) const;

 private:
  Fixture& fixture_;
  std::vector<std::size_t> offsets_;  // of each storage in a copy
  std::size_t stride_ = 0, count_ = 1;
  Buffer buffer_;
};

// Copies bytes within the device's memory. One run reads and writes `bytes` bytes in total. Successive runs
// cycle through at least as much memory as `content` occupies, so that no run finds its data in L2. The
// memory holds repetitions of the content.
class PlainCopy {
 public:
  PlainCopy(double bytes, const Copies& content, const Context& context);
  void run();

 private:
  Tensor half(std::size_t index) const;  // even indices are sources, odd ones targets

  const Context& context_;
  std::size_t half_bytes_ = 0, count_ = 1, next_ = 0;
  Buffer buffer_;
};

// The share of written bytes among all bytes that the arguments read and write.
double write_share(const std::vector<TensorUse>& uses);

struct Timing {
  double median = 0, min = 0;  // seconds per call
};
// Runs calls[i](copy) in turn for this many seconds.
std::vector<Timing> time_interleaved(const Context& context,
                                     const std::vector<std::function<void(std::size_t copy)>>& calls,
                                     std::size_t copies, double seconds);

}  // namespace testing

class Bench {
 public:
  using Sink = std::function<void(const BenchRow&)>;
  Bench(BenchOptions options, Sink sink);

  // make(Fixture&) builds the arguments of one case. `note` is appended to the problem's description.
  template <class A, class Make>
  void run(const Op<A>& op, Make&& make, std::string_view note = "") {
    testing::Fixture shapes = testing::Fixture::of_shapes();
    const typename A::Problem problem = op.problem(make(shapes));
    const std::string text = problem.describe() + std::string(note);
    const auto timed = runnable(op, problem, text);
    if (timed.empty()) return;
    testing::Fixture fixture(1);
    A args = make(fixture);
    const std::string chosen = choose(context_, op, problem).text;

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
    for (const Timed<A>& one : timed) {
      calls.push_back([&](std::size_t copy) {
        if (one.table) context_.set_tuned(one.table);
        const CallThreads threads(context_, problem.flops(), problem.bytes());
        one.variant->run(context_, copied[copy]);
      });
    }
    testing::PlainCopy plain(problem.bytes(), copies, context_);
    calls.push_back([&](std::size_t) { plain.run(); });
    const auto timings = testing::time_interleaved(context_, calls, copies.count(), options_.case_seconds);
    context_.set_tuned(options_.context.tuned);
    for (std::size_t i = 0; i < timed.size(); ++i) {
      sink_({std::string(op.name), timed[i].choice, text, problem.dtype, timings[i].median, timings[i].min,
             problem.bytes(), problem.flops(), least, timings.back().median, timed[i].choice == chosen});
    }
  }

  // The least bytes of all copies: more than the L2 caches hold, and at least the requested working set.
  std::size_t footprint() const { return std::max(options_.working_set, bandwidth_footprint(device())); }
  // The machine's ceilings, with the bandwidth for a working set of about this size (rounded to a power of
  // two).
  Ceilings ceilings(std::size_t working_set);
  // Reports disturbances since construction. It measures the first ceilings again and compares them.
  Disturbance disturbance();
  const DeviceInfo& device() const { return context_.device(); }
  bool on_gpu() const { return device().device.kind == DeviceKind::cuda; }

 private:
  bool wanted(std::string_view op, std::string_view variant, const std::string& problem) const;

  // A variant to time, in its own configuration or in the one that the table names.
  template <class A>
  struct Timed {
    const Variant<A>* variant;
    std::string choice;
    std::shared_ptr<const TunedTable> table;
  };

  // Returns what to time and reserves its scratch.
  template <class A>
  std::vector<Timed<A>> runnable(const Op<A>& op, const typename A::Problem& problem,
                                 const std::string& text) {
    std::vector<Timed<A>> list;
    for (const auto& variant : op.variants) {
      if (variant.name == kReference || !variant.refuse(problem, context_.device()).empty() ||
          !wanted(op.name, variant.name, text)) {
        continue;
      }
      const auto append = [&](const std::string& configuration, std::shared_ptr<const TunedTable> table) {
        context_.reserve_scratch(variant.workspace(problem, context_.device()));
        list.push_back({&variant, choice_text(variant.name, configuration), std::move(table)});
      };
      if (!options_.configurations) {
        append(variant.configuration(problem, device()), nullptr);
        continue;
      }
      for (const Configuration& c : variant.configurations(problem, device())) {
        auto table = std::make_shared<TunedTable>(TunedFor{});
        table->set(op.name, tuned_problem(problem, device()), choice_text(variant.name, c.text));
        context_.set_tuned(table);  // the scratch depends on the configuration, too
        append(c.text, std::move(table));
      }
      context_.set_tuned(options_.context.tuned);
    }
    return list;
  }

  BenchOptions options_;
  Context context_;
  OtherLoad others_;
  PeakFlops flops_;
  std::map<std::size_t, Bandwidth> bandwidth_;  // by size of the working set
  Sink sink_;
};

// The names of the operations that have a bench.
std::vector<std::string> bench_names();

// Runs the named benches, or all if none is named. Writes a table row by row, or JSON, and returns what
// disturbed the benches. Throws UsageError if a name is unknown.
Disturbance run_benches(const std::vector<std::string>& names, const BenchOptions& options,
                        std::ostream& out);
Disturbance write_benches(const std::vector<void (*)(Bench&)>& benches, const BenchOptions& options,
                          std::ostream& out);

}  // namespace warpwright::ops
