#include "model/transformer.hpp"

#include <functional>

#include "model/attention_views.hpp"
#include "ops/attention/attention.hpp"
#include "ops/cached_attention/cached_attention.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/gelu/gelu.hpp"
#include "ops/head_norm/head_norm.hpp"
#include "ops/matmul/matmul.hpp"
#include "ops/norm/norm.hpp"
#include "ops/rope/rope.hpp"
#include "ops/rotated_attention/rotated_attention.hpp"

namespace warpwright {
namespace {

using namespace ops;

void normalize(Context& ctx, const TransformerDescription& d, const Tensor& x, const NormParameters& p,
               const NormActivations& a) {
  norm_forward(ctx, {.x = x,
                     .weight = p.weight,
                     .bias = p.bias,
                     .out = a.out,
                     .mean = a.mean,
                     .rstd = a.rstd,
                     .eps = d.eps,
                     .centered = d.layer_norm,
                     .lost = a.lost});
}
// out = residual + x·Wᵀ + bias. next: the weight of the product that follows.
void add_projection(Context& ctx, const Tensor& x, const Linear& layer, const Tensor& residual,
                    const Tensor& out, bool batch_invariant, const Tensor& next) {
  linear_forward(ctx, layer,
                 {.x = x,
                  .weight = layer.weight,
                  .bias = layer.bias,
                  .out = out,
                  .preact = {},
                  .batch_invariant = batch_invariant,
                  .residual = residual,
                  .next_weight = next});
}

// Reads the normalization's input x, or its output if it has kept the lost columns.
void normalize_backward(Context& ctx, const TransformerDescription& d, const Tensor& dout, const Tensor& x,
                        const NormParameters& p, const NormActivations& a, const Tensor& dx,
                        const NormParameters& g, Store dx_store) {
  NormBackward args{.dout = dout,
                    .x = x,
                    .weight = p.weight,
                    .mean = a.mean,
                    .rstd = a.rstd,
                    .dx = dx,
                    .dweight = g.weight,
                    .dbias = g.bias,
                    .dx_store = dx_store,
                    .dparameters_store = Store::assign,
                    .centered = d.layer_norm};
  if (a.lost) {
    args.x = {};
    args.out = a.out;
    args.bias = p.bias;
    args.lost = a.lost;
  }
  norm_backward(ctx, args);
}

// The heads of q and k in (N, H, HS), which are normalized and rotated together.
Tensor qk_of(const TransformerDescription& d, const Tensor& qkv) {
  return qkv.slice(1, 0, d.heads + d.key_heads);
}
// The heads of q, k and v, each in (N, H, HS); q and k also in (N, NH + KH, HS).
Tensor q_of(const TransformerDescription& d, const Tensor& qkv) {
  return qkv.slice(1, 0, d.heads);
}
Tensor k_of(const TransformerDescription& d, const Tensor& qkv) {
  return qkv.slice(1, d.heads, d.key_heads);
}
Tensor v_of(const TransformerDescription& d, const Tensor& qkv) {
  return qkv.slice(1, d.heads + d.key_heads, d.key_heads);
}
// q and k as attention reads them.
Tensor attended(const TransformerDescription& d, const TransformerBlockActivations& a) {
  return a.qk ? a.qk : qk_of(d, a.qkv);
}

// The batch attends to itself.
void attention(Context& ctx, const TransformerPass& t, const TransformerBlock& p,
               const TransformerBlockActivations& a, bool batch_invariant) {
  const Tensor qk = attended(t.d, a);
  attention_forward(ctx, {.q = q_of(t.d, qk),
                          .k = k_of(t.d, qk),
                          .v = v_of(t.d, a.qkv),
                          .cu_seqlens_q = t.batch.cu_seqlens,
                          .cu_seqlens_k = t.batch.cu_seqlens,
                          .out = a.att,
                          .lse = a.lse,
                          .scale = attention_scale(t.d.head_size),
                          .mask = Mask::causal,
                          .window = p.window,
                          .batch_invariant = batch_invariant,
                          .max_seqlen = t.batch.max_seqlen});
}

// Stores the batch's keys and values.
void append_to_cache(Context& ctx, const TransformerPass& t, const TransformerBlockActivations& a,
                     const LayerCache& cache, const CachePlaces& places) {
  cache_append(ctx, {.k = k_of(t.d, attended(t.d, a)),
                     .v = v_of(t.d, a.qkv),
                     .slots = places.slots,
                     .key_cache = cache.keys,
                     .value_cache = cache.values});
}

// The batch attends to all tokens of its sequences so far, and its own keys and values are stored.
void attention_to_cache(Context& ctx, const TransformerPass& t, const TransformerBlock& p,
                        const TransformerBlockActivations& a, const LayerCache& cache,
                        const CachePlaces& places) {
  const Tensor qk = attended(t.d, a);
  cached_attention(ctx, {.q = q_of(t.d, qk),
                         .k = k_of(t.d, qk),
                         .v = v_of(t.d, a.qkv),
                         .key_cache = cache.keys,
                         .value_cache = cache.values,
                         .block_table = places.block_table,
                         .cu_seqlens = t.batch.cu_seqlens,
                         .lengths = places.lengths,
                         .out = a.att,
                         .scale = attention_scale(t.d.head_size),
                         .window = p.window});
}

// Writes dq, dk and dv; dq and dk are rotated back if the model has rope.
void attention_gradient(Context& ctx, const TransformerPass& t, const TransformerBlock& p,
                        const TransformerBlockActivations& a, const TransformerBackwardBuffers::Block& d) {
  const Tensor qk = attended(t.d, a);
  AttentionBackward args{.q = q_of(t.d, qk),
                         .k = k_of(t.d, qk),
                         .v = v_of(t.d, a.qkv),
                         .cu_seqlens_q = t.batch.cu_seqlens,
                         .cu_seqlens_k = t.batch.cu_seqlens,
                         .out = a.att,
                         .lse = a.lse,
                         .dout = d.datt,
                         .dq = {},
                         .dk = {},
                         .dv = v_of(t.d, d.dqkv),
                         .scale = attention_scale(t.d.head_size),
                         .mask = Mask::causal,
                         .window = p.window,
                         .max_seqlen = t.batch.max_seqlen};
  if (t.d.rope) {
    return rotated_attention_backward(ctx, {.attention = args,
                                            .dqk = qk_of(t.d, d.dqkv),
                                            .positions = t.batch.positions,
                                            .cos = t.rope.cos,
                                            .sin = t.rope.sin,
                                            .wrong = t.rope.wrong});
  }
  args.dq = q_of(t.d, d.dqkv);
  args.dk = k_of(t.d, d.dqkv);
  attention_backward(ctx, args);
}

// Each head of q and k by itself, if the model has QK norm.
void normalize_heads(Context& ctx, const TransformerDescription& d, const TransformerBlock& p,
                     const TransformerBlockActivations& a) {
  if (!d.qk_norm) return;
  head_norm_forward(ctx, {.x = qk_of(d, a.qkv),
                          .q_weight = p.q_norm,
                          .k_weight = p.k_norm,
                          .out = attended(d, a),
                          .rstd = a.qk_rstd,
                          .q_heads = d.heads,
                          .eps = d.eps});
}
void normalize_heads_backward(Context& ctx, const TransformerDescription& d, const TransformerBlock& p,
                              const TransformerBlockActivations& a, const Tensor& dqk,
                              const TransformerBlock& g) {
  if (!d.qk_norm) return;
  head_norm_backward(ctx, {.dout = dqk,
                           .x = qk_of(d, a.qkv),
                           .q_weight = p.q_norm,
                           .k_weight = p.k_norm,
                           .rstd = a.qk_rstd,
                           .dx = dqk,
                           .dq_weight = g.q_norm,
                           .dk_weight = g.k_norm,
                           .q_heads = d.heads,
                           .dweights_store = Store::assign});
}

// In place: positions are rotated into q and k, if they are not learned.
void rotate(Context& ctx, const TransformerPass& t, const Tensor& qk) {
  if (!t.d.rope) return;
  rope_forward(ctx, {.x = qk,
                     .positions = t.batch.positions,
                     .cos = t.rope.cos,
                     .sin = t.rope.sin,
                     .out = qk,
                     .wrong = t.rope.wrong});
}

// norm1 to q, k and v, as attention reads them.
void project(Context& ctx, const TransformerPass& t, const TransformerBlock& p,
             const TransformerBlockActivations& a, bool batch_invariant) {
  if (t.d.rope && !t.d.qk_norm) {
    return rotated_linear_forward(ctx, p.qkv,
                                  {.x = a.norm1.out,
                                   .weight = p.qkv.weight,
                                   .bias = p.qkv.bias,
                                   .out = a.qkv,
                                   .rotated = t.d.heads + t.d.key_heads,
                                   .positions = t.batch.positions,
                                   .cos = t.rope.cos,
                                   .sin = t.rope.sin,
                                   .wrong = t.rope.wrong,
                                   .batch_invariant = batch_invariant,
                                   .next_weight = p.attproj.weight});
  }
  linear_forward(ctx, p.qkv,
                 {.x = a.norm1.out,
                  .weight = p.qkv.weight,
                  .bias = p.qkv.bias,
                  .out = matrix(a.qkv),
                  .preact = {},
                  .batch_invariant = batch_invariant,
                  .next_weight = p.attproj.weight});
  normalize_heads(ctx, t.d, p, a);
  rotate(ctx, t, attended(t.d, a));
}

// norm2 to fc: a product and its activation, or a product for gate and up and the gate.
void expand(Context& ctx, const TransformerDescription& d, const TransformerBlock& p,
            const TransformerBlockActivations& a, bool batch_invariant) {
  if (d.gate) {
    return gated_linear_forward(ctx, p.fc,
                                {.x = a.norm2.out,
                                 .weight = p.fc.weight,
                                 .bias = p.fc.bias,
                                 .gate_up = a.fc_preact,
                                 .out = a.fc,
                                 .activation = *d.gate,
                                 .batch_invariant = batch_invariant,
                                 .next_weight = p.fcproj.weight});
  }
  linear_forward(ctx, p.fc,
                 {.x = a.norm2.out,
                  .weight = p.fc.weight,
                  .bias = p.fc.bias,
                  .out = a.fc,
                  .preact = a.fc_preact,
                  .activation = d.activation,
                  .batch_invariant = batch_invariant,
                  .next_weight = p.fcproj.weight});
}

// The gradient of the block's output to that of fc's product, which it returns. A gate also computes fc again
// if fc_again is given.
Tensor expansion_gradient(Context& ctx, const TransformerDescription& d, const TransformerBlock& p,
                          const TransformerBlockActivations& a, const Tensor& dresidual, const Tensor& dfc,
                          const Tensor& fc_again) {
  if (!d.gate) {
    matmul_dx(ctx, {dresidual, p.fcproj.weight, a.fc_preact, dfc, d.activation});
    return dfc;
  }
  gated_dx(ctx, {.dout = dresidual,
                 .weight = p.fcproj.weight,
                 .gate_up = a.fc_preact,
                 .out = fc_again,
                 .scratch = fc_again ? Tensor() : dfc,
                 .activation = *d.gate});
  return a.fc_preact;
}

// What norm2 sees, for a block whose input is x.
const Tensor& input_of_mlp(const TransformerDescription& d, const Tensor& x,
                           const TransformerBlockActivations& a) {
  return d.parallel ? x : a.residual_mid;
}

// From norm1 to fc: all of the block but its last product and sum. cache: null without one.
void block_inside(Context& ctx, const TransformerPass& t, const TransformerBlock& p, const Tensor& x,
                  const TransformerBlockActivations& a, const Caching& caching, const LayerCache* cache) {
  const bool invariant = caching.batch_invariant;
  project(ctx, t, p, a, invariant);
  if (cache && caching.reads_cache) {
    attention_to_cache(ctx, t, p, a, *cache, caching.places);
  } else {
    if (cache) append_to_cache(ctx, t, a, *cache, caching.places);
    attention(ctx, t, p, a, invariant);
  }
  add_projection(ctx, matrix(a.att), p.attproj, x, a.residual_mid, invariant, p.fc.weight);
  normalize(ctx, t.d, input_of_mlp(t.d, x, a), p.norm2, a.norm2);
  expand(ctx, t.d, p, a, invariant);
}

// x → x + attention(norm1(x)) → … + mlp(norm2(…)), or … + mlp(norm2(x)) in parallel. next: the weight that
// follows the block.
void block_forward(Context& ctx, const TransformerPass& t, const TransformerBlock& p, const Tensor& x,
                   const TransformerBlockActivations& a, const Caching& caching, const LayerCache* cache,
                   const Tensor& next) {
  normalize(ctx, t.d, x, p.norm1, a.norm1);
  block_inside(ctx, t, p, x, a, caching, cache);
  add_projection(ctx, a.fc, p.fcproj, a.residual_mid, a.residual, caching.batch_invariant, next);
}

// The activations that the backward of a block reads: as the forward left them, or computed again. The
// gradient of a gate computes fc again itself.
TransformerBlockActivations recomputed(Context& ctx, const TransformerPass& t, const TransformerBlock& p,
                                       const Tensor& x, const TransformerBlockActivations& kept,
                                       const TransformerBlockActivations& again) {
  if (again.qkv) {
    normalize(ctx, t.d, x, p.norm1, again.norm1);
    block_inside(ctx, t, p, x, again, {}, nullptr);
    return again;
  }
  TransformerBlockActivations a = kept;
  if (again.fc) {
    if (!t.d.gate) gelu_forward(ctx, {a.fc_preact, again.fc, t.d.activation});
    a.fc = again.fc;
  }
  if (again.norm1.out) {
    normalize(ctx, t.d, x, p.norm1, again.norm1);
    normalize(ctx, t.d, input_of_mlp(t.d, x, a), p.norm2, again.norm2);
    a.norm1.out = again.norm1.out;
    a.norm2.out = again.norm2.out;
  }
  return a;
}

// The same lines in reverse. `dresidual` is the gradient of the block's output and becomes that of its input
// x: a sum hands its gradient to both branches, so each branch only adds its own. In parallel, attention's
// branch takes its gradient before the MLP's has added to it. at_input, if set, is called as soon as the
// gradient of x is complete. The weight gradients of fc and qkv, which nothing waits for, then come last.
void block_backward(Context& ctx, const TransformerPass& t, const TransformerBlock& p, const Tensor& x,
                    const TransformerBlockActivations& kept, const Tensor& dresidual,
                    const TransformerBackwardBuffers::Block& d, const TransformerBlock& g,
                    const std::function<void()>& at_input) {
  const TransformerBlockActivations a = recomputed(ctx, t, p, x, kept, d.again);
  const bool whole_block = static_cast<bool>(d.again.qkv);
  const Tensor dproduct =
      expansion_gradient(ctx, t.d, p, a, dresidual, d.dfc, whole_block ? Tensor() : d.again.fc);
  const auto fc_gradient = [&] {
    matmul_dw(ctx, {dproduct, a.norm2.out, g.fc.weight, g.fc.bias, Store::assign});
  };
  const auto qkv_gradient = [&] {
    matmul_dw(ctx, {matrix(d.dqkv), a.norm1.out, g.qkv.weight, g.qkv.bias, Store::assign});
  };
  matmul_dw(ctx, {dresidual, a.fc, g.fcproj.weight, g.fcproj.bias, Store::assign});
  if (!at_input) fc_gradient();
  matmul_dx(ctx, {dproduct, p.fc.weight, {}, d.dnorm2});
  const auto mlp_to_residual = [&] {
    normalize_backward(ctx, t.d, d.dnorm2, input_of_mlp(t.d, x, a), p.norm2, a.norm2, dresidual, g.norm2,
                       Store::add);
  };
  if (!t.d.parallel) mlp_to_residual();
  matmul_dw(ctx, {dresidual, matrix(a.att), g.attproj.weight, g.attproj.bias, Store::assign});
  matmul_dx(ctx, {dresidual, p.attproj.weight, {}, matrix(d.datt)});
  if (t.d.parallel) mlp_to_residual();
  attention_gradient(ctx, t, p, a, d);
  normalize_heads_backward(ctx, t.d, p, a, qk_of(t.d, d.dqkv), g);
  if (!at_input) qkv_gradient();
  matmul_dx(ctx, {matrix(d.dqkv), p.qkv.weight, {}, d.dnorm1});
  normalize_backward(ctx, t.d, d.dnorm1, x, p.norm1, a.norm1, dresidual, g.norm1, Store::add);
  if (!at_input) return;
  at_input();
  fc_gradient();
  qkv_gradient();
}

// The input of block l, or of what follows the last one.
const Tensor& input_of(const TransformerActivations& a, std::size_t l) {
  return l == 0 ? a.embedding : a.blocks[l - 1].residual;
}

// Positions to look up, if they are learned.
Tensor learned_positions(const TransformerPass& t) {
  return t.d.rope ? Tensor() : t.batch.positions;
}

}  // namespace

Tensor transformer_blocks(Context& ctx, const TransformerPass& t, const TransformerActivations& a,
                          const LayerHooks& hooks, const Caching& caching) {
  embedding_forward(ctx, {t.batch.tokens, learned_positions(t), t.p.wte, t.p.wpe, a.embedding});
  for (std::size_t l = 0; l < t.p.blocks.size(); ++l) {
    if (hooks.enter) hooks.enter(l);
    const LayerCache* cache = caching.cache.empty() ? nullptr : &caching.cache[l];
    Tensor next;  // only in inference: a sharded block's weights are not there yet
    if (cache) next = l + 1 < t.p.blocks.size() ? t.p.blocks[l + 1].qkv.weight : t.p.head.weight;
    block_forward(ctx, t, t.p.blocks[l], input_of(a, l), a.blocks[l], caching, cache, next);
  }
  return input_of(a, t.p.blocks.size());
}

void transformer_norm(Context& ctx, const TransformerPass& t, const Tensor& residual,
                      const NormActivations& a) {
  normalize(ctx, t.d, residual, t.p.norm, a);
}

void transformer_head(Context& ctx, const TransformerParameters& p, const Tensor& hidden,
                      const Tensor& logits, bool batch_invariant) {
  linear_forward(ctx, p.head,
                 {.x = hidden,
                  .weight = p.head.weight,
                  .bias = {},
                  .out = logits,
                  .preact = {},
                  .batch_invariant = batch_invariant});
}

void transformer_head_backward(Context& ctx, const TransformerParameters& p, const Tensor& hidden,
                               const Tensor& dlogits, const Tensor& dhidden, const TransformerParameters& g,
                               Store store) {
  matmul_dw(ctx, {dlogits, hidden, g.head.weight, {}, store});
  matmul_dx(ctx, {dlogits, p.head.weight, {}, dhidden});
}

void transformer_backward(Context& ctx, const TransformerPass& t, const TransformerActivations& a,
                          const TransformerBackwardBuffers& d, const TransformerParameters& g,
                          const LayerHooks& hooks) {
  normalize_backward(ctx, t.d, d.dnorm, input_of(a, t.p.blocks.size()), t.p.norm, a.norm, d.dresidual, g.norm,
                     Store::assign);
  // A tied head has stored its share of wte's gradient: the embedding adds the other.
  const auto embedding_gradient = [&] {
    embedding_backward(ctx, {t.batch.tokens, learned_positions(t), d.dresidual, g.wte, g.wpe,
                             t.d.tied_head ? Store::add : Store::assign, Store::assign});
    if (hooks.leave_others) hooks.leave_others();
  };
  for (std::size_t l = t.p.blocks.size(); l-- > 0;) {
    if (hooks.enter) hooks.enter(l);
    block_backward(ctx, t, t.p.blocks[l], input_of(a, l), a.blocks[l], d.dresidual, d.blocks[l], g.blocks[l],
                   l == 0 ? embedding_gradient : std::function<void()>());
    if (hooks.leave) hooks.leave(l);
  }
}

}  // namespace warpwright
