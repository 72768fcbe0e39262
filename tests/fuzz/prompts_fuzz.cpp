// Any bytes as config_sentence_transformers.json give an Error, or prompts that include the default one.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "infer/prompts.hpp"

using namespace warpwright;

namespace {

struct Folder {
  const std::filesystem::path path = make();
  ~Folder() { std::filesystem::remove_all(path); }

  static std::filesystem::path make() {
    const std::filesystem::path memory = "/dev/shm";
    const auto base = std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
    std::string name = (base / "fuzz_prompts_XXXXXX").string();
    if (!::mkdtemp(name.data())) std::abort();
    return name;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  std::ofstream(folder.path / "config_sentence_transformers.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const Prompts prompts = Prompts::read(folder.path);
    if (prompts.default_name && prompts.text_of({}) != prompts.text_of({{}, *prompts.default_name}))
      std::abort();
    for (const auto& [name, text] : prompts.named) {
      if (prompts.text_of({{}, name}) != text) std::abort();
    }
    prompts.text_of({{}, "no prompt's name"});
  } catch (const Error&) {
  }
  return 0;
}
