// Context: what an operation is given besides its arguments (device, threads, scratch, how variants are
// chosen).
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/memory.hpp"
#include "runtime/stream.hpp"
#include "runtime/tuned.hpp"

namespace warpwright {

using LogCallback = std::function<void(std::string_view line)>;

struct ContextOptions {
  int threads = 0;  // of the CPU; 0: default_threads()
  ForcedChoices force;
  bool tf32 = false;                        // fp32 products may round their factors to tf32 (GPU)
  std::shared_ptr<const TunedTable> tuned;  // measured choices, which come before predicted ones; null: none
  bool verbose = false;                     // a log line per call
  LogCallback log;                          // where lines go; unset: nowhere

  // WARPWRIGHT_FORCE=op=choice,… and WARPWRIGHT_VERBOSE=1.
  static ContextOptions from_environment();
};

class Context {
 public:
  // With a stream of its own. Makes a GPU the calling thread's current one. Throws if the number of threads
  // is invalid, if the system does not grant them (runtime/threads.hpp), or if there is no such device.
  explicit Context(ContextOptions options = ContextOptions::from_environment(), Device device = {});
  // With a stream of the device's, whose owner must make its GPU current before the Context is used.
  Context(ContextOptions options, Device device, Stream stream);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  // Waits for its own stream if a kernel keeps state, because a GPU may still use it. A borrowed stream may
  // be gone: its owner waits first.
  ~Context();

  const DeviceInfo& device() const { return device_; }
  // Threads of the present call: on a CPU one if its work is little (ops/op.hpp). Inlined in every build, as
  // scratch() is: code for one instruction set must not define functions that other code may call.
  [[gnu::always_inline]] int threads() const { return single_thread_ ? 1 : device_.threads; }
  // Sets whether calls run on the calling thread alone. Returns the previous setting.
  bool exchange_single_thread(bool single) { return std::exchange(single_thread_, single); }
  void set_threads(int threads);  // of a CPU; 0 as in the options
  const ContextOptions& options() const { return options_; }
  // Replaces the measured choices. Choices made before are forgotten.
  void set_tuned(std::shared_ptr<const TunedTable> tuned);

  // The stream that operations run on. On a GPU they return before their work is done.
  const Stream& stream() const { return stream_; }
  void set_stream(Stream stream) { stream_ = std::move(stream); }
  // Sets the stream and returns the previous one.
  Stream exchange_stream(Stream stream) { return std::exchange(stream_, std::move(stream)); }
  void synchronize() const { stream_.synchronize(); }
  void log(std::string_view line) const;

  // Scratch of the present call, kAlignment-aligned; its contents do not outlive the call.
  [[gnu::always_inline]] void* scratch() const { return lent_scratch_ ? lent_scratch_ : scratch_.data(); }
  void reserve_scratch(std::size_t bytes);
  std::size_t scratch_bytes() const { return scratch_.bytes(); }
  // Scratch that the caller owns, large enough for the calls to come; null: the Context's own.
  void lend_scratch(void* memory) { lent_scratch_ = memory; }

  // While a recorder is set, operations note what they would use and do nothing else.
  Recorder* recorder() const { return recorder_; }
  void set_recorder(Recorder* recorder) { recorder_ = recorder; }

  // Called after every operation that ran, with what it used: how a trainer looks for the first non-finite
  // tensor.
  using Inspector = std::function<void(std::string_view operation, const std::vector<TensorUse>& uses)>;
  const Inspector& inspector() const { return inspector_; }

  // Called after every operation that ran: how `bench step` takes its table.
  struct CallRecord {
    std::string_view operation, variant;
    const std::string& problem;
    DType dtype;
    double seconds, flops, bytes;  // on the device; the least work that any variant must do
  };
  using Timer = std::function<void(const CallRecord&)>;
  const Timer& timer() const { return timer_; }

  // Results derived from the problems of the latest calls (ops/op.hpp), such as an operation's choices. The
  // owner is a unique address. Other measured choices or another number of threads
  // invalidate them.
  std::any& derived(const void* owner) const { return derived_[owner]; }
  // Notes the choice of a call that was recorded.
  void note_choice(std::string line) { choice_lines_.insert(std::move(line)); }
  // A hash over the choices noted, which a checkpoint records: equal hashes mean that a resumed run uses the
  // same kernels. Calls outside of a recording do not count, so a Context that meets new shapes does not
  // grow.
  std::uint64_t plan_hash() const;

  // State that a kernel keeps between calls (a library's plans), keyed by a unique address.
  std::any& kept(const void* owner) const { return kept_[owner]; }

 private:
  friend class Inspecting;
  friend class Timing;
  friend class Trial;

  ContextOptions options_;
  DeviceInfo device_;
  bool single_thread_ = false;
  Stream stream_;
  Buffer scratch_;
  void* lent_scratch_ = nullptr;
  Recorder* recorder_ = nullptr;
  Inspector inspector_;
  Timer timer_;
  mutable std::map<const void*, std::any> derived_;
  std::set<std::string> choice_lines_;
  mutable std::map<const void*, std::any> kept_;
};

// The T in a slot of Context::derived() or Context::kept(). It is made if the slot is empty.
template <class T>
T& made_in(std::any& slot) {
  if (!slot.has_value()) slot = std::make_shared<T>();
  return **std::any_cast<std::shared_ptr<T>>(&slot);
}

// While it lives, the Context has this inspector. An exception ends it, too, so no call reaches a function
// whose variables are gone.
class Inspecting {
 public:
  Inspecting(Context& context, Context::Inspector inspector);
  Inspecting(const Inspecting&) = delete;
  Inspecting& operator=(const Inspecting&) = delete;
  ~Inspecting() { context_.inspector_ = std::move(before_); }

 private:
  Context& context_;
  Context::Inspector before_;
};

// The same for the timer.
class Timing {
 public:
  Timing(Context& context, Context::Timer timer);
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
  ~Timing() { context_.timer_ = std::move(before_); }

 private:
  Context& context_;
  Context::Timer before_;
};

// While it lives, plans are made that may not be carried out: at its end the Context forgets their choices.
class Trial {
 public:
  explicit Trial(Context& context) : context_(context), before_(context.choice_lines_) {}
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() { context_.choice_lines_ = std::move(before_); }

 private:
  Context& context_;
  std::set<std::string> before_;
};

}  // namespace warpwright
