// cuBLASLt, CUDA's library of matrix products. It is loaded when it is first needed, so the program also
// starts if it is not installed. Owners release its objects. Sources that include this header need CUDA's
// headers.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <string_view>

#include "runtime/device.hpp"

namespace warpwright::ops::matmul::cublaslt {

// The functions of the loaded library.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_attribute;
  decltype(&cublasLtMatmulDescCreate) create_description;
  decltype(&cublasLtMatmulDescDestroy) destroy_description;
  decltype(&cublasLtMatmulDescSetAttribute) set_description;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
};

// Loads the library at the first call. Throws Error if that fails.
const Library& library();
// The reason why the library cannot be loaded, and what to install; "" if it is loaded. Never throws Error.
const std::string& reason_for_absence();

// Throws Error if the status is not success. doing: the action that failed, "describing a product".
void check(cublasStatus_t status, std::string_view doing);

// True if the process is ending and may have unloaded the library. Objects of a static Context are then not
// released.
bool is_ending();

template <auto Library::*release>
struct Release {
  template <class T>
  void operator()(T* object) const {
    if (!is_ending()) (library().*release)(object);
  }
};
template <class Pointer, auto Library::*release>
using Owner = std::unique_ptr<std::remove_pointer_t<Pointer>, Release<release>>;

using Handle = Owner<cublasLtHandle_t, &Library::destroy>;
using Description = Owner<cublasLtMatmulDesc_t, &Library::destroy_description>;
using Layout = Owner<cublasLtMatrixLayout_t, &Library::destroy_layout>;
using Preference = Owner<cublasLtMatmulPreference_t, &Library::destroy_preference>;

// The library's handle for a GPU: one for all threads, until the process ends. To destroy it would wait for
// the whole GPU, and so end the captures of other threads.
cublasLtHandle_t handle_of(Device gpu);
Description make_description(cublasComputeType_t compute);
// The layout of a column-major matrix whose columns begin `leading` elements apart.
Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t cols, std::int64_t leading);
Preference make_preference();

template <class T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(library().set_description(description.get(), attribute, &value, sizeof value),
        "describing a product");
}
template <class T>
void set(const Layout& layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
  check(library().set_layout(layout.get(), attribute, &value, sizeof value), "describing a matrix");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(library().set_preference(preference.get(), attribute, &value, sizeof value), "describing a product");
}

}  // namespace warpwright::ops::matmul::cublaslt
