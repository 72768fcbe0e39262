// Any bytes as the model.safetensors.index.json of a folder with two shards give an Error, or the shards'
// tensors.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "model/safetensors_folder.hpp"

using namespace warpwright;

namespace {

// In memory if possible, because the index is written for every input.
std::filesystem::path make_folder() {
  const std::filesystem::path memory = "/dev/shm";
  const auto base = std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
  std::string name = (base / "fuzz_index_XXXXXX").string();
  if (!::mkdtemp(name.data())) std::abort();
  for (const char* shard : {"a", "b"}) {
    const std::byte content[4] = {};
    TensorFileWriter writer = write_safetensors(
        std::filesystem::path(name) / (std::string(shard) + ".safetensors"),
        {{std::string(shard) + ".x", DType::u8, {3}}, {std::string(shard) + ".y", DType::u8, {1}}});
    writer.write(std::string(shard) + ".x", std::span(content).first(3));
    writer.write(std::string(shard) + ".y", std::span(content).first(1));
    writer.commit();
  }
  return name;
}

struct Folder {
  const std::filesystem::path path = make_folder();
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  std::ofstream(folder.path / "model.safetensors.index.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const SafetensorsFolder stored(folder.path);
    if (stored.tensors().size() % 2 != 0 || stored.tensors().empty()) std::abort();
    for (const SafetensorsFolder::StoredTensor& tensor : stored.tensors()) {
      if (stored.find(tensor.entry->name).entry != tensor.entry) std::abort();
      if (tensor.bytes().size() != tensor.entry->end - tensor.entry->begin) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
