// Copies that go on while their thread does: cp.async, which a thread waits for by groups, and cp.async.bulk, which an
// mbarrier waits for.
#include <algorithm>
#include <cstring>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {

/// cp.async: [to, from, bytes to write, bytes to read]. Until the copy arrives, nobody may read its target: it holds
/// poison, so that a wait too short is a wrong value.
void Warp::copy_async(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    Places to, from;
    const std::uint64_t bytes = read(in[2], lane), given = std::min(read(in[3], lane), bytes);
    locate(in, {in[0], in.offset, Space::shared, bytes, true}, 1u << lane, to);
    std::memset(to[lane], 0xff, bytes);  // NaN and -1
    Copies& copies = copies_[lane];
    Copy copy{&in,
              copies.groups,
              static_cast<std::uint32_t>(bytes),
              static_cast<std::uint64_t>(to[lane] - block_.shared_.data()),
              {}};
    // The whole is aligned, so its part is looked up as bytes.
    if (given > 0 && (read(in[1], lane) + static_cast<std::uint64_t>(in.second_offset)) % bytes != 0) {
      fail_alignment(in, read(in[1], lane), bytes, lane);
    }
    for (std::uint64_t i = 0; i < given; ++i) {
      locate(in, {in[1], in.second_offset + static_cast<std::int64_t>(i), Space::global, 1, false}, 1u << lane, from);
      copy.data[i] = *from[lane];
    }
    copies.under_way.push_back(copy);
  });
}

/// cp.async.wait_group n: all but the latest n groups arrive; cp.async.wait_all: all copies, those of no group too.
void Warp::copy_wait(const Instruction& in, std::uint32_t lanes) {
  const bool all = static_cast<CopyWait>(in.mode) == CopyWait::all;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t may_miss = all ? 0 : read(in[0], lane), groups = copies_[lane].groups;
    std::erase_if(copies_[lane].under_way, [&](const Copy& copy) {
      if (!all && copy.group + may_miss >= groups) return false;
      std::memcpy(block_.shared_.data() + copy.to, copy.data, copy.bytes);
      if (block_.grid_.look_for_races) {
        record(block_.shared_cells_, copy.to, *copy.in, copy.to, copy.bytes, lane, true);
      }
      return true;
    });
  });
}

/// cp.async.bulk: [to, from, bytes, mbarrier]. Its accesses are not looked at for races: the mbarrier orders them.
void Warp::copy_bulk(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t to = read(in[0], lane) & 0xffffffff, from = read(in[1], lane), bytes = read(in[2], lane);
    if (((to | from | bytes) & 15) != 0) fail_alignment(in, to | from | bytes, 16, lane);
    if (to > block_.shared_.size() || bytes > block_.shared_.size() - to) {
      fail("out of bounds shared bulk copy of " + std::to_string(bytes) + " bytes to " + hexadecimal(to), in, lane);
    }
    if (!Memory::device().contains(reinterpret_cast<const void*>(from), bytes)) {
      fail("out of bounds global bulk copy of " + std::to_string(bytes) + " bytes from " + hexadecimal(from) + " (" +
               Memory::device().describe(from) + ")",
           in, lane);
    }
    if (!Memory::device().contains(reinterpret_cast<const void*>(from), bytes, block_.grid_.launch.device)) {
      fail(
          "memory of another device: global bulk copy of " + std::to_string(bytes) + " bytes from " + hexadecimal(from),
          in, lane);
    }
    std::memcpy(block_.shared_.data() + to, reinterpret_cast<const char*>(from), bytes);
    Block::Mbarrier& barrier = block_.mbarriers_[read(in[3], lane) & 0xffffffff];
    barrier.bytes -= static_cast<std::int64_t>(bytes);
    barrier.settle();
  });
}

/// @returns false where a lane waits in vain
bool Warp::mbarrier(const Instruction& in, std::uint32_t lanes) {
  const auto arrival = static_cast<Arrival>(in.mode);
  const bool has_result = arrival == Arrival::arrive || arrival == Arrival::arrive_expect || arrival == Arrival::wait;
  const std::size_t first = has_result ? 1 : 0;
  bool all = true;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t where = read(in[first], lane) & 0xffffffff;
    Places places;
    locate(in, {in[first], 0, Space::shared, 8, true}, 1u << lane, places);
    Block::Mbarrier& barrier = block_.mbarriers_[where];
    const auto operand = in.count > first + 1 ? read(in[first + 1], lane) : 0;
    switch (arrival) {
      case Arrival::initialise:
        barrier = {};
        barrier.expected = barrier.pending = static_cast<std::uint32_t>(operand);
        break;
      case Arrival::invalidate:
        block_.mbarriers_.erase(where);
        break;
      case Arrival::expect:
        barrier.bytes += static_cast<std::int64_t>(operand);
        break;
      case Arrival::arrive:
      case Arrival::arrive_expect: {
        const std::uint32_t count = arrival == Arrival::arrive ? static_cast<std::uint32_t>(operand) : 1;
        if (count > barrier.pending) fail("more arrivals at an mbarrier than it expects", in, lane);
        if (arrival == Arrival::arrive_expect) barrier.bytes += static_cast<std::int64_t>(operand);
        write(in[0], lane, barrier.phase);
        barrier.pending -= count;
        barrier.settle();
        break;
      }
      case Arrival::wait: {
        // Waits for the end of the phase that the operand names: its parity, or the state that arrive returned.
        const bool done = barrier.phase != (operand & 1);
        write(in[0], lane, done);
        all = all && done;
        break;
      }
    }
  });
  return all;
}

}  // namespace gatefold::cuda_emulator
