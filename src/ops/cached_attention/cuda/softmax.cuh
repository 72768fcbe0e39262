// An online softmax.
#pragma once

#include <cmath>

namespace warpwright::ops::cached {

// Follows the largest score of one query head.
struct Softmax {
  float largest = -INFINITY, total = 0;

  // Takes the largest of further scores. Returns the factor for what has been summed.
  __device__ float advance(float further) {
    const float before = largest;
    largest = fmaxf(largest, further);
    const float factor = exp2f(before - base());
    total *= factor;
    return factor;
  }
  __device__ float weigh(float score) {
    const float p = exp2f(score - base());
    total += p;
    return p;
  }
  // Without any finite score, exponentials are 0 or NaN.
  __device__ float base() const { return largest == -INFINITY ? 0.0f : largest; }
};

}  // namespace warpwright::ops::cached
