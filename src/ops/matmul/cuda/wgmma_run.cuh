// The host code that the three products on Hopper's tensor cores share.
#pragma once

#include <utility>

#include "ops/cuda/flags.cuh"
#include "ops/matmul/cuda/hopper/split.cuh"
#include "ops/matmul/cuda/parts.hpp"
#include "ops/matmul/cuda/wgmma.hpp"
#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul::cuda {

template <int index, TileShape t = kTiles[index].shape>
using TileOf = Tile<t.rows, t.cols, t.groups_down, t.groups_across, t.cluster_down, t.cluster_across>;

template <int index, TileShape t = kTiles[index].shape>
using SplitTileOf = SplitTile<t.rows, t.cols, t.groups_down, t.groups_across, t.deep>;

template <Schedule>
struct ScheduleOf;
template <>
struct ScheduleOf<Schedule::block> {
  using type = Block;
};
template <>
struct ScheduleOf<Schedule::persistent> {
  using type = Persistent;
};
template <>
struct ScheduleOf<Schedule::stream_k> {
  using type = StreamK;
};

// Launches the kernel of the selected tile. set(Parameters&) adds what the epilogue needs.
template <Direction direction, DType dtype, Activation activation, Finish finish, Schedule schedule, class In,
          class Out, bool a_transposed, bool b_transposed, class E, class Set>
void run_selected(const Context& context, const Selection& selection, const Product& product, Set&& set,
                  std::string_view what) {
  const auto run = [&]<int index>() {
    if constexpr (offers(direction, dtype, activation, finish, index, schedule) &&
                  kTiles[index].shape.deep > 0) {
      using K = SplitKernel<SplitTileOf<index>, In, Out, a_transposed, b_transposed, E>;
      Parameters p = describe_factors<K>(product, selection.raster);
      set(p);
      launch_split<K>(product, p, context.stream().get(), what);
    } else if constexpr (offers(direction, dtype, activation, finish, index, schedule)) {
      using K =
          Kernel<TileOf<index>, In, Out, a_transposed, b_transposed, typename ScheduleOf<schedule>::type, E>;
      Parameters p = describe<K>(product, selection.raster);
      set(p);
      if constexpr (schedule == Schedule::stream_k) {
        p.partials = static_cast<float*>(context.scratch());
        p.flags = gpu::flags_of(context);
      }
      launch<K>(p, selection.workers, schedule == Schedule::stream_k, context.stream().get(), what);
    }
  };
  [&]<int... indices>(std::integer_sequence<int, indices...>) {
    ((selection.tile == indices ? run.template operator()<indices>() : void()), ...);
  }
  (std::make_integer_sequence<int, kTileCount>());
}

// Calls f with the schedule as a constant.
template <class F>
void visit_schedule(Schedule schedule, F&& f) {
  switch (schedule) {
    case Schedule::block:
      return f(std::integral_constant<Schedule, Schedule::block>());
    case Schedule::persistent:
      return f(std::integral_constant<Schedule, Schedule::persistent>());
    case Schedule::stream_k:
      return f(std::integral_constant<Schedule, Schedule::stream_k>());
  }
}

// Calls f<activation, finish, schedule, dtype, T>() for a forward or dx. Kernels for other combinations of
// activation and finish do not exist: select() offers none.
template <class F>
void visit_product(Schedule schedule, DType dtype, Activation activation, Finish finish, F&& f) {
  visit_schedule(schedule, [&](auto chosen) {
    const auto with = [&]<Activation known_activation, Finish known_finish = Finish::plain>() {
      if (dtype == DType::bf16) {
        f.template operator()<known_activation, known_finish, chosen, DType::bf16, __nv_bfloat16>();
      } else {
        f.template operator()<known_activation, known_finish, chosen, DType::f16, __half>();
      }
    };
    if (finish == Finish::widened) return with.template operator()<Activation::none, Finish::widened>();
    if (finish == Finish::combined) return with.template operator()<Activation::none, Finish::combined>();
    switch (activation) {
      case Activation::none:
        return with.template operator()<Activation::none>();
      case Activation::gelu_tanh:
        return with.template operator()<Activation::gelu_tanh>();
      case Activation::gelu_erf:
        return with.template operator()<Activation::gelu_erf>();
      default:
        return;
    }
  });
}

inline Matrix matrix_of(const Tensor& t) {
  return t ? Matrix{t.data, leading_of(t)} : Matrix{};
}

}  // namespace warpwright::ops::matmul::cuda
