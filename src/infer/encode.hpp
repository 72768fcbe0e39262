// Encoder: texts to vectors, or pairs of texts to scores, with a BERT-family model's folder.
//
//   Context context;
//   Encoder encoder(context, "all-MiniLM-L6-v2/");
//   std::vector<float> vectors(texts.size() * encoder.vector_size());
//   std::vector<EncodedText> report = encoder.embed(texts, vectors);
//
// Texts are tokenized on all threads, sorted by length, and packed into batches of at most max_batch_tokens
// without padding; results come back in the order of the texts. A text that cannot be encoded has its error
// in the report and zeros for its vector; the other texts are not affected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/prompts.hpp"
#include "infer/share.hpp"
#include "model/bert_session.hpp"
#include "text/encoder_tokenizer.hpp"

namespace warpwright {

// Texts of more than max_length tokens are cut or refused.
enum class OverLimit : std::uint8_t { truncate, refuse };

struct EncoderOptions {
  BertWeightsOptions weights;
  BertOptions model;
  std::int64_t max_length = 0;  // tokens of a text or a pair, special ones included; 0: the model's
  OverLimit over_limit = OverLimit::truncate;
  text::Truncation truncation = text::Truncation::longest_first;  // of a pair
  text::SpecialTokens in_text = text::SpecialTokens::recognize;
};

struct TextPair {
  std::string_view first, second;
};

// The report of one text.
struct EncodedText {
  std::int64_t tokens = 0;
  bool truncated = false;
  std::string error;  // empty: there is a result
};

struct EncodeProgress {
  std::int64_t tokens = 0;  // done, over all calls
  double share = 0;         // done of the current call, 0 to 1
};

// Calls come from one thread at a time.
class Encoder {
 public:
  // Reads the folder's tokenizer and model. The Context must outlive the Encoder. Throws Error if the two do
  // not fit each other, and UsageError, whose place is "max_length" or "batch_tokens", if an option does not
  // fit them. An Encoder that is given the weights of another one of the same folder (model().weights())
  // shares them; options.weights then has no effect.
  Encoder(Context& context, const std::filesystem::path& folder, const EncoderOptions& options = {},
          std::shared_ptr<const BertWeights> weights = {});

  std::int64_t vector_size() const { return model_.vector_size(); }
  std::int64_t labels() const { return model_.labels(); }
  std::int64_t max_length() const { return max_length_; }
  BertSession& model() { return model_; }
  const BertSession& model() const { return model_; }
  const text::EncoderTokenizer& tokenizer() const { return tokenizer_; }
  const Prompts& prompts() const { return prompts_; }
  // The prompt that embed() would put before each text. Throws Error if the model has no prompt of that name,
  // and for a prompt that the model wants left out of its pooling.
  std::string_view prompt(const PromptChoice& choice) const;

  // Called after every batch.
  void set_progress(std::function<void(const EncodeProgress&)> progress) { progress_ = std::move(progress); }

  // Several processes then divide the batches of every call, all of them with the same texts. Process 0 gets
  // the results of all, and each other one those of its batches.
  void share_with(Share share) { share_ = std::move(share); }

  // Tokens computed to fill up batches, over all calls and processes.
  std::int64_t wasted_tokens() const { return model_.wasted_tokens() + wasted_elsewhere_; }

  // vectors: (texts, vector_size()). The prompt is put before each text.
  std::vector<EncodedText> embed(std::span<const std::string_view> texts, std::span<float> vectors,
                                 const PromptChoice& choice = {});
  // logits: (texts or pairs, labels()), of a folder with a classification head.
  std::vector<EncodedText> classify(std::span<const std::string_view> texts, std::span<float> logits);
  std::vector<EncodedText> classify(std::span<const TextPair> pairs, std::span<float> logits);

 private:
  void require_head() const;
  using Tokenize = std::function<text::Encoding(std::size_t index, const text::EncodeOptions& options)>;
  using Run = std::function<void(const PackedBatch& batch, std::span<float> out)>;

  std::vector<EncodedText> encode(std::size_t count, std::int64_t width, std::span<float> out,
                                  const Tokenize& tokenize, const Run& run);
  // The texts of a call, how they are encoded, and where the results go.
  struct Call {
    const Tokenize& tokenize;
    const Run& run;
    std::size_t width;
    std::span<float> out;
    std::vector<text::Encoding> encodings{};
    std::vector<EncodedText> reports{};
  };
  using Members = std::vector<std::size_t>;

  void tokenize_texts(const Members& texts, Call& call);
  void exchange_lengths(Call& call);
  std::vector<Members> batches_of(const Call& call) const;
  void run_batch(std::span<const std::size_t> members, Call& call);
  void gather_results(const std::vector<Members>& batches, Call& call);

  Context& context_;
  EncoderOptions options_;
  text::EncoderTokenizer tokenizer_;
  BertSession model_;
  Prompts prompts_;
  std::int64_t max_length_ = 0;
  std::int64_t tokens_done_ = 0;                  // over all calls
  std::int64_t call_done_ = 0, call_tokens_ = 0;  // of the current one
  std::function<void(const EncodeProgress&)> progress_;
  Share share_;
  std::int64_t tokens_elsewhere_ = 0, wasted_elsewhere_ = 0;  // by other processes, over all calls
};

}  // namespace warpwright
