// Puts the library behind a pipe, for scripts that compare it with other programs (conformance.py).
//
//   text_pipe encode DIR [special]      frames in, frames of ids out; "special": special tokens are
//   recognized text_pipe classes                   a byte for each code point: its Unicode classes text_pipe
//   train SIZE OUT FILE…      trains on files, each one document, and saves
//
// A frame is a 32-bit count and so many elements: bytes of text in, 32-bit ids out (little-endian).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "text/tokenizer.hpp"
#include "text/train.hpp"
#include "text/unicode.hpp"

namespace {

using namespace warpwright;
using namespace warpwright::text;

template <class T>
bool read_items(T* items, std::size_t count) {
  return std::fread(items, sizeof(T), count, stdin) == count;
}

template <class T>
void write_items(const T* items, std::size_t count) {
  if (std::fwrite(items, sizeof(T), count, stdout) != count)
    throw_system_error("write", "stdout", "check the reader");
}

// add_prefix_space adds to the text, and some added tokens take white space away.
bool is_lossless(const TokenizerSpec& spec) {
  return !spec.add_prefix_space &&
         std::none_of(spec.added.begin(), spec.added.end(),
                      [](const AddedToken& token) { return token.lstrip || token.rstrip; });
}

void encode(const Tokenizer& tokenizer, SpecialTokens special) {
  const bool lossless = is_lossless(tokenizer.spec());
  std::string text;
  std::vector<TokenId> ids;
  for (std::uint32_t size; read_items(&size, 1);) {
    text.resize(size);
    if (!read_items(text.data(), size)) throw Error("a frame is cut short", "stdin", "send whole frames");
    ids.clear();
    tokenizer.encode(text, ids, special);
    const auto count = static_cast<std::uint32_t>(ids.size());
    write_items(&count, 1);
    write_items(ids.data(), ids.size());
    std::fflush(stdout);
    if (lossless && tokenizer.decode(ids) != text) {
      throw Error("decode(encode(text)) is not the text", text, "find out why");
    }
  }
}

void print_classes() {
  for (char32_t code = 0; code < 0x110000; ++code) {
    const std::uint8_t classes = UnicodeTable::instance().classes(code);
    write_items(&classes, 1);
  }
}

int run(const std::vector<std::string>& args) {
  if (args.size() >= 2 && args[0] == "encode") {
    const bool special = args.size() == 3 && args[2] == "special";
    encode(Tokenizer::load(args[1]), special ? SpecialTokens::recognize : SpecialTokens::as_text);
  } else if (args.size() == 1 && args[0] == "classes") {
    print_classes();
  } else if (args.size() >= 4 && args[0] == "train") {
    TrainOptions options;
    options.vocab_size = std::stoul(args[1]);
    const std::vector<std::filesystem::path> files(args.begin() + 3, args.end());
    train_tokenizer(files, options).save(args[2]);
  } else {
    std::fputs("usage: text_pipe encode DIR [special] | classes | train SIZE OUT FILE...\n", stderr);
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "text_pipe: %s\n", error.what());
    return 1;
  }
}
