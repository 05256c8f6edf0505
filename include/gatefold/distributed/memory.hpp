#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"

/// Functions that copy and add the data that shards exchange, in host memory or on a device. HostMemory and
/// DeviceMemory have the same functions, so code for shards is written once.
namespace gatefold::dist {

/// The range [first, first + count). Range::of divides the numbers 0 … things − 1 into `places` consecutive ranges of
/// nearly equal size, and returns one of them, by its index.
struct Range {
  Index first = 0, count = 0;
  static Range of(Index things, Index index, Index places) {
    const Index first = things * index / places;
    return {first, things * (index + 1) / places - first};
  }
  bool has(Index thing) const { return first <= thing && thing < first + count; }
};

/// Bytes that a shard sends to another shard.
using Bytes = std::span<const std::byte>;
/// Memory into which a shard receives bytes from another shard.
using Room = std::span<std::byte>;

/// Functions for data in host memory. They are synchronous: the data is complete when a call returns.
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
  /// Waits until all copies and sums that were started are complete. In host memory, they are complete when their calls
  /// return, so this function does nothing.
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

/// Copies bytes from a device to the host before an exchange, and back to the device after it. A world (connection
/// between processes) needs this if it can send only host memory to other processes.
class Staged {
 public:
  /// Copies the bytes for other processes from the device to the host. Afterwards, out() and in() are the lists for the
  /// exchange. For other processes, the lists refer to host memory; for shards of this process, to the memory that was
  /// passed.
  /// @param here  the shards of this process
  template <class M>
  void begin(const M& memory, std::span<const Bytes> out, std::span<const Room> in, const Range& here) {
    const auto elsewhere = [&](std::size_t j) { return !here.has(static_cast<Index>(j)); };
    std::size_t size = 0;
    for (std::size_t j = 0; j < out.size(); ++j)
      if (elsewhere(j)) size += out[j].size() + in[j].size();
    bytes_.resize(size);
    out_.assign(out.begin(), out.end());
    in_.assign(in.begin(), in.end());
    std::byte* at = bytes_.data();
    for (std::size_t j = 0; j < out.size(); ++j) {
      if (!elsewhere(j)) continue;
      memory.copy(out[j].data(), static_cast<Index>(out[j].size()), at);
      out_[j] = {at, out[j].size()};
      in_[j] = {at + out[j].size(), in[j].size()};
      at += out[j].size() + in[j].size();
    }
  }
  std::span<const Bytes> out() const { return out_; }
  std::span<const Room> in() const { return in_; }

  /// Copies the bytes that arrived from other processes from the host to their destination on the device.
  void end(const auto& memory, std::span<const Room> in, const Range& here) const {
    for (std::size_t j = 0; j < in.size(); ++j)
      if (!here.has(static_cast<Index>(j))) memory.copy(in_[j].data(), static_cast<Index>(in[j].size()), in[j].data());
    memory.finish();  // copies must finish before the next exchange reuses bytes_
  }

 private:
  std::vector<Bytes> out_;
  std::vector<Room> in_;
  std::vector<std::byte> bytes_;
};

/// Functions that copy some of the rows of a tensor. A row is the part of the tensor with one index of the first
/// dimension. For example, if a tensor holds the weights of several experts, a row holds the weights of one expert.
namespace rows {

/// Returns the number of values in one row of a tensor.
template <class P>
Index width(const P& t) {
  Index n = 1;
  for (int d = 1; d < P::rank; ++d) n *= t.extent(d);
  return n;
}
/// Resizes the tensor `part` to `count` rows. Its other extents become the extents of `all`.
template <class P, class Q>
void resize(P& part, const Q& all, Index count) {
  const auto extents = [&]<std::size_t... D>(std::index_sequence<D...>) { part.resize(count, all.extent(D + 1)...); };
  extents(std::make_index_sequence<static_cast<std::size_t>(P::rank - 1)>{});
}
/// Copies the rows `range` of `all`, which have `width` values each, to `to`.
template <class M, class T>
void copy(const M& memory, const T* all, const Range& range, Index width, T* to) {
  memory.copy(all + range.first * width, range.count * width, to);
}
/// Copies the rows of `all` with the given numbers to `to`, one after the other.
template <class M, class T>
void pick(const M& memory, const T* all, const std::vector<Index>& numbers, Index width, T* to) {
  for (const Index row : numbers) {
    copy(memory, all, {row, 1}, width, to);
    to += width;
  }
}
/// The inverse of pick: copies consecutive rows of `from` to the rows of `all` with the given numbers. Returns the
/// address of the first row of `from` that it has not read.
template <class M, class T>
const T* place(const M& memory, const T* from, const std::vector<Index>& numbers, Index width, T* all) {
  for (const Index row : numbers) {
    copy(memory, from, {0, 1}, width, all + row * width);
    from += width;
  }
  return from;
}

}  // namespace rows
}  // namespace gatefold::dist
