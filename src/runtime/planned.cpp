#include "runtime/planned.hpp"

namespace warpwright {

Recording::Recording(Context& context, Recorder& recorder) : context_(context), before_(context.recorder()) {
  context_.set_recorder(&recorder);
}

Recording::~Recording() {
  context_.set_recorder(before_);
}

}  // namespace warpwright
