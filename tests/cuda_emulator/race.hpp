// Data races: two accesses to one byte that are not ordered. At least one of them is a write, and at least one is
// weak. The blocks of a launch are concurrent, independent of the order in which the emulator runs them.
//
// Time is divided into segments. A segment belongs to one block. It ends when a barrier of the block or of one of its
// warps completes, at other events that order threads of the block (order.hpp), or when a different block continues. A
// stamp holds the thread of an access and its segment. The cell of a word keeps the stamps with which a later access
// can race:
//
//   two writes  more than one only if they are strong (atomics): a weak write that does not race comes after all others
//   two reads   from two blocks if possible, otherwise from two warps, otherwise from two threads. If the next write is
//               concurrent with any read, it is concurrent with one of these.
//
// Threads of a block may also have knowledge of each other (order.hpp). The cell may then have forgotten a third reader
// that a writer does not know of, so not every such race is found.
//
// Between blocks, a release and an acquire that reads what the release left make an order: st.release and ld.acquire,
// or a fence before a strong store and a fence after a strong load, as in __threadfence(). See release.hpp.
//
// A cell covers four bytes; a word that is accessed in parts is split into one cell per byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cuda_emulator/order.hpp"
#include "cuda_emulator/release.hpp"

namespace gatefold::cuda_emulator {

/// The thread that accessed a word, its segment and its instruction. If no bit is set, there was no access.
struct Stamp {
  std::uint64_t bits = 0;

  static Stamp make(std::uint32_t segment, std::uint32_t thread, std::uint32_t site, bool strong) {
    return {std::uint64_t{segment} << 32 | std::uint64_t{site & 0x1fffff} << 11 | thread << 1 | strong};
  }
  std::uint32_t segment() const { return static_cast<std::uint32_t>(bits >> 32); }
  std::uint32_t site() const { return static_cast<std::uint32_t>(bits >> 11) & 0x1fffff; }
  std::uint32_t thread() const { return static_cast<std::uint32_t>(bits >> 1) & 0x3ff; }
  bool strong() const { return bits & 1; }
  explicit operator bool() const { return bits != 0; }
};

/// The stamps of one word, or of one byte of a word that was split.
struct Cell {
  Stamp write[2];
  Stamp read[2];
};

/// The segments of all launches, and their blocks.
struct Timeline {
  /// Begins a launch. All earlier accesses are ordered before all later ones.
  void begin_launch() {
    first_ = next_;
    owners_.clear();
  }
  std::uint32_t begin_segment(std::uint32_t block);
  std::uint32_t block_of(std::uint32_t segment) const;
  std::uint32_t first() const { return first_; }
  std::uint32_t next() const { return next_; }
  void restart() { next_ = 1; }  // the caller clears all cells

 private:
  struct Owner {
    std::uint32_t segment, block;
  };
  std::uint32_t next_ = 1, first_ = 1;
  std::vector<Owner> owners_;  // of this launch, where the block changes
};

/// The bytes of a word that was accessed in parts.
struct SplitWord {
  Cell byte[4];
};

struct UnmapCells {
  std::size_t mapped = 0;
  void operator()(Cell* cells) const;
};

/// The state of a block that decides whether earlier accesses are ordered before its own.
struct Viewpoint {
  const Timeline* timeline = nullptr;
  std::uint32_t block = 0;
  std::uint32_t begun = 0;    // the first segment of the block
  std::uint32_t resumed = 0;  // the first segment since other blocks have run: all later segments belong to this block
  std::uint32_t segment = 0;  // the current segment
  std::uint32_t barrier = 0;  // the segment that the last barrier of the block began
  std::uint32_t warp_barrier[32] = {};  // the same for each warp
  Acquisitions acquired = {};           // releases of other blocks that threads of the block have acquired
  std::uint32_t threads = 0;            // of the block
  std::vector<Knowledge> known = {};  // knowledge of each thread about the others; empty if only barriers order threads

  bool owns(std::uint32_t segment_then) const {
    return segment_then >= resumed || (segment_then >= begun && timeline->block_of(segment_then) == block);
  }

  /// Returns true if the accesses of thread `by` in segment `then` come before those of `thread` now. Both are in this
  /// block.
  bool follows(std::uint32_t thread, std::uint32_t by, std::uint32_t then) const {
    return by == thread || then < barrier || (by / 32 == thread / 32 && then < warp_barrier[thread / 32]) ||
           (!known.empty() && then < known[thread].done[by]);
  }

  // order.cpp. A new segment begins after a release and after a fence.
  Knowledge& knowledge_of(std::uint32_t thread);
  void release(Knowledge& to, std::uint32_t thread) const;
  void fence_proxy(std::uint32_t thread);
  void pass_barrier(std::uint32_t begun_segment);
  void pass_warp_barrier(std::uint32_t warp, std::uint32_t lanes, std::uint32_t begun_segment);

  /// Returns true if the async proxy, used by `thread`, sees the writes of thread `by` in segment `then`.
  bool visible(std::uint32_t thread, std::uint32_t by, std::uint32_t then) const;

  /// The distance of an earlier access from a thread. A cell can forget a nearer access if it keeps a farther one.
  enum class Distance { ordered, warp, block, grid };
  Distance distance(Stamp earlier, std::uint32_t thread, std::uint32_t horizon) const {
    const std::uint32_t then = earlier.segment(), by = earlier.thread();
    if (then < horizon) return Distance::ordered;
    if (!owns(then)) return acquired_by(thread, earlier) ? Distance::ordered : Distance::grid;
    if (follows(thread, by, then)) return Distance::ordered;
    return by / 32 == thread / 32 ? Distance::warp : Distance::block;
  }

 private:
  /// Returns true if `thread` knows by an acquisition that an access of a different block is done.
  bool acquired_by(std::uint32_t thread, Stamp earlier) const;

  /// Returns a segment. All accesses of thread `by` before it come before those of `thread` now.
  std::uint32_t done_before(std::uint32_t thread, std::uint32_t by) const;

  std::vector<std::uint32_t> visible_at_barrier_ = {};  // by thread, as in Knowledge
  bool fenced_since_barrier_ = false;
};

/// One access, with the data that the cells need.
struct Access {
  const Viewpoint& view;
  Stamp now;
  std::uint32_t horizon;  // the segment that began with the launch or, in shared memory, with the last barrier;
                          // accesses in earlier segments are ordered before this access
  bool write;

  /// Returns the same access by a different lane of the warp. This access must be of the first lane.
  Access of_lane(int lane) const {
    return {view, {now.bits + (static_cast<std::uint64_t>(lane) << 1)}, horizon, write};
  }

  /// Records the access in a cell.
  /// @returns an earlier access that races with it, if any
  Stamp record(Cell& cell) const {
    // The usual case: no access since the horizon. The first stamp of each kind is the latest.
    if (cell.write[0].segment() < horizon && cell.read[0].segment() < horizon) {
      if (write) {
        cell = {{now, {}}, {}};
      } else {
        cell.read[0] = now;
      }
      return {};
    }
    // Many threads may read a word that no thread writes. Besides the latest read, one read of a different warp in this
    // segment is enough.
    constexpr std::uint64_t segment_bits = 0xffffffff00000000, warp_bits = 0x7c0;
    const std::uint64_t difference = cell.read[1].bits ^ now.bits;
    if (!write && cell.write[0].segment() < horizon && (difference & segment_bits) == 0 &&
        (difference & warp_bits) != 0 && !cell.read[1].strong()) {
      cell.read[0] = now;
      return {};
    }
    return compare(cell);
  }

 private:
  Stamp compare(Cell& cell) const;
};

/// The cells of one range of addresses.
class CellArray {
 public:
  CellArray() = default;
  explicit CellArray(std::size_t bytes);

  explicit operator bool() const { return words_ != nullptr; }

  /// Records an access to [offset, offset + bytes).
  /// @returns an earlier access that races with it, if any
  Stamp record(const Access& access, std::size_t offset, std::size_t bytes) {
    if (bytes % 4 == 0 && offset % 4 == 0) {
      Stamp conflict;
      for (std::size_t word = offset / 4; word < (offset + bytes) / 4; ++word) {
        const Stamp found = is_split(word) ? record_bytes(access, 4 * word, 4) : access.record(words_[word]);
        if (found) conflict = found;
      }
      return conflict;
    }
    return record_bytes(access, offset, bytes);
  }

  /// Returns an earlier access that would race, but does not record the access. Only for whole words.
  Stamp conflict(const Access& access, std::size_t offset, std::size_t bytes) const {
    Stamp conflict;
    for_cells(offset, bytes, [&](Cell cell) {
      const Stamp found = access.record(cell);
      if (found) conflict = found;
    });
    return conflict;
  }

  /// Calls f(stamp) for the recorded writes to a range of whole words.
  template <class F>
  void for_writes(std::size_t offset, std::size_t bytes, F f) const {
    for_cells(offset, bytes, [&](const Cell& cell) {
      for (const Stamp write : cell.write) {
        if (write) f(write);
      }
    });
  }

 private:
  template <class F>
  void for_cells(std::size_t offset, std::size_t bytes, F f) const {
    for (std::size_t word = offset / 4; word < (offset + bytes) / 4; ++word) {
      if (is_split(word)) {
        for (const Cell& cell : split_[words_[word].write[1].bits].byte) f(cell);
      } else {
        f(words_[word]);
      }
    }
  }

  // A split word holds this mark and the index of its entry in split_.
  static constexpr std::uint64_t split_mark = ~std::uint64_t{0};
  bool is_split(std::size_t word) const { return words_[word].write[0].bits == split_mark; }
  SplitWord& split(std::size_t word);
  Stamp record_bytes(const Access& access, std::size_t offset, std::size_t bytes);

  std::unique_ptr<Cell[], UnmapCells> words_;
  std::deque<SplitWord> split_;
};

}  // namespace gatefold::cuda_emulator
