#include "runtime/shared_library.hpp"

#include <gtest/gtest.h>

#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

using SharedLibraries = TestFolder;

TEST_F(SharedLibraries, TheFirstThatLoadsIsTaken) {
  SharedLibrary library{"libabsent_of_warpwright.so.1", "libc.so.6"};
  int (*magnitude)(int) = nullptr;
  library.find("abs", magnitude);
  ASSERT_EQ(library.reason(), "");
  EXPECT_EQ(magnitude(-3), 3);
  library.find("no_such_function", magnitude);
  EXPECT_EQ(library.reason(), "libc.so.6 has no no_such_function");
}

TEST_F(SharedLibraries, TheReasonTellsABrokenFileFromAnAbsentOne) {
  const std::string broken = put("libbroken.so", std::string(4096, 'x')).string();
  const SharedLibrary library{"libabsent_of_warpwright.so.1", broken.c_str()};
  const std::string& reason = library.reason();
  EXPECT_EQ(reason.find("cannot be loaded: libabsent_of_warpwright.so.1: "), 0u) << reason;
  EXPECT_NE(reason.find("No such file"), std::string::npos) << reason;
  EXPECT_NE(reason.find("; " + broken + ": invalid ELF header"), std::string::npos) << reason;
}

}  // namespace
}  // namespace warpwright
