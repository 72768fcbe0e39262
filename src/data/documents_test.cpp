#include "data/documents.hpp"

#include <gtest/gtest.h>

#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using DocumentsTest = TestFolder;

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
  const MappedFile file(put("a.jsonl", "{\"text\": \"one\"}\r\n\n  \n{\"text\": \"\\u00e9\"}"));
  std::vector<std::int64_t> lines;
  std::vector<std::string> texts;
  for_each_document(file, true, [&](const RawDocument& document) {
    lines.push_back(document.line);
    texts.push_back(jsonl_text(document, "text", file.path()));
  });
  EXPECT_EQ(lines, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "é"}));
}

TEST_F(DocumentsTest, JsonlErrorsNameFileAndLine) {
  const auto error_for = [](const std::string& line) {
    return message_of([&] { jsonl_text({line, 7}, "text", "in.jsonl"); });
  };
  EXPECT_NE(error_for("{\"text\": ").find("in.jsonl:7: is not a JSON value"), std::string::npos);
  EXPECT_NE(error_for("{\"text\": \"\xff\"}").find("UTF-8"), std::string::npos);
  EXPECT_NE(error_for("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_for("{\"body\": \"x\"}").find("has no \"text\""), std::string::npos);
  EXPECT_NE(error_for("{\"text\": 5}").find("not a string"), std::string::npos);
  EXPECT_NE(error_for(std::string(1 << 20, '[')).find("is not a JSON value"), std::string::npos);
}

TEST(CutBefore, KeepsWordsAndRunsOfWhiteSpaceWhole) {
  EXPECT_EQ(cut_before("one two three", 100), 13u);
  EXPECT_EQ(cut_before("one two three", 9), 7u);     // before " three"
  EXPECT_EQ(cut_before("one two", 3), 3u);           // before " two"
  EXPECT_EQ(cut_before("one \n\n two", 6), 3u);      // never inside the run
  EXPECT_EQ(cut_before("one\u3000\ntwo x", 7), 7u);  // U+3000 is white space: nothing better, so a hard cut
  EXPECT_EQ(cut_before("one \u2003\ntwo x", 7), 3u);
  EXPECT_EQ(cut_before("日本。\n日本", 10), 9u);
}

TEST(CutBefore, CutsALongStretchBetweenCharacters) {
  EXPECT_EQ(cut_before("ééééé", 5), 4u);
  EXPECT_EQ(cut_before("😀😀😀", 7), 4u);
  EXPECT_EQ(cut_before(std::string(10, '\x80'), 5), 2u);  // no character to keep, but always forward
  EXPECT_EQ(cut_before("\x80\x80", 1), 1u);
}

TEST(TailLine, StartsALine) {
  const std::string text = "aaaa\nbbbb\ncccc\ndddd\n";
  EXPECT_EQ(tail_line(text, 0.25), 15u);
  EXPECT_EQ(tail_line(text, 0.5), 15u);    // the first line start after half of the text
  EXPECT_EQ(tail_line(text, 0.001), 15u);  // not the empty rest behind the last line
  EXPECT_EQ(tail_line("one line", 0.5), 0u);
  EXPECT_EQ(tail_line("one line\n", 0.5), 0u);
  EXPECT_EQ(tail_line("a\nb", 0.01), 2u);
}

}  // namespace
}  // namespace warpwright
