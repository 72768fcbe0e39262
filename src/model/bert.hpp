// BERT-family encoders (BERT, MiniLM, RoBERTa) over packed batches: parameters by name, and the forward, an
// operation a line.
// Sources: J. Devlin et al., arXiv:1810.04805; Y. Liu et al., "RoBERTa", arXiv:1907.11692; padding-free:
// Y. Zhai et al., "ByteTransformer", arXiv:2210.03052.
//
// Sizes: N tokens in the batch, S sequences, H hidden, NH heads of HS = H/NH, I intermediate. Nothing is
// padded: the sequences of a batch are contiguous, from the embedding to the pooling.
#pragma once

#include <vector>

#include "model/bert_config.hpp"
#include "model/linear.hpp"
#include "ops/op.hpp"
#include "runtime/context.hpp"

namespace warpwright {

struct BertBlock {
  Linear qkv;                           // (3H, H): q, k, v rows in this order
  Linear attproj;                       // (H, H)
  Tensor attnorm_weight, attnorm_bias;  // (H)
  Linear fc;                            // (I, H)
  Linear fcproj;                        // (H, I)
  Tensor outnorm_weight, outnorm_bias;  // (H)
};

struct BertParameters {
  Tensor word, position, type;          // (V, H), (P, H), (types, H)
  Tensor embnorm_weight, embnorm_bias;  // (H)
  std::vector<BertBlock> blocks;
  // The classification head, absent if the folder has none: tanh(pooler(first token)), then the labels.
  Linear pooler;              // (H, H)
  Linear classifier;          // (labels, H)
  std::vector<Linear> dense;  // fp32, after the pooling
};

// The tensors of a forward pass. Several of them share memory and take turns.
struct BertActivations {
  Tensor tokens, types, positions;  // (N) int32
  Tensor cu_seqlens;                // (S + 1) int32
  Tensor rows;                      // (1) int32: N, for kernels whose grid was fixed before N was known
  Tensor hidden;                    // (N, H): the result
  Tensor other;                     // (N, H)
  Tensor qkv;                       // (N, 3, NH, HS)
  Tensor att;                       // (N, NH, HS)
  Tensor fc;                        // (N, I)
  bool batch_invariant = false;     // a row's bits do not depend on the others
  Tensor bias, visible;             // of the attention (ops/attention/attention.hpp), optional
  float temperature = 1;            // divides the scores
  std::vector<Tensor> pooled;       // (S, …) fp32: the output of the pooling and of each layer after it
  Tensor first, pooler, logits;     // (S, H), (S, H), (S, labels) of a classification head
};

// Tokens to the embedding, a.hidden, and from there through the layers to the last hidden states, in place.
void bert_embed(Context& context, const BertConfig& config, const BertParameters& p,
                const BertActivations& a);
void bert_layers(Context& context, const BertConfig& config, const BertParameters& p,
                 const BertActivations& a);
// True if the layers compute the rows of the batch and no other rows of the activations. On a GPU their
// products may not know how many rows there are.
bool bert_layers_are_exact(Context& context, const BertConfig& config, const BertParameters& p,
                           const BertActivations& a);
// From the last hidden states to a.pooled.back(), and to a.logits.
void bert_pool(Context& context, const BertPooling& pooling, const BertParameters& p,
               const BertActivations& a);
void bert_classify(Context& context, const BertParameters& p, const BertActivations& a);

}  // namespace warpwright
