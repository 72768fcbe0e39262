// Attention backward in bf16 and fp16 on Hopper. As in flash.cuh, one kernel sums dq, and another sums dk and
// dv. In both, each group of four warps has 64 rows of the tile that stays (queries, or keys), and tiles of
// 64 rows (keys and values, or queries and dout) stream by. Three groups sum dq at head size 64; otherwise
// there are registers for two.
#include "ops/attention/cuda/sm90/backward_key.cuh"
#include "ops/attention/cuda/sm90/backward_query.cuh"
#include "ops/attention/cuda/sm90/launch.cuh"

namespace warpwright::ops::attention::cuda {

Refusal refuse_flash_sm90(const AttentionBackwardProblem& p, const DeviceInfo&) {
  if (p.HS != 64 && p.HS != 128) return "head size is neither 64 nor 128";
  return refuse_boxes(p);
}

std::size_t flash_sm90_workspace(const AttentionBackwardProblem& p, const DeviceInfo&) {
  return sm90::kCounterBytes +
         static_cast<std::size_t>(p.NH * (p.Nq + p.sequences + sm90::kBox + 2)) * sizeof(RowStatistics);
}

void flash_sm90_backward(const Context& context, const AttentionBackward& a, const RotationBack& rotation) {
  using namespace sm90;
  constexpr std::string_view kWhat = "attention.backward cuda.flash_sm90";
  unsigned* const next = counters(context, context.scratch());
  const BackwardParameters p(a, static_cast<std::byte*>(context.scratch()) + kCounterBytes);
  const BackwardMaps maps{map_of(a.q), map_of(a.k), map_of(a.v), map_of(a.dout), p, rotation, next, next + 1};
  const Sequences& sequences = p.sequences;
  visit_shape(a, [&]<class T, int kHeadSize, bool kWindow>() {
    using Queries = BackwardShape<T, kHeadSize, kHeadSize == 64 ? 3 : 2, kWindow>;
    using Keys = BackwardShape<T, kHeadSize, 2, kWindow>;
    launch(backward_query_sm90<Queries>, context, maps,
           resident(context, sequences.blocks(sequences.Nq, Queries::kRows)), Queries::kThreads,
           Queries::kShared, kWhat);
    launch(backward_key_sm90<Keys>, context, maps,
           resident(context, sequences.blocks(sequences.Nk, Keys::kRows, sequences.key_heads())),
           Keys::kThreads, Keys::kShared, kWhat);
  });
}

namespace {

void run_backward(const Context& context, const AttentionBackward& args) {
  flash_sm90_backward(context, args, {});
}

}  // namespace
}  // namespace warpwright::ops::attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionBackward, "cuda.flash_sm90"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = attention::cuda::run_backward,
    .refuse = attention::cuda::refuse_flash_sm90,
    .workspace = attention::cuda::flash_sm90_workspace};

}  // namespace warpwright::ops
