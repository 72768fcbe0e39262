// The products by cuBLASLt, with what surrounds them in its epilogues where it has one that fits (bias, scale
// and residual; tanh GELU, the pre-activation kept; the derivative of tanh GELU) and in kernels of our own
// (parts.cu) where it has none. The sums for dbias are ours: they take less time than the library adds for
// them to its product.
//
// Tensor cores sum in fp32. The algorithm is the first that cuBLASLt's heuristic proposes, or that of its
// first eight whose tile is written down here as faster, so that the choice is a pure function of problem,
// device and library; the same algorithm gives the same bits in every run. A depth cut into parts (dw) is
// summed in order, in the output or in the workspace.
//
// A Context keeps the library's handle, and descriptors and algorithm of every product it has met: later
// calls neither allocate nor search, and can be captured in a graph.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <vector>

#include "core/error.hpp"
#include "ops/matmul/cuda/cublaslt.hpp"
#include "ops/matmul/cuda/parts.hpp"
#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

using namespace cublaslt;

// What the library recommends for Hopper.
constexpr std::size_t kLibraryWorkspace = std::size_t{32} << 20;

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      throw Error(fmt::format("no products of {}", name_of(dtype)), "cuBLASLt", "use fp32, bf16 or fp16");
  }
}

// D (rows, cols) = scale·op(A) (rows, depth) · op(B) (depth, cols) [+ C], then the epilogue. The library
// counts by columns: a matrix (R, C) of ours, with rows `leading` elements apart, is its (C, R).
struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  DType in = DType::f32, out = DType::f32;
  bool transpose_a = false, transpose_b = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::int64_t leading_a = 0, leading_b = 0, leading_d = 0, leading_aux = 0;
  std::int64_t leading_c = 0;                 // 0: nothing is added
  std::array<std::uint32_t, 6> alignments{};  // of the operands, in bytes

  bool operator==(const Product&) const = default;
};

struct Operands {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  const void* aux = nullptr;  // the pre-activation
  const void* c = nullptr;    // of D's dtype; may be D
  float scale = 1;
};

std::uint32_t alignment_of(const void* address) {
  constexpr std::uintptr_t kMost = kAlignment;
  return static_cast<std::uint32_t>(std::size_t{1}
                                    << std::countr_zero(reinterpret_cast<std::uintptr_t>(address) | kMost));
}

// Values of cublasLtMatmulTile_t, whose names the headers of older toolkits lack.
enum Tile : std::uint32_t { kAny = 0, k96x128 = 28, k128x160 = 29, k176x128 = 201 };

// Of the heuristic's first proposals the first is not always the fastest. The tile that is, where it was
// measured on Hopper with many rows (docs/kernels.md has the figures).
Tile measured_tile(const Product& p, const GpuFeatures& gpu) {
  if (gpu.major != 9 || p.in == DType::f32 || p.out != p.in || p.cols < 16384 || p.transpose_b) return kAny;
  if (!p.transpose_a) return p.epilogue == CUBLASLT_EPILOGUE_DEFAULT && p.depth <= 8192 ? k128x160 : kAny;
  if (p.epilogue & CUBLASLT_EPILOGUE_GELU) return k96x128;
  return p.rows >= 16384 ? k176x128 : kAny;
}
constexpr int kProposals = 8;

struct Plan {
  Product product;
  Description description;
  Layout a, b, c, d;
  std::vector<cublasLtMatmulAlgo_t> proposals;
  std::size_t chosen = 0;  // of them
};

void set_operands(const Description& description, const Operands& operands) {
  if (operands.bias) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  if (operands.aux) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
}

std::uint32_t tile_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::uint32_t tile = 0;
  std::size_t written = 0;
  check(library().algorithm_attribute(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written),
        "describing a product");
  return tile;
}

// What a Context keeps.
struct State {
  Handle handle = make_handle();
  std::deque<Plan> plans;
  int forced = -1;   // proposal to run instead of the chosen one
  int proposed = 0;  // of the last product's proposals

  Plan& plan(const Product& product, const Operands& operands, const DeviceInfo& device) {
    for (Plan& known : plans) {
      if (known.product == product) return known;
    }
    return plans.emplace_back(make(product, operands, device));
  }

  Plan make(const Product& p, const Operands& operands, const DeviceInfo& device) const {
    const bool rounds = device.tf32 && p.in == DType::f32;
    Plan plan;
    plan.product = p;
    plan.description = make_description(rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (operands.aux) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.leading_aux);
    set_operands(plan.description, operands);
    plan.a = make_layout(type_of(p.in), p.transpose_a ? p.depth : p.rows, p.transpose_a ? p.rows : p.depth,
                         p.leading_a);
    plan.b = make_layout(type_of(p.in), p.transpose_b ? p.cols : p.depth, p.transpose_b ? p.depth : p.cols,
                         p.leading_b);
    plan.c = make_layout(type_of(p.out), p.rows, p.cols, p.leading_c > 0 ? p.leading_c : p.leading_d);
    plan.d = make_layout(type_of(p.out), p.rows, p.cols, p.leading_d);
    const Preference preference = make_preference();
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kLibraryWorkspace);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.alignments[0]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.alignments[1]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.alignments[p.leading_c > 0 ? 5 : 2]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.alignments[2]);
    std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals{};
    int count = 0;
    const cublasStatus_t status =
        library().heuristic(handle.get(), plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                            plan.d.get(), preference.get(), kProposals, proposals.data(), &count);
    if (status != CUBLAS_STATUS_SUCCESS) count = 0;
    const Tile wanted = measured_tile(p, device.gpu);
    for (int i = 0; i < count; ++i) {
      const auto& proposal = proposals[static_cast<std::size_t>(i)];
      if (proposal.state != CUBLAS_STATUS_SUCCESS) continue;
      if (wanted != kAny && plan.chosen == 0 && tile_of(proposal.algo) == wanted) {
        plan.chosen = plan.proposals.size();
      }
      plan.proposals.push_back(proposal.algo);
    }
    return plan;
  }
};

State& state_of(const Context& context) {
  static constexpr char kOwner = 0;
  std::any& slot = context.kept(&kOwner);
  if (!slot.has_value()) slot = std::make_shared<State>();
  return **std::any_cast<std::shared_ptr<State>>(&slot);
}

// Whether the library has an algorithm for it; then the product is on its way.
bool multiply(const Context& context, Product product, const Operands& o) {
  product.alignments = {alignment_of(o.a),    alignment_of(o.b),   alignment_of(o.d),
                        alignment_of(o.bias), alignment_of(o.aux), alignment_of(o.c)};
  State& state = state_of(context);
  Plan& plan = state.plan(product, o, context.device());
  state.proposed = static_cast<int>(plan.proposals.size());
  if (plan.proposals.empty()) return false;
  const std::size_t index = state.forced < 0
                                ? plan.chosen
                                : std::min(static_cast<std::size_t>(state.forced), plan.proposals.size() - 1);
  set_operands(plan.description, o);
  const float added = o.c ? 1 : 0;
  check(
      library().matmul(state.handle.get(), plan.description.get(), &o.scale, o.a, plan.a.get(), o.b,
                       plan.b.get(), &added, o.c ? o.c : o.d, plan.c.get(), o.d, plan.d.get(),
                       &plan.proposals[index], context.scratch(), kLibraryWorkspace, context.stream().get()),
      "a matrix product");
  return true;
}

void require_multiply(const Context& context, const Product& product, const Operands& operands) {
  if (multiply(context, product, operands)) return;
  throw Error(fmt::format("cuBLASLt has no algorithm for a product ({}, {}) · ({}, {}) of {}", product.cols,
                          product.depth, product.depth, product.rows, name_of(product.in)),
              "matmul", "force another variant, as WARPWRIGHT_FORCE=matmul=cuda.tile128");
}

cublasLtEpilogue_t gelu_epilogue(bool bias, bool preact) {
  if (preact) return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

// The library's GELU is the tanh form with an approximated tanh: good to 2^-11, below half an ulp of bf16 and
// fp16 alone. It takes pre-activations in rows of a multiple of eight elements.
bool fuses_gelu(Activation activation, const Tensor& out, const Tensor& preact) {
  return activation == Activation::gelu_tanh && out.dtype != DType::f32 &&
         (!preact || leading_of(preact) % 8 == 0);
}

// With the library's epilogues: GELU, or scale, residual and bias. False where it has none for it.
bool multiply_fused(const Context& context, const MatmulForward& args, Product product, Operands operands) {
  const bool gelu = fuses_gelu(args.activation, args.out, args.preact);
  if (args.bias && args.out.dtype != args.x.dtype) return false;
  if (gelu && args.scale == 1 && !args.residual) {
    product.epilogue = gelu_epilogue(static_cast<bool>(args.bias), static_cast<bool>(args.preact));
    if (args.preact) {
      product.leading_aux = leading_of(args.preact);
      operands.aux = args.preact.data;
    }
    return multiply(context, product, operands);
  }
  // It adds the bias after it has multiplied by the scale.
  if (ends_in_a_pass(args) || (args.bias && args.scale != 1)) return false;
  if (args.bias) product.epilogue = CUBLASLT_EPILOGUE_BIAS;
  if (args.residual) {
    product.leading_c = leading_of(args.residual);
    operands.c = args.residual.data;
  }
  operands.scale = args.scale;
  return multiply(context, product, operands);
}

template <bool fused>
void forward(const Context& context, const MatmulForward& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  if (M == 0 || N == 0) return;
  // outᵀ = weight · xᵀ
  Product product{N, M, K, args.x.dtype, args.out.dtype};
  product.transpose_a = true;
  product.leading_a = K;
  product.leading_b = leading_of(args.x);
  product.leading_d = leading_of(args.out);
  Operands operands{args.weight.data, args.x.data, args.out.data, args.bias.data};
  if (fused && multiply_fused(context, args, product, operands)) return;
  product.leading_d = leading_of(product_of(args));
  operands.d = product_of(args).data;
  bool has_bias = false;
  if (fused && args.bias && args.out.dtype == args.x.dtype) {
    product.epilogue = CUBLASLT_EPILOGUE_BIAS;
    has_bias = multiply(context, product, operands);
  }
  if (!has_bias) {
    product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    operands.bias = nullptr;
    require_multiply(context, product, operands);
  }
  const Tensor bias = has_bias ? Tensor() : args.bias;
  if (bias || ends_in_a_pass(args) || args.scale != 1 || args.residual) finish_forward(context, args, bias);
}

template <bool fused>
void dx(const Context& context, const MatmulDx& args) {
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1], K = args.weight.shape[1];
  if (M == 0 || K == 0) return;
  // dxᵀ = weightᵀ · doutᵀ
  Product product{K, M, N, args.dout.dtype, args.dx.dtype};
  product.leading_a = K;
  product.leading_b = leading_of(args.dout);
  product.leading_d = leading_of(args.dx);
  Operands operands{args.weight.data, args.dout.data, args.dx.data};
  if (fused && fuses_gelu(args.activation, args.dx, args.preact)) {
    product.epilogue = CUBLASLT_EPILOGUE_DGELU;
    product.leading_aux = leading_of(args.preact);
    operands.aux = args.preact.data;
    if (multiply(context, product, operands)) return;
    product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    product.leading_aux = 0;
    operands.aux = nullptr;
  }
  require_multiply(context, product, operands);
  if (args.activation != Activation::none) finish_dx(context, args.dx, args.preact, args.activation);
}

void dw(const Context& context, const MatmulDw& args) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.dout.shape[1];
  if (N == 0) return;
  // dweightᵀ = xᵀ · dout
  Product product{K, N, M, args.x.dtype, args.dweight.dtype};
  product.transpose_b = true;
  product.leading_a = leading_of(args.x);
  product.leading_b = leading_of(args.dout);
  product.leading_d = K;
  Operands operands{args.x.data, args.dout.data, args.dweight.data};
  if (args.store == Store::add) {
    product.leading_c = K;
    operands.c = args.dweight.data;
  }
  require_multiply(context, product, operands);
  if (!args.dbias) return;
  std::byte* partials = static_cast<std::byte*>(context.scratch()) + kLibraryWorkspace;
  column_sums(context, args.dout, args.dbias, args.store, reinterpret_cast<float*>(partials));
}

template <class Problem>
Refusal refuse(const Problem& p, const DeviceInfo&) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.packed) return kNotPacked;
    if (p.batch_invariant) return kNotInvariant;
  }
  if (is_empty(p)) return kEmpty;
  return reason_for_absence();
}

template <class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo&) {
  if constexpr (std::is_same_v<Problem, MatmulDwProblem>) {
    return kLibraryWorkspace + column_sums_bytes(p.M, p.N);
  }
  return kLibraryWorkspace;
}

template <class Problem>
double cost(const Problem& p, const DeviceInfo&) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.rows_counted) return kCostOfCountedLibrary;
  }
  return library_seconds(request_of(p));
}

template <class Args, void (*run)(const Context&, const Args&)>
constexpr Kernel<Args> kKernel = {.needs = Needs::gpu,
                                  .dtypes = kGpuDTypes,
                                  .run = run,
                                  .refuse = refuse<typename Args::Problem>,
                                  .workspace = workspace<typename Args::Problem>,
                                  .cost = cost<typename Args::Problem>};

template <class Args>
int run_proposal(const Context& context, const Args& args, int proposal,
                 void (*run)(const Context&, const Args&)) {
  State& state = state_of(context);
  state.forced = proposal;
  run(context, args);
  state.forced = -1;
  return state.proposed;
}

}  // namespace

int cublaslt_proposal(const Context& context, const MatmulForward& args, int proposal) {
  return run_proposal(context, args, proposal, forward<true>);
}
int cublaslt_proposal(const Context& context, const MatmulDx& args, int proposal) {
  return run_proposal(context, args, proposal, dx<true>);
}
int cublaslt_proposal(const Context& context, const MatmulDw& args, int proposal) {
  return run_proposal(context, args, proposal, dw);
}

}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {
using namespace matmul::cuda;

WARPWRIGHT_KERNEL(MatmulForward, "cuda.cublaslt"_kernel) = kKernel<MatmulForward, forward<true>>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.cublaslt"_kernel) = kKernel<MatmulDx, dx<true>>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.cublaslt"_kernel) = kKernel<MatmulDw, dw>;
WARPWRIGHT_KERNEL(MatmulForward, "cuda.cublaslt_unfused"_kernel) = kKernel<MatmulForward, forward<false>>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.cublaslt_unfused"_kernel) = kKernel<MatmulDx, dx<false>>;

}  // namespace warpwright::ops
