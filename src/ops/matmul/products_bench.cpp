#include "ops/matmul/products_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>

#include "ops/matmul/measured.hpp"
#include "ops/matmul/timeline.hpp"
#include "ops/testing/fixture.hpp"
#include "runtime/file.hpp"
#include "runtime/memory.hpp"

namespace warpwright::ops::matmul {
namespace {

void add_layer(std::vector<ProductShape>& shapes, std::int64_t M, std::int64_t N, std::int64_t K) {
  for (const Direction d : {Direction::forward, Direction::dx, Direction::dw}) shapes.push_back({d, M, N, K});
}

void add_gelu(std::vector<ProductShape>& shapes, std::int64_t M, std::int64_t N, std::int64_t K) {
  shapes.push_back({Direction::forward, M, N, K, Activation::gelu_tanh});
  shapes.push_back({Direction::dx, M, K, N, Activation::gelu_tanh});
}

// The four layers of a block; the feed-forward ones also with GELU in their epilogues.
void add_block(std::vector<ProductShape>& shapes, std::int64_t M, std::int64_t C) {
  add_layer(shapes, M, 3 * C, C);
  add_layer(shapes, M, C, C);
  add_layer(shapes, M, 4 * C, C);
  add_layer(shapes, M, C, 4 * C);
  add_gelu(shapes, M, 4 * C, C);
}

[[noreturn]] void refuse_shape(std::string_view part, std::string_view what, std::string_view shapes) {
  throw UsageError(fmt::format("'{}' in '{}' is no {}", part, shapes, what), "--shapes",
                   "use gpt2, bert, random:COUNT[:SEED], MxNxK, gelu:MxNxK, residual:MxNxK or fp32:MxNxK, "
                   "with commas between several");
}

std::int64_t number(std::string_view text, std::string_view shapes, std::string_view what = "size",
                    std::int64_t most = 1 << 24) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    refuse_shape(text, what, shapes);
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
    const ProductShape s{static_cast<Direction>(i % 3), size(), size(), size()};
    if (2.0 * static_cast<double>(s.M) * static_cast<double>(s.N) * static_cast<double>(s.K) > kMostFlops)
      continue;
    shapes.push_back(s);
    ++i;
  }
}

#if WARPWRIGHT_CUDA

// One kernel, or one algorithm of the library's.
struct Candidate {
  bool library = false;
  Schedule schedule = Schedule::persistent;
  Selection selection;
  int proposal = 0;
  LibraryKernel kernel{};
  std::vector<double> samples{};

  double seconds() {
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }
};

// Memory in which tensors follow each other, so that every call finds its own where none was before for long.
class Arena {
 public:
  Arena(std::size_t bytes, bool random, const Context& context)
      : buffer_(bytes, context.device().device, "products") {
    if (!random) return;
    testing::Fixture fixture(1);
    const std::int64_t most = std::int64_t{1} << 23;
    const Tensor numbers = fixture.random(DType::bf16, {most});
    for (std::size_t at = 0; at + 2 * most <= bytes; at += static_cast<std::size_t>(2 * most)) {
      copy({buffer_.data() + at, DType::bf16, {most}, context.device().device}, numbers, context.stream());
    }
    context.synchronize();
  }
  Tensor take(DType dtype, const Shape& shape, Device device) {
    const std::size_t bytes = (static_cast<std::size_t>(shape.elements()) * size_of(dtype) + kAlignment - 1) /
                              kAlignment * kAlignment;
    if (bytes > buffer_.bytes()) {
      throw Error(fmt::format("a matrix of {} bytes", bytes), "bench matmul --shapes",
                  fmt::format("at most {} are set aside", buffer_.bytes()));
    }
    if (next_ + bytes > buffer_.bytes()) next_ = 0;
    const Tensor tensor(buffer_.data() + next_, dtype, shape, device);
    next_ += bytes;
    return tensor;
  }

 private:
  Buffer buffer_;
  std::size_t next_ = 0;
};

struct Result {
  ProductShape shape;
  Request request;
  std::vector<Candidate> candidates;
  double best = 0, picked = 0;                  // of ours; picked: as select() says
  double library_best = 0, library_chosen = 0;  // chosen: as cuda.cublaslt does
  double chosen = 0;                            // what a plan takes of all
  std::string best_kernel, picked_kernel, chosen_variant;
};

class Products {
 public:
  explicit Products(const ProductBenchOptions& options)
      : options_(options),
        context_(options.context, options.device),
        inputs_(kArenaBytes, true, context_),
        outputs_(kArenaBytes, false, context_),
        start_(options.device),
        end_(options.device) {}

  const DeviceInfo& device() const { return context_.device(); }

  Timeline trace(const ProductShape& shape) {
    cuda::trace_forward(context_, forward(shape));
    return cuda::trace_forward(context_, forward(shape));
  }

  Result measure(const ProductShape& shape) {
    switch (shape.direction) {
      case Direction::forward:
        return measure(matmul_forward_op(), shape, [&] { return forward(shape); });
      case Direction::dx:
        return measure(matmul_dx_op(), shape, [&] { return dx(shape); });
      default:
        return measure(matmul_dw_op(), shape, [&] { return dw(shape); });
    }
  }

 private:
  static constexpr std::size_t kArenaBytes = std::size_t{7} << 30;
  static constexpr double kSampleSeconds = 60e-6;
  static constexpr int kMostCalls = 12;

  Tensor in(const Shape& shape) { return inputs_.take(DType::bf16, shape, options_.device); }
  Tensor out(const Shape& shape, DType dtype = DType::bf16) {
    return outputs_.take(dtype, shape, options_.device);
  }
  MatmulForward forward(const ProductShape& s) {
    MatmulForward a;
    const bool widened = s.finish == Finish::widened;
    a.x = in({s.M, s.K}), a.weight = in({s.N, s.K}), a.bias = in({s.N});
    a.out = out({s.M, s.N}, widened ? DType::f32 : DType::bf16);
    if (s.finish == Finish::combined) a.residual = in({s.M, s.N});
    if (s.activation != Activation::none) a.preact = out({s.M, s.N});
    a.activation = s.activation;
    return a;
  }
  MatmulDx dx(const ProductShape& s) {
    MatmulDx a;
    a.dout = in({s.M, s.N}), a.weight = in({s.N, s.K});
    a.dx = out({s.M, s.K}, s.finish == Finish::widened ? DType::f32 : DType::bf16);
    if (s.activation != Activation::none) a.preact = in({s.M, s.K});
    a.activation = s.activation;
    return a;
  }
  MatmulDw dw(const ProductShape& s) {
    MatmulDw a;
    a.dout = in({s.M, s.N}), a.x = in({s.M, s.K}), a.dweight = out({s.N, s.K}, DType::f32);
    if (options_.bias_gradient) a.dbias = out({s.N}, DType::f32);
    return a;
  }

  template <class A, class Make>
  Result measure(const Op<A>& op, const ProductShape& shape, const Make& make) {
    const typename A::Problem problem = op.problem(make());
    const Request request = request_of(problem);
    Result result;
    result.shape = shape;
    result.request = request;
    std::size_t scratch = 0;
    double least = 0;  // predicted
    for (const Schedule schedule : {Schedule::persistent, Schedule::stream_k, Schedule::block}) {
      for (const Selection& s : selections(request, schedule, device())) {
        if (least == 0 || s.seconds < least) least = s.seconds;
      }
    }
    for (const Schedule schedule : {Schedule::persistent, Schedule::stream_k, Schedule::block}) {
      const int first = select(request, schedule, device()).tile;
      for (const Selection& s : selections(request, schedule, device())) {
        if (s.seconds > options_.within * least && s.tile != first) continue;
        result.candidates.push_back({false, schedule, s});
        scratch = std::max(scratch, cuda::workspace(problem, s));
      }
    }
    for (const auto& variant : op.variants) {
      if (variant.name == "cuda.cublaslt") scratch = std::max(scratch, variant.workspace(problem, device()));
    }
    context_.reserve_scratch(scratch);
    result.candidates.push_back({true, {}, {}, -1});
    const auto proposed = cuda::cublaslt_proposal(context_, make(), -1);
    for (int i = 0; i < std::min(static_cast<int>(proposed.size()), options_.proposals); ++i) {
      result.candidates.push_back({true, {}, {}, i, proposed[static_cast<std::size_t>(i)]});
    }

    const auto call = [&](const Candidate& c) {
      c.library ? void(cuda::cublaslt_proposal(context_, make(), c.proposal))
                : cuda::run(context_, make(), c.schedule, c.selection);
    };
    const double expected = problem.flops() / 700e12 + 5e-6;
    const int calls = std::clamp(static_cast<int>(kSampleSeconds / expected), 1, kMostCalls);
    std::vector<Graph> graphs;
    for (const Candidate& c : result.candidates) {
      call(c);
      graphs.emplace_back(context_.stream(), [&] {
        for (int i = 0; i < calls; ++i) call(c);
      });
      graphs.back().launch(context_.stream());
    }
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t i = 0; i < graphs.size(); ++i) {
        const std::size_t at = (i + static_cast<std::size_t>(round) * 7) % graphs.size();
        start_.record(context_.stream());
        graphs[at].launch(context_.stream());
        end_.record(context_.stream());
        end_.synchronize();
        result.candidates[at].samples.push_back(end_.seconds_since(start_) / calls);
      }
    }
    summarize(result, request, choose(context_, op, problem).variant->name);
    return result;
  }

  void summarize(Result& r, const Request& request, std::string_view variant) {
    const Schedule schedules[] = {Schedule::persistent, Schedule::stream_k, Schedule::block};
    Selection picks[3], pick;
    Schedule pick_schedule = Schedule::persistent;
    for (int i = 0; i < 3; ++i) {
      picks[i] = select(request, schedules[i], device());
      if (picks[i].tile >= 0 && (pick.tile < 0 || picks[i].seconds < pick.seconds)) {
        pick = picks[i];
        pick_schedule = schedules[i];
      }
    }
    const auto same = [](const Candidate& c, Schedule schedule, const Selection& s) {
      return !c.library && c.schedule == schedule && c.selection.tile == s.tile &&
             c.selection.workers == s.workers;
    };
    for (Candidate& c : r.candidates) {
      const double seconds = c.seconds();
      if (c.library) {
        if (c.proposal < 0) r.library_chosen = seconds;
        if (r.library_best == 0 || seconds < r.library_best) r.library_best = seconds;
        continue;
      }
      const std::string name = fmt::format("{} {}", name_of(c.schedule), matmul::describe(c.selection));
      if (r.best == 0 || seconds < r.best) r.best = seconds, r.best_kernel = name;
      if (same(c, pick_schedule, pick)) r.picked = seconds, r.picked_kernel = name;
      for (int i = 0; i < 3; ++i) {
        if (variant == fmt::format("cuda.{}", name_of(schedules[i])) && same(c, schedules[i], picks[i])) {
          r.chosen = seconds;
        }
      }
    }
    if (r.chosen == 0) r.chosen = r.library_chosen;
    r.chosen_variant = variant;
  }

  const ProductBenchOptions& options_;
  Context context_;
  Arena inputs_, outputs_;
  Event start_, end_;
};

// A geometric mean and what is as bad as the worst twentieth at least.
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

std::string measured(Result& r) {
  MeasuredProduct product;
  product.request = r.request;
  for (Candidate& c : r.candidates) {
    if (c.library && c.proposal < 0) continue;
    const std::string name = c.library ? kernel_name(c.kernel) : kernel_name(c.schedule, c.selection);
    const auto [entry, is_new] = product.seconds.emplace(name, c.seconds());
    // Some proposals differ in what their description does not say.
    if (!is_new) entry->second = std::min(entry->second, c.seconds());
  }
  return product.line();
}

nlohmann::ordered_json to_json(Result& r) {
  nlohmann::ordered_json json = {{"product", r.shape.describe()},
                                 {"picked", r.picked_kernel},
                                 {"picked_seconds", r.picked},
                                 {"best", r.best_kernel},
                                 {"best_seconds", r.best},
                                 {"cublaslt_best_seconds", r.library_best},
                                 {"cublaslt_seconds", r.library_chosen},
                                 {"chosen", r.chosen_variant},
                                 {"chosen_seconds", r.chosen}};
  return json;
}

#endif

}  // namespace

std::string ProductShape::describe() const {
  constexpr const char* kFinish[] = {"", " +residual", " in fp32"};
  return fmt::format("{} M={} N={} K={}{}{}", name_of(direction), M, N, K,
                     activation == Activation::none ? "" : fmt::format(" {}", name_of(activation)),
                     kFinish[static_cast<int>(finish)]);
}

std::vector<ProductShape> product_shapes(std::string_view text) {
  std::vector<ProductShape> shapes;
  for (const std::string_view part : split(text, ',')) {
    if (part == "gpt2") {
      for (const std::int64_t C : {768, 1024, 1280, 1600}) {
        for (const std::int64_t M : {4096, 16384, 65536}) add_block(shapes, M, C);
      }
    } else if (part == "bert") {
      for (std::int64_t M = 64; M <= 16384; M *= 2) add_block(shapes, M, 768);
    } else if (part.rfind("random:", 0) == 0) {
      const auto numbers = split(part.substr(7), ':');
      if (numbers.size() > 2) refuse_shape(part, "count and seed", text);
      constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
      const std::int64_t seed = numbers.size() > 1 ? number(numbers[1], text, "seed", kMost) : 1;
      add_random(shapes, number(numbers[0], text, "count"), seed);
    } else {
      const std::size_t colon = part.find(':');
      const std::string_view kind = part.substr(0, colon == std::string_view::npos ? 0 : colon);
      const auto sides = split(kind.empty() ? part : part.substr(colon + 1), 'x');
      if (sides.size() != 3) refuse_shape(part, "product", text);
      const std::int64_t M = number(sides[0], text), N = number(sides[1], text), K = number(sides[2], text);
      if (kind == "gelu") {
        add_gelu(shapes, M, N, K);
      } else if (kind == "residual") {
        shapes.push_back({Direction::forward, M, N, K, Activation::none, Finish::combined});
      } else if (kind == "fp32") {
        shapes.push_back({Direction::forward, M, N, K, Activation::none, Finish::widened});
        shapes.push_back({Direction::dx, M, N, K, Activation::none, Finish::widened});
      } else if (kind.empty()) {
        add_layer(shapes, M, N, K);
      } else {
        refuse_shape(kind, "kind of product", text);
      }
    }
  }
  return shapes;
}

namespace {

bool has_hopper(const Device& device) {
  return device.kind == DeviceKind::cuda && device_info(device).gpu.major == 9;
}
[[noreturn]] void refuse() {
  throw UsageError("needs a Hopper GPU", "--shapes", "give --device cuda where there is one");
}

}  // namespace

void trace_products(const ProductBenchOptions& options, const std::filesystem::path& svg, std::ostream& out) {
  if (!has_hopper(options.device)) refuse();
#if WARPWRIGHT_CUDA
  for (const ProductShape& shape : options.shapes) {
    if (shape.direction != Direction::forward) continue;
    if (shape.N % 8 != 0 || shape.K % 8 != 0) {
      throw UsageError(fmt::format("N={} K={}", shape.N, shape.K), "--timeline", "give multiples of eight");
    }
    const Timeline timeline = Products(options).trace({Direction::forward, shape.M, shape.N, shape.K});
    write_file_atomically(svg, timeline.svg(0));
    out << fmt::format("{}: {:.1f} % of the epilogues' time passes while the other group multiplies\n",
                       shape.describe(), 100 * timeline.overlap());
    return;
  }
#else
  static_cast<void>(svg);
  static_cast<void>(out);
#endif
}

void bench_products(const ProductBenchOptions& options, std::ostream& out) {
  if (!has_hopper(options.device)) refuse();
#if WARPWRIGHT_CUDA
  Products products(options);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string table;
  Share selector, choice, against_library, best_against_library, choice_against_library;
  if (!options.json) {
    out << fmt::format(
        "{}; microseconds of a call in a graph, data from device "
        "memory\n{:<44}{:>9}{:>9}{:>9}{:>9}{:>8}{:>8}  {}\n",
        products.device().name, "product", "best", "picked", "cuBLASLt", "as used", "picked", "chosen",
        "picked kernel (best kernel)");
  }
  const auto start = std::chrono::steady_clock::now();
  for (const ProductShape& shape : options.shapes) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (options.seconds > 0 && spent.count() > options.seconds) break;
    Result r = products.measure(shape);
    if (r.best == 0) continue;
    selector.ratios.push_back(r.picked / r.best);
    choice.ratios.push_back(r.chosen / std::min(r.best, r.library_best));
    against_library.ratios.push_back(r.library_best / r.picked);
    best_against_library.ratios.push_back(r.library_best / r.best);
    choice_against_library.ratios.push_back(r.library_best / r.chosen);
    if (!options.table.empty()) table += measured(r) + "\n";
    if (options.json) {
      rows.push_back(to_json(r));
    } else {
      out << fmt::format("{:<44}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>8.3f}{:>8.3f}  {}{}\n", shape.describe(),
                         r.best * 1e6, r.picked * 1e6, r.library_best * 1e6, r.library_chosen * 1e6,
                         r.library_best / r.picked, r.library_best / r.chosen, r.picked_kernel,
                         r.picked_kernel == r.best_kernel ? "" : fmt::format(" ({})", r.best_kernel))
          << std::flush;
    }
  }
  if (!options.table.empty()) write_file_atomically(options.table, table);
  const auto percent = [](double ratio) { return 100 * (ratio - 1); };
  if (options.json) {
    const nlohmann::ordered_json document = {
        {"device", products.device().name},
        {"products", selector.ratios.size()},
        {"selector_loss_mean", selector.mean() - 1},
        {"selector_loss_p95", selector.percentile(0.95) - 1},
        {"choice_loss_mean", choice.mean() - 1},
        {"choice_loss_p95", choice.percentile(0.95) - 1},
        {"picked_over_cublaslt_mean", against_library.mean()},
        {"picked_over_cublaslt_least", against_library.percentile(0)},
        {"chosen_over_cublaslt_mean", choice_against_library.mean()},
        {"chosen_over_cublaslt_least", choice_against_library.percentile(0)},
        {"best_over_cublaslt_mean", best_against_library.mean()},
        {"best_over_cublaslt_least", best_against_library.percentile(0)},
        {"rows", rows}};
    out << document.dump(2) << "\n";
  } else {
    out << fmt::format(
        "{} products. Selector: loses {:.1f} % in the geometric mean, {:.1f} % at the 95th percentile "
        "against the "
        "best of our kernels; the plan's choice {:.1f} % and {:.1f} % against the best of all. cuBLASLt's "
        "best "
        "proposal over the plan's choice: {:.3f} in the geometric mean, {:.3f} at least; over the kernel of "
        "ours that is picked: {:.3f}, {:.3f}; over our best: {:.3f}, {:.3f}\n",
        selector.ratios.size(), percent(selector.mean()), percent(selector.percentile(0.95)),
        percent(choice.mean()), percent(choice.percentile(0.95)), choice_against_library.mean(),
        choice_against_library.percentile(0), against_library.mean(), against_library.percentile(0),
        best_against_library.mean(), best_against_library.percentile(0));
  }
#else
  static_cast<void>(out);
#endif
}

}  // namespace warpwright::ops::matmul
