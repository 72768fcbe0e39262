// Muon's update of a matrix, compared with the textbook's formulas in fp64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "ops/adamw/master.hpp"
#include "ops/element.hpp"
#include "runtime/philox.hpp"
#include "train/muon.hpp"
#include "train/optimizer_shard.hpp"

namespace warpwright {
namespace {

using Rounding = std::function<double(double)>;
double exact(double x) {
  return x;
}
double to_bf16(double x) {
  return static_cast<double>(static_cast<float>(bf16(static_cast<float>(x))));
}

// A matrix of doubles; every element is rounded when it is stored.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;

  double at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * columns + c)];
  }
};

Matrix made(std::int64_t rows, std::int64_t columns, const Rounding& round,
            const std::function<double(std::int64_t, std::int64_t)>& value) {
  Matrix m{rows, columns, {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) m.values.push_back(round(value(r, c)));
  }
  return m;
}

double dot(const Matrix& a, std::int64_t row, const Matrix& b, std::int64_t column) {
  double sum = 0;
  for (std::int64_t k = 0; k < a.columns; ++k) sum += a.at(row, k) * b.at(k, column);
  return sum;
}

Matrix transposed(const Matrix& m) {
  return made(m.columns, m.rows, exact, [&](auto r, auto c) { return m.at(c, r); });
}

// As torch.optim.Muon does it, with the smaller side first. `round` is applied to everything that it stores
// after the norm.
Matrix textbook(Matrix x, const Rounding& round) {
  const bool tall = x.rows > x.columns;
  if (tall) x = transposed(x);
  double squares = 0;
  for (const double v : x.values) squares += v * v;
  const double norm = std::sqrt(squares) + 1e-7;
  x = made(x.rows, x.columns, round, [&](auto r, auto c) { return x.at(r, c) / norm; });
  for (int i = 0; i < 5; ++i) {
    const Matrix t = transposed(x);
    const Matrix a = made(x.rows, x.rows, round, [&](auto r, auto c) { return dot(x, r, t, c); });
    const Matrix b = made(x.rows, x.rows, round,
                          [&](auto r, auto c) { return -4.7750 * a.at(r, c) + 2.0315 * dot(a, r, a, c); });
    x = made(x.rows, x.columns, round, [&](auto r, auto c) { return 3.4445 * x.at(r, c) + dot(b, r, x, c); });
  }
  return tall ? transposed(x) : x;
}

// ‖ours − wanted‖² and ‖wanted‖², over one or several draws.
struct Errors {
  double error = 0, size = 0;

  void add(const Matrix& ours, const Matrix& wanted) {
    for (std::size_t i = 0; i < wanted.values.size(); ++i) {
      error += std::pow(ours.values[i] - wanted.values[i], 2);
      size += std::pow(wanted.values[i], 2);
    }
  }
  double relative() const { return size > 0 ? std::sqrt(error / size) : error; }
};

double relative_error(const Matrix& ours, const Matrix& wanted) {
  Errors errors;
  errors.add(ours, wanted);
  return errors.relative();
}

std::vector<Shape> shapes() {
  return {{1, 1},   {1, 40},  {40, 1},   {3, 7},    {7, 3}, {32, 32},
          {24, 72}, {72, 24}, {33, 129}, {129, 33}, {5, 64}};
}

// A parameter with its gradient and momentum on the host.
class MuonUpdateTest : public ::testing::TestWithParam<DType> {
 protected:
  Tensor filled(const char* name, DType dtype, const Shape& shape,
                const std::function<double(std::int64_t)>& value) {
    const Tensor t = heap_.allocate(name, dtype, shape, Category::gradients);
    for (std::int64_t i = 0; i < t.elements(); ++i) ops::store_element(t, i, value(i));
    return t;
  }

  MuonMatrix matrix(const Shape& shape, double gradient_size, std::uint32_t draw = 0) {
    const PhiloxStream random(draw, static_cast<std::uint32_t>(shape[0] * 1000 + shape[1]));
    const auto normal = [&](std::int64_t i) { return random.normal(static_cast<std::uint64_t>(i)); };
    Tensor remainder;
    if (GetParam() == DType::bf16) {
      remainder = heap_.allocate("remainder", DType::i16, shape, Category::master_weights);
      set_remainders(remainder, filled("master", DType::f32, shape, normal));
    }
    return {.parameter = filled("w", GetParam(), shape, normal),
            .remainder = remainder,
            .gradient = filled("g", DType::f32, shape, [&](auto i) { return gradient_size * normal(i); }),
            .m = filled("m", DType::f32, shape, [](auto) { return 0; }),
            .weight_decay = kDecay};
  }

  MuonStep step(double scale) {
    const double values[] = {kLearningRate, 0.5, 0.5, scale};
    return {.scalars = filled("scalars", DType::f32, {4}, [&](auto i) { return values[i]; }), .random = {}};
  }

  static Matrix values_of(const Tensor& t) {
    return made(t.shape[0], t.shape[1], exact,
                [&](auto r, auto c) { return ops::load_element(t, r * t.shape[1] + c); });
  }

  // The parameter, or its master.
  static Matrix weights_of(const MuonMatrix& w) {
    if (!w.remainder) return values_of(w.parameter);
    const Shape& shape = w.parameter.shape;
    return made(shape[0], shape[1], exact, [&](auto r, auto c) {
      const std::int64_t i = r * shape[1] + c;
      return ops::adamw_kernels::master_of(w.parameter.as<bf16>()[i].bits, w.remainder.as<std::int16_t>()[i]);
    });
  }

  // The orthogonal direction of an update.
  static Matrix direction_of(const Matrix& before, const Matrix& after) {
    const double factor = 0.2 * std::sqrt(static_cast<double>(std::max(before.rows, before.columns)));
    return made(before.rows, before.columns, exact, [&](auto r, auto c) {
      const double change = (before.at(r, c) - after.at(r, c)) / kLearningRate;
      return (change - kDecay * before.at(r, c)) / factor;
    });
  }

  static constexpr double kLearningRate = 0.25, kDecay = 0.1;
  HeapAllocator heap_;
  MuonBuffers room_ = allocate_muon(shapes(), GetParam(), heap_);
  Context context_{ContextOptions{}};
};

// From zero momentum, one step has the direction (1 − μ)(1 + μ)·g. Rounding errors in bf16 are random, and
// those of a matrix of few elements differ by a factor of three between draws. So the errors of several draws
// are compared.
TEST_P(MuonUpdateTest, IsTheTextbooks) {
  constexpr std::uint32_t kDraws = 20;
  for (const Shape& shape : shapes()) {
    for (const double size : {1e-3, 1.0, 1e30}) {
      SCOPED_TRACE(fmt::format("{} of size {}", shape.to_string(), size));
      Errors ours, pytorch;
      for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
        const MuonMatrix w = matrix(shape, size, draw);
        const Matrix gradient = values_of(w.gradient), before = weights_of(w);
        update_matrix(context_, room_, w, step(0.5));
        const auto scaled = [&](double by) {
          return made(shape[0], shape[1], exact, [&](auto r, auto c) { return by * gradient.at(r, c); });
        };
        EXPECT_LE(relative_error(values_of(w.m), scaled(0.05 * 0.5)), 1e-6);
        const Matrix direction = scaled((0.05 + 0.95 * 0.05) * 0.5), wanted = textbook(direction, exact);
        ours.add(direction_of(before, weights_of(w)), wanted);
        pytorch.add(textbook(direction, to_bf16), wanted);
      }
      EXPECT_LE(ours.relative(), GetParam() == DType::f32 ? 1e-5 : 2 * pytorch.relative());
    }
  }
}

TEST_P(MuonUpdateTest, OrthogonalizesRows) {
  const Shape shape{24, 72};
  const MuonMatrix w = matrix(shape, 1);
  const auto [y, factor] = orthogonalize(context_, room_, w.gradient);
  const Matrix x = values_of(y), t = transposed(x);
  for (std::int64_t r = 0; r < shape[0]; ++r) {
    const double length = factor * std::sqrt(dot(x, r, t, r));
    EXPECT_GT(length, 0.6);
    EXPECT_LT(length, 1.3);
  }
}

TEST_P(MuonUpdateTest, AGradientOfZeroOnlyDecays) {
  for (const Shape& shape : shapes()) {
    const MuonMatrix w = matrix(shape, 0);
    const Matrix before = weights_of(w);
    update_matrix(context_, room_, w, step(1));
    const Matrix decayed = made(shape[0], shape[1], exact, [&](auto r, auto c) {
      return (1 - kLearningRate * kDecay) * before.at(r, c);
    });
    EXPECT_LE(relative_error(weights_of(w), decayed), 1e-6);
  }
}

TEST_P(MuonUpdateTest, AScaleThatIsNotFiniteChangesNothing) {
  const Shape shape{7, 3};
  const MuonMatrix w = matrix(shape, 1);
  const Matrix before = values_of(w.parameter);
  update_matrix(context_, room_, w, step(std::nan("")));
  EXPECT_EQ(values_of(w.parameter).values, before.values);
  for (const double m : values_of(w.m).values) EXPECT_EQ(m, 0);
}

INSTANTIATE_TEST_SUITE_P(Muon, MuonUpdateTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace warpwright
