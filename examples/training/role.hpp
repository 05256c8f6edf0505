#pragma once

#include <functional>

namespace training {

/// The role of one process or shard in a run: whether others train together with it, and whether it reports in addition
/// to training.
struct Role {
  bool alone = true;
  bool reports = true;  // prints progress, writes metrics and pictures
  /// Returns true if `mine` is true on any of the processes or shards. All of them must call any() together.
  std::function<bool(bool)> any = [](bool mine) { return mine; };
};

}  // namespace training
