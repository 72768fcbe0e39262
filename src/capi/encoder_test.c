/* Tests encoders through the C ABI: encoder_test FOLDER, a small BERT with a classification head and without
 * a vocabulary, of 53 tokens and 3 labels. It compares different forms of a call with each other and with
 * pooling by hand, and makes a caller's mistakes. The model's own tests check the values. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "warpwright/warpwright.h"

static int failures = 0;

static void check(bool condition, const char* what, int line) {
  if (condition) return;
  fprintf(stderr, "encoder_test.c:%d: %s (last error: %s)\n", line, what, warpwright_last_error());
  ++failures;
}
#define CHECK(condition) check(condition, #condition, __LINE__)

static void check_status(warpwright_status status, warpwright_status wanted, const char* word, int line) {
  if (status == wanted && strstr(warpwright_last_error(), word)) return;
  fprintf(stderr, "encoder_test.c:%d: %s, wanted %s; \"%s\" should name \"%s\"\n", line,
          warpwright_status_name(status), warpwright_status_name(wanted), warpwright_last_error(), word);
  ++failures;
}
#define CHECK_REFUSED(call, word) check_status(call, WARPWRIGHT_INVALID_ARGUMENT, word, __LINE__)

static void check_near(const float* got, const float* wanted, int64_t count, int line) {
  for (int64_t i = 0; i < count; ++i) {
    if (fabsf(got[i] - wanted[i]) <= 1e-5f * (1 + fabsf(wanted[i]))) continue;
    fprintf(stderr, "encoder_test.c:%d: element %lld is %.9g, not %.9g\n", line, (long long)i, (double)got[i],
            (double)wanted[i]);
    ++failures;
    return;
  }
}
#define CHECK_NEAR(got, wanted, count) check_near(got, wanted, count, __LINE__)

enum { kSequences = 3, kLength = 6, kMostHidden = 64, kMostLabels = 8 };

/* Three texts of 4, 0 and 3 tokens, packed and padded. The padding includes a hole and leading positions. */
static const int32_t kIds[] = {5, 6, 52, 7, 9, 10, 11}, kTypes[] = {0, 0, 1, 1, 0, 1, 0},
                     kBounds[] = {0, 4, 4, 7};
static const int32_t kPaddedIds[] = {5, 6, -1, 52, 7, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 9, 10, 11};
static const int32_t kPaddedTypes[] = {0, 0, 9, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 1, 0};
static const uint8_t kMask[] = {1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1};
static const int kPlaces[] = {0,  1,  3, 4,
                              15, 16, 17}; /* positions of the packed tokens among the padded ones */

static warpwright_encoder_tokens_args packed_args(float* out, warpwright_encoder_result result) {
  const warpwright_encoder_tokens_args args = {.size = sizeof args,
                                               .sequences = kSequences,
                                               .ids = kIds,
                                               .types = kTypes,
                                               .cu_seqlens = kBounds,
                                               .out = out,
                                               .result = result};
  return args;
}

static warpwright_encoder_tokens_args padded_args(float* out, warpwright_encoder_result result) {
  const warpwright_encoder_tokens_args args = {.size = sizeof args,
                                               .sequences = kSequences,
                                               .length = kLength,
                                               .ids = kPaddedIds,
                                               .types = kPaddedTypes,
                                               .mask = kMask,
                                               .out = out,
                                               .result = result};
  return args;
}

static warpwright_encoder* open_folder(warpwright_context* context, const char* folder, int64_t tokens,
                                       int64_t sequences) {
  warpwright_encoder* encoder = NULL;
  const warpwright_encoder_options options = {.size = sizeof options,
                                              .folder = folder,
                                              .dtype = WARPWRIGHT_F32,
                                              .max_batch_tokens = tokens,
                                              .max_batch_sequences = sequences};
  CHECK(warpwright_encoder_create(context, &options, &encoder) == WARPWRIGHT_OK);
  if (!encoder) exit(1);
  return encoder;
}

static warpwright_encoder_info info_of(const warpwright_encoder* encoder) {
  warpwright_encoder_info info = {.size = sizeof info};
  CHECK(warpwright_encoder_get_info(encoder, &info) == WARPWRIGHT_OK);
  CHECK(info.hidden_size > 0 && info.hidden_size <= kMostHidden && info.labels <= kMostLabels);
  return info;
}

/* Packed, padded, and with kept padding, from one sequence per batch to all at once: the results are equal.
 */
static void test_forms(warpwright_context* context, const char* folder) {
  static float hidden[7 * kMostHidden], vectors[kSequences * kMostHidden], logits[kSequences * kMostLabels],
      got[kSequences * kLength * kMostHidden];
  warpwright_encoder* encoder = open_folder(context, folder, 64, 0);
  const warpwright_encoder_info info = info_of(encoder);
  const int64_t H = info.hidden_size;
  CHECK(info.vector_size == H && info.labels == 3 && info.vocabulary == 53 && !info.has_tokenizer);
  CHECK(info.dtype == WARPWRIGHT_F32 && info.max_batch_tokens == 64 && info.max_batch_sequences == 64);
  warpwright_encoder_tokens_args args = packed_args(hidden, WARPWRIGHT_HIDDEN);
  CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
  args = packed_args(vectors, WARPWRIGHT_VECTORS);
  CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
  args = packed_args(logits, WARPWRIGHT_LOGITS);
  CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
  for (int s = 0; s < kSequences; ++s) { /* mean pooling */
    float mean[kMostHidden] = {0};
    const int tokens = kBounds[s + 1] - kBounds[s];
    for (int i = kBounds[s]; i < kBounds[s + 1]; ++i) {
      for (int64_t c = 0; c < H; ++c) mean[c] += hidden[i * H + c] / (float)tokens;
    }
    CHECK_NEAR(vectors + s * H, mean, H);
  }
  CHECK(info_of(encoder).wasted_tokens == 0);
  warpwright_encoder_destroy(encoder);

  const int64_t limits[][2] = {{64, 0}, {5, 0}, {64, 1}, {18, 6}};
  for (int l = 0; l < 4; ++l) {
    encoder = open_folder(context, folder, limits[l][0], limits[l][1]);
    args = packed_args(got, WARPWRIGHT_HIDDEN);
    CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
    CHECK_NEAR(got, hidden, 7 * H);
    for (int keep = 0; keep < (limits[l][0] >= 18 && limits[l][1] != 1 ? 2 : 1); ++keep) {
      args = padded_args(got, WARPWRIGHT_HIDDEN);
      args.keep_padding = keep;
      memset(got, 0xff, sizeof got);
      CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
      for (int i = 0; i < 7; ++i) CHECK_NEAR(got + kPlaces[i] * H, hidden + i * H, H);
      for (int i = 0; i < kSequences * kLength; ++i) {
        bool zeros = true;
        for (int64_t c = 0; c < H; ++c) zeros = zeros && got[i * H + c] == 0;
        CHECK(zeros == !kMask[i]);
      }
      args = padded_args(got, WARPWRIGHT_VECTORS);
      args.keep_padding = keep;
      CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
      CHECK_NEAR(got, vectors, kSequences * H);
      args = padded_args(got, WARPWRIGHT_LOGITS);
      args.keep_padding = keep;
      CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
      CHECK_NEAR(got, logits, kSequences * info.labels);
    }
    args = packed_args(got, WARPWRIGHT_VECTORS);
    args.sequences = 0;
    args.out = NULL;
    CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
    warpwright_encoder_destroy(encoder);
  }
}

/* Runs the layers from hidden states, packed and padded. The results are equal. */
static void test_states(warpwright_context* context, const char* folder) {
  static float states[7 * kMostHidden], padded[kSequences * kLength * kMostHidden], wanted[7 * kMostHidden],
      got[kSequences * kLength * kMostHidden];
  warpwright_encoder* encoder = open_folder(context, folder, 64, 0);
  const int64_t H = info_of(encoder).hidden_size;
  for (int64_t i = 0; i < 7 * H; ++i) states[i] = (float)(i % 23) / 11 - 1;
  for (int64_t i = 0; i < kSequences * kLength * H; ++i) padded[i] = NAN;
  for (int i = 0; i < 7; ++i) memcpy(padded + kPlaces[i] * H, states + i * H, (size_t)H * sizeof *states);
  warpwright_encoder_tokens_args args = packed_args(wanted, WARPWRIGHT_HIDDEN);
  args.states = states;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "states is given with ids");
  args.ids = args.types = NULL;
  CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
  for (int keep = 0; keep < 2; ++keep) {
    /* Values in padding have no effect. If padding is kept, they must be finite. */
    for (int i = 0; keep && i < kSequences * kLength; ++i) {
      for (int64_t c = 0; c < H; ++c) padded[i * H + c] = kMask[i] ? padded[i * H + c] : 3;
    }
    args = padded_args(got, WARPWRIGHT_HIDDEN);
    args.ids = args.types = NULL;
    args.states = padded;
    args.keep_padding = keep;
    CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);
    for (int i = 0; i < 7; ++i) CHECK_NEAR(got + kPlaces[i] * H, wanted + i * H, H);
  }
  warpwright_encoder_destroy(encoder);
}

static void put(const char* folder, const char* name, const void* data, size_t bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE* file = fopen(path, "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) exit(1);
}

static char* get(const char* folder, const char* name, size_t* bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE* file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) exit(1);
  *bytes = (size_t)ftell(file);
  char* data = malloc(*bytes + 1);
  if (!data || fseek(file, 0, SEEK_SET) || fread(data, 1, *bytes, file) != *bytes) exit(1);
  fclose(file);
  data[*bytes] = 0;
  return data;
}

static void copy_file(const char* from, const char* to, const char* name) {
  size_t bytes = 0;
  char* data = get(from, name, &bytes);
  put(to, name, data, bytes);
  free(data);
}

static warpwright_status embed(warpwright_encoder* encoder, const char* text, const char* prompt,
                               const char* prompt_name, float* out) {
  const warpwright_encoder_texts_args args = {.size = sizeof args,
                                              .count = 1,
                                              .texts = &text,
                                              .out = out,
                                              .result = WARPWRIGHT_VECTORS,
                                              .prompt = prompt,
                                              .prompt_bytes = prompt ? strlen(prompt) : 0,
                                              .prompt_name = prompt_name};
  return warpwright_encoder_texts(encoder, &args);
}

static void test_prompts(warpwright_context* context, const char* folder) {
  static float wanted[kMostHidden], plain[kMostHidden], got[kMostHidden];
  const char* file =
      "{\"prompts\": {\"query\": \"w5 \", \"none\": \"\"}, \"default_prompt_name\": \"query\"}";
  put(folder, "config_sentence_transformers.json", file, strlen(file));
  warpwright_encoder* encoder = open_folder(context, folder, 64, 0);
  const warpwright_encoder_info info = info_of(encoder);
  const int64_t V = info.vector_size;
  CHECK(info.prompts == 2 && info.default_prompt == 1);
  const char *name = NULL, *text = NULL;
  CHECK(warpwright_encoder_get_prompt(encoder, 1, &name, &text) == WARPWRIGHT_OK);
  CHECK(strcmp(name, "query") == 0 && strcmp(text, "w5 ") == 0);
  CHECK_REFUSED(warpwright_encoder_get_prompt(encoder, 2, &name, &text), "index is 2");
  CHECK(embed(encoder, "w5 w6", "", NULL, wanted) == WARPWRIGHT_OK);
  CHECK(embed(encoder, "w6", "", NULL, plain) == WARPWRIGHT_OK);
  CHECK(fabsf(wanted[0] - plain[0]) > 1e-4f);
  CHECK(embed(encoder, "w6", NULL, NULL, got) == WARPWRIGHT_OK); /* the default */
  CHECK_NEAR(got, wanted, V);
  CHECK(embed(encoder, "w6", NULL, "query", got) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, V);
  CHECK(embed(encoder, "w6", NULL, "none", got) == WARPWRIGHT_OK);
  CHECK_NEAR(got, plain, V);
  CHECK(embed(encoder, "w6", "w5 ", "no such name", got) == WARPWRIGHT_OK); /* the name is ignored */
  CHECK_NEAR(got, wanted, V);
  CHECK_REFUSED(embed(encoder, "w6", NULL, "quarry", got), "\"none\", \"query\"");
  /* A caller of version 1.1, whose structure ends before the prompts. */
  const char* texts[] = {"w6"};
  warpwright_encoder_texts_args args = {.size = offsetof(warpwright_encoder_texts_args, prompt),
                                        .count = 1,
                                        .texts = texts,
                                        .out = got,
                                        .result = WARPWRIGHT_VECTORS};
  CHECK(warpwright_encoder_texts(encoder, &args) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, V);
  warpwright_encoder_info older = {.size = offsetof(warpwright_encoder_info, prompts), .prompts = 77};
  CHECK(warpwright_encoder_get_info(encoder, &older) == WARPWRIGHT_OK);
  CHECK(older.vector_size == V && older.prompts == 77);
  args.size = sizeof args;
  args.result = WARPWRIGHT_LOGITS;
  args.prompt_name = "query";
  CHECK_REFUSED(warpwright_encoder_texts(encoder, &args), "prompts go with WARPWRIGHT_VECTORS");
  args.reserved = 3;
  CHECK_REFUSED(warpwright_encoder_texts(encoder, &args), "args.reserved is 3");
  warpwright_encoder_destroy(encoder);
}

static void test_texts(warpwright_context* context, const char* model) {
  char folder[] = "/tmp/warpwright_encoder_test_XXXXXX";
  if (!mkdtemp(folder)) exit(1);
  copy_file(model, folder, "config.json");
  copy_file(model, folder, "model.safetensors");
  char vocabulary[1024] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 5; i < 53; ++i) {
    snprintf(vocabulary + strlen(vocabulary), sizeof vocabulary - strlen(vocabulary), "w%d\n", i);
  }
  put(folder, "vocab.txt", vocabulary, strlen(vocabulary));

  warpwright_encoder* encoder = open_folder(context, folder, 64, 0);
  const warpwright_encoder_info info = info_of(encoder);
  CHECK(info.has_tokenizer);
  const char* texts[] = {"w5 w6", "w7", "W9 nothing"};
  const char* seconds[] = {"w8", "w9 w10", "w11"};
  const int32_t ids[] = {2, 5, 6, 3, 2, 7, 3, 2, 9, 1, 3}, bounds[] = {0, 4, 7, 11};
  const int32_t pair_ids[] = {2, 5, 6, 3, 8, 3, 2, 7, 3, 9, 10, 3, 2, 9, 1, 3, 11, 3},
                pair_types[] = {0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1},
                pair_bounds[] = {0, 6, 12, 18};
  static float got[3 * kMostHidden], wanted[3 * kMostHidden];
  int64_t tokens[3] = {0};
  warpwright_status statuses[3] = {9, 9, 9};
  warpwright_encoder_texts_args args = {.size = sizeof args,
                                        .count = 3,
                                        .texts = texts,
                                        .out = got,
                                        .tokens = tokens,
                                        .statuses = statuses,
                                        .result = WARPWRIGHT_VECTORS};
  warpwright_encoder_tokens_args by_ids = {
      .size = sizeof by_ids, .sequences = 3, .ids = ids, .cu_seqlens = bounds, .out = wanted};
  CHECK(warpwright_encoder_texts(encoder, &args) == WARPWRIGHT_OK);
  CHECK(warpwright_encoder_tokens(encoder, &by_ids) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, 3 * info.vector_size);
  CHECK(tokens[0] == 4 && tokens[1] == 3 && tokens[2] == 4);
  CHECK(statuses[0] == WARPWRIGHT_OK && statuses[2] == WARPWRIGHT_OK);
  CHECK(strcmp(warpwright_encoder_text_error(encoder, 1), "") == 0);
  CHECK(strcmp(warpwright_encoder_text_error(encoder, 99), "") == 0);

  args.result = by_ids.result = WARPWRIGHT_LOGITS;
  CHECK(warpwright_encoder_texts(encoder, &args) == WARPWRIGHT_OK);
  CHECK(warpwright_encoder_tokens(encoder, &by_ids) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, 3 * info.labels);
  args.seconds = seconds;
  args.statuses = NULL;
  args.tokens = NULL;
  by_ids.ids = pair_ids, by_ids.types = pair_types, by_ids.cu_seqlens = pair_bounds;
  CHECK(warpwright_encoder_texts(encoder, &args) == WARPWRIGHT_OK);
  CHECK(warpwright_encoder_tokens(encoder, &by_ids) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, 3 * info.labels);

  args.result = WARPWRIGHT_VECTORS;
  CHECK_REFUSED(warpwright_encoder_texts(encoder, &args), "seconds is given");
  args.seconds = NULL;
  args.result = WARPWRIGHT_HIDDEN;
  CHECK_REFUSED(warpwright_encoder_texts(encoder, &args), "WARPWRIGHT_HIDDEN");
  args.result = WARPWRIGHT_VECTORS;
  texts[1] = NULL;
  CHECK_REFUSED(warpwright_encoder_texts(encoder, &args), "texts[1] is NULL");
  /* With given lengths, texts may contain zeros and need none at the end. */
  const size_t lengths[] = {2, 0, 5};
  texts[1] = "";
  texts[2] = "w9\0w9";
  args.text_bytes = lengths;
  args.tokens = tokens;
  CHECK(warpwright_encoder_texts(encoder, &args) == WARPWRIGHT_OK);
  CHECK(tokens[0] == 3 && tokens[1] == 2);
  args.out = NULL;
  CHECK_REFUSED(warpwright_encoder_texts(encoder, &args), "out is NULL");
  warpwright_encoder_destroy(encoder);

  /* A text that is too long, with and without a status array. */
  const warpwright_encoder_options strict = {
      .size = sizeof strict, .folder = folder, .dtype = WARPWRIGHT_F32, .max_length = 4, .refuse_long = 1};
  CHECK(warpwright_encoder_create(context, &strict, &encoder) == WARPWRIGHT_OK);
  texts[1] = "w5 w5 w5";
  args.text_bytes = NULL;
  args.out = got;
  check_status(warpwright_encoder_texts(encoder, &args), WARPWRIGHT_FAILED, "text 1 has more than 4 tokens",
               __LINE__);
  args.statuses = statuses;
  CHECK(warpwright_encoder_texts(encoder, &args) == WARPWRIGHT_OK);
  CHECK(statuses[0] == WARPWRIGHT_OK && statuses[1] == WARPWRIGHT_FAILED && statuses[2] == WARPWRIGHT_OK);
  CHECK(strstr(warpwright_encoder_text_error(encoder, 1), "more than 4 tokens") != NULL);
  CHECK(got[info.vector_size] == 0 && got[0] != 0);
  warpwright_encoder_destroy(encoder);

  test_prompts(context, folder);
  char path[512];
  const char* names[] = {"config.json", "model.safetensors", "vocab.txt",
                         "config_sentence_transformers.json"};
  for (int i = 0; i < 4; ++i) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  rmdir(folder);
}

static warpwright_status run_with(warpwright_encoder* encoder, warpwright_encoder_tokens_args args,
                                  const warpwright_encoder_attention* attention) {
  args.attention = attention;
  return warpwright_encoder_tokens(encoder, &args);
}

/* Masks of any dtype, in both shapes, a bias and a temperature; and what is refused. */
static void test_attention(warpwright_context* context, const char* folder) {
  enum { kPairs = kSequences * kLength * kLength };
  static float wanted[kSequences * kLength * kMostHidden], got[kSequences * kLength * kMostHidden];
  static float mask[kPairs], bias[kPairs * 16];
  static int64_t integers[kSequences * kLength];
  warpwright_encoder* encoder = open_folder(context, folder, 64, 0);
  const warpwright_encoder_info info = info_of(encoder);
  const int64_t H = info.hidden_size, NH = info.heads;
  CHECK(NH <= 16);
  warpwright_encoder_tokens_args args = padded_args(wanted, WARPWRIGHT_HIDDEN);
  CHECK(warpwright_encoder_tokens(encoder, &args) == WARPWRIGHT_OK);

  args = padded_args(got, WARPWRIGHT_HIDDEN);
  warpwright_encoder_attention attention = {.size = sizeof attention,
                                            .mask = mask,
                                            .mask_shape = {kSequences, kLength},
                                            .mask_rank = 2,
                                            .mask_dtype = WARPWRIGHT_F32,
                                            .temperature = 1};
  CHECK_REFUSED(run_with(encoder, args, &attention), "mask is given with attention.mask");
  args.mask = NULL;
  for (int i = 0; i < kSequences * kLength; ++i) mask[i] = kMask[i], integers[i] = kMask[i];
  CHECK(run_with(encoder, args, &attention) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, kSequences * kLength * H);
  attention.mask = integers, attention.mask_dtype = WARPWRIGHT_I64;
  memset(got, 0, sizeof got);
  CHECK(run_with(encoder, args, &attention) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, kSequences * kLength * H);
  integers[7] = 2;
  CHECK_REFUSED(
      run_with(encoder, args, &attention),
      "attention_mask: has a value other than 0 and 1 at (1, 1); use 1 for what is seen and 0 for what "
      "is not");
  attention.mask = mask, attention.mask_dtype = WARPWRIGHT_F32;
  mask[4] = NAN;
  CHECK_REFUSED(run_with(encoder, args, &attention), "other than 0 and 1 at (0, 4)");
  attention.mask_shape[1] = kLength + 1;
  CHECK_REFUSED(run_with(encoder, args, &attention),
                "attention_mask: has shape (3, 7); give (3, 6) for the tokens or (3, 1, 6, 6) for pairs");
  attention.mask_rank = 9;
  CHECK_REFUSED(run_with(encoder, args, &attention), "attention.mask_rank is 9");
  attention.mask_rank = 2, attention.mask_dtype = 9;
  CHECK_REFUSED(run_with(encoder, args, &attention),
                "attention.mask_dtype is 9; use WARPWRIGHT_F64, _F32, _BF16, _F16, _I32, _I64 or _U8");

  /* A packed sequence whose first two tokens see each other alone has the states of a shorter one there. */
  warpwright_encoder_tokens_args packed = packed_args(wanted, WARPWRIGHT_HIDDEN);
  static const int32_t kShorter[] = {0, 2};
  packed.cu_seqlens = kShorter, packed.sequences = 1;
  CHECK(warpwright_encoder_tokens(encoder, &packed) == WARPWRIGHT_OK);
  packed = packed_args(got, WARPWRIGHT_HIDDEN);
  for (int i = 0; i < kPairs; ++i) {
    const int query = i / kLength % kLength, key = i % kLength;
    mask[i] = (query < 2) == (key < 2);
  }
  attention.mask_dtype = WARPWRIGHT_F32, attention.mask_rank = 4;
  attention.mask_shape[0] = kSequences, attention.mask_shape[1] = 1;
  attention.mask_shape[2] = attention.mask_shape[3] = kLength;
  CHECK(run_with(encoder, packed, &attention) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, 2 * H);
  /* So has one whose bias hides the same pairs. */
  for (int64_t i = 0; i < NH * kLength * kLength; ++i)
    bias[i] = mask[i % (kLength * kLength)] > 0 ? 1 : -1e4f;
  attention.mask = NULL, attention.bias = bias;
  attention.bias_rank = 3, attention.bias_shape[0] = NH;
  attention.bias_shape[1] = attention.bias_shape[2] = kLength;
  memset(got, 0, sizeof got);
  CHECK(run_with(encoder, packed, &attention) == WARPWRIGHT_OK);
  CHECK_NEAR(got, wanted, 2 * H);
  attention.temperature = 0.5;
  CHECK(run_with(encoder, packed, &attention) == WARPWRIGHT_OK);
  CHECK(fabsf(got[0] - wanted[0]) > 1e-6f);

  attention.temperature = 0;
  CHECK_REFUSED(run_with(encoder, packed, &attention), "temperature: is 0; give a number of 1e-30 or more");
  attention.temperature = 1e-38;
  CHECK_REFUSED(run_with(encoder, packed, &attention),
                "temperature: is 1e-38; give a number of 1e-30 or more");
  attention.temperature = 1;
  attention.bias_shape[0] = NH + 1;
  CHECK_REFUSED(run_with(encoder, packed, &attention), "bias: has shape (");
  attention.bias_shape[0] = NH;
  bias[1] = NAN;
  CHECK_REFUSED(run_with(encoder, packed, &attention), "bias: has nan at (0, 0, 1); give numbers");
  bias[1] = 1;
  /* An empty bias is wrong too, even without memory. */
  attention.bias_shape[0] = 0;
  CHECK_REFUSED(run_with(encoder, packed, &attention), "bias: has shape (0, ");
  attention.bias = NULL;
  CHECK_REFUSED(run_with(encoder, packed, &attention), "bias: has shape (0, ");
  attention.bias = bias, attention.bias_shape[0] = NH;
  static uint8_t sevens[sizeof kMask];
  memset(sevens, 7, sizeof sevens);
  args.mask = sevens;
  CHECK_REFUSED(run_with(encoder, args, NULL), "attention_mask: has a value other than 0 and 1 at (0, 0)");
  args.mask = kMask;
  CHECK_REFUSED(run_with(encoder, args, &attention), "sequence 0 has padding before a token");
  attention.bias = NULL, attention.mask = mask, attention.mask_rank = 3;
  CHECK_REFUSED(run_with(encoder, packed, &attention), "attention_mask: has shape (3, 1, 6)");
  attention.mask_rank = 4, mask[8] = 0.5f;
  CHECK_REFUSED(run_with(encoder, packed, &attention), "other than 0 and 1 at (0, 0, 1, 2)");
  CHECK(warpwright_encoder_check_mask(encoder) == WARPWRIGHT_OK);
  CHECK_REFUSED(warpwright_encoder_check_mask(NULL), "encoder is NULL");
  mask[8] = 0;
  warpwright_encoder* small = open_folder(context, folder, 6, 0);
  CHECK_REFUSED(run_with(small, packed, &attention), "do not fit in one batch");
  warpwright_encoder_destroy(small);
  warpwright_encoder_destroy(encoder);
}

/* Packs and unpacks rows with any pattern of ones. */
static void test_padding(warpwright_context* context) {
  enum { kPlacesInAll = kSequences * kLength, kColumns = 3 };
  float mask[kPlacesInAll], padded[kPlacesInAll * kColumns], packed[7 * kColumns],
      back[kPlacesInAll * kColumns];
  int32_t cu_seqlens[kSequences + 1], indices[kPlacesInAll];
  int64_t odd = 5;
  for (int i = 0; i < kPlacesInAll; ++i) mask[i] = kMask[i];
  for (int i = 0; i < kPlacesInAll * kColumns; ++i) padded[i] = (float)i;
  warpwright_padding_args args = {.size = sizeof args,
                                  .sequences = kSequences,
                                  .length = kLength,
                                  .columns = kColumns,
                                  .rows = 7,
                                  .mask = mask,
                                  .cu_seqlens = cu_seqlens,
                                  .indices = indices,
                                  .odd = &odd,
                                  .padded = padded,
                                  .packed = packed,
                                  .mask_dtype = WARPWRIGHT_F32,
                                  .dtype = WARPWRIGHT_F32};
  CHECK(warpwright_padding_lengths(context, &args) == WARPWRIGHT_OK);
  CHECK(odd == -1 && memcmp(cu_seqlens, kBounds, sizeof kBounds) == 0);
  for (int i = 0; i < 7; ++i) CHECK(indices[i] == kPlaces[i]);
  CHECK(warpwright_pack(context, &args) == WARPWRIGHT_OK);
  for (int i = 0; i < 7 * kColumns; ++i) {
    CHECK(packed[i] == (float)(kPlaces[i / kColumns] * kColumns + i % kColumns));
  }
  args.padded = back;
  CHECK(warpwright_unpack(context, &args) == WARPWRIGHT_OK);
  for (int i = 0; i < kPlacesInAll * kColumns; ++i) {
    CHECK(back[i] == (kMask[i / kColumns] ? padded[i] : 0.0f));
  }
  mask[9] = 0.75f;
  CHECK(warpwright_padding_lengths(context, &args) == WARPWRIGHT_OK);
  CHECK(odd == 9 && cu_seqlens[kSequences] == 8);
  args.odd = NULL;
  CHECK_REFUSED(warpwright_padding_lengths(context, &args), "odd is NULL");
  args.rows = kPlacesInAll + 1;
  CHECK_REFUSED(warpwright_pack(context, &args), "rows is 19");
  args.rows = 7, args.packed = back;
  CHECK_REFUSED(warpwright_unpack(context, &args), "overlaps");
  args.columns = 0;
  CHECK_REFUSED(warpwright_pack(context, &args), "columns is 0");
  args.mask_dtype = 8;
  CHECK_REFUSED(warpwright_padding_lengths(context, &args), "mask_dtype is 8");
}

static void test_refusals(warpwright_context* context, const char* folder) {
  warpwright_encoder* encoder = NULL;
  warpwright_encoder_options options = {.size = sizeof options, .folder = folder, .dtype = WARPWRIGHT_F32};
  CHECK_REFUSED(warpwright_encoder_create(NULL, &options, &encoder), "context is NULL");
  CHECK_REFUSED(warpwright_encoder_create(context, &options, NULL), "encoder is NULL");
  CHECK_REFUSED(warpwright_encoder_create(context, NULL, &encoder), "options is NULL");
  options.size = 8;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.size is 8");
  options.size = sizeof options;
  options.dtype = WARPWRIGHT_F64;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "WARPWRIGHT_F64");
  options.dtype = 77;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.dtype is 77");
  options.dtype = WARPWRIGHT_F16;
  check_status(warpwright_encoder_create(context, &options, &encoder), WARPWRIGHT_UNSUPPORTED,
               "options.dtype is WARPWRIGHT_F16, and the context is a CPU's; use WARPWRIGHT_F32", __LINE__);
  options.dtype = WARPWRIGHT_INT8;
  const warpwright_status status = warpwright_encoder_create(context, &options, &encoder);
  if (status == WARPWRIGHT_OK) {
    warpwright_encoder_info info = {.size = sizeof info};
    check_status(warpwright_encoder_get_info(encoder, &info), WARPWRIGHT_OK, "", __LINE__);
    CHECK(info.dtype == WARPWRIGHT_F32 || info.dtype == WARPWRIGHT_BF16);
    warpwright_encoder_destroy(encoder);
  } else {
    check_status(status, WARPWRIGHT_UNSUPPORTED,
                 "options.dtype is WARPWRIGHT_INT8, which needs a processor with AMX", __LINE__);
  }
  options.dtype = WARPWRIGHT_F32;
  options.pooling = 9;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.pooling is 9");
  options.pooling = WARPWRIGHT_POOLING_CLS;
  options.normalization = 7;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.normalization is 7");
  options.normalization = WARPWRIGHT_NORMALIZE;
  options.max_batch_tokens = -3;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.max_batch_tokens is -3");
  options.max_batch_tokens = 0;
  options.reserved = 1;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.reserved is 1");
  options.reserved = 0;
  options.max_batch_sequences = INT64_MAX;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder),
                "batch_sequences: is 9223372036854775807");
  options.max_batch_sequences = 0;
  options.folder = "/nowhere";
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "/nowhere");
  options.folder = NULL;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.folder is NULL");
  const float number = 1;
  warpwright_tensor tensor = {.name = "x", .data = &number, .columns = 1, .rank = 3, .dtype = WARPWRIGHT_F32};
  options.tensors = &tensor;
  options.tensor_count = 1;
  options.config = "{";
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.config");
  size_t bytes = 0;
  char* config = get(folder, "config.json", &bytes);
  options.config = config;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "has rank 3");
  tensor.rank = 1;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "word_embeddings");
  tensor.name = NULL;
  CHECK_REFUSED(warpwright_encoder_create(context, &options, &encoder), "options.tensors[0].name is NULL");
  CHECK(encoder == NULL);
  free(config);

  encoder = open_folder(context, folder, 0, 0);
  float out[8 * kMostHidden];
  warpwright_encoder_tokens_args args = packed_args(out, WARPWRIGHT_HIDDEN);
  CHECK_REFUSED(warpwright_encoder_tokens(NULL, &args), "encoder is NULL");
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, NULL), "args is NULL");
  args.ids = NULL;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "ids is NULL");
  const int32_t bad_ids[] = {5, 6, 52, 7, 9, 53, 11}, bad_types[] = {0, 0, 1, 1, 0, 3, 0};
  args.ids = bad_ids;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "ids has 53 in sequence 2");
  args.ids = kIds;
  args.types = bad_types;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "types has 3 in sequence 2");
  args.types = NULL;
  const int32_t bad_bounds[] = {0, 4, 3, 7}, late_bounds[] = {1, 4, 4, 7}, long_bounds[] = {0, 4, 4, 104};
  args.cu_seqlens = bad_bounds;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "cu_seqlens[2] is 3");
  args.cu_seqlens = late_bounds;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "cu_seqlens[0] is 1");
  args.cu_seqlens = long_bounds;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "sequence 2 has 100 tokens");
  args.cu_seqlens = kBounds;
  args.mask = kMask;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "mask is given with cu_seqlens");
  args.mask = NULL;
  args.length = 4;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "length is 4 with cu_seqlens");
  args.length = 0;
  args.sequences = -1;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "sequences is -1");
  args.sequences = kSequences;
  args.out = NULL;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "out is NULL");
  args.out = out;
  args.result = 5;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "result is 5");
  args = padded_args(out, WARPWRIGHT_HIDDEN);
  args.length = INT64_MAX;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "length is");
  args.length = INT32_MAX;
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "length is");
  warpwright_encoder_texts_args texts = {.size = sizeof texts, .result = WARPWRIGHT_VECTORS};
  CHECK_REFUSED(warpwright_encoder_texts(encoder, &texts), "has no tokenizer");
  CHECK_REFUSED(warpwright_encoder_get_info(encoder, NULL), "info is NULL");
  args = packed_args(out, WARPWRIGHT_HIDDEN);
  args.ids = (const int32_t*)(const void*)((const char*)kIds + 1);
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "ids is 0x");
  warpwright_encoder_destroy(encoder);
  CHECK_REFUSED(warpwright_encoder_tokens(encoder, &args), "has destroyed");
  warpwright_encoder_destroy(encoder);
  warpwright_encoder_destroy(NULL);
}

int main(int count, char** arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: encoder_test FOLDER\n");
    return 2;
  }
  const char* folder = arguments[1];
  warpwright_context* context = NULL;
  const warpwright_context_options options = {
      .size = sizeof options, .device = WARPWRIGHT_DEVICE_CPU, .threads = 2};
  if (warpwright_context_create(&options, &context) != WARPWRIGHT_OK) {
    fprintf(stderr, "%s\n", warpwright_last_error());
    return 1;
  }
  test_forms(context, folder);
  test_states(context, folder);
  test_texts(context, folder);
  test_attention(context, folder);
  test_padding(context);
  test_refusals(context, folder);
  warpwright_context_destroy(context);
  if (failures == 0) printf("encoders do what the header says\n");
  return failures == 0 ? 0 : 1;
}
