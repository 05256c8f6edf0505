#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "support/experts.hpp"

namespace gatefold::support {

/// Puts NaN into the last but one position of an item, and checks that outputs that do not depend on this position keep
/// their bits. Outputs of other items do not depend on it. If `causal` is true, only the outputs of the last two
/// positions of the item depend on it.
template <class T, class E>
std::vector<std::string> leaks_of_nan(const E& expert, bool causal) {
  std::vector<std::string> broken;
  Cpu::Context ctx(2);
  Bank<T, E> clean(ctx, expert, {3, 0, 4}, 5), changed(ctx, expert, {3, 0, 4}, 5);
  const Index width = expert.in_dim() / expert.length, item = 1, first = expert.in_dim() - 2 * width;
  for (Index d = 0; d < width; ++d) changed.x(item, first + d) = T(quiet_nan);
  clean.forward();
  changed.forward();
  Index seen = 0;
  for (Index s = 0; s < clean.used(); ++s)
    for (Index d = 0; d < expert.out_dim(); ++d) {
      const bool sees = clean.rows[std::size_t(s)] == item && !(causal && d < first);
      const T before = clean.z(s, d), after = changed.z(s, d);
      seen += sees && after != after;
      if (!sees && std::memcmp(&before, &after, sizeof(T)) != 0)
        broken.push_back("slot " + std::to_string(s) + ", column " + std::to_string(d));
    }
  if (seen != expert.out_dim() - (causal ? first : 0)) broken.push_back("who sees NaN does not become NaN");
  return broken;
}

}  // namespace gatefold::support
