#include "runtime/side_stream.hpp"

#include <cuda_runtime.h>

#include <utility>

#include "runtime/cuda/check.hpp"

namespace warpwright {
namespace {

cudaStream_t urgent_stream(Device device) {
  if (device.kind == DeviceKind::cpu) return nullptr;
  const CurrentDevice current(device);
  int least = 0, greatest = 0;
  cudaStream_t made = nullptr;
  cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
  cuda::check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest), "making a stream");
  return made;
}

bool is_capturing(const Stream& stream) {
  cudaStreamCaptureStatus status{};
  cuda::check(cudaStreamIsCapturing(stream.get(), &status), "asking a stream");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Milestone::Milestone(Device device) {
  if (device.kind == DeviceKind::cpu) return;
  const CurrentDevice current(device);
  cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
}
Milestone::Milestone(Milestone&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)), in_graph_(other.in_graph_) {}
Milestone::~Milestone() {
  if (event_) cudaEventDestroy(event_);
}
void Milestone::set(const Stream& stream) {
  if (!event_) return;
  in_graph_ = is_capturing(stream);
  cuda::check(cudaEventRecord(event_, stream.get()), "recording an event");
}
void Milestone::hold(const Stream& stream) const {
  if (!event_) return;
  const bool from_outside = !in_graph_ && is_capturing(stream);
  cuda::check(cudaStreamWaitEvent(stream.get(), event_, from_outside ? cudaEventWaitExternal : 0),
              "ordering two streams");
}

SideStream::SideStream(Device device) : stream_(Stream::borrowed(device, urgent_stream(device))) {}
SideStream::~SideStream() {
  if (stream_.get()) cudaStreamDestroy(stream_.get());
}

}  // namespace warpwright
