// The memory of the emulated devices: live addresses, and the accesses to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulator/race.hpp"

namespace gatefold::cuda_emulator {

/// The device of memory that every device may access: variables of a module, pinned memory.
inline constexpr int any_device = -1;

/// One range of addresses that kernels may access. Its cells record the accesses, to detect races. The cells are made
/// when the first kernel accesses the range.
struct Allocation {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  std::size_t mapped = 0;  // bytes mapped at base; 0 for memory that the program owns
  int device = any_device;
  CellArray cells = {};

  bool belongs_to(int of) const { return device == of || device == any_device || of == any_device; }
  bool contains(std::uintptr_t address, std::size_t bytes) const {
    return address - base < size && bytes <= size - (address - base);
  }
};

/// All live allocations. Device addresses are host addresses, so the sanitizers of the host also detect mistakes of the
/// emulator.
struct Memory {
  static Memory& device();

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// @returns memory that is poisoned with 0xCB and aligned to 256 bytes, or nullptr if `fail_at` lets the allocation
  ///         fail or the host has no more memory
  void* allocate(std::size_t bytes, int device = 0);

  /// Reserves address space without contents. A page uses memory only after it is touched, so that arrays with more
  /// than 2^31 elements are possible. It reads as zero.
  void* reserve(std::size_t bytes);

  /// @returns whether `pointer` was the start of a live allocation
  bool release(void* pointer);

  /// Returns true if [pointer, pointer + bytes) is in one live allocation or module variable.
  bool contains(const void* pointer, std::size_t bytes, int device = any_device) const;

  /// Returns the device whose memory holds `pointer`, or any_device.
  int device_of(const void* pointer) const;

  /// Lets the nth allocation from now fail; n counts from 0. With -1, none fails.
  void fail_at(long nth) { countdown_ = nth; }

  /// Returns the number of live allocations; live_bytes() returns their bytes. Module variables do not count.
  std::size_t live() const;
  std::size_t live_bytes() const;
  std::size_t live_bytes_of(int device) const;

  /// Returns the largest live_bytes() since reset_peak().
  std::size_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_bytes_; }

  /// Lets kernels access memory that the caller owns: a variable of a module, or pinned memory of the host.
  void add_global(void* pointer, std::size_t bytes);
  void remove_global(void* pointer);

  /// Forgets all accesses.
  void clear_cells();

  /// Returns the allocation that holds the whole range, or nullptr. `hint` is the index where the last search ended.
  Allocation* find(std::uintptr_t address, std::size_t bytes, std::uint32_t& hint) {
    if (hint < table_.size() && table_[hint].contains(address, bytes)) return &table_[hint];
    return search(address, bytes, hint);
  }

  /// Describes an address that is in no allocation, for example `64 bytes past the end of an allocation of 400 bytes`.
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
