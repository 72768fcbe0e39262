// Changes of a call to an encoder's attention, and layers over padded states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "model/bert_session.hpp"
#include "ops/element.hpp"
#include "runtime/host_view.hpp"
#include "runtime/philox.hpp"

namespace warpwright {
namespace {

using Result = BertSession::Result;
using From = BertSession::From;
using Matrix = std::vector<double>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kHidden = 64, kHeads = 2, kLongest = 70, kSize = 72;

// Heads of 32, so that a GPU takes its tensor cores.
BertConfig small_config() {
  BertConfig config = BertConfig::named("minilm");
  config.hidden = kHidden;
  config.heads = kHeads;
  config.intermediate = 96;
  config.layers = 2;
  config.vocab = 40;
  return config;
}

struct Machine {
  Device device;
  DType dtype;
};
std::vector<Machine> machines() {
  std::vector<Machine> list{{{}, DType::f32}, {{}, DType::bf16}};
  if (cuda_device_count() > 0) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      list.push_back({{DeviceKind::cuda, 0}, dtype});
    }
  }
  return list;
}

class Model {
 public:
  explicit Model(const Machine& machine, float query_scale = 1)
      : context_(ContextOptions{}, machine.device, Stream::borrowed(machine.device, nullptr)),
        session_(context_, weights(context_, machine.dtype, query_scale), {.max_batch_tokens = 200}),
        dtype_(machine.dtype) {}

  BertSession& session() { return session_; }
  Context& context() { return context_; }

  // A tensor on the device with these elements.
  Tensor tensor(DType dtype, const Shape& shape, const std::function<double(std::int64_t)>& element) {
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(shape.elements(), 1)) * size_of(dtype);
    memory_.emplace_back(bytes, context_.device().device, "a test's tensor");
    const Tensor made(memory_.back().data(), dtype, shape, context_.device().device);
    write_on_host(made, context_.stream(), [&](const Tensor& host) {
      for (std::int64_t i = 0; i < shape.elements(); ++i) {
        const double value = element(i);
        if (dtype == DType::u8) host.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
        if (dtype == DType::i64) host.as<std::int64_t>()[i] = static_cast<std::int64_t>(value);
        if (is_floating(dtype)) ops::store_element(host, i, value);
      }
    });
    return made;
  }

  // The last hidden states of sequences of these lengths, from states that depend on nothing else.
  Matrix layers(const std::vector<std::int64_t>& lengths, const BertAttention& attention = {}) {
    PackedBatch batch;
    for (const std::int64_t length : lengths) {
      batch.append(std::vector<std::int32_t>(static_cast<std::size_t>(length), 0));
    }
    const auto N = static_cast<std::int64_t>(batch.tokens.size());
    write_on_host(session_.states(N), context_.stream(), [&](const Tensor& host) {
      for (std::int64_t i = 0; i < host.elements(); ++i) ops::store_element(host, i, state(i));
    });
    return values(session_.launch(batch, Result::hidden, From::states, attention));
  }

  Matrix values(const Tensor& tensor) {
    const HostView view = downloaded(tensor, context_.stream());
    Matrix all;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) all.push_back(ops::load_element(view.tensor(), i));
    return all;
  }

  static double state(std::int64_t i) {
    return 2 * PhiloxStream(1, 3).uniform(static_cast<std::uint64_t>(i)) - 1;
  }
  DType dtype() const { return dtype_; }

 private:
  // Random weights. Those of the attention are larger than a new model's, so that it is far from uniform.
  static std::shared_ptr<const BertWeights> weights(const Context& context, DType dtype, float query_scale) {
    auto made = std::make_shared<BertWeights>(context, small_config(),
                                              BertWeightsOptions{.precision = {.dtype = dtype}});
    for (const BertBlock& block : made->parameters().blocks) {
      multiply(context, block.qkv.weight, 8);
      multiply(context, block.attproj.weight, 8);
      multiply(context, block.qkv.weight.slice(0, 0, kHidden), query_scale);
      multiply(context, block.qkv.bias.slice(0, 0, kHidden), query_scale);
    }
    return made;
  }
  static void multiply(const Context& context, const Tensor& tensor, double factor) {
    const HostView view = downloaded(tensor, context.stream());
    write_on_host(tensor, context.stream(), [&](const Tensor& host) {
      for (std::int64_t i = 0; i < host.elements(); ++i) {
        ops::store_element(host, i, factor * ops::load_element(view.tensor(), i));
      }
    });
  }

  Context context_;
  BertSession session_;
  DType dtype_;
  std::vector<Buffer> memory_;
};

double distance(const Matrix& a, const Matrix& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) error += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(error / norm);
}

// The error that a dtype's rounding alone makes in these sequences.
double rounding_of(Model& model, const std::vector<std::int64_t>& lengths) {
  Model exact({{}, DType::f32});
  return std::max(distance(model.layers(lengths), exact.layers(lengths)), 1e-6);
}

// Two blocks of pairs: the first 33 tokens see each other, and the others do.
bool same_block(std::int64_t i, std::int64_t j) {
  return (i < 33) == (j < 33);
}
double pair_of(std::int64_t at) {
  return same_block(at / kSize % kSize, at % kSize);
}

TEST(BertAttention, AMaskOfTwoBlocksSplitsASequence) {
  for (const Machine& machine : machines()) {
    Model model(machine);
    const Matrix wanted = model.layers({33, kLongest - 33, 9}), whole = model.layers({kLongest, 9});
    const double bound = 2 * rounding_of(model, {33, kLongest - 33, 9});
    EXPECT_GT(distance(whole, wanted), machine.dtype == DType::f32 ? 100 * bound : 0);
    for (const DType dtype : {DType::u8, DType::i64, DType::f32, DType::bf16}) {
      const Tensor mask = model.tensor(dtype, {2, 1, kSize, kSize}, pair_of);
      EXPECT_LE(distance(model.layers({kLongest, 9}, {.mask = mask}), wanted), bound) << name_of(dtype);
    }
    EXPECT_EQ(model.layers({kLongest, 9}), whole);  // the mask was that call's alone
  }
}

TEST(BertAttention, ABiasHidesWhatAMaskHides) {
  for (const Machine& machine : machines()) {
    Model model(machine);
    const Matrix wanted = model.layers({33, kLongest - 33, 9});
    const double bound = 2 * rounding_of(model, {33, kLongest - 33, 9});
    for (const std::int64_t size : {kSize, kLongest + 1}) {
      const auto hide = [&](std::int64_t at) {
        return same_block(at / size % size, at % size) ? 0.25 : -1e4;
      };
      for (const Shape& shape : {Shape{kHeads, size, size}, Shape{2, kHeads, size, size}}) {
        const Tensor bias = model.tensor(model.dtype(), shape, hide);
        EXPECT_LE(distance(model.layers({kLongest, 9}, {.bias = bias}), wanted), bound);
      }
    }
  }
}

// A bias of each head, and of each sequence, reaches its own scores.
TEST(BertAttention, EachBiasHasItsPlace) {
  for (const Machine& machine : machines()) {
    Model model(machine);
    const auto ramp = [](std::int64_t s) {
      return [s](std::int64_t at) {
        const std::int64_t i = at / kSize % kSize, j = at % kSize, h = at / (kSize * kSize) % kHeads;
        const std::int64_t sequence = s >= 0 ? s : at / (kSize * kSize * kHeads);
        return -0.05 * static_cast<double>((i > j ? i - j : j - i) * (1 + h)) *
               static_cast<double>(1 + sequence);
      };
    };
    const Tensor each = model.tensor(model.dtype(), {2, kHeads, kSize, kSize}, ramp(-1));
    const Matrix both = model.layers({kLongest, 20}, {.bias = each});
    const auto first = static_cast<std::ptrdiff_t>(kLongest * kHidden);
    const Tensor own = model.tensor(model.dtype(), {kHeads, kSize, kSize}, ramp(0)),
                 other = model.tensor(model.dtype(), {kHeads, kSize, kSize}, ramp(1));
    const Matrix with_own = model.layers({kLongest, 20}, {.bias = own}),
                 with_other = model.layers({kLongest, 20}, {.bias = other});
    const auto equal = [&](const Matrix& a, std::ptrdiff_t from, std::ptrdiff_t to) {
      return std::equal(a.begin() + from, a.begin() + to, both.begin() + from);
    };
    const auto end = static_cast<std::ptrdiff_t>(both.size());
    EXPECT_TRUE(equal(with_own, 0, first) && equal(with_other, first, end));
    EXPECT_FALSE(equal(with_other, 0, first) || equal(with_own, first, end));
  }
}

TEST(BertAttention, TheTemperatureDividesTheScores) {
  for (const Machine& machine : machines()) {
    Model model(machine), twin(machine, 0.5f);
    const Matrix wanted = twin.layers({kLongest, 9});
    EXPECT_LE(distance(model.layers({kLongest, 9}, {.temperature = 2}), wanted), 1e-6);
    EXPECT_GT(distance(model.layers({kLongest, 9}), wanted), 1e-3);
  }
}

TEST(BertAttention, ASessionHasADefault) {
  Context context{ContextOptions{}};
  const auto weights = std::make_shared<BertWeights>(context, small_config(), BertWeightsOptions{});
  BertSession plain(context, weights), session(context, weights, {.attention = {.temperature = 0.01f}});
  PackedBatch batch;
  batch.append(std::vector<std::int32_t>{1, 2, 3, 4, 5});
  std::vector<float> wanted(kHidden), vectors(kHidden);
  plain.embed(batch, wanted, {.temperature = 0.01f});
  session.embed(batch, vectors);
  EXPECT_EQ(vectors, wanted);
  plain.embed(batch, vectors);
  EXPECT_NE(vectors, wanted);
  EXPECT_THROW(BertSession(context, weights, {.attention = {.temperature = 0}}), Error);
}

std::string error_from(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(BertAttention, RefusesWhatDoesNotFit) {
  for (const Machine& machine : machines()) {
    Model model(machine);
    const auto refusal = [&](const BertAttention& attention) {
      return error_from([&] { model.layers({3, 2}, attention); });
    };
    const auto zeros = [](std::int64_t) { return 0.0; };
    const auto bias = [&](const Shape& shape) {
      return refusal({.bias = model.tensor(model.dtype(), shape, zeros)});
    };
    EXPECT_EQ(refusal({.temperature = 0}), "temperature: is 0; give a number of 1e-30 or more");
    EXPECT_EQ(refusal({.temperature = 1e-38f}), "temperature: is 1e-38; give a number of 1e-30 or more");
    EXPECT_EQ(refusal({.temperature = -1}), "temperature: is -1; give a number of 1e-30 or more");
    EXPECT_EQ(refusal({.temperature = NAN}), "temperature: is nan; give a number of 1e-30 or more");
    EXPECT_EQ(refusal({.temperature = kInfinity}), "temperature: is inf; give a number of 1e-30 or more");
    const std::string remedy = "; give (2, L, L) or (2, 2, L, L) with L of at least 3";
    for (const Shape& shape : {Shape{3, 3}, Shape{2, 2, 2}, Shape{3, 3, 3}, Shape{2, 3, 4}, Shape{3, 2, 3, 3},
                               Shape{2, 3, 3, 3}}) {
      EXPECT_EQ(bias(shape), "bias: has shape " + shape.to_string() + remedy);
    }
    const DType other = model.dtype() == DType::f32 ? DType::bf16 : DType::f32;
    EXPECT_EQ(refusal({.bias = model.tensor(other, {2, 3, 3}, zeros)}).substr(0, 9), "bias: is ");
    EXPECT_EQ(refusal({.mask = model.tensor(DType::u8, {2, 3, 3}, zeros)}),
              "attention_mask: has shape (2, 3, 3); give (2, 3) for the tokens or (2, 1, 3, 3) for pairs");
    EXPECT_EQ(refusal({.mask = model.tensor(DType::u8, {2, 1, 2, 2}, zeros)}),
              "attention_mask: has shape (2, 1, 2, 2); give (2, 3) for the tokens or (2, 1, 3, 3) for pairs");
    EXPECT_NE(refusal({.mask = model.tensor(DType::u8, {2, 3}, zeros)}).find("a packed batch has no padding"),
              std::string::npos);
  }
}

// On a GPU the error comes when the mask's result is read, or from the next call.
TEST(BertAttention, ReportsOtherValues) {
  const std::string wanted =
      "attention_mask: has a value other than 0 and 1 at (1, 0, 2, 0); use 1 for what is seen and 0 for what "
      "is "
      "not";
  for (const Machine& machine : machines()) {
    Model model(machine);
    for (const double odd : {0.5, 2.0, -1.0, std::nan("")}) {
      const Tensor mask = model.tensor(DType::f32, {2, 1, 3, 3},
                                       [&](std::int64_t at) { return at == 15 || at == 17 ? odd : 1; });
      EXPECT_EQ(error_from([&] {
                  model.layers({3, 2}, {.mask = mask});
                  model.session().check_mask();
                }),
                wanted);
      model.session().check_mask();  // is reported once
      EXPECT_EQ(error_from([&] {
                  model.layers({3, 2}, {.mask = mask});
                  model.layers({3, 2});
                }),
                wanted);
      PackedBatch batch;
      for (const std::int32_t length : {3, 2}) {
        batch.append(std::vector<std::int32_t>(static_cast<std::size_t>(length), 0));
      }
      std::vector<float> vectors(2 * kHidden);
      EXPECT_EQ(error_from([&] { model.session().embed(batch, vectors, {.mask = mask}); }), wanted);
      model.layers({3, 2});
    }
  }
}

// Padded states with any pattern of ones, whose lengths the device finds.
TEST(BertAttention, LayersOverPaddedStates) {
  constexpr std::int64_t B = 3, S = 40;
  const auto is_token = [](std::int64_t at) {
    const std::int64_t b = at / S, s = at % S;
    return b == 0 ? s % 3 != 1 : b == 1 ? s >= 31 : false;
  };
  for (const Machine& machine : machines()) {
    Model model(machine);
    std::vector<std::int64_t> places, lengths(B, 0);
    for (std::int64_t at = 0; at < B * S; ++at) {
      if (is_token(at)) places.push_back(at), ++lengths[static_cast<std::size_t>(at / S)];
    }
    const Matrix packed = model.layers(lengths);
    Matrix wanted(B * S * kHidden, 0);
    for (std::size_t r = 0; r < places.size(); ++r) {
      std::copy_n(packed.begin() + static_cast<std::ptrdiff_t>(r) * kHidden, kHidden,
                  wanted.begin() + places[r] * kHidden);
    }
    const Tensor states = model.tensor(model.dtype(), {B, S, kHidden}, [&](std::int64_t i) {
      const auto place = std::find(places.begin(), places.end(), i / kHidden);
      return place == places.end() ? std::nan("")
                                   : Model::state((place - places.begin()) * kHidden + i % kHidden);
    });
    const Tensor out = model.tensor(model.dtype(), states.shape, [](std::int64_t) { return std::nan(""); });
    for (const DType dtype : {DType::u8, DType::f32}) {
      const Tensor mask = model.tensor(dtype, {B, S}, [&](std::int64_t at) { return is_token(at); });
      for (int run = 0; run < 3; ++run) {  // on a GPU: as it is, captured, launched again
        model.session().layers(states, mask, out);
        model.session().check_mask();
        EXPECT_LE(distance(model.values(out), wanted), 2 * rounding_of(model, lengths));
      }
    }
    const Tensor wrong = model.tensor(DType::f32, {B, S + 1}, [](std::int64_t) { return 1; });
    EXPECT_EQ(error_from([&] { model.session().layers(states, wrong, out); }),
              "attention_mask: has shape (3, 41); give (3, 40) for the tokens or (3, 1, 40, 40) for pairs");
    const Tensor odd = model.tensor(DType::f32, {B, S}, [](std::int64_t at) { return at == 41 ? 0.7 : 1; });
    EXPECT_EQ(
        error_from([&] {
          model.session().layers(states, odd, out);
          model.session().check_mask();
        }),
        "attention_mask: has a value other than 0 and 1 at (1, 1); use 1 for what is seen and 0 for what is "
        "not");
  }
}

}  // namespace
}  // namespace warpwright
