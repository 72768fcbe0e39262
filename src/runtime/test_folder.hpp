// Shared by tests of files: a folder for each test, removed when the test ends, and the message of an
// expected Error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "core/error.hpp"

namespace warpwright {

class TestFolder : public testing::Test {
 protected:
  TestFolder() {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    folder = std::filesystem::temp_directory_path() /
             ("warpwright_" + std::string(info->name()) + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  ~TestFolder() override { std::filesystem::remove_all(folder); }

  std::filesystem::path put(const std::filesystem::path& name, const std::string& content) const {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << content;
    return folder / name;
  }

  std::filesystem::path folder;
};

inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace warpwright
