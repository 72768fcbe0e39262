#include "ops/matmul/products_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>

#include "ops/matmul/measured.hpp"
#include "ops/matmul/timeline.hpp"
#include "ops/matmul/timer_bench.hpp"
#include "runtime/file.hpp"

namespace warpwright::ops::matmul {
namespace {

void add_layer(std::vector<ProductShape>& shapes, std::int64_t M, std::int64_t N, std::int64_t K) {
  for (const Direction d : {Direction::forward, Direction::dx, Direction::dw})
    shapes.push_back({.direction = d, .M = M, .N = N, .K = K});
}

void add_gelu(std::vector<ProductShape>& shapes, std::int64_t M, std::int64_t N, std::int64_t K) {
  shapes.push_back(
      {.direction = Direction::forward, .M = M, .N = N, .K = K, .activation = Activation::gelu_tanh});
  shapes.push_back({.direction = Direction::dx, .M = M, .N = K, .K = N, .activation = Activation::gelu_tanh});
}

// The four layers of a transformer block of width C. The feed-forward layers are also added with GELU.
void add_block(std::vector<ProductShape>& shapes, std::int64_t M, std::int64_t C) {
  add_layer(shapes, M, 3 * C, C);
  add_layer(shapes, M, C, C);
  add_layer(shapes, M, 4 * C, C);
  add_layer(shapes, M, C, 4 * C);
  add_gelu(shapes, M, 4 * C, C);
}

[[noreturn]] void refuse_shape(std::string_view part, std::string_view what, std::string_view word) {
  const std::string where = part == word ? "" : fmt::format(" in '{}'", word);
  throw UsageError(fmt::format("'{}'{} is no {}", part, where, what), "bench products",
                   "use gpt2, bert, random:COUNT[:SEED], MxNxK, gelu:MxNxK, residual:MxNxK or fp32:MxNxK");
}

std::int64_t number(std::string_view text, std::string_view word, std::string_view what = "size",
                    std::int64_t most = 1 << 24) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    refuse_shape(text, what, word);
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(by);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

void add_random(std::vector<ProductShape>& shapes, std::int64_t count, std::int64_t seed) {
  constexpr double kLeast = 64, kMost = 40000, kMostFlops = 2e12;
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  const auto size = [&] {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    const std::int64_t step = random() % 2 == 0 ? 128 : 8;
    const auto n = static_cast<std::int64_t>(kLeast * std::pow(kMost / kLeast, u));
    return std::max<std::int64_t>((n + step / 2) / step, 1) * step;
  };
  for (std::int64_t i = 0; i < count;) {
    const ProductShape s{.direction = static_cast<Direction>(i % 3), .M = size(), .N = size(), .K = size()};
    if (2.0 * static_cast<double>(s.M) * static_cast<double>(s.N) * static_cast<double>(s.K) > kMostFlops)
      continue;
    shapes.push_back(s);
    ++i;
  }
}

// [KIND:]MxNxK
void add_product(std::vector<ProductShape>& shapes, std::string_view word) {
  const std::size_t colon = word.find(':');
  const std::string_view kind = word.substr(0, colon == std::string_view::npos ? 0 : colon);
  const auto sides = split(kind.empty() ? word : word.substr(colon + 1), 'x');
  if (sides.size() != 3) refuse_shape(word, "product", word);
  const std::int64_t M = number(sides[0], word), N = number(sides[1], word), K = number(sides[2], word);
  if (kind == "gelu") {
    add_gelu(shapes, M, N, K);
  } else if (kind == "residual") {
    shapes.push_back({.direction = Direction::forward, .M = M, .N = N, .K = K, .finish = Finish::combined});
  } else if (kind == "fp32") {
    shapes.push_back({.direction = Direction::forward, .M = M, .N = N, .K = K, .finish = Finish::widened});
    shapes.push_back({.direction = Direction::dx, .M = M, .N = N, .K = K, .finish = Finish::widened});
  } else if (kind.empty()) {
    add_layer(shapes, M, N, K);
  } else {
    refuse_shape(kind, "kind of product", word);
  }
}

void add_shapes(std::vector<ProductShape>& shapes, std::string_view word) {
  if (word == "gpt2") {
    for (const std::int64_t C : {768, 1024, 1280, 1600}) {
      for (const std::int64_t M : {4096, 16384, 65536}) add_block(shapes, M, C);
    }
  } else if (word == "bert") {
    for (std::int64_t M = 64; M <= 16384; M *= 2) add_block(shapes, M, 768);
  } else if (word.starts_with("random:")) {
    const auto numbers = split(word.substr(7), ':');
    if (numbers.size() > 2) refuse_shape(word, "count and seed", word);
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    const std::int64_t seed = numbers.size() > 1 ? number(numbers[1], word, "seed", kMost) : 1;
    add_random(shapes, number(numbers[0], word, "count", 100'000), seed);
  } else {
    add_product(shapes, word);
  }
}

constexpr std::string_view kOurs[] = {"cuda.persistent", "cuda.stream_k", "cuda.block"};
constexpr std::string_view kLibrary = "cuda.cublaslt";

struct Result {
  ProductShape shape;
  Request request;
  std::vector<TimedKernel> kernels;
  const TimedKernel* best = nullptr;            // the fastest of our kernels
  const TimedKernel* picked = nullptr;          // our kernel with the shortest predicted time
  const TimedKernel* library_best = nullptr;    // the fastest of cuBLASLt's proposals
  const TimedKernel* library_chosen = nullptr;  // the proposal that cuda.cublaslt chooses
  const TimedKernel* chosen = nullptr;          // the kernel that a plan chooses

  bool is_complete() const { return best && picked && library_best && library_chosen && chosen; }
};

class Products {
 public:
  explicit Products(const ProductBenchOptions& options)
      : options_(options), timer_(options.context, options.device) {}

  const DeviceInfo& device() { return timer_.context().device(); }

  Result measure(const ProductShape& shape) {
    switch (shape.direction) {
      case Direction::forward:
        return measure(matmul_forward_op(), shape, shape.forward_problem());
      case Direction::dx:
        return measure(matmul_dx_op(), shape, shape.dx_problem());
      default:
        return measure(matmul_dw_op(), shape, shape.dw_problem(options_.bias_gradient));
    }
  }
#if WARPWRIGHT_CUDA
  Timeline trace(const ProductShape& shape) {
    cuda::trace_forward(timer_.context(), timer_.arguments(shape.forward_problem()));
    return cuda::trace_forward(timer_.context(), timer_.arguments(shape.forward_problem()));
  }
#endif

 private:
  template <class A>
  Result measure(const Op<A>& op, const ProductShape& shape, const typename A::Problem& problem) {
    Result r;
    r.shape = shape;
    r.request = request_of(problem);
    r.kernels = timer_.time(op, problem, {.within = options_.within, .rounds = options_.rounds});
    const std::string chosen = choose(timer_.context(), op, problem).text;
    std::string library;
    for (const auto& variant : op.variants) {
      if (variant.name == kLibrary) library = choice_text(kLibrary, variant.configuration(problem, device()));
    }
    for (const TimedKernel& k : r.kernels) {
      const auto keep = [&k](const TimedKernel*& slot, double TimedKernel::*by) {
        if (!slot || k.*by < slot->*by) slot = &k;
      };
      if (std::ranges::any_of(kOurs, [&](std::string_view name) { return k.is_of(name); })) {
        keep(r.best, &TimedKernel::seconds);
        keep(r.picked, &TimedKernel::predicted);
      } else if (k.is_of(kLibrary)) {
        keep(r.library_best, &TimedKernel::seconds);
      }
      if (k.choice == library) r.library_chosen = &k;
      if (k.choice == chosen) r.chosen = &k;
    }
    return r;
  }

  const ProductBenchOptions& options_;
  ProductTimer timer_;
};

// Ratios of times, with their geometric mean and percentiles (p from 0 to 1).
struct Share {
  std::vector<double> ratios;
  double mean() const {
    double sum = 0;
    for (const double r : ratios) sum += std::log(r);
    return std::exp(sum / static_cast<double>(std::max<std::size_t>(ratios.size(), 1)));
  }
  double percentile(double p) const {
    if (ratios.empty()) return 0;
    std::vector<double> sorted = ratios;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
};

// A product's line of the table. If proposals have the same description, the fastest of them counts.
std::string measured(const Result& r) {
  MeasuredProduct product;
  product.request = r.request;
  for (const TimedKernel& k : r.kernels) {
    std::string name = k.choice;
    if (const std::size_t number = name.find(", #"); number != std::string::npos) {
      name = name.substr(0, number) + "]";
    }
    const auto [entry, is_new] = product.seconds.emplace(name, k.seconds);
    if (!is_new) entry->second = std::min(entry->second, k.seconds);
  }
  return product.line();
}

nlohmann::ordered_json to_json(const Result& r) {
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const TimedKernel& k : r.kernels) {
    kernels.push_back({{"kernel", k.choice}, {"predicted_seconds", k.predicted}, {"seconds", k.seconds}});
  }
  return {{"product", r.shape.describe()},
          {"picked", r.picked->choice},
          {"picked_seconds", r.picked->seconds},
          {"best", r.best->choice},
          {"best_seconds", r.best->seconds},
          {"cublaslt_best_seconds", r.library_best->seconds},
          {"cublaslt_seconds", r.library_chosen->seconds},
          {"chosen", r.chosen->choice},
          {"chosen_seconds", r.chosen->seconds},
          {"kernels", kernels}};
}

}  // namespace

std::string ProductShape::describe() const {
  constexpr const char* kFinish[] = {"", " +residual", " in fp32"};
  return fmt::format("{} M={} N={} K={}{}{}", name_of(direction), M, N, K,
                     activation == Activation::none ? "" : fmt::format(" {}", name_of(activation)),
                     kFinish[static_cast<int>(finish)]);
}

MatmulForwardProblem ProductShape::forward_problem() const {
  return {.M = M,
          .N = N,
          .K = K,
          .dtype = DType::bf16,
          .bias = true,
          .preact = activation != Activation::none,
          .activation = activation,
          .residual = finish == Finish::combined,
          .widened = finish == Finish::widened,
          .aligned = true,
          .aligned_factors = true};
}
MatmulDxProblem ProductShape::dx_problem() const {
  return {.M = M,
          .N = N,
          .K = K,
          .dtype = DType::bf16,
          .activation = activation,
          .widened = finish == Finish::widened,
          .aligned = true,
          .aligned_factors = true};
}
MatmulDwProblem ProductShape::dw_problem(bool bias_gradient) const {
  return {.M = M,
          .N = N,
          .K = K,
          .dtype = DType::bf16,
          .bias = bias_gradient,
          .store = Store::add,
          .aligned = true,
          .aligned_factors = true};
}

std::vector<ProductShape> product_shapes(const std::vector<std::string>& words) {
  std::vector<ProductShape> shapes;
  for (const std::string& word : words) add_shapes(shapes, word);
  return shapes;
}

namespace {

bool has_hopper(const Device& device) {
  return device.kind == DeviceKind::cuda && device_info(device).gpu.runs_hopper_code();
}
[[noreturn]] void refuse() {
  throw UsageError("needs a Hopper GPU", "bench products", "give --device cuda on a machine that has one");
}

}  // namespace

void trace_products(const ProductBenchOptions& options, const std::filesystem::path& file,
                    std::ostream& out) {
  if (!has_hopper(options.device)) refuse();
#if WARPWRIGHT_CUDA
  for (const ProductShape& shape : options.shapes) {
    if (shape.direction != Direction::forward) continue;
    if (shape.N % 8 != 0 || shape.K % 8 != 0) {
      throw UsageError(fmt::format("N={} K={}", shape.N, shape.K), "--timeline", "give multiples of eight");
    }
    const ProductShape traced{.direction = Direction::forward, .M = shape.M, .N = shape.N, .K = shape.K};
    const Timeline timeline = Products(options).trace(traced);
    write_file_atomically(file, timeline.json(traced.describe(), 0));
    out << fmt::format("{}: {:.1f} % of the epilogues' time passes while the other group multiplies\n",
                       traced.describe(), 100 * timeline.overlap());
    return;
  }
#else
  static_cast<void>(file);
  static_cast<void>(out);
#endif
}

namespace {

void print_head(const DeviceInfo& device, std::ostream& out) {
  out << fmt::format(
      "{}; microseconds of a call in a graph, data from device memory\n{:<44}{:>9}{:>9}{:>9}{:>9}{:>8}{:>8}  "
      "{}\n",
      device.name, "product", "best", "picked", "cuBLASLt", "as used", "picked", "chosen",
      "chosen kernel (the fastest of ours)");
}

void print_row(const Result& r, std::ostream& out) {
  out << fmt::format("{:<44}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>8.3f}{:>8.3f}  {}{}\n", r.shape.describe(),
                     r.best->seconds * 1e6, r.picked->seconds * 1e6, r.library_best->seconds * 1e6,
                     r.library_chosen->seconds * 1e6, r.library_best->seconds / r.picked->seconds,
                     r.library_best->seconds / r.chosen->seconds, r.chosen->choice,
                     r.chosen == r.best ? "" : fmt::format(" ({})", r.best->choice))
      << std::flush;
}

// The time that choices without measuring lose, as ratios over all products:
//   selector               the picked kernel's time over our best's
//   choice                 the plan's choice over the best of all
//   picked, chosen, best   the library's best time over ours
struct Summary {
  Share selector, choice, picked, chosen, best;

  void add(const Result& r) {
    const double library = r.library_best->seconds;
    selector.ratios.push_back(r.picked->seconds / r.best->seconds);
    choice.ratios.push_back(r.chosen->seconds / std::min(r.best->seconds, library));
    picked.ratios.push_back(library / r.picked->seconds);
    chosen.ratios.push_back(library / r.chosen->seconds);
    best.ratios.push_back(library / r.best->seconds);
  }
  nlohmann::ordered_json json() const {
    return {{"products", selector.ratios.size()},
            {"selector_loss_mean", selector.mean() - 1},
            {"selector_loss_p95", selector.percentile(0.95) - 1},
            {"choice_loss_mean", choice.mean() - 1},
            {"choice_loss_p95", choice.percentile(0.95) - 1},
            {"picked_over_cublaslt_mean", picked.mean()},
            {"picked_over_cublaslt_least", picked.percentile(0)},
            {"chosen_over_cublaslt_mean", chosen.mean()},
            {"chosen_over_cublaslt_least", chosen.percentile(0)},
            {"best_over_cublaslt_mean", best.mean()},
            {"best_over_cublaslt_least", best.percentile(0)}};
  }
  void print(std::ostream& out) const {
    const auto percent = [](double ratio) { return 100 * (ratio - 1); };
    out << fmt::format(
        "{} products. The selector loses {:.1f} % to the best of our kernels in the geometric mean, {:.1f} % "
        "at "
        "the 95th percentile; the plan's choice loses {:.1f} % and {:.1f} % to the best of all.\n"
        "The time of cuBLASLt's best proposal over that of the plan's choice: {:.3f} in the geometric mean, "
        "{:.3f} at least; over the picked kernel of ours: {:.3f}, {:.3f}; over our best: {:.3f}, {:.3f}.\n",
        selector.ratios.size(), percent(selector.mean()), percent(selector.percentile(0.95)),
        percent(choice.mean()), percent(choice.percentile(0.95)), chosen.mean(), chosen.percentile(0),
        picked.mean(), picked.percentile(0), best.mean(), best.percentile(0));
  }
};

}  // namespace

void bench_products(const ProductBenchOptions& options, std::ostream& out) {
  if (!has_hopper(options.device)) refuse();
  Products products(options);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string table;
  Summary summary;
  if (!options.json) print_head(products.device(), out);
  const auto start = std::chrono::steady_clock::now();
  for (const ProductShape& shape : options.shapes) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (options.seconds > 0 && spent.count() > options.seconds) break;
    const Result r = products.measure(shape);
    if (!r.is_complete()) continue;
    summary.add(r);
    if (!options.table.empty()) table += measured(r) + "\n";
    options.json ? rows.push_back(to_json(r)) : print_row(r, out);
  }
  if (!options.table.empty()) write_file_atomically(options.table, table);
  if (!options.json) return summary.print(out);
  nlohmann::ordered_json document = {{"device", products.device().name}};
  document.update(summary.json());
  document["rows"] = rows;
  out << document.dump(2) << "\n";
}

}  // namespace warpwright::ops::matmul
