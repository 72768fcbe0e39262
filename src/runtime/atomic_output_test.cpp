#include "runtime/atomic_output.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/test_child.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

const Replaceable kFiles{"a test's folder", {"x", "y"}};

// File systems without O_TMPFILE and without an exchange of names, such as NFS.
bool without_unnamed_files() {
  return fail_system_call(SYS_openat, EOPNOTSUPP, 2, O_TMPFILE & ~O_DIRECTORY);
}
bool without_exchange() {
  return fail_system_call(SYS_renameat2, EINVAL);
}

class AtomicOutputTest : public TestFolder {
 protected:
  std::string get(const std::string& name) const { return read_file(folder / name, 1 << 20); }
  int entries(const std::string& name = "") const {
    return static_cast<int>(std::distance(fs::directory_iterator(folder / name), {}));
  }
  mode_t mode_of(const std::string& name) const {
    struct stat status {};
    ::lstat((folder / name).c_str(), &status);
    return status.st_mode & 07777;
  }
  void write_folder(const fs::path& path, const std::string& content,
                    const std::optional<Replaceable>& replaceable = kFiles) const {
    AtomicFolder output(path, replaceable);
    for (const char* name : {"x", "y"}) std::ofstream(output.folder() / name) << content;
    output.commit();
  }
};

TEST_F(AtomicOutputTest, AFailedWriteLeavesTheOldFileAndNoPartial) {
  put("a", "old");
  const auto fails = [&] {
    limit_file_size(4096);
    const std::string message =
        message_of([&] { write_file_atomically(folder / "a", std::string(1 << 16, 'x')); });
    return message.find("/a: cannot write") == std::string::npos ? 1 : 0;
  };
  EXPECT_EQ(run_in_child(fails), 0);
  EXPECT_EQ(run_in_child([&] { return without_unnamed_files() ? fails() : 2; }), 0);
  EXPECT_EQ(get("a"), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicOutputTest, AtomicFileReplacesOnlyOnCommit) {
  put("a", "old");
  {
    AtomicFile dropped(folder / "a");
    dropped.file().write("half");
  }
  EXPECT_EQ(get("a"), "old");
  AtomicFile kept(folder / "a");
  kept.file().write("new");
  EXPECT_EQ(get("a"), "old");
  kept.commit();
  EXPECT_EQ(get("a"), "new");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicOutputTest, FilesWithoutANameLeaveNothingWhenTheProcessIsKilled) {
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile output(folder / "a");
    output.file().write(std::string(3 << 20, 'x'));
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(entries(), 0);
}

TEST_F(AtomicOutputTest, WithoutUnnamedFilesAPartialDoes) {
  const auto child = [&] {
    if (!without_unnamed_files()) return 2;
    AtomicFile output(folder / "a");
    if (entries() != 1) return 1;
    output.file().write("new");
    output.commit();
    return 0;
  };
  EXPECT_EQ(run_in_child(child), 0);
  put("a", "old");
  EXPECT_EQ(run_in_child(child), 1);  // next to the old file
  EXPECT_EQ(get("a"), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicOutputTest, LinksToFilesAreFollowedAndSurvive) {
  put("disk/real", "old");
  fs::create_symlink("disk/real", folder / "relative");
  fs::create_symlink(folder / "relative", folder / "chain");
  fs::create_symlink("../disk/new", folder / "disk" / "dangling");
  fs::create_directory_symlink("disk", folder / "parent");
  write_file_atomically(folder / "chain", "1");
  EXPECT_EQ(get("disk/real"), "1");
  write_file_atomically(folder / "parent" / "dangling", "2");
  EXPECT_EQ(get("disk/new"), "2");
  for (const char* name : {"relative", "chain", "disk/dangling", "parent"}) {
    EXPECT_TRUE(fs::is_symlink(folder / name)) << name;
  }
  fs::create_symlink("none/below", folder / "nowhere");
  fs::create_symlink("loop", folder / "loop");
  fs::create_directory_symlink("disk", folder / "folder");
  const auto refused = [&](const char* name, const char* why) {
    const std::string message = message_of([&] { write_file_atomically(folder / name, "3"); });
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_TRUE(fs::is_symlink(folder / name));
  };
  refused("nowhere", "No such file");
  refused("loop", "Too many levels");
  refused("folder", "is a folder");
}

TEST_F(AtomicOutputTest, DotsAfterLinksAreThoseOfTheirTargets) {
  fs::create_directories(folder / "disk" / "deep");
  fs::create_directory_symlink("disk/deep", folder / "link");
  write_file_atomically(folder / "link/../a", "1");
  EXPECT_EQ(get("disk/a"), "1");
  write_folder(folder / "link/../out", "2");
  EXPECT_EQ(get("disk/out/x"), "2");
}

TEST_F(AtomicOutputTest, ReplacesALinkOrPipeThatIsNotFollowed) {
  const auto write = [&](const fs::path& path) {
    AtomicFile output(path, AtomicFile::Order::forward, Links::never);
    EXPECT_FALSE(output.is_stream());
    output.file().write("new");
    output.commit();
  };
  put("victim", "old");
  fs::permissions(folder / "victim", fs::perms::owner_read);
  fs::create_symlink("victim", folder / "link");
  fs::create_symlink("none", folder / "dangling");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  ::alarm(20);  // ends a test that waits for a reader of the pipe
  for (const char* name : {"link", "dangling", "pipe"}) {
    write(folder / name);
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder / name))) << name;
    EXPECT_EQ(get(name), "new");
    EXPECT_NE(fs::status(folder / name).permissions() & fs::perms::owner_write, fs::perms::none);
  }
  ::alarm(0);
  EXPECT_EQ(get("victim"), "old");
  EXPECT_FALSE(fs::exists(folder / "none"));
  EXPECT_EQ(entries(), 4);
}

TEST_F(AtomicOutputTest, DevicesAndPipesAreWrittenToAndStay) {
  write_file_atomically("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  fs::create_symlink("/dev/full", folder / "full");
  EXPECT_NE(message_of([&] { write_file_atomically(folder / "full", "x"); }).find("No space left"),
            std::string::npos);
  EXPECT_TRUE(fs::is_symlink(folder / "full"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto order : {AtomicFile::Order::forward, AtomicFile::Order::any}) {
    std::string got;
    std::thread reader([&] {
      FileReader pipe(folder / "pipe");
      std::vector<char> chunk(1 << 20);
      while (const std::size_t count = pipe.read(chunk)) got.append(chunk.data(), count);
    });
    AtomicFile output(folder / "pipe", order);
    EXPECT_TRUE(output.is_stream());
    output.file().write(std::string(3 << 20, 'x'));
    if (order == AtomicFile::Order::any) output.file().write_at(0, std::as_bytes(std::span("y", 1)));
    output.commit();
    reader.join();
    EXPECT_EQ(got.size(), 3u << 20);
    EXPECT_EQ(got.front(), order == AtomicFile::Order::any ? 'y' : 'x');
  }
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_EQ(entries(), 2);
}

TEST_F(AtomicOutputTest, DescriptorsGoOnWhereTheyAre) {
  const FileDescriptor open = open_file(folder / "a", O_RDWR | O_CREAT | O_APPEND, "open");
  ASSERT_EQ(::write(open.get(), "head ", 5), 5);
  write_file_atomically("/proc/self/fd/" + std::to_string(open.get()), "one ");
  write_file_atomically("/dev/fd/" + std::to_string(open.get()), "two ");
  fs::create_symlink("/dev/fd/" + std::to_string(open.get()), folder / "link");
  write_file_atomically(folder / "link", "three");
  EXPECT_EQ(get("a"), "head one two three");
  EXPECT_EQ(entries(), 2);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const FileDescriptor first(ends[0]), second(ends[1]);
  write_file_atomically("/dev/fd/" + std::to_string(first.get()), "socket");
  char bytes[16];
  EXPECT_EQ(::read(second.get(), bytes, sizeof bytes), 6);
  const FileDescriptor read_only = open_file(folder / "a", O_RDONLY, "open");
  EXPECT_NE(message_of([&] {
              write_file_atomically("/dev/fd/" + std::to_string(read_only.get()), "x");
            }).find("not open for writing"),
            std::string::npos);
}

TEST_F(AtomicOutputTest, SocketsAreRefusedByName) {
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder / "s").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_NE(message_of([&] { write_file_atomically(folder / "s", "x"); }).find("is a socket"),
            std::string::npos);
  EXPECT_TRUE(fs::is_socket(folder / "s"));
}

TEST_F(AtomicOutputTest, ReplacedFilesAndFoldersKeepTheirPermissions) {
  put("a", "old");
  write_folder(folder / "out", "old");
  fs::permissions(folder / "a", fs::perms(0640));
  fs::permissions(folder / "out", fs::perms(0750));
  fs::permissions(folder / "out/x", fs::perms(0604));
  write_file_atomically(folder / "a", "new");
  write_folder(folder / "out", "new");
  EXPECT_EQ(get("a") + get("out/x"), "newnew");
  EXPECT_EQ(mode_of("a"), 0640u);
  EXPECT_EQ(mode_of("out"), 0750u);
  EXPECT_EQ(mode_of("out/x"), 0604u);
  fs::create_directory(folder / "empty");
  fs::permissions(folder / "empty", fs::perms(0700));
  write_folder(folder / "empty", "new");
  EXPECT_EQ(mode_of("empty"), 0700u);
}

TEST_F(AtomicOutputTest, AFolderThatMayNotBeWrittenToIsReplacedAndLeavesNothing) {
  put("a/file", "old");
  fs::permissions(folder / "a", fs::perms(0555));
  AtomicFolder output(folder / "a", Replaceable{"a test", {"file"}});
  write_file_atomically(output.folder() / "file", "new");
  output.commit();
  EXPECT_EQ(mode_of("a"), 0555u);
  EXPECT_EQ(read_file(folder / "a/file", 100), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  fs::permissions(folder / "a", fs::perms(0755));
}

// An access list makes the group bits of the mode a mask: without the list they would give the group access.
TEST_F(AtomicOutputTest, ReplacedFilesKeepTheirAccessLists) {
  // Version 2; user:: rw-, user:4711: rw-, group:: ---, mask:: rw-, other:: ---.
  const unsigned char list[] = {2, 0,    0,    0,    1,    0,    6,  0, 0xff, 0xff, 0xff, 0xff, 2,    0,   6,
                                0, 0x67, 0x12, 0,    0,    4,    0,  0, 0,    0xff, 0xff, 0xff, 0xff, 16,  0,
                                6, 0,    0xff, 0xff, 0xff, 0xff, 32, 0, 0,    0,    0xff, 0xff, 0xff, 0xff};
  constexpr const char* kName = "system.posix_acl_access";
  const fs::path path = put("a", "old");
  if (::setxattr(path.c_str(), kName, list, sizeof list, 0) != 0) GTEST_SKIP() << "no access lists here";
  write_file_atomically(path, "new");
  unsigned char got[64];
  ASSERT_EQ(::getxattr(path.c_str(), kName, got, sizeof got), static_cast<ssize_t>(sizeof list));
  EXPECT_EQ(std::memcmp(got, list, sizeof list), 0);
}

TEST_F(AtomicOutputTest, ASecretStaysSecretWhileItIsWritten) {
  put("a", "old");
  fs::permissions(folder / "a", fs::perms(0600));
  EXPECT_EQ(run_in_child([&] {
              if (!without_unnamed_files()) return 2;
              ::umask(0);
              AtomicFile output(folder / "a");
              for (const auto& entry : fs::directory_iterator(folder)) {
                if (mode_of(entry.path().filename()) != 0600) return 1;
              }
              return entries() == 2 ? 0 : 3;
            }),
            0);
}

TEST_F(AtomicOutputTest, OtherNamesOfAHardLinkedFileKeepTheOldContent) {
  put("a", "old");
  fs::create_hard_link(folder / "a", folder / "b");
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(get("a") + get("b"), "newold");
}

TEST_F(AtomicOutputTest, TheLongestNamesAndAnyBytesAreNames) {
  std::string character = "\xe2\x82\xac";
  std::string name;
  while (name.size() + 3 <= 255) name += character;
  for (const std::string& each : {std::string(255, 'n'), name, std::string("\xff\xfe\n")}) {
    write_file_atomically(folder / each, "1");
    write_file_atomically(folder / each, "2");
    EXPECT_EQ(get(each), "2");
    EXPECT_EQ(run_in_child([&] {
                if (!without_unnamed_files()) return 2;
                write_file_atomically(folder / each, "3");
                return 0;
              }),
              0);
    EXPECT_EQ(get(each), "3");
    fs::remove(folder / each);
    write_folder(folder / each, "1");
    write_folder(folder / each, "2");
    EXPECT_EQ(get(each + "/x"), "2");
    fs::remove_all(folder / each);
    EXPECT_EQ(entries(), 0);
  }
}

TEST_F(AtomicOutputTest, AtomicFolderAppearsWholeAndRefusesOrReplaces) {
  const fs::path target = folder / "deep" / "out/";
  {
    AtomicFolder output(target);
    fs::create_directory(output.folder() / "sub");
    std::ofstream(output.folder() / "sub" / "x") << "1";
    EXPECT_FALSE(fs::exists(target));
    output.commit();
  }
  EXPECT_EQ(get("deep/out/sub/x"), "1");
  EXPECT_NE(message_of([&] { AtomicFolder{target}; }).find("not empty"), std::string::npos);
  fs::remove_all(target / "sub");
  write_folder(target, "2", std::nullopt);
  EXPECT_NE(message_of([&] { AtomicFolder{target}; }).find("--force"), std::string::npos);
  fs::remove(target / "y");
  write_folder(target, "3");
  EXPECT_EQ(get("deep/out/x") + get("deep/out/y"), "33");
  EXPECT_EQ(entries("deep"), 1);
}

TEST_F(AtomicOutputTest, AFolderThatIsNotWrittenLeavesNoParents) {
  const fs::path target = folder / "a" / "b" / "c";
  { AtomicFolder dropped(target); }
  EXPECT_EQ(entries(), 0);
  {
    AtomicFolder dropped(target);
    put("a/mine", "x");
  }
  EXPECT_EQ(get("a/mine"), "x");
  EXPECT_FALSE(fs::exists(folder / "a" / "b"));
  fs::remove_all(folder / "a");
  EXPECT_EQ(run_in_child([&] {
              const AtomicFolder cut_off(target);
              remove_live_partials();
              ::_exit(0);
              return 1;
            }),
            0);
  EXPECT_EQ(entries(), 0);
  write_folder(target, "new");
  EXPECT_EQ(get("a/b/c/x"), "new");
}

TEST_F(AtomicOutputTest, MessagesNameThePlaceWhereAFolderWillBe) {
  const auto message = [&](const char* name) {
    return message_of([&] {
      AtomicFolder output(folder / "a" / "b");
      write_file_atomically(output.folder() / name, std::string(1 << 16, 'x'));
    });
  };
  EXPECT_EQ(run_in_child([&] {
              limit_file_size(4096);
              const std::string expected = (folder / "a" / "b" / "x").string() + ": cannot write";
              return message("x").starts_with(expected) ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(message("none/x").starts_with((folder / "a/b/none/x").string() + ": cannot "))
      << message("none/x");
  EXPECT_EQ(final_path("a/b.txt"), fs::path("a/b.txt"));
  EXPECT_EQ(final_path(partial_path("b") / "new" / "b" / "x"), fs::path("b/x"));
  EXPECT_EQ(final_path(partial_path("/a/b") / "new" / "b"), fs::path("/a/b"));
}

TEST_F(AtomicOutputTest, AtomicFolderRefusesWhatIsNoFolder) {
  put("file", "x");
  EXPECT_THROW(AtomicFolder(folder / "file", kFiles), Error);
  EXPECT_THROW(AtomicFolder("/"), Error);
  EXPECT_THROW(AtomicFolder("."), Error);
  EXPECT_EQ(get("file"), "x");
}

TEST_F(AtomicOutputTest, AtomicFolderFollowsLinksOfEveryKind) {
  fs::create_directory(folder / "disk");
  fs::create_directory_symlink("disk", folder / "relative");
  fs::create_directory_symlink("disk/new/deep", folder / "dangling");
  for (const char* content : {"1", "2"}) {
    write_folder(folder / "relative/", content);
    EXPECT_EQ(get("disk/x"), content);
  }
  fs::remove_all(folder / "disk");
  for (const char* content : {"1", "2"}) {
    write_folder(folder / "dangling", content);
    EXPECT_EQ(get("disk/new/deep/x"), content);
  }
  EXPECT_TRUE(fs::is_symlink(folder / "relative"));
  EXPECT_TRUE(fs::is_symlink(folder / "dangling"));
  fs::create_symlink("loop", folder / "loop");
  fs::create_symlink("disk/new/deep/x", folder / "file");
  EXPECT_THROW(AtomicFolder(folder / "loop", kFiles), Error);
  EXPECT_THROW(AtomicFolder(folder / "file", kFiles), Error);
  EXPECT_EQ(entries(), 5);
}

TEST_F(AtomicOutputTest, WhatAnotherProcessHasPutInPlaceMeanwhileIsSaid) {
  AtomicFolder output(folder / "out", kFiles);
  put("out/shard.bin", "another's");
  EXPECT_EQ(
      message_of([&] {
        output.commit();
      }).find((folder / "out").string() + ": was changed meanwhile by another process: holds shard.bin"),
      0u);
  EXPECT_EQ(get("out/shard.bin"), "another's");
}

TEST_F(AtomicOutputTest, OnlyFoldersOfTheSameKindAreReplaced) {
  write_folder(folder / "out", "old");
  put("out/notes.txt", "mine");
  const std::string message = message_of([&] { write_folder(folder / "out", "new"); });
  EXPECT_NE(message.find("out: holds notes.txt, which is not a file of a test's folder"), std::string::npos);
  fs::remove(folder / "out/notes.txt");
  fs::remove(folder / "out/y");
  put("out/y/deep", "mine");
  EXPECT_THROW(write_folder(folder / "out", "new"), Error);
  EXPECT_EQ(get("out/x"), "old");
  fs::remove_all(folder / "out/y");
  {
    AtomicFolder output(folder / "out", kFiles);
    put("out/late", "mine");
    EXPECT_THROW(output.commit(), Error);
  }
  EXPECT_EQ(get("out/x") + get("out/late"), "oldmine");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicOutputTest, WithoutAnExchangeFoldersAreReplacedInTwoSteps) {
  write_folder(folder / "out", "old");
  EXPECT_EQ(check_replacing(folder), Replacing::exchange);
  EXPECT_EQ(run_in_child([&] {
              if (!without_exchange()) return 2;
              write_folder(folder / "out", "new");
              return check_replacing(folder) == Replacing::two_steps ? 0 : 1;
            }),
            0);
  EXPECT_EQ(get("out/x") + get("out/y"), "newnew");
  EXPECT_EQ(entries(), 1);
}

// The state between the two steps, which a kill leaves: nothing has the name.
TEST_F(AtomicOutputTest, AReplacementCutOffBetweenTwoStepsIsUndone) {
  const auto cut_off = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      PartialFolder partial(folder / "out");
      fs::create_directory(partial.content());
      fs::create_directories(partial.replaced().parent_path());
      fs::rename(folder / "out", partial.replaced());
      ::raise(SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
    EXPECT_FALSE(fs::exists(folder / "out"));
  };
  write_folder(folder / "out", "old");
  cut_off();
  recover_folder(folder / "out");
  EXPECT_EQ(get("out/x"), "old");
  EXPECT_EQ(entries(), 1);
  cut_off();
  EXPECT_THROW(AtomicFolder(folder / "out", std::nullopt), Error);  // it is back, and not to be replaced
  EXPECT_EQ(get("out/x"), "old");
  cut_off();
  put("out/x", "another's");  // who took the name meanwhile keeps it
  EXPECT_EQ(remove_stale_partials(folder), 1);
  EXPECT_EQ(get("out/x"), "another's");
}

TEST_F(AtomicOutputTest, AFailedSecondStepIsUndone) {
  write_folder(folder / "out", "old");
  EXPECT_EQ(run_in_child([&] {
              AtomicFolder output(folder / "out", kFiles);
              fs::remove(output.folder());  // which makes the second step fail
              std::ofstream(output.folder()) << "not a folder";
              return without_exchange() && message_of([&] { output.commit(); }) != "no error" ? 0 : 1;
            }),
            0);
  EXPECT_EQ(get("out/x"), "old");
  EXPECT_EQ(entries(), 1);
}

// Writers of every kind killed at random instants: the reader always finds one whole version.
TEST_F(AtomicOutputTest, AKilledWriterLeavesOneWholeVersion) {
  const auto write_version = [&](char version) {
    const std::string content(200000, version);
    write_file_atomically(folder / "file", content);
    AtomicFolder output(folder / "folder", kFiles);
    for (const char* name : {"x", "y"}) {
      OutputFile part(output.folder() / name);
      part.write(content);
      part.close();
    }
    output.commit();
  };
  write_version('a');
  for (int round = 0; round < 30; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0;; ++i) write_version(static_cast<char>('a' + i % 26));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + 1377 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (const char* name : {"file", "folder/x"}) {
      const std::string content = get(name);
      ASSERT_EQ(content.size(), 200000u) << name;
      ASSERT_EQ(std::count(content.begin(), content.end(), content[0]), 200000) << name;
    }
    ASSERT_EQ(get("folder/x"), get("folder/y"));
  }
  remove_stale_partials(folder);
  EXPECT_EQ(entries(), 2);
}

TEST_F(AtomicOutputTest, EveryInterruptedCallIsMadeAgain) {
  ::signal(SIGALRM, [](int) {});
  itimerval often{{0, 200}, {0, 200}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  for (int i = 0; i < 50; ++i) {
    write_file_atomically(folder / "a", std::string(100000, 'x'));
    write_folder(folder / "out", "new");
  }
  often = {};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  EXPECT_EQ(entries(), 2);
}

}  // namespace
}  // namespace warpwright
