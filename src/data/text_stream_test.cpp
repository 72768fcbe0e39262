#include "data/text_stream.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "data/compressed.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class TextStreamTest : public TestFolder {
 protected:
  std::string text_of(const std::string& name, const std::string& content, std::size_t chunk = 1000) const {
    TextStream stream(put(name, content));
    std::string text, buffer(chunk, '\0');
    while (const std::size_t got = stream.read(buffer)) text.append(buffer, 0, got);
    EXPECT_EQ(stream.consumed(), content.size());
    return text;
  }
  std::string error_of(const std::string& name, const std::string& content) const {
    return message_of([&] { text_of(name, content); });
  }
};

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

std::string sample(std::size_t bytes) {
  std::string text;
  for (std::uint32_t state = 1; text.size() < bytes;) {
    state = state * 1664525u + 1013904223u;
    text += std::to_string(state >> 12) + " ";
  }
  return text;
}

TEST_F(TextStreamTest, MembersAndFramesFollowEachOther) {
  const std::string a = sample(400'000), b = sample(70'000);
  for (const std::size_t chunk : {std::size_t{1} << 10, std::size_t{1} << 20}) {
    EXPECT_TRUE(text_of("a.txt", a, chunk) == a);
    EXPECT_TRUE(text_of("a.gz", gzip(a) + gzip("") + gzip(b), chunk) == a + b);
    EXPECT_TRUE(text_of("a.zst", zstd(a) + zstd("") + zstd(b), chunk) == a + b);
  }
  EXPECT_TRUE(text_of("a.gz", gzip(a) + std::string(1000, '\0')) == a);  // padded with zeros, as on tape
  EXPECT_TRUE(text_of("a.zst", std::string("\x50\x2a\x4d\x18\3\0\0\0abc", 11) + zstd(a)) ==
              a);  // a skippable frame
  EXPECT_EQ(text_of("a.gz", gzip("")), "");
  EXPECT_EQ(text_of("a", ""), "");
}

TEST_F(TextStreamTest, DamageIsNamed) {
  const std::string a = sample(300'000);
  for (const auto& [name, whole] : {std::pair("a.gz", gzip(a)), std::pair("a.zst", zstd(a))}) {
    const std::string where = (folder / name).string() + ": ";
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{9}, whole.size() / 2, whole.size() - 1}) {
      EXPECT_MENTIONS(error_of(name, whole.substr(0, bytes)), where + "ends in the middle");
    }
    EXPECT_MENTIONS(error_of(name, whole + "x"), where);
    EXPECT_MENTIONS(error_of(name, whole + "something else"), where + "its ");
    EXPECT_MENTIONS(error_of(name, "something else"), "data is damaged");
    for (std::size_t at = 0; at < whole.size(); at += whole.size() / 40) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x11);
      // Damage in the stored name or time may go unnoticed. Other damage is an Error, and never a crash.
      message_of([&, file = name] { text_of(file, damaged); });
    }
  }
  EXPECT_MENTIONS(error_of("a.gz", gzip(a) + std::string(10, '\0') + "x"), "something else follows");
}

TEST_F(TextStreamTest, WindowsBeyondTheLimitAreRefused) {
  // This frame's header asks for a window of 2 GiB.
  const std::string frame("\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", 9);
  EXPECT_MENTIONS(error_of("a.zst", frame), "data is damaged: ");
}

// A file of one megabyte expands to a gigabyte, which must not need much memory.
TEST_F(TextStreamTest, BombsAreStreamed) {
  constexpr std::size_t kMember = std::size_t{1} << 24, kMembers = 64;
  const std::string zeros(kMember, 'x');
  for (const auto& [name, member] : {std::pair("a.gz", gzip(zeros)), std::pair("a.zst", zstd(zeros))}) {
    std::string file;
    for (std::size_t i = 0; i < kMembers; ++i) file += member;
    TextStream stream(put(name, file));
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    std::string buffer(1 << 20, '\0');
    std::size_t bytes = 0;
    while (const std::size_t got = stream.read(buffer)) bytes += got;
    getrusage(RUSAGE_SELF, &after);
    EXPECT_EQ(bytes, kMember * kMembers);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10);  // KiB
  }
}

TEST_F(TextStreamTest, OnlyRegularFilesAreRead) {
  EXPECT_MENTIONS(message_of([&] { TextStream{folder}; }), "is not a regular file");
  EXPECT_MENTIONS(message_of([&] { TextStream{"/dev/null"}; }), "is not a regular file");
  EXPECT_MENTIONS(message_of([&] { TextStream{folder / "none"}; }), "No such file");
}

}  // namespace
}  // namespace warpwright
