// Order between some threads of a block, made by mbarriers, by barriers of a part of the block, or by wgmma. (Viewpoint
// has the order between all threads of a block, and of a warp.)
//
// A thread knows of an access if the access comes before all that the thread does now. By a release, a thread passes on
// what it has done and what it knows of. A thread that acquires the release knows of all this, too. The async proxy,
// through which wgmma reads shared memory, sees only writes before a fence.proxy.async of the writing thread, or of a
// thread that knew of the write.
#pragma once

#include <cstdint>
#include <vector>

namespace gatefold::cuda_emulator {

/// For each thread, two segments. Its accesses before the first are known to be done, and those before the second are
/// known to be visible to the async proxy.
struct Knowledge {
  std::vector<std::uint32_t> done, visible;

  void reserve(std::uint32_t threads) {
    done.resize(threads);
    visible.resize(threads);
  }

  /// Adds the knowledge of `other`.
  void add(const Knowledge& other);
};

}  // namespace gatefold::cuda_emulator
