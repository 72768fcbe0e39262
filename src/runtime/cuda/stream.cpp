#include "runtime/stream.hpp"

#include <cuda_runtime.h>

#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/host_copy.hpp"

namespace warpwright {

Stream::Stream(Device device) {
  if (device.kind == DeviceKind::cpu) return;
  const CurrentDevice current(device);
  cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}
Stream Stream::borrowed(Device device, CudaStream stream) {
  Stream made;
  made.borrowed_ = true;
  if (device.kind == DeviceKind::cuda) made.stream_ = stream ? stream : cudaStreamLegacy;
  return made;
}
Stream::Stream(Stream&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)), borrowed_(other.borrowed_) {}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  std::swap(borrowed_, other.borrowed_);
  return *this;
}
Stream::~Stream() {
  if (stream_ && !borrowed_) cudaStreamDestroy(stream_);
}
void Stream::synchronize() const {
  if (stream_) cuda::check(cudaStreamSynchronize(stream_), "waiting for the GPU");
}

void make_current(Device device) {
  if (device.kind == DeviceKind::cuda) cuda::check(cudaSetDevice(device.index), "choosing a device");
}

CurrentDevice::CurrentDevice(Device device) {
  if (device.kind == DeviceKind::cpu) return;
  int current = 0;
  cuda::check(cudaGetDevice(&current), "asking for the current device");
  if (current == device.index) return;
  make_current(device);
  before_ = current;
}
CurrentDevice::~CurrentDevice() {
  if (before_ >= 0 && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
}

Event::Event(Device device) {
  if (device.kind == DeviceKind::cpu) return;
  const CurrentDevice current(device);
  cuda::check(cudaEventCreate(&event_), "making an event");
}
Event::Event(Event&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)), host_seconds_(other.host_seconds_) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(host_seconds_, other.host_seconds_);
  return *this;
}
Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}
void Event::record(const Stream& stream) {
  host_seconds_ = host_seconds();
  if (event_) cuda::check(cudaEventRecord(event_, stream.get()), "recording an event");
}
void Event::synchronize() const {
  if (event_) cuda::check(cudaEventSynchronize(event_), "waiting for the GPU");
}
double Event::seconds_since(const Event& earlier) const {
  if (!event_) return host_seconds_ - earlier.host_seconds_;
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "reading two events");
  return static_cast<double>(milliseconds) * 1e-3;
}

Graph::Graph(const Stream& stream, const std::function<void()>& work) {
  if (!stream.get()) throw Error("a CPU has no graphs", "Graph", "launch the work itself");
  cuda::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "beginning a graph");
  cudaGraph_t captured = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream.get(), &captured);
    if (captured) cudaGraphDestroy(captured);
    cudaGetLastError();  // clears the error of the failed capture, so that no later launch reports it
    throw;
  }
  cuda::check(cudaStreamEndCapture(stream.get(), &captured), "ending a graph");
  const cudaError_t status = cudaGraphInstantiate(&graph_, captured, 0);
  cudaGraphDestroy(captured);
  cuda::check(status, "instantiating a graph");
}
Graph::Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(graph_, other.graph_);
  return *this;
}
Graph::~Graph() {
  if (graph_) cudaGraphExecDestroy(graph_);
}
void Graph::launch(const Stream& stream) const {
  cuda::check(cudaGraphLaunch(graph_, stream.get()), "launching a graph");
}

void copy(const Tensor& to, const Tensor& from, const Stream& stream) {
  require_copyable(to, from);
  if (to.bytes() == 0) return;
  if (to.device.kind == DeviceKind::cpu && from.device.kind == DeviceKind::cpu) {
    std::memcpy(to.data, from.data, to.bytes());
  } else {
    cuda::check(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDefault, stream.get()),
                "copying a tensor");
  }
}

void clear(const Tensor& tensor, const Stream& stream) {
  require_contiguous_for_copy(tensor);
  if (tensor.bytes() == 0) return;
  if (tensor.device.kind == DeviceKind::cpu) {
    std::memset(tensor.data, 0, tensor.bytes());
  } else {
    cuda::check(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), stream.get()), "clearing a tensor");
  }
}

}  // namespace warpwright
