// Texts that end generation, found in output that arrives piece by piece.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace warpwright::text {

// Passes on output up to the first stop text. Output that could be the beginning of one is held back until
// that is decided, so a stop text may arrive in any number of pieces.
class StopTexts {
 public:
  explicit StopTexts(std::vector<std::string> stops);  // none of them empty

  std::string push(std::string_view piece);  // what can be shown
  bool found() const { return found_; }      // push() and finish() then return nothing
  std::string finish();                      // what was still held back

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace warpwright::text
