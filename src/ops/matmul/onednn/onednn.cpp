// The products by oneDNN (2 or 3), from matrices in their original layout: packed weights would have to be
// packed again in every training step. It serves as a yardstick for the other kernels and is never chosen
// before them. If more than a bias follows a product, the product goes through fp32 scratch.
//
// oneDNN allocates its own scratch, once per thread. It may divide the depth by the number of threads.
#include <omp.h>

#include <dnnl.hpp>

#include <array>
#include <map>
#include <mutex>
#include <unordered_map>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul::onednn {
namespace {

using dnnl::memory;

// A matrix for oneDNN: element (i, j) is data[i·row + j·col].
struct Matrix {
  void* data;
  DType dtype;
  std::int64_t rows, cols, row, col;

  memory::desc desc() const {
    const auto type = dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
    return {{rows, cols}, type, memory::dims{row, col}};
  }
};

Matrix rows_of(const Tensor& t) {
  return {t.data, t.dtype, t.shape[0], t.shape[1], t.shape[0] > 1 ? t.strides[0] : t.shape[1], 1};
}
Matrix transposed(const Matrix& m) {
  return {m.data, m.dtype, m.cols, m.rows, m.col, m.row};
}
Matrix row_of(const Tensor& t) {
  return {t.data, t.dtype, 1, t.shape[0], t.shape[0], 1};
}
Matrix scratch_of(const Context& context, const Shape& shape) {
  return {context.scratch(), DType::f32, shape[0], shape[1], shape[1], 1};
}

// While it lives, oneDNN uses the Context's threads. oneDNN asks OpenMP for their number.
class Threads {
 public:
  explicit Threads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::matmul make_primitive(const memory::desc& a, const memory::desc& b, const memory::desc& bias,
                            const memory::desc& c, bool add) {
  dnnl::primitive_attr attributes;
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul(dnnl::matmul::primitive_desc(engine(), a, b, bias, c, attributes));
#else
  return dnnl::matmul({{a, b, bias, c}, attributes, engine()});
#endif
}

// Returns a cached primitive. The key contains everything on which a primitive depends, because making one
// costs more than a small product.
const dnnl::matmul& primitive_for(const Matrix& a, const Matrix& b, const Matrix* bias, const Matrix& c,
                                  bool add, int threads) {
  using Key = std::array<std::int64_t, 14>;
  static std::mutex mutex;
  static std::map<Key, dnnl::matmul> made;
  const Key key{c.rows,
                c.cols,
                a.cols,
                a.row,
                a.col,
                b.row,
                b.col,
                c.row,
                static_cast<std::int64_t>(a.dtype),
                static_cast<std::int64_t>(c.dtype),
                bias ? 1 : 0,
                add ? 1 : 0,
                threads,
                c.col};
  const std::lock_guard lock(mutex);
  auto found = made.find(key);
  if (found == made.end()) {
    const memory::desc none;
    found = made.emplace(key, make_primitive(a.desc(), b.desc(), bias ? bias->desc() : none, c.desc(), add))
                .first;
  }
  return found->second;
}

// C (= or +=) A·B + bias.
void multiply(const Context& context, const Matrix& a, const Matrix& b, const Matrix* bias, const Matrix& c,
              bool add) {
  try {
    const Threads threads(context.threads());
    const dnnl::matmul& primitive = primitive_for(a, b, bias, c, add, context.threads());
    const auto memory_of = [](const Matrix& m) { return memory(m.desc(), engine(), m.data); };
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, memory_of(a)}, {DNNL_ARG_WEIGHTS, memory_of(b)}, {DNNL_ARG_DST, memory_of(c)}};
    if (bias) arguments.emplace(DNNL_ARG_BIAS, memory_of(*bias));
    dnnl::stream stream(engine());
    primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    throw Error(error.what(), "matmul by oneDNN", "do not force cpu.onednn");
  }
}

template <class Args>
void finish(const Context& context, const Args& args, const float* sums) {
  context.device().cpu.avx512 ? avx512::finish(context, args, sums) : avx2::finish(context, args, sums);
}

// True if oneDNN computes the result itself, because nothing except a bias follows the product.
bool is_direct(const MatmulForwardProblem& p) {
  return p.activation == Activation::none && !p.preact && !p.scaled && !p.residual && !p.widened;
}
bool is_direct(const MatmulDxProblem& p) {
  return p.activation == Activation::none;
}

void forward(const Context& context, const MatmulForward& args) {
  const Matrix a = rows_of(args.x), b = transposed(rows_of(args.weight));
  if (is_direct(args.problem())) {
    const Matrix bias = args.bias ? row_of(args.bias) : Matrix{};
    multiply(context, a, b, args.bias ? &bias : nullptr, rows_of(args.out), false);
    return;
  }
  multiply(context, a, b, nullptr, scratch_of(context, args.out.shape), false);
  finish(context, args, static_cast<const float*>(context.scratch()));
}

void dx(const Context& context, const MatmulDx& args) {
  const Matrix a = rows_of(args.dout), b = rows_of(args.weight);
  if (is_direct(args.problem())) {
    multiply(context, a, b, nullptr, rows_of(args.dx), false);
    return;
  }
  multiply(context, a, b, nullptr, scratch_of(context, args.dx.shape), false);
  finish(context, args, static_cast<const float*>(context.scratch()));
}

void dw(const Context& context, const MatmulDw& args) {
  multiply(context, transposed(rows_of(args.dout)), rows_of(args.x), nullptr, rows_of(args.dweight),
           args.store == Store::add);
  context.device().cpu.avx512 ? avx512::finish(context, args) : avx2::finish(context, args);
}

template <class Problem>
Refusal refuse(const Problem& p, const DeviceInfo&) {
  if constexpr (std::is_same_v<Problem, MatmulForwardProblem>) {
    if (p.packed) return kNotPacked;
    if (p.batch_invariant) return kNotInvariant;
  }
  if constexpr (std::is_same_v<Problem, MatmulDwProblem>) {
    if (p.dtype == DType::bf16 && (p.N == 1 || p.K == 1)) {
      return "oneDNN's sums of a single row or column depend on the number of threads";
    }
  }
  if (p.M == 0 || p.N == 0 || p.K == 0) return kEmpty;
  return {};
}

template <class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo&) {
  const Extent extent = extent_of(p);
  return is_direct(p) ? 0 : static_cast<std::size_t>(extent.rows * extent.cols) * sizeof(float);
}

template <class Problem>
std::string configuration(const Problem& p, const DeviceInfo&) {
  return is_direct(p) ? "direct" : "through fp32";
}

}  // namespace
}  // namespace warpwright::ops::matmul::onednn

namespace warpwright::ops {

WARPWRIGHT_KERNEL(MatmulForward, "cpu.onednn"_kernel) = {.needs = Needs::avx2,
                                                         .dtypes = kCpuDTypes,
                                                         .run = matmul::onednn::forward,
                                                         .refuse = matmul::onednn::refuse,
                                                         .workspace = matmul::onednn::workspace,
                                                         .configuration = matmul::onednn::configuration};
WARPWRIGHT_KERNEL(MatmulDx, "cpu.onednn"_kernel) = {.needs = Needs::avx2,
                                                    .dtypes = kCpuDTypes,
                                                    .run = matmul::onednn::dx,
                                                    .refuse = matmul::onednn::refuse,
                                                    .workspace = matmul::onednn::workspace,
                                                    .configuration = matmul::onednn::configuration};
WARPWRIGHT_KERNEL(MatmulDw, "cpu.onednn"_kernel) = {
    .needs = Needs::avx2, .dtypes = kCpuDTypes, .run = matmul::onednn::dw, .refuse = matmul::onednn::refuse};

}  // namespace warpwright::ops
