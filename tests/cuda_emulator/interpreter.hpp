// Executes the threads of one block.
//
// The lanes of a warp run in lockstep while they are at the same instruction. If they diverge, they become several
// paths. The path at the smallest address runs first, so that paths meet again as soon as possible. If a path runs for
// long while others are ready, the others run, so that a lane may wait for a different lane.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/ptx.hpp"
#include "cuda_emulator/race.hpp"
#include "cuda_emulator/warpgroup.hpp"

namespace gatefold::cuda_emulator {

/// The state that the blocks of one launch share.
struct Grid {
  const Function& kernel;
  const Launch& launch;
  Timeline& timeline;
  Counters& tally;
  bool look_for_races;
  std::vector<char> parameters;
  std::set<std::uint32_t> raced = {};               // instructions for which a race was reported
  std::map<std::uint64_t, Releases> releases = {};  // by address

  Extent position(std::uint64_t block) const;
  std::string thread_name(std::uint64_t block, std::uint32_t thread) const;
};

/// Returns ` at kernel.cu:12`, or the line of PTX if the code was compiled without -lineinfo.
std::string source_position(const Function& kernel, const Instruction& in);

class Block;
class Warp;

/// The state of an mbarrier. Block::mbarriers_ finds it by its address in shared memory.
struct MbarrierState {
  /// An arrival that becomes effective when the earlier copies of its thread have arrived.
  struct Late {
    Warp* warp;
    const Instruction* in;
    int lane;
    std::uint64_t copies;
    std::uint32_t segment;
  };

  void settle();

  std::uint32_t expected = 0, pending = 0;
  std::int64_t bytes = 0;  // bytes that have not arrived yet
  std::uint32_t phase = 0;
  std::vector<Late> late = {};
  Knowledge arriving = {}, known = {};  // of the threads that arrived in this phase, and in the last completed phase
};
struct TensorMap;

class Warp {
 public:
  Warp(Block& block, std::uint32_t index);

  /// Puts all threads at the first instruction.
  void reset();

  bool ready() const { return !ready_.empty(); }

  /// Runs until no lane can continue, a path gives way to other warps, or `budget` instructions are used up. Subtracts
  /// the executed instructions from `budget`.
  void run(std::int64_t& budget);

  /// The barrier at which a lane waits, and the operands of its instruction.
  struct Arrived {
    std::uint32_t pc = 0, barrier = 0, threads = 0;
    bool predicate = false;
  };
  std::uint32_t at_barrier() const { return at_barrier_; }
  std::uint32_t at_collective() const { return at_collective_; }
  std::uint32_t collective_mask(int lane) const { return waiting_[lane].mask; }
  const Arrived& arrived(int lane) const { return arrived_[lane]; }

  /// Lets the lanes that wait at a barrier continue. For .red, they get the number of threads, and the number of
  /// threads with a true predicate.
  void release(std::uint32_t lanes, std::uint32_t threads, std::uint32_t satisfied);

  /// Returns true if the warp waits for products that other warps of its warpgroup have not issued yet.
  bool at_products() const { return at_products_; }
  bool products_issued() const;
  void go_on_with_products() {
    at_products_ = false;
    resume(products_pc_, all_lanes);
  }
  [[noreturn]] void fail_products() const;

  /// @throws Fault always; its message names the instruction at which the lane waits
  [[noreturn]] void fail_waiting(const std::string& what, int lane) const;

 private:
  friend class Block;

  struct Path {
    std::uint32_t pc, lanes;
  };
  /// A cp.async that has not arrived. Its bytes arrive when its thread waits for its group.
  struct Copy {
    const Instruction* in;
    std::uint64_t number;
    std::uint32_t group, bytes;
    std::uint64_t to;  // in shared memory
    char data[16];
  };
  /// The copies of a thread in the order in which it began them, the number of begun copies, and the number of groups.
  struct Copies {
    std::vector<Copy> under_way;
    std::uint64_t begun = 0;
    std::uint32_t groups = 0;
  };
  struct Waiting {
    std::uint32_t pc = 0, mask = 0;
    std::uint64_t value = 0;
    std::uint32_t second = 0, third = 0;
  };

  Path pick();
  void execute(Path path, std::uint32_t limit, std::int64_t& budget);
  void resume(std::uint32_t pc, std::uint32_t lanes) { ready_.push_back({pc, lanes}); }

  /// Lets other warps run before this warp continues.
  void give_way(std::uint32_t pc, std::uint32_t lanes) {
    gave_way_ = true;
    resume(pc, lanes);
  }

  // access.cpp: memory accesses
  using Addresses = std::uint64_t[warp_size];
  using Places = char* [warp_size];
  struct Target {
    const Operand& operand;
    std::int64_t offset;
    Space space;
    std::size_t bytes;
    bool write;
  };
  void locate(const Instruction& in, const Target& target, std::uint32_t lanes, Places& places);
  bool locate_local(std::size_t bytes, const Addresses& addresses, Places& places) const;
  void locate_global(const Instruction& in, const Target& target, std::uint32_t lanes, const Addresses& addresses,
                     Places& places);
  void locate_shared(const Instruction& in, const Target& target, std::uint32_t lanes, const Addresses& addresses,
                     Places& places);
  void locate_own(const Instruction& in, const Target& target, std::uint32_t lanes, const Addresses& addresses,
                  Places& places);
  void locate_generic(const Instruction& in, const Target& target, std::uint32_t lanes, Addresses& addresses,
                      Places& places);
  Allocation& allocation(const Instruction& in, const Target& target, int lane, std::uint64_t address);
  /// An access, with the values that a report names.
  struct Touch {
    const Instruction& in;
    bool shared, write;
    std::uint64_t address;
    std::size_t bytes;
    int lane;
  };
  Stamp stamp(const Instruction& in, int lane, std::uint32_t segment) const;
  Access access(const Instruction& in, bool shared, bool write, std::uint32_t segment) const;
  void record(CellArray& cells, std::size_t offset, const Touch& touch) { record(cells, offset, touch, segment_now()); }
  void record(CellArray& cells, std::size_t offset, const Touch& touch, std::uint32_t segment);
  std::uint32_t segment_now() const;
  void report_race(const std::string& what, const Touch& touch, Stamp earlier);
  void check_shared(const Instruction& in, std::uint64_t address, std::size_t bytes, int lane, bool write) const;
  [[noreturn]] void fail_alignment(const Instruction& in, std::uint64_t address, std::size_t bytes, int lane) const;
  Release release_of(int lane) const;
  void acquire(const Releases& releases, int lane);
  void synchronise(const Instruction& in, std::uint64_t address, int lane, bool write);
  void fence(std::uint32_t lanes);
  void fence_proxy(std::uint32_t lanes);
  void load(const Instruction& in, std::uint32_t lanes);
  void store(const Instruction& in, std::uint32_t lanes);
  void atomic(const Instruction& in, std::uint32_t lanes);
  void copy_async(const Instruction& in, std::uint32_t lanes);
  void copy_wait(const Instruction& in, std::uint32_t lanes);
  void copy_bulk(const Instruction& in, std::uint32_t lanes);
  void deliver(const Copy& copy, int lane, std::uint32_t segment);
  void begin_bulk_copy(const Instruction& in, int lane, std::uint64_t to, std::uint64_t barrier,
                       std::vector<char> data);
  void expect_no_bulk_copy() const;
  TensorMap tensor_map(const Instruction& in, int lane);
  void read_global(const Instruction& in, int lane, std::uint64_t address, std::size_t bytes, char* to);
  void copy_tensor(const Instruction& in, std::uint32_t lanes);
  void cvta(const Instruction& in, std::uint32_t lanes);
  void isspacep(const Instruction& in, std::uint32_t lanes);

  // control flow
  void branch_indexed(const Instruction& in, std::uint32_t lanes);
  void call(const Instruction& in, std::uint32_t lanes);
  void function_return(const Instruction& in, std::uint32_t lanes);
  void exit(std::uint32_t lanes);
  [[noreturn]] void assertion(const Instruction& in, int lane);
  void arrive(const Instruction& in, std::uint32_t pc, std::uint32_t lanes);

  // mbarrier.cpp
  bool mbarrier(const Instruction& in, std::uint32_t lanes);
  void arrive(MbarrierState& barrier, std::uint32_t count, const Instruction& in, int lane);

  // collective.cpp
  void gather(const Instruction& in, std::uint32_t pc, std::uint32_t lanes);
  std::uint32_t complete_collectives();
  void finish(std::uint32_t lanes);
  std::string missing_lanes() const;
  std::uint64_t result_of(const Instruction& in, int lane, std::uint32_t lanes, bool& predicate) const;

  // warp_matrix.cpp: instructions that all lanes execute together
  bool execute_together(const Instruction& in, std::uint32_t pc);
  void load_matrix(const Instruction& in);
  void multiply_matrices(const Instruction& in);

  // warpgroup.cpp
  Warpgroup& warpgroup() const;
  void issue_product(const Instruction& in);
  void check_matrices(const Product& product) const;
  void check_order(const Product& product);
  std::uint64_t awaited_products(const Instruction& in) const;
  bool wait_for_products(const Instruction& in, std::uint32_t pc);
  void finish_product(std::uint64_t number);
  void collect_products(std::uint64_t end);

  std::uint64_t read(const Operand& operand, int lane) const {
    if (operand.bits == 1) return read_predicate(registers_.get(), operand) >> lane & 1;
    return operand.wide() ? read_lane<std::uint64_t>(registers_.get() + operand.row, lane)
                          : read_lane<std::uint32_t>(registers_.get() + operand.row, lane);
  }
  void write(const Operand& operand, int lane, std::uint64_t value) {
    if (operand.bits == 1) {
      write_predicate(registers_.get(), operand, static_cast<std::uint32_t>(value) << lane, 1u << lane);
    } else if (operand.wide()) {
      write_lane(registers_.get() + operand.row, lane, value);
    } else {
      write_lane(registers_.get() + operand.row, lane, static_cast<std::uint32_t>(value));
    }
  }
  char* local(int lane) const { return local_.get() + static_cast<std::size_t>(lane) * local_bytes_; }

  [[noreturn]] void fail(const std::string& what, const Instruction& in, int lane) const;

  Block& block_;
  const Function& kernel_;
  std::uint32_t index_, existing_, alive_ = 0;
  std::unique_ptr<char[]> registers_, local_;
  std::size_t local_bytes_;
  std::vector<Path> ready_;
  int steps_ahead_ = 0;    // for how many steps paths have run while others were ready
  bool gave_way_ = false;  // a path waits for a different warp
  std::uint32_t at_collective_ = 0, at_barrier_ = 0;
  std::uint32_t fenced_ = 0;         // lanes that have executed a fence ...
  Release before_fence_[warp_size];  // ... and what they release with a later store
  Releases seen_[warp_size];         // releases read by strong loads, which a fence acquires
  Copies copies_[warp_size];
  std::uint64_t issued_ = 0;              // number of products
  std::vector<std::uint64_t> committed_;  // number of products issued before each commit
  bool products_fenced_ = false, at_products_ = false;
  std::uint32_t products_pc_ = 0;
  Waiting waiting_[warp_size];
  Arrived arrived_[warp_size];
};

class Block {
 public:
  explicit Block(Grid& grid);

  void start(std::uint64_t number);

  /// @returns true if all threads have ended; false if a thread has executed nanosleep or the block has run for long
  bool run();

 private:
  friend class Warp;

  static constexpr std::uint32_t barriers = 16;

  /// Threads that have arrived at a barrier without waiting (bar.arrive).
  struct Arrivals {
    std::uint32_t threads = 0, expected = 0;
    Knowledge known = {};
  };

  /// A bulk copy that has not arrived, and the thread that began it. Its bytes arrive when a thread waits at its
  /// mbarrier.
  struct BulkCopy {
    const Instruction* in;
    std::uint32_t thread;
    std::uint64_t to, barrier;  // in shared memory
    std::vector<char> data;
    Knowledge known;  // what its thread knew
  };
  void deliver_bulk_copies(std::uint64_t barrier);
  std::string missing_bytes() const;

  bool release_barriers();
  bool release(std::uint32_t barrier);
  void order(const std::vector<std::uint32_t>& lanes, const Knowledge& of_arrivals);
  void arrive_late(MbarrierState& barrier);
  bool release_warpgroups();
  [[noreturn]] void fail_deadlocked();
  std::uint32_t begin_segment() { return view_.segment = grid_.timeline.begin_segment(view_.block); }

  Grid& grid_;
  std::uint64_t number_ = 0;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<char> shared_;
  CellArray shared_cells_;
  Arrivals arrivals_[barriers];
  std::map<std::uint64_t, MbarrierState> mbarriers_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<BulkCopy> bulk_copies_;
  Viewpoint view_;
  std::uint32_t alive_ = 0;
  bool sleeping_ = false;
  int fruitless_waits_ = 0;  // consecutive waits at mbarriers in vain since the block began or continued to run
  std::int64_t executed_ = 0;
};

}  // namespace gatefold::cuda_emulator
