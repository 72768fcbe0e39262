// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/classifier/classifier.hpp"

namespace warpwright::ops::classifier_kernels {

void reference(const Context& context, const Classifier& args);

namespace avx2 {
void run(const Context& context, const Classifier& args);
}

namespace avx512 {
void run(const Context& context, const Classifier& args);
}

}  // namespace warpwright::ops::classifier_kernels
