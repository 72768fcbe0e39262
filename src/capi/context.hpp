// The opaque context of the C ABI: an operation Context that serves one call at a time.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>

#include "capi/handles.hpp"
#include "runtime/context.hpp"

struct warpwright_context {
  warpwright::Context context;
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

// An encoder or a decoder during one call. Its context is in the same call.
template <class Model>
class ModelInCall {
 public:
  ModelInCall(std::string_view function, std::string_view argument, const Model* handle)
      : model_(Handles<Model>::all().find(function, argument, handle)), context_(function, model_->owner) {}
  Model* operator->() const { return model_.get(); }
  Model& operator*() const { return *model_; }

 private:
  std::shared_ptr<Model> model_;
  ContextInCall context_;
};

// The options of a context's model, which has a Context of its own.
ContextOptions options_of_model(const warpwright_context& owner, bool tf32);

}  // namespace warpwright::capi
