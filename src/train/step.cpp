#include "train/step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "ops/classifier/classifier.hpp"
#include "ops/element.hpp"
#include "ops/global_norm/global_norm.hpp"
#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright {
namespace {

bool all_finite_on_host(const Tensor& tensor) {
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    if (!std::isfinite(ops::load_element(tensor, i))) return false;
  }
  return true;
}

bool all_finite(const Tensor& tensor, const Stream& stream) {
  if (!is_floating(tensor.dtype)) return true;
  if (tensor.contiguous()) return all_finite_on_host(downloaded(tensor, stream).tensor());
  for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
    if (!all_finite(tensor.select(0, i), stream)) return false;
  }
  return true;
}

void add_gradients(Context& context, const DecoderParameters& sum, const DecoderParameters& addend) {
  ops::gradient_sum(context, {.sums = sum.tensors(), .firsts = sum.tensors(), .addends = addend.tensors()});
}

// Adds in order, in fp64.
double sum_of(const Tensor& losses) {
  double sum = 0;
  for (std::int64_t n = 0; n < losses.elements(); ++n) sum += ops::load_element(losses, n);
  return sum;
}

// The parameters' shapes and dtypes, without memory.
std::vector<Tensor> parameters_of(const StepOptions& o) {
  Recorder recorder;
  return o.model->allocate_parameters(o.dtype, Category::parameters, "", recorder).tensors();
}

// A single process has nothing to divide.
StepOptions with_sharding(StepOptions o, const Comm& comm) {
  if (comm.size() == 1) o.sharding = Sharding::none;
  return o;
}

// Both on the host.
void round_to(const Tensor& rounded, const Tensor& values) {
  if (rounded.dtype == values.dtype) {
    std::ranges::copy(bytes_of(values), bytes_of(rounded).data());
    return;
  }
  for (std::int64_t i = 0; i < values.elements(); ++i) rounded.as<bf16>()[i] = bf16(values.as<float>()[i]);
}

// For a plan, in the gradients' place: only their shapes count.
std::vector<Tensor> imagined_remainders(const std::vector<Tensor>& parameters,
                                        const std::vector<Tensor>& gradients) {
  std::vector<Tensor> list;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& g = gradients[i];
    const bool has_remainder = parameters[i].dtype != g.dtype;
    list.push_back(has_remainder ? Tensor(g.data, DType::i16, g.shape, g.device) : Tensor());
  }
  return list;
}

bool keeps_masters(const StepOptions& o) {
  return o.master_weights && o.dtype != ops::accumulation_dtype(o.dtype);
}

std::vector<std::size_t> indices_of(const ShardPieces& pieces) {
  std::vector<std::size_t> indices(pieces.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

std::vector<Shape> shapes_of(const LayerMatrices& matrices, const std::vector<Tensor>& parameters) {
  std::vector<Shape> shapes;
  for (const auto& [index, rows] : matrices) {
    for (const std::int64_t r : rows) shapes.push_back({r, parameters[index].shape[1]});
  }
  return shapes;
}

// The matrices of a parameter. Each gets random bits of its own: no parameter has a number ≥ `parameters`.
void append_matrices(std::vector<MuonMatrix>& list, const ops::AdamWTensor& of,
                     const std::vector<std::int64_t>& rows, std::size_t parameters) {
  std::int64_t first = 0;
  std::uint32_t number = of.number;
  for (const std::int64_t r : rows) {
    const auto part = [&](const Tensor& t) { return t ? t.slice(0, first, r) : t; };
    list.push_back({.parameter = part(of.parameter),
                    .remainder = part(of.remainder),
                    .gradient = part(of.gradient),
                    .m = part(of.m),
                    .weight_decay = of.weight_decay,
                    .number = number});
    first += r;
    number += static_cast<std::uint32_t>(parameters);
  }
}

// The shard of this rank, if every rank has one of its own.
const ShardPieces& of_rank(const Shards& shards, const Comm& comm) {
  return shards.size() == 1 ? shards.front() : shards[static_cast<std::size_t>(comm.rank())];
}

}  // namespace

std::string_view name_of(Optimizer optimizer) {
  return optimizer == Optimizer::muon ? "muon" : "adamw";
}

std::int64_t logits_rows(std::int64_t tokens, std::int64_t row_bytes, std::int64_t most_bytes) {
  const std::int64_t fit = std::max<std::int64_t>(1, most_bytes / row_bytes);
  const std::int64_t parts = (tokens + fit - 1) / fit;
  return (tokens + parts - 1) / parts;
}

LayerMatrices muon_matrices(const StepOptions& options) {
  return options.optimizer == Optimizer::muon ? options.model->layer_matrices() : LayerMatrices();
}

TrainingStep::TrainingStep(Context& context, const StepOptions& options, const Comm& comm)
    : context_(context),
      options_(with_sharding(options, comm)),
      muon_(muon_matrices(options)),
      comm_(comm),
      exchange_(context, comm, *options.model, parameters_of(options), muon_, options_.sharding,
                options.reduce, options.slices),
      updates_(options_.sharding == Sharding::none ? shards_of(parameters_of(options), 1)
                                                   : exchange_.shards()),
      planned_(plan_step()),
      plan_hash_(context.plan_hash()),
      slices_(exchange_.sum().depth()) {}

TrainingStep::Tensors TrainingStep::allocate_tensors(Allocator& allocator) const {
  const StepOptions& o = options_;
  const std::int64_t N = o.B * o.T;
  const DType accumulation = ops::accumulation_dtype(o.dtype);
  const Decoder& model = *o.model;
  Tensors t;
  const auto allocate = [&](std::size_t places, DType dtype, Category category, const std::string& prefix) {
    return places > 0 ? allocate_layer_places(model, places, dtype, category, prefix, allocator)
                      : model.allocate_parameters(dtype, category, prefix, allocator);
  };
  t.parameters = allocate(divides_parameters() ? kLayerPlaces : 0, o.dtype, Category::parameters, "");
  t.optimizer = allocate_optimizer(
      t.parameters, of_rank(updates_, comm_),
      {.masters = keeps_masters(o), .stores_parameters = divides_parameters(), .muon = muon_}, allocator);
  for (std::size_t i = 0; i < exchange_.sum().depth(); ++i) {
    const std::string prefix = i == 0 ? "gradient." : fmt::format("gradient_{}.", i + 1);
    t.gradients.push_back(
        allocate(divides_gradients() ? kLayerPlaces : 0, accumulation, Category::gradients, prefix));
  }
  const std::vector<Tensor> gradients = t.gradients.front().tensors();
  if (comm_.size() > 1) t.sums = exchange_.sum().allocate(gradients, allocator);
  t.batch = allocate_batch(o.B, N, allocator);
  t.batch.max_seqlen = o.T;
  t.targets = allocator.allocate("targets", DType::i32, {N}, Category::batch);
  t.weights = allocator.allocate("loss_weights", accumulation, {N}, Category::batch);
  t.losses = allocator.allocate("losses", accumulation, {N}, Category::batch);
  const auto row = model.padded_vocab() * static_cast<std::int64_t>(size_of(o.dtype));
  t.pass = model.allocate_training(t.parameters, t.batch,
                                   {.dtype = o.dtype,
                                    .logits_rows = logits_rows(N, row, o.logits_mib << 20),
                                    .recompute = o.recompute,
                                    .norms = o.norms},
                                   allocator);
  const auto blocks = [&](const std::string& name, const std::vector<Tensor>& tensors) {
    return allocator.allocate(name, DType::f64, {ops::squares_blocks(tensors)}, Category::batch);
  };
  t.squares = blocks("gradient_squares", gradients);
  if (comm_.size() > 1) t.gates = allocator.allocate("gates", accumulation, {comm_.size()}, Category::batch);
  t.loss_squares = blocks("loss_squares", {t.losses});
  t.norm = allocator.allocate("gradient_norm", accumulation, {1}, Category::batch);
  t.loss_norm = allocator.allocate("loss_norm", accumulation, {1}, Category::batch);
  t.scalars = allocator.allocate("scalars", accumulation, {4}, Category::batch);
  if (o.dtype != accumulation && !o.master_weights)
    t.random = allocator.allocate("random", DType::i32, {3}, Category::batch);
  if (!muon_.empty()) t.muon = allocate_muon(shapes_of(muon_, t.parameters.tensors()), o.dtype, allocator);
  return t;
}

Planned<TrainingStep::Tensors> TrainingStep::plan_step() {
  const auto allocate = [this](Allocator& allocator) { return allocate_tensors(allocator); };
  // The plan's hash, and so the problems, are the same for any number of ranks and any shards: what a rank
  // does to its shard is recorded for whole tensors, with gradients in place of what the rank lacks.
  return Planned<Tensors>(context_, allocate, [&](const Tensors& t) {
    run_slice(t, 0);  // every slice's work, but for the place of its gradients
    if (options_.slices > 1) add_gradients(context_, t.gradients.front(), t.gradients.back());
    const std::vector<Tensor> parameters = t.parameters.tensors(), gradients = t.gradients.front().tensors();
    OptimizerShard whole{.pieces = shards_of(parameters, 1).front(),
                         .parameters = parameters,
                         .remainders = {},
                         .m = gradients,
                         .v = gradients};
    if (keeps_masters(options_)) whole.remainders = imagined_remainders(parameters, gradients);
    run_squares(gradients, t.squares);
    run_norm(t);
    run_update(t, update_of(t, whole, gradients, indices_of(whole.pieces)));
  });
}

void TrainingStep::allocate() {
  planned_.take(context_);
  const Tensors& t = tensors();
  parameters_ = t.parameters.tensors();
  gradients_ = t.gradients.front().tensors();
  if (comm_.size() > 1) {
    exchange_.prepare({.parameters = parameters_,
                       .gradients = t.gradients,
                       .sums = t.sums,
                       .squares = t.squares,
                       .gates = t.gates,
                       .gate = ops::gradient_scale_of(t.scalars)});
  }
  prepare_update();
  fill_constants();
  make_slots();
}

void TrainingStep::prepare_update() {
  const OptimizerShard& o = tensors().optimizer;
  const bool updates_all = options_.sharding == Sharding::none;
  const std::vector<Tensor>& gradients = updates_all ? gradients_ : exchange_.gradients();
  if (!sends_parameters()) {
    update_.push_back(update_of(tensors(), o, gradients, indices_of(o.pieces)));
    return;
  }
  for (std::size_t unit = 0; unit < exchange_.units().count(); ++unit) {
    update_.push_back(update_of(tensors(), o, gradients, exchange_.units().indices(unit, o.pieces)));
  }
}

void TrainingStep::fill_constants() {
  const Tensors& t = tensors();
  t.pass->fill_constants(context_.stream());
  write_on_host(t.batch.positions, context_.stream(), [&](const Tensor& host) {
    for (std::int64_t n = 0; n < host.elements(); ++n) {
      host.as<std::int32_t>()[n] = static_cast<std::int32_t>(n % options_.T);
    }
  });
  write_on_host(t.weights, context_.stream(), [&](const Tensor& host) {
    const double weight = 1 / static_cast<double>(options_.slices * options_.B * options_.T);
    for (std::int64_t n = 0; n < host.elements(); ++n) ops::store_element(host, n, weight);
  });
  write_on_host(t.batch.cu_seqlens, context_.stream(), [&](const Tensor& host) {
    for (std::int64_t b = 0; b <= options_.B; ++b) {
      host.as<std::int32_t>()[b] = static_cast<std::int32_t>(b * options_.T);
    }
  });
  write_on_host(ops::gradient_scale_of(t.scalars), context_.stream(),
                [](const Tensor& host) { ops::store_element(host, 0, 1); });
}

void TrainingStep::make_slots() {
  const Device device = context_.device().device;
  const Tensors& t = tensors();
  for (BatchSlot& slot : batch_slots_) {
    slot.tokens = HostView(t.batch.tokens, HostMemory::pinned);
    slot.targets = HostView(t.targets, HostMemory::pinned);
    slot.losses = HostView(t.losses, HostMemory::pinned);
    slot.done.emplace(device);
  }
  for (StepSlot& slot : step_slots_) {
    slot.norm = HostView(t.norm, HostMemory::pinned);
    slot.scalars = HostView(ops::host_scalars_of(t.scalars), HostMemory::pinned);
    if (t.random) slot.random = HostView(t.random, HostMemory::pinned);
    slot.begun.emplace(device);
    slot.scalars_read.emplace(device);
  }
  for (int i = 0; i <= kStepsInFlight; ++i) norms_.emplace_back(device);
}

ParameterWriter TrainingStep::parameter_writer() const {
  return [this](std::size_t index, const std::function<void(const Tensor&)>& fill) {
    const Tensor like = parameters_[index];
    if (!divides_parameters()) return write_on_host(like, context_.stream(), fill);
    HeapAllocator heap;
    const Tensor host = heap.allocate("parameter", like.dtype, like.shape, Category::parameters);
    fill(host);
    const OptimizerShard& o = tensors().optimizer;
    for (std::size_t i = 0; i < o.pieces.size(); ++i) {
      if (o.pieces[i].tensor == index) copy(o.parameters[i], o.pieces[i].of(host), context_.stream());
    }
    context_.synchronize();
  };
}

ParameterWriter TrainingStep::full_precision() const {
  return [this](std::size_t index, const std::function<void(const Tensor&)>& fill) {
    const Tensor like = parameters_[index];
    HeapAllocator heap;
    const Tensor host =
        heap.allocate("weights", ops::accumulation_dtype(like.dtype), like.shape, Category::parameters);
    fill(host);
    const OptimizerShard& o = tensors().optimizer;
    for (std::size_t i = 0; i < o.remainders.size(); ++i) {
      if (o.pieces[i].tensor != index || !o.remainders[i]) continue;
      write_on_host(o.remainders[i], context_.stream(),
                    [&](const Tensor& rest) { set_remainders(rest, o.pieces[i].of(host)); });
    }
    parameter_writer()(index, [&](const Tensor& rounded) { round_to(rounded, host); });
  };
}

ParameterReader TrainingStep::parameter_reader() const {
  return [this](std::size_t index, const std::function<void(const Tensor&)>& use) {
    const Tensor like = parameters_[index];
    if (!divides_parameters()) return use(downloaded(like, context_.stream()).tensor());
    std::vector<std::byte> bytes;
    bytes.reserve(like.bytes());
    gather_tensor(
        comm_, updates_, index, like, tensors().optimizer.parameters, 0, context_.stream(),
        [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
    if (comm_.rank() == 0) use(Tensor(bytes.data(), like.dtype, like.shape));
  };
}

void TrainingStep::give_parameters() const {
  if (!divides_parameters()) return;
  const ParameterReader read = parameter_reader();
  for (std::size_t i = 0; i < parameters_.size(); ++i) read(i, {});
}

StatePart TrainingStep::state_part(Allocator& heap) const {
  StatePart part;
  const Tensors& t = tensors();
  const std::vector<int> writers = writers_of(parameters_, comm_.size());
  std::size_t index = 0;
  for (const auto& [name, like] : t.parameters) {
    const int writer = writers[index];
    const bool is_mine = writer == comm_.rank();
    Tensor whole = like;
    if (divides_parameters()) {
      if (is_mine) whole = heap.allocate(name, like.dtype, like.shape, Category::parameters);
      std::byte* next = bytes_of(whole).data();
      gather_tensor(comm_, updates_, index, like, t.optimizer.parameters, writer, context_.stream(),
                    [&](std::span<const std::byte> bytes) { next = std::ranges::copy(bytes, next).out; });
    }
    if (is_mine) part.parameters.append(name, whole);
    ++index;
  }
  part.optimizer = optimizer_part(t.parameters, t.optimizer, of_rank(exchange_.shards(), comm_));
  part.files_of_weights = *std::ranges::max_element(writers) + 1;
  return part;
}

std::size_t TrainingStep::state_part_bytes() const {
  const std::vector<Tensor> parameters = parameters_of(options_);
  const std::vector<int> writers = writers_of(parameters, comm_.size());
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (writers[i] == comm_.rank()) bytes += parameters[i].bytes();
  }
  for (const ShardPiece& piece : of_rank(exchange_.shards(), comm_)) {
    const Tensor of_piece = piece.of(parameters);
    const DType accumulation = ops::accumulation_dtype(options_.dtype);
    const std::size_t moments = (muon_.contains(piece.tensor) ? 1 : 2) * size_of(accumulation);
    const bool has_remainder = keeps_masters(options_) && of_piece.dtype != accumulation;
    bytes +=
        (moments + (has_remainder ? size_of(DType::i16) : 0)) * static_cast<std::size_t>(of_piece.elements());
  }
  return bytes;
}

DecoderWeights TrainingStep::weights() const {
  return {
      .decoder = options_.model, .dtype = options_.dtype, .parameters = tensors().parameters, .memory = {}};
}

void TrainingStep::run_slice(const Tensors& t, std::size_t below) {
  t.pass->forward(context_, parameter_hooks(1));
  if (exchanging_ && !repeats_exchange()) wait_for_gradients();  // of the slice before
  run_head(t, &t.gradients[below]);
  // Before the backward, because the gate travels with the last sums of squares. Only the first slice finds
  // no sums below. With divided gradients no slice does, and none is captured.
  run_loss_gate(t, divides_gradients() ? slice_ == 0 : below == 0);
  t.pass->backward(context_, t.gradients[below], backward_hooks());
}

void TrainingStep::run_head(const Tensors& t, const DecoderParameters* gradients) {
  const TrainingPass& pass = *t.pass;
  const std::int64_t N = t.targets.elements(), rows = pass.logits().shape[0];
  for (std::int64_t first = 0; first < N; first += rows) {
    const std::int64_t n = std::min(rows, N - first);
    const auto chunk = [&](const Tensor& all) { return all.slice(0, first, n); };
    const Tensor logits = pass.logits().slice(0, 0, n), hidden = chunk(pass.hidden());
    pass.head(context_, hidden, logits);
    ops::classifier(context_, {.logits = logits,
                               .targets = chunk(t.targets),
                               .weights = chunk(t.weights),
                               .losses = chunk(t.losses),
                               .probabilities = {},
                               .V = options_.model->vocab(),
                               .gradient = gradients != nullptr});
    if (!gradients) continue;
    pass.head_backward(context_, hidden, logits, chunk(pass.dhidden()), *gradients,
                       first == 0 ? ops::Store::assign : ops::Store::add);
  }
}

void TrainingStep::run_loss_gate(const Tensors& t, bool first_slice) {
  ops::squares(context_, {.gradients = {t.losses}, .sums = t.loss_squares});
  ops::global_norm(context_, {.sums = t.loss_squares,
                              .norm = t.loss_norm,
                              .scale = ops::gradient_scale_of(t.scalars),
                              .max_norm = 0,  // only looks for what is not finite
                              .keep_nan = !first_slice || options_.halt_on_non_finite});
}

void TrainingStep::run_gates_of_ranks(const Tensors& t) {
  const Tensor scale = ops::gradient_scale_of(t.scalars), sum = t.loss_squares.slice(0, 0, 1);
  run_squares({t.gates}, sum);
  ops::global_norm(context_,
                   {.sums = sum, .norm = t.loss_norm, .scale = scale, .max_norm = 0, .keep_nan = true});
}

void TrainingStep::run_squares(const std::vector<Tensor>& gradients, const Tensor& sums) {
  ops::squares(context_, {.gradients = gradients, .sums = sums});
}

void TrainingStep::hold_layer(std::size_t layer) {
  std::optional<std::size_t>& held = held_layers_[layer % kLayerPlaces];
  if (std::exchange(held, layer) != layer) {
    exchange_.send_parameters(layer, tensors().optimizer.parameters);
  }
}

// Those of the last layer are the last to arrive.
void TrainingStep::wait_for_parameters() {
  if (std::exchange(parameters_arrive_, false)) {
    exchange_.wait_for_parameters(exchange_.units().others() - 1);
  }
}

LayerHooks TrainingStep::parameter_hooks(int direction) {
  const bool arrive = exchanging_ && sends_parameters() && direction > 0;
  if (context_.recorder() || (!arrive && !divides_parameters())) return {};
  const std::size_t layers = exchange_.units().others();
  if (divides_parameters() && !std::exchange(holds_others_, true)) {
    exchange_.send_parameters(layers, tensors().optimizer.parameters);
  }
  exchange_.wait_for_parameters(layers);
  return {.enter =
              [=, this](std::size_t layer) {
                if (divides_parameters()) hold_layer(layer);
                exchange_.wait_for_parameters(layer);
                const std::size_t next = layer + static_cast<std::size_t>(direction);
                if (divides_parameters() && next < layers) hold_layer(next);
              },
          .leave = {},
          .leave_others = {}};
}

LayerHooks TrainingStep::backward_hooks() {
  LayerHooks hooks = parameter_hooks(-1);
  if (!exchanging_) return hooks;
  hooks.enter = [this, fill = hooks.enter](std::size_t layer) {
    if (fill) fill(layer);
    const std::size_t before = layer + kLayerPlaces;  // had the same place
    if (divides_gradients() && before < exchange_.units().others()) exchange_.wait_for_gradients(before);
  };
  hooks.leave = [this](std::size_t layer) { exchange_.add_gradients(layer, slice_, sums_); };
  hooks.leave_others = [this] { exchange_.add_gradients(exchange_.units().others(), slice_, sums_); };
  return hooks;
}

std::int64_t TrainingStep::slice_of_rank(std::int64_t slice) const {
  return exchange_.sum().slice_of_rank(slice);
}

// Keeps the NaN of a loss that was not finite.
void TrainingStep::run_norm(const Tensors& t) {
  ops::global_norm(context_, {.sums = t.squares,
                              .norm = t.norm,
                              .scale = ops::gradient_scale_of(t.scalars),
                              .max_norm = options_.clip,
                              .keep_nan = true});
}

TrainingStep::Update TrainingStep::update_of(const Tensors& t, const OptimizerShard& optimizer,
                                             const std::vector<Tensor>& gradients,
                                             const std::vector<std::size_t>& pieces) const {
  Update update;
  ops::AdamW& a = update.adamw;
  const std::vector<Tensor>& p = optimizer.parameters;
  const auto count = static_cast<std::size_t>(t.parameters.end() - t.parameters.begin());
  for (const std::size_t i : pieces) {
    const bool decays = options_.decay_all || p[i].shape.rank() > 1;
    const ShardPiece& piece = optimizer.pieces[i];
    const ops::AdamWTensor tensor{
        .parameter = p[i],
        .remainder = optimizer.remainders.empty() ? Tensor() : optimizer.remainders[i],
        .gradient = gradients[i],
        .m = optimizer.m[i],
        .v = optimizer.v[i],
        .weight_decay = decays ? options_.weight_decay : 0,
        .number = static_cast<std::uint32_t>(piece.tensor),
        .first = piece.first * (p[i].elements() / piece.rows)};
    const auto matrices = muon_.find(piece.tensor);
    if (matrices == muon_.end()) {
      a.tensors.push_back(tensor);
    } else {
      append_matrices(update.muon, tensor, matrices->second, count);
    }
  }
  a.scalars = t.scalars;
  a.random = t.random;
  a.beta1 = options_.beta1;
  a.beta2 = options_.beta2;
  a.eps = options_.eps;
  return update;
}

void TrainingStep::run_update(const Tensors& t, const Update& update) {
  ops::adamw(context_, update.adamw);
  const MuonStep step{.scalars = t.scalars, .random = t.random, .momentum = options_.muon_momentum};
  for (const MuonMatrix& matrix : update.muon) update_matrix(context_, t.muon, matrix, step);
}

void TrainingStep::reclaim(BatchSlot& slot) {
  if (slot.step < 0) return;
  slot.done->synchronize();
  step_slots_[static_cast<std::size_t>(slot.step)].losses.push_back(sum_of(slot.losses.tensor()));
  slot.step = -1;
}

Event& TrainingStep::norm_of(int step) {
  return norms_[static_cast<std::size_t>(step) % norms_.size()];
}

void TrainingStep::begin() {
  if (begun_ - collected_ == kStepsInFlight) {
    throw Error("too many steps have begun", "training step", "collect the oldest one first");
  }
  StepSlot& slot = step_slots_[static_cast<std::size_t>(begun_ % kStepsInFlight)];
  slot.losses.clear();
  slot.follows = begun_ > collected_;
  slot.begun->record(context_.stream());
  ++begun_;
  slice_ = sums_ = 0;
}

TrainingStep::HostBatch TrainingStep::host_batch() {
  BatchSlot& slot = batch_slots_[static_cast<std::size_t>(next_batch_)];
  reclaim(slot);
  const Shape shape{options_.B, options_.T};
  return {slot.tokens.tensor().view(shape), slot.targets.tensor().view(shape)};
}

void TrainingStep::forward_backward() {
  if (slice_ == exchange_.sum().rounds()) {
    throw Error("all slices of the step have run", "training step", "go on with its gradient norm");
  }
  BatchSlot& slot = batch_slots_[static_cast<std::size_t>(next_batch_)];
  slot.tokens.upload(context_.stream());
  slot.targets.upload(context_.stream());
  exchanging_ = comm_.size() > 1 && exchange_.sum().exchanges(slice_);
  if (!exchanging_) {
    wait_for_parameters();
    slices_[sums_].run(context_, [this] { run_slice(tensors(), sums_); });
  } else if (repeats_exchange()) {
    exchanging_slice_.run(context_, [this] {
      run_slice(tensors(), sums_);
      wait_for_gradients();
    });
    comm_.watch(context_.stream());
  } else {
    run_slice(tensors(), sums_);
  }
  if (exchanging_) parameters_arrive_ = false;  // its forward has waited for them
  slot.losses.download(context_.stream());
  slot.done->record(context_.stream());
  slot.step = (begun_ - 1) % kStepsInFlight;
  // On a CPU the slots are the tensors themselves, which the next slice overwrites.
  if (!context_.stream().get()) reclaim(slot);
  next_batch_ = (next_batch_ + 1) % kBatchSlots;
  if (!std::exchange(exchanging_, false)) add_slice();
  ++slice_;
}

void TrainingStep::wait_for_gradients() {
  exchange_.wait_for_gradients(Units::kLast);
}

void TrainingStep::add_slice() {
  const std::vector<DecoderParameters>& sums = tensors().gradients;
  for (int addition = 0; addition < exchange_.sum().additions(slice_); ++addition, --sums_) {
    add_gradients(context_, sums[sums_ - 1], sums[sums_]);
  }
  ++sums_;
}

void TrainingStep::gradient_norm() {
  if (slice_ < exchange_.sum().rounds()) {
    throw Error("a slice of the step has not run", "training step",
                "run all slices before the gradient norm");
  }
  StepSlot& slot = step_slots_[static_cast<std::size_t>((begun_ - 1) % kStepsInFlight)];
  const Tensors& t = tensors();
  if (comm_.size() > 1) {
    if (!repeats_exchange()) wait_for_gradients();
    run_gates_of_ranks(t);
  } else {
    run_squares(gradients_, t.squares);
  }
  run_norm(t);
  slot.norm.download(context_.stream());
  norm_of(begun_ - 1).record(context_.stream());
  if (!context_.stream().get()) slot.gradient_norm = ops::load_element(slot.norm.tensor(), 0);
}

void TrainingStep::update(double learning_rate, std::int64_t step) {
  StepSlot& slot = step_slots_[static_cast<std::size_t>((begun_ - 1) % kStepsInFlight)];
  slot.scalars_read->synchronize();
  ops::store_host_scalars(slot.scalars.tensor(), learning_rate, options_.beta1, options_.beta2, step);
  slot.scalars.upload(context_.stream());
  if (tensors().random) {
    const auto word = [](std::uint64_t bits) { return static_cast<std::int32_t>(bits); };
    std::int32_t* random = slot.random.tensor().as<std::int32_t>();
    random[0] = word(options_.rounding_seed);
    random[1] = word(options_.rounding_seed >> 32);
    random[2] = word(static_cast<std::uint64_t>(step));
    slot.random.upload(context_.stream());
  }
  slot.scalars_read->record(context_.stream());
  if (sends_parameters()) {
    update_units();
  } else {
    update_pieces(update_.front());
  }
  held_layers_ = {};
  holds_others_ = false;
  if (begun_ == collected_) wait_for_parameters();
}

void TrainingStep::update_pieces(Update& update) {
  const auto work = [&] { run_update(tensors(), update); };
  if (update.muon.empty()) return work();
  update.captured.run(context_, work);
}

// In the order in which the forward needs them.
void TrainingStep::update_units() {
  const std::size_t others = exchange_.units().others();
  const auto update = [this](std::size_t unit) {
    update_pieces(update_[unit]);
    exchange_.send_parameters(unit, tensors().optimizer.parameters);
  };
  update(others);
  for (std::size_t layer = 0; layer < others; ++layer) update(layer);
  parameters_arrive_ = true;
}

TrainingStep::Result TrainingStep::collect() {
  const int step = collected_++, index = step % kStepsInFlight;
  StepSlot& slot = step_slots_[static_cast<std::size_t>(index)];
  const Event& norm = norm_of(step);
  norm.synchronize();
  for (BatchSlot& batch : batch_slots_) {
    if (batch.step == index) reclaim(batch);
  }
  if (context_.stream().get()) slot.gradient_norm = ops::load_element(slot.norm.tensor(), 0);
  if (begun_ == collected_) wait_for_parameters();
  Result result{.loss_sum = 0,
                .norm = slot.gradient_norm,
                .seconds = norm.seconds_since(slot.follows ? norm_of(step - 1) : *slot.begun)};
  const std::vector<double> losses = gathered(comm_, slot.losses);  // by rank
  const std::size_t ranks = static_cast<std::size_t>(comm_.size()), of_rank = losses.size() / ranks;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    result.loss_sum += losses[divides_gradients() ? i % ranks * of_rank + i / ranks : i];  // by slice
  }
  return result;
}

double TrainingStep::forward() {
  const BatchSlot& slot = batch_slots_[static_cast<std::size_t>(next_batch_)];
  slot.tokens.upload(context_.stream());
  slot.targets.upload(context_.stream());
  const auto work = [this] {
    tensors().pass->forward(context_, parameter_hooks(1));
    run_head(tensors(), nullptr);
  };
  divides_parameters() ? work() : forward_.run(context_, work);
  slot.losses.download(context_.stream());
  context_.synchronize();
  return sum_of(slot.losses.tensor());
}

std::optional<std::string> TrainingStep::first_non_finite() {
  std::optional<std::string> found;
  int call = 0;
  const Inspecting inspecting(context_, [&](std::string_view operation, const std::vector<TensorUse>& uses) {
    for (const TensorUse& use : uses) {
      if (found || use.access == Access::read || use.access == Access::scratch) continue;
      if (all_finite(use.tensor, context_.stream())) continue;
      found = fmt::format("{} ({} of {})", planned_.arenas().name_of(use.tensor.data, call), use.argument,
                          operation);
    }
    ++call;
  });
  const BatchSlot& slot = batch_slots_[static_cast<std::size_t>(next_batch_)];
  slot.tokens.upload(context_.stream());
  slot.targets.upload(context_.stream());
  tensors().pass->forward(context_, parameter_hooks(1));
  const DecoderParameters& gradients = tensors().gradients.front();
  run_head(tensors(), &gradients);
  call += kLossGateCalls;  // which the plan has here
  tensors().pass->backward(context_, gradients, parameter_hooks(-1));
  return found;
}

}  // namespace warpwright
