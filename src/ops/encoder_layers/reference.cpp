// The formulas one by one, in fp64; what stands between them has the dtype of hidden, so that on fp64 tensors
// this is the oracle and on others a plain implementation in their dtype.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "ops/element.hpp"
#include "ops/encoder_layers/kernels.hpp"

namespace warpwright::ops::encoder_layers {
namespace {

using Values = std::vector<double>;

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::tanh:
      return std::tanh(x);
    default:
      return x;
  }
}

Values read(const Tensor& t) {
  const Elements elements(t);
  Values values(static_cast<std::size_t>(t.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = elements[static_cast<std::int64_t>(i)];
  return values;
}

struct Model {
  DType dtype;
  std::int64_t rows, H, heads;
  double eps;

  double rounded(double x) const {
    alignas(8) std::byte memory[8];
    const Tensor one(memory, dtype, {1});
    store_element(one, 0, x);
    return load_element(one, 0);
  }
  // x·Wᵀ + bias
  Values linear(const Values& x, const Tensor& weight, const Tensor& bias, Activation activation) const {
    const Values w = read(weight), b = read(bias);
    const std::size_t to = b.size(), from = w.size() / to;
    Values y(static_cast<std::size_t>(rows) * to);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double *row = x.data() + i / to * from, *column = w.data() + i % to * from;
      double sum = 0;
      for (std::size_t k = 0; k < from; ++k) sum += row[k] * column[k];
      y[i] = rounded(activate(activation, rounded(sum + b[i % to])));
    }
    return y;
  }
  Values attention(const Values& qkv, const std::int32_t* cu_seqlens, std::int64_t sequences) const {
    const std::int64_t HS = H / heads;
    Values out(static_cast<std::size_t>(rows * H)), weights;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t begin = cu_seqlens[s], end = cu_seqlens[s + 1];
      for (std::int64_t i = begin * heads; i < end * heads; ++i) {
        const std::int64_t head = i % heads * HS;
        const double* q = qkv.data() + i / heads * 3 * H + head;
        double largest = -INFINITY, total = 0;
        weights.clear();
        for (std::int64_t j = begin; j < end; ++j) {
          const double* k = qkv.data() + j * 3 * H + H + head;
          double score = 0;
          for (std::int64_t c = 0; c < HS; ++c) score += q[c] * k[c];
          weights.push_back(score / std::sqrt(static_cast<double>(HS)));
          largest = std::max(largest, weights.back());
        }
        for (double& weight : weights) total += weight = std::exp(weight - largest);
        for (std::int64_t c = 0; c < HS; ++c) {
          double sum = 0;
          for (std::int64_t j = begin; j < end; ++j) {
            sum += rounded(weights[static_cast<std::size_t>(j - begin)] / total) *
                   qkv[static_cast<std::size_t>(j * 3 * H + 2 * H + head + c)];
          }
          out[static_cast<std::size_t>(i / heads * H + head + c)] = rounded(sum);
        }
      }
    }
    return out;
  }
  // h = norm(h + y)
  void add_and_normalize(Values& h, const Values& y, const Tensor& weight, const Tensor& bias) const {
    const Values w = read(weight), b = read(bias);
    const auto columns = static_cast<std::size_t>(H);
    for (std::size_t row = 0; row < h.size(); row += columns) {
      double mean = 0, variance = 0;
      for (std::size_t c = 0; c < columns; ++c) mean += h[row + c] = rounded(h[row + c] + y[row + c]);
      mean /= static_cast<double>(H);
      for (std::size_t c = 0; c < columns; ++c) variance += (h[row + c] - mean) * (h[row + c] - mean);
      const double rstd = 1 / std::sqrt(variance / static_cast<double>(H) + eps);
      for (std::size_t c = 0; c < columns; ++c)
        h[row + c] = rounded((h[row + c] - mean) * rstd * w[c] + b[c]);
    }
  }
};

}  // namespace

void forward_reference(const Context&, const EncoderLayersForward& args) {
  const auto* cu_seqlens = args.cu_seqlens.as<std::int32_t>();
  const std::int64_t sequences = args.cu_seqlens.shape[0] - 1;
  const Model m{args.hidden.dtype, cu_seqlens[sequences], args.hidden.shape[1], args.heads,
                static_cast<double>(args.eps)};
  Values h = read(args.hidden.slice(0, 0, m.rows));
  for (const EncoderLayer& l : args.layers) {
    const Values qkv = m.linear(h, l.qkv_weight, l.qkv_bias, Activation::none);
    const Values mixed = m.attention(qkv, cu_seqlens, sequences);
    m.add_and_normalize(h, m.linear(mixed, l.proj_weight, l.proj_bias, Activation::none), l.attnorm_weight,
                        l.attnorm_bias);
    const Values wide = m.linear(h, l.fc_weight, l.fc_bias, args.activation);
    m.add_and_normalize(h, m.linear(wide, l.fcproj_weight, l.fcproj_bias, Activation::none), l.outnorm_weight,
                        l.outnorm_bias);
  }
  const Elements out(args.out);
  for (std::size_t i = 0; i < h.size(); ++i) out.set(static_cast<std::int64_t>(i), h[i]);
}

}  // namespace warpwright::ops::encoder_layers
