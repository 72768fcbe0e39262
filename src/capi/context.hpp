// The opaque context of the C ABI: an operations' Context, with the variants chosen for the latest problems.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "capi/handles.hpp"
#include "ops/norm/norm.hpp"

namespace warpwright::capi {

// The choices for the latest kKept problems. Callers with batches of ever new sizes make no end of problems,
// so that they are not all remembered.
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
            bytes > 0 ? bytes + kAlignment - 1 : 0};  // the caller's need not be aligned
    return slot;
  }

 private:
  static constexpr std::size_t kKept = 32;
  std::array<Choice, kKept> made_{};
  std::size_t next_ = 0;
};

}  // namespace warpwright::capi

// All members but the first begin empty.
struct warpwright_context {
  template <class A>
  using Choices = warpwright::capi::Choices<A>;

  warpwright::Context context;
  Choices<warpwright::ops::NormForward> norm_forward{};
  Choices<warpwright::ops::NormBackward> norm_backward{};
  std::atomic<bool> in_call = false;
};

namespace warpwright::capi {

// A context during one call, which no other call is then in.
class ContextInCall {
 public:
  // Throws Error for a handle that is none, and for a context that a call is in.
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
