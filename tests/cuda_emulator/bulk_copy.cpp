// cp.async.bulk, and the parts that all bulk copies share. A thread waits for a bulk copy at an mbarrier.
#include <cstring>
#include <utility>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {

/// Begins a bulk copy. Until a thread waits for the copy at the mbarrier, the target of the copy holds poison. A thread
/// that has waited knows of this write, and of all that the copying thread did before.
void Warp::begin_bulk_copy(const Instruction& in, int lane, std::uint64_t to, std::uint64_t barrier,
                           std::vector<char> data) {
  const std::size_t bytes = data.size();
  if (to > block_.shared_.size() || bytes > block_.shared_.size() - to) {
    fail("out of bounds shared bulk copy of " + std::to_string(bytes) + " bytes to " + hexadecimal(to), in, lane);
  }
  if (!block_.mbarriers_.contains(barrier)) {
    fail("no mbarrier: nobody has initialised one at " + hexadecimal(barrier), in, lane);
  }
  std::memset(block_.shared_.data() + to, 0xff, bytes);  // NaN and -1
  const std::uint32_t thread = index_ * warp_size + static_cast<std::uint32_t>(lane);
  Knowledge known;
  if (block_.grid_.look_for_races) {
    record(block_.shared_cells_, to, {in, true, true, to, bytes, lane});
    block_.view_.release(known, thread);
    block_.begin_segment();  // later accesses are not ordered by the copy
  }
  block_.bulk_copies_.push_back({&in, thread, to, barrier, std::move(data), std::move(known)});
}

/// Delivers the copies that an mbarrier counts, one after the other, until the phase of the mbarrier completes. A wait
/// calls this function, because a GPU may deliver the copies as late as that.
void Block::deliver_bulk_copies(std::uint64_t where) {
  MbarrierState& barrier = mbarriers_[where];
  const std::uint32_t phase = barrier.phase;
  std::erase_if(bulk_copies_, [&](const BulkCopy& copy) {
    if (copy.barrier != where || barrier.phase != phase) return false;
    std::memcpy(shared_.data() + copy.to, copy.data.data(), copy.data.size());
    barrier.arriving.add(copy.known);
    barrier.bytes -= static_cast<std::int64_t>(copy.data.size());
    barrier.settle();
    return true;
  });
}

/// Reports a copy that no thread has waited for, because it could write to the memory of a later block.
void Warp::expect_no_bulk_copy() const {
  if (block_.bulk_copies_.empty()) return;
  const Block::BulkCopy& copy = block_.bulk_copies_.front();
  block_.warps_[copy.thread / warp_size]->fail(
      "a bulk copy that no thread has waited for, at the end of its block: " + std::to_string(copy.data.size()) +
          " bytes to " + hexadecimal(copy.to) + " with the mbarrier at " + hexadecimal(copy.barrier),
      *copy.in, static_cast<int>(copy.thread % warp_size));
}

/// Returns for example ` (the mbarrier at 0x400 waits for 64 bytes)`, or "" if every mbarrier has got exactly the bytes
/// that it expects.
std::string Block::missing_bytes() const {
  for (const auto& [where, barrier] : mbarriers_) {
    if (barrier.bytes == 0) continue;
    return " (the mbarrier at " + hexadecimal(where) +
           (barrier.bytes > 0 ? " waits for " + std::to_string(barrier.bytes) + " bytes)"
                              : " has got " + std::to_string(-barrier.bytes) + " bytes more than it expects)");
  }
  return "";
}

/// Executes cp.async.bulk. The operands are [to, from, bytes, mbarrier].
void Warp::copy_bulk(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t to = read(in[0], lane) & 0xffffffff, from = read(in[1], lane), bytes = read(in[2], lane);
    if (((to | from | bytes) & 15) != 0) fail_alignment(in, to | from | bytes, 16, lane);
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
    const auto* data = reinterpret_cast<const char*>(from);
    begin_bulk_copy(in, lane, to, read(in[3], lane) & 0xffffffff, {data, data + bytes});
  });
}

}  // namespace gatefold::cuda_emulator
