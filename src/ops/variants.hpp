// Turns a list of kernels' names into an operation's list of variants.
#pragma once

#include <utility>
#include <vector>

#include "ops/op.hpp"
#include "ops/registry.hpp"

namespace warpwright::ops {

// True if this build contains the kernel of that name.
consteval bool is_built([[maybe_unused]] std::string_view name) {
#if !WARPWRIGHT_CUDA
  if (name.starts_with("cuda.")) return false;
#endif
#if !WARPWRIGHT_LADDER
  if (name.starts_with("cuda.ladder_")) return false;
#endif
#if !WARPWRIGHT_ONEDNN
  if (name == "cpu.onednn") return false;
#endif
  return true;
}

#ifdef __clang__
#pragma clang diagnostic ignored "-Wundefined-var-template"  // each kernel's file defines its own object
#endif

template <class Args, const auto& names, std::size_t i>
void add_variant(std::vector<Variant<Args>>& list) {
  if constexpr (is_built(names[i])) {
    list.push_back({names[i], &KernelOf<Args, kernel_name(names[i])>::value});
  }
}

// An operation whose variants are the kernels of these names, in this order. Names that this build lacks are
// left out.
template <class Args, const auto& names>
const Op<Args>& operation(std::string_view name) {
  static const std::vector<Variant<Args>> list = []<std::size_t... i>(std::index_sequence<i...>) {
    std::vector<Variant<Args>> built;
    (add_variant<Args, names, i>(built), ...);
    return built;
  }
  (std::make_index_sequence<std::size(names)>());
  static const Op<Args> op{name, list, [](const Args& args) { return args.problem(); }};
  return op;
}

}  // namespace warpwright::ops
