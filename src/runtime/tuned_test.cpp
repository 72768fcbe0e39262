#include "runtime/tuned.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

using TunedTableFile = TestFolder;

const TunedFor kMachine{"NVIDIA H200", "580.159.04", "130002", "0.1.0"};

TunedTable table() {
  TunedTable table(kMachine);
  table.set("matmul.dx", "M=1 N=2 K=3 bf16", "cuda.block[64x64, 4 workers]");
  table.set("matmul.dx", "M=2 N=2 K=3 bf16", "cuda.mma_block");
  return table;
}

std::string error_of(const std::filesystem::path& path) {
  try {
    TunedTable::read(path);
  } catch (const Error& error) {
    return error.problem();
  }
  return "";
}

TEST_F(TunedTableFile, ReadsWhatItWrites) {
  const auto path = folder / "new" / "table.json";
  table().write(path);
  const TunedTable read = TunedTable::read(path);
  EXPECT_EQ(read.machine(), kMachine);
  EXPECT_EQ(read.checksum(), table().checksum());
  EXPECT_EQ(*read.choice("matmul.dx", "M=1 N=2 K=3 bf16"), "cuda.block[64x64, 4 workers]");
  EXPECT_EQ(read.choice("matmul.dw", "M=1 N=2 K=3 bf16"), nullptr);
}

TEST(TunedTable, ConfigurationIsOfTheChosenKernelAlone) {
  EXPECT_EQ(table().configuration("matmul.dx", "M=1 N=2 K=3 bf16", "cuda.block"), "64x64, 4 workers");
  EXPECT_EQ(table().configuration("matmul.dx", "M=2 N=2 K=3 bf16", "cuda.mma_block"), "");
  EXPECT_FALSE(table().configuration("matmul.dx", "M=1 N=2 K=3 bf16", "cuda.persistent"));
  EXPECT_FALSE(table().configuration("matmul.dx", "M=9 N=2 K=3 bf16", "cuda.block"));
}

TEST(TunedTable, ADifferenceIsNamed) {
  TunedFor here = kMachine;
  EXPECT_EQ(table().difference(here), "");
  here.driver = "590.1";
  EXPECT_EQ(table().difference(here), "the driver \"580.159.04\", here \"590.1\"");
  here.gpu = "NVIDIA H100";
  EXPECT_EQ(table().difference(here), "the GPU \"NVIDIA H200\", here \"NVIDIA H100\"");
}

TEST_F(TunedTableFile, ADamagedFileIsRefused) {
  const auto path = folder / "table.json";
  EXPECT_NE(error_of(path), "");  // missing
  table().write(path);
  std::string text = read_file(path, 1 << 20);
  text.replace(text.find("cuda.mma_block"), 8, "cuda.mmb");
  write_file_atomically(path, text);
  EXPECT_EQ(error_of(path), "is damaged: its checksum does not match");
  for (const char* other :
       {"", "[]", "{}", "{\"tuned\": 1}", "{\"tuned\": \"1\"}",
        R"({"tuned": 1, "gpu": 1, "driver": "", "library": "", "program": "", "choices": {}})"}) {
    write_file_atomically(path, other);
    EXPECT_NE(error_of(path), "") << other;
  }
}

}  // namespace
}  // namespace warpwright
