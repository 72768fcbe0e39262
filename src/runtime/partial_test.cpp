#include "runtime/partial.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/test_child.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class PartialTest : public TestFolder {
 protected:
  int entries() const { return static_cast<int>(std::distance(fs::directory_iterator(folder), {})); }
  // A name that a writer would use.
  std::string partial_of(const std::string& name) const { return partial_path(folder / name).filename(); }
};

TEST_F(PartialTest, OnlyNamesOfOurMakingAreRemoved) {
  const std::string users[] = {"notes.deleted",     "model.partial-draft", "lock",
                               "a.partial-2024-1",  "b.partial-77-3",      "step_00000007.deleted",
                               "c.partial-1-0-abc", "0123456789abcdef",    "d.partial-1-0-0123456789abcdef"};
  for (const std::string& name : users) {
    put(name, "mine");
    put("folders/" + name + "/deep", "mine");
    EXPECT_FALSE(is_partial_name(name)) << name;
  }
  put(partial_of("a"), "left by a crash");
  const std::string partial = partial_of("b");
  put("folders/" + partial + "/new/b/deep", "left by a crash");
  put("folders/" + partial + "/old/c/deep", "left by a crash");
  EXPECT_EQ(remove_stale_partials(folder), 1);
  EXPECT_EQ(remove_stale_partials(folder / "folders"), 1);
  for (const std::string& name : users) {
    EXPECT_TRUE(fs::exists(folder / name)) << name;
    EXPECT_TRUE(fs::exists(folder / "folders" / name / "deep")) << name;
  }
}

TEST_F(PartialTest, WhatIsInUseStays) {
  AtomicFolder in_use(folder / "a");
  EXPECT_EQ(run_in_child([&] { return remove_stale_partials(folder); }), 0);
  in_use.commit();
  EXPECT_TRUE(fs::is_directory(folder / "a"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(PartialTest, LinksAreRemovedAndNotFollowed) {
  put("disk/mine", "x");
  fs::create_directory_symlink("disk", folder / partial_of("a"));
  put(partial_of("b") + "/new/b/x", "y");
  fs::create_directory_symlink(folder / "disk", folder / partial_of("c"));
  remove_stale_partials(folder);
  EXPECT_TRUE(fs::exists(folder / "disk/mine"));
}

TEST_F(PartialTest, ADeletedFolderIsWholeOrAPartial) {
  put("a/b/c", "x");
  delete_folder(folder / "a");
  EXPECT_EQ(entries(), 0);
  put("a/b/c", "x");
  EXPECT_EQ(run_in_child([&] {
              const bool prepared = fail_system_call(SYS_rename, EACCES);
              return prepared && message_of([&] { delete_folder(folder / "a"); }).find("cannot delete") !=
                                     std::string::npos
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_TRUE(fs::exists(folder / "a/b/c"));
  EXPECT_EQ(entries(), 1);
  EXPECT_EQ(run_in_child([&] {
              const bool prepared = fail_system_call(SYS_unlinkat, EACCES);
              return prepared && message_of([&] { delete_folder(folder / "a"); }).find("cannot be deleted") !=
                                     std::string::npos
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_FALSE(fs::exists(folder / "a"));
  EXPECT_EQ(remove_stale_partials(folder), 1);
  EXPECT_EQ(entries(), 0);
}

TEST_F(PartialTest, AProcessThatASignalEndsTakesItsPartialsAlong) {
  put("out/x", "old");
  EXPECT_EQ(run_in_child([&] {
              if (!fail_system_call(SYS_openat, EOPNOTSUPP, 2, O_TMPFILE & ~O_DIRECTORY)) return 2;
              std::thread([&] {
                try {
                  AtomicFile file(folder / "file");
                  AtomicFolder output(folder / "new");
                  for (int i = 0;; ++i) OutputFile(output.folder() / std::to_string(i % 100)).close();
                } catch (const Error&) {
                  ::pause();  // its output has been removed and the process is about to end
                }
              }).detach();
              while (entries() < 3) std::this_thread::yield();
              remove_live_partials();
              return entries() - 1;
            }),
            0);
  EXPECT_TRUE(fs::exists(folder / "out/x"));
}

// As one does that loses another rank while its own work fails.
TEST_F(PartialTest, TwoThreadsMayEndTheProcess) {
  EXPECT_EQ(run_in_child([&]() -> int {
              const AtomicFile file(folder / "file");
              std::thread(remove_live_partials).join();
              remove_live_partials();
              ::_exit(entries());  // the file's end would wait for that of the process
            }),
            0);
}

}  // namespace
}  // namespace warpwright
