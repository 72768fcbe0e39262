// Times every kernel that can run a product on a GPU, for `warpwright tune` and `warpwright bench products`.
#pragma once

#include <string>
#include <vector>

#include "ops/matmul/matmul.hpp"
#include "ops/op.hpp"
#include "runtime/memory.hpp"

namespace warpwright::ops::matmul {

// One kernel with one configuration.
struct TimedKernel {
  std::string choice;    // "cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]"
  double predicted = 0;  // seconds
  double seconds = 0;    // the median of the samples
  std::vector<double> samples{};

  bool is_of(std::string_view kernel) const { return parts_of(choice).kernel == kernel; }
};

struct TimingOptions {
  // Bound on the predicted times of our kernels, as a multiple of the shortest. All configurations of
  // kernels that predict roughly, and every variant's own choice, are timed in any case.
  double within = 2;
  int rounds = 5;  // samples of each kernel; the nearly fastest get four times as many, with other matrices
  std::vector<std::string> variants{};  // only these, each with its own choice; empty: all
};

// Holds matrices of random numbers in device memory and hands them out in turn, so that a call reads its
// matrices from memory and not from the cache.
class ProductTimer {
 public:
  // Throws Error if the device is not a GPU or has no memory to spare.
  ProductTimer(ContextOptions options, Device device);

  Context& context() { return context_; }
  const Context& context() const { return context_; }

  // Times kernels in turn, each in a graph of its own. Returns no kernels if the problem has unaligned
  // tensors, packed weights or rows counted on the device, or if its bits must not depend on the number of
  // rows. Throws Error if a matrix does not fit.
  template <class A>
  std::vector<TimedKernel> time(const Op<A>& op, const typename A::Problem& problem,
                                const TimingOptions& options);

  // The problem's arguments, with the matrices whose last use is longest ago.
  MatmulForward arguments(const MatmulForwardProblem& problem);
  MatmulDx arguments(const MatmulDxProblem& problem);
  MatmulDw arguments(const MatmulDwProblem& problem);

 private:
  class Ring {  // places tensors one after the other in a buffer, and begins again at its end
   public:
    Ring(std::size_t bytes, Device device) : buffer_(bytes, device, "products") {}
    Tensor take(DType dtype, const Shape& shape, Device device);
    Tensor all(Device device) const;

   private:
    Buffer buffer_;
    std::size_t next_ = 0;
  };

  struct Sampled {
    TimedKernel* kernel;
    Graph graph;
  };
  // Launches the graphs, which make this many calls each, `rounds` times in turn. Each kernel's time becomes
  // the median of all its samples.
  void sample(std::vector<Sampled>& sampled, int calls, int rounds);

  Tensor input(DType dtype, const Shape& shape);
  Tensor output(DType dtype, const Shape& shape);

  Context context_;
  Ring inputs_, outputs_;
  Event start_, end_;
};

}  // namespace warpwright::ops::matmul
