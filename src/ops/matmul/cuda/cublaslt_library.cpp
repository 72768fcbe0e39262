#include <dlfcn.h>
#include <fmt/format.h>

#include "core/error.hpp"
#include "ops/matmul/cuda/cublaslt.hpp"

namespace warpwright::ops::matmul::cublaslt {
namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                  "/usr/local/cuda/lib64/libcublasLt.so"};
constexpr std::string_view kRemedy =
    "install libcublas (of the CUDA toolkit, or the Python package nvidia-cublas) and see that its folder is "
    "in LD_LIBRARY_PATH";

bool ending = false;

struct Loaded {
  Library library{};
  std::string reason;  // why the library is not loaded, or ""

  Loaded() {
    void* file = nullptr;
    for (const char* name : kNames) {
      if (!file) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!file) {
      reason = fmt::format("{} is not found", kNames[0]);
      return;
    }
    // The file is never closed: a library that has launched kernels cannot be unloaded safely.
    find(file, "cublasLtCreate", library.create);
    find(file, "cublasLtDestroy", library.destroy);
    find(file, "cublasLtGetStatusString", library.status_string);
    find(file, "cublasLtGetVersion", library.version);
    find(file, "cublasLtMatmul", library.matmul);
    find(file, "cublasLtMatmulAlgoGetHeuristic", library.heuristic);
    find(file, "cublasLtMatmulAlgoConfigGetAttribute", library.algorithm_attribute);
    find(file, "cublasLtMatmulDescCreate", library.create_description);
    find(file, "cublasLtMatmulDescDestroy", library.destroy_description);
    find(file, "cublasLtMatmulDescSetAttribute", library.set_description);
    find(file, "cublasLtMatrixLayoutCreate", library.create_layout);
    find(file, "cublasLtMatrixLayoutDestroy", library.destroy_layout);
    find(file, "cublasLtMatrixLayoutSetAttribute", library.set_layout);
    find(file, "cublasLtMatmulPreferenceCreate", library.create_preference);
    find(file, "cublasLtMatmulPreferenceDestroy", library.destroy_preference);
    find(file, "cublasLtMatmulPreferenceSetAttribute", library.set_preference);
  }
  // This object is constructed after the library's own statics, so it is destroyed just before them.
  ~Loaded() { ending = true; }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

 private:
  template <class Function>
  void find(void* file, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(file, name));
    if (!function && reason.empty()) reason = fmt::format("libcublasLt has no {}", name);
  }
};

const Loaded& loaded() {
  static const Loaded once;
  return once;
}

}  // namespace

const Library& library() {
  if (!loaded().reason.empty()) throw Error(loaded().reason, "cuBLASLt", std::string(kRemedy));
  return loaded().library;
}

const std::string& reason_for_absence() {
  static const std::string reason =
      loaded().reason.empty() ? "" : fmt::format("{} ({})", loaded().reason, kRemedy);
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

Handle make_handle() {
  cublasLtHandle_t handle = nullptr;
  check(library().create(&handle), "starting");
  return Handle(handle);
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
