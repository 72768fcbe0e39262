#include "ops/registry.hpp"

#include <algorithm>
#include <set>

#include "ops/adamw/adamw.hpp"
#include "ops/attention/attention.hpp"
#include "ops/bias_residual_layernorm/bias_residual_layernorm.hpp"
#include "ops/classifier/classifier.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/embedding_layernorm/embedding_layernorm.hpp"
#include "ops/gelu/gelu.hpp"
#include "ops/global_norm/global_norm.hpp"
#include "ops/layernorm/layernorm.hpp"
#include "ops/matmul/matmul.hpp"
#include "ops/padding/padding.hpp"
#include "ops/pooling/pooling.hpp"
#include "ops/residual/residual.hpp"
#include "ops/residual_layernorm/residual_layernorm.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"

namespace warpwright::ops {
namespace {

// Of the reasons for the different dtypes, one that a device with every instruction set would not give: it is
// about this device.
template <class P, class A>
std::string refusal_of(const Variant<P, A>& variant, P typical, const DeviceInfo& device) {
  const bool for_gpus = variant.name.substr(0, 5) == "cuda.";
  if (for_gpus != (device.device.kind == DeviceKind::cuda)) return variant.refuse(typical, device);
  DeviceInfo complete = device;
  complete.cpu = {true, true, true};
  complete.gpu = {9, 0, 132, 227 << 10, 228 << 10};
  complete.tf32 = true;
  std::string about_device, about_problem;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    typical.dtype = dtype;
    const std::string reason = variant.refuse(typical, device);
    if (reason.empty()) return "";
    std::string& kept = variant.refuse(typical, complete).empty() ? about_device : about_problem;
    if (kept.empty()) kept = reason;
  }
  return about_device.empty() ? about_problem : about_device;
}

// `typical`: sizes that no variant refuses.
template <class P, class A>
OpInfo describe(const Op<P, A>& op, const P& typical, const DeviceInfo& device) {
  OpInfo info{op.name, {}};
  for (const auto& variant : op.variants) {
    info.variants.push_back({variant.name, refusal_of(variant, typical, device)});
  }
  return info;
}

std::string_view folder_of(std::string_view operation) {
  return operation.substr(0, operation.find('.'));
}

void check_variant_name(const OpInfo& op, std::string_view variant) {
  std::vector<std::string_view> names;
  for (const VariantInfo& known : op.variants) names.push_back(known.name);
  if (std::find(names.begin(), names.end(), variant) != names.end()) return;
  throw UsageError(fmt::format("{} has no variant '{}'", op.name, variant), "WARPWRIGHT_FORCE",
                   fmt::format("use one of: {}", fmt::join(names, ", ")));
}

}  // namespace

std::vector<OpInfo> all_ops(const DeviceInfo& device) {
  return {
      describe(adamw_op(), {768, 1}, device),
      describe(attention_backward_op(), {1, 64, 64, 12, 64}, device),
      describe(attention_forward_op(), {1, 64, 64, 12, 64}, device),
      describe(bias_residual_layernorm_forward_op(), {64, 768}, device),
      describe(classifier_op(), {64, 50257, 50304}, device),
      describe(embedding_backward_op(), {64, 768, 50304, 1024}, device),
      describe(embedding_forward_op(), {64, 768, 50304, 1024}, device),
      describe(embedding_layernorm_forward_op(), {64, 768, 30522, 512}, device),
      describe(gelu_backward_op(), {768, DType::f32, Activation::gelu_tanh, true}, device),
      describe(gelu_forward_op(), {768, DType::f32, Activation::gelu_tanh, false}, device),
      describe(global_norm_op(), {768, 1}, device),
      describe(layernorm_backward_op(), {{64, 768}}, device),
      describe(layernorm_forward_op(), {{64, 768}}, device),
      describe(matmul_dw_op(), {16, 768, 768}, device),
      describe(matmul_dx_op(), {16, 768, 768}, device),
      describe(matmul_forward_op(), {16, 768, 768}, device),
      describe(padding_lengths_op(), {4, 64}, device),
      describe(padding_pack_op(), {64, 256, 768}, device),
      describe(padding_unpack_op(), {64, 256, 768}, device),
      describe(pooling_forward_op(), {64, 1, 768}, device),
      describe(residual_backward_op(), {768, DType::f32, true}, device),
      describe(residual_forward_op(), {768, DType::f32, false}, device),
      describe(residual_layernorm_forward_op(), {64, 768}, device),
      describe(rmsnorm_backward_op(), {{64, 768}}, device),
      describe(rmsnorm_forward_op(), {{64, 768}}, device),
  };
}

void check_forced_names(const ContextOptions& options) {
  const std::vector<OpInfo> ops = all_ops(cpu_device_info());
  std::set<std::string_view> names;
  for (const OpInfo& op : ops) names.insert({folder_of(op.name), op.name});
  for (const auto& [name, variant] : options.force) {
    if (names.count(name)) continue;
    throw UsageError(fmt::format("there is no operation '{}'", name), "WARPWRIGHT_FORCE",
                     fmt::format("use one of: {}", fmt::join(names, ", ")));
  }
  for (const OpInfo& op : ops) {
    const std::string_view forced = forced_variant(options, op.name);
    if (!forced.empty()) check_variant_name(op, forced);
  }
}

}  // namespace warpwright::ops
