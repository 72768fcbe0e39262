// Softmax cross entropy with a block for each row, one number per thread at a time, after llm.c. The row is
// read for its maximum and sum, and again for the gradient that replaces it: 3 passes over the logits if the
// second reading misses the caches. cuda.plain_row is the same without a choice.
//
// The choices are the kernel's configurations: the threads of a block; whether the first reading runs from
// the row's end to its beginning, so that the second one finds what was read last; and which accesses of the
// second reading are marked as streaming.
#include <array>
#include <string>

#include "ops/classifier/classifier.hpp"
#include "ops/classifier/cuda/row.cuh"
#include "ops/cuda/streaming.cuh"
#include "ops/options.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::classifier_kernels {
namespace {

struct Option {
  int threads = 1024;
  bool opposite = true, loads = true, stores = false;

  std::string text() const {
    const char* streaming = loads && stores ? ", streaming"
                            : loads         ? ", streaming loads"
                            : stores        ? ", streaming stores"
                                            : ", cached";
    return "block " + std::to_string(threads) + (opposite ? ", opposite" : ", same way") + streaming;
  }
};
constexpr std::array kOptions{
    Option{},
    Option{.threads = 512},
    Option{.threads = 256},
    Option{.opposite = false},
    Option{.loads = false},
    Option{.loads = false, .stores = true},
    Option{.loads = true, .stores = true},
};

template <bool loads, bool stores>
__global__ void __launch_bounds__(1024)
    rows_read_twice(const __grid_constant__ Rows<float> rows, bool opposite) {
  __shared__ ReductionSpace shared;
  const std::int64_t n = blockIdx.x, thread = threadIdx.x, threads = blockDim.x;
  float* row = rows.row(n);
  RowState state = rows.state(n);

  Normalizer mine;
  const std::int64_t steps = (rows.V + threads - 1) / threads;
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t v = (opposite ? steps - 1 - step : step) * threads + thread;
    if (v < rows.V) mine.add({row[v]});
  }
  const Normalizer all = of_block(mine, shared);
  state.normalize(all);
  if (thread == 0) rows.losses[n] = state.loss(all);

  if (rows.probabilities) {
    for (std::int64_t v = thread; v < rows.V; v += threads) {
      rows.probabilities[n * rows.V + v] = exponential(row[v] - state.largest) * state.inverse;
    }
  }
  if (!rows.gradient) return;
  for (std::int64_t v = thread; v < rows.Vp; v += threads) {
    float x[1] = {v < rows.V ? gpu::load_number<loads>(row + v) : 0.0f};
    state.to_gradient(x, v, rows.V);
    gpu::store_number<stores>(row + v, x[0]);
  }
}

const Option& option_for(const ClassifierProblem& p, const DeviceInfo& device) {
  return option_of(kOptions, "classifier", "cuda.ladder_row_twice", p, device);
}

void row_twice(const Context& context, const Classifier& args) {
  if (args.logits.shape[0] == 0) return;
  const Option& option = option_for(args.problem(), context.device());
  const Rows<float> rows = rows_of<float>(args);
  const auto kernel = option.loads
                          ? option.stores ? rows_read_twice<true, true> : rows_read_twice<true, false>
                      : option.stores ? rows_read_twice<false, true>
                                      : rows_read_twice<false, false>;
  kernel<<<static_cast<unsigned>(rows.N), static_cast<unsigned>(option.threads), 0, context.stream().get()>>>(
      rows, option.opposite);
  warpwright::cuda::check_launch("classifier cuda.ladder_row_twice");
}

std::string configuration(const ClassifierProblem& p, const DeviceInfo& device) {
  return option_for(p, device).text();
}
std::vector<Configuration> configurations(const ClassifierProblem&, const DeviceInfo&) {
  return configurations_of(kOptions);
}

}  // namespace
}  // namespace warpwright::ops::classifier_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Classifier, "cuda.ladder_row_twice"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = {DType::f32},
    .run = classifier_kernels::row_twice,
    .configuration = classifier_kernels::configuration,
    .configurations = classifier_kernels::configurations,
    .only_forced = true};

}  // namespace warpwright::ops
