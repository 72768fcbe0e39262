// A second stream of a device, for work that overlaps with that of the first.
#pragma once

#include "runtime/context.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

// A point in a stream's work for which other streams wait. The host does not. While a graph is captured, the
// graph's own points, and points outside of it, may be waited for; afterwards the graph's points may not.
class Milestone {
 public:
  explicit Milestone(Device device);
  Milestone(Milestone&& other) noexcept;
  Milestone& operator=(Milestone&&) = delete;
  ~Milestone();

  // The point is after everything that the stream was given so far.
  void set(const Stream& stream);
  // The stream's later work waits for the point. Without set() it does not wait.
  void hold(const Stream& stream) const;

 private:
  [[maybe_unused]] CUevent_st* event_ = nullptr;
  [[maybe_unused]] bool in_graph_ = false;
};

// A stream whose kernels begin before those of other streams; a CPU's is like any other.
class SideStream {
 public:
  explicit SideStream(Device device);
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream();

  const Stream& stream() const { return stream_; }

 private:
  Stream stream_;
};

// While it lives, the Context's operations go to another stream, which must outlive it.
class OnStream {
 public:
  OnStream(Context& context, const Stream& stream)
      : context_(context),
        before_(context.exchange_stream(Stream::borrowed(context.device().device, stream.get()))) {}
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;
  ~OnStream() { context_.set_stream(std::move(before_)); }

 private:
  Context& context_;
  Stream before_;
};

}  // namespace warpwright
