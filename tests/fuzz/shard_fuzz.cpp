// Any bytes as a token shard give an Error, or ids that are all in the vocabulary.
#include <cstdlib>
#include <vector>

#include "core/error.hpp"
#include "data/shard.hpp"
#include "fuzz_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kVocabulary = 50257;
  const warpwright::FuzzFile file(data, size);
  try {
    warpwright::Shard shard(file.path());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.tokens()));
    shard.read(0, kVocabulary, ids);
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= kVocabulary) std::abort();
    }
  } catch (const warpwright::Error&) {
  }
  return 0;
}
