#include "model/gpt2.hpp"

#include "model/attention_views.hpp"
#include "ops/attention/attention.hpp"
#include "ops/cached_attention/cached_attention.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/gelu/gelu.hpp"
#include "ops/matmul/matmul.hpp"
#include "ops/norm/norm.hpp"

namespace warpwright {
namespace {

using namespace ops;

// A layer normalization: its parameters, its output and its statistics.
struct Norm {
  const Tensor &weight, &bias, &out, &mean, &rstd;
  const LostColumns& lost;
};

Norm ln1_of(const GPT2Block& p, const GPT2BlockActivations& a) {
  return {.weight = p.ln1_weight,
          .bias = p.ln1_bias,
          .out = a.ln1,
          .mean = a.ln1_mean,
          .rstd = a.ln1_rstd,
          .lost = a.ln1_lost};
}
Norm ln2_of(const GPT2Block& p, const GPT2BlockActivations& a) {
  return {.weight = p.ln2_weight,
          .bias = p.ln2_bias,
          .out = a.ln2,
          .mean = a.ln2_mean,
          .rstd = a.ln2_rstd,
          .lost = a.ln2_lost};
}
Norm lnf_of(const GPT2Parameters& p, const GPT2Activations& a) {
  return {.weight = p.lnf_weight,
          .bias = p.lnf_bias,
          .out = a.lnf,
          .mean = a.lnf_mean,
          .rstd = a.lnf_rstd,
          .lost = a.lnf_lost};
}

void layernorm_forward(Context& ctx, const Tensor& x, const Norm& n, float eps) {
  norm_forward(ctx, {.x = x,
                     .weight = n.weight,
                     .bias = n.bias,
                     .out = n.out,
                     .mean = n.mean,
                     .rstd = n.rstd,
                     .eps = eps,
                     .lost = n.lost});
}
// out = residual + x·Wᵀ + bias
void add_projection(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Tensor& residual, const Tensor& out, bool batch_invariant) {
  MatmulForward a{x, weight, bias, out, {}};
  a.residual = residual;
  a.batch_invariant = batch_invariant;
  matmul_forward(ctx, a);
}

// Reads the normalization's input x, or its output if it has kept the lost columns.
void layernorm_backward(Context& ctx, const Tensor& dout, const Tensor& x, const Norm& n, const Tensor& dx,
                        const Tensor& dweight, const Tensor& dbias, Store dx_store) {
  NormBackward a{.dout = dout,
                 .x = x,
                 .weight = n.weight,
                 .mean = n.mean,
                 .rstd = n.rstd,
                 .dx = dx,
                 .dweight = dweight,
                 .dbias = dbias,
                 .dx_store = dx_store,
                 .dparameters_store = Store::assign};
  if (n.lost) {
    a.x = {};
    a.out = n.out;
    a.bias = n.bias;
    a.lost = n.lost;
  }
  norm_backward(ctx, a);
}

// The batch attends to itself.
void attention(Context& ctx, const GPT2Config& config, const DecoderBatch& batch,
               const GPT2BlockActivations& a, bool batch_invariant) {
  attention_forward(ctx, {.q = part(a.qkv, 0),
                          .k = part(a.qkv, 1),
                          .v = part(a.qkv, 2),
                          .cu_seqlens_q = batch.cu_seqlens,
                          .cu_seqlens_k = batch.cu_seqlens,
                          .out = a.att,
                          .lse = a.lse,
                          .scale = attention_scale(config.head_size()),
                          .mask = Mask::causal,
                          .batch_invariant = batch_invariant,
                          .max_seqlen = batch.max_seqlen});
}

// The batch attends to all tokens of its sequences so far.
void attention_to_cache(Context& ctx, const GPT2Config& config, const DecoderBatch& batch,
                        const GPT2BlockActivations& a, const GPT2LayerCache& cache,
                        const CachePlaces& places) {
  cached_attention(ctx, {.q = part(a.qkv, 0),
                         .key_cache = cache.keys,
                         .value_cache = cache.values,
                         .block_table = places.block_table,
                         .cu_seqlens = batch.cu_seqlens,
                         .lengths = places.lengths,
                         .out = a.att,
                         .scale = attention_scale(config.head_size())});
}

void attention_gradient(Context& ctx, const GPT2Config& config, const DecoderBatch& batch,
                        const GPT2BlockActivations& a, const GPT2BackwardBuffers::Block& d) {
  attention_backward(ctx, {.q = part(a.qkv, 0),
                           .k = part(a.qkv, 1),
                           .v = part(a.qkv, 2),
                           .cu_seqlens_q = batch.cu_seqlens,
                           .cu_seqlens_k = batch.cu_seqlens,
                           .out = a.att,
                           .lse = a.lse,
                           .dout = d.datt,
                           .dq = part(d.dqkv, 0),
                           .dk = part(d.dqkv, 1),
                           .dv = part(d.dqkv, 2),
                           .scale = attention_scale(config.head_size()),
                           .mask = Mask::causal,
                           .max_seqlen = batch.max_seqlen});
}

// From ln1 to fc: all of the block but its last product and sum. cache: null without one.
void block_inside(Context& ctx, const GPT2Config& config, const GPT2Block& p, const DecoderBatch& batch,
                  const Tensor& x, const GPT2BlockActivations& a, const GPT2Caching& caching,
                  const GPT2LayerCache* cache) {
  const bool invariant = caching.batch_invariant;
  matmul_forward(ctx, {.x = a.ln1,
                       .weight = p.qkv_weight,
                       .bias = p.qkv_bias,
                       .out = matrix(a.qkv),
                       .preact = {},
                       .batch_invariant = invariant});
  if (cache)
    cache_append(ctx, {.k = part(a.qkv, 1),
                       .v = part(a.qkv, 2),
                       .slots = caching.places.slots,
                       .key_cache = cache->keys,
                       .value_cache = cache->values});
  if (cache && caching.reads_cache) {
    attention_to_cache(ctx, config, batch, a, *cache, caching.places);
  } else {
    attention(ctx, config, batch, a, invariant);
  }
  add_projection(ctx, matrix(a.att), p.attproj_weight, p.attproj_bias, x, a.residual_mid, invariant);
  layernorm_forward(ctx, a.residual_mid, ln2_of(p, a), config.eps);
  matmul_forward(ctx, {.x = a.ln2,
                       .weight = p.fc_weight,
                       .bias = p.fc_bias,
                       .out = a.fc,
                       .preact = a.fc_preact,
                       .activation = config.activation,
                       .batch_invariant = invariant});
}

// x → x + attention(ln1(x)) → … + mlp(ln2(…)).
void block_forward(Context& ctx, const GPT2Config& config, const GPT2Block& p, const DecoderBatch& batch,
                   const Tensor& x, const GPT2BlockActivations& a, const GPT2Caching& caching,
                   const GPT2LayerCache* cache) {
  layernorm_forward(ctx, x, ln1_of(p, a), config.eps);
  block_inside(ctx, config, p, batch, x, a, caching, cache);
  add_projection(ctx, a.fc, p.fcproj_weight, p.fcproj_bias, a.residual_mid, a.residual,
                 caching.batch_invariant);
}

// The activations that the backward of a block reads: as the forward left them, or computed again.
GPT2BlockActivations recomputed(Context& ctx, const GPT2Config& config, const GPT2Block& p,
                                const DecoderBatch& batch, const Tensor& x, const GPT2BlockActivations& kept,
                                const GPT2BlockActivations& again) {
  if (again.qkv) {
    layernorm_forward(ctx, x, {p.ln1_weight, p.ln1_bias, again.ln1, again.ln1_mean, again.ln1_rstd, {}},
                      config.eps);
    block_inside(ctx, config, p, batch, x, again, {}, nullptr);
    return again;
  }
  GPT2BlockActivations a = kept;
  if (again.fc) {
    gelu_forward(ctx, {a.fc_preact, again.fc, config.activation});
    a.fc = again.fc;
  }
  if (again.ln1) {
    layernorm_forward(ctx, x, {p.ln1_weight, p.ln1_bias, again.ln1, {}, {}, {}}, config.eps);
    layernorm_forward(ctx, a.residual_mid, {p.ln2_weight, p.ln2_bias, again.ln2, {}, {}, {}}, config.eps);
    a.ln1 = again.ln1;
    a.ln2 = again.ln2;
  }
  return a;
}

// The same lines in reverse. `dresidual` is the gradient of the block's output and becomes that of its input
// x: a sum hands its gradient to both branches, so each branch only adds its own.
void block_backward(Context& ctx, const GPT2Config& config, const GPT2Block& p, const DecoderBatch& batch,
                    const Tensor& x, const GPT2BlockActivations& kept, const Tensor& dresidual,
                    const GPT2BackwardBuffers::Block& d, const GPT2Block& g) {
  const GPT2BlockActivations a = recomputed(ctx, config, p, batch, x, kept, d.again);
  matmul_dw(ctx, {dresidual, a.fc, g.fcproj_weight, g.fcproj_bias, Store::assign});
  matmul_dx(ctx, {dresidual, p.fcproj_weight, a.fc_preact, d.dfc, config.activation});
  matmul_dw(ctx, {d.dfc, a.ln2, g.fc_weight, g.fc_bias, Store::assign});
  matmul_dx(ctx, {d.dfc, p.fc_weight, {}, d.dln2});
  layernorm_backward(ctx, d.dln2, a.residual_mid, ln2_of(p, a), dresidual, g.ln2_weight, g.ln2_bias,
                     Store::add);
  matmul_dw(ctx, {dresidual, matrix(a.att), g.attproj_weight, g.attproj_bias, Store::assign});
  matmul_dx(ctx, {dresidual, p.attproj_weight, {}, matrix(d.datt)});
  attention_gradient(ctx, config, batch, a, d);
  matmul_dw(ctx, {matrix(d.dqkv), a.ln1, g.qkv_weight, g.qkv_bias, Store::assign});
  matmul_dx(ctx, {matrix(d.dqkv), p.qkv_weight, {}, d.dln1});
  layernorm_backward(ctx, d.dln1, x, ln1_of(p, a), dresidual, g.ln1_weight, g.ln1_bias, Store::add);
}

// The input of block l, or of what follows the last one.
const Tensor& input_of(const GPT2Activations& a, std::size_t l) {
  return l == 0 ? a.embedding : a.blocks[l - 1].residual;
}

}  // namespace

void gpt2_forward(Context& ctx, const GPT2Config& config, const GPT2Parameters& p, const DecoderBatch& batch,
                  const GPT2Activations& a, const LayerHooks& hooks, const GPT2Caching& caching) {
  embedding_forward(ctx, {batch.tokens, batch.positions, p.wte, p.wpe, a.embedding});
  for (std::size_t l = 0; l < p.blocks.size(); ++l) {
    if (hooks.enter) hooks.enter(l);
    const GPT2LayerCache* cache = caching.cache.empty() ? nullptr : &caching.cache[l];
    block_forward(ctx, config, p.blocks[l], batch, input_of(a, l), a.blocks[l], caching, cache);
  }
  layernorm_forward(ctx, input_of(a, p.blocks.size()), lnf_of(p, a), config.eps);
}

void gpt2_head(Context& ctx, const GPT2Parameters& p, const Tensor& lnf, const Tensor& logits,
               bool batch_invariant) {
  matmul_forward(ctx, {.x = lnf,
                       .weight = p.wte,
                       .bias = {},
                       .out = logits,
                       .preact = {},
                       .batch_invariant = batch_invariant});
}

void gpt2_head_backward(Context& ctx, const GPT2Parameters& p, const Tensor& lnf, const Tensor& dlogits,
                        const Tensor& dlnf, const GPT2Parameters& g, Store store) {
  matmul_dw(ctx, {dlogits, lnf, g.wte, {}, store});
  matmul_dx(ctx, {dlogits, p.wte, {}, dlnf});
}

void gpt2_backward(Context& ctx, const GPT2Config& config, const GPT2Parameters& p, const DecoderBatch& batch,
                   const GPT2Activations& a, const GPT2BackwardBuffers& d, const GPT2Parameters& g,
                   const LayerHooks& hooks) {
  layernorm_backward(ctx, d.dlnf, input_of(a, p.blocks.size()), lnf_of(p, a), d.dresidual, g.lnf_weight,
                     g.lnf_bias, Store::assign);
  for (std::size_t l = p.blocks.size(); l-- > 0;) {
    if (hooks.enter) hooks.enter(l);
    block_backward(ctx, config, p.blocks[l], batch, input_of(a, l), a.blocks[l], d.dresidual, d.blocks[l],
                   g.blocks[l]);
    if (hooks.leave) hooks.leave(l);
  }
  // The LM head has stored its share of wte's gradient: the embedding adds the other.
  embedding_backward(ctx,
                     {batch.tokens, batch.positions, d.dresidual, g.wte, g.wpe, Store::add, Store::assign});
}

}  // namespace warpwright
