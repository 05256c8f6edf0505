#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"

/// Copies and sums in the memory of exchanged data. HostMemory and DeviceMemory have the same functions, so code for
/// shards is written once.
namespace gatefold::dist {

/// Functions for data in host memory. Every call has finished when it returns.
struct HostMemory {
  static constexpr bool is_host = true;

  /// Copies n values from `from` to `to`. In DeviceMemory, each of the two can be on the host or on a device.
  template <class T>
  void copy(const T* from, Index n, T* to) const {
    if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  }
  /// Adds n values of `from` to the n values of `to`, element by element.
  template <class T>
  void add(const T* from, Index n, T* to) const {
    for (Index i = 0; i < n; ++i) to[i] += from[i];
  }
  /// Waits until all copies and sums that were started are complete. In host memory this is always so.
  void finish() const {}

  /// Returns the n values at `from` for the host to read. In host memory, the result is a view, without a copy.
  template <class T>
  std::span<T> read(T* from, Index n) const {
    return {from, static_cast<std::size_t>(n)};
  }
  /// Returns host memory for n new values of `to`. After the caller has written them, it calls `write`, which transfers
  /// them if `to` is on a device.
  template <class T>
  std::span<T> room(T* to, Index n) const {
    return {to, static_cast<std::size_t>(n)};
  }
  template <class T>
  void write(std::span<T>, T*) const {}
};

/// Functions for data on the device of a context. Operations are ordered by the stream of the context. read() and
/// room() return buffers in host memory.
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

/// Returns HostMemory or DeviceMemory, depending on the memory in which a context works.
template <class C>
auto memory_of([[maybe_unused]] C& ctx) {
  if constexpr (C::Backend::is_host) {
    return HostMemory{};
  } else {
    return DeviceMemory<C>{ctx};
  }
}

}  // namespace gatefold::dist
