// Predicts the time of a training step over ranks, from the times of its kernels and the speed of the links.
#pragma once

#include <cstdint>

#include "train/shards.hpp"

namespace warpwright {

struct StepLoad {
  Sharding sharding = Sharding::none;
  int ranks = 1, nodes = 1;  // a machine is a node and has an equal part of the ranks
  std::int64_t slices = 1;   // of a rank
  std::int64_t sums = 1;     // of its slices, that a rank exchanges (tree_sum.hpp; 1 with Reduce::ring)
  std::int64_t layers = 1;

  // Seconds: of a slice; to update all parameters, their norm included; to add two sets of gradients.
  double forward = 0, backward = 0, update = 0, addition = 0;

  double layer_bytes = 0, other_bytes = 0;  // gradients of one layer, and of all parameters outside of them
  double weight_share = 1;                  // bytes of parameters for each byte of gradients
  double largest_shard = 1;                 // of a rank, in equal parts of what is exchanged
  double largest_update = 1;                // work of a rank's divided update, in equal parts

  // Bytes a second that a rank can send: to the ranks of its node, and to those of others.
  double link = 0, network = 0;
  double overlapped = 1;  // the share of an exchange that can run while kernels do
};

struct StepTime {
  double compute = 0;   // seconds of kernels
  double exchange = 0;  // seconds in which kernels wait for an exchange
  double sent = 0;      // bytes that a rank sends

  double seconds() const { return compute + exchange; }
};

// Seconds to exchange tensors of this many bytes, all to all. The rank with the largest shard takes longest,
// because the others send it theirs of it. Links within a node and between nodes work at the same time.
double exchange_seconds(const StepLoad& load, double bytes);

// Seconds by which an exchange of `bytes` for each layer lengthens the work on all layers. The exchange of a
// layer runs during the work on the next one, so a layer takes max(work, exchange). The last exchange is
// exposed, and so is the share that cannot overlap.
double exposed_seconds(const StepLoad& load, double work, double bytes);

// Counts bytes and no messages: with many ranks and small layers, latency comes on top.
StepTime predicted_step_time(const StepLoad& load);

}  // namespace warpwright
