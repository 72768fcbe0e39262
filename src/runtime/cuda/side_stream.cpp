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

}  // namespace

Milestone::Milestone(Device device) {
  if (device.kind == DeviceKind::cpu) return;
  const CurrentDevice current(device);
  cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
}
Milestone::Milestone(Milestone&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Milestone::~Milestone() {
  if (event_) cudaEventDestroy(event_);
}
void Milestone::set(const Stream& stream) {
  if (event_) cuda::check(cudaEventRecord(event_, stream.get()), "recording an event");
}
void Milestone::hold(const Stream& stream) const {
  if (event_) cuda::check(cudaStreamWaitEvent(stream.get(), event_, 0), "ordering two streams");
}

SideStream::SideStream(Device device) : stream_(Stream::borrowed(device, urgent_stream(device))) {}
SideStream::~SideStream() {
  if (stream_.get()) cudaStreamDestroy(stream_.get());
}

}  // namespace warpwright
