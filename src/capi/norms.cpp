// Normalization in the C ABI: makes tensors from plain pointers, lets the operation check them, and runs a
// variant.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "capi/context.hpp"
#include "capi/dtype.hpp"
#include "ops/norm/norm.hpp"
#include "runtime/threads.hpp"

using namespace warpwright;

namespace {

// The tensors of one call, made from the caller's pointers. They are aligned and do not overlap.
class Tensors {
 public:
  Tensors(std::string_view function, Device device, std::int64_t rows, std::int64_t columns)
      : function_(function), device_(device), rows_(rows), columns_(columns) {
    // No memory holds more elements, and below this limit no product of sizes overflows.
    constexpr std::int64_t kMost = std::int64_t{1} << 47;
    if (columns < 1 || columns > kMost) {
      fail(fmt::format("columns is {}", columns), fmt::format("columns are 1 to {}", kMost));
    }
    if (rows < 0 || rows > kMost / columns) {
      fail(fmt::format("rows is {} (of {} columns)", rows, columns),
           fmt::format("rows are 0 or more, with at most {} elements", kMost));
    }
  }

  // A required tensor of rows. It may be NULL if there are no rows.
  Tensor matrix(std::string_view argument, const void* data, DType dtype, Access access = Access::read) {
    return make(argument, needed(argument, data), dtype, {rows_, columns_}, access);
  }
  Tensor rows(std::string_view argument, const void* data, DType dtype) {
    return make(argument, needed(argument, data), dtype, {rows_}, Access::read);
  }
  Tensor optional_matrix(std::string_view argument, const void* data, DType dtype,
                         Access access = Access::read) {
    return make(argument, data, dtype, {rows_, columns_}, access);
  }
  Tensor optional_rows(std::string_view argument, const void* data, DType dtype,
                       Access access = Access::read) {
    return make(argument, data, dtype, {rows_}, access);
  }
  Tensor columns(std::string_view argument, const void* data, DType dtype, Access access = Access::read) {
    return make(argument, data, dtype, {columns_}, access);
  }
  Tensor kept(const void* data, DType dtype, std::int64_t count, Access access) {
    return make("kept", data, dtype, {rows_, count}, access);
  }
  Tensor kept_columns(const void* data, std::int64_t count, Access access) {
    return make("kept_columns", data, DType::i32, {1 + count}, access);
  }

  // Lets `written` be the same memory as `read`, element for element.
  void allow(std::string_view written, std::string_view read) {
    for (Region& w : regions()) {
      if (w.argument != written) continue;
      for (const Region& r : regions()) {
        if (r.argument == read && r.begin == w.begin && r.end == w.end) w.allowed |= bit(r);
      }
    }
  }
  // Refuses a written tensor that overlaps another tensor.
  void check_apart() const {
    for (const Region& w : regions()) {
      if (w.access == Access::read) continue;
      for (const Region& other : regions()) {
        if (&other == &w || other.end <= w.begin || w.end <= other.begin || (w.allowed & bit(other)))
          continue;
        if (other.allowed & bit(w)) continue;
        fail(fmt::format("{} overlaps {}", w.argument, other.argument), "give each memory of its own");
      }
    }
  }
  void add_workspace(const void* data, std::size_t bytes) { add("workspace", data, bytes, Access::write); }

 private:
  struct Region {
    std::string_view argument;
    std::uintptr_t begin, end;
    Access access;
    std::uint32_t allowed;  // a bit for each region that it may coincide with
  };
  static constexpr std::size_t kMostRegions = 16;

  std::span<Region> regions() { return std::span(regions_).first(count_); }
  std::span<const Region> regions() const { return std::span(regions_).first(count_); }
  std::uint32_t bit(const Region& region) const {
    return std::uint32_t{1} << static_cast<unsigned>(&region - regions_.data());
  }
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const {
    throw Error(what, std::string(function_), remedy);
  }
  const void* needed(std::string_view argument, const void* data) const {
    alignas(kAlignment) static const std::byte no_rows[1]{};
    if (!data && rows_ > 0) capi::throw_missing(function_, argument);
    return data ? data : no_rows;
  }
  // The operations write only to tensors declared as written.
  Tensor make(std::string_view argument, const void* data, DType dtype, const Shape& shape, Access access) {
    if (!data) return {};
    capi::check_alignment(function_, argument, data, size_of(dtype));
    add(argument, data, static_cast<std::size_t>(shape.elements()) * size_of(dtype), access);
    return Tensor(const_cast<void*>(data), dtype, shape, device_);
  }
  void add(std::string_view argument, const void* data, std::size_t bytes, Access access) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (bytes > std::numeric_limits<std::uintptr_t>::max() - begin) {
      fail(fmt::format("{} is {}, from which {} bytes do not fit", argument, data, bytes),
           "see warpwright.h");
    }
    if (bytes > 0) regions_[count_++] = {argument, begin, begin + bytes, access, 0};
  }

  std::string_view function_;
  Device device_;
  std::int64_t rows_, columns_;
  std::array<Region, kMostRegions> regions_;
  std::size_t count_ = 0;
};

void check_kept(std::string_view function, std::int64_t count, const void* kept_columns, const void* kept,
                std::int64_t rows, std::int64_t columns) {
  const auto fail = [&](const std::string& what) {
    throw Error(what, std::string(function), "see kept_columns in warpwright.h");
  };
  if (count < 0 || count > columns) fail(fmt::format("kept_count is {} (of {} columns)", count, columns));
  if (!kept_columns && (count > 0 || kept)) fail("kept_columns is NULL, but kept or kept_count is given");
  if (kept_columns && !kept && count > 0 && rows > 0) fail("kept is NULL, but kept_count is not 0");
}

void check_eps(std::string_view function, double eps) {
  if (eps >= 0 && std::isfinite(eps)) return;
  throw Error(fmt::format("eps is {}", eps), std::string(function), "eps is 0 or more, and finite");
}

void require_null(std::string_view function, std::string_view argument, const void* pointer,
                  std::string_view reason = "rmsnorm has neither bias nor mean") {
  if (!pointer) return;
  throw Error(fmt::format("{} is not NULL", argument), std::string(function), std::string(reason));
}

// The forward's list of columns, as given to the backward. Kernels use its entries as indices. On a GPU the
// host cannot read the list, so the kernels check it themselves.
void check_kept_columns(std::string_view function, const Tensor& kept_columns, std::int64_t columns) {
  if (!kept_columns || kept_columns.device.kind != DeviceKind::cpu) return;
  const auto* entries = kept_columns.as<std::int32_t>();
  for (std::int64_t k = 1; k < kept_columns.shape[0]; ++k) {
    const bool ascends = k == 1 || (entries[k - 1] >= 0 && entries[k] > entries[k - 1]);
    if (entries[k] == -1 || (entries[k] >= 0 && entries[k] < columns && ascends)) continue;
    throw Error(fmt::format("kept_columns[{}] is {} (of {} columns)", k, entries[k], columns),
                std::string(function), "give what the forward left there");
  }
}

void fill(Tensors& make, std::string_view function, const warpwright_norm_forward_args& a,
          ops::NormForward& args) {
  capi::check_reserved(function, "args.reserved", a.reserved);
  const DType x = capi::dtype_of(function, "x_dtype", a.x_dtype);
  const DType parameters = capi::dtype_of(function, "parameter_dtype", a.parameter_dtype);
  const DType out = capi::dtype_of(function, "out_dtype", a.out_dtype);
  check_kept(function, a.kept_count, a.kept_columns, a.kept, a.rows, a.columns);
  check_eps(function, a.eps);
  args.x = make.matrix("x", a.x, x);
  args.weight = make.columns("weight", a.weight, parameters);
  args.out = make.matrix("out", a.out, out, Access::write);
  args.rstd = make.optional_rows("rstd", a.rstd, ops::accumulation_dtype(x), Access::write);
  args.eps = a.eps;
  args.lost.columns = make.kept_columns(a.kept_columns, a.kept_count, Access::write);
  args.lost.x = make.kept(a.kept, x, a.kept_count, Access::write);
  if (args.centered) {
    args.bias = make.columns("bias", a.bias, parameters);
    args.mean = make.optional_rows("mean", a.mean, ops::accumulation_dtype(x), Access::write);
  } else {
    require_null(function, "bias", a.bias);
    require_null(function, "mean", a.mean);
  }
  if (a.out == a.x) make.allow("out", "x");
}

void fill(Tensors& make, std::string_view function, const warpwright_norm_backward_args& a,
          ops::NormBackward& args) {
  capi::check_reserved(function, "args.reserved", a.reserved);
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
  args.x = a.out ? make.optional_matrix("x", a.x, x) : make.matrix("x", a.x, x);
  args.out = make.optional_matrix("out", a.out, out);
  args.weight = make.columns("weight", a.weight, parameters);
  args.rstd = make.rows("rstd", a.rstd, statistics);
  args.dsum = make.optional_matrix("dsum", a.dsum, x);
  args.lost.columns = make.kept_columns(a.kept_columns, a.kept_count, Access::read);
  args.lost.x = make.kept(a.kept, x, a.kept_count, Access::read);
  args.dx = make.matrix("dx", a.dx, x, Access::write);
  args.dweight = make.columns("dweight", a.dweight, gradients, Access::write);
  args.dx_store = a.flags & WARPWRIGHT_ADD_TO_DX ? ops::Store::add : ops::Store::assign;
  args.dparameters_store = a.flags & WARPWRIGHT_ADD_TO_DPARAMETERS ? ops::Store::add : ops::Store::assign;
  if (args.centered) {
    args.bias = make.columns("bias", a.bias, parameters);
    const bool from_out = a.out && a.kept_count == 0;
    args.mean =
        from_out ? make.optional_rows("mean", a.mean, statistics) : make.rows("mean", a.mean, statistics);
    args.dbias = make.columns("dbias", a.dbias, gradients, Access::write);
  } else {
    require_null(function, "bias", a.bias);
    require_null(function, "mean", a.mean);
    require_null(function, "dbias", a.dbias);
  }
  if (a.dx == a.dsum) make.allow("dx", "dsum");
  if (a.dx == a.out) make.allow("dx", "out");
}

void fill(Tensors& make, std::string_view function, const warpwright_residual_norm_forward_args& a,
          ops::NormForward& args) {
  const DType dtype = capi::dtype_of(function, "dtype", a.dtype);
  check_kept(function, a.kept_count, a.kept_columns, a.kept, a.rows, a.columns);
  check_eps(function, a.eps);
  if (!a.sum)
    require_null(function, "kept_columns", a.kept_columns, "columns are kept of sum, which is NULL");
  args.x = make.matrix("x", a.x, dtype);
  args.x_bias = make.columns("x_bias", a.x_bias, dtype);
  args.residual = make.matrix("residual", a.residual, dtype);
  args.weight = make.columns("weight", a.weight, dtype);
  args.bias = make.columns("bias", a.bias, dtype);
  args.sum = make.optional_matrix("sum", a.sum, dtype, Access::write);
  args.out = make.matrix("out", a.out, dtype, Access::write);
  args.mean = make.optional_rows("mean", a.mean, ops::accumulation_dtype(dtype), Access::write);
  args.rstd = make.optional_rows("rstd", a.rstd, ops::accumulation_dtype(dtype), Access::write);
  args.lost.columns = make.kept_columns(a.kept_columns, a.kept_count, Access::write);
  args.lost.x = make.kept(a.kept, dtype, a.kept_count, Access::write);
  args.eps = a.eps;
  args.centered = a.rms == 0;
  if (a.sum == a.x) make.allow("sum", "x");
  if (a.sum == a.residual) make.allow("sum", "residual");
  if (a.out == a.x) make.allow("out", "x");
  if (a.out == a.residual) make.allow("out", "residual");
}

// The workspace, aligned as kernels need it. Null if none is needed.
void* workspace_of(std::string_view function, void* memory, std::size_t bytes, std::size_t needed) {
  if (needed == 0) return nullptr;
  if (!memory || bytes < needed) {
    throw Error(fmt::format("workspace has {} bytes, needs {}", memory ? bytes : 0, needed),
                std::string(function), fmt::format("ask {}_workspace", function));
  }
  return reinterpret_cast<void*>(round_up(reinterpret_cast<std::uintptr_t>(memory)));
}

const ops::Op<ops::NormForward>& op_of(const ops::NormForward&) {
  return ops::norm_forward_op();
}
const ops::Op<ops::NormBackward>& op_of(const ops::NormBackward&) {
  return ops::norm_backward_op();
}

// The caller's workspace need not be aligned.
template <class A>
std::size_t workspace_bytes(const ops::Choice<A>& choice) {
  return choice.workspace > 0 ? choice.workspace + kAlignment - 1 : 0;
}

// Calls the operation. `args` holds the fields that do not come from the caller.
template <class A, class C>
warpwright_status call(std::string_view function, warpwright_context* handle, const C* c_args, A args) {
  return capi::guarded([&](warpwright_status& meaning) {
    const capi::ContextInCall context(function, handle);
    const C known = capi::known_part(function, "args", c_args);
    const DeviceInfo& device = context->context.device();
    Tensors tensors(function, device.device, known.rows, known.columns);
    fill(tensors, function, known, args);
    const auto& op = op_of(args);
    const typename A::Problem problem = op.problem(args);
    meaning = WARPWRIGHT_UNSUPPORTED;
    const ops::Choice<A>& choice = ops::planned(context->context, op, problem);
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    const std::size_t bytes = workspace_bytes(choice);
    void* workspace = workspace_of(function, known.workspace, known.workspace_bytes, bytes);
    if (workspace) tensors.add_workspace(known.workspace, bytes);
    tensors.check_apart();
    if constexpr (requires { args.dx; }) check_kept_columns(function, args.lost.columns, known.columns);
    context->context.lend_scratch(workspace);
    meaning = WARPWRIGHT_FAILED;
    if (device.device.kind == DeviceKind::cpu) claim_threads(device.threads);
    const CurrentDevice current(device.device);
    ops::run(context->context, op, choice, problem, args);
  });
}

template <class A, class C>
warpwright_status ask_workspace(std::string_view function, warpwright_context* handle, const C* c_args,
                                std::size_t* bytes, A args) {
  return capi::guarded([&](warpwright_status& meaning) {
    const capi::ContextInCall context(function, handle);
    capi::check_place(function, "bytes", bytes);
    const C known = capi::known_part(function, "args", c_args);
    Tensors tensors(function, context->context.device().device, known.rows, known.columns);
    fill(tensors, function, known, args);
    const auto& op = op_of(args);
    typename A::Problem problem = op.problem(args);
    meaning = WARPWRIGHT_UNSUPPORTED;
    *bytes = 0;
    bool answered = false;
    for (const bool aligned : {true, false}) {  // the answer must hold for all addresses
      problem.aligned = aligned;
      try {
        *bytes = std::max(*bytes, workspace_bytes(ops::planned(context->context, op, problem)));
        answered = true;
      } catch (const Error&) {  // a forced kernel may take only aligned tensors
        if (!aligned && !answered) throw;
      }
    }
  });
}

ops::NormForward forward_args(bool centered) {
  ops::NormForward args;
  args.centered = centered;
  return args;
}
ops::NormBackward backward_args(bool centered) {
  ops::NormBackward args;
  args.centered = centered;
  return args;
}

}  // namespace

warpwright_status warpwright_layernorm_forward(warpwright_context* context,
                                               const warpwright_norm_forward_args* args) {
  return call("warpwright_layernorm_forward", context, args, forward_args(true));
}
warpwright_status warpwright_layernorm_forward_workspace(warpwright_context* context,
                                                         const warpwright_norm_forward_args* args,
                                                         size_t* bytes) {
  return ask_workspace("warpwright_layernorm_forward_workspace", context, args, bytes, forward_args(true));
}
warpwright_status warpwright_layernorm_backward(warpwright_context* context,
                                                const warpwright_norm_backward_args* args) {
  return call("warpwright_layernorm_backward", context, args, backward_args(true));
}
warpwright_status warpwright_layernorm_backward_workspace(warpwright_context* context,
                                                          const warpwright_norm_backward_args* args,
                                                          size_t* bytes) {
  return ask_workspace("warpwright_layernorm_backward_workspace", context, args, bytes, backward_args(true));
}
warpwright_status warpwright_rmsnorm_forward(warpwright_context* context,
                                             const warpwright_norm_forward_args* args) {
  return call("warpwright_rmsnorm_forward", context, args, forward_args(false));
}
warpwright_status warpwright_rmsnorm_forward_workspace(warpwright_context* context,
                                                       const warpwright_norm_forward_args* args,
                                                       size_t* bytes) {
  return ask_workspace("warpwright_rmsnorm_forward_workspace", context, args, bytes, forward_args(false));
}
warpwright_status warpwright_rmsnorm_backward(warpwright_context* context,
                                              const warpwright_norm_backward_args* args) {
  return call("warpwright_rmsnorm_backward", context, args, backward_args(false));
}
warpwright_status warpwright_rmsnorm_backward_workspace(warpwright_context* context,
                                                        const warpwright_norm_backward_args* args,
                                                        size_t* bytes) {
  return ask_workspace("warpwright_rmsnorm_backward_workspace", context, args, bytes, backward_args(false));
}

warpwright_status warpwright_residual_norm_forward(warpwright_context* context,
                                                   const warpwright_residual_norm_forward_args* args) {
  return call("warpwright_residual_norm_forward", context, args, ops::NormForward{});
}
warpwright_status warpwright_residual_norm_forward_workspace(
    warpwright_context* context, const warpwright_residual_norm_forward_args* args, size_t* bytes) {
  return ask_workspace("warpwright_residual_norm_forward_workspace", context, args, bytes,
                       ops::NormForward{});
}
