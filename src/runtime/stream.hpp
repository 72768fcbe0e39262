// Stream, Event, Graph: the order in which a device works. A CPU works in the order of the calls: its stream
// is null and everything on it has happened when the call returns.
#pragma once

#include <functional>

#include "core/tensor.hpp"

// CUDA's own names for a cudaStream_t, cudaEvent_t and cudaGraphExec_t, so that no CUDA header is needed
// here.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace warpwright {

using CudaStream = CUstream_st*;

class Stream {
 public:
  Stream() = default;  // of a CPU
  explicit Stream(Device device);
  // A stream whose owner keeps it alive; null is a GPU's default stream, or a CPU's.
  static Stream borrowed(Device device, CudaStream stream);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  CudaStream get() const { return stream_; }
  bool borrowed() const { return borrowed_; }
  // Returns when everything given to it so far is done; an Error if a kernel failed.
  void synchronize() const;

 private:
  CudaStream stream_ = nullptr;
  bool borrowed_ = false;
};

// Makes a GPU the calling thread's current one, as launches into its streams need. Does nothing for a CPU. A
// Context with its own stream does this for the thread that makes it. Nothing else in runtime/ changes the
// current GPU for longer than a call.
void make_current(Device device);

// The same while it lives. Its destructor restores the GPU that was current before.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device device);
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

 private:
  [[maybe_unused]] int before_ = -1;  // -1: this one was current
};

// A point in a stream's work, and the time when it is reached.
class Event {
 public:
  explicit Event(Device device);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  void record(const Stream& stream);
  // Returns when the recorded point is reached.
  void synchronize() const;
  // Seconds from an earlier event to this one, both reached.
  double seconds_since(const Event& earlier) const;

 private:
  [[maybe_unused]] CUevent_st* event_ = nullptr;  // in a build without CUDA
  double host_seconds_ = 0;                       // of a CPU
};

// Work captured once and launched as a whole. Captured calls must not allocate, synchronize or read what the
// device computes.
class Graph {
 public:
  Graph() = default;
  // Captures what `work` gives to the stream of a GPU.
  Graph(const Stream& stream, const std::function<void()>& work);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  explicit operator bool() const { return graph_ != nullptr; }
  void launch(const Stream& stream) const;

 private:
  CUgraphExec_st* graph_ = nullptr;
};

// Copies the elements of one contiguous tensor to another of the same dtype and count, on any devices, in the
// stream's order. From or to a GPU, the host's side must not change until the stream gets there. If it is
// pinned (Buffer::pinned), the host does not wait.
void copy(const Tensor& to, const Tensor& from, const Stream& stream);

// Sets every byte of a contiguous tensor to 0.
void clear(const Tensor& tensor, const Stream& stream);

}  // namespace warpwright
