// Order between some threads of a block: by mbarriers, by barriers of a part of the block, by wgmma. (That of all its
// threads, and of a warp, is in Viewpoint.)
//
// A thread that releases passes on what it has done and what it knows to be done before; whoever acquires that knows it
// too. The async proxy, through which wgmma reads shared memory, sees of all this only what came before a
// fence.proxy.async: of the thread that wrote, or of one that knew of it.
#pragma once

#include <cstdint>
#include <vector>

namespace gatefold::cuda_emulator {

/// By thread: what it did before a segment is done, and what it did before another one is visible to the async proxy.
struct Knowledge {
  std::vector<std::uint32_t> done, visible;

  void reserve(std::uint32_t threads) {
    done.resize(threads);
    visible.resize(threads);
  }

  /// Adds what `other` knows.
  void add(const Knowledge& other);
};

}  // namespace gatefold::cuda_emulator
