#include "cli/tuned_flags.hpp"

#include <fmt/format.h>

#include <cctype>

#include "cli/cache_folder.hpp"
#include "core/error.hpp"
#include "ops/matmul/cuda/cublaslt_version.hpp"
#include "runtime/file.hpp"

namespace warpwright::cli {
namespace {

// The name of a GPU's table: "nvidia-h200.json" for "NVIDIA H200".
std::string file_name(const std::string& gpu) {
  std::string name;
  for (const char c : gpu) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte)) {
      name += static_cast<char>(std::tolower(byte));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  return name + ".json";
}

// Throws Error if the file cannot be read, or if the table was measured on another machine.
std::shared_ptr<const TunedTable> read_table(const std::filesystem::path& path, Device device) {
  auto table = std::make_shared<const TunedTable>(TunedTable::read(path));
  const TunedFor here =
      device.kind == DeviceKind::cuda ? tuned_for(device) : TunedFor{cpu_device_info().name, "", "", ""};
  if (const std::string difference = table->difference(here); !difference.empty()) {
    throw Error(fmt::format("was measured with {}", difference), path.string(),
                "run `warpwright tune` on this machine");
  }
  return table;
}

}  // namespace

TunedFor tuned_for(Device device) {
  TunedFor here{device_info(device).name, gpu_driver_version(), "", WARPWRIGHT_VERSION};
#if WARPWRIGHT_CUDA
  here.library = ops::matmul::cuda::cublaslt_version();
#endif
  return here;
}

std::filesystem::path tuned_path(const TunedFor& machine) {
  const std::filesystem::path folder = users_cache_folder();
  if (folder.empty()) {
    throw Error("there is no cache folder that can be written", "tuned kernels",
                "set XDG_CACHE_HOME or HOME, or name a file with --out and --tuned-table");
  }
  return folder / "tuned" / file_name(machine.gpu);
}

void TunedFlags::add_to(CLI::App& command) {
  command.add_flag("--tuned", tuned,
                   "GPU: use the kernels that `warpwright tune` measured as the fastest for these shapes");
  command.add_option(
      "--tuned-table", table,
      "GPU: like --tuned, with the table in this file; default: where `warpwright tune` stores it");
}

std::shared_ptr<const TunedTable> TunedFlags::load(
    Device device, const std::function<void(const std::string&)>& notice) const {
  if (!are_given()) return nullptr;
  if (device.kind != DeviceKind::cuda) {
    throw UsageError("is for a GPU", table.empty() ? "--tuned" : "--tuned-table",
                     "give --device cuda, or omit it");
  }
  if (!table.empty()) return read_table(table, device);
  const std::filesystem::path path = tuned_path(tuned_for(device));
  if (!path_exists(path)) {
    throw Error("does not exist: nothing was tuned on this GPU", path.string(),
                "run `warpwright tune` for this model, or omit --tuned");
  }
  return usable_table(path, device, notice);
}

std::shared_ptr<const TunedTable> usable_table(const std::filesystem::path& path, Device device,
                                               const std::function<void(const std::string&)>& notice) {
  try {
    std::error_code none;
    if (path_exists(path) && !std::filesystem::is_regular_file(path, none)) {
      throw Error("is not a file", path.string(), "delete it");  // a pipe would wait for a writer
    }
    return read_table(path, device);
  } catch (const Error& error) {
    notice(fmt::format("{} {}: it is not used", error.where(), error.problem()));
    return nullptr;
  }
}

}  // namespace warpwright::cli
