#include "text/split_expression.hpp"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "text/json.hpp"
#include "text/split_syntax.hpp"
#include "text/symbol_table.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr std::size_t kSmallestStack = std::size_t{32} << 10;  // bytes, of machine code's stack

struct Free {
  void operator()(pcre2_code* code) const { ::pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { ::pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { ::pcre2_match_context_free(context); }
  void operator()(pcre2_jit_stack* stack) const { ::pcre2_jit_stack_free(stack); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

template <class T>
T* require_memory(T* made) {
  if (!made) throw std::bad_alloc();
  return made;
}

bool has_jit() {
  std::uint32_t jit = 0;
  ::pcre2_config(PCRE2_CONFIG_JIT, &jit);
  return jit != 0;
}

std::string message_of(int code) {
  PCRE2_UCHAR message[256] = {};
  ::pcre2_get_error_message(code, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

// A class of symbols in brackets.
std::string class_of(const std::vector<std::uint8_t>& symbols) {
  std::string members;
  for (std::size_t i = 0, last; i < symbols.size(); i = last + 1) {
    for (last = i; last + 1 < symbols.size() && symbols[last + 1] == symbols[last] + 1;) ++last;
    members += fmt::format("\\x{:02x}", symbols[i]);
    if (last > i) members += fmt::format("-\\x{:02x}", symbols[last]);
  }
  return fmt::format("[{}]", symbols.empty() ? fmt::format("\\x{:02x}", SymbolTable::kNoSymbol) : members);
}

Owned<pcre2_code> compile(const SplitSyntax& syntax, const SymbolTable& symbols, const std::string& what,
                          const std::string& where) {
  std::string pattern = "(?C)(?:";
  for (const SplitSyntax::Part& part : syntax.parts) {
    pattern += part.set ? class_of(symbols.members(*part.set)) : part.syntax;
  }
  pattern += ")";
  // PCRE2 10.42 looks for a second x before it tries (?=x)a?x, and finds no match in "x". So it must not
  // search for where a match may start.
  constexpr std::uint32_t kOptions = PCRE2_NO_START_OPTIMIZE | PCRE2_NEVER_UTF | PCRE2_NEVER_UCP;
  int error = 0;
  std::size_t offset = 0;
  Owned<pcre2_code> code(::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                         kOptions, &error, &offset, nullptr));
  if (!code) {
    throw Error(fmt::format("{}, which PCRE2 does not compile ({})", what, message_of(error)), where,
                "rewrite or shorten it");
  }
  ::pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // if it fails, the interpreter matches
  return code;
}

// Bounds the time that one thread spends on a text.
//
// PCRE2 limits the steps of backtracking from one place, but each may read to the end of the text, and there
// may be as many places as characters. So it is called back at each place and each repeat that may be long.
// The callback looks at the thread's clock, less often while calls follow each other fast.
class Stopwatch {
 public:
  void reset() {
    calls_ = 0;
    calls_per_look_ = 1;
    allowed_ = SplitExpression::kMostSeconds;
    start_ = last_ = seconds();
  }
  void allow(std::size_t characters) {
    allowed_ += SplitExpression::kMostSecondsPerCharacter * static_cast<double>(characters);
  }

  // A callout: 0 to go on.
  static int check(pcre2_callout_block*, void* stopwatch) {
    return static_cast<Stopwatch*>(stopwatch)->is_over() ? PCRE2_ERROR_CALLOUT : 0;
  }

 private:
  static constexpr std::uint32_t kMostCallsPerLook = 4096;
  static constexpr double kSecondsPerLook = 1e-3;

  static double seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  bool is_over() {
    if (++calls_ < calls_per_look_) return false;
    calls_ = 0;
    const double now = seconds();
    const bool is_soon = now - std::exchange(last_, now) < kSecondsPerLook;
    calls_per_look_ = is_soon ? std::min(2 * calls_per_look_, kMostCallsPerLook) : 1;
    return now - start_ > allowed_;
  }

  std::uint32_t calls_ = 0, calls_per_look_ = 1;
  double start_ = 0, last_ = 0, allowed_ = 0;
};

}  // namespace

// The memory of a match, for any expression.
struct SplitExpression::Scratch {
  Scratch()
      : data(require_memory(::pcre2_match_data_create(1, nullptr))),
        context(require_memory(::pcre2_match_context_create(nullptr))),
        stack(has_jit() ? require_memory(::pcre2_jit_stack_create(kSmallestStack, kMostMemory, nullptr))
                        : nullptr) {
    ::pcre2_set_match_limit(context.get(), kMostSteps);
    ::pcre2_set_depth_limit(context.get(), kMostSteps);
    ::pcre2_set_heap_limit(context.get(), kMostMemory >> 10);
    ::pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    ::pcre2_set_callout(context.get(), &Stopwatch::check, &stopwatch);
  }

  Owned<pcre2_match_data> data;
  Owned<pcre2_match_context> context;
  Owned<pcre2_jit_stack> stack;  // none without JIT
  std::vector<std::uint8_t> symbols;
  Stopwatch stopwatch;
};

struct SplitExpression::Compiled {
  std::string expression;
  Uncovered uncovered;
  std::string what, where;  // for errors: the field with its value; the file
  SymbolTable symbols;
  Owned<pcre2_code> code;
  mutable ScratchPool<Scratch> pool = {};
};

SplitExpression::SplitExpression(std::string expression, Uncovered uncovered, std::string name,
                                 std::string where) {
  const SplitSyntax syntax = parse_split(expression, name, where);
  std::string what = fmt::format("{} is {}", name, quote(expression));
  SymbolTable symbols(syntax.sets);
  if (symbols.count() > SymbolTable::kMostSymbols) {
    throw Error(fmt::format("{}, which distinguishes more than {} classes of characters", what,
                            SymbolTable::kMostSymbols),
                where, "shorten it");
  }
  Owned<pcre2_code> code = compile(syntax, symbols, what, where);
  compiled_.reset(new Compiled{std::move(expression), uncovered, std::move(what), std::move(where),
                               std::move(symbols), std::move(code)});
}

const std::string& SplitExpression::expression() const {
  return compiled_->expression;
}

Uncovered SplitExpression::uncovered() const {
  return compiled_->uncovered;
}

bool SplitExpression::operator==(const SplitExpression& other) const {
  return expression() == other.expression() && uncovered() == other.uncovered();
}

std::string SplitExpression::engine() {
  char version[64] = {};
  ::pcre2_config(PCRE2_CONFIG_VERSION, version);
  const std::string text = version;  // such as "10.42 2022-12-11"
  return fmt::format("PCRE2 {} {} JIT", text.substr(0, text.find(' ')), has_jit() ? "with" : "without");
}

SplitExpression::Cursor::Cursor(const SplitExpression& expression)
    : compiled_(expression.compiled_), scratch_(compiled_->pool) {
  (*scratch_).stopwatch.reset();
}

SplitExpression::Cursor::~Cursor() = default;

void SplitExpression::Cursor::start(std::string_view text, std::size_t offset) {
  text_ = text;
  offset_ = offset;
  byte_ = symbol_ = 0;
  Scratch& scratch = *scratch_;
  compiled_->symbols.translate(text, scratch.symbols);
  scratch.stopwatch.allow(scratch.symbols.size());
}

std::size_t SplitExpression::Cursor::next_end() {
  Match match = find(symbol_);
  const bool is_empty = match.begin == symbol_ && match.end == symbol_;
  if (is_empty) match = find(symbol_ + 1);
  if (match.begin > symbol_ && compiled_->uncovered == Uncovered::error) {
    throw Error(
        fmt::format("{}, and leaves text at byte {} that would be removed", compiled_->what, offset_ + byte_),
        compiled_->where, "use the behavior Isolated, or a tokenizer that keeps all text");
  }
  const std::size_t end = match.begin > symbol_ ? match.begin : match.end;
  const auto* p = reinterpret_cast<const unsigned char*>(text_.data());
  for (; symbol_ < end; ++symbol_) byte_ += decode_utf8(p + byte_, p + text_.size()).length;
  return byte_;
}

SplitExpression::Cursor::Match SplitExpression::Cursor::find(std::size_t begin) const {
  Scratch& scratch = *scratch_;
  const int code = ::pcre2_match(compiled_->code.get(), scratch.symbols.data(), scratch.symbols.size(), begin,
                                 0, scratch.data.get(), scratch.context.get());
  if (code == PCRE2_ERROR_NOMATCH) return {scratch.symbols.size(), scratch.symbols.size()};
  if (code < 0) fail_to_match(code);
  const std::size_t* ends = ::pcre2_get_ovector_pointer(scratch.data.get());
  return {ends[0], ends[1]};
}

void SplitExpression::Cursor::fail_to_match(int code) const {
  std::string limit = message_of(code);
  if (code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_DEPTHLIMIT) {
    limit = fmt::format("over {} steps", kMostSteps);
  } else if (code == PCRE2_ERROR_HEAPLIMIT || code == PCRE2_ERROR_JIT_STACKLIMIT) {
    limit = fmt::format("over {} MiB of memory", kMostMemory >> 20);
  } else if (code == PCRE2_ERROR_CALLOUT) {
    limit = fmt::format("over {} s and {} microseconds a character", kMostSeconds,
                        1e6 * kMostSecondsPerCharacter);
  }
  throw Error(fmt::format("{}, which cannot be matched at byte {} of a text: {}", compiled_->what,
                          offset_ + byte_, limit),
              compiled_->where, "leave the text out, or use a tokenizer with a simpler expression");
}

}  // namespace warpwright::text
