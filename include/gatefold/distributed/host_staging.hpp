#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gatefold/distributed/group.hpp"

namespace gatefold::dist {

/// Copies bytes from a device to the host before an exchange, and back to the device after it. A world (connection
/// between processes) needs this if it can send only host memory to other processes.
class Staged {
 public:
  /// Copies the bytes for other processes from the device to the host. Afterwards, out() and in() are the lists for the
  /// exchange. For other processes, they refer to host memory; for shards of this process, to the memory that was
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

}  // namespace gatefold::dist
