// Times a tokenizer on one thread: loading, encoding, decoding, training, and texts that are meant to be
// slow.
//
//   text_bench --tokenizer DIR --input FILE [--repeat N]     byte-level BPE
//   text_bench --encoder DIR --input FILE [--repeat N]       an encoder's tokenizer
//
// Prints one line per measurement: name, size, best and median CPU time of N runs. bench/peers/encode.py and
// bench/peers/encode_wordpiece.py compare these times with other tokenizers.
#include <fmt/format.h>
#include <time.h>
#include <cstdlib>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "text/canonical.hpp"
#include "text/encoder_tokenizer.hpp"
#include "text/pretokenize.hpp"
#include "text/tokenizer.hpp"
#include "text/train.hpp"

namespace {

using namespace warpwright;
using namespace warpwright::text;

struct Flags {
  std::filesystem::path tokenizer, encoder, input;
  int repeat = 7;
};

// CPU time of this thread, which does all the work. Other programs on the machine disturb it less than wall
// time.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_of(const std::function<void()>& work) {
  const double start = cpu_seconds();
  work();
  return cpu_seconds() - start;
}

void report(const std::string& name, std::size_t bytes, int repeat, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < repeat; ++i) seconds.push_back(seconds_of(work));
  std::sort(seconds.begin(), seconds.end());
  const double best = seconds.front(), median = seconds[seconds.size() / 2];
  const double megabytes = static_cast<double>(bytes) / 1e6;
  fmt::print("{:<26} {:>9.3f} MB  best {:>9.2f} ms {:>8.1f} MB/s  median {:>9.2f} ms {:>8.1f} MB/s\n", name,
             megabytes, best * 1e3, megabytes / best, median * 1e3, megabytes / median);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

void run_encoder(const Flags& flags) {
  const EncoderTokenizer tokenizer = EncoderTokenizer::load(flags.encoder);
  const std::string text = read_file(flags.input, std::uint64_t{1} << 32);
  const std::vector<std::string_view> lines = lines_of(text);
  const std::size_t count = tokenizer.encode(text).ids.size();
  fmt::print("{} tokens, {:.3f} bytes per token\n", count,
             static_cast<double>(text.size()) / static_cast<double>(count));
  report("load", 0, flags.repeat, [&] { EncoderTokenizer::load(flags.encoder); });
  report("encode, warm cache", text.size(), flags.repeat, [&] { tokenizer.encode(text); });
  std::vector<EncoderTokenizer> fresh;
  for (int i = 0; i < flags.repeat; ++i) fresh.push_back(EncoderTokenizer::load(flags.encoder));
  std::size_t next = 0;
  report("encode, cold cache", text.size(), flags.repeat, [&] { fresh[next++].encode(text); });
  report("encode, line by line", text.size(), flags.repeat, [&] {
    std::vector<Encoding> encodings;
    for (const std::string_view line : lines) encodings.push_back(tokenizer.encode(line));
  });
  for (const auto& [name, unit] :
       {std::pair("a run of 'a'", "a"), std::pair("a run of spaces", " "), std::pair("a run of dashes", "-"),
        std::pair("a run of U+4F60", "\u4f60"), std::pair("marks to be ordered", "\u302e\U0001d165"),
        std::pair("invalid bytes", "\xff")}) {
    std::string run_text;
    while (run_text.size() < std::size_t{1} << 20) run_text += unit;
    report(name, run_text.size(), flags.repeat, [&] { tokenizer.encode(run_text); });
  }
}

void run(const Flags& flags) {
  ::setenv("OMP_NUM_THREADS", "1", 1);
  if (!flags.encoder.empty()) return run_encoder(flags);
  const Tokenizer tokenizer = Tokenizer::load(flags.tokenizer);
  const std::string text = read_file(flags.input, std::uint64_t{1} << 32);
  const std::vector<TokenId> ids = tokenizer.encode(text);
  fmt::print("{} tokens, {:.3f} bytes per token\n", ids.size(),
             static_cast<double>(text.size()) / static_cast<double>(ids.size()));
  report("load", 0, flags.repeat, [&] { Tokenizer::load(flags.tokenizer); });
  report("encode, warm cache", text.size(), flags.repeat, [&] { tokenizer.encode(text); });
  std::vector<Tokenizer> fresh;
  for (int i = 0; i < flags.repeat; ++i) fresh.push_back(Tokenizer::load(flags.tokenizer));
  std::size_t next = 0;
  report("encode, cold cache", text.size(), flags.repeat, [&] { fresh[next++].encode(text); });
  report("encode, line by line", text.size(), flags.repeat, [&] {
    std::vector<std::vector<TokenId>> ids_of_lines;
    for (const std::string_view line : lines_of(text)) ids_of_lines.push_back(tokenizer.encode(line));
  });
  report("decode", text.size(), flags.repeat, [&] { tokenizer.decode(ids); });
  const std::pair<const char*, Pattern> patterns[] = {{"pieces, gpt2", Pattern::gpt2},
                                                      {"pieces, cl100k", Pattern::cl100k},
                                                      {"pieces, qwen", Pattern::qwen},
                                                      {"pieces, each_digit", Pattern::each_digit}};
  for (const auto& [name, pattern] : patterns) {
    report(name, text.size(), flags.repeat, [&, cut = pattern] {
      std::size_t pieces = 0;
      for (std::size_t begin = 0; begin < text.size(); ++pieces) begin = piece_end(cut, text, begin);
      if (pieces == 0) throw Error("has no pieces", flags.input.string(), "name a text");
    });
  }
  std::string buffer;
  report("NFC", text.size(), flags.repeat, [&] { to_nfc(text, buffer); });
  const std::string_view document = text;
  TokenizerTraining options;
  options.vocab_size = 4096;
  report("train, 4096 tokens", text.size(), flags.repeat,
         [&] { train_tokenizer(std::span<const std::string_view>(&document, 1), options); });
  const std::pair<const char*, char> runs[] = {
      {"a run of 'a'", 'a'}, {"a run of spaces", ' '}, {"a run of dashes", '-'}};
  for (const auto& [name, byte] : runs) {
    const std::string run_text(std::size_t{1} << 20, byte);
    report(name, run_text.size(), flags.repeat, [&] { tokenizer.encode(run_text); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the tokenizer on one thread");
  Flags flags;
  CLI::Option* tokenizer =
      app.add_option("--tokenizer", flags.tokenizer, "Folder of a byte-level BPE tokenizer");
  CLI::Option* encoder = app.add_option("--encoder", flags.encoder, "Folder of an encoder's tokenizer");
  tokenizer->excludes(encoder);
  app.add_option("--input", flags.input, "Text file")->required();
  app.add_option("--repeat", flags.repeat, "Runs of each measurement")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    run(flags);
  } catch (const Error& error) {
    fmt::print(stderr, "text_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
