// mbarriers: objects in shared memory at which threads and asynchronous copies arrive, phase by phase.
//
// A thread whose wait succeeds knows all that was done before the arrivals of the completed phase.
#include <bit>
#include <utility>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"

namespace gatefold::cuda_emulator {
namespace {

// A thread that waits in vain lets the other warps run for a while. After this number of consecutive waits in vain in a
// block, the emulator assumes that no thread can still arrive.
constexpr int most_fruitless_waits = 1 << 17;

}  // namespace

void MbarrierState::settle() {
  if (pending != 0 || bytes != 0) return;
  phase ^= 1;
  pending = expected;
  known = std::exchange(arriving, {});
}

void Warp::arrive(MbarrierState& barrier, std::uint32_t count, const Instruction& in, int lane) {
  if (count > barrier.pending) fail("more arrivals at an mbarrier than it expects", in, lane);
  barrier.pending -= count;
  barrier.settle();
}

/// Makes the arrivals of threads that arrive after their copies. Before each arrival, delivers the earlier copies of
/// its thread that are still under way.
void Block::arrive_late(MbarrierState& barrier) {
  for (const MbarrierState::Late& late : std::exchange(barrier.late, {})) {
    std::erase_if(late.warp->copies_[late.lane].under_way, [&](const Warp::Copy& copy) {
      if (copy.number >= late.copies) return false;
      late.warp->deliver(copy, late.lane, late.segment);
      return true;
    });
    late.warp->arrive(barrier, 1, *late.in, late.lane);
  }
}

/// The operands are [state, mbarrier, operand], or without the state if the instruction has none.
///
/// @returns false if a lane waits in vain
bool Warp::mbarrier(const Instruction& in, std::uint32_t lanes) {
  const auto arrival = static_cast<Arrival>(in.mode);
  const bool has_result = arrival == Arrival::arrive || arrival == Arrival::arrive_expect || arrival == Arrival::wait;
  const std::size_t first = has_result ? 1 : 0;
  Viewpoint& view = block_.view_;
  const bool ordered = block_.grid_.look_for_races && !in.relaxed;
  bool all = true, arrived = false;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t where = read(in[first], lane) & 0xffffffff;
    const std::uint32_t thread = index_ * warp_size + static_cast<std::uint32_t>(lane);
    Places places;
    locate(in, {in[first], 0, Space::shared, 8, true}, 1u << lane, places);
    MbarrierState& barrier = block_.mbarriers_[where];
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
        if (arrival == Arrival::arrive_expect) barrier.bytes += static_cast<std::int64_t>(operand);
        write(in[0], lane, barrier.phase);
        if (ordered) view.release(barrier.arriving, thread);
        arrive(barrier, arrival == Arrival::arrive ? static_cast<std::uint32_t>(operand) : 1, in, lane);
        arrived = true;
        break;
      }
      case Arrival::after_copies:
      case Arrival::also_after_copies:
        if (arrival == Arrival::also_after_copies) ++barrier.pending;
        if (ordered) view.release(barrier.arriving, thread);
        barrier.late.push_back({this, &in, lane, copies_[lane].begun, view.segment});
        arrived = true;
        break;
      case Arrival::wait: {
        // Waits for the end of the phase that the operand names: its parity, or the state that arrive returned.
        const auto over = [&] { return barrier.phase != (operand & 1); };
        if (!over()) block_.arrive_late(barrier);
        if (!over()) block_.deliver_bulk_copies(where);
        const bool done = over();
        if (done && ordered && !barrier.known.done.empty()) view.knowledge_of(thread).add(barrier.known);
        write(in[0], lane, done);
        all = all && done;
        break;
      }
    }
  });
  if (arrived) block_.begin_segment();  // later accesses are not ordered by the arrival
  block_.fruitless_waits_ = all ? 0 : block_.fruitless_waits_ + 1;
  if (block_.fruitless_waits_ > most_fruitless_waits) {
    fail("deadlock: a phase of an mbarrier has too few arrivals to end" + block_.missing_bytes(), in,
         std::countr_zero(lanes));
  }
  return all;
}

}  // namespace gatefold::cuda_emulator
