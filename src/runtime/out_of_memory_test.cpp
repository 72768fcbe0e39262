// Memory that runs out at any allocation is std::bad_alloc, and never the end of the process.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "runtime/json_clearer.hpp"
#include "runtime/partial.hpp"
#include "runtime/test_child.hpp"
#include "runtime/test_folder.hpp"

namespace {

thread_local int allocations_left = -1;  // of this thread; -1: any number

}  // namespace

// Not inlined, since g++ would take a free() of what `new` returned for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace warpwright {
namespace {

// Repeats an action in a child process with memory for 0, 1, 2, … allocations until it has enough. Returns
// the number of times that it had not, at most 1000, or −1 if the process ended.
int times_out_of_memory(const std::function<void()>& action) {
  constexpr int kMost = 1000;
  return run_in_child([&] {
    for (int count = 0; count < kMost; ++count) {
      try {
        allocations_left = count;
        action();
        allocations_left = -1;
        return count;
      } catch (const std::bad_alloc&) {
        allocations_left = -1;
      }
    }
    return kMost;
  });
}

using OutOfMemory = TestFolder;

TEST_F(OutOfMemory, WhileJsonIsRead) {
  constexpr std::string_view kDocument =
      R"([[1, [2, "a long string of a nested array"]], {"a": {"b": [3, 4]}}])";
  EXPECT_GT(times_out_of_memory([&] {
              nlohmann::json document = parse_json(kDocument, "f", 8, "r");
              const JsonClearer clearer(document);
              (void)std::string(100, 'x');
            }),
            10);
}

TEST_F(OutOfMemory, WhileADocumentIsHeld) {
  EXPECT_EQ(run_in_child([] {
              nlohmann::json document = parse_json(R"([[1, [2]], {"a": {"b": [3, 4]}}])", "f", 8, "r");
              allocations_left = 0;
              clear_json(document);
              allocations_left = -1;
              return document == nlohmann::json::array() ? 0 : 1;
            }),
            0);
}

TEST_F(OutOfMemory, WhileAFolderIsListed) {
  put("a name that does not fit into a short string", "");
  put("another name that does not fit into a short string", "");
  EXPECT_GT(times_out_of_memory([&] { list_folder(folder); }), 2);
}

TEST_F(OutOfMemory, WhilePartialsAreRemoved) {
  EXPECT_GT(times_out_of_memory([&] {
              PartialFolder partial(folder / "target", "partial");
              std::filesystem::create_directories(partial.content() / "a folder with a long name");
              partial.remove();
            }),
            10);
  remove_stale_partials(folder);
  EXPECT_EQ(list_folder(folder).size(), 0u);
}

}  // namespace
}  // namespace warpwright
