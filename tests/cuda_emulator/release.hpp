// Order between blocks. A thread that releases leaves at an address what others may rely on: all that its block did
// before its last barrier, and all that it did itself. Whoever reads the address and acquires may take that as done
// before.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace gatefold::cuda_emulator {

/// What a thread of some block releases: segments as in race.hpp.
struct Release {
  std::uint32_t block = 0, thread = 0;
  std::uint32_t barrier = 0, segment = 0;

  /// Whether an access of the same block is among it.
  bool covers(std::uint32_t by, std::uint32_t then) const {
    return then < barrier || (by == thread && then <= segment);
  }
};

/// The latest releases, by block and thread.
class Releases {
 public:
  void add(const Release& release) { list_[{release.block, release.thread}] = release; }
  void add(const Releases& others) {
    for (const auto& [who, release] : others.list_) add(release);
  }
  bool empty() const { return list_.empty(); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  void clear() { list_.clear(); }

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, Release> list_;
};

/// A release that a thread knows of since a segment of its own block.
struct Acquisition {
  Release release;
  std::uint32_t thread = 0, segment = 0;
};

/// What the threads of a block have acquired, by the block that it comes from.
class Acquisitions {
 public:
  void add(const Acquisition& acquisition) { list_[acquisition.release.block].push_back(acquisition); }
  bool empty() const { return list_.empty(); }
  const std::vector<Acquisition>& from(std::uint32_t block) const {
    static const std::vector<Acquisition> none;
    const auto found = list_.find(block);
    return found == list_.end() ? none : found->second;
  }
  template <class F>
  void for_each(F f) const {
    for (const auto& [block, acquisitions] : list_) {
      for (const Acquisition& acquisition : acquisitions) f(acquisition);
    }
  }
  void clear() { list_.clear(); }

 private:
  std::map<std::uint32_t, std::vector<Acquisition>> list_;
};

}  // namespace gatefold::cuda_emulator
