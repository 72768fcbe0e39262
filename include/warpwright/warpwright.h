/* warpwright.h: the C ABI of libwarpwright, warpwright's kernels for programs in any language.
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
 * These rules hold for every function:
 *   - It returns a status, unless its declaration says otherwise. If the status is not WARPWRIGHT_OK,
 *     warpwright_last_error() returns one line that names the argument and its value. The library prints
 *     nothing, throws nothing and does not end the process. GNU's OpenMP runtime (libgomp), which runs the
 *     workers of a CPU, does: it prints a line and exits if it gets no memory for a team of threads.
 *   - The caller owns all memory: the tensors, and the workspace. The function with _workspace appended to
 *     its name takes the same arguments and returns the workspace's size. Pointers refer to memory of the
 *     context's device. The library allocates no memory there and does not wait for the device. On a GPU a
 *     call enqueues its work on the context's stream and returns, so it can be captured into a CUDA graph.
 *     (An encoder and a decoder own memory. Their sections list the differences.)
 *   - Tensors are dense and row-major. A tensor must be aligned to its element type. 16 bytes are fastest.
 *   - Arguments are checked before any memory is read: sizes, dtypes, alignment, reserved fields (must be 0)
 *     and handles, even destroyed ones (a handle is not an address, and its value is never used again).
 *     A pointer may be NULL only if its comment says "may be NULL". A normalization refuses outputs that
 *     overlap other tensors. The library cannot check that a pointer's memory is as large as the sizes say.
 *     The caller must ensure this.
 *   - Equal calls on equal devices give equal bits.
 *
 * Threads: a context runs one call at a time, including the calls of its encoders and decoders. It refuses a
 * second call, whether from another thread or from a log callback. Use one context per thread; contexts are
 * cheap. Each thread that calls functions of a CPU has its own workers. A call is refused if the system
 * cannot create the context's number of threads (ulimit -u, a cgroup's limit, memory for their stacks).
 *
 * Fork: if a process has created a context, every call in a forked child is refused (WARPWRIGHT_FAILED),
 * because the workers stay in the parent. Destroying a handle does nothing in the child. A child may use the
 * library if its parent had created no context, or after exec.
 *
 * Versions: see WARPWRIGHT_ABI_MAJOR. Each structure begins with its size, as the caller knew it. A
 * library of the same major version accepts the shorter structures of older callers and takes missing fields
 * as 0.
 */
#ifndef WARPWRIGHT_WARPWRIGHT_H
#define WARPWRIGHT_WARPWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#define WARPWRIGHT_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The major version changes if callers compiled against an older header would stop working. The minor version
 * changes if something is added. A caller needs the same major version and at least its own minor version:
 *     warpwright_abi_version() / 1000 == WARPWRIGHT_ABI_MAJOR &&
 *     warpwright_abi_version() % 1000 >= WARPWRIGHT_ABI_MINOR */
#define WARPWRIGHT_ABI_MAJOR 1
#define WARPWRIGHT_ABI_MINOR 6

/* 1000 * major + minor version of the library. */
WARPWRIGHT_API int32_t warpwright_abi_version(void);

/* The library's release, such as "0.1.0". */
WARPWRIGHT_API const char* warpwright_version(void);

/* ---- Status ------------------------------------------------------------------------------------ */

typedef int32_t warpwright_status;
enum {
  WARPWRIGHT_OK = 0,
  WARPWRIGHT_INVALID_ARGUMENT = 1, /* an argument is missing, out of range or does not fit the others */
  WARPWRIGHT_UNSUPPORTED = 2,      /* this build has no kernel for these arguments on this device */
  WARPWRIGHT_NO_DEVICE = 3,        /* the device does not exist, or this build has no code for it */
  WARPWRIGHT_OUT_OF_MEMORY = 4,
  WARPWRIGHT_FAILED = 5 /* the device, its driver or the system reported an error */
};

/* "WARPWRIGHT_OK", …; "unknown status" for other numbers. */
WARPWRIGHT_API const char* warpwright_status_name(warpwright_status status);

/* One line in UTF-8 about this thread's last failed call; "" if no call has failed. Valid until the thread's
 * next failed call. */
WARPWRIGHT_API const char* warpwright_last_error(void);

/* ---- Context ----------------------------------------------------------------------------------- */

typedef int32_t warpwright_device;
enum { WARPWRIGHT_DEVICE_CPU = 0, WARPWRIGHT_DEVICE_CUDA = 1 };

typedef int32_t warpwright_dtype;
enum { WARPWRIGHT_F64 = 0, WARPWRIGHT_F32 = 1, WARPWRIGHT_BF16 = 2, WARPWRIGHT_F16 = 3 };
/* Since 1.3, for masks alone. */
enum { WARPWRIGHT_I32 = 4, WARPWRIGHT_I64 = 5, WARPWRIGHT_U8 = 6 };
/* Since 1.4, for decoders alone: BF16 if the folder's weights are, otherwise F32. */
enum { WARPWRIGHT_DTYPE_OF_MODEL = -1 };
/* On a CPU alone, since 1.5 for encoders and since 1.6 for decoders: the products in int8. The rest is BF16
 * where the processor multiplies BF16 faster than F32, otherwise F32. */
enum { WARPWRIGHT_INT8 = 7 };

/* A device, its stream, and the kernels selected so far. */
typedef struct warpwright_context warpwright_context;

/* Called once per operation with one line, without a newline. The line is valid during the call. */
typedef void (*warpwright_log)(void* data, const char* line);

typedef struct warpwright_context_options {
  size_t size; /* sizeof(warpwright_context_options) */
  warpwright_device device;
  int32_t device_index; /* the GPU's index in CUDA's order; 0 for a CPU */
  int32_t threads;      /* of a CPU, at most 4096; 0: OMP_NUM_THREADS, or else the available processors */
  int32_t reserved;     /* 0 */
  /* May be NULL. If it is set, every call is timed, waits for the device and cannot be captured. */
  warpwright_log log;
  void* log_data;
} warpwright_context_options;

/* The variable WARPWRIGHT_FORCE forces kernels (norm=cpu.avx2,…). `warpwright info` lists them. */
WARPWRIGHT_API warpwright_status warpwright_context_create(const warpwright_context_options* options,
                                                           warpwright_context** context);

/* NULL is allowed. Does not wait for work on the device. The context's encoders and decoders remain usable.
 * An invalid handle is ignored, and warpwright_last_error() says so. */
WARPWRIGHT_API void warpwright_context_destroy(warpwright_context* context);

/* Sets the stream: a cudaStream_t or CUstream of the context's GPU, which the caller owns. NULL, the initial
 * value, is CUDA's default stream. A CPU accepts only NULL. */
WARPWRIGHT_API warpwright_status warpwright_context_set_stream(warpwright_context* context, void* stream);

/* Sets the number of a CPU's threads for later calls; 0 as in the options. Results do not depend on it. */
WARPWRIGHT_API warpwright_status warpwright_context_set_threads(warpwright_context* context, int32_t threads);

/* The number of usable GPUs; 0 if the build, the driver or the machine has none. */
WARPWRIGHT_API int32_t warpwright_cuda_device_count(void);

/* ---- Normalization ----------------------------------------------------------------------------- */

/* Layer normalization and RMS normalization over rows of `columns` elements:
 *     layernorm  out = (x - mean) * rstd * weight + bias     rstd = 1/sqrt(variance + eps)
 *     rmsnorm    out = x * rstd * weight                     rstd = 1/sqrt(mean of squares + eps)
 * rmsnorm has neither bias nor mean: both are NULL.
 *
 * dtypes: x, dx, dsum and kept have x_dtype. weight and bias have parameter_dtype: x_dtype or, with BF16 and
 * F16, also F32. out and dout have out_dtype: x_dtype or parameter_dtype. mean and rstd are F32, and
 * arithmetic is in F32; if x_dtype is F64, both are F64. dweight and dbias have gradient_dtype: mean's dtype
 * or parameter_dtype.
 *
 * Backward from the output, so that neither x nor mean need be kept: pass `out` instead of x. It computes
 * x̂ = (out - bias)/weight, which is lost in columns whose weight is 0 or tiny compared with the bias. The
 * forward finds these columns and keeps up to `kept_count` of them in `kept_columns` and `kept`. The backward
 * then needs both, and mean. If there are more lost columns, the rest get NaN in dweight and dx, so that the
 * loss is not silent. kept_columns[0], on the device, is the number of lost columns. */
typedef struct warpwright_norm_forward_args {
  size_t size;           /* sizeof(warpwright_norm_forward_args) */
  int64_t rows, columns; /* columns >= 1 */
  const void* x;         /* (rows, columns) */
  const void* weight;    /* (columns); may be NULL: 1 */
  const void* bias;      /* (columns); may be NULL: 0 */
  void* out;             /* (rows, columns); may be x if the dtypes are equal and nothing is kept */
  void* mean;            /* (rows); may be NULL */
  void* rstd;            /* (rows); may be NULL */
  int32_t* kept_columns; /* (1 + kept_count); may be NULL. The number of lost columns, then their indices,
                            then -1 */
  void* kept;            /* (rows, kept_count): x in those columns; NULL if kept_count is 0 */
  int64_t kept_count;
  void* workspace;
  size_t workspace_bytes;
  double eps;
  warpwright_dtype x_dtype, parameter_dtype, out_dtype;
  int32_t reserved; /* 0 */
} warpwright_norm_forward_args;

/* Flags of the backward: the gradient is added to the tensor's content (+=) instead of replacing it. */
enum { WARPWRIGHT_ADD_TO_DX = 1, WARPWRIGHT_ADD_TO_DPARAMETERS = 2 };

typedef struct warpwright_norm_backward_args {
  size_t size;                 /* sizeof(warpwright_norm_backward_args) */
  int64_t rows, columns;       /* columns >= 1 */
  const void* dout;            /* (rows, columns) */
  const void* x;               /* (rows, columns); NULL if out is given */
  const void* out;             /* (rows, columns), the forward's output, instead of x; else NULL */
  const void* weight;          /* as in the forward */
  const void* bias;            /* as in the forward; only with out, else NULL */
  const void* mean;            /* from the forward; with out only if kept_columns is given, else NULL */
  const void* rstd;            /* from the forward */
  const void* dsum;            /* (rows, columns), another gradient of x, which is added to dx; may be NULL */
  const int32_t* kept_columns; /* from the forward; only with out; may be NULL */
  const void* kept;            /* from the forward; only with kept_columns */
  int64_t kept_count;
  void* dx;      /* (rows, columns); may be dsum, or out if the dtypes are equal */
  void* dweight; /* (columns); may be NULL */
  void* dbias;   /* (columns); may be NULL if dweight is */
  void* workspace;
  size_t workspace_bytes;
  warpwright_dtype x_dtype, parameter_dtype, out_dtype, gradient_dtype;
  int32_t flags;
  int32_t reserved; /* 0 */
} warpwright_norm_backward_args;

/* The residual connection and the normalization after it, in one pass over memory:
 *     sum = x + x_bias + residual     out = layernorm(sum), or rmsnorm(sum) if rms is not 0
 * The additions are in fp32 and are rounded once, to `sum`. The statistics are those of the rounded sum, or
 * of the unrounded sum if `sum` is NULL. All tensors except mean and rstd have `dtype`. For the backward,
 * call the normalization's backward with `sum` as x. Its dx is the gradient of both x and residual. Its dsum
 * takes the gradient that `sum` receives from elsewhere. */
typedef struct warpwright_residual_norm_forward_args {
  size_t size;           /* sizeof(warpwright_residual_norm_forward_args) */
  int64_t rows, columns; /* columns >= 1 */
  const void* x;         /* (rows, columns) */
  const void* x_bias;    /* (columns); may be NULL: 0 */
  const void* residual;  /* (rows, columns) */
  const void* weight;    /* (columns); may be NULL: 1 */
  const void* bias;      /* (columns); may be NULL: 0; NULL if rms is not 0 */
  void* sum;             /* (rows, columns); may be x or residual; may be NULL */
  void* out;             /* (rows, columns); may be x or residual, but not sum */
  void* mean;            /* (rows); may be NULL; NULL if rms is not 0 */
  void* rstd;            /* (rows); may be NULL */
  int32_t* kept_columns; /* as in warpwright_norm_forward_args, for `sum`; NULL if sum is */
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

/* The bytes of workspace that a call with these arguments needs, often 0. They depend on sizes, on dtypes and
 * on which tensors are NULL, but not on addresses. `workspace` itself is ignored. */
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

/* A BERT-family encoder (BERT, MiniLM, RoBERTa, cross-encoders) turns texts or token ids into vectors,
 * without computing padding.
 *
 *     warpwright_encoder* encoder = NULL;
 *     warpwright_encoder_options options = {.size = sizeof options, .folder = "all-MiniLM-L6-v2",
 *                                           .dtype = WARPWRIGHT_F32};
 *     if (warpwright_encoder_create(context, &options, &encoder) != WARPWRIGHT_OK) …
 *
 * An encoder runs on its context's device, with the context's stream and threads at the time of each call.
 * When it is created it allocates all its memory, for batches of up to max_batch_tokens. Larger input is
 * processed in several batches. An encoder runs one call at a time, on the device too: if its calls use
 * several streams, the caller must order them. */
typedef struct warpwright_encoder warpwright_encoder;

typedef int32_t warpwright_pooling;
enum {
  WARPWRIGHT_POOLING_OF_MODEL = 0, /* the folder's; mean if the folder does not say */
  WARPWRIGHT_POOLING_MEAN = 1,
  WARPWRIGHT_POOLING_CLS = 2,
  WARPWRIGHT_POOLING_MAX = 3,
  WARPWRIGHT_POOLING_MEAN_SQRT = 4 /* the sum divided by the square root of the length */
};

typedef int32_t warpwright_normalization;
enum {
  WARPWRIGHT_NORMALIZE_OF_MODEL = 0, /* the folder's; not normalized if the folder does not say */
  WARPWRIGHT_NORMALIZE = 1,          /* to vectors of length 1 */
  WARPWRIGHT_NORMALIZE_NOT = 2
};

/* A tensor in the host's memory: a vector (rank 1: columns) or a matrix (rank 2: rows, columns). */
typedef struct warpwright_tensor {
  const char* name; /* "embeddings.word_embeddings.weight", or the same after a prefix such as "bert." */
  const void* data;
  int64_t rows, columns;
  int32_t rank;
  warpwright_dtype dtype;
} warpwright_tensor;

typedef struct warpwright_encoder_options {
  size_t size; /* sizeof(warpwright_encoder_options) */
  /* A Hugging Face folder: config.json and model.safetensors. Texts also need tokenizer.json, vocab.txt, or
   * vocab.json and merges.txt. The files of sentence-transformers are optional. NULL if `tensors` is set. */
  const char* folder;
  const char* config;               /* the text of config.json, with `tensors`; else NULL */
  const warpwright_tensor* tensors; /* (tensor_count), copied; else NULL */
  int64_t tensor_count;
  int64_t max_batch_tokens;    /* 0: 16384 */
  int64_t max_batch_sequences; /* 0: max_batch_tokens, at most 4096 */
  int64_t max_length;          /* tokens of a text or a pair, with special tokens; 0: the model's */
  warpwright_dtype dtype;      /* F32, BF16, on a GPU F16, on a CPU INT8 */
  warpwright_pooling pooling;
  warpwright_normalization normalization;
  int32_t batch_invariant; /* not 0: a text's bits do not depend on the other texts in its batch */
  int32_t refuse_long;     /* not 0: a text of more than max_length tokens is an error and is not cut */
  int32_t plain_text;      /* not 0: "[SEP]" in a text is plain text, not the special token */
  int32_t tf32;            /* not 0: fp32 products on a GPU may round their operands to tf32 */
  int32_t reserved;        /* 0 */
  /* For a folder on a CPU: a cache folder that keeps its weights in the kernels' layout, shared by all
   * processes. It is created if missing. If it is NULL or unusable, each encoder lays out the weights in
   * its own memory when it is created. The cache's files are mapped: truncating one while an encoder uses it
   * ends the process with SIGBUS. */
  const char* weights_cache;
} warpwright_encoder_options;

WARPWRIGHT_API warpwright_status warpwright_encoder_create(warpwright_context* context,
                                                           const warpwright_encoder_options* options,
                                                           warpwright_encoder** encoder);

/* NULL is allowed. Waits for the encoder's work on the device. An invalid handle is ignored, and
 * warpwright_last_error() says so. */
WARPWRIGHT_API void warpwright_encoder_destroy(warpwright_encoder* encoder);

typedef struct warpwright_encoder_info {
  size_t size; /* sizeof(warpwright_encoder_info), set by the caller */
  int64_t hidden_size, layers, heads, vocabulary, token_types;
  int64_t max_length;  /* tokens of a text */
  int64_t vector_size; /* elements of a vector */
  int64_t labels;      /* of the classification head; 0: the model has none */
  int64_t max_batch_tokens, max_batch_sequences;
  int64_t wasted_tokens;  /* rows computed so far in addition to the given tokens */
  int32_t has_tokenizer;  /* 0: the encoder takes ids only, no texts */
  warpwright_dtype dtype; /* of hidden states: F32, BF16 or F16 */
  /* Since 1.2: the number of the model's prompts (config_sentence_transformers.json), and the index of the
   * default prompt or -1. */
  int32_t prompts, default_prompt;
} warpwright_encoder_info;

WARPWRIGHT_API warpwright_status warpwright_encoder_get_info(const warpwright_encoder* encoder,
                                                             warpwright_encoder_info* info);

/* Since 1.2. The name and the text of prompt `index`, 0 to info.prompts - 1. Both live as long as the encoder
 * does. */
WARPWRIGHT_API warpwright_status warpwright_encoder_get_prompt(const warpwright_encoder* encoder,
                                                               int64_t index, const char** name,
                                                               const char** text);

typedef int32_t warpwright_encoder_result;
enum {
  WARPWRIGHT_VECTORS = 0, /* (texts, vector_size): pooled, after dense layers and normalization */
  WARPWRIGHT_LOGITS = 1,  /* (texts, labels), from the classification head */
  WARPWRIGHT_HIDDEN = 2   /* (tokens, hidden_size): the last hidden states */
};

/* Turns texts or pairs of texts into VECTORS or LOGITS in the host's memory. For VECTORS, each text is
 * preceded by a prompt: `prompt`, or else the prompt named `prompt_name`, or else the model's default if
 * there is one. The context's threads tokenize the texts, which are sorted by length and packed. Results are
 * in the order of the texts, and the call waits for them. A text that cannot be encoded gets zeros. The
 * others are not affected. */
typedef struct warpwright_encoder_texts_args {
  size_t size; /* sizeof(warpwright_encoder_texts_args) */
  int64_t count;
  const char* const* texts;   /* (count) in UTF-8, at most 2^31 bytes each; invalid bytes count as U+FFFD */
  const size_t* text_bytes;   /* (count); may be NULL: a 0 ends each text */
  const char* const* seconds; /* (count), the second texts of pairs, for LOGITS; may be NULL */
  const size_t* second_bytes; /* (count); may be NULL: a 0 ends each text */
  float* out;                 /* (count, vector_size) or (count, labels) */
  int64_t* tokens;            /* (count), the number of tokens of each text; may be NULL */
  /* (count), WARPWRIGHT_OK or WARPWRIGHT_FAILED for each text, while the call itself returns WARPWRIGHT_OK.
   * May be NULL: then the call fails if a text does. */
  warpwright_status* statuses;
  warpwright_encoder_result result;
  int32_t reserved; /* 0 */
  /* Since 1.2. */
  /* (prompt_bytes) in UTF-8; may be NULL. With 0 bytes no prompt is used, not even the default. */
  const char* prompt;
  size_t prompt_bytes;     /* at most 2^20 */
  const char* prompt_name; /* ends with a 0; may be NULL; ignored if prompt is set */
} warpwright_encoder_texts_args;

WARPWRIGHT_API warpwright_status warpwright_encoder_texts(warpwright_encoder* encoder,
                                                          const warpwright_encoder_texts_args* args);

/* The reason why this text got no result in the latest call of warpwright_encoder_texts. "" if it got one, or
 * if there is no such encoder or index. Valid until the encoder's next call. */
WARPWRIGHT_API const char* warpwright_encoder_text_error(const warpwright_encoder* encoder, int64_t index);

/* Since 1.3. What a call changes in the attention of all layers. Query i of a sequence sees key j with the
 * score q_i·k_j / (sqrt(head size) · temperature) + bias_ij, unless mask_ij is 0. A query that sees no key
 * gets 0. The tensors are contiguous. They must stay as they are until the device has done the call's work.
 */
typedef struct warpwright_encoder_attention {
  size_t size; /* sizeof(warpwright_encoder_attention) */
  /* Of any dtype; more than 0.5 means one. Its shape decides. (sequences, length): 1 for a token, 0 for
   * padding, instead of args.mask. (sequences, 1, L, L): 1 if the query sees the key. Any other shape is an
   * error, and so is a value other than 0 and 1, which a GPU finds later: see
   * warpwright_encoder_check_mask. May be NULL. */
  const void* mask;
  /* In the encoder's dtype, on the context's device: (heads, L, L) for all sequences or
   * (sequences, heads, L, L). May be NULL. */
  const void* bias;
  int64_t mask_shape[4], bias_shape[4];
  int32_t mask_rank, bias_rank;
  warpwright_dtype mask_dtype; /* any; also WARPWRIGHT_I32, _I64 and _U8 */
  /* Not 0: the mask is on the context's device, as one for pairs must be. 0: it is in the host's memory. If
   * ids are given, the call waits for a mask (sequences, length) to come from the device. */
  int32_t mask_on_device;
  double temperature; /* 1e-30 or more; 1 changes nothing */
} warpwright_encoder_attention;

/* Turns token ids into a result on the context's device. Ids, offsets and mask are in the host's memory and
 * may be freed after the call. On a GPU the call does not wait for the device, except until the offsets and
 * indices of the previous batch are copied. It cannot be captured into a CUDA graph and does not check for
 * values that are not finite. On a CPU such values give WARPWRIGHT_FAILED.
 *
 * Packed: ids and types of all sequences follow each other. Sequence s is
 * [cu_seqlens[s], cu_seqlens[s + 1]). HIDDEN is (cu_seqlens[sequences], hidden_size).
 * Padded: cu_seqlens is NULL. ids, types and mask are (sequences, length), and masked positions, wherever
 * they are, are left out. HIDDEN is (sequences, length, hidden_size), with 0 in padding. */
typedef struct warpwright_encoder_tokens_args {
  size_t size; /* sizeof(warpwright_encoder_tokens_args) */
  int64_t sequences, length;
  const int32_t* ids;
  const int32_t* types;      /* may be NULL: 0 */
  const int32_t* cu_seqlens; /* (sequences + 1) */
  const uint8_t* mask;       /* 1: a token, 0: padding; may be NULL: no padding */
  /* Instead of ids and the embedding: the input of the first layer, on the device, in the encoder's dtype,
   * packed or padded as ids would be. ids and types are then NULL. */
  const void* states;
  void* out; /* the encoder's dtype; VECTORS are F32 */
  warpwright_encoder_result result;
  /* Not 0: padding passes through the layers as separate sequences. The result is the same. For comparison.
   */
  int32_t keep_padding;
  /* Since 1.3. May be NULL. A bias or a mask for pairs counts a sequence's tokens. So if there is padding, it
   * comes last, and all sequences must fit in one batch. L is at least the number of tokens of every
   * sequence. */
  const warpwright_encoder_attention* attention;
} warpwright_encoder_tokens_args;

WARPWRIGHT_API warpwright_status warpwright_encoder_tokens(warpwright_encoder* encoder,
                                                           const warpwright_encoder_tokens_args* args);

/* Since 1.3. Waits until the latest call's mask has been read on the device, and fails if a value was neither
 * 0 nor 1. Without it, the next call of warpwright_encoder_tokens fails instead, with the same message. */
WARPWRIGHT_API warpwright_status warpwright_encoder_check_mask(warpwright_encoder* encoder);

/* ---- Padding (since 1.3) ----------------------------------------------------------------------- */

/* Packs and unpacks rows on the context's device, without waiting for it.
 *
 *     warpwright_padding_lengths(context, &args);  // mask -> cu_seqlens, indices, odd
 *     warpwright_pack(context, &args);             // padded -> packed
 *     warpwright_unpack(context, &args);           // packed -> padded
 *
 * All tensors are on the device and contiguous, and no written tensor may overlap another one. A function
 * reads only the fields that it needs. */
typedef struct warpwright_padding_args {
  size_t size;                 /* sizeof(warpwright_padding_args) */
  int64_t sequences, length;   /* at most 2^31 - 1 places in all */
  int64_t columns;             /* of a row; >= 1 */
  int64_t rows;                /* of packed; at most sequences · length */
  const void* mask;            /* (sequences, length); ones in any pattern, more than 0.5 means one */
  int32_t* cu_seqlens;         /* (sequences + 1): the offsets of the sequences' packed rows */
  int32_t* indices;            /* (sequences · length): the place of each packed row, then -1 */
  int64_t* odd;                /* (1): the index of the first value other than 0 and 1, or -1 */
  void* padded;                /* (sequences, length, columns); unpack writes 0 into padding */
  void* packed;                /* (rows, columns); pack keeps rows without a place */
  warpwright_dtype mask_dtype; /* any; also WARPWRIGHT_I32, _I64 and _U8 */
  warpwright_dtype dtype;      /* of padded and packed */
} warpwright_padding_args;

WARPWRIGHT_API warpwright_status warpwright_padding_lengths(warpwright_context* context,
                                                            const warpwright_padding_args* args);
WARPWRIGHT_API warpwright_status warpwright_pack(warpwright_context* context,
                                                 const warpwright_padding_args* args);
WARPWRIGHT_API warpwright_status warpwright_unpack(warpwright_context* context,
                                                   const warpwright_padding_args* args);

/* ---- Decoder (since 1.4) ----------------------------------------------------------------------- */

/* A decoder (GPT-2, Llama, Mistral, Qwen2, Qwen3, GPT-NeoX) continues texts or token ids. It runs many
 * sequences at once. They are added and removed between any two steps:
 *
 *     warpwright_decoder* decoder = NULL;
 *     warpwright_decoder_options options = {.size = sizeof options, .folder = "run/model",
 *                                           .dtype = WARPWRIGHT_DTYPE_OF_MODEL};
 *     if (warpwright_decoder_create(context, &options, &decoder) != WARPWRIGHT_OK) …
 *     warpwright_decoder_add_args args = {.size = sizeof args, .text = "The sea", .text_bytes = 7,
 *                                         .max_tokens = 100, .temperature = 1, .top_p = 1,
 *                                         .repetition_penalty = 1};
 *     int64_t sequence, events;
 *     if (warpwright_decoder_add(decoder, &args, &sequence) != WARPWRIGHT_OK) …
 *     warpwright_decoder_event event = {.size = sizeof event};
 *     do {
 *       if (warpwright_decoder_step(decoder, &events) != WARPWRIGHT_OK) break;
 *       for (int64_t i = 0; i < events; ++i) {
 *         warpwright_decoder_get_event(decoder, i, &event);
 *         fwrite(event.text, 1, event.text_bytes, stdout);
 *       }
 *     } while (events == 0 || !event.end);
 *
 * A decoder allocates all its memory when it is created. It runs on its context's device, with a stream of
 * its own. A step waits for the tokens that it returns; a GPU may already run the next one then. It uses the
 * context's threads at the time of each call. A decoder runs one call at a time: a server makes all calls
 * from one thread, or holds a lock during each. */
typedef struct warpwright_decoder warpwright_decoder;

typedef struct warpwright_decoder_options {
  size_t size; /* sizeof(warpwright_decoder_options) */
  /* A Hugging Face folder: config.json and model.safetensors. Texts also need tokenizer.json, or vocab.json
   * and merges.txt. For the folder of a training run, its model. */
  const char* folder;
  int64_t sequences; /* that run at once; more wait; 0: 64, or fewer if the memory does not hold them */
  /* The most tokens a sequence attends to; 0: the model's, at most 2048. A sequence that fills it forgets its
   * older half and goes on. */
  int64_t context;
  int64_t cache_tokens;    /* of all sequences, at least the context; 0: enough for all that run */
  warpwright_dtype dtype;  /* F32, BF16, on a CPU INT8, or WARPWRIGHT_DTYPE_OF_MODEL */
  int32_t batch_invariant; /* not 0: a sequence's tokens do not depend on the others; slower */
  int32_t tf32;            /* not 0: fp32 products on a GPU may round their operands to tf32 */
  int32_t reserved;        /* 0 */
} warpwright_decoder_options;

/* WARPWRIGHT_OUT_OF_MEMORY if the memory does not hold the weights, or the sequences next to them. Then the
 * message says how many sequences, or how large a cache or context, would fit. */
WARPWRIGHT_API warpwright_status warpwright_decoder_create(warpwright_context* context,
                                                           const warpwright_decoder_options* options,
                                                           warpwright_decoder** decoder);

/* NULL is allowed. Ends all sequences. An invalid handle is ignored, and warpwright_last_error() says so. */
WARPWRIGHT_API void warpwright_decoder_destroy(warpwright_decoder* decoder);

typedef struct warpwright_decoder_info {
  size_t size;                /* sizeof(warpwright_decoder_info), set by the caller */
  int64_t vocabulary;         /* ids are below it */
  int64_t model_context;      /* of the model; the decoder's own may be shorter */
  int64_t context, sequences; /* as in the options */
  int64_t running, waiting;   /* sequences now; both are 0 if there is nothing to do */
  int32_t has_tokenizer;      /* 0: the decoder takes ids only, and its events have no text */
  warpwright_dtype dtype;     /* F32 or BF16; of an INT8 decoder, that of everything but the products */
} warpwright_decoder_info;

WARPWRIGHT_API warpwright_status warpwright_decoder_get_info(const warpwright_decoder* decoder,
                                                             warpwright_decoder_info* info);

/* Writes the ids with which a sequence of this text begins, with those that the tokenizer puts before a text.
 * A text without ids of its own, and no id before it, gets the end-of-text token if there is one. Special
 * tokens in the text are plain text. `count` becomes the number of ids. If it is more than `capacity`, no id
 * is written. */
WARPWRIGHT_API warpwright_status warpwright_decoder_encode(warpwright_decoder* decoder, const char* text,
                                                           size_t text_bytes, int32_t* ids, int64_t capacity,
                                                           int64_t* count);

/* Writes the text of (count) ids in UTF-8, without a 0 at its end. Bytes that are no character become U+FFFD.
 * `text_bytes` becomes the text's size. If it is more than `capacity`, nothing is written. */
WARPWRIGHT_API warpwright_status warpwright_decoder_decode(warpwright_decoder* decoder, const int32_t* ids,
                                                           int64_t count, char* text, size_t capacity,
                                                           size_t* text_bytes);

typedef struct warpwright_decoder_add_args {
  size_t size; /* sizeof(warpwright_decoder_add_args) */
  /* The prompt: either a text, encoded as by warpwright_decoder_encode, or ids. At most the decoder's
   * context. */
  const char* text; /* (text_bytes) in UTF-8; NULL if ids is set */
  size_t text_bytes;
  const int32_t* ids; /* (id_count); NULL if text is set */
  int64_t id_count;   /* at least 1 */
  /* The sequence ends before the first of these texts, which does not appear in its text. */
  const char* const* stops; /* (stop_count) in UTF-8, none of them empty; may be NULL if there are none */
  const size_t* stop_bytes; /* (stop_count); may be NULL: a 0 ends each text */
  int64_t stop_count;
  int64_t max_tokens; /* at least 1 */
  /* The order of the steps is penalty, temperature, top_k, top_p, min_p. The last three must choose among all
   * tokens if the temperature is 0. */
  double temperature; /* 0 or more; 0 takes the most likely token each time */
  int64_t top_k;      /* the k most likely tokens; 0: all */
  double top_p;       /* the most likely tokens that together reach this; in (0, 1] */
  double min_p;       /* tokens with this share of the most likely one's probability; in [0, 1] */
  /* More than 0; 1: none. Divides the positive logits of tokens that the sequence has, and multiplies the
   * negative ones. */
  double repetition_penalty;
  uint64_t seed;              /* equal seeds draw equal tokens from equal logits */
  int32_t ignore_end_of_text; /* not 0: the tokens that end a text are ordinary ones */
  int32_t reserved;           /* 0 */
} warpwright_decoder_add_args;

/* Adds a sequence, which begins when there is room. `sequence` becomes its number: 0, 1, …. If the arguments
 * are refused, the other sequences are not affected. */
WARPWRIGHT_API warpwright_status warpwright_decoder_add(warpwright_decoder* decoder,
                                                        const warpwright_decoder_add_args* args,
                                                        int64_t* sequence);

/* Ends a sequence early: it has no more events. Does nothing if there is no such sequence. */
WARPWRIGHT_API warpwright_status warpwright_decoder_remove(warpwright_decoder* decoder, int64_t sequence);

/* One pass of the model. `events` becomes the number of sequences with a new token or an end. It may be 0
 * while prompts are computed, and is 0 if there are no sequences. If the call fails, the sequences remain as
 * they were, unless memory ran out after tokens were drawn: these tokens are then in no event, and a sequence
 * may have ended without one, so remove the sequences and add them again. */
WARPWRIGHT_API warpwright_status warpwright_decoder_step(warpwright_decoder* decoder, int64_t* events);

typedef int32_t warpwright_decoder_end;
enum {
  WARPWRIGHT_NOT_ENDED = 0,
  WARPWRIGHT_END_LENGTH = 1,    /* max_tokens */
  WARPWRIGHT_END_STOP = 2,      /* one of the stop texts */
  WARPWRIGHT_END_OF_TEXT = 3,   /* the model drew a token that ends a text, which is not in the event */
  WARPWRIGHT_END_WITH_ERROR = 4 /* see `error`; the other sequences are not affected */
};

typedef struct warpwright_decoder_event {
  size_t size; /* sizeof(warpwright_decoder_event), set by the caller */
  int64_t sequence;
  /* (text_bytes) in UTF-8: what the sequence's text has gained since its last event, possibly nothing.
   * Characters are whole. Bytes that are no character are U+FFFD. Text that could begin a stop text comes
   * later. */
  const char* text;
  size_t text_bytes;
  const char* error;          /* one line; "" unless `end` is WARPWRIGHT_END_WITH_ERROR */
  int32_t token;              /* -1: none */
  warpwright_decoder_end end; /* not 0: the sequence has ended */
} warpwright_decoder_event;

/* Event `index` of the latest step, in the order in which the sequences were added. `text` and `error` are
 * valid until the decoder's next step. */
WARPWRIGHT_API warpwright_status warpwright_decoder_get_event(const warpwright_decoder* decoder,
                                                              int64_t index, warpwright_decoder_event* event);

#ifdef __cplusplus
}
#endif

#endif
