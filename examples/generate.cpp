// generate MODEL TEXT…: continues all texts at once, and prints each when it ends. MODEL is the folder of a
// GPT-2, Llama, Mistral, Qwen2, Qwen3 or GPT-NeoX with its tokenizer.
#include <warpwright/warpwright.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

static void check(warpwright_status status) {
  if (status == WARPWRIGHT_OK) return;
  std::fprintf(stderr, "generate: %s\n", warpwright_last_error());
  std::exit(1);
}

int main(int count, char** arguments) {
  if (count < 3) return std::fprintf(stderr, "usage: generate MODEL TEXT...\n"), 2;
  const bool gpu = warpwright_cuda_device_count() > 0;
  const warpwright_context_options place = {.size = sizeof place,
                                            .device = gpu ? WARPWRIGHT_DEVICE_CUDA : WARPWRIGHT_DEVICE_CPU};
  warpwright_context* context = nullptr;
  check(warpwright_context_create(&place, &context));
  const warpwright_decoder_options options = {
      .size = sizeof options, .folder = arguments[1], .dtype = WARPWRIGHT_DTYPE_OF_MODEL};
  warpwright_decoder* decoder = nullptr;
  check(warpwright_decoder_create(context, &options, &decoder));

  std::map<int64_t, std::string> texts;  // of the sequences that have not ended
  for (int i = 2; i < count; ++i) {
    const warpwright_decoder_add_args args = {.size = sizeof args,
                                              .text = arguments[i],
                                              .text_bytes = std::strlen(arguments[i]),
                                              .max_tokens = 30,
                                              .temperature = 0.8,
                                              .top_k = 40,
                                              .top_p = 1,
                                              .repetition_penalty = 1};
    int64_t sequence = 0;
    check(warpwright_decoder_add(decoder, &args, &sequence));
    texts[sequence] = arguments[i];
  }
  while (!texts.empty()) {
    int64_t events = 0;
    check(warpwright_decoder_step(decoder, &events));
    for (int64_t i = 0; i < events; ++i) {
      warpwright_decoder_event event = {.size = sizeof event};
      check(warpwright_decoder_get_event(decoder, i, &event));
      std::string& text = texts[event.sequence];
      text.append(event.text, event.text_bytes);
      if (event.end == WARPWRIGHT_NOT_ENDED) continue;
      text += '\n';
      std::fwrite(text.data(), 1, text.size(), stdout);
      if (*event.error) std::fprintf(stderr, "generate: %s\n", event.error);
      texts.erase(event.sequence);
    }
  }
  warpwright_decoder_destroy(decoder);
  warpwright_context_destroy(context);
}
