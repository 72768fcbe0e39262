// Any bytes as the config.json of a model's folder give an Error, or valid sizes that survive writing and
// reading.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/decoder_files.hpp"
#include "model/families.hpp"

using namespace warpwright;

namespace {

std::filesystem::path make_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "fuzz_config_XXXXXX").string();
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
  std::ofstream(folder.path / "config.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  std::shared_ptr<const Decoder> decoder;
  try {
    decoder = read_decoder(folder.path);
  } catch (const Error&) {
    return 0;
  }
  try {
    decoder->validate("fuzz");
    if (decoder->parameter_count() < 1 || decoder->padded_vocab() < decoder->vocab()) std::abort();
    const nlohmann::json config = decoder->config(0);
    if (decoder_of_config(config, "fuzz")->config(0) != config) std::abort();
  } catch (const Error&) {
    std::abort();  // what was read must be valid, and so must what is written
  }
  return 0;
}
