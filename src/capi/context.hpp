// The opaque context of the C ABI: an operation Context and the choices for the latest problems.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "capi/handles.hpp"
#include "ops/norm/norm.hpp"

namespace warpwright::capi {

// The choices for the latest kKept problems. The number is limited because callers whose batches vary in size
// create ever new problems.
template <class A>
class Choices {
 public:
  struct Choice {
    typename A::Problem problem;
    ops::Choice<A> chosen{};
    std::size_t workspace = 0;
  };

  const Choice& of(const Context& context, const ops::Op<A>& op, const typename A::Problem& problem) {
    for (const Choice& made : made_) {
      if (made.chosen.variant && made.problem == problem) return made;
    }
    ops::Choice<A> chosen = ops::choose(context, op, problem);
    const std::size_t bytes = chosen.variant->workspace(problem, context.device());
    Choice& slot = made_[next_++ % kKept];
    slot = {problem, std::move(chosen),
            bytes > 0 ? bytes + kAlignment - 1 : 0};  // the caller's workspace need not be aligned
    return slot;
  }

 private:
  static constexpr std::size_t kKept = 32;
  std::array<Choice, kKept> made_{};
  std::size_t next_ = 0;
};

}  // namespace warpwright::capi

// Every member but the first starts empty.
struct warpwright_context {
  template <class A>
  using Choices = warpwright::capi::Choices<A>;

  warpwright::Context context;
  Choices<warpwright::ops::NormForward> norm_forward{};
  Choices<warpwright::ops::NormBackward> norm_backward{};
  std::atomic<bool> in_call = false;
};

namespace warpwright::capi {

// A context during one call. No other call can enter it meanwhile.
class ContextInCall {
 public:
  // Throws Error if the handle is invalid or if another call is using the context.
  ContextInCall(std::string_view function, const warpwright_context* handle)
      : ContextInCall(function, Handles<warpwright_context>::all().find(function, "context", handle)) {}
  ContextInCall(std::string_view function, std::shared_ptr<warpwright_context> context);
  ContextInCall(const ContextInCall&) = delete;
  ~ContextInCall() { context_->in_call.store(false, std::memory_order_release); }

  warpwright_context* operator->() const { return context_.get(); }
  warpwright_context& operator*() const { return *context_; }
  const std::shared_ptr<warpwright_context>& shared() const { return context_; }

 private:
  std::shared_ptr<warpwright_context> context_;
};

}  // namespace warpwright::capi
