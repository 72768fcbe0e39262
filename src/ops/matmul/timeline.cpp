#include "ops/matmul/timeline.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace warpwright::ops::matmul {

double Timeline::overlap() const {
  double epilogues = 0, hidden = 0;
  for (const auto& groups : blocks) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const Stamps& mine : groups[g]) {
        epilogues += static_cast<double>(mine.end - mine.epilogue);
        for (std::size_t other = 0; other < groups.size(); ++other) {
          if (other == g) continue;
          for (const Stamps& theirs : groups[other]) {
            const long long both =
                std::min(mine.end, theirs.epilogue) - std::max(mine.epilogue, theirs.products);
            hidden += static_cast<double>(std::max(both, 0LL));
          }
        }
      }
    }
  }
  return epilogues > 0 ? hidden / epilogues : 0;
}

std::string Timeline::json(std::string_view product, std::size_t block) const {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const auto& tiles : blocks.at(block)) {
    nlohmann::ordered_json& group = groups.emplace_back(nlohmann::ordered_json::array());
    for (const Stamps& s : tiles) {
      group.push_back({{"products", s.products}, {"epilogue", s.epilogue}, {"end", s.end}});
    }
  }
  const nlohmann::ordered_json document = {{"product", product},
                                           {"clocks_per_second", clocks_per_second},
                                           {"overlap", overlap()},
                                           {"groups", groups}};
  return document.dump() + "\n";
}

}  // namespace warpwright::ops::matmul
