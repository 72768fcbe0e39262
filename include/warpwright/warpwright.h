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
 *   - It returns a status. Where that is not WARPWRIGHT_OK, warpwright_last_error() has a line that names the
 *     argument and what it was. Nothing is printed, no exception leaves, the process is never ended.
 *   - Memory belongs to the caller: tensors, and the workspace that a function asks for (the same arguments,
 *     given to the function of that name with _workspace behind it, tell how much). Pointers are of the
 *     context's device. Nothing is allocated there, and nothing waits for it: on a GPU a call puts its work
 *     on the context's stream and returns, and can be captured into a CUDA graph.
 *   - Tensors are dense and row-major. They need no more alignment than their elements; 16 bytes are fastest.
 *   - Arguments are checked before anything is read; a NULL stands for a tensor that is not there, where the
 *     comment at it says "may be NULL". What overlaps what it should not is not detected.
 *   - Equal calls on equal devices give equal bits.
 *
 * Threads: a context serves one call at a time. Use one per thread; contexts are light.
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
#define WARPWRIGHT_ABI_MINOR 0

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
  WARPWRIGHT_FAILED = 5 /* the device or its driver reports an error */
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
  int32_t device_index; /* of a GPU, as CUDA counts them */
  int32_t threads;      /* of a CPU; 0: OMP_NUM_THREADS or every processor */
  int32_t reserved;     /* 0 */
  /* May be NULL. Where it is set, every call is timed, waits for the device and cannot be captured. */
  warpwright_log log;
  void* log_data;
} warpwright_context_options;

/* WARPWRIGHT_FORCE in the environment forces kernels (layernorm=cpu.avx2,…: `warpwright info` lists them). */
WARPWRIGHT_API warpwright_status warpwright_context_create(const warpwright_context_options* options,
                                                           warpwright_context** context);

/* NULL is fine. Work that is still running on the device is not waited for. */
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
  void* dx;      /* (rows, columns) */
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
 * Additions are in fp32 and rounded once, to `sum`, of which the statistics are taken. All tensors but mean
 * and rstd are `dtype`. The backward is that of the normalization with `sum` as its x: its dx is the gradient
 * of x and of residual, and dsum takes the gradient that `sum` has from elsewhere. */
typedef struct warpwright_residual_norm_forward_args {
  size_t size;           /* sizeof(warpwright_residual_norm_forward_args) */
  int64_t rows, columns; /* columns >= 1 */
  const void* x;         /* (rows, columns) */
  const void* x_bias;    /* (columns); may be NULL: 0 */
  const void* residual;  /* (rows, columns) */
  const void* weight;    /* (columns) */
  const void* bias;      /* (columns); NULL where rms is not 0 */
  void* sum;             /* (rows, columns); may be x or residual; may be NULL beside x_bias */
  void* out;             /* (rows, columns); may be x or residual, but not sum */
  void* mean;            /* (rows); may be NULL; NULL where rms is not 0 */
  void* rstd;            /* (rows); may be NULL */
  int32_t* kept_columns; /* as in warpwright_norm_forward_args, of `sum`; NULL beside x_bias */
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

#ifdef __cplusplus
}
#endif

#endif
