// embed MODEL TEXT: prints the vector of a text. MODEL is the folder of a BERT-family model with its
// tokenizer.
#include <warpwright/warpwright.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(warpwright_status status) {
  if (status == WARPWRIGHT_OK) return;
  std::fprintf(stderr, "embed: %s\n", warpwright_last_error());
  std::exit(1);
}

int main(int count, char** arguments) {
  if (count != 3) return std::fprintf(stderr, "usage: embed MODEL TEXT\n"), 2;
  const bool gpu = warpwright_cuda_device_count() > 0;
  const warpwright_context_options place = {.size = sizeof place,
                                            .device = gpu ? WARPWRIGHT_DEVICE_CUDA : WARPWRIGHT_DEVICE_CPU};
  warpwright_context* context = nullptr;
  check(warpwright_context_create(&place, &context));
  const warpwright_encoder_options options = {
      .size = sizeof options, .folder = arguments[1], .dtype = WARPWRIGHT_F32};
  warpwright_encoder* encoder = nullptr;
  check(warpwright_encoder_create(context, &options, &encoder));
  warpwright_encoder_info info = {.size = sizeof info};
  check(warpwright_encoder_get_info(encoder, &info));
  std::vector<float> vector(static_cast<std::size_t>(info.vector_size));
  const warpwright_encoder_texts_args texts = {
      .size = sizeof texts, .count = 1, .texts = arguments + 2, .out = vector.data()};
  check(warpwright_encoder_texts(encoder, &texts));
  for (const float x : vector) std::printf("%.9g\n", x);
  warpwright_encoder_destroy(encoder);
  warpwright_context_destroy(context);
}
