// The texts of an encoder's tokenizer files, to EncoderTokenizerSpec. Every input is taken as hostile; an
// Error names the file and the field. The spec that comes out is checked by EncoderTokenizer's constructor.
#pragma once

#include <string>
#include <string_view>

#include "text/encoder_tokenizer.hpp"

namespace warpwright::text {

// tokenizer.json of Hugging Face tokenizers, version "1.0": model WordPiece with normalizer BertNormalizer
// (or none) and pre-tokenizer BertPreTokenizer (or none), or what parse_tokenizer_json() takes as byte-level
// BPE; post-processor TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, a Sequence of them,
// or none. Decoder, truncation and padding have no meaning for ids and are not read.
EncoderTokenizerSpec parse_encoder_json(std::string_view document, const std::string& where);

// BERT's vocab.txt, a token a line, with tokenizer_config.json (empty: there is none): [CLS] a [SEP] b [SEP].
EncoderTokenizerSpec parse_bert_vocab(std::string_view vocab, const std::string& vocab_where,
                                      std::string_view config, const std::string& config_where);

// RoBERTa's vocab.json and merges.txt with tokenizer_config.json (empty: there is none): <s> a </s></s> b
// </s>.
EncoderTokenizerSpec parse_roberta_files(std::string_view vocab, const std::string& vocab_where,
                                         std::string_view merges, const std::string& merges_where,
                                         std::string_view config, const std::string& config_where);

}  // namespace warpwright::text
