// cp.async: copies that continue while their thread runs. The thread waits for groups of copies.
#include <algorithm>
#include <cstring>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"

namespace gatefold::cuda_emulator {

/// Executes cp.async. The operands are [to, from, bytes to write, bytes to read]. Until the copy arrives, its target
/// holds poison, so that a missing wait gives a wrong value.
void Warp::copy_async(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    Places to;
    const std::uint64_t bytes = read(in[2], lane), given = std::min(read(in[3], lane), bytes);
    locate(in, {in[0], in.offset, Space::shared, bytes, true}, 1u << lane, to);
    std::memset(to[lane], 0xff, bytes);  // NaN and -1
    Copies& copies = copies_[lane];
    Copy copy{&in,
              copies.begun++,
              copies.groups,
              static_cast<std::uint32_t>(bytes),
              static_cast<std::uint64_t>(to[lane] - block_.shared_.data()),
              {}};
    const std::uint64_t address = read(in[1], lane) + static_cast<std::uint64_t>(in.second_offset);
    if (given > 0 && address % bytes != 0) fail_alignment(in, address, bytes, lane);
    read_global(in, lane, address, given, copy.data);
    copies.under_way.push_back(copy);
  });
}

/// Executes cp.async.wait_group n, after which all groups except the latest n have arrived, and cp.async.wait_all,
/// after which all copies have arrived, also those without a group.
void Warp::copy_wait(const Instruction& in, std::uint32_t lanes) {
  const bool all = static_cast<CopyWait>(in.mode) == CopyWait::all;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t may_miss = all ? 0 : read(in[0], lane), groups = copies_[lane].groups;
    std::erase_if(copies_[lane].under_way, [&](const Copy& copy) {
      if (!all && copy.group + may_miss >= groups) return false;
      deliver(copy, lane, block_.view_.segment);
      return true;
    });
  });
}

/// Completes a copy. It is recorded as a write in the given segment of its thread.
void Warp::deliver(const Copy& copy, int lane, std::uint32_t segment) {
  std::memcpy(block_.shared_.data() + copy.to, copy.data, copy.bytes);
  if (!block_.grid_.look_for_races) return;
  record(block_.shared_cells_, copy.to, {*copy.in, true, true, copy.to, copy.bytes, lane}, segment);
}

}  // namespace gatefold::cuda_emulator
