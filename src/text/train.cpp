#include "text/train.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"
#include "runtime/threads.hpp"
#include "text/byte_alphabet.hpp"
#include "text/json.hpp"
#include "text/keyed_hash.hpp"
#include "text/pieces.hpp"
#include "text/pretokenize.hpp"

namespace warpwright::text {
namespace {

constexpr std::size_t kPartBytes = std::size_t{1} << 20;    // of text; one thread counts a part
constexpr std::size_t kBatchBytes = std::size_t{32} << 20;  // of text; counted between two reads
constexpr std::size_t kMergesPerProgress = 64;

// Owns copies of texts.
class Arena {
 public:
  std::string_view keep(std::string_view text) {
    if (text.size() > left_) {
      left_ = std::max(text.size(), std::size_t{1} << 20);
      blocks_.push_back(std::make_unique<char[]>(left_));
      next_ = blocks_.back().get();
    }
    text.copy(next_, text.size());
    const std::string_view kept(next_, text.size());
    next_ += text.size();
    left_ -= text.size();
    return kept;
  }

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
};

// Counts the occurrences of each piece. Open addressing, at most half full.
class PieceCounts {
 public:
  struct Slot {
    std::string_view piece;
    std::size_t hash = 0;
    std::uint64_t count = 0;  // 0: free
  };

  PieceCounts() : slots_(std::size_t{1} << 14) {}

  void add(std::string_view piece, std::uint64_t count) { add(piece, KeyedHash()(piece), count); }

  // Adds the counts of another table. Copies new pieces into the arena.
  void add(const PieceCounts& other, Arena& arena) {
    for (const Slot& from : other.slots_) {
      if (!from.count) continue;
      const bool known = find(from.piece, from.hash).count > 0;
      add(known ? from.piece : arena.keep(from.piece), from.hash, from.count);
    }
  }

  std::size_t size() const { return used_; }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  Slot& find(std::string_view piece, std::size_t hash) {
    std::size_t i = hash & (slots_.size() - 1);
    while (slots_[i].count && (slots_[i].hash != hash || slots_[i].piece != piece))
      i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }

  void add(std::string_view piece, std::size_t hash, std::uint64_t count) {
    Slot& slot = find(piece, hash);
    if (slot.count == 0) {
      slot.piece = piece;
      slot.hash = hash;
      ++used_;
    }
    slot.count += count;
    if (2 * used_ > slots_.size()) grow();
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.count) find(slot.piece, slot.hash) = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

CutRules cut_rules_of(const TokenizerTraining& options) {
  CutRules rules;
  rules.patterns = options.patterns;
  if (options.use_regex) rules.patterns.push_back(Pattern::gpt2);
  return rules;
}

void count_part(std::string_view part, const CutRules& rules, PieceCounts& counts) {
  PieceCursor cursor(rules, part);
  for (std::size_t begin = 0, end; begin < part.size(); begin = end) {
    end = cursor.end_of_piece(begin);
    counts.add(part.substr(begin, end - begin), 1);
  }
}

// Counts the pieces of documents in batches.
class PieceCounter {
 public:
  explicit PieceCounter(const TokenizerTraining& options)
      : options_(options), rules_(cut_rules_of(options)) {}

  void add(std::string_view document) {
    const std::size_t parts = rules_.patterns_cut_at_spaces() ? document.size() / kPartBytes + 1 : 1;
    for (const std::string_view part : split_for_workers(document, parts)) {
      parts_.emplace_back(part);
      bytes_ += part.size();
      if (bytes_ >= kBatchBytes) count_batch();
    }
  }
  const PieceCounts& finish() {
    count_batch();
    return counts_;
  }

 private:
  void count_batch() {
    std::exception_ptr failure;
    const int threads = default_threads().threads;
    claim_threads(threads);
#pragma omp parallel num_threads(threads)
    {
      PieceCounts own;
#pragma omp for schedule(dynamic) nowait
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        try {
          count_part(parts_[i], rules_, own);
        } catch (...) {
#pragma omp critical(warpwright_count_pieces)
          failure = std::current_exception();
        }
      }
#pragma omp critical(warpwright_count_pieces)
      try {
        counts_.add(own, arena_);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
    done_ += bytes_;
    bytes_ = 0;
    parts_.clear();
    if (options_.progress) options_.progress({TrainProgress::Phase::counting, done_, 0});
  }

  const TokenizerTraining& options_;
  CutRules rules_;
  Arena arena_;  // holds the pieces of counts_
  PieceCounts counts_;
  std::vector<std::string> parts_;
  std::size_t bytes_ = 0, done_ = 0;
};

// The merge loop. It reproduces HF's trainer exactly, including two peculiarities. A merged pair's count is
// not reset. A pair can be in the queue several times, each time with the words in which it was new. Both
// only matter if two pairs spell the same token.
class PairMerger {
 public:
  PairMerger(const PieceCounts& pieces, std::vector<std::string> tokens,
             const std::array<TokenId, 256>& byte_ids)
      : tokens_(std::move(tokens)) {
    for (std::size_t id = 0; id < tokens_.size(); ++id) id_of_.emplace(tokens_[id], static_cast<TokenId>(id));
    for (const PieceCounts::Slot& slot : pieces.slots()) {
      if (slot.count == 0 || slot.piece.size() < 2) continue;
      words_.push_back({symbols_.size(), slot.piece.size(), static_cast<std::int64_t>(slot.count)});
      for (const char c : slot.piece) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
    }
    for (std::size_t i = 0; i < words_.size(); ++i) count_pairs(static_cast<std::uint32_t>(i));
    queue_pending();
  }

  // Merges until there are `vocab_size` tokens or no pair is left.
  void run(std::size_t vocab_size, const std::function<void(const TrainProgress&)>& progress) {
    while (tokens_.size() < vocab_size && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Candidate top = std::move(queue_.back());
      queue_.pop_back();
      const std::int64_t count = counts_[top.pair];
      if (top.count != count) {
        top.count = count;
        push(std::move(top));
        continue;
      }
      if (count < 1) break;
      apply(top);
      if (progress && merges_.size() % kMergesPerProgress == 0) {
        progress({TrainProgress::Phase::merging, tokens_.size(), vocab_size});
      }
    }
    if (progress) progress({TrainProgress::Phase::merging, tokens_.size(), tokens_.size()});
  }

  std::vector<std::string> take_tokens() { return std::move(tokens_); }

  // The merges by rank. A pair that was merged twice keeps its last place, as in HF's table.
  std::vector<MergePair> ranked_merges() const {
    std::unordered_set<std::uint64_t> seen;
    std::vector<MergePair> ranked;
    for (auto merge = merges_.rbegin(); merge != merges_.rend(); ++merge) {
      if (seen.insert(*merge).second) ranked.push_back({left_of(*merge), right_of(*merge)});
    }
    std::reverse(ranked.begin(), ranked.end());
    return ranked;
  }

 private:
  struct Word {
    std::size_t begin, size;  // in symbols_
    std::int64_t count;
  };

  struct Candidate {
    std::int64_t count;
    std::uint64_t pair;
    std::vector<std::uint32_t> words;  // words that may contain the pair
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  static std::uint64_t pair_of(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(left) << 32) | right;
  }
  static TokenId left_of(std::uint64_t pair) { return static_cast<TokenId>(pair >> 32); }
  static TokenId right_of(std::uint64_t pair) { return static_cast<TokenId>(pair); }

  void push(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end());
  }

  void add_pair(std::uint64_t pair, std::uint32_t word) {
    counts_[pair] += words_[word].count;
    std::vector<std::uint32_t>& where = pending_[pair];
    if (where.empty() || where.back() != word) where.push_back(word);
  }

  void count_pairs(std::uint32_t word) {
    const TokenId* symbols = symbols_.data() + words_[word].begin;
    for (std::size_t i = 0; i + 1 < words_[word].size; ++i)
      add_pair(pair_of(symbols[i], symbols[i + 1]), word);
  }

  void queue_pending() {
    for (auto& [pair, words] : pending_) {
      if (const std::int64_t count = counts_[pair]; count > 0) push({count, pair, std::move(words)});
    }
    pending_.clear();
  }

  void apply(const Candidate& candidate) {
    const std::string token = tokens_[left_of(candidate.pair)] + tokens_[right_of(candidate.pair)];
    const auto [entry, is_new] = id_of_.emplace(token, static_cast<TokenId>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    merges_.push_back(candidate.pair);
    for (const std::uint32_t word : candidate.words) merge_in_word(word, candidate.pair, entry->second);
    queue_pending();
  }

  void merge_in_word(std::uint32_t index, std::uint64_t pair, TokenId merged) {
    Word& word = words_[index];
    TokenId* symbols = symbols_.data() + word.begin;
    std::size_t size = 0;  // symbols written; never ahead of the symbols read
    for (std::size_t i = 0; i < word.size; ++i) {
      if (i + 1 == word.size || pair_of(symbols[i], symbols[i + 1]) != pair) {
        symbols[size++] = symbols[i];
        continue;
      }
      if (size > 0) {
        counts_[pair_of(symbols[size - 1], symbols[i])] -= word.count;
        add_pair(pair_of(symbols[size - 1], merged), index);
      }
      ++i;
      if (i + 1 < word.size) {
        counts_[pair_of(symbols[i], symbols[i + 1])] -= word.count;
        add_pair(pair_of(merged, symbols[i + 1]), index);
      }
      symbols[size++] = merged;
    }
    word.size = size;
  }

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, TokenId> id_of_;
  std::vector<std::uint64_t> merges_;
  std::vector<TokenId> symbols_;
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, std::int64_t> counts_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> pending_;  // new pairs since the last merge
  std::vector<Candidate> queue_;  // a heap with the best candidate on top
};

void check_options(const TokenizerTraining& options) {
  const std::size_t smallest = options.special_tokens.size() + 256;
  constexpr std::size_t kLargest = std::size_t{1} << 30;
  if (options.vocab_size < smallest || options.vocab_size > kLargest) {
    throw UsageError(
        fmt::format("a vocabulary of {} tokens", options.vocab_size), "tokenizer training",
        fmt::format("give a size from {} (256 bytes and the special tokens) to {}", smallest, kLargest));
  }
  const CutRules rules = cut_rules_of(options);
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || PieceCursor(rules, token).end_of_piece(0) == token.size()) {
      throw UsageError(fmt::format("ordinary text could produce the special token {}", quote(token)),
                       "tokenizer training", "mix letters and punctuation, as in <|endoftext|>");
    }
    if (std::count(options.special_tokens.begin(), options.special_tokens.end(), token) > 1) {
      throw UsageError(fmt::format("the special token {} is given twice", quote(token)), "tokenizer training",
                       "give each token once");
    }
  }
}

}  // namespace

Tokenizer train_tokenizer(const DocumentSource& documents, const TokenizerTraining& options) {
  check_options(options);
  PieceCounter counter(options);
  documents([&](std::string_view document) { counter.add(document); });
  const PieceCounts& pieces = counter.finish();
  if (pieces.size() == 0)
    throw Error("there is no text to train on", "tokenizer training", "give files with text");
  if (pieces.size() >= std::numeric_limits<std::uint32_t>::max()) {
    throw Error(fmt::format("{} different words are too many", pieces.size()), "tokenizer training",
                "train on a part of the text");
  }

  TokenizerSpec spec;
  spec.patterns = options.patterns;
  spec.use_regex = options.use_regex;
  std::vector<std::string> tokens = options.special_tokens;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    AddedToken token;
    token.content = tokens[id];
    token.id = static_cast<TokenId>(id);
    token.special = true;
    spec.added.push_back(std::move(token));
  }
  if (!tokens.empty()) spec.end_of_text = tokens.front();
  std::array<TokenId, 256> byte_ids{};
  tokens.resize(tokens.size() + 256);
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids[byte] =
        static_cast<TokenId>(options.special_tokens.size() + alphabet_rank(static_cast<unsigned char>(byte)));
    tokens[byte_ids[byte]] = std::string(1, static_cast<char>(byte));
  }

  PairMerger merger(pieces, std::move(tokens), byte_ids);
  merger.run(options.vocab_size, options.progress);
  spec.merges = merger.ranked_merges();
  spec.tokens = merger.take_tokens();
  return Tokenizer(std::move(spec), "tokenizer training");
}

Tokenizer train_tokenizer(std::span<const std::string_view> documents, const TokenizerTraining& options) {
  return train_tokenizer(
      [&](const auto& add) {
        for (const std::string_view document : documents) add(document);
      },
      options);
}

}  // namespace warpwright::text
