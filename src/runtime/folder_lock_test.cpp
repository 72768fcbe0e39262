#include "runtime/folder_lock.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/test_child.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class FolderLockTest : public TestFolder {
 protected:
  std::string content() const { return read_file(folder / "lock", 1 << 20); }
  // True if a second process fails with this message; "no error" if it is to get the lock.
  bool child_sees(const std::string& wanted) const {
    return run_in_child([&] {
             return message_of([&] { FolderLock{folder}; }).find(wanted) == std::string::npos ? 1 : 0;
           }) == 0;
  }
};

TEST_F(FolderLockTest, ASecondProcessLearnsWhoHoldsTheFolder) {
  const std::string pid = std::to_string(::getpid());
  auto lock = std::make_unique<FolderLock>(folder);
  EXPECT_TRUE(child_sees("is in use by process " + pid + ";"));
  lock.reset();
  EXPECT_TRUE(child_sees("no error"));
  lock = std::make_unique<FolderLock>(folder);  // over the child's PID
  EXPECT_TRUE(child_sees("is in use by process " + pid + ";"));
}

TEST_F(FolderLockTest, AUsersFileKeepsItsContent) {
  for (const std::string& mine : {std::string("keep this\n"), std::string(), std::string("123\n"),
                                  std::string("warpwright process 12"), std::string(100000, 'x')}) {
    put("lock", mine);
    const FolderLock lock(folder);
    EXPECT_EQ(content(), mine);
    EXPECT_TRUE(child_sees("is in use by another process"));
  }
}

// A process that was killed between writing its PID and cutting off the rest of a longer one.
TEST_F(FolderLockTest, ATornFileNamesTheNextOwner) {
  put("lock", "warpwright process 98765\n7\n");
  const FolderLock lock(folder);
  EXPECT_EQ(read_file(folder / "lock", 100), fmt::format("warpwright process {}\n", ::getpid()));
}

TEST_F(FolderLockTest, WhetherAFolderIsFreeIsAskedWithoutLockingIt) {
  FolderLock::require_free(folder / "none");
  FolderLock::require_free(folder);
  EXPECT_FALSE(fs::exists(folder / "lock"));
  auto lock = std::make_unique<FolderLock>(folder);
  const std::string before = content();
  EXPECT_EQ(run_in_child([&] {
              const std::string message = message_of([&] { FolderLock::require_free(folder); });
              const std::string wanted = "is in use by process " + std::to_string(::getppid());
              return message.find(wanted) == std::string::npos ? 1 : 0;
            }),
            0);
  EXPECT_EQ(content(), before);
  lock.reset();
  FolderLock::require_free(folder);
}

TEST_F(FolderLockTest, LinksAreNotFollowedAndOtherThingsNotOpened) {
  put("mine", "keep this");
  const auto refused = [&](const char* why) {
    const std::string message = message_of([&] { FolderLock{folder}; });
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_EQ(read_file(folder / "mine", 100), "keep this");
    fs::remove_all(folder / "lock");
  };
  fs::create_symlink("mine", folder / "lock");
  refused("is a symbolic link");
  fs::create_symlink("none", folder / "lock");
  refused("is a symbolic link");
  EXPECT_FALSE(fs::exists(folder / "none"));
  fs::create_directory(folder / "lock");
  refused("Is a directory");
  ASSERT_EQ(::mkfifo((folder / "lock").c_str(), 0600), 0);
  refused("is not a file that can be locked");
}

TEST_F(FolderLockTest, AFileSystemWithoutLocksIsNamed) {
  EXPECT_EQ(run_in_child([&] {
              const bool prepared = fail_system_call(SYS_flock, ENOLCK);
              const std::string message = message_of([&] { FolderLock{folder}; });
              return prepared && message.find("use a file system with locks") != std::string::npos ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace warpwright
