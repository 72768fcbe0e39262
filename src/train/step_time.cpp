#include "train/step_time.hpp"

#include <algorithm>

namespace warpwright {

double exchange_seconds(const StepLoad& load, double bytes) {
  const double ranks = load.ranks, of_node = ranks / load.nodes;
  const double part = bytes * load.largest_shard / ranks;
  const double within = part * (of_node - 1), between = part * (ranks - of_node);
  const auto seconds = [](double sent, double speed) { return sent > 0 ? sent / speed : 0; };
  return std::max(seconds(within, load.link), seconds(between, load.network));
}

double exposed_seconds(const StepLoad& load, double work, double bytes) {
  const auto layers = static_cast<double>(load.layers);
  const double exchange = exchange_seconds(load, bytes), beside = load.overlapped * exchange;
  const double of_layer = work / layers;
  const double pipeline = of_layer + (layers - 1) * std::max(of_layer, beside) + beside;
  return pipeline - work + layers * (exchange - beside);
}

StepTime predicted_step_time(const StepLoad& load) {
  const auto slices = static_cast<double>(load.slices), sums = static_cast<double>(load.sums);
  const double ranks = load.ranks, layers = static_cast<double>(load.layers);
  const double g = load.layer_bytes, others = load.other_bytes, w = load.weight_share;
  StepTime time;
  time.compute = slices * (load.forward + load.backward);
  const auto exposed = [&](double work, double bytes, double times) {
    time.sent += times * layers * bytes;
    time.exchange += times * exposed_seconds(load, work, bytes);
  };
  const auto serial = [&](double bytes) {
    time.sent += bytes;
    time.exchange += exchange_seconds(load, bytes);
  };
  // The gradients outside of the layers travel while the first layer's last two products run, a quarter of
  // its backward, unless the layer before is still under way.
  const auto during_products = [&](double bytes, double bytes_of_layer, double times) {
    const double exchange = exchange_seconds(load, bytes), of_layer = load.backward / layers;
    const double idle = std::max(0.0, of_layer - load.overlapped * exchange_seconds(load, bytes_of_layer));
    time.sent += times * bytes;
    time.exchange += times * (exchange - std::min({load.overlapped * exchange, of_layer / 4, idle}));
  };
  const double update =
      load.sharding == Sharding::none ? load.update : load.update * load.largest_update / ranks;
  time.compute += update;
  if (load.sharding <= Sharding::optimizer) {
    // A rank adds whole sets until `sums` are left, and then its shard of those of all ranks.
    time.compute += load.addition * (slices - sums + (ranks * sums - 1) / ranks);
    const double sets = load.sharding == Sharding::none ? sums + 1 : sums;
    exposed(load.backward, sets * g, 1);
    during_products(sets * others, sets * g, 1);
  } else {
    time.compute += load.addition * (ranks * slices - 1) / ranks;
    const bool gathers = load.sharding == Sharding::parameters;
    if (gathers) exposed(load.forward, w * g, slices);
    exposed(load.backward, gathers ? (1 + w) * g : g, slices);
    during_products(others, gathers ? (1 + w) * g : g, slices);
  }
  // The updated parameters, while others are updated and in the next step's forward.
  if (load.sharding == Sharding::optimizer || load.sharding == Sharding::gradients) {
    exposed(update + load.forward, w * g, 1);
  }
  if (load.sharding != Sharding::none) serial(w * others);
  time.sent *= (ranks - 1) / ranks;
  return time;
}

}  // namespace warpwright
