#include "data/build.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cstdlib>

#include <map>
#include <set>

#include "data/compressed.hpp"
#include "data/loader.hpp"
#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVocabulary = 257;
constexpr std::int32_t kEndOfText = 256;

void encode_bytes(std::string_view text, bool, std::vector<std::int32_t>& ids) {
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

class BuildTest : public TestFolder {
 protected:
  BuildOptions options(std::vector<fs::path> inputs, double val_fraction = 0) const {
    BuildOptions result;
    result.inputs = std::move(inputs);
    result.out = folder / "out";
    result.val_fraction = val_fraction;
    result.vocabulary_size = kVocabulary;
    result.end_of_text = kEndOfText;
    result.before_commit = [](const fs::path& out) { write_file_atomically(out / "tokenizer.json", "{}"); };
    return result;
  }
  std::string error_for(const BuildOptions& options) const {
    return message_of([&] { build_shards(options, encode_bytes, {}); });
  }
  // The split's documents as text, separated at the end-of-text tokens.
  std::vector<std::string> documents(const fs::path& out, Split split) const {
    const TokenStream stream(out, split, kVocabulary);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.tokens()));
    stream.read(0, ids);
    std::vector<std::string> result(1);
    for (const std::int32_t id : ids) {
      if (id == kEndOfText) {
        result.emplace_back();
      } else {
        result.back() += static_cast<char>(id);
      }
    }
    EXPECT_EQ(result.back(), "") << "the last document ends with the end-of-text token";
    result.pop_back();
    return result;
  }
};

TEST_F(BuildTest, EveryDocumentEndsWithTheEndOfTextToken) {
  put("in/a.txt", "first\nfile");
  put("in/b.jsonl",
      "{\"text\": \"line one\"}\n{\"text\": \"\"}\n{\"id\": 1, \"text\": \"line \\\"two\\\"\"}\n");
  put("in/c.txt", "");
  put("in/d.txt", "bytes \xff\xfe \x80 pass");
  const Manifest manifest = build_shards(options({folder / "in"}), encode_bytes, {});
  const std::vector<std::string> expected = {"first\nfile", "line one", "line \"two\"",
                                             "bytes \xff\xfe \x80 pass"};
  EXPECT_EQ(documents(folder / "out", Split::train), expected);
  EXPECT_EQ(manifest.train.documents, 4);
  std::size_t bytes = 0;
  for (const std::string& text : expected) bytes += text.size();
  EXPECT_EQ(manifest.train.bytes, static_cast<std::int64_t>(bytes));
  EXPECT_EQ(manifest.train.tokens, static_cast<std::int64_t>(bytes + expected.size()));
  EXPECT_EQ(manifest.val.tokens, 0);
}

TEST_F(BuildTest, TheManifestSurvivesTheRoundTrip) {
  put("a.txt", "one two\nthree four\nfive six\n");
  const Manifest made = build_shards(options({folder / "a.txt"}, 0.3), encode_bytes, {});
  const auto read = read_manifest(folder / "out");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->vocabulary_size, kVocabulary);
  EXPECT_EQ(read->end_of_text, kEndOfText);
  EXPECT_EQ(
      read->files,
      (std::map<std::string, std::string>{{"tokenizer.json", checksum_of(folder / "out/tokenizer.json")}}));
  for (const Split split : {Split::train, Split::val}) {
    EXPECT_EQ(read->split(split).tokens, made.split(split).tokens);
    EXPECT_EQ(read->split(split).documents, made.split(split).documents);
    EXPECT_EQ(read->split(split).bytes, made.split(split).bytes);
    EXPECT_EQ(read->split(split).shards, made.split(split).shards);
  }
}

TEST_F(BuildTest, ASingleDocumentGivesItsTailFromALineStart) {
  put("a.txt", "one two\nthree four\nfive six\n");
  build_shards(options({folder / "a.txt"}, 0.3), encode_bytes, {});
  EXPECT_EQ(documents(folder / "out", Split::train), (std::vector<std::string>{"one two\nthree four\n"}));
  EXPECT_EQ(documents(folder / "out", Split::val), (std::vector<std::string>{"five six\n"}));
}

TEST_F(BuildTest, ASingleJsonlDocumentIsSplitTheSameWay) {
  put("a.jsonl", "\n{\"text\": \"one two\\nthree four\\nfive six\\n\"}\n");
  build_shards(options({folder / "a.jsonl"}, 0.3), encode_bytes, {});
  EXPECT_EQ(documents(folder / "out", Split::train), (std::vector<std::string>{"one two\nthree four\n"}));
  EXPECT_EQ(documents(folder / "out", Split::val), (std::vector<std::string>{"five six\n"}));
}

TEST_F(BuildTest, ValidationTakesAFixedShareOfWholeDocuments) {
  std::string lines;
  std::set<std::string> all;
  for (int i = 0; i < 200; ++i) {
    lines += "{\"body\": \"document " + std::to_string(i) + "\"}\n";
    all.insert("document " + std::to_string(i));
  }
  BuildOptions wanted = options({put("a.jsonl", lines)}, 0.1);
  wanted.field = "body";
  std::map<std::uint64_t, std::vector<std::string>> choice;
  for (const std::uint64_t seed : {1, 2}) {
    wanted.seed = seed;
    wanted.out = folder / std::to_string(seed);
    build_shards(wanted, encode_bytes, {});
    choice[seed] = documents(wanted.out, Split::val);
    EXPECT_EQ(choice[seed].size(), 20u);
    auto both = documents(wanted.out, Split::train);
    EXPECT_EQ(both.size(), 180u);
    both.insert(both.end(), choice[seed].begin(), choice[seed].end());
    EXPECT_EQ(std::set<std::string>(both.begin(), both.end()), all);
  }
  EXPECT_NE(choice[1], choice[2]);
  wanted.val_fraction = 0.0001;  // at least one document
  wanted.out = folder / "few";
  EXPECT_EQ(build_shards(wanted, encode_bytes, {}).val.documents, 1);
}

TEST_F(BuildTest, TheResultDoesNotDependOnThreads) {
  std::string text, lines;
  for (int i = 0; i < 300000; ++i) text += "word" + std::to_string(i) + (i % 11 ? " " : "\n");
  for (int i = 0; i < 2000; ++i)
    lines += "{\"text\": \"line " + std::string(static_cast<std::size_t>(i), 'y') + "\"}\n";
  put("in/a.txt", text);
  put("in/b.jsonl", lines);
  BuildOptions wanted = options({folder / "in"}, 0);
  wanted.tokens_per_shard = 700001;
  std::map<int, std::map<std::string, std::string>> results;
  for (const int count : {1, 3}) {
    ::setenv("OMP_NUM_THREADS", std::to_string(count).c_str(), 1);
    wanted.out = folder / std::to_string(count);
    build_shards(wanted, encode_bytes, {});
    for (const auto& entry : fs::directory_iterator(wanted.out)) {
      results[count][entry.path().filename()] = read_file(entry.path(), 1 << 30);
    }
  }
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_GT(results[1].size(), 3u);
  EXPECT_EQ(results[1], results[3]);
  const auto read = documents(folder / "1", Split::train);
  ASSERT_EQ(read.size(), 2001u);
  EXPECT_EQ(read.front(), text);
  EXPECT_EQ(read.back(), "line " + std::string(1999, 'y'));
}

TEST_F(BuildTest, ProgressEndsAtTheTotal) {
  put("in/a.txt", std::string(3 << 20, 'x') + "\n");
  put("in/b.jsonl", "\n\n{\"text\": \"y\"}\n");
  std::vector<BuildProgress> seen;
  build_shards(options({folder / "in"}), encode_bytes,
               [&](const BuildProgress& now) { seen.push_back(now); });
  ASSERT_FALSE(seen.empty());
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);
  EXPECT_EQ(seen.back().bytes_done, (3 << 20) + 1 + 16);
  EXPECT_EQ(seen.back().bytes_total, (3 << 20) + 1 + 16);
}

TEST_F(BuildTest, ReplacesOnlyItsOwnFoldersAndOnlyWithForce) {
  BuildOptions wanted = options({put("a.txt", "text\nmore\n")}, 0.5);
  build_shards(wanted, encode_bytes, {});
  put("a.txt", "new\ntext\n");
  EXPECT_NE(error_for(wanted).find("exists and is not empty"), std::string::npos);
  EXPECT_EQ(documents(folder / "out", Split::train), (std::vector<std::string>{"text\n"}));
  wanted.force = true;
  build_shards(wanted, encode_bytes, {});
  EXPECT_EQ(documents(folder / "out", Split::train), (std::vector<std::string>{"new\n"}));
  put("out/notes", "mine");
  EXPECT_NE(error_for(wanted).find("holds notes, which is not a file of"), std::string::npos);
  fs::remove(folder / "out/notes");
  BuildOptions home = wanted;
  home.out = folder;
  EXPECT_NE(error_for(home).find("which is not a file of"), std::string::npos);
  put("out/data.json", "damaged");
  EXPECT_NE(error_for(wanted).find("which is not a file of"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "out/train_000000.bin"));
}

TEST_F(BuildTest, AnErrorLeavesNothingBehind) {
  put("in/a.jsonl", "{\"text\": \"good\"}\n{\"text\": 1}\n");
  EXPECT_NE(error_for(options({folder / "in"})).find("a.jsonl:2"), std::string::npos);
  const BuildOptions broken = options({put("b.txt", "text")});
  EXPECT_THROW(
      build_shards(broken, [](std::string_view, bool, std::vector<std::int32_t>& ids) { ids.push_back(257); },
                   {}),
      Error);
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);
}

TEST_F(BuildTest, AnErrorOfTheEncoderNamesTheDocument) {
  const auto refuse = [](std::string_view text, bool, std::vector<std::int32_t>&) {
    if (text.find("bad") != std::string_view::npos)
      throw Error("matches for too long", "tokenizer.json", "stop");
  };
  for (const auto& [file, text, place] :
       {std::tuple("a.txt", "bad", "a.txt: "),
        {"b.jsonl", "{\"text\": \"good\"}\n{\"text\": \"bad\"}\n", "b.jsonl:2: "}}) {
    const BuildOptions broken = options({put(file, text)});
    const std::string message = message_of([&] { build_shards(broken, refuse, {}); });
    EXPECT_NE(
        message.find(std::string(place) + "cannot be encoded: tokenizer.json: matches for too long; stop"),
        std::string::npos)
        << message;
  }
}

TEST_F(BuildTest, AFullDiskLeavesTheOldDataWhole) {
  const BuildOptions small = options({put("a.txt", "small\n")});
  build_shards(small, encode_bytes, {});
  BuildOptions large = options({put("b.txt", std::string(8 << 20, 'x'))});
  large.force = true;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::_exit(error_for(large).find("cannot write: File too large") == std::string::npos);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(documents(folder / "out", Split::train), (std::vector<std::string>{"small\n"}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 3);
}

TEST_F(BuildTest, ImpossibleOptionsAreNamed) {
  const fs::path input = put("a.txt", "text");
  EXPECT_NE(error_for(options({input}, 0.5)).find("single line"), std::string::npos);
  EXPECT_THROW(build_shards(options({input}, 1), encode_bytes, {}), UsageError);
  EXPECT_THROW(build_shards(options({input}, -0.1), encode_bytes, {}), UsageError);
  EXPECT_NE(error_for(options({folder / "none"})).find("No such file"), std::string::npos);
  EXPECT_NE(error_for(options({put("empty.txt", "")})).find("no documents"), std::string::npos);
  EXPECT_NE(error_for(options({})).find("no documents"), std::string::npos);
  BuildOptions wanted = options({input});
  wanted.end_of_text = 257;
  EXPECT_NE(error_for(wanted).find("end-of-text"), std::string::npos);
}

// The input is 2.5 GB, sparse on disk except for a space every million bytes, at which it is cut. The encoder
// only counts, which keeps the output small.
TEST_F(BuildTest, InputsMayPassTwoGigabytes) {
  constexpr std::int64_t kPieces = 2500, kStride = 1'000'000;
  const fs::path input = put("large.txt", "");
  fs::resize_file(input, kPieces * kStride);
  {
    std::fstream file(input, std::ios::in | std::ios::out | std::ios::binary);
    for (std::int64_t piece = 1; piece < kPieces; ++piece) file.seekp(piece * kStride).put(' ');
  }
  const auto count = [](std::string_view, bool, std::vector<std::int32_t>& ids) { ids.push_back(1); };
  BuildOptions wanted = options({input});
  wanted.binary = true;
  const Manifest manifest = build_shards(wanted, count, {});
  EXPECT_EQ(manifest.train.bytes, kPieces * kStride);
  EXPECT_EQ(manifest.train.documents, 1);
  EXPECT_EQ(manifest.train.tokens, kPieces + 1);
}

TEST_F(BuildTest, CompressedTextIsTheText) {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "word" + std::to_string(i % 1000) + (i % 11 ? " " : "\n");
  const std::string lines = "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n";
  put("plain/a.txt", text);
  put("plain/b.jsonl", lines);
  put("plain/c.ndjson", lines);
  put("packed/a.txt.gz", gzip(text.substr(0, 1000)) + gzip(text.substr(1000)));
  put("packed/b.jsonl.gz", gzip(lines));
  put("packed/c.ndjson.zst", zstd(lines.substr(0, 9)) + zstd(lines.substr(9)));
  for (const double fraction : {0.0, 0.4}) {
    BuildOptions wanted = options({folder / "plain"}, fraction);
    wanted.force = true;
    build_shards(wanted, encode_bytes, {});
    wanted.inputs = {folder / "packed"};
    wanted.out = folder / "other";
    std::vector<BuildProgress> seen;
    build_shards(wanted, encode_bytes, [&](const BuildProgress& now) { seen.push_back(now); });
    for (const Split split : {Split::train, Split::val}) {
      if (split == Split::val && fraction == 0) continue;
      EXPECT_TRUE(documents(folder / "out", split) == documents(folder / "other", split));
    }
    EXPECT_EQ(seen.back().bytes_done, seen.back().bytes_total);
    for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);
  }
}

TEST_F(BuildTest, TheOnlyDocumentMayBeCompressed) {
  std::string text;
  for (int i = 0; i < 500'000; ++i) text += "line " + std::to_string(i) + "\n";
  build_shards(options({put("a.txt", text)}, 0.3), encode_bytes, {});
  BuildOptions wanted = options({put("a.txt.zst", zstd(text))}, 0.3);
  wanted.out = folder / "other";
  build_shards(wanted, encode_bytes, {});
  for (const Split split : {Split::train, Split::val}) {
    EXPECT_TRUE(documents(folder / "out", split) == documents(folder / "other", split));
  }
}

TEST_F(BuildTest, FilesThatAreNotTextAreSkippedAndNamed) {
  put("in/a.txt", "text");
  put("in/image.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
  put("in/tool", std::string("\x7f"
                             "ELF\2\1\1\0\0\0",
                             10));
  put("in/table.txt.gz", gzip(std::string("PAR1\x15\0\x15", 7)));
  std::map<std::string, std::string> skipped;
  BuildOptions wanted = options({folder / "in"});
  wanted.skipped = [&](const fs::path& path, std::string_view kind) { skipped[path.filename()] = kind; };
  build_shards(wanted, encode_bytes, {});
  EXPECT_EQ(documents(folder / "out", Split::train), (std::vector<std::string>{"text"}));
  EXPECT_EQ(skipped,
            (std::map<std::string, std::string>{
                {"image.png", "PNG image"}, {"tool", "ELF executable"}, {"table.txt.gz", "Parquet table"}}));
  wanted.binary = wanted.force = true;
  EXPECT_EQ(build_shards(wanted, encode_bytes, {}).train.documents, 4);
  wanted.binary = false;
  wanted.inputs = {folder / "in/tool"};
  EXPECT_NE(error_for(wanted).find("files skipped: 1"), std::string::npos);
}

TEST_F(BuildTest, DamagedCompressedTextIsAnError) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i * 7919) + "\n";
  for (const auto& [ending, whole] : {std::pair(".gz", gzip(text)), std::pair(".zst", zstd(text))}) {
    const std::string name = std::string("a.txt") + ending;
    const auto error = [&](const std::string& content) {
      BuildOptions wanted = options({put(name, content)});
      wanted.force = true;
      return error_for(wanted);
    };
    EXPECT_EQ(error(whole), "no error");
    EXPECT_NE(error(whole.substr(0, whole.size() - 5)).find(name + ": ends in the middle"),
              std::string::npos);
    EXPECT_NE(error("").find(name + ": ends in the middle"), std::string::npos);
    EXPECT_NE(error("plain text").find(name + ": its"), std::string::npos);
    EXPECT_NE(error(whole + "more").find(name + ": "), std::string::npos);
    std::string damaged = whole;
    damaged[whole.size() / 2] = static_cast<char>(damaged[whole.size() / 2] ^ 0x55);
    EXPECT_NE(error(damaged), "no error");
  }
}

TEST_F(BuildTest, HostileManifestsAreRefused) {
  const std::string good =
      R"({"format": "warpwright-data", "version": 1, "vocabulary_size": 257, "end_of_text": 256,
          "files": {"x": "xxh128:0"}, "splits": {"train": {"tokens": 1, "documents": 1, "bytes": 1, "shards": ["a.bin"]},
          "val": {"tokens": 0, "documents": 0, "bytes": 0, "shards": []}}})";
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    put("data.json", text.replace(at, from.size(), to));
    return message_of([&] { read_manifest(folder); });
  };
  EXPECT_EQ(error_with("1", "1"), "no error");
  EXPECT_NE(error_with(good, "").find("not JSON"), std::string::npos);
  EXPECT_NE(error_with(good, "[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_with("warpwright-data", "x").find("format"), std::string::npos);
  EXPECT_NE(error_with("\"version\": 1", "\"version\": 2").find("version"), std::string::npos);
  EXPECT_NE(error_with("257", "18446744073709551615").find("vocabulary_size"), std::string::npos);
  EXPECT_NE(error_with("257", "256").find("end_of_text"), std::string::npos);
  EXPECT_NE(error_with("257", "1e3").find("vocabulary_size"), std::string::npos);
  EXPECT_NE(error_with("\"tokens\": 1", "\"tokens\": -1").find("tokens"), std::string::npos);
  EXPECT_NE(error_with("\"a.bin\"", "\"../a.bin\"").find("shards"), std::string::npos);
  EXPECT_NE(error_with("\"a.bin\"", "7").find("shards"), std::string::npos);
  EXPECT_NE(error_with("\"x\"", "\"/x\"").find("files"), std::string::npos);
  EXPECT_NE(error_with("\"xxh128:0\"", "0").find("not a string"), std::string::npos);
  EXPECT_NE(error_with("[\"a.bin\"]", "{}").find("shards"), std::string::npos);
  EXPECT_NE(error_with("\"val\"", "\"test\"").find("lacks \"val\""), std::string::npos);
}

}  // namespace
}  // namespace warpwright
