// The products by cuBLASLt. The steps after a product run in the library's epilogue if it has one that fits:
// bias, scale and residual; tanh GELU, with the pre-activation kept; the derivative of tanh GELU. Otherwise
// kernels of our own do them (parts.cu). dbias always comes from our own kernels, because the library's
// epilogue for it costs more time.
//
// Tensor cores sum in fp32. On Hopper, the kernel is the library's proposal with the shortest predicted time
// (time.hpp). On other GPUs it is the first proposal. The device's tuned table can name another one. So the
// choice is a pure function of problem, device, library and table, and the same kernel gives the same bits in
// every run. If the depth is cut into parts, they are summed in order, in the output or in the workspace.
//
// A Context keeps the kernel of every problem that it still knows (kKeptProblems), and the descriptors of its
// product. Later calls neither allocate nor search, so a graph can capture them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "ops/matmul/cuda/cublaslt_library.hpp"
#include "ops/matmul/cuda/cublaslt_version.hpp"
#include "ops/matmul/cuda/parts.hpp"
#include "ops/matmul/time.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

using namespace cublaslt;

// Bytes of workspace that the library recommends for Hopper.
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

// D (rows, cols) = scale·op(A) (rows, depth) · op(B) (depth, cols) [+ C], then the epilogue. The library's
// matrices are column-major: our matrix (R, C), with rows `leading` elements apart, is its matrix (C, R).
struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  DType in = DType::f32, out = DType::f32;
  bool transpose_a = false, transpose_b = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool aux = false;              // the epilogue writes or reads the pre-activation
  bool adds = false;             // adds C
  std::uint32_t alignment = 16;  // bytes, of all operands and their rows
  std::int64_t leading_a = 0, leading_b = 0, leading_c = 0, leading_d = 0, leading_aux = 0;

  bool operator==(const Product&) const = default;
};

// The same product with contiguous matrices. A problem does not contain strides.
Product contiguous(Product p) {
  p.leading_a = p.transpose_a ? p.depth : p.rows;
  p.leading_b = p.transpose_b ? p.cols : p.depth;
  p.leading_d = p.rows;
  p.leading_c = p.adds ? p.rows : 0;
  p.leading_aux = p.aux ? p.rows : 0;
  return p;
}

struct Operands {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  const void* aux = nullptr;  // the pre-activation
  const void* c = nullptr;    // has D's dtype; may be D
  float scale = 1;
};

constexpr int kProposals = 8;

// The library's proposals for a product: its kernels, with our name and predicted time for each. If several
// kernels have the same description, all but the first have a number at the end of their names.
struct Proposals {
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  std::vector<Configuration> configurations;
  std::size_t predicted = 0;  // index of the kernel with the shortest predicted time

  bool empty() const { return algorithms.empty(); }
  // The index of the kernel with this name, or of the predicted one if none has it.
  std::size_t chosen(const std::optional<std::string_view>& name) const {
    const auto found =
        name ? std::ranges::find(configurations, *name, &Configuration::text) : configurations.end();
    return found == configurations.end() ? predicted
                                         : static_cast<std::size_t>(found - configurations.begin());
  }
};

// A product's descriptors.
struct Plan {
  Description description;
  Layout a, b, c, d;
};

void set_operands(const Description& description, const Operands& operands) {
  if (operands.bias) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  if (operands.aux) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
}

template <class T>
T attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value = 0;
  std::size_t written = 0;
  check(library().algorithm_attribute(&algorithm, attribute, &value, sizeof value, &written),
        "describing a product");
  return value;
}

// The two numbers in an enumerator's name: 128 and 256 for "…_TILE_128x256"; zeros if the value has no
// enumerator. The library's header has no function for this.
template <auto value>
constexpr std::array<int, 2> numbers_of() {
  const std::string_view name = __PRETTY_FUNCTION__;
  std::size_t at = name.find("value = ");
  const std::size_t end = name.find_first_of(";]", at);
  at = name.rfind('_', end);
  std::array<int, 2> numbers{};
  for (int i = 0; i < 2 && at < end; ++i) {
    for (++at; at < end && name[at] >= '0' && name[at] <= '9'; ++at) {
      numbers[static_cast<std::size_t>(i)] = 10 * numbers[static_cast<std::size_t>(i)] + (name[at] - '0');
    }
  }
  return numbers[1] > 0 ? numbers : std::array<int, 2>{};
}
template <class Enumeration, std::size_t count>
constexpr auto all_numbers() {
  return []<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<std::array<int, 2>, count>{numbers_of<static_cast<Enumeration>(i)>()...};
  }
  (std::make_index_sequence<count>());
}
constexpr auto kTileNumbers = all_numbers<cublasLtMatmulTile_t, CUBLASLT_MATMUL_TILE_END>();
constexpr auto kClusterNumbers = all_numbers<cublasLtClusterShape_t, CUBLASLT_CLUSTER_SHAPE_END>();

// The description of one of the library's kernels. Our rows are its columns.
LibraryKernel kernel_of(const cublasLtMatmulAlgo_t& a) {
  const auto tile = attribute_of<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_TILE_ID);
  const auto cluster = attribute_of<std::uint16_t>(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  LibraryKernel kernel;
  // A library that is newer than the compiled header may have more tiles and clusters.
  if (tile < kTileNumbers.size() && kTileNumbers[tile][0] > 0) {
    kernel.rows = kTileNumbers[tile][1];
    kernel.cols = kTileNumbers[tile][0];
  }
  if (cluster < kClusterNumbers.size() && kClusterNumbers[cluster][0] > 0) {
    kernel.cluster_down = kClusterNumbers[cluster][1];
    kernel.cluster_across = kClusterNumbers[cluster][0];
  }
  kernel.parts = std::max(attribute_of<std::int32_t>(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), 1);
  kernel.option = static_cast<int>(attribute_of<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
  return kernel;
}

// False if the device exists only in a test.
bool is_present(const DeviceInfo& device) {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && device.device.index < count;
}

// Makes a product's descriptors. The library takes them to propose kernels and to run the product.
Plan describe(const Product& p, const DeviceInfo& device) {
  const bool rounds = device.tf32 && p.in == DType::f32;
  Plan plan;
  plan.description = make_description(rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
  if (p.leading_aux > 0) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.leading_aux);
  plan.a = make_layout(type_of(p.in), p.transpose_a ? p.depth : p.rows, p.transpose_a ? p.rows : p.depth,
                       p.leading_a);
  plan.b = make_layout(type_of(p.in), p.transpose_b ? p.cols : p.depth, p.transpose_b ? p.depth : p.cols,
                       p.leading_b);
  plan.c = make_layout(type_of(p.out), p.rows, p.cols, p.leading_c > 0 ? p.leading_c : p.leading_d);
  plan.d = make_layout(type_of(p.out), p.rows, p.cols, p.leading_d);
  return plan;
}

// The library's proposals for a product with contiguous matrices; none if it has no kernel. Throws Error if
// the library fails.
Proposals propose(const Product& p, const Request& request, const DeviceInfo& device) {
  const Plan plan = describe(p, device);
  const Preference preference = make_preference();
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kLibraryWorkspace);
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, operand, p.alignment);
  }
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> results{};
  int count = 0;
  const cublasStatus_t status =
      library().heuristic(handle_of(device.device), plan.description.get(), plan.a.get(), plan.b.get(),
                          plan.c.get(), plan.d.get(), preference.get(), kProposals, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check(status, "choosing a kernel");
  const bool predicts = device.gpu.major == 9 && size_of(p.in) == 2;
  Proposals proposals;
  std::map<std::string, int> alike;
  for (const auto& result : std::span(results).first(static_cast<std::size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    const LibraryKernel kernel = kernel_of(result.algo);
    std::string name = matmul::describe(kernel);
    if (const int number = ++alike[name]; number > 1) name += fmt::format(", #{}", number);
    proposals.algorithms.push_back(result.algo);
    proposals.configurations.push_back({name, seconds_of(request, kernel)});
  }
  if (predicts && !proposals.empty()) {
    const auto fastest = std::ranges::min_element(proposals.configurations, {}, &Configuration::seconds);
    proposals.predicted = static_cast<std::size_t>(fastest - proposals.configurations.begin());
  }
  return proposals;
}

// One way to compute a problem with the library: a product with an epilogue. whole: the epilogue does all
// steps after the product.
struct Way {
  Product product;
  bool has_bias = false, whole = false;
};

cublasLtEpilogue_t gelu_epilogue(bool bias, bool preact) {
  if (preact) return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

// True if the library's epilogue can compute the activation. Its GELU is the tanh form with an approximate
// tanh. The error is up to 2^-11, which is below half an ulp only in bf16 and fp16. Rows of pre-activations
// must be multiples of eight elements.
template <class Problem>
bool fuses_gelu(const Problem& p, bool preact) {
  return p.activation == Activation::gelu_tanh && size_of(p.dtype) == 2 && !p.widened &&
         (!preact || p.aligned);
}

template <class Problem>
std::uint32_t alignment_of(const Problem& p) {
  return p.aligned ? 16 : static_cast<std::uint32_t>(size_of(p.dtype));
}

// The ways to compute a problem, the most fused first: with the whole epilogue, with the bias, without any.
template <bool fused>
std::vector<Way> ways_of(const MatmulForwardProblem& p) {
  // outᵀ = weight · xᵀ
  Way plain;
  plain.product = {.rows = p.N,
                   .cols = p.M,
                   .depth = p.K,
                   .in = p.dtype,
                   .out = p.widened ? DType::f32 : p.dtype,
                   .transpose_a = true,
                   .alignment = alignment_of(p)};
  std::vector<Way> ways;
  const bool takes_bias = !p.bias || !p.widened;
  if (fused && takes_bias && fuses_gelu(p, p.preact) && !p.scaled && !p.residual) {
    Way& way = ways.emplace_back(plain);
    way.product.epilogue = gelu_epilogue(p.bias, p.preact);
    way.product.aux = p.preact;
    way.has_bias = way.whole = true;
  } else if (fused && takes_bias && !p.preact && p.activation == Activation::none && !(p.bias && p.scaled)) {
    // The library multiplies by the scale before it adds the bias. Here the scale applies to their sum, so
    // the epilogue cannot have both.
    Way& way = ways.emplace_back(plain);
    if (p.bias) way.product.epilogue = CUBLASLT_EPILOGUE_BIAS;
    way.product.adds = p.residual;
    way.has_bias = way.whole = true;
  }
  if (fused && p.bias && takes_bias) {
    Way& way = ways.emplace_back(plain);
    way.product.epilogue = CUBLASLT_EPILOGUE_BIAS;
    way.has_bias = true;
  }
  ways.push_back(plain);
  return ways;
}

template <bool fused>
std::vector<Way> ways_of(const MatmulDxProblem& p) {
  // dxᵀ = weightᵀ · doutᵀ
  Way plain;
  plain.product = {.rows = p.K,
                   .cols = p.M,
                   .depth = p.N,
                   .in = p.dtype,
                   .out = p.widened ? DType::f32 : p.dtype,
                   .alignment = alignment_of(p)};
  plain.whole = p.activation == Activation::none;
  std::vector<Way> ways;
  if (fused && fuses_gelu(p, true)) {
    Way& way = ways.emplace_back(plain);
    way.product.epilogue = CUBLASLT_EPILOGUE_DGELU;
    way.product.aux = way.whole = true;
  }
  ways.push_back(plain);
  return ways;
}

template <bool>
std::vector<Way> ways_of(const MatmulDwProblem& p) {
  // dweightᵀ = xᵀ · dout
  return {{.product = {.rows = p.K,
                       .cols = p.N,
                       .depth = p.M,
                       .in = p.dtype,
                       .out = accumulation_dtype(p.dtype),
                       .transpose_b = true,
                       .adds = p.store == Store::add,
                       .alignment = alignment_of(p)}}};
}

// True if steps remain after the library's kernel.
bool leaves_a_pass(const MatmulForwardProblem& p, const Way& way) {
  if (way.whole) return false;
  return (p.bias && !way.has_bias) || p.preact || p.activation != Activation::none || p.scaled || p.residual;
}
bool leaves_a_pass(const MatmulDxProblem&, const Way& way) {
  return !way.whole;
}
bool leaves_a_pass(const MatmulDwProblem&, const Way&) {
  return false;
}
// The library's part of a request.
Request library_part(Request request, const Way& way) {
  if (way.whole) return request;
  request.activation = Activation::none;
  request.extra = false;
  return request;
}

// The kernel that the device's tuned table names for a problem; none if it names none.
template <bool fused, class Problem>
std::optional<std::string_view> tuned_kernel(const Problem& p, const DeviceInfo& device) {
  return tuned_configuration(operation_of(p), fused ? "cuda.cublaslt" : "cuda.cublaslt_unfused", p, device);
}

// Seconds of a pass of our own over the result, and over another matrix if the request has one (extra).
double pass_seconds(const Request& r) {
  constexpr double kStart = 2.5e-6;
  const double elements = static_cast<double>(r.extent.rows) * static_cast<double>(r.extent.cols);
  return kStart + (r.extra ? 3 : 2) * elements * static_cast<double>(size_of(r.dtype)) / kPassBandwidth;
}

// A way, and the library's kernels for it. Their predicted times include our own pass after them.
struct Offer {
  Way way;
  Proposals proposals;
};

// True if the library can be asked: there are results, and the device is present.
bool can_ask(const Request& request, const DeviceInfo& device) {
  return request.extent.rows > 0 && request.extent.cols > 0 && is_present(device);
}

// The most fused way for which the library has a kernel. None if it has no kernel or cannot be asked.
template <bool fused, class Problem>
std::optional<Offer> offer_for(const Problem& p, const DeviceInfo& device) {
  const Request request = request_of(p);
  if (!can_ask(request, device)) return std::nullopt;
  for (const Way& way : ways_of<fused>(p)) {
    Proposals proposals = propose(contiguous(way.product), library_part(request, way), device);
    if (proposals.empty()) continue;
    if (leaves_a_pass(p, way)) {
      for (Configuration& c : proposals.configurations) c.seconds += pass_seconds(request);
    }
    return Offer{way, std::move(proposals)};
  }
  return std::nullopt;
}

// A way, and the kernel that runs it.
struct Selected {
  Way way;
  cublasLtMatmulAlgo_t algorithm;
};

// The way and the kernel for a problem that refuse() did not refuse.
template <bool fused, class Problem>
const Selected& selected_for(const Context& context, const Problem& p) {
  static constexpr char kOwner = 0;
  return derived(context, &kOwner, p, [&] {
    const DeviceInfo& device = context.device();
    const Offer offer = offer_for<fused>(p, device).value();
    return Selected{offer.way,
                    offer.proposals.algorithms[offer.proposals.chosen(tuned_kernel<fused>(p, device))]};
  });
}

// Launches a product with this kernel.
void multiply(const Context& context, const Product& product, const cublasLtMatmulAlgo_t& algorithm,
              const Operands& o) {
  static constexpr char kOwner = 0;
  const Plan& plan = derived(context, &kOwner, product, [&] { return describe(product, context.device()); });
  set_operands(plan.description, o);
  const float added = o.c ? 1 : 0;
  check(library().matmul(handle_of(context.device().device), plan.description.get(), &o.scale, o.a,
                         plan.a.get(), o.b, plan.b.get(), &added, o.c ? o.c : o.d, plan.c.get(), o.d,
                         plan.d.get(), &algorithm, context.scratch(), kLibraryWorkspace,
                         context.stream().get()),
        "a matrix product");
}

template <bool fused>
void forward(const Context& context, const MatmulForward& args) {
  const MatmulForwardProblem problem = args.problem();
  if (problem.M == 0 || problem.N == 0) return;
  const auto& [way, algorithm] = selected_for<fused>(context, problem);
  const Tensor& result = way.whole ? args.out : product_of(args);
  Product p = way.product;
  p.leading_a = problem.K;
  p.leading_b = leading_of(args.x);
  p.leading_d = leading_of(result);
  Operands operands{args.weight.data, args.x.data, result.data};
  if (way.has_bias) operands.bias = args.bias.data;
  if (p.aux) p.leading_aux = leading_of(args.preact), operands.aux = args.preact.data;
  if (p.adds) p.leading_c = leading_of(args.residual), operands.c = args.residual.data;
  if (way.whole) operands.scale = args.scale;
  multiply(context, p, algorithm, operands);
  if (leaves_a_pass(problem, way)) finish_forward(context, args, way.has_bias ? Tensor() : args.bias);
}

template <bool fused>
void dx(const Context& context, const MatmulDx& args) {
  const MatmulDxProblem problem = args.problem();
  if (problem.M == 0 || problem.K == 0) return;
  const auto& [way, algorithm] = selected_for<fused>(context, problem);
  Product p = way.product;
  p.leading_a = problem.K;
  p.leading_b = leading_of(args.dout);
  p.leading_d = leading_of(args.dx);
  Operands operands{args.weight.data, args.dout.data, args.dx.data};
  if (p.aux) p.leading_aux = leading_of(args.preact), operands.aux = args.preact.data;
  multiply(context, p, algorithm, operands);
  if (leaves_a_pass(problem, way)) finish_dx(context, args.dx, args.preact, args.activation);
}

template <bool fused>
void dw(const Context& context, const MatmulDw& args) {
  const MatmulDwProblem problem = args.problem();
  if (problem.N == 0) return;
  const auto& [way, algorithm] = selected_for<fused>(context, problem);
  Product p = way.product;
  p.leading_a = leading_of(args.x);
  p.leading_b = leading_of(args.dout);
  p.leading_d = problem.K;
  Operands operands{args.x.data, args.dout.data, args.dweight.data};
  if (p.adds) p.leading_c = problem.K, operands.c = args.dweight.data;
  multiply(context, p, algorithm, operands);
  if (!args.dbias) return;
  std::byte* partials = static_cast<std::byte*>(context.scratch()) + kLibraryWorkspace;
  column_sums(context, args.dout, args.dbias, args.store, reinterpret_cast<float*>(partials));
}

template <bool fused, class Problem>
Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.packed) return kNotPacked;
    if (p.batch_invariant) return kNotInvariant;
  }
  if (is_empty(p)) return kEmpty;
  if (!reason_for_absence().empty()) return reason_for_absence();
  if (can_ask(request_of(p), device) && !offer_for<fused>(p, device)) return "cuBLASLt has no kernel for it";
  return {};
}

template <class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo&) {
  if constexpr (std::is_same_v<Problem, MatmulDwProblem>) {
    return kLibraryWorkspace + column_sums_bytes(p.M, p.N);
  }
  return kLibraryWorkspace;
}

// Seconds. Products of few rows belong to generation, where our kernels begin while the one before ends.
template <bool fused, class Problem>
double cost(const Problem& p, const DeviceInfo& device) {
  constexpr double kLateStart = 1.5e-6;
  constexpr std::int64_t kFewRows = 512;
  double start = 0;
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.rows_counted) return kCostOfCountedLibrary;
    if (p.M <= kFewRows && size_of(p.dtype) == 2) start = kLateStart;
  }
  const auto offer = offer_for<fused>(p, device);
  return start + (offer ? offer->proposals.configurations[offer->proposals.predicted].seconds
                        : seconds_of(request_of(p), LibraryKernel{}));
}

template <bool fused, class Problem>
std::string configuration(const Problem& p, const DeviceInfo& device) {
  const auto offer = offer_for<fused>(p, device);
  if (!offer) return "";
  return offer->proposals.configurations[offer->proposals.chosen(tuned_kernel<fused>(p, device))].text;
}

// The unfused variant has none where the fused one runs the same kernels.
template <bool fused, class Problem>
std::vector<Configuration> configurations(const Problem& p, const DeviceInfo& device) {
  if (!fused && ways_of<true>(p).front().product == ways_of<false>(p).front().product) return {};
  auto offer = offer_for<fused>(p, device);
  return offer ? std::move(offer->proposals.configurations) : std::vector<Configuration>();
}

template <class Args, bool fused, void (*run)(const Context&, const Args&)>
constexpr Kernel<Args> kKernel = {.needs = Needs::gpu,
                                  .dtypes = kGpuDTypes,
                                  .run = run,
                                  .refuse = refuse<fused, typename Args::Problem>,
                                  .workspace = workspace<typename Args::Problem>,
                                  .cost = cost<fused, typename Args::Problem>,
                                  .configuration = configuration<fused, typename Args::Problem>,
                                  .configurations = configurations<fused, typename Args::Problem>,
                                  .predicts_roughly = true};

}  // namespace

std::string cublaslt_version() {
  return reason_for_absence().empty() ? fmt::format("{}", library().version()) : "";
}

}  // namespace warpwright::ops::matmul::cuda

namespace warpwright::ops {
using namespace matmul::cuda;

WARPWRIGHT_KERNEL(MatmulForward, "cuda.cublaslt"_kernel) = kKernel<MatmulForward, true, forward<true>>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.cublaslt"_kernel) = kKernel<MatmulDx, true, dx<true>>;
WARPWRIGHT_KERNEL(MatmulDw, "cuda.cublaslt"_kernel) = kKernel<MatmulDw, true, dw<true>>;
WARPWRIGHT_KERNEL(MatmulForward,
                  "cuda.cublaslt_unfused"_kernel) = kKernel<MatmulForward, false, forward<false>>;
WARPWRIGHT_KERNEL(MatmulDx, "cuda.cublaslt_unfused"_kernel) = kKernel<MatmulDx, false, dx<false>>;

}  // namespace warpwright::ops
