// Barriers for all or some threads of a block: bar.sync, bar.red and bar.arrive.
#include <algorithm>
#include <bit>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"

namespace gatefold::cuda_emulator {

/// The operands are [result, number, threads or none, predicate].
void Warp::arrive(const Instruction& in, std::uint32_t pc, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t number = read(in[1], lane);
    if (number >= Block::barriers) fail("there is no barrier " + std::to_string(number), in, lane);
    const std::uint64_t threads = in[2].present() ? read(in[2], lane) : 0;
    if (threads % warp_size != 0)
      fail("a barrier of " + std::to_string(threads) + " threads, no multiple of 32", in, lane);
    if (in.op == Opcode::barrier_arrive) {
      Block::Arrivals& arrivals = block_.arrivals_[number];
      ++arrivals.threads;
      arrivals.expected = std::max(arrivals.expected, static_cast<std::uint32_t>(threads));
      if (block_.grid_.look_for_races) block_.view_.release(arrivals.known, index_ * warp_size + lane);
    } else {
      arrived_[lane] = {pc, static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(threads),
                        in.op == Opcode::barrier_reduce && read(in[3], lane) != 0};
      at_barrier_ |= 1u << lane;
    }
  });
  if (in.op == Opcode::barrier_arrive) block_.begin_segment();
}

void Warp::release(std::uint32_t lanes, std::uint32_t threads, std::uint32_t satisfied) {
  at_barrier_ &= ~lanes;
  const std::uint32_t pc = arrived_[std::countr_zero(lanes)].pc;
  std::uint32_t together = 0;
  for_lanes(lanes, [&](int lane) {
    const Instruction& in = kernel_.code[arrived_[lane].pc];
    if (in.op == Opcode::barrier_reduce) {
      const auto mode = static_cast<Vote>(in.mode);
      write(in[0], lane, mode == Vote::ballot ? satisfied : mode == Vote::any ? satisfied > 0 : satisfied == threads);
    }
    if (arrived_[lane].pc == pc) {
      together |= 1u << lane;
    } else if (in.aligned) {
      fail("divergent barrier: threads of one warp wait at different instructions", in, lane);
    } else {
      resume(arrived_[lane].pc + 1, 1u << lane);
    }
  });
  resume(pc + 1, together);
}

bool Block::release_barriers() {
  std::uint32_t numbers = 0;
  for (const auto& warp : warps_) {
    for (std::uint32_t lanes = warp->at_barrier(); lanes != 0; lanes &= lanes - 1) {
      numbers |= 1u << warp->arrived(std::countr_zero(lanes)).barrier;
    }
  }
  bool released = false;
  for (; numbers != 0; numbers &= numbers - 1) {
    released = release(static_cast<std::uint32_t>(std::countr_zero(numbers))) || released;
  }
  return released;
}

/// Completes a barrier if all expected threads have arrived. Expects the number of threads that the instructions give,
/// otherwise all threads that have not exited. @returns whether it completed the barrier
bool Block::release(std::uint32_t barrier) {
  Arrivals& arrivals = arrivals_[barrier];
  std::uint32_t waiting = 0, satisfied = 0, expected = arrivals.expected;
  std::vector<std::uint32_t> lanes(warps_.size());
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    for (std::uint32_t left = warps_[w]->at_barrier(); left != 0; left &= left - 1) {
      const int lane = std::countr_zero(left);
      const Warp::Arrived& arrived = warps_[w]->arrived(lane);
      if (arrived.barrier != barrier) continue;
      lanes[w] |= 1u << lane;
      ++waiting;
      satisfied += arrived.predicate;
      expected = std::max(expected, arrived.threads);
    }
  }
  const std::uint32_t threads = waiting + arrivals.threads;
  if (threads != (expected == 0 ? alive_ : expected)) return false;
  if (waiting == alive_ && arrivals.threads == 0) {
    view_.pass_barrier(begin_segment());
  } else {
    order(lanes, arrivals.known);
  }
  arrivals = {};
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    if (lanes[w] != 0) warps_[w]->release(lanes[w], threads, satisfied);
  }
  return true;
}

/// Orders accesses at a barrier. Each thread that waited knows afterwards what all waiting threads, and the threads
/// that have only arrived, did before the barrier.
void Block::order(const std::vector<std::uint32_t>& lanes, const Knowledge& of_arrivals) {
  if (!grid_.look_for_races) return;
  const auto for_threads = [&](auto f) {
    for (std::uint32_t w = 0; w < lanes.size(); ++w) {
      for_lanes(lanes[w], [&](int lane) { f(w * warp_size + static_cast<std::uint32_t>(lane)); });
    }
  };
  Knowledge all = of_arrivals;
  for_threads([&](std::uint32_t thread) { view_.release(all, thread); });
  begin_segment();
  for_threads([&](std::uint32_t thread) { view_.knowledge_of(thread).add(all); });
}

}  // namespace gatefold::cuda_emulator
