// The oracle, in fp64 throughout and in the order of the formulas.
#include "ops/element.hpp"
#include "ops/embedding/embedding.hpp"

namespace warpwright::ops::embedding {
namespace {

void forward_reference(const Context&, const EmbeddingForward& args) {
  const std::int64_t N = args.out.shape[0], C = args.out.shape[1];
  const Elements wte(args.wte), wpe(args.wpe), out(args.out);
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int64_t token = args.tokens.as<std::int32_t>()[n];
    for (std::int64_t c = 0; c < C; ++c) {
      const double of_position = args.wpe ? wpe[args.positions.as<std::int32_t>()[n] * C + c] : 0;
      out.set(n * C + c, wte[token * C + c] + of_position);
    }
  }
}

void backward_reference(const Context&, const EmbeddingBackward& args) {
  const std::int64_t N = args.dout.shape[0], C = args.dout.shape[1];
  const Elements dout(args.dout), dwte(args.dwte), dwpe(args.dwpe);
  const auto add_rows = [&](const Elements& gradient, const Tensor& table, const Tensor& ids, Store store) {
    for (std::int64_t i = 0; store == Store::assign && i < table.elements(); ++i) gradient.set(i, 0);
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int64_t id = ids.as<std::int32_t>()[n];
      for (std::int64_t c = 0; c < C; ++c) gradient.add(id * C + c, dout[n * C + c]);
    }
  };
  add_rows(dwte, args.dwte, args.tokens, args.dwte_store);
  if (args.dwpe) add_rows(dwpe, args.dwpe, args.positions, args.dwpe_store);
}

}  // namespace
}  // namespace warpwright::ops::embedding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(EmbeddingForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = embedding::forward_reference};
WARPWRIGHT_KERNEL(EmbeddingBackward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = embedding::backward_reference};

}  // namespace warpwright::ops
