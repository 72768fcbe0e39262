/* Tests decoders through the C ABI: decoder_test FOLDER PROGRAM DEVICE, the model of tests/tiny_gpt2.hpp,
 * warpwright's program, whose greedy text a decoder must equal, and cpu or cuda. Compares sequences that run
 * together with the same ones alone, and makes a caller's mistakes. */
#define _POSIX_C_SOURCE 200809L /* popen */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "warpwright/warpwright.h"

static int failures = 0;

static void check(bool condition, const char* what, int line) {
  if (condition) return;
  fprintf(stderr, "decoder_test.c:%d: %s (last error: %s)\n", line, what, warpwright_last_error());
  ++failures;
}
#define CHECK(condition) check(condition, #condition, __LINE__)

static void check_status(warpwright_status status, warpwright_status wanted, const char* word, int line) {
  if (status == wanted && strstr(warpwright_last_error(), word)) return;
  fprintf(stderr, "decoder_test.c:%d: %s, wanted %s; \"%s\" should name \"%s\"\n", line,
          warpwright_status_name(status), warpwright_status_name(wanted), warpwright_last_error(), word);
  ++failures;
}
#define CHECK_REFUSED(call, word) check_status(call, WARPWRIGHT_INVALID_ARGUMENT, word, __LINE__)

enum {
  kMostText = 256,
  kMostIds = 64,
  kMostSequences = 16,
  kEndOfText = 256,
  kVocabulary = 259,
  kContext = 48
};

static warpwright_decoder_add_args greedy(const char* text, int64_t max_tokens) {
  const warpwright_decoder_add_args args = {.size = sizeof args,
                                            .text = text,
                                            .text_bytes = strlen(text),
                                            .max_tokens = max_tokens,
                                            .temperature = 0,
                                            .top_p = 1,
                                            .repetition_penalty = 1};
  return args;
}

static warpwright_decoder_add_args sampled(const char* text, int64_t max_tokens, uint64_t seed) {
  warpwright_decoder_add_args args = greedy(text, max_tokens);
  args.temperature = 1.5;
  args.seed = seed;
  return args;
}

static warpwright_decoder* open_folder(warpwright_context* context, const char* folder, int64_t sequences,
                                       int64_t cache_tokens) {
  warpwright_decoder* decoder = NULL;
  const warpwright_decoder_options options = {.size = sizeof options,
                                              .folder = folder,
                                              .sequences = sequences,
                                              .cache_tokens = cache_tokens,
                                              .dtype = WARPWRIGHT_DTYPE_OF_MODEL,
                                              .batch_invariant = 1};
  CHECK(warpwright_decoder_create(context, &options, &decoder) == WARPWRIGHT_OK);
  if (!decoder) exit(1);
  return decoder;
}

static warpwright_decoder_info info_of(const warpwright_decoder* decoder) {
  warpwright_decoder_info info = {.size = sizeof info};
  CHECK(warpwright_decoder_get_info(decoder, &info) == WARPWRIGHT_OK);
  return info;
}

/* What a sequence has become. */
typedef struct {
  char text[kMostText];
  int32_t ids[kMostIds];
  int count;
  warpwright_decoder_end end;
  char error[kMostText];
} whole;

static whole all[kMostSequences]; /* by the sequence's number, modulo kMostSequences */

static void step(warpwright_decoder* decoder) {
  int64_t events = -1;
  CHECK(warpwright_decoder_step(decoder, &events) == WARPWRIGHT_OK);
  for (int64_t i = 0; i < events; ++i) {
    warpwright_decoder_event event = {.size = sizeof event};
    CHECK(warpwright_decoder_get_event(decoder, i, &event) == WARPWRIGHT_OK);
    whole* w = &all[event.sequence % kMostSequences];
    CHECK(w->end == WARPWRIGHT_NOT_ENDED);
    CHECK(event.text[event.text_bytes] == 0 && strlen(w->text) + event.text_bytes < kMostText);
    strncat(w->text, event.text, event.text_bytes);
    if (event.token >= 0) w->ids[w->count++] = event.token;
    w->end = event.end;
    snprintf(w->error, sizeof w->error, "%s", event.error);
  }
  warpwright_decoder_event event = {.size = sizeof event};
  CHECK_REFUSED(warpwright_decoder_get_event(decoder, events, &event), "index is");
}

static bool is_idle(const warpwright_decoder* decoder) {
  const warpwright_decoder_info info = info_of(decoder);
  return info.running == 0 && info.waiting == 0;
}

static int64_t add(warpwright_decoder* decoder, const warpwright_decoder_add_args* args) {
  int64_t sequence = -1;
  CHECK(warpwright_decoder_add(decoder, args, &sequence) == WARPWRIGHT_OK);
  CHECK(sequence >= 0);
  memset(&all[sequence % kMostSequences], 0, sizeof *all);
  return sequence;
}

static whole run_alone(warpwright_decoder* decoder, const warpwright_decoder_add_args* args) {
  const int64_t sequence = add(decoder, args);
  while (!is_idle(decoder)) step(decoder);
  return all[sequence % kMostSequences];
}

static bool equal(const whole* a, const whole* b) {
  return strcmp(a->text, b->text) == 0 && a->end == b->end && a->count == b->count &&
         memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids) == 0;
}

static void test_info(warpwright_decoder* decoder) {
  const warpwright_decoder_info info = info_of(decoder);
  CHECK(info.vocabulary == kVocabulary && info.model_context == kContext && info.context == kContext);
  CHECK(info.has_tokenizer && info.dtype == WARPWRIGHT_F32 && info.running == 0 && info.waiting == 0);
}

static void test_tokenizer(warpwright_decoder* decoder) {
  int32_t ids[8] = {7};
  int64_t count = 0;
  CHECK(warpwright_decoder_encode(decoder, "a b", 3, ids, 2, &count) == WARPWRIGHT_OK);
  CHECK(count == 3 && ids[0] == 7); /* too many to be written */
  CHECK(warpwright_decoder_encode(decoder, "a b", 3, ids, 8, &count) == WARPWRIGHT_OK);
  CHECK(count == 3 && ids[0] == 'a' && ids[1] == ' ' && ids[2] == 'b');
  CHECK(warpwright_decoder_encode(decoder, "", 0, NULL, 0, &count) == WARPWRIGHT_OK && count == 1);
  CHECK(warpwright_decoder_encode(decoder, "", 0, ids, 8, &count) == WARPWRIGHT_OK && ids[0] == kEndOfText);
  char text[16] = "before";
  size_t bytes = 0;
  const int32_t spelled[] = {'a', 0xff, 257, 'b'}; /* 0xff is no character, and 257 has no text */
  CHECK(warpwright_decoder_decode(decoder, spelled, 4, text, 3, &bytes) == WARPWRIGHT_OK);
  CHECK(bytes == 5 && strcmp(text, "before") == 0);
  CHECK(warpwright_decoder_decode(decoder, spelled, 4, text, sizeof text, &bytes) == WARPWRIGHT_OK);
  CHECK(bytes == 5 && memcmp(text,
                             "a\xef\xbf\xbd"
                             "b",
                             5) == 0);
  const int32_t beyond[] = {'a', kVocabulary};
  CHECK_REFUSED(warpwright_decoder_decode(decoder, beyond, 2, text, sizeof text, &bytes), "ids has 259");
  CHECK_REFUSED(warpwright_decoder_decode(decoder, NULL, 2, text, sizeof text, &bytes), "ids is NULL");
  CHECK_REFUSED(warpwright_decoder_encode(decoder, NULL, 2, ids, 8, &count), "text[0] is NULL");
  CHECK_REFUSED(warpwright_decoder_encode(decoder, "a", 1, NULL, 8, &count), "ids is NULL");
  CHECK_REFUSED(warpwright_decoder_encode(decoder, "a", 1, ids, -1, &count), "capacity is -1");
  CHECK_REFUSED(warpwright_decoder_encode(decoder, "a", 1, ids, 8, NULL), "count is NULL");
}

/* The command prints the prompt, its text and a new line. */
static void test_equals_the_command(warpwright_decoder* decoder, char** arguments) {
  const warpwright_decoder_add_args args = greedy("the cat", 20);
  const whole w = run_alone(decoder, &args);
  CHECK(w.end == WARPWRIGHT_END_LENGTH && w.count == 20 && strlen(w.text) == 20);
  char command[2048], wanted[kMostText], got[kMostText] = "";
  snprintf(command, sizeof command,
           "'%s' generate --model '%s' --prompt 'the cat' --temperature 0 --max-tokens 20 --device %s",
           arguments[2], arguments[1], arguments[3]);
  FILE* output = popen(command, "r");
  if (!output) exit(1);
  const size_t bytes = fread(got, 1, sizeof got - 1, output);
  CHECK(bytes > 0 && pclose(output) == 0);
  snprintf(wanted, sizeof wanted, "the cat%s\n", w.text);
  CHECK(strcmp(got, wanted) == 0);
}

/* Sequences that come and go, wait, and share beginnings are those that run alone. */
static void test_together(warpwright_decoder* decoder) {
  const warpwright_decoder_add_args args[] = {sampled("the cat", 20, 1), greedy("the cat", 9),
                                              sampled("the dog sat", 25, 2), sampled("", 12, 3),
                                              sampled("the cat", 20, 4)};
  enum { kCount = sizeof args / sizeof *args };
  whole alone[kCount];
  int64_t sequences[kCount];
  for (int i = 0; i < kCount; ++i) alone[i] = run_alone(decoder, &args[i]);
  CHECK(!equal(&alone[0], &alone[4]));
  for (int i = 0; i < kCount; ++i) {
    sequences[i] = add(decoder, &args[i]);
    const int64_t removed = add(decoder, &args[0]);
    step(decoder);
    CHECK(warpwright_decoder_remove(decoder, removed) == WARPWRIGHT_OK);
    CHECK(warpwright_decoder_remove(decoder, removed) == WARPWRIGHT_OK); /* nothing is left to do */
  }
  CHECK(info_of(decoder).running + info_of(decoder).waiting > 1);
  while (!is_idle(decoder)) step(decoder);
  for (int i = 0; i < kCount; ++i) CHECK(equal(&all[sequences[i] % kMostSequences], &alone[i]));
  int64_t events = 7;
  CHECK(warpwright_decoder_step(decoder, &events) == WARPWRIGHT_OK && events == 0);
}

static void test_prompts_of_ids(warpwright_decoder* decoder) {
  const warpwright_decoder_add_args text = sampled("the cat", 20, 1);
  const whole wanted = run_alone(decoder, &text);
  const int32_t ids[] = {'t', 'h', 'e', ' ', 'c', 'a', 't'};
  warpwright_decoder_add_args args = text;
  args.text = NULL;
  args.text_bytes = 0;
  args.ids = ids;
  args.id_count = 7;
  const whole got = run_alone(decoder, &args);
  CHECK(equal(&got, &wanted));
}

static void test_ends(warpwright_decoder* decoder) {
  warpwright_decoder_add_args args = greedy("the cat", 20);
  const whole w = run_alone(decoder, &args);
  char stop[4] = "", never[] = "never here, and not at its end";
  memcpy(stop, w.text + 8, 3);
  const char* stops[] = {never, stop};
  args.stops = stops;
  args.stop_count = 2;
  whole stopped = run_alone(decoder, &args);
  const size_t place = (size_t)(strstr(w.text, stop) - w.text);
  CHECK(stopped.end == WARPWRIGHT_END_STOP && stopped.count == (int)place + 3);
  CHECK(strlen(stopped.text) == place && strncmp(stopped.text, w.text, place) == 0);
  const size_t bytes[] = {5, 2}; /* "never", and the first two bytes of the other */
  args.stop_bytes = bytes;
  stopped = run_alone(decoder, &args);
  CHECK(stopped.end == WARPWRIGHT_END_STOP && stopped.count <= (int)place + 2);

  /* At such a temperature all tokens are about as likely, so that the end of text comes at some time. */
  args = sampled("the cat", 30, 0);
  args.temperature = 1e6;
  int ended = 0;
  for (args.seed = 0; args.seed < 60; ++args.seed) {
    args.ignore_end_of_text = 0;
    const whole normal = run_alone(decoder, &args);
    args.ignore_end_of_text = 1;
    const whole ignored = run_alone(decoder, &args);
    CHECK(ignored.end == WARPWRIGHT_END_LENGTH && ignored.count == 30);
    if (normal.end != WARPWRIGHT_END_OF_TEXT) continue;
    CHECK(ignored.ids[normal.count] == kEndOfText);
    ++ended;
  }
  CHECK(ended > 0);

  args = greedy("the cat", 60); /* reaches position 40 */
  const warpwright_decoder_add_args shorter = greedy("the dog", 33);
  const whole wanted = run_alone(decoder, &shorter);
  const int64_t fails = add(decoder, &args), ends = add(decoder, &shorter);
  while (!is_idle(decoder)) step(decoder);
  const whole* failed = &all[fails % kMostSequences];
  CHECK(failed->end == WARPWRIGHT_END_WITH_ERROR && strstr(failed->error, "not finite") &&
        failed->count == 34);
  CHECK(equal(&all[ends % kMostSequences], &wanted) && wanted.end == WARPWRIGHT_END_LENGTH);
}

#define ADD_REFUSED(word) \
  check_status(warpwright_decoder_add(decoder, &args, &sequence), WARPWRIGHT_INVALID_ARGUMENT, word, __LINE__)

/* A refused sequence does not affect one that runs. */
static void test_refused_sequences(warpwright_decoder* decoder) {
  const warpwright_decoder_add_args good = sampled("the cat", 20, 1);
  const whole wanted = run_alone(decoder, &good);
  const int64_t running = add(decoder, &good);
  step(decoder);

  int64_t sequence = -1;
  warpwright_decoder_add_args args = good;
  args.size = 8;
  ADD_REFUSED("args.size is 8");
  args = good;
  args.reserved = 1;
  ADD_REFUSED("args.reserved is 1");
  args = good;
  args.max_tokens = 0;
  ADD_REFUSED("number of tokens: is 0, must be at least 1");
  args = good;
  args.temperature = -1;
  ADD_REFUSED("temperature: is -1");
  args.temperature = NAN;
  ADD_REFUSED("temperature: is nan");
  args = good;
  args.top_k = -3;
  ADD_REFUSED("top_k: is -3");
  args = good;
  args.top_p = 0;
  ADD_REFUSED("top_p: is 0");
  args = good;
  args.min_p = 1.5;
  ADD_REFUSED("min_p: is 1.5");
  args = good;
  args.repetition_penalty = 0;
  ADD_REFUSED("repetition_penalty: is 0");
  args = greedy("the cat", 20);
  args.top_k = 4;
  ADD_REFUSED("top_k: is 4, but temperature 0");
  args = greedy("the cat", 20);
  args.top_p = 0.5;
  ADD_REFUSED("top_p: is 0.5, but temperature 0");

  args = good;
  args.text = NULL;
  ADD_REFUSED("args.text is NULL");
  args.text_bytes = 0;
  ADD_REFUSED("args.text and args.ids are NULL");
  const int32_t ids[kContext + 1] = {1, kVocabulary - 1, kVocabulary, -5};
  args.ids = ids;
  ADD_REFUSED("prompt: has no tokens");
  args.id_count = -1;
  ADD_REFUSED("args.id_count is -1");
  args.id_count = kContext + 1;
  ADD_REFUSED("prompt: has 49 tokens, the context is 48; shorten it");
  args.id_count = 3;
  ADD_REFUSED("prompt: has the token 259, the vocabulary has ids below 259");
  args.ids = ids + 3;
  args.id_count = 1;
  ADD_REFUSED("prompt: has the token -5");
  args.ids = (const int32_t*)(const void*)((const char*)ids + 1);
  ADD_REFUSED("args.ids is 0x");
  args.ids = NULL;
  ADD_REFUSED("args.ids is NULL");
  args = good;
  args.ids = ids;
  args.id_count = 2;
  ADD_REFUSED("args.text is given with ids");
  char long_text[100];
  memset(long_text, 'x', sizeof long_text);
  args = good;
  args.text = long_text;
  args.text_bytes = sizeof long_text;
  ADD_REFUSED("prompt: has 100 tokens");
  const char* stops[] = {"a", "", NULL};
  args = good;
  args.stop_count = 1;
  ADD_REFUSED("args.stops is NULL");
  args.stops = stops;
  args.stop_count = 2;
  ADD_REFUSED("stop: is empty");
  args.stop_count = 3;
  ADD_REFUSED("args.stops[2] is NULL");
  args.stop_count = -1;
  ADD_REFUSED("args.stop_count is -1");
  CHECK(sequence == -1);
  CHECK_REFUSED(warpwright_decoder_add(decoder, &good, NULL), "sequence is NULL");
  CHECK_REFUSED(warpwright_decoder_add(decoder, NULL, &sequence), "args is NULL");
  CHECK_REFUSED(warpwright_decoder_add(NULL, &good, &sequence), "decoder is NULL");
  CHECK_REFUSED(warpwright_decoder_step(decoder, NULL), "events is NULL");
  CHECK_REFUSED(warpwright_decoder_get_event(decoder, 0, NULL), "event is NULL");
  CHECK_REFUSED(warpwright_decoder_get_info(decoder, NULL), "info is NULL");

  while (!is_idle(decoder)) step(decoder);
  CHECK(equal(&all[running % kMostSequences], &wanted));
}

static void test_refused_decoders(warpwright_context* context, const char* folder, bool cuda) {
  warpwright_decoder* decoder = NULL;
  const warpwright_decoder_options good = {
      .size = sizeof good, .folder = folder, .sequences = 2, .dtype = WARPWRIGHT_F32};
  warpwright_decoder_options options = good;
  CHECK_REFUSED(warpwright_decoder_create(NULL, &options, &decoder), "context is NULL");
  CHECK_REFUSED(warpwright_decoder_create(context, NULL, &decoder), "options is NULL");
  CHECK_REFUSED(warpwright_decoder_create(context, &options, NULL), "decoder is NULL");
  options.size = 8;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "options.size is 8");
  options = good;
  options.folder = NULL;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "options.folder is NULL");
  options.folder = "/nowhere/model";
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "/nowhere/model: does not exist");
  options.folder = "/";
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "it has no config.json");
  options = good;
  options.dtype = WARPWRIGHT_F16;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "options.dtype is 3");
  options.dtype = WARPWRIGHT_INT8;
  const warpwright_status status = warpwright_decoder_create(context, &options, &decoder);
  if (status == WARPWRIGHT_OK) {
    const warpwright_decoder_info info = info_of(decoder);
    CHECK(info.dtype == WARPWRIGHT_F32 || info.dtype == WARPWRIGHT_BF16);
    warpwright_decoder_destroy(decoder);
  } else {
    const char* word =
        cuda ? "WARPWRIGHT_INT8, which runs on a CPU" : "WARPWRIGHT_INT8, which needs a processor with AMX";
    check_status(status, WARPWRIGHT_UNSUPPORTED, word, __LINE__);
  }
  options = good;
  options.reserved = 2;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "options.reserved is 2");
  options = good;
  options.sequences = -1;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "options.sequences is -1");
  options.sequences = INT64_MAX;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "number of sequences");
  options = good;
  options.context = kContext + 1;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "context: is 49, the model's is 48");
  options = good;
  options.cache_tokens = kContext - 16;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder), "cache: holds 32 tokens");
  options.cache_tokens = INT64_MAX;
  CHECK_REFUSED(warpwright_decoder_create(context, &options, &decoder),
                "cache: holds 9223372036854775807 tokens, must hold at most");
  options.cache_tokens = 2147483000; /* 2 layers of 2 · 32 floats for each: a terabyte */
  check_status(warpwright_decoder_create(context, &options, &decoder), WARPWRIGHT_OUT_OF_MEMORY,
               "a cache of 2147483000 tokens", __LINE__);
  CHECK(strstr(warpwright_last_error(), " tokens would fit") != NULL);
  CHECK(decoder == NULL);

  decoder = open_folder(context, folder, 1, 0);
  warpwright_decoder_destroy(decoder);
  int64_t events = 0;
  CHECK_REFUSED(warpwright_decoder_step(decoder, &events), "has destroyed");
  warpwright_decoder_destroy(decoder);
  warpwright_decoder_destroy(NULL);
}

/* By default there are 64 sequences. A smaller cache makes some of them wait. The folder of a run opens its
 * model. */
static void test_sizes(warpwright_context* context, const char* folder) {
  warpwright_decoder* decoder = open_folder(context, folder, 0, 0);
  CHECK(info_of(decoder).sequences == 64);
  const warpwright_decoder_add_args args[] = {sampled("the cat", 30, 1), sampled("a dog", 30, 2)};
  const whole wanted[] = {run_alone(decoder, &args[0]), run_alone(decoder, &args[1])};
  warpwright_decoder_destroy(decoder);
  char run[4096];
  CHECK(snprintf(run, sizeof run, "%s/..", folder) < (int)sizeof run);
  decoder = open_folder(context, run, 2, kContext);
  const int64_t first = add(decoder, &args[0]), second = add(decoder, &args[1]);
  while (!is_idle(decoder)) step(decoder);
  CHECK(equal(&all[first % kMostSequences], &wanted[0]) && equal(&all[second % kMostSequences], &wanted[1]));
  warpwright_decoder_destroy(decoder);
}

int main(int count, char** arguments) {
  if (count != 4) {
    fprintf(stderr, "usage: decoder_test FOLDER PROGRAM cpu|cuda\n");
    return 2;
  }
  const bool cuda = strcmp(arguments[3], "cuda") == 0;
  if (cuda && warpwright_cuda_device_count() == 0) {
    printf("capi_decoder_cuda: Skipped\nneeds an NVIDIA GPU\n");
    return 77;
  }
  const char* folder = arguments[1];
  warpwright_context* context = NULL;
  const warpwright_context_options options = {
      .size = sizeof options, .device = cuda ? WARPWRIGHT_DEVICE_CUDA : WARPWRIGHT_DEVICE_CPU, .threads = 2};
  if (warpwright_context_create(&options, &context) != WARPWRIGHT_OK) {
    fprintf(stderr, "%s\n", warpwright_last_error());
    return 1;
  }
  warpwright_decoder* decoder = open_folder(context, folder, 3, 0);
  test_info(decoder);
  test_tokenizer(decoder);
  test_equals_the_command(decoder, arguments);
  test_together(decoder);
  test_prompts_of_ids(decoder);
  test_ends(decoder);
  test_refused_sequences(decoder);
  warpwright_decoder_destroy(decoder);
  test_refused_decoders(context, folder, cuda);
  test_sizes(context, folder);
  warpwright_context_destroy(context);
  if (failures == 0) printf("decoders do what the header says\n");
  return failures == 0 ? 0 : 1;
}
