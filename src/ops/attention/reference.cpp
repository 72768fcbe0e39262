// The oracle, in fp64 throughout and in the order of the formulas.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/attention/kernels.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::attention {
namespace {

// Rows of one head in fp64, contiguous. The loops over them take most of the time of this operation's tests.
class Rows {
 public:
  // Rows [first, last) of a (N, NH, HS) view, whose rows and heads may be strided.
  Rows(const Tensor& tensor, std::int64_t first, std::int64_t last, std::int64_t head)
      : first_(first), HS_(tensor.shape[2]), values_(static_cast<std::size_t>((last - first) * HS_)) {
    for (std::int64_t row = first; row < last; ++row) {
      for (std::int64_t d = 0; d < HS_; ++d) {
        (*this)[row][d] = load_element(tensor, row * tensor.strides[0] + head * tensor.strides[1] + d);
      }
    }
  }
  double* operator[](std::int64_t row) { return values_.data() + (row - first_) * HS_; }
  const double* operator[](std::int64_t row) const { return values_.data() + (row - first_) * HS_; }

 private:
  std::int64_t first_, HS_;
  std::vector<double> values_;
};

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// sum += factor · row
void add(std::vector<double>& sum, double factor, const double* row) {
  for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += factor * row[d];
}

void store(const Tensor& tensor, std::int64_t row, std::int64_t head, const std::vector<double>& values,
           double factor) {
  for (std::size_t d = 0; d < values.size(); ++d) {
    store_element(tensor, row * tensor.strides[0] + head * tensor.strides[1] + static_cast<std::int64_t>(d),
                  factor * values[d]);
  }
}

// One sequence's rows: queries [q0, q1) and keys [k0, k1).
struct Sequence {
  std::int64_t index, q0, q1, k0, k1;
  bool causal;
  std::int64_t window;
  // Query q sees keys [begin(q), end(q)).
  std::int64_t begin(std::int64_t q) const { return window > 0 ? std::max(end(q) - window, k0) : k0; }
  std::int64_t end(std::int64_t q) const { return causal ? std::clamp(k1 - (q1 - 1 - q), k0, k1) : k1; }
};

template <class Args, class F>
void for_each_sequence(const Args& args, F&& f) {
  const auto *q = args.cu_seqlens_q.template as<std::int32_t>(),
             *k = args.cu_seqlens_k.template as<std::int32_t>();
  for (std::int64_t s = 0; s + 1 < args.cu_seqlens_q.shape[0]; ++s) {
    f(Sequence{s, q[s], q[s + 1], k[s], k[s + 1], args.mask == Mask::causal, args.window});
  }
}

void forward(const Context& context, const AttentionForward& args) {
  check_sequences(args);
  const std::int64_t Nq = args.q.shape[0], NH = args.q.shape[1], HS = args.q.shape[2];
  const std::int64_t group = NH / args.k.shape[1];
  auto* p = static_cast<double*>(context.scratch());
  const PairPlaces bias_places = places_of_bias(args.bias), visible_places = places_of_visible(args.visible);
  const auto head = [&](const Sequence& s, std::int64_t h) {
    const Rows q(args.q, s.q0, s.q1, h), k(args.k, s.k0, s.k1, h / group), v(args.v, s.k0, s.k1, h / group);
    const auto score = [&](std::int64_t i, std::int64_t j) {
      const std::int64_t qi = i - s.q0, kj = j - s.k0;
      if (args.visible && args.visible.as<std::uint8_t>()[visible_places.at(s.index, h, qi, kj)] == 0) {
        return -std::numeric_limits<double>::infinity();
      }
      const double bias = args.bias ? load_element(args.bias, bias_places.at(s.index, h, qi, kj)) : 0;
      return static_cast<double>(args.scale) * dot(q[i], k[j], HS) + bias;
    };
    for (std::int64_t i = s.q0; i < s.q1; ++i) {
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::int64_t j = s.begin(i); j < s.end(i); ++j) {
        p[j] = score(i, j);
        largest = std::max(largest, p[j]);
      }
      const bool sees = largest > -std::numeric_limits<double>::infinity() || std::isnan(largest);
      for (std::int64_t j = s.begin(i); j < s.end(i); ++j) sum += p[j] = sees ? std::exp(p[j] - largest) : 0;
      std::vector<double> out(static_cast<std::size_t>(HS), 0.0);
      for (std::int64_t j = s.begin(i); sees && j < s.end(i); ++j) add(out, p[j], v[j]);
      store(args.out, i, h, out, sees ? 1 / sum : 0);
      if (args.lse) store_element(args.lse, h * Nq + i, largest + std::log(sum));
    }
  };
  for_each_sequence(args, [&](const Sequence& s) {
    for (std::int64_t h = 0; h < NH; ++h) head(s, h);
  });
}

// A key head of a sequence and the sums of its gradients, (keys, HS).
struct KeyHead {
  Rows k, v;
  std::vector<std::vector<double>> dk, dv;

  KeyHead(const AttentionBackward& args, const Sequence& s, std::int64_t head)
      : k(args.k, s.k0, s.k1, head),
        v(args.v, s.k0, s.k1, head),
        dk(static_cast<std::size_t>(s.k1 - s.k0),
           std::vector<double>(static_cast<std::size_t>(args.k.shape[2]), 0.0)),
        dv(dk) {}
};

// Writes dq of query head h, and adds what it contributes to dk (without the scale) and dv. D: (Nq).
void backward_head(const AttentionBackward& args, const Sequence& s, std::int64_t h, double* D,
                   KeyHead& keys) {
  const std::int64_t Nq = args.q.shape[0], HS = args.q.shape[2];
  const double scale = static_cast<double>(args.scale);
  const Rows q(args.q, s.q0, s.q1, h), out(args.out, s.q0, s.q1, h), dout(args.dout, s.q0, s.q1, h);
  const auto probability = [&](std::int64_t i, std::int64_t j) {
    return std::exp(scale * dot(q[i], keys.k[j], HS) - load_element(args.lse, h * Nq + i));
  };
  for (std::int64_t i = s.q0; i < s.q1; ++i) {
    D[i] = dot(dout[i], out[i], HS);
    std::vector<double> dq(static_cast<std::size_t>(HS), 0.0);
    for (std::int64_t j = s.begin(i); j < s.end(i); ++j) {
      add(dq, probability(i, j) * (dot(dout[i], keys.v[j], HS) - D[i]), keys.k[j]);
    }
    store(args.dq, i, h, dq, scale);
  }
  for (std::int64_t j = s.k0; j < s.k1; ++j) {
    const auto key = static_cast<std::size_t>(j - s.k0);
    for (std::int64_t i = s.q0; i < s.q1; ++i) {
      if (j < s.begin(i) || j >= s.end(i)) continue;
      const double p = probability(i, j);
      add(keys.dk[key], p * (dot(dout[i], keys.v[j], HS) - D[i]), q[i]);
      add(keys.dv[key], p, dout[i]);
    }
  }
}

void backward(const Context& context, const AttentionBackward& args) {
  check_sequences(args);
  const std::int64_t KH = args.k.shape[1], group = args.q.shape[1] / KH;
  auto* D = static_cast<double*>(context.scratch());
  for_each_sequence(args, [&](const Sequence& s) {
    for (std::int64_t kh = 0; kh < KH; ++kh) {
      KeyHead keys(args, s, kh);
      for (std::int64_t h = kh * group; h < (kh + 1) * group; ++h) backward_head(args, s, h, D, keys);
      for (std::int64_t j = s.k0; j < s.k1; ++j) {
        const auto key = static_cast<std::size_t>(j - s.k0);
        store(args.dk, j, kh, keys.dk[key], static_cast<double>(args.scale));
        store(args.dv, j, kh, keys.dv[key], 1);
      }
    }
  });
}

template <class Problem>
std::size_t workspace(const Problem& p, const DeviceInfo&) {
  return static_cast<std::size_t>(std::max(p.Nq, p.Nk)) * sizeof(double);
}

}  // namespace
}  // namespace warpwright::ops::attention

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, "reference"_kernel) = {.needs = Needs::cpu,
                                                           .dtypes = kFloatingDTypes,
                                                           .run = attention::forward,
                                                           .workspace = attention::workspace};
WARPWRIGHT_KERNEL(AttentionBackward, "reference"_kernel) = {.needs = Needs::cpu,
                                                            .dtypes = kFloatingDTypes,
                                                            .run = attention::backward,
                                                            .workspace = attention::workspace};

}  // namespace warpwright::ops
