#include "ops/op.hpp"

#include <fmt/format.h>

#include "runtime/threads.hpp"

namespace warpwright::ops {

std::string call_line(std::string_view operation, std::string_view choice, const std::string& problem) {
  return fmt::format("{} {} {}", operation, choice, problem);
}

std::string timed_call_line(std::string_view operation, std::string_view choice, const std::string& problem,
                            double seconds) {
  return fmt::format("{} {} {} {:.1f} us", operation, choice, problem, seconds * 1e6);
}

std::string_view forced_choice(const ForcedChoices& forced, std::string_view operation) {
  auto found = forced.find(std::string(operation));
  if (found == forced.end()) found = forced.find(std::string(operation.substr(0, operation.find('.'))));
  return found == forced.end() ? std::string_view() : std::string_view(found->second);
}

void throw_refused(std::string_view operation, const std::string& problem, const std::string& reasons,
                   bool forced) {
  throw Error(fmt::format("no variant runs {} ({})", problem, reasons), std::string(operation),
              forced ? "change WARPWRIGHT_FORCE" : "use another dtype, size or machine");
}

void throw_untunable(std::string_view operation, const std::string& problem, const std::string& choice) {
  throw Error(fmt::format("the tuned kernel {} does not run {}", choice, problem), std::string(operation),
              "run `warpwright tune` again, or leave out --tuned");
}

CallThreads::CallThreads(Context& context, double flops, double bytes)
    : context_(context),
      before_(context.exchange_single_thread(flops < kLittleFlops && bytes < kLittleBytes)) {
  if (context.device().device.kind == DeviceKind::cpu) claim_threads(context.threads());
}

void require(bool condition, std::string_view operation, const std::string& what) {
  if (!condition) throw Error(what, std::string(operation), "pass arguments that fit its header");
}

void require_shape(std::string_view operation, std::string_view argument, const Tensor& tensor,
                   const Shape& shape) {
  if (tensor.shape == shape) return;
  require(false, operation,
          fmt::format("{} has shape {}, needs {}", argument, tensor.shape.to_string(), shape.to_string()));
}

void require_dtype(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) return;
  require(false, operation,
          fmt::format("{} is {}, needs {}", argument, name_of(tensor.dtype), name_of(dtype)));
}

void require_contiguous(std::string_view operation, std::string_view argument, const Tensor& tensor) {
  if (!tensor.contiguous()) require(false, operation, fmt::format("{} is not contiguous", argument));
}

void require_tensor(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype,
                    const Shape& shape) {
  if (!tensor) require(false, operation, fmt::format("{} is missing", argument));
  require_dtype(operation, argument, tensor, dtype);
  require_shape(operation, argument, tensor, shape);
  require_contiguous(operation, argument, tensor);
}

std::string choice_text(std::string_view variant, const std::string& configuration) {
  return configuration.empty() ? std::string(variant) : fmt::format("{}[{}]", variant, configuration);
}

std::string refuse_dtype(DType dtype) {
  return fmt::format("no {}", name_of(dtype));
}

std::string refuse_device(Needs needs, const DeviceInfo& device) {
  const bool gpu = device.device.kind == DeviceKind::cuda;
  switch (needs) {
    case Needs::cpu:
      return gpu ? "runs on a CPU" : "";
    case Needs::avx2:
      return gpu ? "runs on a CPU" : device.cpu.avx2 ? "" : "needs AVX2 and FMA";
    case Needs::avx512:
      return gpu ? "runs on a CPU" : device.cpu.avx512 ? "" : "needs AVX-512 (F, BW, DQ, VL)";
    case Needs::avx512_bf16:
      return gpu ? "runs on a CPU" : device.cpu.avx512_bf16 ? "" : "needs AVX512_BF16";
    case Needs::amx_bf16:
      return gpu ? "runs on a CPU" : device.cpu.amx_bf16 ? "" : "the processor or the system offers no AMX";
    case Needs::avx_vnni:
      return gpu ? "runs on a CPU" : device.cpu.avx_vnni ? "" : "needs AVX-VNNI";
    case Needs::avx512_vnni:
      return gpu ? "runs on a CPU" : device.cpu.avx512_vnni ? "" : "needs AVX512_VNNI";
    case Needs::amx_int8:
      return gpu                   ? "runs on a CPU"
             : device.cpu.amx_int8 ? ""
                                   : "the processor or the system offers no AMX for int8";
    case Needs::gpu:
      return gpu ? "" : "runs on an NVIDIA GPU";
    case Needs::tf32:
      return !gpu          ? "runs on an NVIDIA GPU"
             : device.tf32 ? ""
                           : "rounds to tf32, which this run does not allow";
    case Needs::hopper:
      return !gpu                            ? "runs on an NVIDIA GPU"
             : device.gpu.runs_hopper_code() ? ""
             : device.gpu.hopper_code        ? "needs a GPU of compute capability 9.0"
                                             : "this build has no code for sm_90a";
  }
  return "needs a device that this build does not know";
}

Refusal::Refusal() = default;
Refusal::Refusal(const char* reason) : reason_(reason) {}
Refusal::Refusal(std::string reason) : reason_(std::move(reason)) {}
Refusal::Refusal(const Refusal& other) = default;
Refusal& Refusal::operator=(const Refusal& other) = default;
Refusal::~Refusal() = default;
Refusal::operator bool() const {
  return !reason_.empty();
}
const std::string& Refusal::reason() const {
  return reason_;
}

}  // namespace warpwright::ops
