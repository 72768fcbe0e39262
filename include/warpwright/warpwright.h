/* warpwright.h: the C ABI of libwarpwright, the kernels of warpwright for programs in any language.
 *
 *     warpwright_context* context = NULL;
 *     warpwright_context_options options = {.size = sizeof options, .device = WARPWRIGHT_DEVICE_CUDA};
 *     if (warpwright_context_create(&options, &context) != WARPWRIGHT_OK) puts(warpwright_last_error());
 *
 *     warpwright_norm_forward_args args = {.size = sizeof args, .rows = rows, .columns = columns,
 *                                          .x = x, .weight = weight, .bias = bias, .out = out,
 *                                          .x_dtype = WARPWRIGHT_BF16, .parameter_dtype = WARPWRIGHT_F32,
 *                                          .out_dtype = WARPWRIGHT_BF16, .eps = 1e-5};
 *     warpwright_layernorm_forward(context, &args);
 *
 * Rules that hold for every function:
 *   - It returns a status. If that is not WARPWRIGHT_OK, warpwright_last_error() has a line that names the
 *     argument and what it was. Nothing is printed, no exception leaves, the process is never ended.
 *   - Memory belongs to the caller: tensors, and the workspace that a function asks for (the same arguments,
 *     given to the function of that name with _workspace after it, tell how much). Pointers are of the
 *     context's device. Nothing is allocated there, and nothing waits for it: on a GPU a call puts its work
 *     on the context's stream and returns, and can be captured into a CUDA graph. (An encoder has memory of
 *     its own, and says what else is different.)
 *   - Tensors are dense and row-major. They are aligned to their elements, or refused; 16 bytes are fastest.
 *   - Arguments are checked before anything is read: sizes, dtypes, alignment, reserved fields (0), handles
 *     (a destroyed one, too). A NULL means that a tensor is not there, if the comment at it says "may be
 *     NULL". A normalization refuses what is written and overlaps another tensor. A pointer cannot be told
 *     from one to less memory than the sizes claim: that is the caller's to get right.
 *   - Equal calls on equal devices give equal bits.
 *
 * Threads: a context serves one call at a time, those of its encoders included; a second call, from another
 * thread or from a log callback, is refused. Use a context for each thread; contexts are light. Each thread
 * that calls a CPU's functions has workers of its own; a call that cannot have as many as its context says
 * (ulimit -u, a cgroup's limit, memory for their stacks) is refused.
 *
 * Fork: once a process has made a context, every call in a child that it forks is refused
 * (WARPWRIGHT_FAILED), because the workers stay in the parent; destroying does nothing there. A child may
 * use the library if its parent had made no context, or after exec.
 *
 * Versions: see WARPWRIGHT_ABI_MAJOR. Structures begin with their size as the caller knew it: a library of
 * the same major version takes shorter ones of older callers, and what they do not have counts as 0.
 */
#ifndef WARPWRIGHT_WARPWRIGHT_H
#define WARPWRIGHT_WARPWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#define WARPWRIGHT_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The major version changes where a caller compiled against an older header would no longer work, the minor
 * one where something is added. A caller needs the same major and at least its own minor version; the check
 * is
 *     warpwright_abi_version() / 1000 == WARPWRIGHT_ABI_MAJOR &&
 *     warpwright_abi_version() % 1000 >= WARPWRIGHT_ABI_MINOR */
#define WARPWRIGHT_ABI_MAJOR 1
#define WARPWRIGHT_ABI_MINOR 2

/* 1000 * major + minor of the library. */
WARPWRIGHT_API int32_t warpwright_abi_version(void);

/* The release of the library, "0.1.0". */
WARPWRIGHT_API const char* warpwright_version(void);

/* ---- Status ------------------------------------------------------------------------------------ */

typedef int32_t warpwright_status;
enum {
  WARPWRIGHT_OK = 0,
  WARPWRIGHT_INVALID_ARGUMENT = 1, /* an argument is missing, out of range or does not fit the others */
  WARPWRIGHT_UNSUPPORTED = 2,      /* no kernel of this build runs it on this device */
  WARPWRIGHT_NO_DEVICE = 3,        /* the device is not there, or this build has no code for it */
  WARPWRIGHT_OUT_OF_MEMORY = 4,
  WARPWRIGHT_FAILED = 5 /* the device, its driver or the system reports an error */
};

/* "WARPWRIGHT_OK", …; "unknown status" for other numbers. */
WARPWRIGHT_API const char* warpwright_status_name(warpwright_status status);

/* Of the last call of this thread that failed, one line in UTF-8; "" where none has. Valid until the thread's
 * next call that fails. */
WARPWRIGHT_API const char* warpwright_last_error(void);

/* ---- Context ----------------------------------------------------------------------------------- */

typedef int32_t warpwright_device;
enum { WARPWRIGHT_DEVICE_CPU = 0, WARPWRIGHT_DEVICE_CUDA = 1 };

typedef int32_t warpwright_dtype;
enum { WARPWRIGHT_F64 = 0, WARPWRIGHT_F32 = 1, WARPWRIGHT_BF16 = 2, WARPWRIGHT_F16 = 3 };

/* A device, its stream, and the kernels chosen so far. */
typedef struct warpwright_context warpwright_context;

/* Called with one line (no newline at its end, valid during the call) for every operation. */
typedef void (*warpwright_log)(void* data, const char* line);

typedef struct warpwright_context_options {
  size_t size; /* sizeof(warpwright_context_options) */
  warpwright_device device;
  int32_t device_index; /* of a GPU, as CUDA counts them; 0 of a CPU */
  int32_t threads;      /* of a CPU, at most 4096; 0: OMP_NUM_THREADS, or the processors it may use */
  int32_t reserved;     /* 0 */
  /* May be NULL. Where it is set, every call is timed, waits for the device and cannot be captured. */
  warpwright_log log;
  void* log_data;
} warpwright_context_options;

/* WARPWRIGHT_FORCE in the environment forces kernels (layernorm=cpu.avx2,…: `warpwright info` lists them). */
WARPWRIGHT_API warpwright_status warpwright_context_create(const warpwright_context_options* options,
                                                           warpwright_context** context);

/* NULL is fine. Work that is still running on the device is not waited for. Its encoders live on. A handle
 * that is none is left alone, and warpwright_last_error() says so. */
WARPWRIGHT_API void warpwright_context_destroy(warpwright_context* context);

/* A cudaStream_t or CUstream of the context's GPU, which stays the caller's; NULL, as at the start, is CUDA's
 * default stream. Of a CPU only NULL. */
WARPWRIGHT_API warpwright_status warpwright_context_set_stream(warpwright_context* context, void* stream);

/* Worker threads of a CPU from the next call on; 0 as in the options. Results do not depend on it. */
WARPWRIGHT_API warpwright_status warpwright_context_set_threads(warpwright_context* context, int32_t threads);

/* GPUs that can be asked for; 0 where the build, the driver or the machine has none. */
WARPWRIGHT_API int32_t warpwright_cuda_device_count(void);

/* ---- Normalization ----------------------------------------------------------------------------- */

/* Layer normalization over rows of `columns` elements, and normalization by the root mean square:
 *     layernorm  out = (x - mean) * rstd * weight + bias     rstd = 1/sqrt(variance + eps)
 *     rmsnorm    out = x * rstd * weight                     rstd = 1/sqrt(mean of squares + eps)
 * rmsnorm has neither bias nor mean: both are NULL.
 *
 * dtypes: x, dx, dsum and kept are x_dtype; weight and bias are parameter_dtype, which is x_dtype or, beside
 * BF16 and F16, F32; out and dout are out_dtype, which is x_dtype or parameter_dtype. mean and rstd are F32,
 * beside F64 they are F64, and so is all arithmetic. dweight and dbias are gradient_dtype, which is that of
 * mean or parameter_dtype.
 *
 * Backward from the output (to keep neither x nor mean): give `out` in place of x. x̂ = (out - bias)/weight is
 * lost in a column whose weight is 0 or tiny beside its bias. Such columns are found and, up to `kept_count`
 * of them, kept by the forward in `kept_columns` and `kept`, which the backward then needs together with
 * mean. A lost column that is not kept, for want of places, gets NaN in its dweight and its dx: nothing is
 * made up in silence. How many there are stands in kept_columns[0], on the device. */
typedef struct warpwright_norm_forward_args {
  size_t size;           /* sizeof(warpwright_norm_forward_args) */
  int64_t rows, columns; /* columns >= 1 */
  const void* x;         /* (rows, columns) */
  const void* weight;    /* (columns); may be NULL: 1 */
  const void* bias;      /* (columns); may be NULL: 0 */
  void* out;             /* (rows, columns); may be x where the dtypes are equal and nothing is kept */
  void* mean;            /* (rows); may be NULL */
  void* rstd;            /* (rows); may be NULL */
  int32_t* kept_columns; /* (1 + kept_count); may be NULL. The number of lost columns, then their indices,
                            then -1 */
  void* kept;            /* (rows, kept_count): x of those columns; NULL where kept_count is 0 */
  int64_t kept_count;
  void* workspace;
  size_t workspace_bytes;
  double eps;
  warpwright_dtype x_dtype, parameter_dtype, out_dtype;
  int32_t reserved; /* 0 */
} warpwright_norm_forward_args;

/* flags of the backward: a gradient is added to what stands there. */
enum { WARPWRIGHT_ADD_TO_DX = 1, WARPWRIGHT_ADD_TO_DPARAMETERS = 2 };

typedef struct warpwright_norm_backward_args {
  size_t size;           /* sizeof(warpwright_norm_backward_args) */
  int64_t rows, columns; /* columns >= 1 */
  const void* dout;      /* (rows, columns) */
  const void* x;         /* (rows, columns); NULL where out is given */
  const void* out;       /* (rows, columns), as the forward left it, in place of x; else NULL */
  const void* weight;    /* as in the forward */
  const void* bias;      /* as in the forward; beside out only, else NULL */
  const void* mean;      /* as the forward left it; beside out only where kept_columns is given, else NULL */
  const void* rstd;      /* as the forward left it */
  const void* dsum; /* (rows, columns), a gradient of x from elsewhere that is added to dx; may be NULL */
  const int32_t* kept_columns; /* as the forward left it; beside out only, may be NULL */
  const void* kept;            /* likewise */
  int64_t kept_count;
  void* dx;      /* (rows, columns); may be dsum, or out if the dtypes are equal */
  void* dweight; /* (columns); may be NULL */
  void* dbias;   /* (columns); may be NULL where dweight is */
  void* workspace;
  size_t workspace_bytes;
  warpwright_dtype x_dtype, parameter_dtype, out_dtype, gradient_dtype;
  int32_t flags;
  int32_t reserved; /* 0 */
} warpwright_norm_backward_args;

/* The residual connection with the normalization behind it, in one pass over memory:
 *     sum = x + x_bias + residual     out = layernorm(sum), or rmsnorm(sum) where rms is not 0
 * Additions are in fp32 and rounded once, to `sum`, of which the statistics are taken; without `sum`, they
 * are taken of what is not rounded. All tensors but mean and rstd are `dtype`. The backward is that of the
 * normalization with `sum` as its x: its dx is the gradient of x and of residual, and dsum takes the gradient
 * that `sum` has from elsewhere. */
typedef struct warpwright_residual_norm_forward_args {
  size_t size;           /* sizeof(warpwright_residual_norm_forward_args) */
  int64_t rows, columns; /* columns >= 1 */
  const void* x;         /* (rows, columns) */
  const void* x_bias;    /* (columns); may be NULL: 0 */
  const void* residual;  /* (rows, columns) */
  const void* weight;    /* (columns); may be NULL: 1 */
  const void* bias;      /* (columns); may be NULL: 0; NULL where rms is not 0 */
  void* sum;             /* (rows, columns); may be x or residual; may be NULL */
  void* out;             /* (rows, columns); may be x or residual, but not sum */
  void* mean;            /* (rows); may be NULL; NULL where rms is not 0 */
  void* rstd;            /* (rows); may be NULL */
  int32_t* kept_columns; /* as in warpwright_norm_forward_args, of `sum`; NULL where sum is */
  void* kept;
  int64_t kept_count;
  void* workspace;
  size_t workspace_bytes;
  double eps;
  warpwright_dtype dtype;
  int32_t rms;
} warpwright_residual_norm_forward_args;

WARPWRIGHT_API warpwright_status warpwright_layernorm_forward(warpwright_context* context,
                                                              const warpwright_norm_forward_args* args);
WARPWRIGHT_API warpwright_status warpwright_layernorm_backward(warpwright_context* context,
                                                               const warpwright_norm_backward_args* args);
WARPWRIGHT_API warpwright_status warpwright_rmsnorm_forward(warpwright_context* context,
                                                            const warpwright_norm_forward_args* args);
WARPWRIGHT_API warpwright_status warpwright_rmsnorm_backward(warpwright_context* context,
                                                             const warpwright_norm_backward_args* args);

WARPWRIGHT_API warpwright_status warpwright_residual_norm_forward(
    warpwright_context* context, const warpwright_residual_norm_forward_args* args);

/* Bytes of workspace that a call with these arguments needs, 0 for many; it depends on sizes, dtypes and on
 * which tensors are NULL, not on where they are. `workspace` itself is not looked at. */
WARPWRIGHT_API warpwright_status warpwright_layernorm_forward_workspace(
    warpwright_context* context, const warpwright_norm_forward_args* args, size_t* bytes);
WARPWRIGHT_API warpwright_status warpwright_layernorm_backward_workspace(
    warpwright_context* context, const warpwright_norm_backward_args* args, size_t* bytes);
WARPWRIGHT_API warpwright_status warpwright_rmsnorm_forward_workspace(
    warpwright_context* context, const warpwright_norm_forward_args* args, size_t* bytes);
WARPWRIGHT_API warpwright_status warpwright_rmsnorm_backward_workspace(
    warpwright_context* context, const warpwright_norm_backward_args* args, size_t* bytes);

WARPWRIGHT_API warpwright_status warpwright_residual_norm_forward_workspace(
    warpwright_context* context, const warpwright_residual_norm_forward_args* args, size_t* bytes);

/* ---- Encoder (since 1.1) ----------------------------------------------------------------------- */

/* A BERT-family encoder (BERT, MiniLM, RoBERTa, cross-encoders): texts or token ids to vectors, without a row
 * of padding.
 *
 *     warpwright_encoder* encoder = NULL;
 *     warpwright_encoder_options options = {.size = sizeof options, .folder = "all-MiniLM-L6-v2",
 *                                           .dtype = WARPWRIGHT_F32};
 *     if (warpwright_encoder_create(context, &options, &encoder) != WARPWRIGHT_OK) …
 *
 * An encoder works on its context's device, with the stream and the threads that the context has at each
 * call. It has memory of its own, all of it allocated when it is created, for
 * batches of up to max_batch_tokens; what is larger is done in several batches. It serves one call at a time,
 * also on the device: order the streams of its calls. */
typedef struct warpwright_encoder warpwright_encoder;

typedef int32_t warpwright_pooling;
enum {
  WARPWRIGHT_POOLING_OF_MODEL = 0, /* as the folder says; mean where it does not */
  WARPWRIGHT_POOLING_MEAN = 1,
  WARPWRIGHT_POOLING_CLS = 2,
  WARPWRIGHT_POOLING_MAX = 3,
  WARPWRIGHT_POOLING_MEAN_SQRT = 4 /* the sum over the square root of the length */
};

typedef int32_t warpwright_normalization;
enum {
  WARPWRIGHT_NORMALIZE_OF_MODEL = 0, /* as the folder says; not where it does not */
  WARPWRIGHT_NORMALIZE = 1,          /* vectors of length 1 */
  WARPWRIGHT_NORMALIZE_NOT = 2
};

/* A tensor in the host's memory: one row (rank 1: columns) or a matrix (rank 2: rows, columns). */
typedef struct warpwright_tensor {
  const char* name; /* "embeddings.word_embeddings.weight", maybe behind a prefix as "bert." */
  const void* data;
  int64_t rows, columns;
  int32_t rank;
  warpwright_dtype dtype;
} warpwright_tensor;

typedef struct warpwright_encoder_options {
  size_t size; /* sizeof(warpwright_encoder_options) */
  /* A Hugging Face directory: config.json, model.safetensors, and for texts tokenizer.json, vocab.txt or
   * vocab.json and merges.txt; sentence-transformers' files where there are. NULL beside `tensors`. */
  const char* folder;
  const char* config;               /* what stands in config.json, beside `tensors`; else NULL */
  const warpwright_tensor* tensors; /* (tensor_count), copied; else NULL */
  int64_t tensor_count;
  int64_t max_batch_tokens;    /* 0: 16384 */
  int64_t max_batch_sequences; /* 0: max_batch_tokens, at most 4096 */
  int64_t max_length;          /* tokens of a text or a pair, special ones included; 0: the model's */
  warpwright_dtype dtype;      /* of weights and hidden states: F32, BF16 or F16 */
  warpwright_pooling pooling;
  warpwright_normalization normalization;
  int32_t batch_invariant; /* not 0: a text's bits do not depend on what shares its batch */
  int32_t refuse_long;     /* not 0: a text of more than max_length tokens is an error, and not cut */
  int32_t plain_text;      /* not 0: "[SEP]" in a text is text, and not the token */
  int32_t tf32;            /* not 0: a GPU's fp32 products may round their factors to tf32 */
  int32_t reserved;        /* 0 */
  /* Of a folder on a CPU: the folder of a cache, where its weights are kept as the kernels take them, for all
   * processes; created if missing. If NULL or unusable, the weights are laid out at each call.
   * Its files are mapped: shortening one while an encoder uses it ends the process with SIGBUS. */
  const char* weights_cache;
} warpwright_encoder_options;

WARPWRIGHT_API warpwright_status warpwright_encoder_create(warpwright_context* context,
                                                           const warpwright_encoder_options* options,
                                                           warpwright_encoder** encoder);

/* NULL is fine. Work that is still running on the device is waited for. A handle that is none is left alone,
 * and warpwright_last_error() says so. */
WARPWRIGHT_API void warpwright_encoder_destroy(warpwright_encoder* encoder);

typedef struct warpwright_encoder_info {
  size_t size; /* sizeof(warpwright_encoder_info), set by the caller */
  int64_t hidden_size, layers, heads, vocabulary, token_types;
  int64_t max_length;  /* tokens of a text */
  int64_t vector_size; /* of a vector */
  int64_t labels;      /* of a classification head; 0: the model has none */
  int64_t max_batch_tokens, max_batch_sequences;
  int64_t wasted_tokens; /* rows computed so far beyond the tokens that were given */
  int32_t has_tokenizer; /* 0: there are no texts for it, only ids */
  warpwright_dtype dtype;
  /* Since 1.2: the model's prompts (config_sentence_transformers.json), and the index of its default, or -1.
   */
  int32_t prompts, default_prompt;
} warpwright_encoder_info;

WARPWRIGHT_API warpwright_status warpwright_encoder_get_info(const warpwright_encoder* encoder,
                                                             warpwright_encoder_info* info);

/* Since 1.2. Prompt `index`, 0 to info.prompts - 1: its name and its text, which live as long as the encoder.
 */
WARPWRIGHT_API warpwright_status warpwright_encoder_get_prompt(const warpwright_encoder* encoder,
                                                               int64_t index, const char** name,
                                                               const char** text);

typedef int32_t warpwright_encoder_result;
enum {
  WARPWRIGHT_VECTORS = 0, /* (texts, vector_size): pooled, behind dense layers and normalization */
  WARPWRIGHT_LOGITS = 1,  /* (texts, labels), of a classification head */
  WARPWRIGHT_HIDDEN = 2   /* (tokens, hidden_size): the last hidden states */
};

/* Texts, or pairs of texts, to VECTORS or LOGITS in the host's memory. A prompt is put before each text that
 * gets VECTORS: `prompt`, else the one named `prompt_name`, else the model's default, if it has one. Texts
 * are tokenized on the context's threads, sorted by length and packed; results come back in the order of the
 * texts, and the call waits for them. A text that cannot be encoded gets zeros and does not take the others
 * with it. */
typedef struct warpwright_encoder_texts_args {
  size_t size; /* sizeof(warpwright_encoder_texts_args) */
  int64_t count;
  const char* const* texts;   /* (count) in UTF-8, at most 2^31 bytes each; other bytes count as U+FFFD */
  const size_t* text_bytes;   /* (count); may be NULL: a 0 ends each text */
  const char* const* seconds; /* (count), the pairs' second texts, for LOGITS; may be NULL */
  const size_t* second_bytes; /* (count); may be NULL, likewise */
  float* out;                 /* (count, vector_size) or (count, labels) */
  int64_t* tokens;            /* (count), how many each text has; may be NULL */
  /* (count), WARPWRIGHT_OK or WARPWRIGHT_FAILED for each text, the call itself being WARPWRIGHT_OK; may be
   * NULL: the call fails where a text does. */
  warpwright_status* statuses;
  warpwright_encoder_result result;
  int32_t reserved; /* 0 */
  /* Since 1.2. */
  const char*
      prompt; /* (prompt_bytes) in UTF-8; may be NULL. Of 0 bytes: no prompt, not the default either */
  size_t prompt_bytes;     /* at most 2^20 */
  const char* prompt_name; /* ended by a 0; may be NULL. Not looked at if there is a prompt */
} warpwright_encoder_texts_args;

WARPWRIGHT_API warpwright_status warpwright_encoder_texts(warpwright_encoder* encoder,
                                                          const warpwright_encoder_texts_args* args);

/* The reason why this text of the latest call of warpwright_encoder_texts has no result; "" if it has one, or
 * if there is no such encoder or index. Valid until the encoder's next call. */
WARPWRIGHT_API const char* warpwright_encoder_text_error(const warpwright_encoder* encoder, int64_t index);

/* Token ids to a result on the context's device. Ids, bounds and mask are in the host's memory and are not
 * needed beyond the call; on a GPU it does not wait for the device (but for the batch before it having been
 * read), cannot be captured into a CUDA graph, and does not look for values that are not finite; on a CPU
 * those are WARPWRIGHT_FAILED.
 *
 * Packed: ids and types of all sequences one after the other, sequence s being
 * [cu_seqlens[s], cu_seqlens[s + 1]). HIDDEN is (cu_seqlens[sequences], hidden_size).
 * Padded: cu_seqlens is NULL; ids, types and mask are (sequences, length), and what the mask hides, wherever
 * it stands, is left out. HIDDEN is (sequences, length, hidden_size), 0 in padding. */
typedef struct warpwright_encoder_tokens_args {
  size_t size; /* sizeof(warpwright_encoder_tokens_args) */
  int64_t sequences, length;
  const int32_t* ids;
  const int32_t* types;      /* may be NULL: 0 */
  const int32_t* cu_seqlens; /* (sequences + 1) */
  const uint8_t* mask;       /* 1: a token, 0: padding; may be NULL: no padding */
  /* In place of ids and the embedding: the hidden states that the layers begin with, on the device, of the
   * encoder's dtype, packed or padded as ids would be. ids and types are then NULL. */
  const void* states;
  void* out; /* of the encoder's dtype; VECTORS are F32 */
  warpwright_encoder_result result;
  /* Not 0: padding goes through the layers, too, as texts of its own: the same result, for comparison. */
  int32_t keep_padding;
} warpwright_encoder_tokens_args;

WARPWRIGHT_API warpwright_status warpwright_encoder_tokens(warpwright_encoder* encoder,
                                                           const warpwright_encoder_tokens_args* args);

#ifdef __cplusplus
}
#endif

#endif
