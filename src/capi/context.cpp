#include "capi/context.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "capi/dtype.hpp"
#include "ops/int8_linear/int8_linear.hpp"
#include "runtime/threads.hpp"

namespace warpwright::capi {
namespace {

Device device_of(std::string_view function, const warpwright_context_options& options) {
  const auto fail = [&](const std::string& what, const std::string& remedy) {
    throw Error(what, std::string(function), remedy);
  };
  if (options.device != WARPWRIGHT_DEVICE_CPU && options.device != WARPWRIGHT_DEVICE_CUDA) {
    fail(fmt::format("options.device is {}", options.device),
         "use WARPWRIGHT_DEVICE_CPU or WARPWRIGHT_DEVICE_CUDA");
  }
  const bool cpu = options.device == WARPWRIGHT_DEVICE_CPU;
  if (options.device_index < 0 || (cpu && options.device_index != 0)) {
    fail(fmt::format("options.device_index is {}", options.device_index),
         cpu ? "a CPU has index 0" : "use 0 or the number of a GPU");
  }
  return {cpu ? DeviceKind::cpu : DeviceKind::cuda, options.device_index};
}

}  // namespace

ContextInCall::ContextInCall(std::string_view function, std::shared_ptr<warpwright_context> context)
    : context_(std::move(context)) {
  if (!context_->in_call.exchange(true, std::memory_order_acquire)) return;
  throw Error("context is in another call", std::string(function),
              "let one call of a context end before the next, or use a context for each thread");
}

ContextOptions options_of_model(const warpwright_context& owner, bool tf32) {
  ContextOptions options = owner.context.options();
  options.threads = owner.context.threads();
  options.tf32 = tf32;
  return options;
}

namespace {

std::optional<DType> floating_dtype(warpwright_dtype dtype) {
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
      return std::nullopt;
  }
}

}  // namespace

DType dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype) {
  if (const auto known = floating_dtype(dtype)) return *known;
  throw Error(fmt::format("{} is {}", argument, dtype), std::string(function),
              "use WARPWRIGHT_F64, _F32, _BF16 or _F16");
}

Precision precision_of(std::string_view function, std::string_view argument, warpwright_dtype dtype,
                       const DeviceInfo& device) {
  return dtype == WARPWRIGHT_INT8 ? int8_precision(device)
                                  : Precision{.dtype = dtype_of(function, argument, dtype)};
}

void check_int8(std::string_view function, warpwright_dtype dtype, const DeviceInfo& device,
                warpwright_status& meaning) {
  const std::string reason = dtype == WARPWRIGHT_INT8 ? ops::refuse_int8(device) : "";
  if (reason.empty()) return;
  meaning = WARPWRIGHT_UNSUPPORTED;
  throw Error("options.dtype is WARPWRIGHT_INT8, which " + reason, std::string(function),
              "use WARPWRIGHT_F32 or WARPWRIGHT_BF16");
}

DType mask_dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype) {
  if (dtype == WARPWRIGHT_I32) return DType::i32;
  if (dtype == WARPWRIGHT_I64) return DType::i64;
  if (dtype == WARPWRIGHT_U8) return DType::u8;
  if (const auto known = floating_dtype(dtype)) return *known;
  throw Error(fmt::format("{} is {}", argument, dtype), std::string(function),
              "use WARPWRIGHT_F64, _F32, _BF16, _F16, _I32, _I64 or _U8");
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
  return capi::last_error_message();
}

warpwright_status warpwright_context_create(const warpwright_context_options* options,
                                            warpwright_context** context) {
  return capi::guarded([&](warpwright_status& meaning) {
    constexpr std::string_view kFunction = "warpwright_context_create";
    capi::check_place(kFunction, "context", context);
    *context = nullptr;
    const warpwright_context_options known = capi::known_part(kFunction, "options", options);
    capi::check_reserved(kFunction, "options.reserved", known.reserved);
    const Device device = capi::device_of(kFunction, known);
    ContextOptions chosen = ContextOptions::from_environment();
    chosen.threads = checked_threads(known.threads, std::string(kFunction) + ": options.threads");
    chosen.verbose = known.log != nullptr;
    if (known.log) {
      chosen.log = [log = known.log, data = known.log_data](std::string_view line) {
        log(data, std::string(line).c_str());
      };
    }
    capi::watch_for_forks();
    meaning = WARPWRIGHT_FAILED;
    claim_threads(chosen.threads);
    meaning = WARPWRIGHT_NO_DEVICE;
    std::shared_ptr<warpwright_context> made;
    try {
      made = std::shared_ptr<warpwright_context>(
          new warpwright_context{Context(std::move(chosen), device, Stream::borrowed(device, nullptr))});
    } catch (const Error& error) {  // its remedy names a flag of the program
      throw Error(error.problem(), fmt::format("{}: CUDA device {}", kFunction, device.index),
                  "use WARPWRIGHT_DEVICE_CPU, or install what is missing");
    }
    *context = capi::Handles<warpwright_context>::all().add(std::move(made));
  });
}

void warpwright_context_destroy(warpwright_context* context) {
  if (!context) return;
  capi::guarded([&](warpwright_status&) {
    capi::Handles<warpwright_context>::all().remove("warpwright_context_destroy", "context", context);
  });
}

warpwright_status warpwright_context_set_stream(warpwright_context* context, void* stream) {
  return capi::guarded([&](warpwright_status&) {
    constexpr std::string_view kFunction = "warpwright_context_set_stream";
    const capi::ContextInCall found(kFunction, context);
    const Device device = found->context.device().device;
    if (device.kind == DeviceKind::cpu && stream) {
      throw Error("stream is not NULL, but a CPU has no stream", std::string(kFunction), "pass NULL");
    }
    found->context.set_stream(Stream::borrowed(device, static_cast<CudaStream>(stream)));
  });
}

warpwright_status warpwright_context_set_threads(warpwright_context* context, int32_t threads) {
  return capi::guarded([&](warpwright_status& meaning) {
    constexpr std::string_view kFunction = "warpwright_context_set_threads";
    const capi::ContextInCall found(kFunction, context);
    const int chosen = checked_threads(threads == 0 ? found->context.options().threads : threads,
                                       std::string(kFunction) + ": threads");
    meaning = WARPWRIGHT_FAILED;
    found->context.set_threads(chosen);
  });
}

int32_t warpwright_cuda_device_count(void) {
  int32_t count = 0;
  capi::guarded([&](warpwright_status&) { count = cuda_device_count(); });
  return count;
}
