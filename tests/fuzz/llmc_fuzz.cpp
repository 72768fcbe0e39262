// Any bytes as an llm.c model give an Error, or tensors that fill the file exactly.
#include <cstdlib>

#include "core/error.hpp"
#include "fuzz_file.hpp"
#include "model/llmc_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const warpwright::FuzzFile memory(data, size);
  try {
    const warpwright::LlmcFile file(memory.path());
    std::size_t total = 1024;
    unsigned sum = 0;
    for (const warpwright::TensorInfo& tensor : file.tensors()) {
      const auto bytes = file.bytes(tensor.name);
      total += bytes.size();
      for (const std::byte b : bytes) sum += static_cast<unsigned>(b);
    }
    if (total != size || sum > 255 * size) std::abort();
  } catch (const warpwright::Error&) {
  }
  return 0;
}
