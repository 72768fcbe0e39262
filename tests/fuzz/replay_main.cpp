// Runs a fuzz target without libFuzzer, on every seed in the given folders and on a fixed number of seeded
// mutations of each. Mutations flip bits, replace bytes by awkward values, cut out or repeat ranges, and
// truncate.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr int kMutationsPerSeed = 2000;

void mutate(Bytes& bytes, std::mt19937_64& random) {
  static constexpr std::array<std::uint8_t, 12> kAwkward = {0x00, 0x01, 0x7f, 0x80, 0xff, '"',
                                                            '{',  '[',  '}',  ',',  '9',  '-'};
  const auto below = [&](std::size_t limit) {
    return static_cast<std::ptrdiff_t>(random() % (limit + (limit == 0)));
  };
  const std::ptrdiff_t at = below(bytes.size());
  const auto length = std::min<std::ptrdiff_t>(1 + below(16), static_cast<std::ptrdiff_t>(bytes.size()) - at);
  switch (random() % 5) {
    case 0:
      if (!bytes.empty())
        bytes[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1u << (random() % 8));
      break;
    case 1:
      if (!bytes.empty()) bytes[static_cast<std::size_t>(at)] = kAwkward[random() % kAwkward.size()];
      break;
    case 2:
      bytes.erase(bytes.begin() + at, bytes.begin() + at + length);
      break;
    case 3: {
      const Bytes range(bytes.begin() + at, bytes.begin() + at + length);
      bytes.insert(bytes.begin() + below(bytes.size()), range.begin(), range.end());
      break;
    }
    default:
      if (random() % 4 == 0) bytes.resize(static_cast<std::size_t>(at));
  }
}

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

int main(int argc, char** argv) {
  int seeds = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      const Bytes seed = read(entry.path());
      std::mt19937_64 random(static_cast<std::uint64_t>(seed.size()));
      for (int round = 0; round <= kMutationsPerSeed; ++round) {
        Bytes input = seed;
        const std::size_t mutations = round == 0 ? 0 : 1 + random() % 4;
        for (std::size_t m = 0; m < mutations; ++m) mutate(input, random);
        try {
          LLVMFuzzerTestOneInput(input.data(), input.size());
        } catch (const std::exception& error) {
          std::fprintf(stderr, "%s, mutation %d: %s\n", entry.path().c_str(), round, error.what());
          return 1;
        }
      }
      ++seeds;
    }
  }
  std::printf("%d seeds with %d mutations each\n", seeds, kMutationsPerSeed);
  return seeds > 0 ? 0 : 1;
}
