#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/types.hpp"

/// Memory of the data that shards exchange. The code of shards is written once, for the host and for devices.
namespace gatefold::dist {

/// Memory of the host. Every call has finished when it returns.
struct HostMemory {
  static constexpr bool is_host = true;

  /// Copies n values from `from` to `to`. In DeviceMemory, each of the two can be on the host or on a device.
  template <class T>
  void copy(const T* from, Index n, T* to) const {
    if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  }
  /// Adds the n values of `from` to `to`.
  template <class T>
  void add(const T* from, Index n, T* to) const {
    for (Index i = 0; i < n; ++i) to[i] += from[i];
  }
  /// Waits until all started operations are done.
  void finish() const {}

  /// Returns the n values at `from` for the host to read, without a copy.
  template <class T>
  std::span<T> read(T* from, Index n) const {
    return {from, static_cast<std::size_t>(n)};
  }
  /// Returns host memory for n new values of `to`. Call `write` after you have written them.
  template <class T>
  std::span<T> room(T* to, Index n) const {
    return {to, static_cast<std::size_t>(n)};
  }
  template <class T>
  void write(std::span<T>, T*) const {}
};

/// Memory of the context's device. Operations are ordered by its stream. read() and room() return copies in host
/// memory.
template <class C>
struct DeviceMemory {
  using B = typename C::Backend;
  static constexpr bool is_host = false;
  C& ctx;

  template <class T>
  void copy(const T* from, Index n, T* to) const {
    B::copy_bytes(ctx, static_cast<std::size_t>(n) * sizeof(T), from, to);
  }
  template <class T>
  void add(const T* from, Index n, T* to) const {
    B::for_each(ctx, n, functor::AddScaled<T>{T(1), from, to});
  }
  void finish() const { ctx.synchronize(); }

  template <class T>
  std::vector<std::remove_const_t<T>> read(T* from, Index n) const {
    std::vector<std::remove_const_t<T>> values(static_cast<std::size_t>(n));
    B::to_host(ctx, n, from, values.data());
    return values;
  }
  template <class T>
  std::vector<T> room(T*, Index n) const {
    return std::vector<T>(static_cast<std::size_t>(n));
  }
  template <class T>
  void write(const std::vector<T>& values, T* to) const {
    B::from_host(ctx, static_cast<Index>(values.size()), values.data(), to);
  }
};

/// Returns the memory in which a context works.
template <class C>
auto memory_of([[maybe_unused]] C& ctx) {
  if constexpr (C::Backend::is_host) {
    return HostMemory{};
  } else {
    return DeviceMemory<C>{ctx};
  }
}

}  // namespace gatefold::dist
