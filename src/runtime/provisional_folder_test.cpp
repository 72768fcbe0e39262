#include "runtime/provisional_folder.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/test_child.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class ProvisionalFolderTest : public TestFolder {
 protected:
  // All entries with the content of files, but for the owner in a lock.
  std::map<std::string, std::string> entries() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const bool is_text = entry.is_regular_file() && entry.path().filename() != "lock";
      all[entry.path().lexically_relative(folder)] = is_text ? read_file(entry.path(), 1 << 20) : "";
    }
    return all;
  }
  fs::path run() const { return folder / "a" / "run"; }
};

TEST_F(ProvisionalFolderTest, WhatItHasMadeIsRemoved) {
  {
    ProvisionalFolder provisional(run());
    provisional.make_folder("checkpoints");
    EXPECT_EQ(entries().size(), 4u);  // two folders, the lock and checkpoints
  }
  EXPECT_TRUE(entries().empty());
}

TEST_F(ProvisionalFolderTest, WhatWasThereStays) {
  const std::string owner = "warpwright process 1\n";
  const fs::path lock = put("a/run/lock", owner);
  const auto since = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(lock, since);
  put("a/run/metrics.jsonl", "mine");
  const auto before = entries();
  {
    ProvisionalFolder provisional(run());
    provisional.make_folder("checkpoints");
    EXPECT_NE(read_file(lock, 100), owner);
  }
  EXPECT_EQ(entries(), before);
  EXPECT_EQ(read_file(lock, 100), owner);
  EXPECT_EQ(fs::last_write_time(lock), since);
}

TEST_F(ProvisionalFolderTest, AKeptFolderNamesItsNewOwner) {
  const std::string owner = "warpwright process 1\n";
  const fs::path lock = put("a/run/lock", owner);
  {
    ProvisionalFolder provisional(run());
    provisional.keep();
  }
  EXPECT_EQ(read_file(lock, 100), "warpwright process " + std::to_string(::getpid()) + "\n");
}

TEST_F(ProvisionalFolderTest, WhatSomebodyPutThereMeanwhileStays) {
  {
    ProvisionalFolder provisional(run());
    provisional.make_folder("checkpoints");
    put("a/run/checkpoints/notes", "mine");
  }
  EXPECT_EQ(entries(),
            (std::map<std::string, std::string>{
                {"a", ""}, {"a/run", ""}, {"a/run/checkpoints", ""}, {"a/run/checkpoints/notes", "mine"}}));
}

TEST_F(ProvisionalFolderTest, WhatIsKeptStays) {
  {
    ProvisionalFolder provisional(run());
    provisional.make_folder("checkpoints");
    provisional.keep();
  }
  EXPECT_EQ(entries().size(), 4u);
  const FolderLock again(run());  // the lock is free
}

TEST_F(ProvisionalFolderTest, TheEndOfTheProcessRemovesIt) {
  EXPECT_EQ(run_in_child([&] {
              ProvisionalFolder provisional(run());
              provisional.make_folder("checkpoints");
              remove_live_partials();
              ::_exit(entries().empty() ? 0 : 1);
              return 1;
            }),
            0);
}

TEST_F(ProvisionalFolderTest, ASecondProcessIsRefusedAndRemovesNothing) {
  ProvisionalFolder provisional(run());
  provisional.make_folder("checkpoints");
  const auto before = entries();
  EXPECT_EQ(run_in_child([&] {
              const std::string message = message_of([&] { ProvisionalFolder second(run()); });
              return message.find("is in use by process") != std::string::npos ? 0 : 1;
            }),
            0);
  EXPECT_EQ(entries(), before);
}

TEST_F(ProvisionalFolderTest, AFolderThatCannotBeLockedIsRemoved) {
  EXPECT_EQ(run_in_child([&] {
              const bool prepared = fail_system_call(SYS_flock, ENOLCK);
              const std::string message = message_of([&] { ProvisionalFolder provisional(run()); });
              return prepared && message.find("cannot lock") != std::string::npos ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(entries().empty());
}

}  // namespace
}  // namespace warpwright
