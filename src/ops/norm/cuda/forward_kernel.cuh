// The launch of the forward kernels of one share, for every dtype, with and without a residual.
#pragma once

#include "ops/cuda/overlap.cuh"
#include "ops/norm/cuda/element.cuh"
#include "ops/norm/cuda/forward_rows.cuh"
#include "ops/norm/cuda/lost_columns.cuh"

namespace warpwright::ops::norm::cuda {

// The packs per lane for which kernels exist; `few` as in forward_shape().
template <Share share, bool few>
struct ForwardPacks;
template <>
struct ForwardPacks<Share::warp, false> : std::integer_sequence<int, 1, 2, 3, 4, 5, 6, 7> {};
template <>
struct ForwardPacks<Share::warp, true> : std::integer_sequence<int, 1, 2, 3, 4, 6> {};
template <>
struct ForwardPacks<Share::block, false> : std::integer_sequence<int, 4, 5, 6, 8> {};
template <>
struct ForwardPacks<Share::block, true> : std::integer_sequence<int, 4, 8> {};

template <Share share, bool with_sum, bool rounded, int packs, class X, class P, class O>
void launch_forward_as(const ForwardRows<X, P, O>& a, int warps, const Context& context) {
  constexpr bool one_warp = share == Share::warp;
  constexpr int kWarpThreads = ForwardForm<X, P, packs, one_warp, with_sum>::warp_threads;
  const int threads = one_warp ? kWarpThreads : warps * gpu::kWarp;
  const std::int64_t rows = one_warp ? kWarpThreads / gpu::kWarp : 1;
  gpu::launch_overlapped(context, forward_rows<X, P, O, packs, one_warp, with_sum, rounded>,
                         static_cast<unsigned>((a.N + rows - 1) / rows), threads, 0,
                         one_warp ? "norm.forward cuda.warp_row" : "norm.forward cuda.block_row", a,
                         1.0f / static_cast<float>(a.C), gpu::overlaps(context));
}

template <Share share, bool with_sum, bool rounded, class X, class P, class O>
void launch_forward(const ForwardRows<X, P, O>& a, RowShape shape, const Context& context) {
  if (a.N == 0) return;
  const auto launch = [&]<int... packs>(std::integer_sequence<int, packs...>) {
    ((shape.packs == packs ? launch_forward_as<share, with_sum, rounded, packs>(a, shape.warps, context)
                           : void()),
     ...);
  };
  launch(ForwardPacks < share, with_sum || sizeof(X) != sizeof(P) > {});
}

template <Share share>
struct ForwardKernel {
  static RowShape shape_of(const NormForwardProblem& p) {
    return forward_shape(p.C, p.dtype, p.residual || p.fp32_parameters);
  }
  static Refusal refuse(const NormForwardProblem& p, const DeviceInfo&) {
    return refuse_shape(shape_of(p), share, p.aligned);
  }
  static std::string configuration(const NormForwardProblem& p, const DeviceInfo&) {
    return text_of(shape_of(p));
  }

  template <class X, class P, class O>
  static void run_as(const Context& context, const NormForward& args) {
    ForwardRows<X, P, O> a{};
    a.x = data_of<const X>(args.x);
    a.x_bias = data_of<const X>(args.x_bias);
    a.residual = data_of<const X>(args.residual);
    a.weight = data_of<const P>(args.weight);
    a.bias = data_of<const P>(args.bias);
    a.sum = data_of<X>(args.sum);
    a.out = data_of<O>(args.out);
    a.mean = data_of<float>(args.mean);
    a.rstd = data_of<float>(args.rstd);
    a.N = args.x.shape[0];
    a.C = static_cast<int>(args.x.shape[1]);
    a.eps = static_cast<float>(args.eps);
    a.centered = args.centered;
    a.streaming = leaves_caches((args.residual ? 4 : 2) * args.x.bytes(), context.device());
    a.rows_on_device = args.rows.as<std::int32_t>();
    const RowShape shape = forward_shape(a.C, args.x.dtype, args.residual || sizeof(P) != sizeof(X));
    if constexpr (std::is_same_v<X, O>) {
      if (args.sum) return launch_forward<share, true, true>(a, shape, context);
      if (args.residual) return launch_forward<share, true, false>(a, shape, context);
    }
    launch_forward<share, false, true>(a, shape, context);
  }

  static void run(const Context& context, const NormForward& args) {
    visit_norm_types(args.x.dtype, args.weight, args.out.dtype,
                     [&]<class X, class P, class O>(NormTypes<X, P, O>) {
                       if constexpr (!std::is_same_v<X, double>) run_as<X, P, O>(context, args);
                     });
    keep_lost_columns(context, args);
  }
};

}  // namespace warpwright::ops::norm::cuda
