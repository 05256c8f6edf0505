#pragma once

#include <functional>

namespace training {

/// The tasks of a process or shard besides the training steps, if several processes or shards train together.
struct Role {
  bool alone = true;
  bool reports = true;  // prints progress, writes metrics and pictures
  /// Returns true if `mine` is true on any of the processes or shards. All of them must call it together.
  std::function<bool(bool)> any = [](bool mine) { return mine; };
};

}  // namespace training
