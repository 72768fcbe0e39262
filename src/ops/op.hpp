// An operation is a name and an ordered list of variants, fastest first and the reference last. A call
//   1. checks the arguments and reduces them to a Problem (shapes, dtypes, flags, alignment; no addresses),
//   2. chooses a variant for that problem, once per Context,
//   3. runs the variant. While the Context records, the call only notes what it would use.
//
// The arguments are a struct of Tensors and scalars with
//   template <class F> void visit(F&& f);   // f("x", x, Access::read) for each tensor
// The memory planner, the log, the search for non-finite values and the tests are all built on visit(). A
// Problem is comparable (==) and has describe(), flops() and bytes(): the least work that any variant must
// do.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.hpp"
#include "ops/kernel.hpp"
#include "runtime/context.hpp"

namespace warpwright::ops {

// The way a kernel stores a gradient: = or +=.
enum class Store : std::uint8_t { assign, add };
inline Access access_of(Store store) {
  return store == Store::add ? Access::update : Access::write;
}
inline std::string_view sign_of(Store store) {
  return store == Store::add ? "+=" : "=";
}

// "norm.forward cpu.avx512 N=3 C=40 fp32", and the same line with the call's time.
std::string call_line(std::string_view operation, std::string_view choice, const std::string& problem);
std::string timed_call_line(std::string_view operation, std::string_view choice, const std::string& problem,
                            double seconds);

// A kernel and its name in an operation's list.
template <class Args>
struct Variant {
  using Problem = typename Args::Problem;

  std::string_view name;
  const Kernel<Args>* kernel;

  // The reason why this variant does not run the problem; empty if it does.
  std::string refuse(const Problem& problem, const DeviceInfo& device) const {
    if (std::string reason = refuse_device(kernel->needs, device); !reason.empty()) return reason;
    if (!takes(problem.dtype)) return refuse_dtype(problem.dtype);
    return kernel->refuse ? kernel->refuse(problem, device).reason() : "";
  }
  bool takes(DType dtype) const { return kernel->dtypes.has(dtype); }
  Needs needs() const { return kernel->needs; }
  void run(const Context& context, const Args& args) const { kernel->run(context, args); }
  std::size_t workspace(const Problem& problem, const DeviceInfo& device) const {
    return kernel->workspace ? kernel->workspace(problem, device) : 0;
  }
  double cost(const Problem& problem, const DeviceInfo& device) const {
    return kernel->cost ? kernel->cost(problem, device) : 0;
  }
  std::string configuration(const Problem& problem, const DeviceInfo& device) const {
    return kernel->configuration ? kernel->configuration(problem, device) : "";
  }
  std::vector<Configuration> configurations(const Problem& problem, const DeviceInfo& device) const {
    if (kernel->configurations) return kernel->configurations(problem, device);
    return {{configuration(problem, device), cost(problem, device)}};
  }
};

inline constexpr std::string_view kReference = "reference";

template <class ArgsT>
struct Op {
  using Args = ArgsT;
  using Problem = typename Args::Problem;
  std::string_view name;  // "norm.forward"
  std::span<const Variant<Args>> variants;
  Problem (*problem)(const Args&);  // throws Error if the arguments do not fit together
};

// The result of a choice: the variant that runs, and its configuration.
template <class A>
struct Choice {
  const Variant<A>* variant = nullptr;  // null: none
  // For example "cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]". The log, the bench and the
  // plan's hash all use this text.
  std::string text;
  std::size_t workspace = 0;  // bytes of scratch that the variant needs with this configuration
};

std::string choice_text(std::string_view variant, const std::string& configuration);
template <class A>
Choice<A> choice_of(const Variant<A>& variant, const typename A::Problem& problem, const DeviceInfo& device) {
  return {&variant, choice_text(variant.name, variant.configuration(problem, device)),
          variant.workspace(problem, device)};
}

// The choice that the user forced for this operation, by its full name or by the part before the dot
// ("matmul" for "matmul.dw"); "" if there is none. It is a variant's name, or a name and a configuration:
// "cuda.ladder_streaming[block 256, cached]".
std::string_view forced_choice(const ForcedChoices& forced, std::string_view operation);
inline std::string_view forced_choice(const DeviceInfo& device, std::string_view operation) {
  return device.forced ? forced_choice(*device.forced, operation) : std::string_view();
}

[[noreturn]] void throw_refused(std::string_view operation, const std::string& problem,
                                const std::string& reasons, bool forced);

// A problem as a tuned table names it. Products of fp32 that may round to tf32 are problems of their own.
template <class Problem>
std::string tuned_problem(const Problem& problem, const DeviceInfo& device) {
  return problem.describe() + (device.tf32 ? " tf32" : "");
}

// The configuration that a kernel must take: the forced one, or the one that was measured to be the fastest
// choice. None if neither names this kernel.
template <class Problem>
std::optional<std::string_view> tuned_configuration(std::string_view operation, std::string_view kernel,
                                                    const Problem& problem, const DeviceInfo& device) {
  const auto [forced, forced_configuration] = parts_of(forced_choice(device, operation));
  if (forced == kernel && !forced_configuration.empty()) return forced_configuration;
  if (!device.tuned) return std::nullopt;
  return device.tuned->configuration(operation, tuned_problem(problem, device), kernel);
}

[[noreturn]] void throw_untunable(std::string_view operation, const std::string& problem,
                                  const std::string& choice);

// The measured choice; none if there is no measurement. Throws Error if this build cannot run it.
template <class A>
Choice<A> tuned_choice(const Op<A>& op, const typename A::Problem& problem, const DeviceInfo& device) {
  const std::string* text =
      device.tuned ? device.tuned->choice(op.name, tuned_problem(problem, device)) : nullptr;
  if (!text) return {};
  for (const auto& variant : op.variants) {
    if (parts_of(*text).kernel != variant.name) continue;
    if (!variant.refuse(problem, device).empty()) break;
    if (Choice<A> choice = choice_of(variant, problem, device); choice.text == *text) return choice;
  }
  throw_untunable(op.name, problem.describe(), *text);
}

// "it has block 128; block 256"
template <class A>
std::string list_configurations(const Variant<A>& variant, const typename A::Problem& problem,
                                const DeviceInfo& device) {
  std::string text;
  for (const Configuration& c : variant.configurations(problem, device)) {
    if (!c.text.empty()) text += (text.empty() ? "it has " : "; ") + c.text;
  }
  return text.empty() ? "it has none" : text;
}

// The choice for one problem: a pure function of the problem, the build and the device with its forced
// choices and its tuned table. The reference, and what is only_forced, are chosen only if they are forced.
template <class A>
Choice<A> choose(const DeviceInfo& device, const Op<A>& op, const typename A::Problem& problem) {
  const std::string_view forced = forced_choice(device, op.name);
  if (forced.empty()) {
    if (Choice<A> tuned = tuned_choice(op, problem, device); tuned.variant) return tuned;
  }
  const Variant<A>* best = nullptr;
  double best_cost = 0;
  std::string reasons;
  for (const auto& variant : op.variants) {
    const bool needs_force = variant.name == kReference || variant.kernel->only_forced;
    if (forced.empty() ? needs_force : variant.name != parts_of(forced).kernel) continue;
    const std::string reason = variant.refuse(problem, device);
    if (!reason.empty()) {
      if (!reasons.empty()) reasons += ", ";
      reasons += std::string(variant.name) + ": " + reason;
      continue;
    }
    const double cost = variant.cost(problem, device);
    if (!best || cost < best_cost) {
      best = &variant;
      best_cost = cost;
    }
  }
  if (!best && reasons.empty()) {
    reasons = "there is no variant " + std::string(parts_of(forced).kernel) + "; it has";
    for (const auto& variant : op.variants) (reasons += ' ') += variant.name;
  }
  if (!best) throw_refused(op.name, problem.describe(), reasons, !forced.empty());
  Choice<A> choice = choice_of(*best, problem, device);
  if (forced.size() > parts_of(forced).kernel.size() && choice.text != forced) {
    reasons = std::string(forced) + ": " + list_configurations(*best, problem, device);
    throw_refused(op.name, problem.describe(), reasons, true);
  }
  return choice;
}

template <class A>
Choice<A> choose(const Context& context, const Op<A>& op, const typename A::Problem& problem) {
  return choose(context.device(), op, problem);
}

template <class A>
std::vector<TensorUse> uses_of(A args) {
  std::vector<TensorUse> uses;
  args.visit([&](std::string_view argument, Tensor& tensor, Access access) {
    if (tensor) uses.push_back({argument, tensor, access});
  });
  return uses;
}

// The number of problems that one Context keeps for one operation. Only a model whose shapes vary from call
// to call has more.
inline constexpr std::size_t kKeptProblems = 64;

// A problem that a Context has met, and what was derived from it.
template <class Problem, class T>
struct Met {
  Problem problem;
  T derived;
};
template <class Problem, class T>
std::vector<Met<Problem, T>>& met_problems(const Context& context, const void* owner) {
  return made_in<std::vector<Met<Problem, T>>>(context.derived(owner));
}
template <class A>
const auto& met_problems(const Context& context, const Op<A>& op) {
  return met_problems<typename A::Problem, Choice<A>>(context, &op);
}

// Returns what derive() derives from the problem. It is called only if the Context does not keep the result
// yet. The reference is valid until the owner's next call.
template <class Problem, class Derive, class T = std::invoke_result_t<Derive>>
const T& derived(const Context& context, const void* owner, const Problem& problem, Derive&& derive) {
  std::vector<Met<Problem, T>>& list = met_problems<Problem, T>(context, owner);
  for (const Met<Problem, T>& met : list) {
    if (met.problem == problem) return met.derived;
  }
  T made = derive();
  if (list.size() == kKeptProblems) list.erase(list.begin(), list.begin() + kKeptProblems / 2);
  list.push_back({problem, std::move(made)});
  return list.back().derived;
}

// The choice for a problem.
template <class A>
const Choice<A>& planned(const Context& context, const Op<A>& op, const typename A::Problem& problem) {
  return derived(context, &op, problem, [&] { return choose(context, op, problem); });
}

// One processor does this much work in about ten microseconds. Waking the other threads and waiting for them
// takes as long, and it takes milliseconds if another program occupies one of their processors.
inline constexpr double kLittleFlops = 5e5, kLittleBytes = 1e6;

// While it lives, the Context uses one thread if the call has little work, and all threads otherwise. It also
// claims those threads for the calling thread. Results do not depend on the number of threads.
class CallThreads {
 public:
  CallThreads(Context& context, double flops, double bytes);
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;
  ~CallThreads() { context_.exchange_single_thread(before_); }

 private:
  Context& context_;
  bool before_;
};

// Runs the choice for this problem. The Context must already hold the scratch that the variant needs.
template <class A>
void run(Context& context, const Op<A>& op, const Choice<A>& choice, const typename A::Problem& problem,
         const A& args) {
  const CallThreads threads(context, problem.flops(), problem.bytes());
  if (!context.timer() && !context.options().verbose && !context.inspector()) {
    choice.variant->run(context, args);
    return;
  }
  Event start(context.device().device), end(context.device().device);
  start.record(context.stream());
  choice.variant->run(context, args);
  end.record(context.stream());
  context.synchronize();
  const double seconds = end.seconds_since(start);
  if (context.options().verbose) {
    context.log(timed_call_line(op.name, choice.text, problem.describe(), seconds));
  }
  if (context.timer()) {
    const std::string text = problem.describe();
    context.timer()({op.name, choice.text, text, problem.dtype, seconds, problem.flops(), problem.bytes()});
  }
  if (context.inspector()) context.inspector()(op.name, uses_of(args));
}

template <class A>
void call(Context& context, const Op<A>& op, const A& args) {
  const typename A::Problem problem = op.problem(args);
  const Choice<A>& choice = planned(context, op, problem);
  if (Recorder* recorder = context.recorder()) {
    context.note_choice(call_line(op.name, choice.text, problem.describe()));
    recorder->call(op.name, uses_of(args), choice.workspace);
    return;
  }
  context.reserve_scratch(choice.workspace);  // allocates only if no plan was made before
  run(context, op, choice, problem, args);
}

// For problem() functions: each throws one clear error if an argument does not fit.
void require(bool condition, std::string_view operation, const std::string& what);
void require_shape(std::string_view operation, std::string_view argument, const Tensor& tensor,
                   const Shape& shape);
void require_dtype(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype);
void require_contiguous(std::string_view operation, std::string_view argument, const Tensor& tensor);
// Requires that the tensor is given, and all three properties.
void require_tensor(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype,
                    const Shape& shape);

// True if every tensor that is given begins at a multiple of 16 bytes. Kernels that move packs of 16 bytes
// need this, so it is part of their problems.
template <class... T>
bool begin_at_packs(const T&... tensors) {
  return ((reinterpret_cast<std::uintptr_t>(tensors.data) % 16 == 0) && ...);
}
// describe() ends with this note if the tensors are not aligned.
inline std::string_view unaligned_note(bool aligned) {
  return aligned ? "" : " unaligned";
}

// The dtype of statistics, losses and parameter gradients: fp64 for fp64 data, otherwise fp32.
inline DType accumulation_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace warpwright::ops
