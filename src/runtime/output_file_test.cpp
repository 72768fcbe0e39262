#include "runtime/output_file.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

using OutputFileTest = TestFolder;

TEST_F(OutputFileTest, OutputContinuesAfterWhatAFileHolds) {
  const fs::path path = put("a", "one ");
  OutputFile output = OutputFile::continued(path);
  output.write("two");
  EXPECT_EQ(output.size(), 7u);
  output.close();
  EXPECT_EQ(read_file(path, 100), "one two");
}

TEST_F(OutputFileTest, OutputFileBuffersPatchesAndCounts) {
  const std::string large(3 << 20, 'y');
  OutputFile output(folder / "a");
  output.write("head");
  output.write(large);
  output.write("tail");
  output.write_at(0, std::as_bytes(std::span("HE", 2)));
  EXPECT_THROW(output.write_at(output.size() - 1, std::as_bytes(std::span("HE", 2))), Error);
  EXPECT_EQ(output.size(), large.size() + 8);
  output.close();
  EXPECT_EQ(read_file(folder / "a", 1 << 23), "HEad" + large + "tail");
}

TEST_F(OutputFileTest, AnExtendedFileIsFilledInAnyOrder) {
  OutputFile output(folder / "a");
  output.write("head");
  output.extend(8);
  output.write_at(6, std::as_bytes(std::span("xy", 2)));
  output.write("tail");
  output.close();
  EXPECT_EQ(read_file(folder / "a", 100), std::string("head\0\0xytail", 12));
}

TEST_F(OutputFileTest, AFullDeviceIsAnError) {
  OutputFile output("/dev/full");
  output.write("x");
  EXPECT_NE(message_of([&] { output.close(); }).find("No space left"), std::string::npos);
}

TEST_F(OutputFileTest, PipesTakeBytesInTheirOrderOnly) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const FileDescriptor reader(ends[0]);
  OutputFile output("pipe", FileDescriptor(ends[1]));
  output.write("abc");
  EXPECT_NE(message_of([&] { output.write_at(0, std::as_bytes(std::span("x", 1))); }).find("order"),
            std::string::npos);
  output.close();
  char bytes[8];
  EXPECT_EQ(::read(reader.get(), bytes, sizeof bytes), 3);
}

TEST_F(OutputFileTest, FoldersAreMadeThroughLinks) {
  fs::create_directory(folder / "disk");
  fs::create_symlink("disk", folder / "link");
  fs::create_symlink("disk/none", folder / "dangling");
  create_folders(folder / "link" / "a" / "b/");
  create_folders(folder / "dangling" / "c");
  create_folders(folder / "link/../link/d");
  for (const char* name : {"disk/a/b", "disk/none/c", "disk/d"}) EXPECT_TRUE(fs::is_directory(folder / name));
  fs::create_symlink("loop", folder / "loop");
  put("file", "x");
  for (const char* name : {"loop/a", "loop", "file/a", "file"}) {
    EXPECT_NE(message_of([&] { create_folders(folder / name); }).find(": cannot "), std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace warpwright
