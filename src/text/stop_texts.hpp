// Finds the texts that end generation in output that arrives piece by piece.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace warpwright::text {

// Passes output on up to the first stop text. Output that could begin a stop text is held back until that is
// decided, so a stop text may arrive in any number of pieces.
class StopTexts {
 public:
  explicit StopTexts(std::vector<std::string> stops);  // no stop text is empty

  std::string push(std::string_view piece);  // returns what can be shown
  bool found() const { return found_; }      // if true, push() and finish() return nothing
  std::string finish();                      // returns what was held back

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace warpwright::text
