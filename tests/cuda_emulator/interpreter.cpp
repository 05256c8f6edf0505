#include "cuda_emulator/interpreter.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

constexpr std::uint32_t nowhere = ~0u;
constexpr int patience = 1 << 16;  // the most instructions of a path while other paths are ready

}  // namespace

// --------------------------------------------------------------------------------------------------------------- warps

Warp::Warp(Block& block, std::uint32_t index)
    : block_(block), kernel_(block.grid_.kernel), index_(index), local_bytes_(kernel_.local_bytes) {
  const Launch& launch = block.grid_.launch;
  const auto threads = static_cast<std::uint32_t>(launch.block.volume());
  const std::uint32_t first = index * warp_size, count = std::min<std::uint32_t>(threads - first, warp_size);
  existing_ = count == warp_size ? all_lanes : (1u << count) - 1;
  registers_ = std::make_unique<char[]>(kernel_.file_bytes);
  std::memset(registers_.get(), 0xBA, kernel_.registers_bytes);  // registers that are not written have no meaning
  if (local_bytes_ > 0) local_ = std::make_unique<char[]>(local_bytes_ * warp_size);
  for (const Function::Constant& constant : kernel_.constants) {
    const Operand operand{constant.row, constant.bits};
    for (int lane = 0; lane < warp_size; ++lane) {
      if (constant.bits == 1) {
        write_predicate(registers_.get(), operand, static_cast<std::uint32_t>(constant.value), all_lanes);
      } else {
        write(operand, lane, constant.value);
      }
    }
  }
}

void Warp::reset() {
  using Special = Function::Special;
  const Launch& launch = block_.grid_.launch;
  const Extent extent = launch.block, here = block_.grid_.position(block_.number_);
  for (const Function::SpecialRow& row : kernel_.specials) {
    for (int lane = 0; lane < warp_size; ++lane) {
      const std::uint32_t thread = index_ * warp_size + lane, bit = 1u << lane;
      std::uint32_t value = 0;
      switch (row.special) {
        case Special::tid_x:
          value = thread % extent.x;
          break;
        case Special::tid_y:
          value = thread / extent.x % extent.y;
          break;
        case Special::tid_z:
          value = thread / extent.x / extent.y;
          break;
        case Special::ntid_x:
          value = extent.x;
          break;
        case Special::ntid_y:
          value = extent.y;
          break;
        case Special::ntid_z:
          value = extent.z;
          break;
        case Special::ctaid_x:
          value = here.x;
          break;
        case Special::ctaid_y:
          value = here.y;
          break;
        case Special::ctaid_z:
          value = here.z;
          break;
        case Special::nctaid_x:
          value = launch.grid.x;
          break;
        case Special::nctaid_y:
          value = launch.grid.y;
          break;
        case Special::nctaid_z:
          value = launch.grid.z;
          break;
        case Special::laneid:
          value = lane;
          break;
        case Special::warpid:
          value = index_;
          break;
        case Special::nwarpid:
          value = 32;
          break;
        case Special::smid:
          value = 0;
          break;
        case Special::nsmid:
          value = 1;
          break;
        case Special::lanemask_eq:
          value = bit;
          break;
        case Special::lanemask_lt:
          value = bit - 1;
          break;
        case Special::lanemask_le:
          value = bit | (bit - 1);
          break;
        case Special::lanemask_gt:
          value = ~(bit | (bit - 1));
          break;
        case Special::lanemask_ge:
          value = ~(bit - 1);
          break;
        case Special::dynamic_smem_size:
          value = static_cast<std::uint32_t>(launch.shared_bytes);
          break;
        case Special::total_smem_size:
          value = static_cast<std::uint32_t>(kernel_.shared_bytes + launch.shared_bytes);
          break;
      }
      write({row.row, 32}, lane, value);
    }
  }
  if (local_) std::memset(local_.get(), 0xCB, local_bytes_ * warp_size);
  alive_ = existing_;
  ready_.assign(1, {0, existing_});
  at_collective_ = at_barrier_ = fenced_ = 0;
  for (Releases& seen : seen_) seen.clear();
  for (Copies& copies : copies_) {
    copies.under_way.clear();
    copies.groups = 0;
  }
  issued_ = 0;
  committed_.clear();
  products_fenced_ = at_products_ = false;
  steps_ahead_ = 0;
}

/// Takes the path to run: the one at the smallest address, or the one at the largest address if that has waited for too
/// long.
Warp::Path Warp::pick() {
  auto behind = [](const Path& a, const Path& b) { return a.pc < b.pc; };
  const bool starved = steps_ahead_ > patience;
  if (starved) steps_ahead_ = 0;
  const auto chosen = starved ? std::max_element(ready_.begin(), ready_.end(), behind)
                              : std::min_element(ready_.begin(), ready_.end(), behind);
  Path path = *chosen;
  std::erase_if(ready_, [&](const Path& other) {
    if (other.pc == path.pc) path.lanes |= other.lanes;
    return other.pc == path.pc;
  });
  return path;
}

void Warp::run(std::int64_t& budget) {
  for (gave_way_ = false; !ready_.empty() && budget > 0 && !gave_way_;) {
    const Path path = pick();
    std::uint32_t limit = nowhere;
    for (const Path& other : ready_) {
      if (other.pc > path.pc) limit = std::min(limit, other.pc);
    }
    execute(path, limit, budget);
  }
}

/// Runs one path until it ends, waits, splits or reaches `limit`, the address of a different path.
void Warp::execute(Path path, std::uint32_t limit, std::int64_t& budget) {
  char* registers = registers_.get();
  std::uint32_t pc = path.pc;
  const std::uint32_t lanes = path.lanes;
  Counters& tally = block_.grid_.tally;
  for (;; ++pc) {
    if (pc >= limit || budget <= 0) return resume(pc, lanes);
    if (!ready_.empty() && ++steps_ahead_ > patience) return resume(pc, lanes);
    const Instruction& in = kernel_.code[pc];
    std::uint32_t active = lanes;
    if (in.guard != Operand::none) {
      const auto guard = read_lane<std::uint32_t>(registers + in.guard, 0);
      active &= in.negative ? ~guard : guard;
    }
    --budget;
    tally.instructions += count_lanes(active);
    if (active == 0) continue;
    const std::uint32_t others = lanes & ~active;
    switch (in.op) {
      case Opcode::arithmetic:
        in.execute(registers, in, active);
        break;
      case Opcode::load:
        load(in, active);
        break;
      case Opcode::store:
        store(in, active);
        break;
      case Opcode::atomic:
        atomic(in, active);
        break;
      case Opcode::branch:
        if (others != 0) {
          resume(pc + 1, others);
          return resume(in.target, active);
        }
        pc = in.target - 1;
        break;
      case Opcode::nothing:
        if (in.mode) {
          block_.sleeping_ = true;
          return give_way(pc + 1, lanes);
        }
        break;
      case Opcode::fence:
        fence(active);
        break;
      case Opcode::proxy_fence:
        fence_proxy(active);
        break;
      case Opcode::cvta:
        cvta(in, active);
        break;
      case Opcode::isspacep:
        isspacep(in, active);
        break;
      case Opcode::activemask:
      case Opcode::clock:
        for_lanes(active,
                  [&](int lane) { write(in[0], lane, in.op == Opcode::activemask ? active : tally.instructions); });
        break;
      case Opcode::copy_async:
        copy_async(in, active);
        break;
      case Opcode::copy_commit:
        for_lanes(active, [&](int lane) { ++copies_[lane].groups; });
        break;
      case Opcode::copy_wait:
        copy_wait(in, active);
        break;
      case Opcode::copy_bulk:
        copy_bulk(in, active);
        break;
      case Opcode::copy_tensor:
        copy_tensor(in, active);
        break;
      case Opcode::mbarrier:
        if (!mbarrier(in, active)) return give_way(pc + 1, lanes);
        break;
      case Opcode::load_matrix:
      case Opcode::multiply_matrices:
      case Opcode::product_fence:
      case Opcode::product:
      case Opcode::product_commit:
      case Opcode::product_wait:
        if (active == all_lanes) {
          if (!execute_together(in, pc)) return;
          break;
        }
        [[fallthrough]];  // these lanes wait for the other lanes of the warp
      case Opcode::warp_barrier:
      case Opcode::shuffle:
      case Opcode::vote:
      case Opcode::match:
      case Opcode::reduce:
      case Opcode::elect:
        gather(in, pc, active);
        if (complete_collectives() == active && others == 0 && ready_.back().pc == pc + 1 &&
            ready_.back().lanes == active) {
          ready_.pop_back();  // all lanes of the path: continues without choosing a different path
          break;
        }
        if (others != 0) resume(pc + 1, others);
        return;
      case Opcode::barrier_arrive:
        arrive(in, pc, active);
        break;
      case Opcode::barrier:
      case Opcode::barrier_reduce:
        arrive(in, pc, active);
        if (others != 0) resume(pc + 1, others);
        return;
      case Opcode::branch_indexed:
        branch_indexed(in, active);
        if (others != 0) resume(pc + 1, others);
        return;
      case Opcode::call:
        call(in, active);
        if (others != 0) resume(pc + 1, others);
        return;
      case Opcode::function_return:
        function_return(in, active);
        if (others != 0) resume(pc + 1, others);
        return;
      case Opcode::exit:
        if (others != 0) resume(pc + 1, others);
        return exit(active);
      case Opcode::trap:
        fail("trap", in, std::countr_zero(active));
      case Opcode::assertion:
        assertion(in, std::countr_zero(active));
      case Opcode::refused:
        fail("refused: " + std::string(kernel_.sources[in.source].refusal_reason), in, std::countr_zero(active));
    }
  }
}

void Warp::branch_indexed(const Instruction& in, std::uint32_t lanes) {
  const auto& table = kernel_.branch_tables[in.target];
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t index = read(in[0], lane);
    if (index >= table.size()) {
      fail("branch index " + std::to_string(index) + " beyond a table of " + std::to_string(table.size()), in, lane);
    }
    resume(table[index], 1u << lane);
  });
}

void Warp::call(const Instruction& in, std::uint32_t lanes) {
  const Function::Call& record = kernel_.calls[in.target];
  for_lanes(lanes, [&](int lane) {
    for (const Function::Copy& copy : record.arguments)
      std::memcpy(local(lane) + copy.to, local(lane) + copy.from, copy.bytes);
    write({record.return_row, 32}, lane, in.target);
  });
  resume(record.target, lanes);
}

void Warp::function_return(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const Function::Call& record = kernel_.calls[read(in[0], lane)];
    for (const Function::Copy& copy : record.results)
      std::memcpy(local(lane) + copy.to, local(lane) + copy.from, copy.bytes);
    resume(record.resume, 1u << lane);
  });
}

void Warp::exit(std::uint32_t lanes) {
  for_lanes(at_barrier_, [&](int lane) {
    const bool aligned = kernel_.code[arrived_[lane].pc].aligned;
    if (aligned) fail_waiting("divergent barrier: threads of the warp exit without it", lane);
  });
  alive_ &= ~lanes;
  block_.alive_ -= static_cast<std::uint32_t>(std::popcount(lanes));
  if (at_collective_ != 0) complete_collectives();  // the collectives no longer wait for these lanes
  if (block_.alive_ == 0) expect_no_bulk_copy();
}

void Warp::assertion(const Instruction& in, int lane) {
  const Function::Call& record = kernel_.calls[in.target];
  auto argument = [&](std::size_t i) {
    std::uint64_t value = 0;
    if (i < record.arguments.size()) {
      std::memcpy(&value, local(lane) + record.arguments[i].from, std::min<std::size_t>(record.arguments[i].bytes, 8));
    }
    return value;
  };
  auto text = [&](std::size_t i) {
    const auto* characters = reinterpret_cast<const char*>(argument(i));
    return std::string(Memory::device().contains(characters, 1) ? characters : "?");
  };
  fail("assertion failed: " + text(0) + " (" + text(1) + ":" + std::to_string(argument(2)) + ")", in, lane);
}

void Warp::fail(const std::string& what, const Instruction& in, int lane) const {
  const Source& source = kernel_.sources[in.source];
  throw Fault(what + ": " + std::string(source.text) + source_position(kernel_, in) + " in kernel " +
              demangled(kernel_.name) + ", " + block_.grid_.thread_name(block_.number_, index_ * warp_size + lane));
}

void Warp::fail_waiting(const std::string& what, int lane) const {
  const bool barrier = at_barrier_ >> lane & 1;
  fail(what, kernel_.code[barrier ? arrived_[lane].pc : waiting_[lane].pc], lane);
}

// -------------------------------------------------------------------------------------------------------------- blocks

Block::Block(Grid& grid) : grid_(grid) {
  const Launch& launch = grid.launch;
  const std::size_t shared =
      launch.shared_bytes > 0 ? grid.kernel.dynamic_shared + launch.shared_bytes : grid.kernel.shared_bytes;
  shared_.resize(shared);
  if (grid.look_for_races) shared_cells_ = CellArray(shared + 1);
  const std::uint64_t warps = (launch.block.volume() + warp_size - 1) / warp_size;
  for (std::uint32_t i = 0; i < warps; ++i) warps_.push_back(std::make_unique<Warp>(*this, i));
  warpgroups_.resize((warps + Warpgroup::warps - 1) / Warpgroup::warps);
  view_.timeline = &grid.timeline;
  view_.threads = static_cast<std::uint32_t>(launch.block.volume());
}

void Block::start(std::uint64_t number) {
  number_ = number;
  std::fill(shared_.begin(), shared_.end(), static_cast<char>(0xCB));
  std::fill(std::begin(arrivals_), std::end(arrivals_), Arrivals{});
  mbarriers_.clear();
  std::fill(warpgroups_.begin(), warpgroups_.end(), Warpgroup{});
  bulk_copies_.clear();
  alive_ = static_cast<std::uint32_t>(grid_.launch.block.volume());
  executed_ = 0;
  view_.block = static_cast<std::uint32_t>(number);
  view_.acquired.clear();
  view_.begun = view_.barrier = begin_segment();
  std::fill(std::begin(view_.warp_barrier), std::end(view_.warp_barrier), view_.begun);
  for (const auto& warp : warps_) warp->reset();
  ++grid_.tally.blocks;
}

bool Block::run() {
  constexpr std::int64_t turn = 1 << 14;      // instructions of a warp
  constexpr std::int64_t long_run = 1 << 22;  // instructions of a block before other blocks run
  view_.resumed = begin_segment();
  sleeping_ = false;
  fruitless_waits_ = 0;
  for (std::int64_t spent = 0;;) {
    bool ran = false;
    for (const auto& warp : warps_) {
      if (!warp->ready()) continue;
      std::int64_t budget = turn;
      warp->run(budget);
      spent += turn - budget;
      ran = true;
    }
    if (alive_ == 0) return true;
    const bool barriers = release_barriers(), warpgroups = release_warpgroups();
    if (!ran && !barriers && !warpgroups) fail_deadlocked();
    if (executed_ + spent > options().longest_block) fail_deadlocked();
    if (sleeping_ || spent > long_run) {
      executed_ += spent;
      return false;
    }
  }
}

void Block::fail_deadlocked() {
  int at_barrier = 0, at_collective = 0, running = 0;
  const Warp* first = nullptr;
  int first_lane = 0;
  for (const auto& warp : warps_) {
    if (warp->at_products() && !warp->ready()) warp->fail_products();
    at_barrier += std::popcount(warp->at_barrier());
    at_collective += std::popcount(warp->at_collective());
    running += warp->ready();
    // The message should name a collective that never completes, not the barrier that the other lanes have reached.
    const std::uint32_t waiting = warp->at_collective() != 0 ? warp->at_collective() : warp->at_barrier();
    if (waiting != 0 && (first == nullptr || (warp->at_collective() != 0 && first->at_collective() == 0))) {
      first = warp.get();
      first_lane = std::countr_zero(waiting);
    }
  }
  if (running > 0 || first == nullptr) {
    throw Fault("livelock: block runs without an end" + missing_bytes() + " in kernel " + demangled(grid_.kernel.name) +
                ", " + grid_.thread_name(number_, 0));
  }
  std::string what = "deadlock: of " + std::to_string(alive_) + " threads " + std::to_string(at_barrier) +
                     " wait at a barrier and " + std::to_string(at_collective) +
                     " in a warp for lanes that do not come";
  if (first->at_collective() != 0) what += " (mask " + hexadecimal(first->collective_mask(first_lane)) + ")";
  first->fail_waiting(what, first_lane);
}

// ----------------------------------------------------------------------------------------------------------------
// names

Extent Grid::position(std::uint64_t block) const {
  const Extent& grid = launch.grid;
  return {static_cast<std::uint32_t>(block % grid.x), static_cast<std::uint32_t>(block / grid.x % grid.y),
          static_cast<std::uint32_t>(block / grid.x / grid.y)};
}

std::string Grid::thread_name(std::uint64_t block, std::uint32_t thread) const {
  auto triple = [](std::uint64_t x, std::uint64_t y, std::uint64_t z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
  };
  const Extent here = position(block), extent = launch.block;
  return "block " + triple(here.x, here.y, here.z) + ", thread " +
         triple(thread % extent.x, thread / extent.x % extent.y, thread / extent.x / extent.y);
}

std::string source_position(const Function& kernel, const Instruction& in) {
  const Source& source = kernel.sources[in.source];
  auto name = [&](const Line& line) {
    const auto file = kernel.module->files.find(line.file);
    return (file == kernel.module->files.end() ? "?" : file->second) + ":" + std::to_string(line.line);
  };
  if (source.line.line == 0) return " at PTX line " + std::to_string(source.ptx_line);
  return " at " + name(source.line) + (source.inlined_at.line == 0 ? "" : ", inlined at " + name(source.inlined_at));
}

}  // namespace gatefold::cuda_emulator
