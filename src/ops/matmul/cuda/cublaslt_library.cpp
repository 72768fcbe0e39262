#include <fmt/format.h>

#include <map>
#include <mutex>

#include "core/error.hpp"
#include "ops/matmul/cuda/cublaslt_library.hpp"
#include "runtime/shared_library.hpp"
#include "runtime/stream.hpp"

namespace warpwright::ops::matmul::cublaslt {
namespace {

constexpr std::string_view kRemedy =
    "install libcublas (of the CUDA toolkit, or the Python package nvidia-cublas) and see that its folder is "
    "in LD_LIBRARY_PATH";

bool ending = false;

struct Loaded {
  SharedLibrary file{"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"};
  Library library{};

  Loaded() {
    file.find("cublasLtCreate", library.create);
    file.find("cublasLtDestroy", library.destroy);
    file.find("cublasLtGetStatusString", library.status_string);
    file.find("cublasLtGetVersion", library.version);
    file.find("cublasLtMatmul", library.matmul);
    file.find("cublasLtMatmulAlgoGetHeuristic", library.heuristic);
    file.find("cublasLtMatmulAlgoConfigGetAttribute", library.algorithm_attribute);
    file.find("cublasLtMatmulDescCreate", library.create_description);
    file.find("cublasLtMatmulDescDestroy", library.destroy_description);
    file.find("cublasLtMatmulDescSetAttribute", library.set_description);
    file.find("cublasLtMatrixLayoutCreate", library.create_layout);
    file.find("cublasLtMatrixLayoutDestroy", library.destroy_layout);
    file.find("cublasLtMatrixLayoutSetAttribute", library.set_layout);
    file.find("cublasLtMatmulPreferenceCreate", library.create_preference);
    file.find("cublasLtMatmulPreferenceDestroy", library.destroy_preference);
    file.find("cublasLtMatmulPreferenceSetAttribute", library.set_preference);
  }
  // This object is constructed after the library's own statics, so it is destroyed just before them.
  ~Loaded() { ending = true; }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
};

const Loaded& loaded() {
  static const Loaded once;
  return once;
}

}  // namespace

const Library& library() {
  if (const std::string& reason = loaded().file.reason(); !reason.empty()) {
    throw Error(reason, "cuBLASLt", std::string(kRemedy));
  }
  return loaded().library;
}

const std::string& reason_for_absence() {
  static const std::string reason =
      loaded().file.reason().empty() ? "" : fmt::format("{} ({})", loaded().file.reason(), kRemedy);
  return reason;
}

void check(cublasStatus_t status, std::string_view doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(fmt::format("cuBLASLt: {}", library().status_string(status)), std::string(doing),
              "see whether the GPU is in order with nvidia-smi; another variant of matmul can be forced with "
              "WARPWRIGHT_FORCE");
}

bool is_ending() {
  return ending;
}

cublasLtHandle_t handle_of(Device gpu) {
  const Library& loaded = library();  // before the handles, so that it outlives them
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::lock_guard lock(mutex);
  Handle& handle = handles[gpu.index];
  if (!handle) {
    const CurrentDevice current(gpu);
    cublasLtHandle_t made = nullptr;
    check(loaded.create(&made), "starting");
    handle.reset(made);
  }
  return handle.get();
}

Description make_description(cublasComputeType_t compute) {
  cublasLtMatmulDesc_t description = nullptr;
  check(library().create_description(&description, compute, CUDA_R_32F), "describing a product");
  return Description(description);
}

Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t cols, std::int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(library().create_layout(&layout, type, static_cast<std::uint64_t>(rows),
                                static_cast<std::uint64_t>(cols), leading),
        "describing a matrix");
  return Layout(layout);
}

Preference make_preference() {
  cublasLtMatmulPreference_t preference = nullptr;
  check(library().create_preference(&preference), "describing a product");
  return Preference(preference);
}

}  // namespace warpwright::ops::matmul::cublaslt
