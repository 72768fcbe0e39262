#include "data/documents.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using DocumentsTest = TestFolder;

TEST_F(DocumentsTest, AFileThatIsGivenTwiceIsRefused) {
  put("in/a.txt", "a");
  put("b.txt", "b");
  const auto refused = [&](const std::vector<fs::path>& inputs) {
    try {
      list_inputs(inputs);
      return std::string("no error");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused({folder / "in", folder / "b.txt"}), "no error");
  EXPECT_NE(refused({folder / "in", folder / "in/a.txt"}).find("a.txt: is given twice; "), std::string::npos);
  fs::create_symlink(folder / "b.txt", folder / "in/link");
  EXPECT_NE(refused({folder / "in", folder / "b.txt"}).find("is given twice, also as "), std::string::npos);
}

TEST_F(DocumentsTest, WhatIsNoFileInAFolderIsMarkedAsSkipped) {
  put("in/a.txt", "a");
  put("more/b.txt", "b");
  fs::create_directory_symlink(folder / "more", folder / "in/folder");
  fs::create_symlink(folder / "gone", folder / "in/gone");
  fs::create_symlink(folder / "more/b.txt", folder / "in/b.txt");
  ASSERT_EQ(::mkfifo((folder / "in/pipe").c_str(), 0600), 0);
  const std::vector<fs::path> inputs = {folder / "in"};
  const auto listed = [&] {
    std::vector<std::string> found;
    for (const InputFile& file : list_inputs(inputs)) {
      found.push_back(
          fmt::format("{}: {}", file.path.filename().string(), reason_to_skip(file, true).value_or("read")));
    }
    return found;
  };
  auto found = listed();
  EXPECT_EQ(found, (std::vector<std::string>{"a.txt: read", "b.txt: read", "folder: link to a folder",
                                             "gone: link to nothing", "pipe: pipe, socket or device"}));
  // A link is read only if the file itself is not in the folder.
  fs::create_symlink("b.txt", folder / "in/0.txt");
  fs::create_symlink("a.txt", folder / "in/1.txt");
  put("in/sub/c.txt", "c");
  fs::create_symlink("../sub/c.txt", folder / "in/sub/a.txt");
  found = listed();
  EXPECT_EQ(found.size(), 9u);
  for (const char* read : {"0.txt: read", "a.txt: read", "c.txt: read"})
    EXPECT_EQ(std::ranges::count(found, read), 1) << read;
  EXPECT_EQ(std::ranges::count_if(found, [](const std::string& file) { return file.ends_with("already"); }),
            3)
      << fmt::format("{}", fmt::join(found, "\n"));
  fs::create_symlink("loop", folder / "in/loop");
  EXPECT_THROW(list_inputs(inputs), Error);
}

TEST_F(DocumentsTest, ListsFoldersSortedAndSkipsHidden) {
  put("in/b.txt", "b");
  put("in/a/z.jsonl", "{}");
  put("in/a.txt", "a");
  put("in/.git/config", "x");
  put("in/.hidden", "x");
  put("first.ndjson", "{}");
  const std::vector<fs::path> inputs = {folder / "first.ndjson", folder / "in"};
  const auto files = list_inputs(inputs);
  ASSERT_EQ(files.size(), 4u);
  EXPECT_EQ(files[0].path, folder / "first.ndjson");
  EXPECT_TRUE(files[0].jsonl);
  EXPECT_EQ(files[1].path, folder / "in/a.txt");
  EXPECT_EQ(files[2].path, folder / "in/a/z.jsonl");
  EXPECT_TRUE(files[2].jsonl);
  EXPECT_EQ(files[3].path, folder / "in/b.txt");
  EXPECT_FALSE(files[3].jsonl);
}

TEST_F(DocumentsTest, JsonlSkipsBlankLinesAndCountsThem) {
  const std::string file = "{\"text\": \"one\"}\r\n\n  \n{\"text\": \"\\u00e9\"}";
  std::vector<std::int64_t> lines;
  std::vector<std::string> texts;
  for_each_jsonl_line(reader_of(file), "a.jsonl", [&](const RawDocument& document) {
    lines.push_back(document.line);
    texts.push_back(jsonl_text(document, "text", "a.jsonl"));
  });
  EXPECT_EQ(lines, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "é"}));
}

TEST_F(DocumentsTest, JsonlErrorsNameFileAndLine) {
  const auto error_for = [](const std::string& line) {
    return message_of([&] { jsonl_text({line, 7}, "text", "in.jsonl"); });
  };
  EXPECT_NE(error_for("{\"text\": ").find("in.jsonl:7: is not JSON"), std::string::npos);
  EXPECT_NE(error_for("{\"text\": \"\xff\"}").find("UTF-8"), std::string::npos);
  EXPECT_NE(error_for("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_for("{\"body\": \"x\"}").find("has no \"text\""), std::string::npos);
  EXPECT_NE(error_for("{\"text\": 5}").find("not a string"), std::string::npos);
  EXPECT_NE(error_for(std::string(1 << 20, '[')).find("not a JSON object"), std::string::npos);
}

TEST(Lines, AreTheSameInAnyChunks) {
  std::string text;
  std::vector<std::string> wanted;
  for (std::size_t i = 0; i < 3000; ++i) {
    wanted.push_back(std::string(i % 50 == 0 ? 100'000 : i % 70 + 1, static_cast<char>('a' + i % 26)));
    text += wanted.back() + "\n";
  }
  std::vector<std::string> lines;
  for_each_jsonl_line(reader_of(text), "a", [&](const RawDocument& line) {
    lines.emplace_back(line.bytes);
    EXPECT_EQ(line.line, static_cast<std::int64_t>(lines.size()));
  });
  EXPECT_EQ(lines, wanted);
}

TEST(Lines, EndlessOnesAreRefused) {
  const ReadText endless = [](std::span<char> into) {
    std::fill(into.begin(), into.end(), 'x');
    return into.size();
  };
  EXPECT_NE(message_of([&] {
              for_each_jsonl_line(endless, "a.jsonl.gz", [](const RawDocument&) {});
            }).find("a.jsonl.gz:1: is a line of over 256 MiB"),
            std::string::npos);
}

TEST(Parts, MakeUpTheText) {
  std::string text;
  for (int i = 0; text.size() < 5'000'000; ++i) text += "word" + std::to_string(i) + (i % 9 ? " " : "\n");
  for (const std::size_t most : {std::size_t{100}, std::size_t{1} << 20, std::size_t{1} << 24}) {
    std::string all;
    std::size_t last = 0, before = 0;
    const auto visit = [&](std::string_view part, bool is_last) {
      EXPECT_EQ(part.size(), cut_before(std::string_view(text).substr(before % text.size()), most));
      before += part.size();
      all += part;
      last += is_last;
    };
    for_each_part(reader_of(text), most, visit);
    for_each_part(text, most, [&](std::string_view part, bool is_last) {
      EXPECT_EQ(part.data(), text.data() + before - text.size()) << "a copy";
      visit(part, is_last);
    });
    EXPECT_TRUE(all == text + text);
    EXPECT_EQ(last, 2u);
  }
}

TEST(CutBefore, KeepsWordsAndRunsOfWhiteSpaceWhole) {
  EXPECT_EQ(cut_before("one two three", 100), 13u);
  EXPECT_EQ(cut_before("one two three", 9), 7u);  // before " three"
  EXPECT_EQ(cut_before("one two", 3), 3u);        // before " two"
  EXPECT_EQ(cut_before("one \n\n two", 6), 3u);   // never inside the run
  // U+3000 is white space and no boundary exists, so this is a hard cut.
  EXPECT_EQ(cut_before("one\u3000\ntwo x", 7), 7u);
  EXPECT_EQ(cut_before("one \u2003\ntwo x", 7), 3u);
  EXPECT_EQ(cut_before("日本。\n日本", 10), 9u);
}

TEST(CutBefore, CutsALongStretchBetweenCharacters) {
  EXPECT_EQ(cut_before("ééééé", 5), 4u);
  EXPECT_EQ(cut_before("😀😀😀", 7), 4u);
  // There is no character to keep whole, but the cut must advance.
  EXPECT_EQ(cut_before(std::string(10, '\x80'), 5), 2u);
  EXPECT_EQ(cut_before("\x80\x80", 1), 1u);
}

std::uint64_t tail_of(const std::string& text, double fraction) {
  return tail_line(reader_of(text), text.size(), fraction);
}

TEST(TailLine, StartsALine) {
  const std::string text = "aaaa\nbbbb\ncccc\ndddd\n";
  EXPECT_EQ(tail_of(text, 0.25), 15u);
  EXPECT_EQ(tail_of(text, 0.5), 15u);    // the first line start after half of the text
  EXPECT_EQ(tail_of(text, 0.001), 15u);  // not the empty rest after the last line
  EXPECT_EQ(tail_of("one line", 0.5), 0u);
  EXPECT_EQ(tail_of("one line\n", 0.5), 0u);
  EXPECT_EQ(tail_of("a\nb", 0.01), 2u);
}

}  // namespace
}  // namespace warpwright
