#include "runtime/file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/error.hpp"
#include "runtime/mapped_file.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

using FileTest = TestFolder;

TEST_F(FileTest, MapsAndChecksRanges) {
  const MappedFile file(put("a", "0123456789"));
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(static_cast<char>(file.bytes(4, 2)[1]), '5');
  EXPECT_EQ(file.bytes(10, 0).size(), 0u);
  EXPECT_THROW(file.bytes(4, 7), Error);
  EXPECT_THROW(file.bytes(11, 0), Error);
  EXPECT_THROW(file.bytes(2, ~std::uint64_t{0}), Error);
  EXPECT_EQ(MappedFile(put("empty", "")).bytes().size(), 0u);
}

TEST_F(FileTest, MovesKeepTheMapping) {
  MappedFile first(put("a", "abc"));
  MappedFile second(std::move(first));
  MappedFile third;
  third = std::move(second);
  EXPECT_EQ(static_cast<char>(third.bytes()[2]), 'c');
  EXPECT_EQ(second.size(), 0u);
}

TEST_F(FileTest, NamesWhatIsWrongWithAPath) {
  EXPECT_NE(message_of([&] { MappedFile{folder / "none"}; }).find("No such file"), std::string::npos);
  EXPECT_NE(message_of([&] { MappedFile{folder}; }).find("is a folder"), std::string::npos);
  EXPECT_NE(message_of([&] { MappedFile{"/dev/null"}; }).find("not a regular file"), std::string::npos);
  EXPECT_NE(message_of([&] { read_file(folder, 10); }).find("is a folder"), std::string::npos);
  EXPECT_NE(message_of([&] { write_file_atomically(folder / "none" / "x", "y"); }).find("none"),
            std::string::npos);
}

TEST_F(FileTest, RefusesAPipeInsteadOfWaitingForItsWriter) {
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ::alarm(20);  // ends a test that waits
  EXPECT_NE(message_of([&] { read_file(pipe, 10); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(message_of([&] { checksum_of(pipe); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(message_of([&] { MappedFile{pipe}; }).find("not a regular file"), std::string::npos);
  ::alarm(0);
  EXPECT_NE(message_of([&] { read_file("/dev/zero", 10); }).find("not a regular file"), std::string::npos);
}

TEST_F(FileTest, MapsNoLinkWhereLinksAreNotFollowed) {
  put("a", "x");
  fs::create_symlink("a", folder / "link");
  EXPECT_EQ(MappedFile(folder / "link").size(), 1u);
  EXPECT_THROW(MappedFile(folder / "link", Mapping::always, Links::never), Error);
  EXPECT_EQ(MappedFile(folder / "a", Mapping::always, Links::never).size(), 1u);
}

TEST_F(FileTest, TellsWhatIsNotThereFromWhatCannotBeLookedAt) {
  const fs::path file = put("a", "x");
  fs::create_symlink("loop", folder / "loop");
  fs::create_symlink("none", folder / "dangling");
  EXPECT_TRUE(path_exists(file));
  EXPECT_TRUE(path_exists(folder));
  EXPECT_TRUE(is_folder(folder));
  EXPECT_FALSE(is_folder(file));
  for (const fs::path& path : {folder / "none", file / "below", folder / "dangling"}) {
    EXPECT_FALSE(path_exists(path)) << path;
    EXPECT_FALSE(is_folder(path)) << path;
  }
  for (const fs::path& path : {folder / "loop", folder / std::string(300, 'x')}) {
    EXPECT_NE(message_of([&] { path_exists(path); }).find("cannot be examined"), std::string::npos);
    EXPECT_NE(message_of([&] { is_folder(path); }).find("check the path"), std::string::npos);
  }
  const std::string long_name =
      message_of([&] { write_file_atomically(folder / std::string(300, 'x'), "y"); });
  EXPECT_NE(long_name.find("cannot be examined"), std::string::npos) << long_name;
}

TEST_F(FileTest, NoticesAFileThatShrinksWhileMapped) {
  const fs::path path = put("a", std::string(10000, 'x'));
  const MappedFile file(path, Mapping::always);
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  EXPECT_NE(message_of([&] { file.bytes(0, 10); }).find("shrank"), std::string::npos);
  EXPECT_NE(message_of([&] { file.require_whole(); }).find("shrank"), std::string::npos);
}

TEST_F(FileTest, AFileThatShrinksWhileItIsReadIsAnError) {
  const fs::path path = put("a", std::string(10000, 'x'));
  FileReader file(path);
  std::vector<char> chunk(4000);
  EXPECT_EQ(file.read(chunk), 4000u);
  ASSERT_EQ(::truncate(path.c_str(), 3000), 0);
  EXPECT_NE(message_of([&] { file.read(chunk); }).find("shrank from 10000 to 3000 bytes"), std::string::npos);
}

TEST_F(FileTest, AShrinkingFileDoesNotDisturbAProcessWithoutAGuard) {
  const fs::path path = put("a", std::string(10000, 'x'));
  const MappedFile file(path);
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  EXPECT_EQ(static_cast<char>(file.bytes(9999, 1)[0]), 'x');
}

TEST_F(FileTest, AGuardedProcessEndsWithAMessageWhenPagesAreLost) {
  const fs::path path = put("a\nb", std::string(10000, 'x')), other = put("b", std::string(10000, 'x'));
  const auto read_what_is_lost = [&] {
    guard_mappings();
    { const MappedFile freed(other); }
    const MappedFile file(path), neighbour(other);
    const std::span<const std::byte> bytes = file.bytes();
    if (::truncate(path.c_str(), 100) != 0) ::_exit(2);
    const volatile std::byte* last = &bytes.back();
    ::_exit(std::to_integer<int>(*last));
  };
  EXPECT_EXIT(read_what_is_lost(), testing::ExitedWithCode(1),
              "warpwright: .*a.nb: lost bytes while it was read");
}

TEST_F(FileTest, TheGuardLeavesOtherBusErrorsAlone) {
  const auto raise = [] {
    guard_mappings();
    ::raise(SIGBUS);
    ::_exit(0);
  };
  EXPECT_EXIT(raise(), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FileTest, AReplacedFileStaysAsItWasMapped) {
  const MappedFile file(put("a", "old content"));
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(static_cast<char>(file.bytes(10, 1)[0]), 't');
  fs::remove(folder / "a");
  EXPECT_EQ(static_cast<char>(file.bytes(10, 1)[0]), 't');
}

TEST_F(FileTest, MappingsHoldNoDescriptors) {
  const fs::path path = put("a", "x");
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{32, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<MappedFile> files;
  EXPECT_NO_THROW(for (int i = 0; i < 100; ++i) files.emplace_back(path));
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(FileTest, ReadsUpToTheLimit) {
  put("a", std::string(5000, 'x'));
  EXPECT_EQ(read_file(folder / "a", 5000).size(), 5000u);
  EXPECT_THROW(read_file(folder / "a", 4999), Error);
}

// XXH3's 128 bits of nothing, as xxhsum -H2 prints them.
TEST_F(FileTest, ChecksumsAreThoseOfXxhsum) {
  EXPECT_EQ(checksum_of(put("empty", "")), "xxh128:99aa06d3014798d86001c324468d497f");
  EXPECT_NE(checksum_of(put("a", "x")), checksum_of(put("b", "y")));
}

}  // namespace
}  // namespace warpwright
