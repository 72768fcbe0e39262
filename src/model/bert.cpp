#include "model/bert.hpp"

#include "model/attention_views.hpp"
#include "ops/attention/attention.hpp"
#include "ops/embedding_layernorm/embedding_layernorm.hpp"
#include "ops/matmul/matmul.hpp"
#include "ops/norm/norm.hpp"
#include "ops/pooling/pooling.hpp"

namespace warpwright {
namespace {

using namespace ops;

// A block's products over the rows of all tokens. add_and_normalize adds the bias of those before it.
struct Products {
  MatmulForward qkv, attproj, fc, fcproj;
};
Products products_of(const BertConfig& config, const BertBlock& p, const BertActivations& a) {
  const auto product = [&](const Linear& l, const Tensor& bias, const Tensor& x, const Tensor& out,
                           Activation activation = Activation::none) -> MatmulForward {
    return {.x = x,
            .weight = l.weight,
            .bias = bias,
            .out = out,
            .preact = {},
            .activation = activation,
            .batch_invariant = a.batch_invariant,
            .rows = a.rows,
            .packed = l.packed};
  };
  return {.qkv = product(p.qkv, p.qkv.bias, a.hidden, matrix(a.qkv)),
          .attproj = product(p.attproj, {}, matrix(a.att), a.other),
          .fc = product(p.fc, p.fc.bias, a.hidden, a.fc, config.activation),
          .fcproj = product(p.fcproj, {}, a.fc, a.other)};
}

// A linear layer over one row per sequence.
void sequence_linear(Context& ctx, const BertActivations& a, const Linear& p, const Tensor& x,
                     const Tensor& out, Activation activation = Activation::none) {
  matmul_forward(ctx, {.x = x,
                       .weight = p.weight,
                       .bias = p.bias,
                       .out = out,
                       .preact = {},
                       .activation = activation,
                       .batch_invariant = a.batch_invariant});
}

// hidden → norm(hidden + other + bias)
void add_and_normalize(Context& ctx, const BertActivations& a, const Tensor& y_bias, const Tensor& weight,
                       const Tensor& bias, float eps) {
  norm_forward(ctx, {.x = a.other,
                     .weight = weight,
                     .bias = bias,
                     .out = a.hidden,
                     .eps = static_cast<double>(eps),
                     .residual = a.hidden,
                     .x_bias = y_bias,
                     .rows = a.rows});
}

void block_forward(Context& ctx, const BertConfig& config, const BertBlock& p, const BertActivations& a) {
  const Products products = products_of(config, p, a);
  linear_forward(ctx, p.qkv, products.qkv);
  attention_forward(ctx, {.q = part(a.qkv, 0),
                          .k = part(a.qkv, 1),
                          .v = part(a.qkv, 2),
                          .cu_seqlens_q = a.cu_seqlens,
                          .cu_seqlens_k = a.cu_seqlens,
                          .out = a.att,
                          .lse = {},
                          .scale = attention_scale(config.head_size()) / a.temperature,
                          .mask = Mask::none,
                          .bias = a.bias,
                          .visible = a.visible,
                          .batch_invariant = a.batch_invariant,
                          .max_seqlen = config.max_length()});
  linear_forward(ctx, p.attproj, products.attproj);
  add_and_normalize(ctx, a, p.attproj.bias, p.attnorm_weight, p.attnorm_bias, config.eps);
  linear_forward(ctx, p.fc, products.fc);
  linear_forward(ctx, p.fcproj, products.fcproj);
  add_and_normalize(ctx, a, p.fcproj.bias, p.outnorm_weight, p.outnorm_bias, config.eps);
}

}  // namespace

bool bert_layers_are_exact(Context& ctx, const BertConfig& config, const BertParameters& p,
                           const BertActivations& a) {
  if (p.blocks.empty()) return true;
  const auto exact = [&](const MatmulForward& args) {
    return matmul_counts_rows(ctx, matmul_forward_op().problem(args));
  };
  const Products products = products_of(config, p.blocks.front(), a);
  return exact(products.qkv) && exact(products.attproj) && exact(products.fc) && exact(products.fcproj);
}

void bert_embed(Context& ctx, const BertConfig& config, const BertParameters& p, const BertActivations& a) {
  embedding_layernorm_forward(ctx, {.tokens = a.tokens,
                                    .positions = a.positions,
                                    .types = a.types,
                                    .word = p.word,
                                    .position = p.position,
                                    .type = p.type,
                                    .weight = p.embnorm_weight,
                                    .bias = p.embnorm_bias,
                                    .out = a.hidden,
                                    .rows = a.rows,
                                    .eps = config.eps});
}

void bert_layers(Context& ctx, const BertConfig& config, const BertParameters& p, const BertActivations& a) {
  for (const BertBlock& block : p.blocks) block_forward(ctx, config, block, a);
}

void bert_pool(Context& ctx, const BertPooling& pooling, const BertParameters& p, const BertActivations& a) {
  const bool normalize_now = pooling.normalize && p.dense.empty();
  pooling_forward(ctx, {.x = a.hidden,
                        .cu_seqlens = a.cu_seqlens,
                        .out = a.pooled[0],
                        .kind = pooling.kind,
                        .normalize = normalize_now});
  for (std::size_t i = 0; i < p.dense.size(); ++i) {
    sequence_linear(ctx, a, p.dense[i], a.pooled[i], a.pooled[i + 1], pooling.dense[i].activation);
  }
  if (pooling.normalize && !normalize_now) {
    pooling_forward(ctx, {.x = a.pooled[p.dense.size()],
                          .cu_seqlens = {},
                          .out = a.pooled.back(),
                          .kind = Pooling::cls,
                          .normalize = true});
  }
}

void bert_classify(Context& ctx, const BertParameters& p, const BertActivations& a) {
  pooling_forward(
      ctx,
      {.x = a.hidden, .cu_seqlens = a.cu_seqlens, .out = a.first, .kind = Pooling::cls, .normalize = false});
  sequence_linear(ctx, a, p.pooler, a.first, a.pooler, Activation::tanh);
  sequence_linear(ctx, a, p.classifier, a.pooler, a.logits);
}

}  // namespace warpwright
