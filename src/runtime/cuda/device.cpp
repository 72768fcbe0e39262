#include <cuda_runtime.h>
#include <fmt/format.h>

#include <string>

#include "core/error.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/shared_library.hpp"

namespace warpwright::cuda {
namespace {

std::string version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

// Returns the reason why no GPU can be used, or "" if one can.
std::string reason_for_none() {
  int count = 0, driver = 0, runtime = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return "";
  cudaGetLastError();  // forget it
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "no NVIDIA driver is installed";
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver offers CUDA {}, this build needs {}", version(driver),
                       version(runtime));
  }
  return status == cudaErrorNoDevice || status == cudaSuccess
             ? "this machine has no NVIDIA GPU"
             : fmt::format("CUDA does not start: {}", cudaGetErrorString(status));
}

constexpr int kOldestMajor = 8;  // bf16 products and asynchronous copies begin there

}  // namespace

void throw_error(cudaError_t status, std::string_view doing) {
  cudaGetLastError();
  const bool other_gpus = status == cudaErrorNoKernelImageForDevice;
  throw Error(fmt::format("CUDA: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status)),
              std::string(doing),
              other_gpus ? "this build is for other GPUs: build with -DWARPWRIGHT_CUDA_ARCHS=native"
                         : "see whether the GPU is in order with nvidia-smi; an illegal access is a bug "
                           "worth reporting");
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

DeviceInfo device_info(int index) {
  const std::string where = fmt::format("--device cuda:{}", index);
  if (const std::string reason = reason_for_none(); !reason.empty()) {
    throw Error(reason, where, "use --device cpu, or install what is missing");
  }
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw Error(fmt::format("this machine has {} CUDA device{}", count, count == 1 ? "" : "s"), where,
                count == 1 ? "use --device cuda:0" : fmt::format("use cuda:0 to cuda:{}", count - 1));
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), where);
  DeviceInfo info;
  info.device = {DeviceKind::cuda, index};
  info.name = properties.name;
  info.gpu = {properties.major, properties.minor, properties.multiProcessorCount,
              properties.sharedMemPerBlockOptin, properties.sharedMemPerMultiprocessor};
  info.gpu.hopper_code = WARPWRIGHT_HOPPER_CODE;
  info.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
  info.memory_bytes = properties.totalGlobalMem;
  if (info.gpu.major < kOldestMajor) {
    throw Error(fmt::format("{} has compute capability {}.{}", info.name, info.gpu.major, info.gpu.minor),
                where, "use a GPU of compute capability 8.0 or later, or --device cpu");
  }
  return info;
}

// NVML comes with the driver, so it is loaded at run time, and its three functions are declared here.
std::string driver_version() {
  SharedLibrary nvml{"libnvidia-ml.so.1"};
  int (*start)() = nullptr;
  int (*stop)() = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  nvml.find("nvmlInit_v2", start);
  nvml.find("nvmlShutdown", stop);
  nvml.find("nvmlSystemGetDriverVersion", driver);
  char text[80] = "";
  if (nvml.reason().empty() && start() == 0) {
    if (driver(text, sizeof text) != 0) text[0] = '\0';
    stop();
  }
  return text;
}

}  // namespace warpwright::cuda
