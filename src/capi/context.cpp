#include "capi/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "capi/dtype.hpp"

namespace warpwright::capi {
namespace {

constexpr std::size_t kMessageBytes = 1024;
thread_local char last_error[kMessageBytes];

Device device_of(const warpwright_context_options& options) {
  constexpr std::string_view kWhere = "warpwright_context_create";
  if (options.device != WARPWRIGHT_DEVICE_CPU && options.device != WARPWRIGHT_DEVICE_CUDA) {
    throw Error(fmt::format("options.device is {}", options.device), std::string(kWhere),
                "use WARPWRIGHT_DEVICE_CPU or WARPWRIGHT_DEVICE_CUDA");
  }
  if (options.threads < 0) {
    throw Error(fmt::format("options.threads is {}", options.threads), std::string(kWhere),
                "use 0 or the number of threads");
  }
  return {options.device == WARPWRIGHT_DEVICE_CUDA ? DeviceKind::cuda : DeviceKind::cpu,
          options.device_index};
}

}  // namespace

void set_last_error(std::string_view message) noexcept {
  std::size_t bytes = std::min(message.size(), kMessageBytes - 1);
  // Not within a character of several bytes, whose later ones begin with the bits 10.
  while (bytes < message.size() && bytes > 0 && (message[bytes] & 0xc0) == 0x80) --bytes;
  std::memcpy(last_error, message.data(), bytes);
  last_error[bytes] = '\0';
}

void throw_missing(std::string_view function, std::string_view argument) {
  throw Error(fmt::format("{} is NULL", argument), std::string(function), "see warpwright.h");
}

void throw_wrong_size(std::string_view function, std::size_t size, std::size_t known) {
  throw Error(
      fmt::format("args.size is {}, this library ({}) knows {} bytes", size, warpwright_version(), known),
      std::string(function),
      size < known ? "set it to sizeof of the structure" : "use a library as new as the program's header");
}

DType dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype) {
  switch (dtype) {
    case WARPWRIGHT_F64:
      return DType::f64;
    case WARPWRIGHT_F32:
      return DType::f32;
    case WARPWRIGHT_BF16:
      return DType::bf16;
    case WARPWRIGHT_F16:
      return DType::f16;
    default:
      throw Error(fmt::format("{} is {}", argument, dtype), std::string(function),
                  "use WARPWRIGHT_F64, _F32, _BF16 or _F16");
  }
}

}  // namespace warpwright::capi

using namespace warpwright;

int32_t warpwright_abi_version(void) {
  return 1000 * WARPWRIGHT_ABI_MAJOR + WARPWRIGHT_ABI_MINOR;
}

const char* warpwright_version(void) {
  return WARPWRIGHT_VERSION;
}

const char* warpwright_status_name(warpwright_status status) {
  constexpr const char* kNames[] = {
      "WARPWRIGHT_OK",        "WARPWRIGHT_INVALID_ARGUMENT", "WARPWRIGHT_UNSUPPORTED",
      "WARPWRIGHT_NO_DEVICE", "WARPWRIGHT_OUT_OF_MEMORY",    "WARPWRIGHT_FAILED"};
  const bool known = status >= 0 && static_cast<std::size_t>(status) < std::size(kNames);
  return known ? kNames[status] : "unknown status";
}

const char* warpwright_last_error(void) {
  return capi::last_error;
}

warpwright_status warpwright_context_create(const warpwright_context_options* options,
                                            warpwright_context** context) {
  return capi::guarded([&](warpwright_status& meaning) {
    constexpr std::string_view kFunction = "warpwright_context_create";
    if (!context) capi::throw_missing(kFunction, "context");
    *context = nullptr;
    const warpwright_context_options known = capi::known_part(kFunction, options);
    const Device device = capi::device_of(known);
    ContextOptions chosen = ContextOptions::from_environment();
    chosen.threads = known.threads;
    chosen.verbose = known.log != nullptr;
    if (known.log) {
      chosen.log = [log = known.log, data = known.log_data](std::string_view line) {
        log(data, std::string(line).c_str());
      };
    }
    meaning = WARPWRIGHT_NO_DEVICE;
    try {
      *context =
          new warpwright_context{Context(std::move(chosen), device, Stream::borrowed(device, nullptr))};
    } catch (const Error& error) {  // whose remedy is a flag of the program's
      throw Error(error.problem(), fmt::format("{}: CUDA device {}", kFunction, device.index),
                  "use WARPWRIGHT_DEVICE_CPU, or install what is missing");
    }
  });
}

void warpwright_context_destroy(warpwright_context* context) {
  delete context;
}

warpwright_status warpwright_context_set_stream(warpwright_context* context, void* stream) {
  return capi::guarded([&](warpwright_status&) {
    constexpr std::string_view kFunction = "warpwright_context_set_stream";
    if (!context) capi::throw_missing(kFunction, "context");
    const Device device = context->context.device().device;
    if (device.kind == DeviceKind::cpu && stream) {
      throw Error("stream is not NULL, and a CPU has none", std::string(kFunction), "pass NULL");
    }
    context->context.set_stream(Stream::borrowed(device, static_cast<CudaStream>(stream)));
  });
}

warpwright_status warpwright_context_set_threads(warpwright_context* context, int32_t threads) {
  return capi::guarded([&](warpwright_status&) {
    constexpr std::string_view kFunction = "warpwright_context_set_threads";
    if (!context) capi::throw_missing(kFunction, "context");
    if (threads < 0) {
      throw Error(fmt::format("threads is {}", threads), std::string(kFunction),
                  "use 0 or the number of threads");
    }
    context->context.set_threads(threads);
  });
}

int32_t warpwright_cuda_device_count(void) {
  return cuda_device_count();
}
