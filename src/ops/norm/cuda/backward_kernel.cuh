// The launch of the backward kernels of one share, for every dtype.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/norm/cuda/backward_rows.cuh"
#include "ops/norm/cuda/column_sums.cuh"
#include "ops/norm/cuda/element.cuh"

namespace warpwright::ops::norm::cuda {

template <Share share>
struct BackwardKernel {
  static BackwardLaunch launch_of(const NormBackwardProblem& p, const DeviceInfo& device) {
    return backward_launch(BackwardTensors(p), device);
  }
  static Refusal refuse(const NormBackwardProblem& p, const DeviceInfo& device) {
    const BackwardLaunch launch = launch_of(p, device);
    if (Refusal refusal = refuse_shape(launch.shape, share, p.aligned)) return refusal;
    constexpr std::size_t kStatic = 3072;
    if (launch.shared + kStatic > device.gpu.shared_bytes_per_block) {
      return "the row is too long for shared memory";
    }
    return {};
  }
  static std::size_t workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
    return static_cast<std::size_t>(launch_of(p, device).parts * 2 * p.C) * sizeof(float);
  }
  static std::string configuration(const NormBackwardProblem& p, const DeviceInfo& device) {
    const BackwardLaunch launch = launch_of(p, device);
    return text_of(launch.shape) + ", " + std::to_string(launch.parts) + " parts";
  }

  template <class Form, bool from_out, class X, class P, class O>
  static void launch_as(const BackwardRows<X, P, O>& a, const BackwardLaunch& launch, cudaStream_t stream) {
    const auto kernel = backward_rows<X, P, O, Form, from_out>;
    gpu::allow_shared(kernel, launch.shared);
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(launch.parts * launch.shape.blocks);
    config.blockDim = static_cast<unsigned>(launch.shape.threads());
    config.dynamicSmemBytes = launch.shared;
    config.stream = stream;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(launch.shape.blocks), 1, 1};
    config.attrs = &cluster;
    config.numAttrs = share == Share::cluster ? 1 : 0;
    constexpr const char* kNames[] = {"norm.backward cuda.warp_row", "norm.backward cuda.block_row",
                                      "norm.backward cuda.cluster_row"};
    warpwright::cuda::check(cudaLaunchKernelEx(&config, kernel, a, launch.shape.warps),
                            kNames[static_cast<int>(share)]);
  }

  // Launches the kernel for a shape of this share that backward_launch() returns. Each share's own file
  // defines it and lists the kernels that exist.
  template <bool from_out, class X, class P, class O>
  static void launch_rows(const BackwardRows<X, P, O>& a, const BackwardLaunch& launch, cudaStream_t stream);

  template <class X, class P, class O>
  static void run_as(const Context& context, const NormBackward& args) {
    const BackwardLaunch launch = backward_launch(BackwardTensors(args), context.device());
    auto* parts = static_cast<float*>(context.scratch());
    BackwardRows<X, P, O> a{};
    a.dout = data_of<const O>(args.dout);
    a.out = data_of<const O>(args.out);
    a.x = data_of<const X>(args.x);
    a.addend = args.dx_store == Store::add ? data_of<const X>(args.dx) : data_of<const X>(args.dsum);
    a.weight = data_of<const P>(args.weight);
    a.bias = data_of<const P>(args.bias);
    a.mean = args.centered ? data_of<const float>(args.mean) : nullptr;
    a.rstd = data_of<const float>(args.rstd);
    a.dx = data_of<X>(args.dx);
    a.parts = parts;
    a.kept = kept_columns_of<X>(args.lost);
    a.lost = LostRule<float>::of(args.dout.dtype);
    a.N = args.dx.shape[0];
    a.C = static_cast<int>(args.dx.shape[1]);
    a.centered = args.centered;
    a.streaming = leaves_caches(3 * args.dx.bytes(), context.device());
    const cudaStream_t stream = context.stream().get();
    if (launch.parts > 0) {
      args.out ? launch_rows<true>(a, launch, stream) : launch_rows<false>(a, launch, stream);
    }
    put_kept_sums(context, args, parts, launch.parts);
    add_column_sums(context, args, parts, launch.parts);
  }

  static void run(const Context& context, const NormBackward& args) {
    visit_norm_types(args.dx.dtype, args.weight, args.dout.dtype,
                     [&]<class X, class P, class O>(NormTypes<X, P, O>) {
                       if constexpr (!std::is_same_v<X, double>) run_as<X, P, O>(context, args);
                     });
  }
};

}  // namespace warpwright::ops::norm::cuda
