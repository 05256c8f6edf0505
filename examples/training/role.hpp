#pragma once

#include <functional>

namespace training {

/// The tasks, besides the steps, of one of several processes or shards that train together.
struct Role {
  bool alone = true;
  bool reports = true;                                             // prints progress, writes metrics and pictures
  std::function<bool(bool)> any = [](bool mine) { return mine; };  // true if `mine` is true for any; all call it
};

}  // namespace training
