// A decoder-only transformer by its description: parameters by name, activations, forward and backward, an
// operation a line. GPT-2, GPT-NeoX, Llama, Mistral, Qwen2 and Qwen3 are such descriptions.
// Sources: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; H. Touvron et al.,
// "LLaMA: Open and Efficient Foundation Language Models", arXiv:2302.13971.
//
// Sizes: N tokens in the batch, C channels, NH query heads and KH key heads of HS elements each, H = NH +
// 2·KH, F channels inside the MLP, V vocabulary and Vp the same padded, T positions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder.hpp"
#include "model/linear.hpp"
#include "ops/activation.hpp"
#include "ops/gate/gate.hpp"
#include "ops/norm/lost_columns.hpp"
#include "ops/op.hpp"
#include "ops/rope/angles.hpp"
#include "runtime/context.hpp"

namespace warpwright {

// A family's names of its parameters, without ".weight" and ".bias", and how its files keep them.
struct TransformerNames {
  std::string_view wte, wpe, block;  // block: "h.{}."
  std::string_view norm1, qkv, attproj, norm2, fc, fcproj;
  std::string_view norm, head;
  std::string_view other_head = {};  // what some files call the head
  std::string_view prefix;           // may come before any name, or be left out
  std::string_view q, k, v;          // the parts of qkv in files; q = qkv: one tensor
  bool qkv_by_head = false;   // a file's qkv has the rows of q, k and v of the first head, then of the next
  std::string_view gate, up;  // the parts of fc in files; gate = fc: one tensor
  std::string_view q_norm = {}, k_norm = {};  // of QK norm
  bool transposed = false;  // files keep the weights of a block's linear layers as (in, out)
};

struct TransformerDescription {
  const TransformerNames* names = nullptr;
  std::int64_t layers = 0, channels = 0;
  std::int64_t heads = 0, key_heads = 0, head_size = 0;
  std::int64_t hidden = 0;  // F
  std::int64_t vocab = 0;
  std::int64_t context = 0;  // most positions in a sequence
  // For each layer, the number of last keys that a query sees; 0: all. Empty: all, in every layer.
  std::vector<std::int64_t> windows = {};
  bool layer_norm = true;  // layer normalization with a bias; false: RMS normalization without
  float eps = 1e-5f;       // of the normalizations
  bool qkv_bias = true, attproj_bias = true, mlp_bias = true;
  bool qk_norm = false;  // RMS normalization of each head of q and k by itself, before the rotation
  std::optional<ops::RopeAngles> rope;      // none: learned positions
  std::optional<ops::GateActivation> gate;  // none: the MLP has `activation` and no gate
  ops::Activation activation = ops::Activation::gelu_tanh;
  // x + attention(norm1(x)) + mlp(norm2(x)); otherwise the MLP's norm2 sees x + attention(norm1(x)).
  bool parallel = false;
  bool tied_head = true;  // the LM head is wte

  std::int64_t all_heads() const { return heads + 2 * key_heads; }
  // Rows of the token embedding and the LM head in memory: the vocabulary rounded up to a multiple of 128, so
  // that the head's product has whole tiles. The rows beyond the vocabulary are 0 and never reach a softmax,
  // a sample or a file.
  std::int64_t padded_vocab() const { return (vocab + 127) / 128 * 128; }
};

// What a parameter is for, which decides its first values, its dtype and its rows in a file.
enum class ParameterKind : std::uint8_t {
  vocabulary,
  positions,
  norm_weight,
  norm_bias,
  bias,
  weight,
  projection
};

// A parameter's rows are the vocabulary's if its kind says so; `shape` then has the padding rows.
struct ParameterShape {
  std::string name;
  Shape shape;
  ParameterKind kind = ParameterKind::weight;
  std::vector<std::int64_t> matrices;  // of a layer's weight or projection: the rows of each matrix in it
};
// In the order of DecoderParameters.
std::vector<ParameterShape> parameter_shapes(const TransformerDescription& d);
LayerParameters layer_parameters(const TransformerDescription& d);
LayerMatrices layer_matrices(const TransformerDescription& d);
std::vector<ForwardMatrix> forward_matrices(const TransformerDescription& d);
// The number of elements of all parameters, without padding rows.
std::int64_t parameter_count(const TransformerDescription& d);
// FLOPs of forward and backward per token at sequence length T: 6 per parameter that multiplies, and
// attention's 6·L·NH·HS·T with the causal mask counted as half. Source: J. Kaplan et al., arXiv:2001.08361,
// with the mask's half. A window W < T leaves T² − (T − W)² of the T² in a layer.
double flops_per_token(const TransformerDescription& d, std::int64_t T);
// The last of these keys that a query sees, on average over the layers.
double keys_seen(const TransformerDescription& d, std::int64_t keys);

struct NormParameters {
  Tensor weight, bias;  // (C)
};

struct TransformerBlock {
  NormParameters norm1, norm2;
  Linear qkv;               // (H·HS, C), (H·HS): the rows of q, k, v in this order
  Tensor q_norm, k_norm;    // (HS)
  Linear attproj;           // (C, NH·HS), (C)
  Linear fc;                // (F, C), (F); with a gate (2F, C), (2F): gate, then up
  Linear fcproj;            // (C, F), (C)
  std::int64_t window = 0;  // of the attention; 0: none
};

// The tensors of a DecoderParameters by their places in the network. Those that a description leaves out are
// absent.
struct TransformerParameters {
  Tensor wte;  // (Vp, C)
  Tensor wpe;  // (T, C)
  std::vector<TransformerBlock> blocks;
  NormParameters norm;
  Linear head;  // (Vp, C), without a bias; wte if they are tied
};
TransformerParameters transformer_parameters(const TransformerDescription& d,
                                             const DecoderParameters& parameters);

// One tensor per parameter, named prefix + the parameter's name. Those of normalizations are fp32 if the
// others have 16 bits: a weight near 1 that is rounded to bf16 does not move until its updates add up to 2^-9
// (docs/numerics.md).
DecoderParameters allocate_parameters(const TransformerDescription& d, DType dtype, Category category,
                                      std::string_view prefix, Allocator& allocator);

// GPT-2's initialization: weights and embeddings N(0, 0.02²), projections into the residual stream
// N(0, 0.02²/(2·layers)), biases 0, normalizations 1 and 0; padding rows 0. A pure function of seed, tensor
// and element.
void initialize(const TransformerDescription& d, std::uint64_t seed, const ParameterWriter& write);

// The tables that rotate q and k by their positions; absent with learned positions. Constant, but for
// `wrong`, which nobody needs to read: a batch's positions are below the tables' rows.
struct RopeTables {
  Tensor cos, sin;  // (positions, R/2) fp32 (fp64 for fp64)
  Tensor wrong;     // (1) int64
};
RopeTables allocate_rope_tables(const TransformerDescription& d, std::int64_t positions, DType dtype,
                                Allocator& allocator);
void fill_rope_tables(const TransformerDescription& d, const RopeTables& tables, const Stream& stream);

// The output of a normalization and, for its backward, the statistics, and the columns that cannot be
// restored from the output if the backward reads that. Inference has only the output; RMS normalization has
// no mean.
struct NormActivations {
  Tensor out;         // (N, C)
  Tensor mean, rstd;  // (N) fp32
  ops::LostColumns lost;
};

struct TransformerBlockActivations {
  NormActivations norm1, norm2;
  Tensor qkv;           // (N, H, HS): the heads of q, k, v in this order
  Tensor qk;            // (N, NH + KH, HS): q and k, normalized and rotated; absent if qkv has them so
  Tensor qk_rstd;       // (N, NH + KH) fp32, for the backward of QK norm
  Tensor att;           // (N, NH, HS)
  Tensor residual_mid;  // (N, C): after attention
  Tensor fc_preact;     // (N, F) before the activation; with a gate (N, 2F): gate, then up
  Tensor fc;            // (N, F)
  Tensor residual;      // (N, C): the block's output
  Tensor lse;           // (NH, N) fp32, for the backward
};

struct TransformerActivations {
  Tensor embedding;  // (N, C)
  std::vector<TransformerBlockActivations> blocks;
  NormActivations norm;
};

enum class Purpose : std::uint8_t { training, inference };
TransformerActivations allocate_activations(const TransformerDescription& d, const DecoderBatch& batch,
                                            DType dtype, Purpose purpose, Allocator& allocator,
                                            NormBackwardFrom norms = NormBackwardFrom::input);
// The first n rows of inference activations that were allocated for more.
TransformerActivations narrow(const TransformerActivations& activations, std::int64_t n);
// The gradients of activations. That of fc_preact with a gate takes fc_preact's place.
struct TransformerBackwardBuffers {
  Tensor dresidual;  // (N, C): the gradient of the residual stream, carried from the top to the bottom
  struct Block {
    Tensor dfc;                         // (N, F); scratch with a gate
    Tensor dnorm2;                      // (N, C)
    Tensor datt;                        // (N, NH, HS)
    Tensor dqkv;                        // (N, H, HS)
    Tensor dnorm1;                      // (N, C)
    TransformerBlockActivations again;  // the tensors that are computed again
  };
  std::vector<Block> blocks;
  Tensor dnorm;  // (N, C)
};
TransformerBackwardBuffers allocate_backward(const TransformerDescription& d, const DecoderBatch& batch,
                                             DType dtype, Recompute recompute, Allocator& allocator);

// The keys and values of a layer's earlier tokens: (blocks, KH, block_size, HS).
struct LayerCache {
  Tensor keys, values;
};
// For a forward with a cache.
struct Caching {
  std::span<const LayerCache> cache;  // of each layer; empty: none
  CachePlaces places;
  bool reads_cache = false;      // the batch attends to the cache, not only to itself
  bool batch_invariant = false;  // a sequence's bits do not depend on the others
};

// What all operations of a pass need to know.
struct TransformerPass {
  TransformerDescription d;
  TransformerParameters p;
  DecoderBatch batch;
  RopeTables rope;
};

// Tokens to the residual stream (N, C) after the last block, which is returned.
Tensor transformer_blocks(Context& context, const TransformerPass& pass, const TransformerActivations& a,
                          const LayerHooks& hooks, const Caching& caching = {});
// The last normalization of rows of the residual stream.
void transformer_norm(Context& context, const TransformerPass& pass, const Tensor& residual,
                      const NormActivations& a);
// logits (M, Vp) of M rows of the last normalization. Columns V ≤ v < Vp are padding and mean nothing.
void transformer_head(Context& context, const TransformerParameters& p, const Tensor& hidden,
                      const Tensor& logits, bool batch_invariant = false);

// For those rows: dhidden (=), and the head's share of its gradient (= or += by store).
void transformer_head_backward(Context& context, const TransformerParameters& p, const Tensor& hidden,
                               const Tensor& dlogits, const Tensor& dhidden,
                               const TransformerParameters& gradients, ops::Store store);

// The gradients (=) of all other parameters from d.dnorm. If the head is tied, wte's is added to the head's
// share.
void transformer_backward(Context& context, const TransformerPass& pass, const TransformerActivations& a,
                          const TransformerBackwardBuffers& d, const TransformerParameters& gradients,
                          const LayerHooks& hooks);

}  // namespace warpwright
