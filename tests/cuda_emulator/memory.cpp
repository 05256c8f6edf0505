#include "cuda_emulator/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace gatefold::cuda_emulator {
namespace {

constexpr std::size_t page =
    4096;  // mapped ranges begin at a page, so they are aligned to 256 bytes as cudaMalloc promises

auto position(std::vector<Allocation>& table, std::uintptr_t base) {
  return std::lower_bound(table.begin(), table.end(), base,
                          [](const Allocation& allocation, std::uintptr_t value) { return allocation.base < value; });
}

}  // namespace

Memory& Memory::device() {
  // Never destroyed: programs release device memory from destructors of their own globals.
  static Memory& memory = *new Memory;
  return memory;
}

Memory::~Memory() {
  for (const Allocation& allocation : table_) {
    if (allocation.mapped > 0) munmap(reinterpret_cast<void*>(allocation.base), allocation.mapped);
  }
}

void* Memory::map(std::size_t bytes, int device) {
  if (countdown_ >= 0 && countdown_-- == 0) return nullptr;
  // One page more than requested. It is never accessible, so the host detects accesses that the emulator itself would
  // miss.
  const std::size_t usable = (bytes + page - 1) / page * page;
  if (usable < bytes) return nullptr;
  void* base = mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  mprotect(static_cast<char*>(base) + usable, page, PROT_NONE);
  insert({reinterpret_cast<std::uintptr_t>(base), bytes, usable + page, device, {}});
  ++live_;
  live_bytes_ += bytes;
  peak_ = std::max(peak_, live_bytes_);
  return base;
}

void* Memory::allocate(std::size_t bytes, int device) {
  void* base = map(bytes, device);
  if (base != nullptr) std::memset(base, 0xCB, bytes);
  return base;
}

void* Memory::reserve(std::size_t bytes) { return map(bytes, 0); }

bool Memory::release(void* pointer) { return erase(reinterpret_cast<std::uintptr_t>(pointer), true); }

void Memory::add_global(void* pointer, std::size_t bytes) {
  insert({reinterpret_cast<std::uintptr_t>(pointer), bytes, 0, any_device, {}});
}

void Memory::remove_global(void* pointer) { erase(reinterpret_cast<std::uintptr_t>(pointer), false); }

void Memory::insert(Allocation allocation) { table_.insert(position(table_, allocation.base), std::move(allocation)); }

bool Memory::erase(std::uintptr_t base, bool owned) {
  const auto found = position(table_, base);
  if (found == table_.end() || found->base != base || (found->mapped > 0) != owned) return false;
  if (owned) {
    munmap(reinterpret_cast<void*>(base), found->mapped);
    --live_;
    live_bytes_ -= found->size;
  }
  table_.erase(found);
  return true;
}

Allocation* Memory::search(std::uintptr_t address, std::size_t bytes, std::uint32_t& hint) {
  auto next = position(table_, address + 1);
  if (next == table_.begin() || !std::prev(next)->contains(address, bytes)) return nullptr;
  hint = static_cast<std::uint32_t>(std::prev(next) - table_.begin());
  return &table_[hint];
}

bool Memory::contains(const void* pointer, std::size_t bytes, int device) const {
  std::uint32_t hint = ~0u;
  const Allocation* found = const_cast<Memory*>(this)->search(reinterpret_cast<std::uintptr_t>(pointer), bytes, hint);
  return found != nullptr && found->belongs_to(device);
}

int Memory::device_of(const void* pointer) const {
  std::uint32_t hint = ~0u;
  const Allocation* found = const_cast<Memory*>(this)->search(reinterpret_cast<std::uintptr_t>(pointer), 1, hint);
  return found == nullptr ? any_device : found->device;
}

std::size_t Memory::live() const { return live_; }
std::size_t Memory::live_bytes() const { return live_bytes_; }

std::size_t Memory::live_bytes_of(int device) const {
  std::size_t bytes = 0;
  for (const Allocation& allocation : table_) bytes += allocation.device == device ? allocation.size : 0;
  return bytes;
}

void Memory::clear_cells() {
  for (Allocation& allocation : table_) allocation.cells = {};
}

std::string Memory::describe(std::uintptr_t address) const {
  // Finds the nearest allocation, unless it is so far away that the distance has no meaning.
  constexpr std::uintptr_t near = 1 << 20;
  std::string text = "in no live allocation";
  std::uintptr_t best = near;
  for (const Allocation& allocation : table_) {
    const std::string size = " an allocation of " + std::to_string(allocation.size) + " bytes";
    const std::uintptr_t end = allocation.base + allocation.size;
    if (address >= allocation.base && address < end) return "reaching past the end of" + size;
    if (address < allocation.base && allocation.base - address < best) {
      best = allocation.base - address;
      text = std::to_string(best) + " bytes before the start of" + size;
    } else if (address >= end && address - end < best) {
      best = address - end;
      text = std::to_string(best) + " bytes past the end of" + size;
    }
  }
  return text;
}

}  // namespace gatefold::cuda_emulator
