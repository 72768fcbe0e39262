#include <stdio.h>
#include <warpwright/warpwright.h>

int main(void) {
  const float x[4] = {1, -1, 1, -1};
  float out[4];
  warpwright_context* context = NULL;
  const warpwright_context_options options = {.size = sizeof options, .device = WARPWRIGHT_DEVICE_CPU};
  const warpwright_norm_forward_args args = {.size = sizeof args,
                                             .rows = 1,
                                             .columns = 4,
                                             .x = x,
                                             .out = out,
                                             .x_dtype = WARPWRIGHT_F32,
                                             .parameter_dtype = WARPWRIGHT_F32,
                                             .out_dtype = WARPWRIGHT_F32};
  if (warpwright_context_create(&options, &context) != WARPWRIGHT_OK ||
      warpwright_layernorm_forward(context, &args) != WARPWRIGHT_OK) {
    fprintf(stderr, "%s\n", warpwright_last_error());
    return 1;
  }
  warpwright_context_destroy(context);
  return out[0] == 1 && out[1] == -1 ? 0 : 1;
}
