// The memory of the emulated devices: which addresses are alive, and who has touched them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulator/race.hpp"

namespace gatefold::cuda_emulator {

/// Of memory that every device may access: variables of a module, pinned memory.
inline constexpr int any_device = -1;

/// One range of addresses that kernels may access. Its cells remember the accesses, for the detection of races; they
/// are made by the first kernel that touches the range.
struct Allocation {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  std::size_t mapped = 0;  // bytes mapped at base; 0 for memory that somebody else owns
  int device = any_device;
  CellArray cells = {};

  bool belongs_to(int of) const { return device == of || device == any_device || of == any_device; }
  bool contains(std::uintptr_t address, std::size_t bytes) const {
    return address - base < size && bytes <= size - (address - base);
  }
};

/// All live allocations. Device addresses are host addresses, so that a fault in the emulator is a fault in the host's
/// sanitizers too.
struct Memory {
  static Memory& device();

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// @returns bytes poisoned with 0xCB and aligned to 256, or nullptr where `fail_at` says so or the host has no more
  void* allocate(std::size_t bytes, int device = 0);

  /// Address space without contents: pages exist once they are touched, so that arrays beyond 2^31 elements cost what
  /// is used of them. Reads as zero.
  void* reserve(std::size_t bytes);

  /// @returns whether `pointer` was the start of a live allocation
  bool release(void* pointer);

  /// Whether [pointer, pointer + bytes) lies within one live allocation or module variable.
  bool contains(const void* pointer, std::size_t bytes, int device = any_device) const;

  /// The device whose memory holds `pointer`, or any_device.
  int device_of(const void* pointer) const;

  /// The nth allocation from now fails, counted from 0; -1: none does.
  void fail_at(long nth) { countdown_ = nth; }

  /// Allocations alive, and their bytes. Module variables do not count.
  std::size_t live() const;
  std::size_t live_bytes() const;
  std::size_t live_bytes_of(int device) const;

  /// The largest live_bytes() since reset_peak().
  std::size_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_bytes_; }

  /// Lets kernels access memory that the caller owns: a variable of a module, pinned memory of the host.
  void add_global(void* pointer, std::size_t bytes);
  void remove_global(void* pointer);

  /// Forgets all accesses.
  void clear_cells();

  /// The allocation that holds the whole range, or nullptr. `hint` is where the last search ended.
  Allocation* find(std::uintptr_t address, std::size_t bytes, std::uint32_t& hint) {
    if (hint < table_.size() && table_[hint].contains(address, bytes)) return &table_[hint];
    return search(address, bytes, hint);
  }

  /// `64 bytes past the end of an allocation of 400 bytes`: where an address lies that no allocation holds.
  std::string describe(std::uintptr_t address) const;

 private:
  Allocation* search(std::uintptr_t address, std::size_t bytes, std::uint32_t& hint);
  void* map(std::size_t bytes, int device);
  void insert(Allocation allocation);
  bool erase(std::uintptr_t base, bool owned);

  std::vector<Allocation> table_;  // sorted by address
  long countdown_ = -1;
  std::size_t live_ = 0, live_bytes_ = 0, peak_ = 0;
};

}  // namespace gatefold::cuda_emulator
