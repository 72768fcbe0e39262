// A build without CUDA: everything is on the CPU, and asking for a GPU is an Error.
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/host_copy.hpp"
#include "runtime/side_stream.hpp"
#include "runtime/stream.hpp"

namespace warpwright {
namespace {

[[noreturn]] void throw_absent(std::string_view where) {
  throw Error("this build has no CUDA", std::string(where),
              "use --device cpu, or build where CUDA's nvcc is installed");
}

}  // namespace

namespace cuda {

int device_count() {
  return 0;
}
DeviceInfo device_info(int index) {
  throw_absent("--device cuda:" + std::to_string(index));
}
std::string driver_version() {
  return "";
}
std::size_t available_memory(int) {
  throw_absent("GPU memory");
}
std::byte* allocate(std::size_t, int, std::string_view purpose) {
  throw_absent(purpose);
}
void release(std::byte*) noexcept {}
std::byte* allocate_pinned(std::size_t, std::string_view purpose) {
  throw_absent(purpose);
}
void release_pinned(std::byte*) noexcept {}
PeakFlops measure_peak_flops(const DeviceInfo&, double) {
  throw_absent("GPU arithmetic");
}
double measure_mma_flops(const DeviceInfo&, DType, double) {
  throw_absent("GPU arithmetic");
}
Bandwidth measure_bandwidth(const DeviceInfo&, std::size_t, double) {
  throw_absent("GPU memory");
}

}  // namespace cuda

Stream::Stream(Device device) {
  if (device.kind != DeviceKind::cpu) throw_absent("stream");
}
Stream Stream::borrowed(Device device, CudaStream) {
  return Stream(device);
}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;
void Stream::synchronize() const {}

void make_current(Device device) {
  if (device.kind != DeviceKind::cpu) throw_absent("device");
}

CurrentDevice::CurrentDevice(Device device) {
  make_current(device);
}
CurrentDevice::~CurrentDevice() = default;

Event::Event(Device device) {
  if (device.kind != DeviceKind::cpu) throw_absent("event");
}
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
Event::~Event() = default;
void Event::record(const Stream&) {
  host_seconds_ = host_seconds();
}
void Event::synchronize() const {}
double Event::seconds_since(const Event& earlier) const {
  return host_seconds_ - earlier.host_seconds_;
}

Milestone::Milestone(Device device) {
  if (device.kind != DeviceKind::cpu) throw_absent("event");
}
Milestone::Milestone(Milestone&&) noexcept = default;
Milestone::~Milestone() = default;
void Milestone::set(const Stream&) {}
void Milestone::hold(const Stream&) const {}

SideStream::SideStream(Device device) : stream_(device) {}
SideStream::~SideStream() = default;

Graph::Graph(const Stream&, const std::function<void()>&) {
  throw_absent("graph");
}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;
void Graph::launch(const Stream&) const {}

void copy(const Tensor& to, const Tensor& from, const Stream&) {
  require_copyable(to, from);
  if (to.bytes() > 0) std::memcpy(to.data, from.data, to.bytes());
}

void clear(const Tensor& tensor, const Stream&) {
  require_contiguous_for_copy(tensor);
  if (tensor.bytes() > 0) std::memset(tensor.data, 0, tensor.bytes());
}

}  // namespace warpwright
