#include "ops/attention/cpu/amx_backward.hpp"
#include "ops/attention/cpu/amx_forward.hpp"
#include "ops/cpu/isa.hpp"

namespace warpwright::ops::attention::amx_bf16 {
namespace {

void forward(const Context& context, const AttentionForward& args) {
  check_sequences(args);
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t per_thread = amx_forward_scratch(args.q.shape[2]);
  for_each_query_block<bf16>(context, args, kAmxGroups * kBlock,
                             [&](const ForwardHead<bf16>& head, std::int64_t q0, int thread) {
                               float* own = scratch + thread * per_thread;
                               if (head.sequence.queries <= kFewQueries) return forward_queries(head, own);
                               const TileSession session;
                               forward_groups(head, q0, own);
                             });
}

void backward(const Context& context, const AttentionBackward& args) {
  check_sequences(args);
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t per_thread = amx_backward_scratch(args.q.shape[2]);
  float* sums = scratch + context.threads() * per_thread;
  for_each_head<bf16>(context, args, sums, [&](const BackwardHead<bf16>& head, int thread) {
    const TileSession session;
    const AmxBackwardTiles t(scratch + thread * per_thread, head.HS);
    clear(head.sums, 2 * head.sum_rows() * head.HS);
    for (std::int64_t q0 = 0; q0 < head.sequence.queries; q0 += kAmxGroups * kBlock)
      backward_groups(head, q0, t);
    write_key_gradients(head, head.HS);
  });
}

}  // namespace
}  // namespace warpwright::ops::attention::amx_bf16

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AttentionForward, kCpu) = {.needs = kThisCpu,
                                             .dtypes = DType::bf16,
                                             .run = attention::amx_bf16::forward,
                                             .refuse = attention::refuse_amx,
                                             .workspace = attention::amx_forward_workspace};
WARPWRIGHT_KERNEL(AttentionBackward, kCpu) = {.needs = kThisCpu,
                                              .dtypes = DType::bf16,
                                              .run = attention::amx_bf16::backward,
                                              .refuse = attention::refuse_amx,
                                              .workspace = attention::amx_backward_workspace};

}  // namespace warpwright::ops
