// GPT-2: parameters by name, activations, forward and backward, an operation a line.
// Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
//
// Sizes: N tokens in the batch, C channels, NH heads of HS = C/NH, V vocabulary and Vp the same padded, T
// positions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder.hpp"
#include "model/gpt2_config.hpp"
#include "ops/norm/lost_columns.hpp"
#include "ops/op.hpp"
#include "runtime/context.hpp"

namespace warpwright {

struct GPT2Block {
  Tensor ln1_weight, ln1_bias;          // (C)
  Tensor qkv_weight, qkv_bias;          // (3C, C), (3C): q, k, v rows in this order
  Tensor attproj_weight, attproj_bias;  // (C, C), (C)
  Tensor ln2_weight, ln2_bias;          // (C)
  Tensor fc_weight, fc_bias;            // (4C, C), (4C)
  Tensor fcproj_weight, fcproj_bias;    // (C, 4C), (C)
};

// The tensors of a DecoderParameters by their places in the network.
struct GPT2Parameters {
  Tensor wte;  // (Vp, C), also the LM head
  Tensor wpe;  // (T, C)
  std::vector<GPT2Block> blocks;
  Tensor lnf_weight, lnf_bias;  // (C)
};
GPT2Parameters gpt2_parameters(const GPT2Config& config, const DecoderParameters& parameters);

// One tensor per parameter, named prefix + the parameter's name. Those of layer normalization are fp32 if
// the others have 16 bits: a weight near 1 that is rounded to bf16 does not move until its updates add up to
// 2^-9 (docs/numerics.md).
DecoderParameters allocate_parameters(const GPT2Config& config, DType dtype, Category category,
                                      std::string_view prefix, Allocator& allocator);

struct ParameterShape {
  std::string name;
  Shape shape;
};
std::vector<ParameterShape> parameter_shapes(const GPT2Config& config);

// GPT-2's initialization: weights and embeddings N(0, 0.02²), projections into the residual stream
// N(0, 0.02²/(2·layers)), biases 0, layer normalization 1 and 0; padding rows of wte 0. A pure function of
// seed, tensor and element.
void initialize(const GPT2Config& config, std::uint64_t seed, const ParameterWriter& write);

struct GPT2BlockActivations {
  Tensor ln1;            // (N, C)
  Tensor qkv;            // (N, 3, NH, HS)
  Tensor att;            // (N, NH, HS)
  Tensor residual_mid;   // (N, C): after attention
  Tensor ln2;            // (N, C)
  Tensor fc_preact, fc;  // (N, 4C)
  Tensor residual;       // (N, C): the block's output
  // For the backward; absent in inference.
  Tensor ln1_mean, ln1_rstd, ln2_mean, ln2_rstd;  // (N) fp32
  Tensor lse;                                     // (NH, N) fp32
  // If the backward of the normalizations reads their output: the columns that cannot be restored from it.
  ops::LostColumns ln1_lost, ln2_lost;
};

struct GPT2Activations {
  Tensor embedding;  // (N, C)
  std::vector<GPT2BlockActivations> blocks;
  Tensor lnf;                 // (N, C)
  Tensor lnf_mean, lnf_rstd;  // (N) fp32; absent in inference
  ops::LostColumns lnf_lost;  // as in the blocks
};

enum class Purpose : std::uint8_t { training, inference };
GPT2Activations allocate_activations(const GPT2Config& config, const DecoderBatch& batch, DType dtype,
                                     Purpose purpose, Allocator& allocator,
                                     NormBackwardFrom norms = NormBackwardFrom::input);
// The first n rows of inference activations that were allocated for more.
GPT2Activations narrow(const GPT2Activations& activations, std::int64_t n);
// The gradients of activations.
struct GPT2BackwardBuffers {
  Tensor dresidual;  // (N, C): the gradient of the residual stream, carried from the top to the bottom
  struct Block {
    Tensor dfc;                  // (N, 4C)
    Tensor dln2;                 // (N, C)
    Tensor datt;                 // (N, NH, HS)
    Tensor dqkv;                 // (N, 3, NH, HS)
    Tensor dln1;                 // (N, C)
    GPT2BlockActivations again;  // the tensors that are computed again
  };
  std::vector<Block> blocks;
  Tensor dlnf;  // (N, C)
};
GPT2BackwardBuffers allocate_backward(const GPT2Config& config, const DecoderBatch& batch, DType dtype,
                                      Recompute recompute, Allocator& allocator);

// The keys and values of a layer's earlier tokens: (blocks, block_size, NH, HS).
struct GPT2LayerCache {
  Tensor keys, values;
};
// For a forward with a cache.
struct GPT2Caching {
  std::span<const GPT2LayerCache> cache;  // of each layer; empty: none
  CachePlaces places;
  bool reads_cache = false;      // the batch attends to the cache, not only to itself
  bool batch_invariant = false;  // a sequence's bits do not depend on the others
};

// Tokens to the last layer normalization, a.lnf.
void gpt2_forward(Context& context, const GPT2Config& config, const GPT2Parameters& p,
                  const DecoderBatch& batch, const GPT2Activations& a, const LayerHooks& hooks,
                  const GPT2Caching& caching = {});
// logits (M, Vp) of M rows of lnf. Columns V ≤ v < Vp are padding and mean nothing.
void gpt2_head(Context& context, const GPT2Parameters& p, const Tensor& lnf, const Tensor& logits,
               bool batch_invariant = false);

// For those rows: dlnf (=), and the LM head's share of the gradient of wte (= or += by store).
void gpt2_head_backward(Context& context, const GPT2Parameters& p, const Tensor& lnf, const Tensor& dlogits,
                        const Tensor& dlnf, const GPT2Parameters& gradients, ops::Store store);

// The gradients (=) of all parameters from d.dlnf. The gradient of wte is added to, because the LM head has
// stored its share.
void gpt2_backward(Context& context, const GPT2Config& config, const GPT2Parameters& p,
                   const DecoderBatch& batch, const GPT2Activations& a, const GPT2BackwardBuffers& d,
                   const GPT2Parameters& gradients, const LayerHooks& hooks);

}  // namespace warpwright
