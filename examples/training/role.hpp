#pragma once

#include <functional>

namespace training {

/// The tasks of one of several processes or shards that train together, besides the steps.
struct Role {
  bool alone = true;
  bool reports = true;                                             // prints progress, writes metrics and pictures
  std::function<bool(bool)> any = [](bool mine) { return mine; };  // whether it is true for any; all call it together
};

}  // namespace training
