// A libcuda.so.1 without a GPU, for tests. Its version is FAKE_DRIVER_CUDA (1000 · major + 10 · minor).
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

constexpr int kSuccess = 0, kNoDevice = 100;

int without_device() {
  return kNoDevice;
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = std::atoi(std::getenv("FAKE_DRIVER_CUDA"));
  return kSuccess;
}

int cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* found) {
  const std::string_view asked = name;
  *function = asked == "cuDriverGetVersion" ? reinterpret_cast<void*>(cuDriverGetVersion)
              : asked == "cuGetProcAddress" ? reinterpret_cast<void*>(cuGetProcAddress_v2)
                                            : reinterpret_cast<void*>(without_device);
  if (found) *found = 0;  // the status "found"
  return kSuccess;
}
}
