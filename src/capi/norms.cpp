// Normalization in the C ABI: plain pointers become tensors, the operation checks them and a variant runs.
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "capi/context.hpp"
#include "capi/dtype.hpp"

using namespace warpwright;

namespace {

// The tensors of one call.
class Tensors {
 public:
  Tensors(std::string_view function, Device device, std::int64_t rows, std::int64_t columns)
      : function_(function), device_(device), rows_(rows), columns_(columns) {
    // So that no product of sizes overflows behind it.
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 64;
    if (columns < 1 || columns > kMost) {
      throw Error(fmt::format("columns is {}", columns), std::string(function), "columns are 1 or more");
    }
    if (rows < 0 || rows > kMost / columns) {
      throw Error(fmt::format("rows is {} (of {} columns)", rows, columns), std::string(function),
                  "rows are 0 or more");
    }
  }

  // A tensor of rows that must be there; where there are none, it may be NULL all the same.
  Tensor matrix(std::string_view argument, const void* data, DType dtype) const {
    return make(needed(argument, data), dtype, {rows_, columns_});
  }
  Tensor rows(std::string_view argument, const void* data, DType dtype) const {
    return make(needed(argument, data), dtype, {rows_});
  }
  Tensor optional_matrix(const void* data, DType dtype) const { return make(data, dtype, {rows_, columns_}); }
  Tensor optional_rows(const void* data, DType dtype) const { return make(data, dtype, {rows_}); }
  Tensor columns(const void* data, DType dtype) const { return make(data, dtype, {columns_}); }
  Tensor kept(const void* data, DType dtype, std::int64_t count) const {
    return make(data, dtype, {rows_, count});
  }
  Tensor kept_columns(const void* data, std::int64_t count) const {
    return make(data, DType::i32, {1 + count});
  }

 private:
  const void* needed(std::string_view argument, const void* data) const {
    alignas(kAlignment) static const std::byte no_rows[1]{};
    if (!data && rows_ > 0) capi::throw_missing(function_, argument);
    return data ? data : no_rows;
  }
  // The operations write only through those that they declare written.
  Tensor make(const void* data, DType dtype, const Shape& shape) const {
    return data ? Tensor(const_cast<void*>(data), dtype, shape, device_) : Tensor();
  }

  std::string_view function_;
  Device device_;
  std::int64_t rows_, columns_;
};

void check_kept(std::string_view function, std::int64_t count, const void* kept_columns, const void* kept,
                std::int64_t rows, std::int64_t columns) {
  const auto fail = [&](const std::string& what) {
    throw Error(what, std::string(function), "see kept_columns in warpwright.h");
  };
  if (count < 0 || count > columns) fail(fmt::format("kept_count is {} (of {} columns)", count, columns));
  if (!kept_columns && (count > 0 || kept)) fail("kept_columns is NULL, and kept or kept_count is given");
  if (kept_columns && !kept && count > 0 && rows > 0) fail("kept is NULL, and kept_count is not 0");
}

void check_eps(std::string_view function, double eps) {
  if (eps >= 0) return;
  throw Error(fmt::format("eps is {}", eps), std::string(function), "eps is 0 or more");
}

void require_null(std::string_view function, std::string_view argument, const void* pointer,
                  std::string_view reason = "rmsnorm has neither bias nor mean") {
  if (!pointer) return;
  throw Error(fmt::format("{} is not NULL", argument), std::string(function), std::string(reason));
}

template <class Args>
void fill_forward(std::string_view function, const warpwright_norm_forward_args& a, Device device,
                  Args& args) {
  const Tensors make(function, device, a.rows, a.columns);
  const DType x = capi::dtype_of(function, "x_dtype", a.x_dtype);
  const DType parameters = capi::dtype_of(function, "parameter_dtype", a.parameter_dtype);
  const DType out = capi::dtype_of(function, "out_dtype", a.out_dtype);
  check_kept(function, a.kept_count, a.kept_columns, a.kept, a.rows, a.columns);
  check_eps(function, a.eps);
  args.x = make.matrix("x", a.x, x);
  args.weight = make.columns(a.weight, parameters);
  args.out = make.matrix("out", a.out, out);
  args.rstd = make.optional_rows(a.rstd, ops::accumulation_dtype(x));
  args.eps = a.eps;
  args.kept_columns = make.kept_columns(a.kept_columns, a.kept_count);
  args.kept = make.kept(a.kept, x, a.kept_count);
  if constexpr (std::is_same_v<Args, ops::LayerNormForward>) {
    args.bias = make.columns(a.bias, parameters);
    args.mean = make.optional_rows(a.mean, ops::accumulation_dtype(x));
  } else {
    require_null(function, "bias", a.bias);
    require_null(function, "mean", a.mean);
  }
}

template <class Args>
void fill_backward(std::string_view function, const warpwright_norm_backward_args& a, Device device,
                   Args& args) {
  const Tensors make(function, device, a.rows, a.columns);
  const DType x = capi::dtype_of(function, "x_dtype", a.x_dtype);
  const DType parameters = capi::dtype_of(function, "parameter_dtype", a.parameter_dtype);
  const DType out = capi::dtype_of(function, "out_dtype", a.out_dtype);
  const DType gradients = capi::dtype_of(function, "gradient_dtype", a.gradient_dtype);
  const DType statistics = ops::accumulation_dtype(x);
  check_kept(function, a.kept_count, a.kept_columns, a.kept, a.rows, a.columns);
  constexpr std::int32_t kFlags = WARPWRIGHT_ADD_TO_DX | WARPWRIGHT_ADD_TO_DPARAMETERS;
  if (a.flags & ~kFlags)
    throw Error(fmt::format("flags is {}", a.flags), std::string(function), "see warpwright.h");
  args.dout = make.matrix("dout", a.dout, out);
  args.x = a.out ? make.optional_matrix(a.x, x) : make.matrix("x", a.x, x);
  args.out = make.optional_matrix(a.out, out);
  args.weight = make.columns(a.weight, parameters);
  args.rstd = make.rows("rstd", a.rstd, statistics);
  args.dsum = make.optional_matrix(a.dsum, x);
  args.kept_columns = make.kept_columns(a.kept_columns, a.kept_count);
  args.kept = make.kept(a.kept, x, a.kept_count);
  args.dx = make.matrix("dx", a.dx, x);
  args.dweight = make.columns(a.dweight, gradients);
  args.dx_store = a.flags & WARPWRIGHT_ADD_TO_DX ? ops::Store::add : ops::Store::assign;
  args.dparameters_store = a.flags & WARPWRIGHT_ADD_TO_DPARAMETERS ? ops::Store::add : ops::Store::assign;
  if constexpr (std::is_same_v<Args, ops::LayerNormBackward>) {
    args.bias = make.columns(a.bias, parameters);
    const bool from_out = a.out && a.kept_count == 0;
    args.mean = from_out ? make.optional_rows(a.mean, statistics) : make.rows("mean", a.mean, statistics);
    args.dbias = make.columns(a.dbias, gradients);
  } else {
    require_null(function, "bias", a.bias);
    require_null(function, "mean", a.mean);
    require_null(function, "dbias", a.dbias);
  }
}

// What the two fused operations have in common.
template <class Args>
Tensors fill_residual(std::string_view function, const warpwright_residual_norm_forward_args& a,
                      Device device, Args& args) {
  const Tensors make(function, device, a.rows, a.columns);
  const DType dtype = capi::dtype_of(function, "dtype", a.dtype);
  check_kept(function, a.kept_count, a.kept_columns, a.kept, a.rows, a.columns);
  check_eps(function, a.eps);
  args.x = make.matrix("x", a.x, dtype);
  args.weight = make.columns(a.weight, dtype);
  args.bias = make.columns(a.bias, dtype);
  args.out = make.matrix("out", a.out, dtype);
  args.mean = make.optional_rows(a.mean, ops::accumulation_dtype(dtype));
  args.rstd = make.optional_rows(a.rstd, ops::accumulation_dtype(dtype));
  args.eps = a.eps;
  args.rms = a.rms != 0;
  return make;
}

void fill(std::string_view function, const warpwright_residual_norm_forward_args& a, Device device,
          ops::ResidualLayerNormForward& args) {
  const Tensors make = fill_residual(function, a, device, args);
  args.y = make.matrix("residual", a.residual, args.x.dtype);
  args.residual = make.matrix("sum", a.sum, args.x.dtype);
  args.kept_columns = make.kept_columns(a.kept_columns, a.kept_count);
  args.kept = make.kept(a.kept, args.x.dtype, a.kept_count);
}
void fill(std::string_view function, const warpwright_residual_norm_forward_args& a, Device device,
          ops::BiasResidualLayerNormForward& args) {
  const Tensors make = fill_residual(function, a, device, args);
  require_null(function, "kept_columns", a.kept_columns, "columns are kept where x_bias is NULL");
  args.x_bias = make.columns(a.x_bias, args.x.dtype);
  args.residual = make.matrix("residual", a.residual, args.x.dtype);
  args.sum = make.optional_matrix(a.sum, args.x.dtype);
}
void fill(std::string_view function, const warpwright_norm_forward_args& a, Device device,
          ops::LayerNormForward& args) {
  fill_forward(function, a, device, args);
}
void fill(std::string_view function, const warpwright_norm_forward_args& a, Device device,
          ops::RMSNormForward& args) {
  fill_forward(function, a, device, args);
}
void fill(std::string_view function, const warpwright_norm_backward_args& a, Device device,
          ops::LayerNormBackward& args) {
  fill_backward(function, a, device, args);
}
void fill(std::string_view function, const warpwright_norm_backward_args& a, Device device,
          ops::RMSNormBackward& args) {
  fill_backward(function, a, device, args);
}

// The workspace, aligned as kernels need it; null where none is needed.
void* workspace_of(std::string_view function, void* memory, std::size_t bytes, std::size_t needed) {
  if (needed == 0) return nullptr;
  if (!memory || bytes < needed) {
    throw Error(fmt::format("workspace has {} bytes, needs {}", memory ? bytes : 0, needed),
                std::string(function), fmt::format("ask {}_workspace", function));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

template <class P, class A, class C>
warpwright_status call(std::string_view function, warpwright_context* context, const C* c_args,
                       const ops::Op<P, A>& op, capi::Choices<P, A> warpwright_context::*choices) {
  return capi::guarded([&](warpwright_status& meaning) {
    if (!context) capi::throw_missing(function, "context");
    const C known = capi::known_part(function, c_args);
    A args;
    fill(function, known, context->context.device().device, args);
    const P problem = op.problem(args);
    meaning = WARPWRIGHT_UNSUPPORTED;
    const auto& choice = (context->*choices).of(context->context, op, problem);
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    context->context.lend_scratch(
        workspace_of(function, known.workspace, known.workspace_bytes, choice.workspace));
    meaning = WARPWRIGHT_FAILED;
    const CurrentDevice current(context->context.device().device);
    ops::run(context->context, op, *choice.variant, problem, args);
  });
}

template <class P, class A, class C>
warpwright_status ask_workspace(std::string_view function, warpwright_context* context, const C* c_args,
                                std::size_t* bytes, const ops::Op<P, A>& op,
                                capi::Choices<P, A> warpwright_context::*choices) {
  return capi::guarded([&](warpwright_status& meaning) {
    if (!context) capi::throw_missing(function, "context");
    if (!bytes) capi::throw_missing(function, "bytes");
    A args;
    fill(function, capi::known_part(function, c_args), context->context.device().device, args);
    const P problem = op.problem(args);
    meaning = WARPWRIGHT_UNSUPPORTED;
    *bytes = (context->*choices).of(context->context, op, problem).workspace;
  });
}

}  // namespace

warpwright_status warpwright_layernorm_forward(warpwright_context* context,
                                               const warpwright_norm_forward_args* args) {
  return call("warpwright_layernorm_forward", context, args, ops::layernorm_forward_op(),
              &warpwright_context::layernorm_forward);
}
warpwright_status warpwright_layernorm_backward(warpwright_context* context,
                                                const warpwright_norm_backward_args* args) {
  return call("warpwright_layernorm_backward", context, args, ops::layernorm_backward_op(),
              &warpwright_context::layernorm_backward);
}
warpwright_status warpwright_rmsnorm_forward(warpwright_context* context,
                                             const warpwright_norm_forward_args* args) {
  return call("warpwright_rmsnorm_forward", context, args, ops::rmsnorm_forward_op(),
              &warpwright_context::rmsnorm_forward);
}
warpwright_status warpwright_rmsnorm_backward(warpwright_context* context,
                                              const warpwright_norm_backward_args* args) {
  return call("warpwright_rmsnorm_backward", context, args, ops::rmsnorm_backward_op(),
              &warpwright_context::rmsnorm_backward);
}

warpwright_status warpwright_layernorm_forward_workspace(warpwright_context* context,
                                                         const warpwright_norm_forward_args* args,
                                                         size_t* bytes) {
  return ask_workspace("warpwright_layernorm_forward_workspace", context, args, bytes,
                       ops::layernorm_forward_op(), &warpwright_context::layernorm_forward);
}
warpwright_status warpwright_layernorm_backward_workspace(warpwright_context* context,
                                                          const warpwright_norm_backward_args* args,
                                                          size_t* bytes) {
  return ask_workspace("warpwright_layernorm_backward_workspace", context, args, bytes,
                       ops::layernorm_backward_op(), &warpwright_context::layernorm_backward);
}
warpwright_status warpwright_rmsnorm_forward_workspace(warpwright_context* context,
                                                       const warpwright_norm_forward_args* args,
                                                       size_t* bytes) {
  return ask_workspace("warpwright_rmsnorm_forward_workspace", context, args, bytes,
                       ops::rmsnorm_forward_op(), &warpwright_context::rmsnorm_forward);
}
warpwright_status warpwright_rmsnorm_backward_workspace(warpwright_context* context,
                                                        const warpwright_norm_backward_args* args,
                                                        size_t* bytes) {
  return ask_workspace("warpwright_rmsnorm_backward_workspace", context, args, bytes,
                       ops::rmsnorm_backward_op(), &warpwright_context::rmsnorm_backward);
}

// The bias of x is an operation of its own.
warpwright_status warpwright_residual_norm_forward(warpwright_context* context,
                                                   const warpwright_residual_norm_forward_args* args) {
  constexpr std::string_view kFunction = "warpwright_residual_norm_forward";
  if (args && args->x_bias) {
    return call(kFunction, context, args, ops::bias_residual_layernorm_forward_op(),
                &warpwright_context::bias_residual_layernorm_forward);
  }
  return call(kFunction, context, args, ops::residual_layernorm_forward_op(),
              &warpwright_context::residual_layernorm_forward);
}
warpwright_status warpwright_residual_norm_forward_workspace(
    warpwright_context* context, const warpwright_residual_norm_forward_args* args, size_t* bytes) {
  constexpr std::string_view kFunction = "warpwright_residual_norm_forward_workspace";
  if (args && args->x_bias) {
    return ask_workspace(kFunction, context, args, bytes, ops::bias_residual_layernorm_forward_op(),
                         &warpwright_context::bias_residual_layernorm_forward);
  }
  return ask_workspace(kFunction, context, args, bytes, ops::residual_layernorm_forward_op(),
                       &warpwright_context::residual_layernorm_forward);
}
