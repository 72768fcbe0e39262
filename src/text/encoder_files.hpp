// Parses the texts of an encoder's tokenizer files into an EncoderTokenizerSpec. Every input is hostile. An
// Error names the file and the field. EncoderTokenizer's constructor checks the spec.
#pragma once

#include <string>
#include <string_view>

#include "text/encoder_tokenizer.hpp"

namespace warpwright::text {

// Parses a tokenizer.json of Hugging Face tokenizers, version "1.0". The model is WordPiece with
// BertNormalizer or no normalizer and BertPreTokenizer or no pre-tokenizer, or byte-level BPE as
// parse_tokenizer_json() accepts it. The post-processor is TemplateProcessing, BertProcessing,
// RobertaProcessing, ByteLevel, a Sequence of them, or none. Truncation, padding and
// WordPiece's decoder do not affect ids and are not read.
EncoderTokenizerSpec parse_encoder_json(std::string_view document, const std::string& where);

// Parses BERT's vocab.txt (one token per line) with tokenizer_config.json. An empty config means that there
// is none. The template is [CLS] a [SEP] b [SEP].
EncoderTokenizerSpec parse_bert_vocab(std::string_view vocab, const std::string& vocab_where,
                                      std::string_view config, const std::string& config_where);

// Parses RoBERTa's vocab.json and merges.txt with tokenizer_config.json. An empty config means that there is
// none. The template is <s> a </s></s> b </s>.
EncoderTokenizerSpec parse_roberta_files(std::string_view vocab, const std::string& vocab_where,
                                         std::string_view merges, const std::string& merges_where,
                                         std::string_view config, const std::string& config_where);

}  // namespace warpwright::text
