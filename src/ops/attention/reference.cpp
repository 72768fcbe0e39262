// The oracle: fp64 throughout, in the order of the formulas.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/kernels.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::attention {
namespace {

// A (N, NH, HS) view whose rows and heads may be strided.
class Rows {
 public:
  explicit Rows(const Tensor& tensor)
      : tensor_(tensor),
        fp64_(tensor.dtype == DType::f64 ? static_cast<const double*>(tensor.data) : nullptr) {}
  double get(std::int64_t row, std::int64_t head, std::int64_t d) const {
    const std::int64_t at = offset(row, head, d);
    return fp64_ ? fp64_[at] : load_element(tensor_, at);  // tests spend their time here
  }
  void set(std::int64_t row, std::int64_t head, std::int64_t d, double value) const {
    store_element(tensor_, offset(row, head, d), value);
  }
  double dot(std::int64_t row, const Rows& other, std::int64_t other_row, std::int64_t head) const {
    double sum = 0;
    for (std::int64_t d = 0; d < tensor_.shape[2]; ++d) {
      sum += get(row, head, d) * other.get(other_row, head, d);
    }
    return sum;
  }

 private:
  std::int64_t offset(std::int64_t row, std::int64_t head, std::int64_t d) const {
    return row * tensor_.strides[0] + head * tensor_.strides[1] + d;
  }
  Tensor tensor_;
  const double* fp64_;
};

// One sequence's rows: queries [q0, q1) and keys [k0, k1).
struct Sequence {
  std::int64_t index, q0, q1, k0, k1;
  bool causal;
  // Query q sees keys [k0, end(q)).
  std::int64_t end(std::int64_t q) const { return causal ? std::clamp(k1 - (q1 - 1 - q), k0, k1) : k1; }
};

template <class Args, class F>
void for_each_sequence(const Args& args, F&& f) {
  const auto *q = args.cu_seqlens_q.template as<std::int32_t>(),
             *k = args.cu_seqlens_k.template as<std::int32_t>();
  for (std::int64_t s = 0; s + 1 < args.cu_seqlens_q.shape[0]; ++s) {
    f(Sequence{s, q[s], q[s + 1], k[s], k[s + 1], args.mask == Mask::causal});
  }
}

}  // namespace

void forward_reference(const Context& context, const AttentionForward& args) {
  check_sequences(args);
  const std::int64_t Nq = args.q.shape[0], NH = args.q.shape[1], HS = args.q.shape[2];
  const Rows q(args.q), k(args.k), v(args.v), out(args.out);
  auto* p = static_cast<double*>(context.scratch());
  const auto pair = [](const Tensor& t, std::int64_t which, std::int64_t i, std::int64_t j) {
    return (which * t.shape[1] + i) * t.shape[2] + j;
  };
  const auto score = [&](const Sequence& s, std::int64_t i, std::int64_t j, std::int64_t h) {
    const std::int64_t qi = i - s.q0, kj = j - s.k0;
    if (args.visible && args.visible.as<std::uint8_t>()[pair(args.visible, s.index, qi, kj)] == 0) {
      return -std::numeric_limits<double>::infinity();
    }
    const double bias = args.bias ? load_element(args.bias, pair(args.bias, h, qi, kj)) : 0;
    return static_cast<double>(args.scale) * q.dot(i, k, j, h) + bias;
  };
  const auto row = [&](const Sequence& s, std::int64_t i, std::int64_t h) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t j = s.k0; j < s.end(i); ++j) {
      p[j] = score(s, i, j, h);
      largest = std::max(largest, p[j]);
    }
    const bool sees = largest > -std::numeric_limits<double>::infinity() || std::isnan(largest);
    for (std::int64_t j = s.k0; j < s.end(i); ++j) sum += p[j] = sees ? std::exp(p[j] - largest) : 0;
    for (std::int64_t d = 0; d < HS; ++d) {
      double total = 0;
      for (std::int64_t j = s.k0; j < s.end(i); ++j) total += p[j] * v.get(j, h, d);
      out.set(i, h, d, sees ? total / sum : 0);
    }
    if (args.lse) store_element(args.lse, h * Nq + i, largest + std::log(sum));
  };
  for_each_sequence(args, [&](const Sequence& s) {
    for (std::int64_t h = 0; h < NH; ++h) {
      for (std::int64_t i = s.q0; i < s.q1; ++i) row(s, i, h);
    }
  });
}

void backward_reference(const Context& context, const AttentionBackward& args) {
  check_sequences(args);
  const std::int64_t Nq = args.q.shape[0], NH = args.q.shape[1], HS = args.q.shape[2];
  const Rows q(args.q), k(args.k), v(args.v), out(args.out), dout(args.dout), dq(args.dq), dk(args.dk),
      dv(args.dv);
  const double scale = static_cast<double>(args.scale);
  auto* P = static_cast<double*>(context.scratch());
  double* dS = P + std::max(Nq, args.k.shape[0]);
  double* D = dS + std::max(Nq, args.k.shape[0]);
  const auto probability = [&](std::int64_t i, std::int64_t j, std::int64_t h) {
    return std::exp(scale * q.dot(i, k, j, h) - load_element(args.lse, h * Nq + i));
  };
  const auto query_row = [&](const Sequence& s, std::int64_t i, std::int64_t h) {
    D[i] = dout.dot(i, out, i, h);
    for (std::int64_t j = s.k0; j < s.end(i); ++j) {
      dS[j] = probability(i, j, h) * (dout.dot(i, v, j, h) - D[i]);
    }
    for (std::int64_t d = 0; d < HS; ++d) {
      double sum = 0;
      for (std::int64_t j = s.k0; j < s.end(i); ++j) sum += dS[j] * k.get(j, h, d);
      dq.set(i, h, d, scale * sum);
    }
  };
  const auto key_row = [&](const Sequence& s, std::int64_t j, std::int64_t h) {
    for (std::int64_t i = s.q0; i < s.q1; ++i) {
      P[i] = j < s.end(i) ? probability(i, j, h) : 0;
      dS[i] = j < s.end(i) ? P[i] * (dout.dot(i, v, j, h) - D[i]) : 0;
    }
    for (std::int64_t d = 0; d < HS; ++d) {
      double sum_k = 0, sum_v = 0;
      for (std::int64_t i = s.q0; i < s.q1; ++i) {
        sum_k += dS[i] * q.get(i, h, d);
        sum_v += P[i] * dout.get(i, h, d);
      }
      dk.set(j, h, d, scale * sum_k);
      dv.set(j, h, d, sum_v);
    }
  };
  for_each_sequence(args, [&](const Sequence& s) {
    for (std::int64_t h = 0; h < NH; ++h) {
      for (std::int64_t i = s.q0; i < s.q1; ++i) query_row(s, i, h);
      for (std::int64_t j = s.k0; j < s.k1; ++j) key_row(s, j, h);
    }
  });
}

}  // namespace warpwright::ops::attention
