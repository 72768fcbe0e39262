// Any bytes as a safetensors file give an Error, or tensors that fill the data exactly.
#include <cstdlib>

#include "core/error.hpp"
#include "fuzz_file.hpp"
#include "model/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const warpwright::FuzzFile memory(data, size);
  try {
    const warpwright::SafetensorsFile file(memory.path());
    std::size_t total = 0;
    unsigned sum = 0;
    for (const warpwright::SafetensorsEntry& entry : file.entries()) {
      total += entry.end - entry.begin;
      if (!entry.dtype) continue;
      const auto bytes = file.bytes(entry);
      if (bytes.size() !=
          static_cast<std::size_t>(entry.shape.elements()) * warpwright::size_of(*entry.dtype)) {
        std::abort();
      }
      for (const std::byte b : bytes) sum += static_cast<unsigned>(b);
    }
    if (total > size || sum > 255 * size) std::abort();
  } catch (const warpwright::Error&) {
  }
  return 0;
}
