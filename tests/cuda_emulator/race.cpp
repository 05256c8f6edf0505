#include "cuda_emulator/race.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace gatefold::cuda_emulator {

std::uint32_t Timeline::begin_segment(std::uint32_t block) {
  if (owners_.empty() || owners_.back().block != block) owners_.push_back({next_, block});
  return next_++;
}

std::uint32_t Timeline::block_of(std::uint32_t segment) const {
  const auto after = std::upper_bound(owners_.begin(), owners_.end(), segment,
                                      [](std::uint32_t value, const Owner& owner) { return value < owner.segment; });
  return std::prev(after)->block;
}

bool Viewpoint::acquired_by(std::uint32_t thread, Stamp earlier) const {
  if (acquired.empty()) return false;
  const std::vector<Acquisition>& acquisitions = acquired.from(timeline->block_of(earlier.segment()));
  return std::any_of(acquisitions.begin(), acquisitions.end(), [&](const Acquisition& acquisition) {
    return acquisition.release.covers(earlier.thread(), earlier.segment()) &&
           follows(thread, acquisition.thread, acquisition.segment);
  });
}

namespace {

/// Stores `now` first. Of the two older stamps, keeps the stamp that is farther from `now`, or a weak stamp if both are
/// equally far. A weak stamp may be kept even if it is ordered before `now`, because it may race with strong accesses
/// of other threads.
void remember(Stamp (&stamps)[2], const Access& access) {
  auto rank = [&](Stamp stamp) {
    const auto distance = access.view.distance(stamp, access.now.thread(), access.horizon);
    return 2 * static_cast<int>(distance) + (stamp && !stamp.strong());
  };
  const int last = rank(stamps[0]);
  if (last > 0 && last >= rank(stamps[1])) stamps[1] = stamps[0];
  stamps[0] = access.now;
}

}  // namespace

Stamp Access::compare(Cell& cell) const {
  // If the same thread accesses the word again without other accesses in between, there is no new race: the first of
  // these accesses has found the races.
  const Stamp& latest = write ? cell.write[0] : cell.read[0];
  constexpr std::uint64_t who_and_when = 0xffffffff000007ff;
  if (((latest.bits ^ now.bits) & who_and_when) == 0 && (!write || !cell.read[0])) return {};

  Stamp conflict;
  auto look = [&](Stamp earlier) {
    if (!earlier || earlier.segment() < horizon || (earlier.strong() && now.strong())) return;
    if (view.distance(earlier, now.thread(), horizon) != Viewpoint::Distance::ordered) conflict = earlier;
  };
  look(cell.write[1]);
  look(cell.write[0]);
  if (write) {
    look(cell.read[1]);
    look(cell.read[0]);
    if (now.strong()) {
      remember(cell.write, *this);
    } else {
      cell = {{now, {}}, {}};
    }
  } else {
    remember(cell.read, *this);
  }
  return conflict;
}

CellArray::CellArray(std::size_t bytes) {
  const std::size_t mapped = (bytes + 3) / 4 * sizeof(Cell);
  void* cells = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (cells == MAP_FAILED) throw std::bad_alloc();
  words_ = {static_cast<Cell*>(cells), UnmapCells{mapped}};
}

void UnmapCells::operator()(Cell* cells) const { munmap(cells, mapped); }

SplitWord& CellArray::split(std::size_t word) {
  Cell& cell = words_[word];
  if (!is_split(word)) {
    split_.push_back({{cell, cell, cell, cell}});
    cell.write[0].bits = split_mark;
    cell.write[1].bits = split_.size() - 1;
  }
  return split_[cell.write[1].bits];
}

Stamp CellArray::record_bytes(const Access& access, std::size_t offset, std::size_t bytes) {
  Stamp conflict;
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    const Stamp found = access.record(split(i / 4).byte[i % 4]);
    if (found) conflict = found;
  }
  return conflict;
}

}  // namespace gatefold::cuda_emulator
