// GPT-2: parameters by name, activations, forward and backward, an operation a line.
// Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
//
// Sizes: N tokens in the batch, C channels, NH heads of HS = C/NH, V vocabulary and Vp the same padded, T
// positions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

// The parameters, or anything else of which there is one per parameter: gradients, moments, master copies.
struct GPT2Parameters {
  Tensor wte;  // (Vp, C), also the LM head
  Tensor wpe;  // (T, C)
  std::vector<GPT2Block> blocks;
  Tensor lnf_weight, lnf_bias;  // (C)

  // Calls f(name, tensor) in a fixed order, with Hugging Face's names ("h.0.attn.c_attn.weight").
  template <class F>
  void visit(F&& f) {
    f(std::string("wte.weight"), wte);
    f(std::string("wpe.weight"), wpe);
    for (std::size_t l = 0; l < blocks.size(); ++l) visit_block("h." + std::to_string(l) + ".", blocks[l], f);
    f(std::string("ln_f.weight"), lnf_weight);
    f(std::string("ln_f.bias"), lnf_bias);
  }
  template <class F>
  void visit(F&& f) const {
    const_cast<GPT2Parameters*>(this)->visit(
        [&](const std::string& name, Tensor& t) { f(name, std::as_const(t)); });
  }

 private:
  template <class F>
  static void visit_block(const std::string& prefix, GPT2Block& b, F& f) {
    f(prefix + "ln_1.weight", b.ln1_weight);
    f(prefix + "ln_1.bias", b.ln1_bias);
    f(prefix + "attn.c_attn.weight", b.qkv_weight);
    f(prefix + "attn.c_attn.bias", b.qkv_bias);
    f(prefix + "attn.c_proj.weight", b.attproj_weight);
    f(prefix + "attn.c_proj.bias", b.attproj_bias);
    f(prefix + "ln_2.weight", b.ln2_weight);
    f(prefix + "ln_2.bias", b.ln2_bias);
    f(prefix + "mlp.c_fc.weight", b.fc_weight);
    f(prefix + "mlp.c_fc.bias", b.fc_bias);
    f(prefix + "mlp.c_proj.weight", b.fcproj_weight);
    f(prefix + "mlp.c_proj.bias", b.fcproj_bias);
  }
};

// One tensor per parameter, named prefix + the parameter's name. Those of layer normalization are fp32 beside
// 16 bits: a weight near 1 that is rounded to bf16 stands still until its updates add up to 2^-9
// (docs/numerics.md).
GPT2Parameters allocate_parameters(const GPT2Config& config, DType dtype, Category category,
                                   std::string_view prefix, Allocator& allocator);

// GPT-2's initialization: weights and embeddings N(0, 0.02²), projections into the residual stream
// N(0, 0.02²/(2·layers)), biases 0, layer normalization 1 and 0; padding rows of wte 0. A pure function of
// seed, tensor and element. `parameters` may be of any floating dtype.
void initialize(const GPT2Config& config, std::uint64_t seed, const GPT2Parameters& parameters);

// The tokens of one forward. Sequences are packed one after the other.
struct GPT2Batch {
  Tensor tokens;      // (N) int32, below V
  Tensor positions;   // (N) int32, below T
  Tensor cu_seqlens;  // (S + 1) int32: the queries of each sequence
};
GPT2Batch allocate_batch(std::int64_t sequences, std::int64_t N, Allocator& allocator);

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
  // Where the backward of the normalizations reads their output: what that does not tell.
  ops::LostColumns ln1_lost, ln2_lost;
  // What attention reads: in training the k and v of qkv itself; with a cache, those of every position so
  // far.
  Tensor keys, values;  // (Nk, NH, HS)
  Tensor cu_seqlens_k;  // (S + 1) int32
};

struct GPT2Activations {
  Tensor embedding;  // (N, C)
  std::vector<GPT2BlockActivations> blocks;
  Tensor lnf;                 // (N, C)
  Tensor lnf_mean, lnf_rstd;  // (N) fp32; absent in inference
  ops::LostColumns lnf_lost;  // as in the blocks
};

enum class Purpose : std::uint8_t { training, inference };
// Which tensor the backward of a normalization reads: its input, the residual stream, which nothing else
// keeps; or its output, which the products behind it keep anyway.
enum class NormBackwardFrom : std::uint8_t { input, output };
GPT2Activations allocate_activations(const GPT2Config& config, const GPT2Batch& batch, DType dtype,
                                     Purpose purpose, Allocator& allocator,
                                     NormBackwardFrom norms = NormBackwardFrom::input);
// The first n rows of inference activations that were allocated for more.
GPT2Activations narrow(const GPT2Activations& activations, std::int64_t n);
Tensor allocate_logits(const GPT2Config& config, std::int64_t rows, DType dtype,
                       Allocator& allocator);  // (rows, Vp)

// What the backward computes again instead of keeping it: nothing, GELU, also layer normalization, or all of
// a block but its output.
enum class Recompute : std::uint8_t { none, gelu, norm, block };

// The gradients of activations.
struct GPT2BackwardBuffers {
  Tensor dresidual;  // (N, C): the gradient of the residual stream, carried from the top to the bottom
  struct Block {
    Tensor dfc;                  // (N, 4C)
    Tensor dln2;                 // (N, C)
    Tensor datt;                 // (N, NH, HS)
    Tensor dqkv;                 // (N, 3, NH, HS)
    Tensor dln1;                 // (N, C)
    GPT2BlockActivations again;  // what is computed again has its place here
  };
  std::vector<Block> blocks;
  Tensor dlnf;  // (N, C)
};
GPT2BackwardBuffers allocate_backward(const GPT2Config& config, const GPT2Batch& batch, DType dtype,
                                      Recompute recompute, Allocator& allocator);

// Tokens to the last layer normalization, a.lnf.
void gpt2_forward(Context& context, const GPT2Config& config, const GPT2Parameters& p, const GPT2Batch& batch,
                  const GPT2Activations& a);
// logits (M, Vp) of M rows of lnf. Columns V ≤ v < Vp are the padding's and mean nothing.
void gpt2_head(Context& context, const GPT2Parameters& p, const Tensor& lnf, const Tensor& logits);

// Of those rows: dlnf (=) and the LM head's share of the gradient of wte (= or += by store).
void gpt2_head_backward(Context& context, const GPT2Parameters& p, const Tensor& lnf, const Tensor& dlogits,
                        const Tensor& dlnf, const GPT2Parameters& gradients, ops::Store store);

// The gradients of all parameters (= or += by store) from d.dlnf. That of wte is added to, since the LM head
// has stored its share.
void gpt2_backward(Context& context, const GPT2Config& config, const GPT2Parameters& p,
                   const GPT2Batch& batch, const GPT2Activations& a, const GPT2BackwardBuffers& d,
                   const GPT2Parameters& gradients, ops::Store store);

}  // namespace warpwright
