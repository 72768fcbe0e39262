// Kernels that run other operations' kernels one after the other. The operations of a problem p, each with
// its own problem, are its parts: parts_of(p) returns a tuple of Part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>

#include "ops/op.hpp"

namespace warpwright::ops {

template <class A>
struct Part {
  const Op<A>& op;
  typename A::Problem problem;
};
template <class A>
Part(const Op<A>&, const typename A::Problem&) -> Part<A>;

// The workspace and the configuration of a kernel that runs the selector's kernel of each part.
template <class Problem>
std::size_t workspace_of_parts(const Problem& p, const DeviceInfo& device) {
  const auto of = [&](const auto& part) { return choose(device, part.op, part.problem).workspace; };
  return std::apply([&](const auto&... part) { return std::max({of(part)...}); }, parts_of(p));
}
template <class Problem>
std::string configuration_of_parts(const Problem& p, const DeviceInfo& device) {
  std::string text;
  const auto add = [&](const auto& part) {
    text += (text.empty() ? "" : ", ") + choose(device, part.op, part.problem).text;
  };
  std::apply([&](const auto&... part) { (add(part), ...); }, parts_of(p));
  return text;
}

// True if the user forced a kernel of a part. Only a kernel that runs the parts obeys.
template <class Problem>
bool forces_parts(const Problem& p, const DeviceInfo& device) {
  return std::apply(
      [&](const auto&... part) { return (!forced_choice(device, part.op.name).empty() || ...); },
      parts_of(p));
}
inline constexpr const char* kPartsForced = "a kernel of one of its parts alone is forced";

template <class A>
void run_part(const Context& context, const Op<A>& op, const A& args) {
  planned(context, op, op.problem(args)).variant->run(context, args);
}

// The same for the oracle, which runs the oracle of each part.
template <class Problem>
std::size_t workspace_of_oracles(const Problem& p, const DeviceInfo& device) {
  const auto of = [&](const auto& part) { return part.op.variants.back().workspace(part.problem, device); };
  return std::apply([&](const auto&... part) { return std::max({of(part)...}); }, parts_of(p));
}
template <class A>
void run_oracle_of_part(const Context& context, const Op<A>& op, const A& args) {
  op.variants.back().run(context, args);
}

}  // namespace warpwright::ops
