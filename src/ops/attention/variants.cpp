#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "ops/attention/kernels.hpp"
#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "attention.forward";
constexpr std::string_view kBackward = "attention.backward";

// (N, NH, HS) whose rows and heads may be strided.
void require_rows(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype,
                  const Shape& shape) {
  require(static_cast<bool>(tensor), operation, fmt::format("{} is missing", argument));
  require_dtype(operation, argument, tensor, dtype);
  require_shape(operation, argument, tensor, shape);
  require(tensor.strides[2] == 1, operation, fmt::format("{} must have stride 1 in its last axis", argument));
}

template <class Args>
void require_inputs(std::string_view operation, const Args& a) {
  require(a.q.shape.rank() == 3 && a.q.shape[1] > 0 && a.q.shape[2] > 0, operation,
          "q must be (Nq, NH, HS) with NH and HS ≥ 1");
  require(a.k.shape.rank() == 3, operation, "k must be (Nk, NH, HS)");
  const std::int64_t Nq = a.q.shape[0], Nk = a.k.shape[0], NH = a.q.shape[1], HS = a.q.shape[2];
  require(std::max(Nq, Nk) <= std::numeric_limits<std::int32_t>::max(), operation,
          "more rows than cu_seqlens can count");
  require_rows(operation, "q", a.q, a.q.dtype, {Nq, NH, HS});
  require_rows(operation, "k", a.k, a.q.dtype, {Nk, NH, HS});
  require_rows(operation, "v", a.v, a.q.dtype, {Nk, NH, HS});
  require_rows(operation, "out", a.out, a.q.dtype, {Nq, NH, HS});
  require(a.cu_seqlens_q.shape.rank() == 1 && a.cu_seqlens_q.shape[0] > 0, operation,
          "cu_seqlens_q must be (S + 1)");
  const Shape bounds{a.cu_seqlens_q.shape[0]};
  require_tensor(operation, "cu_seqlens_q", a.cu_seqlens_q, DType::i32, bounds);
  require_tensor(operation, "cu_seqlens_k", a.cu_seqlens_k, DType::i32, bounds);
}

// (count, Lq, Lk), contiguous.
void require_pairs(std::string_view argument, const Tensor& tensor, DType dtype, std::int64_t count) {
  require(tensor.shape.rank() == 3, kForward, fmt::format("{} must have three axes", argument));
  require_tensor(kForward, argument, tensor, dtype, {count, tensor.shape[1], tensor.shape[2]});
}

AttentionForwardProblem forward_problem(const AttentionForward& a) {
  require_inputs(kForward, a);
  const std::int64_t Nq = a.q.shape[0], Nk = a.k.shape[0], NH = a.q.shape[1], HS = a.q.shape[2];
  if (a.lse) require_tensor(kForward, "lse", a.lse, accumulation_dtype(a.q.dtype), {NH, Nq});
  const std::int64_t S = a.cu_seqlens_q.shape[0] - 1;
  if (a.bias) require_pairs("bias", a.bias, a.q.dtype, NH);
  if (a.visible) require_pairs("visible", a.visible, DType::u8, S);
  require(a.max_seqlen >= 0, kForward, "max_seqlen must not be negative");
  return {S,
          Nq,
          Nk,
          NH,
          HS,
          a.q.dtype,
          a.mask,
          static_cast<bool>(a.lse),
          static_cast<bool>(a.bias),
          static_cast<bool>(a.visible),
          a.batch_invariant,
          a.max_seqlen};
}

AttentionBackwardProblem backward_problem(const AttentionBackward& a) {
  require_inputs(kBackward, a);
  const std::int64_t Nq = a.q.shape[0], Nk = a.k.shape[0], NH = a.q.shape[1], HS = a.q.shape[2];
  require_tensor(kBackward, "lse", a.lse, accumulation_dtype(a.q.dtype), {NH, Nq});
  require_rows(kBackward, "dout", a.dout, a.q.dtype, {Nq, NH, HS});
  require_rows(kBackward, "dq", a.dq, a.q.dtype, {Nq, NH, HS});
  require_rows(kBackward, "dk", a.dk, a.q.dtype, {Nk, NH, HS});
  require_rows(kBackward, "dv", a.dv, a.q.dtype, {Nk, NH, HS});
  return {a.cu_seqlens_q.shape[0] - 1, Nq, Nk, NH, HS, a.q.dtype, a.mask};
}

// What most variants say to a bias or a mask for each sequence.
std::string refuse_pairs(const AttentionForwardProblem& p) {
  return p.bias || p.visible ? "takes neither a bias nor a mask for each sequence" : "";
}
std::string refuse_pairs(const AttentionBackwardProblem&) {
  return "";
}

template <class Problem>
std::string refuse_large_heads(const Problem& p) {
  return p.HS <= attention::kMaxHeadSize ? "" : fmt::format("head size above {}", attention::kMaxHeadSize);
}

template <class Problem>
std::string refuse_tiles_avx2(const Problem& p, const DeviceInfo& device) {
  const std::string reason = refuse_without_avx2(p.dtype, device);
  return reason.empty() ? refuse_large_heads(p) : reason;
}

template <class Problem>
std::string refuse_tiles_avx512(const Problem& p, const DeviceInfo& device) {
  const std::string reason = refuse_without_avx512(p.dtype, device);
  return reason.empty() ? refuse_large_heads(p) : reason;
}

template <class Problem>
std::string refuse_amx(const Problem& p, const DeviceInfo& device) {
  if (p.dtype != DType::bf16) return fmt::format("multiplies bf16, not {}", name_of(p.dtype));
  if (!device.cpu.amx_bf16) return "the processor or the system offers no AMX";
  if (p.HS % 32 != 0) return "head size is no multiple of 32";
  if (std::string reason = refuse_pairs(p); !reason.empty()) return reason;
  return refuse_tiles_avx512(p, device);
}

#if WARPWRIGHT_CUDA

template <std::size_t (*shared_bytes)(std::int64_t HS, bool backward), class Problem>
std::string refuse_tiles_cuda(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_cuda(p, device); !reason.empty()) return reason;
  const std::size_t bytes = shared_bytes(p.HS, std::is_same_v<Problem, AttentionBackwardProblem>);
  if (bytes == 0) return fmt::format("no kernel for head size {}", p.HS);
  return bytes <= device.gpu.shared_bytes_per_block ? ""
                                                    : "needs more shared memory than a block may ask for";
}

template <class Problem>
std::string refuse_flash(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_cuda(p, device); !reason.empty()) return reason;
  if (p.dtype == DType::f32) return "multiplies bf16 and fp16, not fp32";
  if (std::string reason = refuse_pairs(p); !reason.empty()) return reason;
  return refuse_tiles_cuda<attention::cuda::flash_shared_bytes>(p, device);
}

std::string refuse_flash_short(const AttentionForwardProblem& p, const DeviceInfo& device) {
  const std::string reason = refuse_flash(p, device);
  return reason.empty() ? refuse_tiles_cuda<attention::cuda::flash_short_shared_bytes>(p, device) : reason;
}

// Queries of all heads for each multiprocessor, and of a sequence in the mean: what decides between kernels
// whose tiles are large and those that have many small ones.
std::int64_t queries_each(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return p.Nq * p.NH / std::max(device.gpu.multiprocessors, 1);
}
bool shorter_than(const AttentionForwardProblem& p, std::int64_t mean) {
  return std::max(p.Nq, p.Nk) <= mean * p.sequences;
}
constexpr std::int64_t kLargeTile = 192, kManyQueries = 450;  // for each multiprocessor

// Before the others, whose cost is 0, where a sequence is one or two of its tiles. On Hopper for heads of 32,
// too; and for heads of 64 only where there is less to do than a tile of flash_sm90 for each multiprocessor.
double flash_short_cost(const AttentionForwardProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kTile = 64;
  const bool hopper = device.gpu.major == 9;
  if (hopper && p.HS == 32) return -1;
  if (p.batch_invariant) return 1;
  const bool filled = hopper && p.HS == 64 && queries_each(p, device) >= kLargeTile;
  return !filled && shorter_than(p, kTile * 2) ? -1 : 1;
}

template <class Problem>
std::string refuse_sm90(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_cuda(p, device); !reason.empty()) return reason;
  if (p.dtype == DType::f32) return "multiplies bf16 and fp16, not fp32";
  if (std::string reason = refuse_pairs(p); !reason.empty()) return reason;
  if (device.gpu.major != 9) return "needs a GPU of compute capability 9.0";
  return attention::cuda::flash_sm90_is_built() ? "" : "the build has no code for sm_90a";
}

template <class Problem>
std::string refuse_flash_sm90(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_sm90(p, device); !reason.empty()) return reason;
  return p.HS == 64 || p.HS == 128 ? "" : "head size is neither 64 nor 128";
}

std::string refuse_flash_packed(const AttentionForwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_sm90(p, device); !reason.empty()) return reason;
  return p.HS == 32 || p.HS == 64 ? "" : "head size is neither 32 nor 64";
}

// Heads of 32 have it where there is much to do. Those of 64 have it for short texts, where these are worth a
// tile and are more than a few, for the few and long that would be less than a tile of flash_sm90 for each
// multiprocessor, and where flash_sm90's last round of tiles would leave most of the GPU without one.
double flash_packed_cost(const AttentionForwardProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kWorthATile = 32, kLong = 128, kMiddle = 384;
  constexpr std::int64_t kSomeQueries = 32;  // for each multiprocessor
  if (p.batch_invariant) return -2;
  const std::int64_t queries = queries_each(p, device);
  if (p.HS == 32) return queries >= kManyQueries ? -2 : 1;
  if (queries < kLargeTile) return shorter_than(p, queries < kSomeQueries ? kLong : kWorthATile) ? 1 : -2;
  if (shorter_than(p, kMiddle)) return -2;
  const std::int64_t blocks = std::max(device.gpu.multiprocessors, 1);
  const std::int64_t S = std::max<std::int64_t>(p.sequences, 1);
  const std::int64_t tiles = S * ((p.Nq / S + kLargeTile - 1) / kLargeTile) * p.NH;
  const std::int64_t rounds = (tiles + blocks - 1) / blocks;
  return 10 * rounds * blocks > 13 * tiles ? -2 : 1;
}

template <class Problem>
std::string refuse_flash_tf32(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_cuda(p, device); !reason.empty()) return reason;
  if (p.dtype != DType::f32) return fmt::format("multiplies fp32, not {}", name_of(p.dtype));
  if (!device.tf32) return "rounds to tf32, which is not allowed";
  if (std::string reason = refuse_pairs(p); !reason.empty()) return reason;
  return refuse_tiles_cuda<attention::cuda::flash_tf32_shared_bytes>(p, device);
}

template <class Problem>
std::string refuse_flash_fma(const Problem& p, const DeviceInfo& device) {
  return refuse_tiles_cuda<attention::cuda::flash_fma_shared_bytes>(p, device);
}

// Two floats a query and head: its lse and D.
std::size_t statistics_workspace(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return 2 * sizeof(float) * static_cast<std::size_t>(p.NH * p.Nq);
}
std::size_t sm90_workspace(const AttentionForwardProblem&, const DeviceInfo&) {
  return attention::cuda::flash_sm90_forward_workspace();
}
std::size_t sm90_workspace(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return attention::cuda::flash_sm90_backward_workspace(p.Nq, p.NH, p.sequences);
}

#endif

template <std::int64_t (*per_thread)(std::int64_t HS)>
std::size_t forward_workspace(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(device.threads * per_thread(p.HS)) * sizeof(float);
}

template <std::int64_t (*per_thread)(std::int64_t HS)>
std::size_t backward_workspace(const AttentionBackwardProblem& p, const DeviceInfo& device) {
  const std::int64_t owners = std::min<std::int64_t>(device.threads, p.NH);
  return static_cast<std::size_t>(device.threads * per_thread(p.HS) +
                                  owners * attention::gradient_sums(p.Nk, p.sequences, p.HS)) *
         sizeof(float);
}

template <class Problem>
std::size_t reference_workspace(const Problem& p, const DeviceInfo&) {
  return static_cast<std::size_t>(std::max(p.Nq, p.Nk)) * sizeof(double);
}

#if WARPWRIGHT_CUDA
std::size_t staged_workspace(const AttentionForwardProblem& p, const DeviceInfo&) {
  return attention::cuda::staged_forward_bytes(p);
}
std::size_t staged_workspace(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return attention::cuda::staged_backward_bytes(p);
}

constexpr double kMostForScores = 0x1p32;

template <class Problem>
std::string refuse_staged(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_cuda(p, device); !reason.empty()) return reason;
  constexpr bool backward = std::is_same_v<Problem, AttentionBackwardProblem>;
  // In fp64: of shapes that no memory holds the product is beyond 64 bits.
  const double bytes = (backward ? 8.0 : 4.0) * static_cast<double>(p.NH) * static_cast<double>(p.Nq) *
                       static_cast<double>(attention::cuda::most_keys(p));
  return bytes <= kMostForScores ? "" : fmt::format("its scores take {:.1f} GiB", bytes / 0x1p30);
}

// Its softmax holds a row of so many keys at most.
std::string refuse_rows(const AttentionForwardProblem& p, const DeviceInfo& device, std::int64_t most,
                        std::string_view where) {
  if (std::string reason = refuse_staged(p, device); !reason.empty()) return reason;
  const std::int64_t keys = attention::cuda::most_keys(p);
  return keys <= most ? "" : fmt::format("a row may have {} keys, {} hold {}", keys, where, most);
}

std::string refuse_staged_registers(const AttentionForwardProblem& p, const DeviceInfo& device) {
  return refuse_rows(p, device, attention::cuda::kMostKeysInRegisters, "a warp's registers");
}

std::string refuse_staged_shared(const AttentionForwardProblem& p, const DeviceInfo& device) {
  const std::size_t bytes = device.gpu.shared_bytes_per_block;
  return refuse_rows(p, device, static_cast<std::int64_t>(bytes / sizeof(float)),
                     fmt::format("{} bytes of a block's shared memory", bytes));
}
#endif

using Forward = Variant<AttentionForwardProblem, AttentionForward>;
using Backward = Variant<AttentionBackwardProblem, AttentionBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.flash_sm90", refuse_flash_sm90, attention::cuda::flash_sm90_forward, sm90_workspace},
      Forward{"cuda.flash_packed", refuse_flash_packed, attention::cuda::flash_packed_forward, nullptr,
              flash_packed_cost},
      Forward{"cuda.flash", refuse_flash, attention::cuda::flash_forward},
      Forward{"cuda.flash_short", refuse_flash_short, attention::cuda::flash_short_forward, nullptr,
              flash_short_cost},
      Forward{"cuda.flash_tf32", refuse_flash_tf32, attention::cuda::flash_tf32_forward},
      Forward{"cuda.flash_fma", refuse_flash_fma, attention::cuda::flash_fma_forward},
      Forward{"cuda.staged", refuse_staged, attention::cuda::staged_forward, staged_workspace},
      // What they refuse depends on lengths, and how they add up; so only where they are forced.
      Forward{"cuda.staged_registers", refuse_staged_registers, attention::cuda::staged_registers_forward,
              staged_workspace},
      Forward{"cuda.staged_shared", refuse_staged_shared, attention::cuda::staged_shared_forward,
              staged_workspace},
#endif
      Forward{"cpu.amx_bf16", refuse_amx, attention::amx_bf16::forward,
              forward_workspace<attention::amx_forward_scratch>},
      Forward{"cpu.avx512", refuse_tiles_avx512, attention::avx512::forward,
              forward_workspace<attention::forward_scratch>},
      Forward{"cpu.avx2", refuse_tiles_avx2, attention::avx2::forward,
              forward_workspace<attention::forward_scratch>},
      Forward{kReference, refuse_other_devices, attention::forward_reference, reference_workspace},
};

constexpr std::array kBackwardVariants {
#if WARPWRIGHT_CUDA
  Backward{"cuda.flash_sm90", refuse_flash_sm90, attention::cuda::flash_sm90_backward, sm90_workspace},
      Backward{"cuda.flash", refuse_flash, attention::cuda::flash_backward, statistics_workspace},
      Backward{"cuda.flash_tf32", refuse_flash_tf32, attention::cuda::flash_tf32_backward,
               statistics_workspace},
      Backward{"cuda.flash_fma", refuse_flash_fma, attention::cuda::flash_fma_backward, statistics_workspace},
      Backward{"cuda.staged", refuse_staged, attention::cuda::staged_backward, staged_workspace},
#endif
      Backward{"cpu.amx_bf16", refuse_amx, attention::amx_bf16::backward,
               backward_workspace<attention::amx_backward_scratch>},
      Backward{"cpu.avx512", refuse_tiles_avx512, attention::avx512::backward,
               backward_workspace<attention::backward_scratch>},
      Backward{"cpu.avx2", refuse_tiles_avx2, attention::avx2::backward,
               backward_workspace<attention::backward_scratch>},
      Backward{kReference, refuse_other_devices, attention::backward_reference, reference_workspace},
};

// (query, key) pairs that the mask lets through where all sequences are equally long.
template <class Problem>
double visible_pairs(const Problem& p) {
  const double S = static_cast<double>(std::max<std::int64_t>(p.sequences, 1));
  const double Lq = static_cast<double>(p.Nq) / S, Lk = static_cast<double>(p.Nk) / S;
  if (p.mask == Mask::none) return S * Lq * Lk;
  return S * (Lq <= Lk ? Lq * (Lk - (Lq - 1) / 2) : Lk * (Lk + 1) / 2);
}

std::int64_t padded_head(std::int64_t HS) {  // to the longest vector
  return (HS + 15) / 16 * 16;
}

}  // namespace

void attention::check_sequences(std::string_view operation, const Tensor& cu_seqlens, std::int64_t elements) {
  const auto* bounds = cu_seqlens.as<std::int32_t>();
  const std::int64_t last = cu_seqlens.shape[0] - 1;
  bool ascending = true;
  for (std::int64_t s = 0; s < last; ++s) ascending = ascending && bounds[s] <= bounds[s + 1];
  require(ascending && bounds[0] == 0 && bounds[last] == elements, operation,
          fmt::format("cu_seqlens must ascend from 0 to {} rows", elements));
}

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

void attention::check_sequences(const AttentionForward& a) {
  check_sequences(kForward, a.cu_seqlens_q, a.q.shape[0]);
  check_sequences(kForward, a.cu_seqlens_k, a.k.shape[0]);
  const std::int64_t most = std::max(longest(a.cu_seqlens_q), longest(a.cu_seqlens_k));
  require(a.max_seqlen == 0 || most <= a.max_seqlen, kForward, "a sequence is longer than max_seqlen");
  for (const Tensor& pairs : {a.bias, a.visible}) {
    if (!pairs) continue;
    const bool fits = longest(a.cu_seqlens_q) <= pairs.shape[1] && longest(a.cu_seqlens_k) <= pairs.shape[2];
    require(fits, kForward, "a sequence is longer than bias or visible");
  }
}

void attention::check_sequences(const AttentionBackward& a) {
  check_sequences(kBackward, a.cu_seqlens_q, a.q.shape[0]);
  check_sequences(kBackward, a.cu_seqlens_k, a.k.shape[0]);
}

std::int64_t attention::forward_scratch(std::int64_t HS) {
  return 4 * kBlock * padded_head(HS) + kBlock * kBlock + 3 * kBlock;
}
std::int64_t attention::backward_scratch(std::int64_t HS) {
  return 7 * kBlock * padded_head(HS) + 2 * kBlock * kBlock + 2 * kBlock;
}
std::int64_t attention::amx_forward_scratch(std::int64_t HS) {
  const std::int64_t packed = HS / 2 * kBlock;  // bf16 of a block
  return kAmxGroups * (3 * packed + 2 * kBlock) + 3 * packed + kBlock * kBlock + kBlock * kBlock / 2;
}
std::int64_t attention::amx_backward_scratch(std::int64_t HS) {
  const std::int64_t packed = HS / 2 * kBlock;
  return kAmxGroups * (6 * packed + 2 * kBlock) + 4 * packed + 2 * kBlock * kBlock +
         3 * (kBlock * kBlock / 2);
}
std::int64_t attention::gradient_sums(std::int64_t Nk, std::int64_t sequences, std::int64_t HS) {
  return 2 * (Nk + kSumRows * sequences) * padded_head(HS);
}

std::string AttentionForwardProblem::describe() const {
  return fmt::format("S={} Nq={} Nk={} NH={} HS={} {}{}{}", sequences, Nq, Nk, NH, HS, name_of(dtype),
                     mask == Mask::causal ? " causal" : "", lse ? " +lse" : "") +
         (bias ? " +bias" : "") + (visible ? " +visible" : "") + (batch_invariant ? " invariant" : "") +
         (max_seqlen > 0 ? fmt::format(" max_seqlen={}", max_seqlen) : "");
}
double AttentionForwardProblem::flops() const {
  return 4 * visible_pairs(*this) * static_cast<double>(NH * HS);
}
double AttentionForwardProblem::bytes() const {
  return 2 * static_cast<double>((Nq + Nk) * NH * HS) * static_cast<double>(size_of(dtype)) +
         (lse ? 4 * static_cast<double>(NH * Nq) : 0);
}

std::string AttentionBackwardProblem::describe() const {
  return fmt::format("S={} Nq={} Nk={} NH={} HS={} {}{}", sequences, Nq, Nk, NH, HS, name_of(dtype),
                     mask == Mask::causal ? " causal" : "");
}
double AttentionBackwardProblem::flops() const {
  return 10 * visible_pairs(*this) * static_cast<double>(NH * HS);
}
double AttentionBackwardProblem::bytes() const {
  return 4 * static_cast<double>((Nq + Nk) * NH * HS) * static_cast<double>(size_of(dtype)) +
         4 * static_cast<double>(NH * Nq);
}

const Op<AttentionForwardProblem, AttentionForward>& attention_forward_op() {
  static const Op<AttentionForwardProblem, AttentionForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

const Op<AttentionBackwardProblem, AttentionBackward>& attention_backward_op() {
  static const Op<AttentionBackwardProblem, AttentionBackward> op{kBackward, kBackwardVariants,
                                                                  backward_problem};
  return op;
}

}  // namespace warpwright::ops
