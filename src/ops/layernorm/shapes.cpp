// The shapes in which the CUDA kernels share out a row.
#include <array>

#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::layernorm::cuda {

std::string text_of(RowShape shape) {
  std::string text = fmt::format("{} packs, {} warps", shape.packs, shape.warps);
  if (shape.blocks > 1) text += fmt::format(", {} blocks", shape.blocks);
  return shape.roomy ? text + ", roomy" : text;
}

// Rows of up to 7 packs a lane in one warp, which needs no barrier; longer ones in few warps, so that a
// multiprocessor has many of them at once: of 4 or 5 packs, or of 6 or 8.
RowShape forward_shape(std::int64_t C, DType dtype, bool few) {
  constexpr int kMostWarps = 16, kWarp = 32;
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  if (C % lanes != 0 || C / lanes > kMostWarps * kWarp * 8) return {};
  const auto in_row = static_cast<int>(C / lanes);
  for (const int packs : {1, 2, 3, 4, 5, 6, 7}) {
    if ((!few || (packs != 5 && packs < 7)) && in_row <= kWarp * packs) return {packs, 1};
  }
  const auto warps_of = [&](int packs) { return (in_row + kWarp * packs - 1) / (kWarp * packs); };
  const bool floats = in_row <= kMostFloatRow;
  if (few) return floats ? RowShape{4, warps_of(4)} : RowShape{8, warps_of(8)};
  // The first of those that leave the fewest lanes idle, and none but in a thread's last pack.
  RowShape best;
  for (const int packs : floats ? std::array{5, 4} : std::array{6, 8}) {
    const int warps = warps_of(packs);
    // More warps of 6 packs wait longer for each other than fewer of 8 (16,384 columns: 75.4 µs
    // against 74.8).
    const int most = packs == 6 ? 9 : kMostWarps;
    if (warps > most || kWarp * warps * (packs - 1) > in_row) continue;
    if (best.warps == 0 || packs * warps < best.packs * best.warps) best = {packs, warps};
  }
  return best;
}

Refusal refuse_shape(RowShape shape, bool aligned) {
  if (shape.warps == 0) return "the row is too long or not made of 16-byte packs";
  if (!aligned) return "a tensor does not begin at a multiple of 16 bytes";
  return {};
}

bool leaves_caches(std::size_t bytes, const DeviceInfo& device) {
  return bytes > device.l2_bytes;
}

}  // namespace warpwright::ops::layernorm::cuda
