#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "ops/attention/kernels.hpp"
#include "ops/heads.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "attention.forward";
constexpr std::string_view kBackwardName = "attention.backward";

template <class Args>
void require_inputs(std::string_view operation, const Args& a) {
  require(a.q.shape.rank() == 3 && a.q.shape[1] > 0 && a.q.shape[2] > 0, operation,
          "q must be (Nq, NH, HS) with NH and HS ≥ 1");
  require(a.k.shape.rank() == 3 && a.k.shape[1] > 0, operation, "k must be (Nk, KH, HS) with KH ≥ 1");
  const std::int64_t Nq = a.q.shape[0], NH = a.q.shape[1], HS = a.q.shape[2];
  const std::int64_t Nk = a.k.shape[0], KH = a.k.shape[1];
  require(NH % KH == 0, operation, fmt::format("the {} heads of k must divide the {} of q", KH, NH));
  require(std::max(Nq, Nk) <= std::numeric_limits<std::int32_t>::max(), operation,
          "more rows than cu_seqlens can count");
  require_heads(operation, "q", a.q, a.q.dtype, {Nq, NH, HS});
  require_heads(operation, "k", a.k, a.q.dtype, {Nk, KH, HS});
  require_heads(operation, "v", a.v, a.q.dtype, {Nk, KH, HS});
  require_heads(operation, "out", a.out, a.q.dtype, {Nq, NH, HS});
  require(a.cu_seqlens_q.shape.rank() == 1 && a.cu_seqlens_q.shape[0] > 0, operation,
          "cu_seqlens_q must be (S + 1)");
  const Shape bounds{a.cu_seqlens_q.shape[0]};
  require_tensor(operation, "cu_seqlens_q", a.cu_seqlens_q, DType::i32, bounds);
  require_tensor(operation, "cu_seqlens_k", a.cu_seqlens_k, DType::i32, bounds);
  require(a.window >= 0 && a.window <= std::numeric_limits<std::int32_t>::max(), operation,
          "window must be 0 or a number of 31 bits");
  require(a.window == 0 || a.mask == Mask::causal, operation, "a window needs a causal mask");
}

// Requires the shape (…, Lq, Lk) with these first axes.
void require_pairs(std::string_view argument, const Tensor& tensor, DType dtype, Shape shape) {
  const int rank = tensor.shape.rank();
  require(rank == shape.rank() + 2, kForwardName,
          fmt::format("{} must have {} axes", argument, shape.rank() + 2));
  shape.append(tensor.shape[rank - 2]);
  shape.append(tensor.shape[rank - 1]);
  require_dtype(kForwardName, argument, tensor, dtype);
  require_shape(kForwardName, argument, tensor, shape);
  require(tensor.shape[rank - 1] <= 1 || tensor.strides[rank - 1] == 1, kForwardName,
          fmt::format("{} must have stride 1 in its last axis", argument));
}

bool rows_are_aligned(const Tensor& t) {
  bool aligned = begin_at_packs(t);
  for (int axis = 0; t && axis + 1 < t.shape.rank(); ++axis) {
    aligned = aligned && t.strides[axis] * static_cast<std::int64_t>(size_of(t.dtype)) % 16 == 0;
  }
  return aligned;
}

bool rows_are_distinct(const Tensor& t) {
  if (!t) return true;
  bool distinct = t.elements() > 0 && t.strides[t.shape.rank() - 2] > 0;
  for (int axis = 0; axis + 2 < t.shape.rank(); ++axis) distinct = distinct && t.strides[axis] >= 0;
  return distinct;
}

AttentionLayout layout_of(std::initializer_list<Tensor> tensors) {
  AttentionLayout layout;
  for (const Tensor& t : tensors) {
    layout.aligned = layout.aligned && heads_begin_at_packs(t);
    layout.distinct = layout.distinct && t.strides[0] > 0 && t.strides[1] > 0;
    layout.adjacent = layout.adjacent && t.strides[1] == t.shape[2];
  }
  return layout;
}

// The window, or 0 if no sequence is longer. The bits of a batch-invariant call may not depend on that.
std::int64_t window_that_hides(std::int64_t window, std::int64_t Nk, std::int64_t max_seqlen,
                               bool batch_invariant) {
  const std::int64_t longest = max_seqlen > 0 ? std::min(Nk, max_seqlen) : Nk;
  return window < longest || batch_invariant ? window : 0;
}

// The number of pairs in which query i sees key j ≤ i + Lk − Lq.
double causal_pairs(double Lq, double Lk) {
  return Lq <= Lk ? Lq * (Lk - (Lq - 1) / 2) : Lk * (Lk + 1) / 2;
}

// The number of (query, key) pairs that the mask leaves visible, for sequences of equal length.
template <class Problem>
double visible_pairs(const Problem& p) {
  const double S = static_cast<double>(std::max<std::int64_t>(p.sequences, 1));
  const double Lq = static_cast<double>(p.Nq) / S, Lk = static_cast<double>(p.Nk) / S;
  if (p.mask == Mask::none) return S * Lq * Lk;
  // The window hides the pairs that a causal mask leaves if the last W keys are taken away.
  const double before = p.window > 0 ? std::max(Lk - static_cast<double>(p.window), 0.0) : 0;
  return S * (causal_pairs(Lq, Lk) - causal_pairs(Lq, before));
}

// The rows of all query heads and of the key heads that some query sees: (N, heads) of q and of k.
template <class Problem>
double head_rows(const Problem& p) {
  const std::int64_t keys = p.window > 0 ? std::min(p.Nk, p.Nq + p.sequences * (p.window - 1)) : p.Nk;
  return static_cast<double>(p.Nq * p.NH + keys * p.KH);
}

template <class Problem>
std::string sizes_of(const Problem& p) {
  return fmt::format("S={} Nq={} Nk={} NH={}{} HS={} {}{}{}", p.sequences, p.Nq, p.Nk, p.NH,
                     p.KH == p.NH ? "" : fmt::format(" KH={}", p.KH), p.HS, name_of(p.dtype),
                     p.mask == Mask::causal ? " causal" : "",
                     p.window > 0 ? fmt::format(" window={}", p.window) : "");
}

// Describes properties that few calls have.
std::string notes_of(std::int64_t max_seqlen, bool positive_scale, const AttentionLayout& layout) {
  return (max_seqlen > 0 ? fmt::format(" max_seqlen={}", max_seqlen) : "") +
         fmt::format("{}{}{}{}", positive_scale ? "" : " scale≤0", unaligned_note(layout.aligned),
                     layout.distinct ? "" : " strides≤0", layout.adjacent ? "" : " heads apart");
}

}  // namespace

AttentionForwardProblem AttentionForward::problem() const {
  require_inputs(kForwardName, *this);
  const std::int64_t S = cu_seqlens_q.shape[0] - 1;
  const std::int64_t Nq = q.shape[0], Nk = k.shape[0], NH = q.shape[1], HS = q.shape[2];
  if (lse) require_tensor(kForwardName, "lse", lse, accumulation_dtype(q.dtype), {NH, Nq});
  const bool bias_each = bias.shape.rank() == 4;
  if (bias) require_pairs("bias", bias, q.dtype, bias_each ? Shape{S, NH} : Shape{NH});
  if (visible) require_pairs("visible", visible, DType::u8, {S});
  require(max_seqlen >= 0, kForwardName, "max_seqlen must not be negative");
  return {.sequences = S,
          .Nq = Nq,
          .Nk = Nk,
          .NH = NH,
          .KH = k.shape[1],
          .HS = HS,
          .dtype = q.dtype,
          .mask = mask,
          .window = window_that_hides(window, Nk, max_seqlen, batch_invariant),
          .lse = static_cast<bool>(lse),
          .bias = static_cast<bool>(bias),
          .visible = static_cast<bool>(visible),
          .batch_invariant = batch_invariant,
          .bias_each = bias && bias_each,
          .visible_rows = visible ? visible.shape[1] : 0,
          .visible_cols = visible ? visible.shape[2] : 0,
          .pairs_aligned = rows_are_aligned(bias) && rows_are_aligned(visible),
          .pairs_distinct = rows_are_distinct(bias) && rows_are_distinct(visible),
          .max_seqlen = max_seqlen,
          .positive_scale = scale > 0,
          .layout = layout_of({q, k, v})};
}

AttentionBackwardProblem AttentionBackward::problem() const {
  require_inputs(kBackwardName, *this);
  const std::int64_t Nq = q.shape[0], Nk = k.shape[0], NH = q.shape[1], HS = q.shape[2];
  require_tensor(kBackwardName, "lse", lse, accumulation_dtype(q.dtype), {NH, Nq});
  require_heads(kBackwardName, "dout", dout, q.dtype, {Nq, NH, HS});
  require_heads(kBackwardName, "dq", dq, q.dtype, {Nq, NH, HS});
  require_heads(kBackwardName, "dk", dk, q.dtype, k.shape);
  require_heads(kBackwardName, "dv", dv, q.dtype, k.shape);
  require(max_seqlen >= 0, kBackwardName, "max_seqlen must not be negative");
  return {.sequences = cu_seqlens_q.shape[0] - 1,
          .Nq = Nq,
          .Nk = Nk,
          .NH = NH,
          .KH = k.shape[1],
          .HS = HS,
          .dtype = q.dtype,
          .mask = mask,
          .window = window_that_hides(window, Nk, max_seqlen, false),
          .max_seqlen = max_seqlen,
          .positive_scale = scale > 0,
          .layout = layout_of({q, k, v, dout})};
}

std::string AttentionForwardProblem::describe() const {
  return sizes_of(*this) + (lse ? " +lse" : "") +
         (bias_each ? " +bias for each"
          : bias    ? " +bias"
                    : "") +
         (visible ? " +visible" : "") + (pairs_aligned ? "" : " pairs unaligned") +
         (pairs_distinct ? "" : " pairs strides≤0") + (batch_invariant ? " invariant" : "") +
         notes_of(max_seqlen, positive_scale, layout);
}
double AttentionForwardProblem::flops() const {
  return 4 * visible_pairs(*this) * static_cast<double>(NH * HS);
}
double AttentionForwardProblem::bytes() const {
  return 2 * head_rows(*this) * static_cast<double>(HS) * static_cast<double>(size_of(dtype)) +
         (lse ? 4 * static_cast<double>(NH * Nq) : 0);
}

std::string AttentionBackwardProblem::describe() const {
  return sizes_of(*this) + notes_of(max_seqlen, positive_scale, layout);
}
double AttentionBackwardProblem::flops() const {
  return 10 * visible_pairs(*this) * static_cast<double>(NH * HS);
}
double AttentionBackwardProblem::bytes() const {
  return 4 * head_rows(*this) * static_cast<double>(HS) * static_cast<double>(size_of(dtype)) +
         4 * static_cast<double>(NH * Nq);
}

namespace attention {
namespace {

std::int64_t longest(const Tensor& cu_seqlens) {
  const auto* bounds = cu_seqlens.as<std::int32_t>();
  std::int64_t length = 0;
  for (std::int64_t s = 0; s + 1 < cu_seqlens.shape[0]; ++s) {
    length = std::max<std::int64_t>(length, bounds[s + 1] - bounds[s]);
  }
  return length;
}

}  // namespace

void check_sequences(std::string_view operation, const Tensor& cu_seqlens, std::int64_t elements) {
  const auto* bounds = cu_seqlens.as<std::int32_t>();
  const std::int64_t last = cu_seqlens.shape[0] - 1;
  bool ascending = true;
  for (std::int64_t s = 0; s < last; ++s) ascending = ascending && bounds[s] <= bounds[s + 1];
  require(ascending && bounds[0] == 0 && bounds[last] == elements, operation,
          fmt::format("cu_seqlens must ascend from 0 to {} rows", elements));
}

template <class Args>
void check_sequences(std::string_view operation, const Args& a) {
  check_sequences(operation, a.cu_seqlens_q, a.q.shape[0]);
  check_sequences(operation, a.cu_seqlens_k, a.k.shape[0]);
  const std::int64_t most = std::max(longest(a.cu_seqlens_q), longest(a.cu_seqlens_k));
  require(a.max_seqlen == 0 || most <= a.max_seqlen, operation, "a sequence is longer than max_seqlen");
}

void check_sequences(const AttentionForward& a) {
  check_sequences(kForwardName, a);
  for (const Tensor& pairs : {a.bias, a.visible}) {
    if (!pairs) continue;
    const int rank = pairs.shape.rank();
    const bool fits =
        longest(a.cu_seqlens_q) <= pairs.shape[rank - 2] && longest(a.cu_seqlens_k) <= pairs.shape[rank - 1];
    require(fits, kForwardName, "a sequence is longer than bias or visible");
  }
}

void check_sequences(const AttentionBackward& a) {
  check_sequences(kBackwardName, a);
}

PairPlaces places_of_bias(const Tensor& t) {
  if (!t) return {};
  const int head = t.shape.rank() - 3;
  return {.sequence = head == 1 ? t.strides[0] : 0,
          .head = t.strides[head],
          .row = t.strides[head + 1],
          .Lq = t.shape[head + 1],
          .Lk = t.shape[head + 2]};
}
PairPlaces places_of_visible(const Tensor& t) {
  if (!t) return {};
  return {.sequence = t.strides[0], .head = 0, .row = t.strides[1], .Lq = t.shape[1], .Lk = t.shape[2]};
}

Refusal refuse_pairs(const AttentionForwardProblem& p) {
  return p.bias || p.visible ? "takes neither a bias nor a mask for each sequence" : "";
}
Refusal refuse_pairs(const AttentionBackwardProblem&) {
  return "";
}

}  // namespace attention

}  // namespace warpwright::ops
