#pragma once

#include <functional>

namespace training {

/// The tasks of one process or shard besides the training steps, if several train together.
struct Role {
  bool alone = true;
  bool reports = true;  // prints progress, writes metrics and pictures
  /// Returns true if `mine` is true on any of the processes or shards. All of them must call any() together.
  std::function<bool(bool)> any = [](bool mine) { return mine; };
};

}  // namespace training
