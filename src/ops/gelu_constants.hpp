// The constants of both forms of GELU, for the kernels of CPUs and GPUs. They have internal linkage, as files
// that are compiled for one instruction set need it. Formulas: ops/activation.hpp.
#pragma once

namespace warpwright::ops {

// 1 + tanh(u) = 2 / (1 + e^-2u), so gelu_tanh(x) = x · σ(z) with z = 2u = √(8/π)·(x + 0.044715·x³).
constexpr float kSqrt8OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

// Φ(−|x|) = e^(−x²/2) · q(|x|). q falls like 1/|x|, so it is written as t times a polynomial in t = 3 / (3 +
// |x|): kTail0 + kTail1·t + … + kTail8·t⁸. The polynomial has the least relative error for 0 ≤ |x| ≤ 14,
// 4.7e-8. It comes from a weighted least-squares fit whose weights follow the error until the error is level.
constexpr float kTail8 = -0.022764014080166817f;
constexpr float kTail7 = 0.12959478795528412f;
constexpr float kTail6 = -0.2712782323360443f;
constexpr float kTail5 = 0.21895495057106018f;
constexpr float kTail4 = -0.05337168276309967f;
constexpr float kTail3 = 0.11991623044013977f;
constexpr float kTail2 = 0.11241796612739563f;
constexpr float kTail1 = 0.13357512652873993f;
constexpr float kTail0 = 0.13295488059520721f;

// φ(x) = kInverseSqrt2Pi · e^(−x²/2)
constexpr float kInverseSqrt2Pi = 0.3989422804014327f;

}  // namespace warpwright::ops
