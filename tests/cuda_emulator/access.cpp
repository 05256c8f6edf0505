// Loads, stores and atomics. Finds the memory at an address, checks it, and records the access.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/real16.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

const char* verb(const Instruction& in, bool write) {
  return in.op == Opcode::atomic ? "atomic access" : write ? "store" : "load";
}

/// Calls f with an unsigned integer type of the given number of bytes, so that each access becomes one instruction of
/// the host.
template <class F>
void with_type_of(std::size_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

std::uint64_t sign_extended(std::uint64_t value, int bits) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << (64 - bits)) >> (64 - bits));
}

std::uint64_t sum(Type type, std::uint64_t a, std::uint64_t b) {
  if (type.kind == Kind::bfloat || (type.kind == Kind::real && type.bits == 16)) {
    auto halves = [&](auto zero) {
      using T = decltype(zero);
      const T x{static_cast<std::uint16_t>(a)}, y{static_cast<std::uint16_t>(b)};
      return std::uint64_t{T::rounded(x.value() + y.value()).bits};
    };
    return type.kind == Kind::bfloat ? halves(BFloat{}) : halves(Half{});
  }
  if (type.kind != Kind::real) return a + b;
  if (type.bits == 64) return std::bit_cast<std::uint64_t>(std::bit_cast<double>(a) + std::bit_cast<double>(b));
  const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(a)),
             y = std::bit_cast<float>(static_cast<std::uint32_t>(b));
  return std::bit_cast<std::uint32_t>(x + y);
}

bool less_than(Type type, std::uint64_t a, std::uint64_t b) {
  if (type.kind != Kind::signed_integer) return a < b;
  return static_cast<std::int64_t>(sign_extended(a, type.bits)) <
         static_cast<std::int64_t>(sign_extended(b, type.bits));
}

/// Returns the value that an atomic operation leaves in memory.
std::uint64_t updated(Update update, Type type, std::uint64_t old, std::uint64_t b, std::uint64_t c) {
  switch (update) {
    case Update::add:
      return sum(type, old, b);
    case Update::minimum:
      return less_than(type, b, old) ? b : old;
    case Update::maximum:
      return less_than(type, old, b) ? b : old;
    case Update::exchange:
      return b;
    case Update::compare:
      return old == b ? c : old;
    case Update::conjunction:
      return old & b;
    case Update::disjunction:
      return old | b;
    case Update::exclusive:
      return old ^ b;
    case Update::increment:
      return old >= b ? 0 : old + 1;
    default:
      return old == 0 || old > b ? b : old - 1;
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------- addresses

void Warp::fail_alignment(const Instruction& in, std::uint64_t address, std::size_t bytes, int lane) const {
  fail("misaligned access of " + std::to_string(bytes) + " bytes at " + hexadecimal(address), in, lane);
}

Stamp Warp::stamp(const Instruction& in, int lane, std::uint32_t segment) const {
  const auto site = static_cast<std::uint32_t>(&in - kernel_.code.data());
  return Stamp::make(segment, index_ * warp_size + static_cast<std::uint32_t>(lane), site, in.strong);
}

std::uint32_t Warp::segment_now() const { return block_.view_.segment; }

/// Returns the access of lane 0, as the cells record it.
Access Warp::access(const Instruction& in, bool shared, bool write, std::uint32_t segment) const {
  const Viewpoint& view = block_.view_;
  return {view, stamp(in, 0, segment), shared ? view.barrier : block_.grid_.timeline.first(), write};
}

void Warp::record(CellArray& cells, std::size_t offset, const Touch& touch, std::uint32_t segment) {
  const Access access = this->access(touch.in, touch.shared, touch.write, segment).of_lane(touch.lane);
  if (const Stamp earlier = cells.record(access, offset, touch.bytes)) report_race("data race", touch, earlier);
}

/// Reports a race, but only once for each instruction and launch.
void Warp::report_race(const std::string& what, const Touch& touch, Stamp earlier) {
  const auto site = static_cast<std::uint32_t>(&touch.in - kernel_.code.data());
  if (!block_.grid_.raced.insert(site).second) return;
  const Instruction& other = kernel_.code[earlier.site()];
  race(what + ": " + (touch.shared ? "shared " : "global ") + verb(touch.in, touch.write) + " of " +
       std::to_string(touch.bytes) + " bytes at " + hexadecimal(touch.address) + ", by " +
       block_.grid_.thread_name(block_.number_, index_ * warp_size + static_cast<std::uint32_t>(touch.lane)) + ": " +
       std::string(kernel_.sources[touch.in.source].text) + source_position(kernel_, touch.in) +
       ", not ordered with that by " +
       block_.grid_.thread_name(block_.grid_.timeline.block_of(earlier.segment()), earlier.thread()) + ": " +
       std::string(kernel_.sources[other.source].text) + source_position(kernel_, other) + ", in kernel " +
       demangled(kernel_.name));
}

Release Warp::release_of(int lane) const {
  const Viewpoint& view = block_.view_;
  return {view.block, index_ * warp_size + lane, view.barrier, view.segment};
}

void Warp::acquire(const Releases& releases, int lane) {
  Viewpoint& view = block_.view_;
  for (const auto& [who, release] : releases) {
    if (release.block != view.block) view.acquired.add({release, index_ * warp_size + lane, view.segment});
  }
}

/// Applies the order that a strong access to global memory makes. A read acquires the releases at its address, or keeps
/// them for a later fence if it does not acquire. A write adds its own release if it releases or follows a fence.
void Warp::synchronise(const Instruction& in, std::uint64_t address, int lane, bool write) {
  std::map<std::uint64_t, Releases>& releases = block_.grid_.releases;
  const auto known = releases.find(address);
  const bool reads = !write || in.op == Opcode::atomic;
  if (reads && known != releases.end()) {
    if (in.acquire) {
      acquire(known->second, lane);
    } else {
      seen_[lane].add(known->second);
    }
  }
  if (!write) return;
  // A store removes the releases of earlier stores at this address. An atomic operation keeps them.
  if (in.op != Opcode::atomic && known != releases.end()) known->second.clear();
  const bool fenced = fenced_ >> lane & 1;
  if (!in.release && !fenced) return;
  Releases& here = releases[address];
  here.add(in.release ? release_of(lane) : before_fence_[lane]);
  const std::uint32_t thread = index_ * warp_size + lane;
  block_.view_.acquired.for_each([&](const Acquisition& acquisition) {
    if (block_.view_.follows(thread, acquisition.thread, acquisition.segment)) here.add(acquisition.release);
  });
}

void Warp::fence(std::uint32_t lanes) {
  if (!block_.grid_.look_for_races) return;
  fenced_ |= lanes;
  for_lanes(lanes, [&](int lane) {
    before_fence_[lane] = release_of(lane);
    acquire(seen_[lane], lane);
    seen_[lane].clear();
  });
}

/// Executes fence.proxy.async: all writes that the threads know of become visible to the async proxy.
void Warp::fence_proxy(std::uint32_t lanes) {
  if (!block_.grid_.look_for_races) return;
  for_lanes(lanes, [&](int lane) { block_.view_.fence_proxy(index_ * warp_size + static_cast<std::uint32_t>(lane)); });
  block_.begin_segment();
}

/// Returns true if the generic addresses of a whole warp are valid addresses of its local memory. This is the usual
/// case.
bool Warp::locate_local(std::size_t bytes, const Addresses& addresses, Places& places) const {
  const std::uint64_t base = reinterpret_cast<std::uint64_t>(local(0)), stride = local_bytes_;
  std::uint64_t largest = 0, bits = 0;
  for (int lane = 0; lane < warp_size; ++lane) {
    const std::uint64_t from = addresses[lane] - (base + static_cast<std::uint64_t>(lane) * stride);
    largest = std::max(largest, from);
    bits |= from;
    places[lane] = reinterpret_cast<char*>(addresses[lane]);
  }
  return bytes <= stride && largest <= stride - bytes && (bits & (bytes - 1)) == 0;
}

/// Finds the memory that each lane accesses.
void Warp::locate(const Instruction& in, const Target& target, std::uint32_t lanes, Places& places) {
  Addresses addresses;
  const auto offset = static_cast<std::uint64_t>(target.offset);
  if (lanes == all_lanes && target.operand.wide()) {
    for (int lane = 0; lane < warp_size; ++lane) {
      addresses[lane] = read_lane<std::uint64_t>(registers_.get() + target.operand.row, lane) + offset;
    }
    if (target.space == Space::generic && locate_local(target.bytes, addresses, places)) return;
  } else {
    for_lanes(lanes, [&](int lane) { addresses[lane] = read(target.operand, lane) + offset; });
  }
  switch (target.space) {
    case Space::global:
    case Space::constant:
      return locate_global(in, target, lanes, addresses, places);
    case Space::shared:
      return locate_shared(in, target, lanes, addresses, places);
    case Space::local:
    case Space::parameter:
      return locate_own(in, target, lanes, addresses, places);
    case Space::generic:
      return locate_generic(in, target, lanes, addresses, places);
  }
}

/// Returns the allocation that a lane accesses, with its cells.
Allocation& Warp::allocation(const Instruction& in, const Target& target, int lane, std::uint64_t address) {
  Memory& memory = Memory::device();
  const Grid& grid = block_.grid_;
  Allocation* found = memory.find(address, target.bytes, in.hint);
  const auto access = [&] {
    return "global " + std::string(verb(in, target.write)) + " of " + std::to_string(target.bytes) + " bytes at " +
           hexadecimal(address);
  };
  if (found == nullptr) fail("out of bounds " + access() + " (" + memory.describe(address) + ")", in, lane);
  if (!found->belongs_to(grid.launch.device)) {
    fail("memory of another device: " + access() + " (of device " + std::to_string(found->device) +
             ", by a kernel on device " + std::to_string(grid.launch.device) + ")",
         in, lane);
  }
  if (grid.look_for_races && !found->cells) found->cells = CellArray(found->size);
  return *found;
}

void Warp::locate_global(const Instruction& in, const Target& target, std::uint32_t lanes, const Addresses& addresses,
                         Places& places) {
  Grid& grid = block_.grid_;
  const std::size_t bytes = target.bytes;
  const Access access = this->access(in, false, target.write, block_.view_.segment);
  Allocation* allocation = nullptr;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = addresses[lane];
    if (allocation == nullptr || !allocation->contains(address, bytes)) {
      allocation = &this->allocation(in, target, lane, address);
    }
    if ((address & (bytes - 1)) != 0) fail_alignment(in, address, bytes, lane);
    places[lane] = reinterpret_cast<char*>(address);
    if (!grid.look_for_races) return;
    const Stamp earlier = allocation->cells.record(access.of_lane(lane), address - allocation->base, bytes);
    if (earlier) report_race("data race", {in, false, target.write, address, bytes, lane}, earlier);
    if (in.strong) synchronise(in, address, lane, target.write);
  });
  (target.write ? grid.tally.global_bytes_stored : grid.tally.global_bytes_loaded) += bytes * count_lanes(lanes);
}

void Warp::check_shared(const Instruction& in, std::uint64_t address, std::size_t bytes, int lane, bool write) const {
  const std::size_t size = block_.shared_.size();
  if (address > size || bytes > size - address) {
    fail("out of bounds shared " + std::string(verb(in, write)) + " of " + std::to_string(bytes) + " bytes at " +
             hexadecimal(address) + " (the block has " + std::to_string(size) + " bytes)",
         in, lane);
  }
  if ((address & (bytes - 1)) != 0) fail_alignment(in, address, bytes, lane);
}

void Warp::locate_shared(const Instruction& in, const Target& target, std::uint32_t lanes, const Addresses& addresses,
                         Places& places) {
  const bool look_for_races = block_.grid_.look_for_races;
  const Access access = this->access(in, true, target.write, block_.view_.segment);
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = addresses[lane] & 0xffffffff;
    check_shared(in, address, target.bytes, lane, target.write);
    places[lane] = block_.shared_.data() + address;
    if (!look_for_races) return;
    const Stamp earlier = block_.shared_cells_.record(access.of_lane(lane), address, target.bytes);
    if (earlier) report_race("data race", {in, true, target.write, address, target.bytes, lane}, earlier);
  });
}

/// Finds the place in the local memory of each thread, or in the parameters of the kernel.
void Warp::locate_own(const Instruction& in, const Target& target, std::uint32_t lanes, const Addresses& addresses,
                      Places& places) {
  const bool local_space = target.space == Space::local;
  const std::size_t size = local_space ? local_bytes_ : block_.grid_.parameters.size(), bytes = target.bytes;
  char* const base = local_space ? local(0) : block_.grid_.parameters.data();
  const std::size_t stride = local_space ? local_bytes_ : 0;  // distance between the memories of two lanes
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = addresses[lane];
    if (address > size || bytes > size - address) {
      fail("out of bounds " + std::string(local_space ? "local " : "parameter ") + verb(in, target.write) + " of " +
               std::to_string(bytes) + " bytes at " + hexadecimal(address) + " (there are " + std::to_string(size) +
               " bytes)",
           in, lane);
    }
    if ((address & (bytes - 1)) != 0) fail_alignment(in, address, bytes, lane);
    places[lane] = base + stride * static_cast<std::size_t>(lane) + address;
  });
}

/// Finds the memory at generic addresses, which are addresses of the host: shared memory of the block, local memory of
/// the thread, the parameters, or otherwise global memory.
void Warp::locate_generic(const Instruction& in, const Target& target, std::uint32_t lanes, Addresses& addresses,
                          Places& places) {
  const std::vector<char>&shared = block_.shared_, &parameters = block_.grid_.parameters;
  const auto of_host = [](const char* pointer) { return reinterpret_cast<std::uint64_t>(pointer); };
  const std::uint64_t shared_base = of_host(shared.data()), parameters_base = of_host(parameters.data());
  const std::uint64_t shared_size = shared.size(), local_size = local_bytes_, parameters_size = parameters.size();
  std::uint32_t in_shared = 0, in_local = 0, in_parameters = 0;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = addresses[lane];
    const std::uint32_t bit = 1u << lane;
    const std::uint64_t from_local = address - of_host(local(lane));
    if (address - shared_base < shared_size) {
      addresses[lane] = address - shared_base;
      in_shared |= bit;
    } else if (from_local < local_size) {
      addresses[lane] = from_local;
      in_local |= bit;
    } else if (address - parameters_base < parameters_size) {
      addresses[lane] = address - parameters_base;
      in_parameters |= bit;
    }
  });
  Target own = target;
  own.space = Space::local;
  if (in_shared != 0) locate_shared(in, target, in_shared, addresses, places);
  if (in_local != 0) locate_own(in, own, in_local, addresses, places);
  own.space = Space::parameter;
  if (in_parameters != 0) locate_own(in, own, in_parameters, addresses, places);
  const std::uint32_t in_global = lanes & ~(in_shared | in_local | in_parameters);
  if (in_global != 0) locate_global(in, target, in_global, addresses, places);
}

void Warp::cvta(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const char* base = nullptr;
    if (in.space == Space::shared) base = block_.shared_.data();
    if (in.space == Space::local) base = local(lane);
    if (in.space == Space::parameter) base = block_.grid_.parameters.data();
    const auto window = reinterpret_cast<std::uint64_t>(base), from = read(in[1], lane);
    write(in[0], lane, in.mode ? from - window : from + window);
  });
}

void Warp::isspacep(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = read(in[1], lane);
    auto within = [&](const char* base, std::size_t size) {
      return address - reinterpret_cast<std::uint64_t>(base) < size;
    };
    const bool shared = within(block_.shared_.data(), block_.shared_.size()),
               local = within(this->local(lane), local_bytes_);
    const bool parameter = within(block_.grid_.parameters.data(), block_.grid_.parameters.size());
    write(in[0], lane,
          in.space == Space::shared      ? shared
          : in.space == Space::local     ? local
          : in.space == Space::parameter ? parameter
                                         : !shared && !local && !parameter);
  });
}

// -------------------------------------------------------------------------------------------------------- instructions

void Warp::load(const Instruction& in, std::uint32_t lanes) {
  Places places;
  const std::size_t bytes = in.type.bytes();
  locate(in, {in[in.elements], in.offset, in.space, bytes * in.elements, false}, lanes, places);
  const bool is_signed = in.type.kind == Kind::signed_integer;
  with_type_of(bytes, [&]<class T>(T) {
    for (std::size_t i = 0; i < in.elements; ++i) {
      for_lanes(lanes, [&](int lane) {
        T value;
        std::memcpy(&value, places[lane] + i * sizeof value, sizeof value);
        write(in[i], lane, is_signed ? sign_extended(value, 8 * sizeof value) : value);
      });
    }
  });
}

void Warp::store(const Instruction& in, std::uint32_t lanes) {
  Places places;
  const std::size_t bytes = in.type.bytes();
  locate(in, {in[0], in.offset, in.space, bytes * in.elements, true}, lanes, places);
  with_type_of(bytes, [&]<class T>(T) {
    for (std::size_t i = 0; i < in.elements; ++i) {
      for_lanes(lanes, [&](int lane) {
        const auto value = static_cast<T>(read(in[1 + i], lane));
        std::memcpy(places[lane] + i * sizeof value, &value, sizeof value);
      });
    }
  });
}

void Warp::atomic(const Instruction& in, std::uint32_t lanes) {
  Places places;
  const auto update = static_cast<Update>(in.mode);
  const std::size_t bytes = in.type.bytes();
  locate(in, {in[1], in.offset, in.space, bytes, true}, lanes, places);
  with_type_of(bytes, [&]<class T>(T) {
    for_lanes(lanes, [&](int lane) {
      T old;
      std::memcpy(&old, places[lane], sizeof old);
      const auto b = static_cast<T>(read(in[2], lane));
      const auto c = static_cast<T>(update == Update::compare ? read(in[3], lane) : 0);
      const auto value = static_cast<T>(updated(update, in.type, old, b, c));
      std::memcpy(places[lane], &value, sizeof value);
      write(in[0], lane, old);
    });
  });
}

}  // namespace gatefold::cuda_emulator
