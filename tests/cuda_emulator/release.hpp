// Order between blocks. A release leaves at an address what other blocks may rely on: all that the block did before its
// last barrier, and all that the releasing thread did itself. If a thread reads the address and acquires the release,
// all this is ordered before the later accesses of the thread.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace gatefold::cuda_emulator {

/// A release by a thread of a block. Segments are explained in race.hpp.
struct Release {
  std::uint32_t block = 0, thread = 0;
  std::uint32_t barrier = 0, segment = 0;

  /// Returns true if the release includes an access of thread `by` of the same block in segment `then`.
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

/// A release of a different block, the thread that acquired this release, and the segment in which the thread did so.
struct Acquisition {
  Release release;
  std::uint32_t thread = 0, segment = 0;
};

/// The releases that the threads of a block have acquired, by the block that released.
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
