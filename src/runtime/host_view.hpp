// HostView: a tensor as the host may read and write it: itself on a CPU, a copy of a GPU's.
#pragma once

#include "runtime/memory.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

enum class HostMemory : std::uint8_t { pageable, pinned };

class HostView {
 public:
  HostView() = default;
  // `tensor` must be contiguous and outlive this. Pinned: uploads and downloads do not keep the host waiting.
  explicit HostView(const Tensor& tensor, HostMemory memory = HostMemory::pageable) : device_(tensor) {
    host_ = tensor;
    if (tensor.device.kind == DeviceKind::cpu) return;
    buffer_ = memory == HostMemory::pinned ? Buffer::pinned(tensor.bytes(), "pinned host memory")
                                           : Buffer(tensor.bytes(), Device{}, "host memory");
    host_ = Tensor(buffer_.data(), tensor.dtype, tensor.shape);
  }

  // On the host. upload() gives what is written here to the tensor; download() brings what the device
  // computed, once the stream has got there.
  const Tensor& tensor() const { return host_; }
  void upload(const Stream& stream) const {
    if (buffer_.data()) copy(device_, host_, stream);
  }
  void download(const Stream& stream) const {
    if (buffer_.data()) copy(host_, device_, stream);
  }

 private:
  Tensor device_, host_;
  Buffer buffer_;
};

// A copy of a tensor, made after the stream has done everything that it was given so far.
inline HostView downloaded(const Tensor& tensor, const Stream& stream) {
  HostView view(tensor);
  view.download(stream);
  stream.synchronize();
  return view;
}

// Calls write(host tensor) and gives the device what it wrote, after everything that the stream was given so
// far.
template <class F>
void write_on_host(const Tensor& tensor, const Stream& stream, F&& write) {
  const HostView view(tensor);
  write(view.tensor());
  view.upload(stream);
  stream.synchronize();
}

}  // namespace warpwright
