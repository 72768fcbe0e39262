// Any bytes as a .gz and as a .zst file give an Error, or text made from no more bytes than the file has.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "data/text_stream.hpp"

using namespace warpwright;

namespace {

// In memory if possible, because files are written for every input.
std::filesystem::path make_folder() {
  const std::filesystem::path memory = "/dev/shm";
  const auto base = std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
  std::string name = (base / "fuzz_text_XXXXXX").string();
  if (!::mkdtemp(name.data())) std::abort();
  return name;
}

struct Folder {
  const std::filesystem::path path = make_folder();
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  for (const char* name : {"text.gz", "text.zst"}) {
    const std::filesystem::path path = folder.path / name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    try {
      TextStream stream(path);
      std::string chunk(std::size_t{1} << 16, '\0');
      constexpr int kMostChunks = 64;  // stops at a decompression bomb
      for (int i = 0; i < kMostChunks && stream.read(chunk) == chunk.size(); ++i) {
      }
      if (stream.consumed() > size) std::abort();
    } catch (const Error&) {
    }
  }
  return 0;
}
