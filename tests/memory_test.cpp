// The process must use the memory that `train` plans and prints, for GPT-2 124M with its vocabulary at
// T=1024.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "data/shard.hpp"
#include "runtime/device.hpp"
#include "runtime/test_folder.hpp"
#include "tests/process.hpp"

namespace warpwright {
namespace {

using MemoryTest = TestFolder;

TEST_F(MemoryTest, PlanOfGpt2124MIsTheProcessesPeakWithinTwoPercent) {
#ifdef WARPWRIGHT_SANITIZED
  GTEST_SKIP() << "a sanitizer has its share of the process's memory";
#endif
  constexpr std::size_t kNeeded = std::size_t{5} << 30;
  if (available_memory() < kNeeded) GTEST_SKIP() << "needs 5 GiB of memory";
  std::filesystem::create_directory(folder / "data");
  std::vector<std::int32_t> ids(4096);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7919 % 50257);
  ShardWriter writer(folder / "data", "train", 50257, 1 << 20);
  writer.append(ids);
  writer.finish();
  const pid_t child =
      start_process({"train", "--model", "gpt2:124M", "--batch", "1", "--seq", "1024", "--steps", "2",
                     "--data", (folder / "data").string(), "--out", (folder / "run").string()},
                    folder / "out", folder / "err");
  int status = 0;
  rusage usage{};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  ASSERT_EQ(status, 0) << read_file(folder / "err", 1 << 20);
  const std::string out = read_file(folder / "out", 1 << 20);
  const std::size_t line = out.find("  total ");
  ASSERT_NE(line, std::string::npos) << out;
  const double planned = std::stod(out.substr(line + 8)) * 0x1p20;
  const double peak = static_cast<double>(usage.ru_maxrss) * 1024;
  EXPECT_GT(planned, 2e9);
  EXPECT_NEAR(peak / planned, 1, 0.02) << "planned " << planned << ", peak " << peak;
}

}  // namespace
}  // namespace warpwright
