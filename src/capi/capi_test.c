/* Tests the C ABI from C11: results against the formulas in fp64, and a caller's mistakes. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "warpwright/warpwright.h"

static int failures = 0;

static void check(bool condition, const char* what, int line) {
  if (condition) return;
  fprintf(stderr, "capi_test.c:%d: %s (last error: %s)\n", line, what, warpwright_last_error());
  ++failures;
}
#define CHECK(condition) check(condition, #condition, __LINE__)

/* Checks that a call fails with this status and a message that contains `word`. */
static void check_refused(warpwright_status status, warpwright_status wanted, const char* word, int line) {
  if (status == wanted && strstr(warpwright_last_error(), word)) return;
  fprintf(stderr, "capi_test.c:%d: %s, wanted %s; \"%s\" should name \"%s\"\n", line,
          warpwright_status_name(status), warpwright_status_name(wanted), warpwright_last_error(), word);
  ++failures;
}
#define CHECK_REFUSED(call, word) check_refused(call, WARPWRIGHT_INVALID_ARGUMENT, word, __LINE__)

enum { kRows = 5, kColumns = 37, kElements = kRows * kColumns };

/* Deterministic numbers in [-1, 1). */
static double random_number(unsigned* state) {
  *state = *state * 1664525u + 1013904223u;
  return (double)(*state >> 8) / (1 << 23) - 1;
}

typedef struct {
  double x[kElements], weight[kColumns], bias[kColumns], dout[kElements];
  double out[kElements], mean[kRows], rstd[kRows], dx[kElements], dweight[kColumns], dbias[kColumns];
} Reference;

static void compute(Reference* r, bool centered, double eps) {
  unsigned state = centered ? 1 : 2;
  for (int i = 0; i < kElements; ++i) r->x[i] = (float)(random_number(&state) + 0.25);
  for (int i = 0; i < kElements; ++i) r->dout[i] = (float)random_number(&state);
  for (int c = 0; c < kColumns; ++c) r->weight[c] = (float)(1 + 0.5 * random_number(&state));
  for (int c = 0; c < kColumns; ++c) r->bias[c] = centered ? (float)random_number(&state) : 0;
  for (int c = 0; c < kColumns; ++c) r->dweight[c] = r->dbias[c] = 0;
  for (int n = 0; n < kRows; ++n) {
    const double *x = r->x + n * kColumns, *dout = r->dout + n * kColumns;
    double mean = 0, square = 0, sum_g = 0, sum_gx = 0;
    for (int c = 0; c < kColumns; ++c) mean += x[c] / kColumns;
    if (!centered) mean = 0;
    for (int c = 0; c < kColumns; ++c) square += (x[c] - mean) * (x[c] - mean) / kColumns;
    const double rstd = 1 / sqrt(square + eps);
    for (int c = 0; c < kColumns; ++c) {
      const double normed = (x[c] - mean) * rstd;
      r->out[n * kColumns + c] = normed * r->weight[c] + r->bias[c];
      sum_g += dout[c] * r->weight[c] / kColumns;
      sum_gx += dout[c] * r->weight[c] * normed / kColumns;
      r->dweight[c] += dout[c] * normed;
      r->dbias[c] += dout[c];
    }
    if (!centered) sum_g = 0;
    for (int c = 0; c < kColumns; ++c) {
      r->dx[n * kColumns + c] = rstd * (dout[c] * r->weight[c] - sum_g - (x[c] - mean) * rstd * sum_gx);
    }
    r->mean[n] = mean;
    r->rstd[n] = rstd;
  }
}

/* The same numbers in the call's dtype, float or double. */
typedef struct {
  warpwright_dtype dtype;
  void *x, *weight, *bias, *dout, *out, *mean, *rstd, *dx, *dweight, *dbias, *workspace;
} Arrays;

static void* array(warpwright_dtype dtype, const double* values, int count) {
  const size_t size = dtype == WARPWRIGHT_F64 ? sizeof(double) : sizeof(float);
  void* data = malloc(size * (size_t)count);
  if (!data) exit(1);
  for (int i = 0; i < count; ++i) {
    const double value = values ? values[i] : NAN;
    if (dtype == WARPWRIGHT_F64) {
      ((double*)data)[i] = value;
    } else {
      ((float*)data)[i] = (float)value;
    }
  }
  return data;
}

static Arrays arrays_of(const Reference* r, warpwright_dtype dtype) {
  const Arrays a = {dtype,
                    array(dtype, r->x, kElements),
                    array(dtype, r->weight, kColumns),
                    array(dtype, r->bias, kColumns),
                    array(dtype, r->dout, kElements),
                    array(dtype, NULL, kElements),
                    array(dtype, NULL, kRows),
                    array(dtype, NULL, kRows),
                    array(dtype, NULL, kElements),
                    array(dtype, NULL, kColumns),
                    array(dtype, NULL, kColumns),
                    NULL};
  return a;
}

static void release(Arrays* a) {
  void* all[] = {a->x,    a->weight, a->bias,    a->dout,  a->out,      a->mean,
                 a->rstd, a->dx,     a->dweight, a->dbias, a->workspace};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) free(all[i]);
}

static void check_near(const void* got, warpwright_dtype dtype, const double* wanted, double scale, int count,
                       int line) {
  const double tolerance = dtype == WARPWRIGHT_F64 ? 1e-12 : 2e-5;
  for (int i = 0; i < count; ++i) {
    const double value = dtype == WARPWRIGHT_F64 ? ((const double*)got)[i] : ((const float*)got)[i];
    if (fabs(value - scale * wanted[i]) <= tolerance * (1 + fabs(scale * wanted[i]))) continue;
    fprintf(stderr, "capi_test.c:%d: element %d is %.17g, not %.17g\n", line, i, value, scale * wanted[i]);
    ++failures;
    return;
  }
}
#define CHECK_NEAR(got, dtype, wanted, scale, count) check_near(got, dtype, wanted, scale, count, __LINE__)

typedef warpwright_status (*Forward)(warpwright_context*, const warpwright_norm_forward_args*);
typedef warpwright_status (*ForwardWorkspace)(warpwright_context*, const warpwright_norm_forward_args*,
                                              size_t*);
typedef warpwright_status (*Backward)(warpwright_context*, const warpwright_norm_backward_args*);
typedef warpwright_status (*BackwardWorkspace)(warpwright_context*, const warpwright_norm_backward_args*,
                                               size_t*);

static warpwright_norm_forward_args forward_args(const Arrays* a, bool centered) {
  const warpwright_norm_forward_args args = {.size = sizeof args,
                                             .rows = kRows,
                                             .columns = kColumns,
                                             .x = a->x,
                                             .weight = a->weight,
                                             .bias = centered ? a->bias : NULL,
                                             .out = a->out,
                                             .mean = centered ? a->mean : NULL,
                                             .rstd = a->rstd,
                                             .eps = 1e-5,
                                             .x_dtype = a->dtype,
                                             .parameter_dtype = a->dtype,
                                             .out_dtype = a->dtype};
  return args;
}

static warpwright_norm_backward_args backward_args(const Arrays* a, bool centered) {
  const warpwright_norm_backward_args args = {.size = sizeof args,
                                              .rows = kRows,
                                              .columns = kColumns,
                                              .dout = a->dout,
                                              .x = a->x,
                                              .weight = a->weight,
                                              .mean = centered ? a->mean : NULL,
                                              .rstd = a->rstd,
                                              .dx = a->dx,
                                              .dweight = a->dweight,
                                              .dbias = centered ? a->dbias : NULL,
                                              .x_dtype = a->dtype,
                                              .parameter_dtype = a->dtype,
                                              .out_dtype = a->dtype,
                                              .gradient_dtype = a->dtype};
  return args;
}

static void run_backward(warpwright_context* context, Arrays* a, warpwright_norm_backward_args args,
                         Backward backward, BackwardWorkspace backward_workspace) {
  size_t bytes = 0;
  CHECK(backward_workspace(context, &args, &bytes) == WARPWRIGHT_OK);
  if (bytes > 0) CHECK_REFUSED(backward(context, &args), "workspace");
  free(a->workspace);
  a->workspace = malloc(bytes + 1);
  args.workspace = a->workspace;
  args.workspace_bytes = bytes;
  CHECK(backward(context, &args) == WARPWRIGHT_OK);
}

static void test_results(warpwright_context* context, warpwright_dtype dtype, bool centered) {
  const Forward forward = centered ? warpwright_layernorm_forward : warpwright_rmsnorm_forward;
  const ForwardWorkspace forward_workspace =
      centered ? warpwright_layernorm_forward_workspace : warpwright_rmsnorm_forward_workspace;
  const Backward backward = centered ? warpwright_layernorm_backward : warpwright_rmsnorm_backward;
  const BackwardWorkspace backward_workspace =
      centered ? warpwright_layernorm_backward_workspace : warpwright_rmsnorm_backward_workspace;
  static Reference r;
  compute(&r, centered, 1e-5);
  Arrays a = arrays_of(&r, dtype);

  warpwright_norm_forward_args f = forward_args(&a, centered);
  size_t bytes = 1;
  CHECK(forward_workspace(context, &f, &bytes) == WARPWRIGHT_OK);
  f.workspace = a.workspace = malloc(bytes + 1);
  f.workspace_bytes = bytes;
  CHECK(forward(context, &f) == WARPWRIGHT_OK);
  CHECK_NEAR(a.out, dtype, r.out, 1, kElements);
  CHECK_NEAR(a.rstd, dtype, r.rstd, 1, kRows);
  if (centered) CHECK_NEAR(a.mean, dtype, r.mean, 1, kRows);

  warpwright_norm_backward_args b = backward_args(&a, centered);
  run_backward(context, &a, b, backward, backward_workspace);
  CHECK_NEAR(a.dx, dtype, r.dx, 1, kElements);
  CHECK_NEAR(a.dweight, dtype, r.dweight, 1, kColumns);
  if (centered) CHECK_NEAR(a.dbias, dtype, r.dbias, 1, kColumns);

  b.flags = WARPWRIGHT_ADD_TO_DX | WARPWRIGHT_ADD_TO_DPARAMETERS;
  run_backward(context, &a, b, backward, backward_workspace);
  CHECK_NEAR(a.dx, dtype, r.dx, 2, kElements);
  CHECK_NEAR(a.dweight, dtype, r.dweight, 2, kColumns);

  b.flags = 0; /* from the output; only dx */
  b.x = NULL;
  b.mean = NULL;
  b.out = a.out;
  b.bias = centered ? a.bias : NULL;
  run_backward(context, &a, b, backward, backward_workspace);
  CHECK_NEAR(a.dx, dtype, r.dx, 1, kElements);
  CHECK_NEAR(a.dweight, dtype, r.dweight, 1, kColumns);
  b.dweight = b.dbias = NULL;
  run_backward(context, &a, b, backward, backward_workspace);
  CHECK_NEAR(a.dx, dtype, r.dx, 1, kElements);
  release(&a);
}

/* A weight of 0 loses a column of x from the output. The forward keeps it, or its gradient is NaN. */
static void test_lost_columns(warpwright_context* context) {
  static Reference r;
  compute(&r, true, 1e-5);
  Arrays a = arrays_of(&r, WARPWRIGHT_F64);
  const int lost = 11;
  ((double*)a.weight)[lost] = 0;
  int32_t kept_columns[1 + 2];
  double kept[kRows * 2];
  warpwright_norm_forward_args f = forward_args(&a, true);
  f.kept_columns = kept_columns;
  f.kept = kept;
  f.kept_count = 2;
  CHECK(warpwright_layernorm_forward(context, &f) == WARPWRIGHT_OK);
  CHECK(kept_columns[0] == 1 && kept_columns[1] == lost && kept_columns[2] == -1);

  warpwright_norm_backward_args b = backward_args(&a, true);
  b.x = NULL;
  b.out = a.out;
  b.bias = a.bias;
  b.kept_columns = kept_columns;
  b.kept = kept;
  b.kept_count = 2;
  run_backward(context, &a, b, warpwright_layernorm_backward, warpwright_layernorm_backward_workspace);
  CHECK_NEAR(a.dweight, WARPWRIGHT_F64, r.dweight, 1, kColumns);
  b.kept_columns = NULL;
  b.kept = NULL;
  b.kept_count = 0;
  b.mean = NULL;
  run_backward(context, &a, b, warpwright_layernorm_backward, warpwright_layernorm_backward_workspace);
  CHECK(isnan(((double*)a.dweight)[lost]) && !isnan(((double*)a.dweight)[lost + 1]));
  release(&a);
}

static void test_sixteen_bits(warpwright_context* context) {
  /* bf16 with fp32 parameters. The output has the parameters' dtype. */
  uint16_t x[4] = {0x3f80, 0xbf80, 0x3f80, 0xbf80}; /* 1, -1, 1, -1 */
  const float weight[4] = {1, 2, 3, 4}, bias[4] = {0, 0, 0, 1};
  float out[4];
  warpwright_norm_forward_args f = {.size = sizeof f,
                                    .rows = 1,
                                    .columns = 4,
                                    .x = x,
                                    .weight = weight,
                                    .bias = bias,
                                    .out = out,
                                    .x_dtype = WARPWRIGHT_BF16,
                                    .parameter_dtype = WARPWRIGHT_F32,
                                    .out_dtype = WARPWRIGHT_F32};
  CHECK(warpwright_layernorm_forward(context, &f) == WARPWRIGHT_OK);
  const double wanted[4] = {1, -2, 3, -3};
  CHECK_NEAR(out, WARPWRIGHT_F32, wanted, 1, 4);
  f.out_dtype = WARPWRIGHT_BF16;
  f.out = x;
  CHECK(warpwright_layernorm_forward(context, &f) == WARPWRIGHT_OK);
  CHECK(x[1] == 0xc000 && x[3] == 0xc040);
  f.weight = f.bias = NULL;
  CHECK(warpwright_rmsnorm_forward(context, &f) == WARPWRIGHT_OK);
}

static void test_residual(warpwright_context* context) {
  static Reference r;
  for (int centered = 0; centered < 2; ++centered) {
    compute(&r, centered, 1e-5);
    Arrays a = arrays_of(&r, WARPWRIGHT_F64);
    /* x = residual + x_bias + the rest, which is stored in dx's memory. */
    double x_bias[kColumns], sum[kElements];
    for (int c = 0; c < kColumns; ++c) x_bias[c] = c;
    for (int i = 0; i < kElements; ++i) ((double*)a.dx)[i] = r.x[i] - r.dout[i];
    warpwright_residual_norm_forward_args f = {.size = sizeof f,
                                               .rows = kRows,
                                               .columns = kColumns,
                                               .x = a.dx,
                                               .residual = a.dout,
                                               .weight = a.weight,
                                               .bias = centered ? a.bias : NULL,
                                               .sum = sum,
                                               .out = a.out,
                                               .rstd = a.rstd,
                                               .eps = 1e-5,
                                               .dtype = WARPWRIGHT_F64,
                                               .rms = !centered};
    size_t bytes = 1;
    CHECK(warpwright_residual_norm_forward_workspace(context, &f, &bytes) == WARPWRIGHT_OK);
    f.workspace = a.workspace = malloc(2 * bytes + 4096);
    f.workspace_bytes = 2 * bytes + 4096;
    CHECK(warpwright_residual_norm_forward(context, &f) == WARPWRIGHT_OK);
    CHECK_NEAR(sum, WARPWRIGHT_F64, r.x, 1, kElements);
    CHECK_NEAR(a.out, WARPWRIGHT_F64, r.out, 1, kElements);
    CHECK_NEAR(a.rstd, WARPWRIGHT_F64, r.rstd, 1, kRows);
    for (int i = 0; i < kElements; ++i) ((double*)a.dx)[i] -= x_bias[i % kColumns];
    f.x_bias = x_bias;
    memset(a.out, 0, kElements * sizeof(double));
    CHECK(warpwright_residual_norm_forward_workspace(context, &f, &bytes) == WARPWRIGHT_OK);
    CHECK(warpwright_residual_norm_forward(context, &f) == WARPWRIGHT_OK);
    CHECK_NEAR(sum, WARPWRIGHT_F64, r.x, 1, kElements);
    CHECK_NEAR(a.out, WARPWRIGHT_F64, r.out, 1, kElements);
    int32_t kept_columns[1];
    f.kept_columns = kept_columns;
    CHECK(warpwright_residual_norm_forward(context, &f) == WARPWRIGHT_OK);
    CHECK(kept_columns[0] == 0);
    f.sum = NULL;
    CHECK_REFUSED(warpwright_residual_norm_forward(context, &f), "kept_columns is not NULL");
    f.kept_columns = NULL;
    CHECK(warpwright_residual_norm_forward_workspace(context, &f, &bytes) == WARPWRIGHT_OK);
    CHECK(warpwright_residual_norm_forward(context, &f) == WARPWRIGHT_OK);
    CHECK_NEAR(a.out, WARPWRIGHT_F64, r.out, 1, kElements);
    f.residual = NULL;
    CHECK_REFUSED(warpwright_residual_norm_forward(context, &f), "residual is NULL");
    release(&a);
  }
  CHECK_REFUSED(warpwright_residual_norm_forward(context, NULL), "args is NULL");
}

static void test_no_rows(warpwright_context* context) {
  float dweight[3] = {7, 7, 7};
  const float weight[3] = {1, 1, 1};
  warpwright_norm_forward_args f = {.size = sizeof f,
                                    .columns = 3,
                                    .x_dtype = WARPWRIGHT_F32,
                                    .parameter_dtype = WARPWRIGHT_F32,
                                    .out_dtype = WARPWRIGHT_F32};
  CHECK(warpwright_layernorm_forward(context, &f) == WARPWRIGHT_OK);
  float rstd[1];
  char workspace[1 << 16];
  warpwright_norm_backward_args b = {.size = sizeof b,
                                     .columns = 3,
                                     .weight = weight,
                                     .rstd = rstd,
                                     .dweight = dweight,
                                     .workspace = workspace,
                                     .workspace_bytes = sizeof workspace,
                                     .x_dtype = WARPWRIGHT_F32,
                                     .parameter_dtype = WARPWRIGHT_F32,
                                     .out_dtype = WARPWRIGHT_F32,
                                     .gradient_dtype = WARPWRIGHT_F32};
  CHECK(warpwright_rmsnorm_backward(context, &b) == WARPWRIGHT_OK);
  CHECK(dweight[0] == 0 && dweight[2] == 0);
}

static void test_refusals(warpwright_context* context) {
  static Reference r;
  compute(&r, true, 1e-5);
  Arrays a = arrays_of(&r, WARPWRIGHT_F32);
  const warpwright_norm_forward_args good = forward_args(&a, true);
  warpwright_norm_forward_args f = good;
  CHECK_REFUSED(warpwright_layernorm_forward(NULL, &f), "context");
  CHECK_REFUSED(warpwright_layernorm_forward(context, NULL), "args");
  CHECK_REFUSED(warpwright_layernorm_forward_workspace(context, &f, NULL), "bytes");
  f.size = 8;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "args.size is 8");
  f = good;
  f.x = NULL;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), ": x is NULL");
  f = good;
  f.out = NULL;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), ": out is NULL");
  f = good;
  f.columns = 0;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "columns is 0");
  f = good;
  f.rows = -1;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "rows is -1");
  f.rows = INT64_MAX / 2;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "rows is 4611686018427387903");
  f = good;
  f.x_dtype = 9;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "x_dtype is 9");
  f = good;
  f.parameter_dtype = WARPWRIGHT_BF16; /* not allowed with fp32 */
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "weight");
  f = good;
  f.out_dtype = WARPWRIGHT_F16;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "out");
  f = good;
  f.eps = -1;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "eps is -1");
  f = good;
  CHECK_REFUSED(warpwright_rmsnorm_forward(context, &f), "bias is not NULL");
  f.kept_count = 2;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "kept_columns is NULL");
  warpwright_norm_backward_args b = backward_args(&a, true);
  b.rstd = NULL;
  CHECK_REFUSED(warpwright_layernorm_backward(context, &b), ": rstd is NULL");
  b = backward_args(&a, true);
  b.flags = 64;
  CHECK_REFUSED(warpwright_layernorm_backward(context, &b), "flags is 64");
  CHECK_REFUSED(warpwright_context_set_stream(context, &b), "stream");
  CHECK_REFUSED(warpwright_context_set_threads(context, -3), "warpwright_context_set_threads: threads: -3");

  f = good;
  f.reserved = 1;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "args.reserved is 1");
  b = backward_args(&a, true);
  b.reserved = -1;
  CHECK_REFUSED(warpwright_layernorm_backward(context, &b), "args.reserved is -1");
  f = good;
  f.eps = INFINITY;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "eps is inf");
  f.eps = NAN;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "eps is nan");
  f = good;
  f.size = SIZE_MAX; /* must not be read to its end */
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "args.size is");

  /* Alignment. */
  char unaligned[sizeof f + 1];
  memcpy(unaligned + 1, &good, sizeof good);
  CHECK_REFUSED(warpwright_layernorm_forward(
                    context, (const warpwright_norm_forward_args*)(const void*)(unaligned + 1)),
                "args is 0x");
  f = good;
  f.x = (const char*)good.x + 1;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), ": x is 0x");
  f = good;
  f.rstd = (char*)good.rstd + 2;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "not aligned to 4 bytes");

  /* Outputs that overlap other arrays. */
  f = good;
  f.out = (float*)good.out;
  f.x = (const float*)good.out + 1;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "out overlaps x");
  f = good;
  f.rstd = f.mean;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "rstd overlaps mean");
  f = good;
  f.rstd = (void*)f.weight;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &f), "rstd overlaps weight");
  f = good;
  f.out = (void*)f.x; /* in place */
  CHECK(warpwright_layernorm_forward(context, &f) == WARPWRIGHT_OK);
  b = backward_args(&a, true);
  b.dsum = b.dx;
  b.workspace = (void*)b.dout;
  b.workspace_bytes = SIZE_MAX;
  CHECK_REFUSED(warpwright_layernorm_backward(context, &b), "workspace overlaps dout");
  b.workspace = b.dweight;
  CHECK_REFUSED(warpwright_layernorm_backward(context, &b), "overlaps workspace");

  /* A list of kept columns that no forward wrote. */
  const int32_t wrong[][3] = {{1, kColumns, -1}, {1, -2, -1}, {2, 5, 5}, {2, -1, 5}, {2, 7, 3}};
  for (int i = 0; i < 5; ++i) {
    static float kept[2 * kRows], workspace[1 << 16];
    b = backward_args(&a, true);
    b.x = NULL;
    b.out = a.out;
    b.bias = a.bias;
    b.kept_columns = wrong[i];
    b.kept = kept;
    b.kept_count = 2;
    b.workspace = workspace;
    b.workspace_bytes = sizeof workspace;
    CHECK_REFUSED(warpwright_layernorm_backward(context, &b), "kept_columns[");
  }

  /* A newer caller's structure: fields unknown to this library must be 0. */
  struct {
    warpwright_norm_forward_args known;
    int64_t newer;
  } longer = {good, 0};
  longer.known.size = sizeof longer;
  CHECK(warpwright_layernorm_forward(context, &longer.known) == WARPWRIGHT_OK);
  longer.newer = 1;
  CHECK_REFUSED(warpwright_layernorm_forward(context, &longer.known), "args.size");
  release(&a);
}

static void test_contexts(void) {
  warpwright_context* context = NULL;
  warpwright_context_options options = {.size = sizeof options, .device = 7};
  CHECK_REFUSED(warpwright_context_create(&options, &context), "options.device is 7");
  CHECK_REFUSED(warpwright_context_create(NULL, &context), "options is NULL");
  CHECK_REFUSED(warpwright_context_create(&options, NULL), "context is NULL");
  options.device = WARPWRIGHT_DEVICE_CPU;
  options.threads = -1;
  CHECK_REFUSED(warpwright_context_create(&options, &context), "options.threads: -1");
  CHECK(context == NULL);
  options.threads = 0;
  options.reserved = 5;
  CHECK_REFUSED(warpwright_context_create(&options, &context), "options.reserved is 5");
  options.reserved = 0;
  options.device_index = 1;
  CHECK_REFUSED(warpwright_context_create(&options, &context), "options.device_index is 1");
  options.device_index = 0;
  CHECK(warpwright_context_create(&options, &context) == WARPWRIGHT_OK);
  warpwright_context_destroy(context);
  CHECK_REFUSED(warpwright_context_set_threads(context, 1), "has destroyed");
  warpwright_context_destroy(context);
  CHECK(strstr(warpwright_last_error(), "has destroyed") != NULL);
  CHECK_REFUSED(warpwright_context_set_threads((warpwright_context*)(void*)&options, 1), "did not make");
  for (int i = 0; i < 100; ++i) { /* new contexts get the memory of destroyed ones, and never their handles */
    warpwright_context* next = NULL;
    CHECK(warpwright_context_create(&options, &next) == WARPWRIGHT_OK);
    warpwright_context_destroy(context);
    CHECK(warpwright_context_set_threads(next, 1) == WARPWRIGHT_OK);
    warpwright_context_destroy(next);
  }
  options.device = WARPWRIGHT_DEVICE_CUDA;
  options.threads = 0;
  options.device_index = warpwright_cuda_device_count();
  check_refused(warpwright_context_create(&options, &context), WARPWRIGHT_NO_DEVICE, "CUDA device", __LINE__);
  warpwright_context_destroy(NULL);
}

static void count_line(void* data, const char* line) {
  if (strstr(line, "norm.forward")) ++*(int*)data;
}

static void test_log(void) {
  int lines = 0;
  warpwright_context* context = NULL;
  const warpwright_context_options options = {.size = sizeof options,
                                              .device = WARPWRIGHT_DEVICE_CPU,
                                              .threads = 1,
                                              .log = count_line,
                                              .log_data = &lines};
  CHECK(warpwright_context_create(&options, &context) == WARPWRIGHT_OK);
  test_sixteen_bits(context);
  CHECK(lines == 3);
  warpwright_context_destroy(context);
}

int main(void) {
  CHECK(warpwright_abi_version() == 1000 * WARPWRIGHT_ABI_MAJOR + WARPWRIGHT_ABI_MINOR);
  CHECK(strlen(warpwright_version()) > 0);
  CHECK(strcmp(warpwright_last_error(), "") == 0);
  CHECK(strcmp(warpwright_status_name(WARPWRIGHT_NO_DEVICE), "WARPWRIGHT_NO_DEVICE") == 0);
  CHECK(strcmp(warpwright_status_name(99), "unknown status") == 0);

  warpwright_context* context = NULL;
  const warpwright_context_options options = {.size = sizeof options, .device = WARPWRIGHT_DEVICE_CPU};
  if (warpwright_context_create(&options, &context) != WARPWRIGHT_OK) {
    fprintf(stderr, "%s\n", warpwright_last_error());
    return 1;
  }
  for (int centered = 0; centered < 2; ++centered) {
    test_results(context, WARPWRIGHT_F32, centered);
    test_results(context, WARPWRIGHT_F64, centered);
  }
  CHECK(warpwright_context_set_threads(context, 3) == WARPWRIGHT_OK);
  test_results(context, WARPWRIGHT_F32, true);
  test_lost_columns(context);
  test_sixteen_bits(context);
  test_residual(context);
  test_no_rows(context);
  test_refusals(context);
  test_contexts();
  test_log();
  warpwright_context_destroy(context);
  if (failures == 0) printf("the C ABI does what its header says\n");
  return failures == 0 ? 0 : 1;
}
