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

namespace cuda {
std::string refuse_shared_row(const ClassifierProblem& problem, const DeviceInfo& device);
void shared_row(const Context& context, const Classifier& args);
void streamed_row(const Context& context, const Classifier& args);
void plain_row(const Context& context, const Classifier& args);
}  // namespace cuda

}  // namespace warpwright::ops::classifier_kernels
