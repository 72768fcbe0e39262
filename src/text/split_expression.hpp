// Cuts a text by any regular expression, as the Split pre-tokenizer of Hugging Face tokenizers 0.23.3 does
// (split_syntax.hpp says which expressions). Matches are pieces, and so is what lies between two of them. An
// empty match only ends the piece before it.
//
// PCRE2 finds the matches in a text of symbols (symbol_table.hpp), so they depend neither on its version of
// Unicode nor on its being compiled with Unicode. The limits below bound what one match costs. A text on
// which they are exceeded is an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/scratch_pool.hpp"

namespace warpwright::text {

// The fate of text that no match covers.
enum class Uncovered : std::uint8_t {
  piece,  // "Isolated": it is a piece, too
  error,  // "Removed" with invert: the reference drops it; here it is an Error
};

// A compiled expression. Cheap to copy. Many threads may use it at the same time, each with its own Cursor.
class SplitExpression {
 public:
  static constexpr std::uint32_t kMostSteps = 1'000'000;  // of backtracking, from one place in the text
  static constexpr std::size_t kMostMemory = std::size_t{64} << 20;  // bytes, for one match
  // A text between added tokens may take a thread kMostSeconds, and kMostSecondsPerCharacter more for each of
  // its characters.
  static constexpr double kMostSeconds = 0.5, kMostSecondsPerCharacter = 5e-6;

  // Throws an Error at `where` that begins with `name`, the field that has the expression, if the expression
  // is not supported or too large.
  SplitExpression(std::string expression, Uncovered uncovered, std::string name, std::string where);

  const std::string& expression() const;
  Uncovered uncovered() const;
  bool operator==(const SplitExpression& other) const;

  // "PCRE2 10.42 with JIT", or "without" if it cannot compile to machine code here.
  static std::string engine();

  class Cursor;

 private:
  struct Compiled;
  struct Scratch;
  std::shared_ptr<const Compiled> compiled_;
};

// Walks over the pieces of one text after the other.
class SplitExpression::Cursor {
 public:
  explicit Cursor(const SplitExpression& expression);
  ~Cursor();
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

  // Begins a text, of which ^ and \A match the start, $ and \z the end, and no assertion sees anything
  // before. It must outlive the walk. `offset` is its place in a larger text, for errors.
  void start(std::string_view text, std::size_t offset);

  // The end of the next piece, in bytes from the start of the text. Throws an Error if the match exceeds a
  // limit, or for uncovered text. At least one byte of text must be left.
  std::size_t next_end();

 private:
  struct Match {
    std::size_t begin, end;
  };

  Match find(std::size_t begin) const;  // in symbols; at the end of the text if there is none
  [[noreturn]] void fail_to_match(int code) const;

  const std::shared_ptr<const Compiled> compiled_;
  const ScratchPool<Scratch>::Lease scratch_;
  std::string_view text_;
  std::size_t offset_ = 0, byte_ = 0, symbol_ = 0;
};

}  // namespace warpwright::text
