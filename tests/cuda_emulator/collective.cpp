// Instructions that the lanes of a warp execute together: shuffles, votes, matches, reductions, and the barrier of a
// warp.
//
// A collective completes when all lanes of its mask that have not exited wait at it. They may wait at different
// instructions of the same kind, as independent threads do. Instructions of the whole warp need all lanes at the same
// instruction.
#include <algorithm>
#include <bit>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

/// The positions of the inputs of a collective among its operands.
struct Inputs {
  int value, second, third, mask;  // -1: none
};

Inputs inputs_of(Opcode op) {
  switch (op) {
    case Opcode::shuffle:
      return {2, 3, 4, 5};
    case Opcode::vote:
      return {1, -1, -1, 2};
    case Opcode::match:
      return {2, -1, -1, 3};
    case Opcode::reduce:
      return {1, -1, -1, 2};
    case Opcode::elect:
      return {-1, -1, -1, 2};
    default:
      return {-1, -1, -1, of_whole_warp(op) ? -1 : 0};
  }
}

std::uint32_t reduced(Update operation, bool is_signed, std::uint32_t a, std::uint32_t b) {
  const bool smaller = is_signed ? static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) : a < b;
  switch (operation) {
    case Update::add:
      return a + b;
    case Update::minimum:
      return smaller ? a : b;
    case Update::maximum:
      return smaller ? b : a;
    case Update::conjunction:
      return a & b;
    case Update::disjunction:
      return a | b;
    default:
      return a ^ b;
  }
}

}  // namespace

void Warp::gather(const Instruction& in, std::uint32_t pc, std::uint32_t lanes) {
  const Inputs inputs = inputs_of(in.op);
  for_lanes(lanes, [&](int lane) {
    auto input = [&](int i) { return i < 0 ? 0 : read(in[static_cast<std::size_t>(i)], lane); };
    Waiting& waiting = waiting_[lane];
    waiting = {pc, inputs.mask < 0 ? all_lanes : static_cast<std::uint32_t>(input(inputs.mask)), input(inputs.value),
               static_cast<std::uint32_t>(input(inputs.second)), static_cast<std::uint32_t>(input(inputs.third))};
    if (in.type.bits < 64) waiting.value &= 0xffffffff;
    if (!(waiting.mask >> lane & 1))
      fail("wrong mask: a lane is not in its own mask " + hexadecimal(waiting.mask), in, lane);
  });
  at_collective_ |= lanes;
}

/// Completes each collective at which all lanes have arrived, and makes its lanes ready again.
/// @returns the lanes of the completed collectives
std::uint32_t Warp::complete_collectives() {
  std::uint32_t completed = 0;
  for (std::uint32_t left = at_collective_; left != 0;) {
    const int first = std::countr_zero(left);
    const std::uint32_t mask = waiting_[first].mask, lanes = mask & alive_;
    left &= ~(1u << first);
    const Instruction& in = kernel_.code[waiting_[first].pc];
    if (of_whole_warp(in.op) && alive_ != all_lanes) fail(missing_lanes(), in, first);
    if ((lanes & ~at_collective_) != 0) continue;  // some lanes have not arrived
    for_lanes(lanes, [&](int lane) {
      const Instruction& other = kernel_.code[waiting_[lane].pc];
      if (waiting_[lane].mask != mask) {
        fail("wrong mask: lanes of one collective name " + hexadecimal(mask) + " and " +
                 hexadecimal(waiting_[lane].mask),
             other, lane);
      }
      if (other.op != in.op || other.mode != in.mode || (of_whole_warp(in.op) && &other != &in)) {
        fail("mismatch: lanes of mask " + hexadecimal(mask) + " wait in " +
                 std::string(kernel_.sources[in.source].text) + " and here",
             other, lane);
      }
    });
    finish(lanes);
    completed |= lanes;
    left &= ~lanes;
  }
  return completed;
}

std::string Warp::missing_lanes() const {
  return "the instruction needs all 32 lanes of its warp, and " + std::to_string(std::popcount(~alive_)) +
         " of them have exited or do not exist";
}

void Warp::finish(std::uint32_t lanes) {
  const int first = std::countr_zero(lanes);
  const std::uint32_t pc = waiting_[first].pc;
  if (of_whole_warp(kernel_.code[pc].op)) {
    at_collective_ &= ~lanes;
    if (execute_together(kernel_.code[pc], pc)) resume(pc + 1, lanes);
    return;
  }
  if (kernel_.code[pc].op == Opcode::warp_barrier) {
    block_.view_.pass_warp_barrier(index_, lanes, block_.begin_segment());
  }
  std::uint32_t together = 0;
  std::uint64_t result = 0;
  bool predicate = false;
  for_lanes(lanes, [&](int lane) {
    const Instruction& in = kernel_.code[waiting_[lane].pc];
    if (in.op != Opcode::warp_barrier) {
      const bool same_for_all = in.op == Opcode::vote || in.op == Opcode::reduce;
      if (!same_for_all || lane == first) result = result_of(in, lane, lanes, predicate);
      write(in[0], lane, result);
      if (in.op == Opcode::shuffle || in.op == Opcode::match || in.op == Opcode::elect) write(in[1], lane, predicate);
    }
    if (waiting_[lane].pc == pc) {
      together |= 1u << lane;
    } else {
      resume(waiting_[lane].pc + 1, 1u << lane);
    }
  });
  at_collective_ &= ~lanes;
  resume(pc + 1, together);
}

std::uint64_t Warp::result_of(const Instruction& in, int lane, std::uint32_t lanes, bool& predicate) const {
  const Waiting& mine = waiting_[lane];
  auto agreeing = [&](std::uint64_t value) {
    std::uint32_t set = 0;
    for_lanes(lanes, [&](int other) { set |= static_cast<std::uint32_t>(waiting_[other].value == value) << other; });
    return set;
  };
  switch (in.op) {
    case Opcode::shuffle: {
      // The names are those of the PTX ISA: b is the lane or distance; c holds the clamp and, from bit 8, the mask of
      // the segment.
      const int b = mine.second & 31, clamp = mine.third & 31, segment = mine.third >> 8 & 31;
      const int greatest = (lane & segment) | (clamp & ~segment), least = lane & segment;
      int source = 0;
      switch (static_cast<Shuffle>(in.mode)) {
        case Shuffle::up:
          source = lane - b;
          break;
        case Shuffle::down:
          source = lane + b;
          break;
        case Shuffle::butterfly:
          source = lane ^ b;
          break;
        case Shuffle::index:
          source = least | (b & ~segment);
          break;
      }
      predicate = static_cast<Shuffle>(in.mode) == Shuffle::up ? source >= greatest : source <= greatest;
      if (!predicate) source = lane;
      constexpr std::uint32_t undefined = 0xdeadbeef;  // the result for a lane that does not take part
      return lanes >> source & 1 ? waiting_[source].value : undefined;
    }
    case Opcode::vote: {
      const std::uint32_t ballot = agreeing(1);
      switch (static_cast<Vote>(in.mode)) {
        case Vote::all:
          return ballot == lanes;
        case Vote::any:
          return ballot != 0;
        case Vote::uniform:
          return ballot == lanes || ballot == 0;
        default:
          return ballot;
      }
    }
    case Opcode::match: {
      const std::uint32_t equal = agreeing(mine.value);
      if (static_cast<Match>(in.mode) == Match::any) return equal;
      predicate = equal == lanes;
      return predicate ? lanes : 0;
    }
    case Opcode::reduce: {
      std::uint32_t rest = lanes & (lanes - 1);
      auto result = static_cast<std::uint32_t>(waiting_[std::countr_zero(lanes)].value);
      for_lanes(rest, [&](int other) {
        result = reduced(static_cast<Update>(in.mode), in.type.kind == Kind::signed_integer, result,
                         static_cast<std::uint32_t>(waiting_[other].value));
      });
      return result;
    }
    default: {  // elect
      const int leader = std::countr_zero(lanes);
      predicate = lane == leader;
      return static_cast<std::uint64_t>(leader);
    }
  }
}

}  // namespace gatefold::cuda_emulator
