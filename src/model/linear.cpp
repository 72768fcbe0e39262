#include "model/linear.hpp"

#include "ops/int8_linear/int8_linear.hpp"

namespace warpwright {

void linear_forward(Context& context, const Linear& layer, ops::MatmulForward args) {
  args.weight = layer.weight;
  args.packed = layer.packed;
  if (!layer.int8) return matmul_forward(context, args);
  ops::require(!args.preact && args.scale == 1, "linear", "a product in int8 has neither preact nor a scale");
  ops::int8_linear(context, {.x = args.x,
                             .weight = args.weight,
                             .bias = args.bias,
                             .out = args.out,
                             .activation = args.activation,
                             .packed = args.packed,
                             .residual = args.residual});
}

void gated_linear_forward(Context& context, const Linear& layer, ops::GatedForward args) {
  args.weight = layer.weight;
  args.bias = layer.bias;
  args.packed = layer.packed;
  if (!layer.int8) return gated_forward(context, args);
  linear_forward(context, layer, ops::gated_linear::product_of(args));
  gate_forward(context, ops::gated_linear::gate_of(args));
}

void rotated_linear_forward(Context& context, const Linear& layer, ops::RotatedForward args) {
  args.weight = layer.weight;
  args.bias = layer.bias;
  args.packed = layer.packed;
  if (!layer.int8) return rotated_forward(context, args);
  linear_forward(context, layer, ops::rotated_linear::product_of(args));
  rope_forward(context, ops::rotated_linear::rope_of(args));
}

}  // namespace warpwright
