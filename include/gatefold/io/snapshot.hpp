#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "gatefold/io/save.hpp"

namespace gatefold::io::safetensors {

/// A copy of the elements of tensors in host memory. While a background thread writes the copy to a file, training can
/// change the tensors.
class Snapshot {
 public:
  /// Copies the elements of all tensors in `of` to host memory.
  /// @cost   host memory of the size of the elements, which the next call reuses
  void take(void* context, const std::vector<Source>& of) {
    std::size_t size = 0;
    for (const Source& source : of) size += static_cast<std::size_t>(source.size) * source.element;
    bytes_.resize(size);
    sources_.clear();
    std::byte* to = bytes_.data();
    for (const Source& source : of) {
      if (source.size > 0) source.to_host(context, source.data, 0, source.size, to);
      sources_.push_back({to, source.size, source.element, source.element == 4 ? copy<4> : copy<8>});
      to += static_cast<std::size_t>(source.size) * source.element;
    }
  }
  const std::vector<Source>& sources() const { return sources_; }

 private:
  template <std::size_t Element>
  static void copy(void*, const void* from, Index begin, Index count, std::byte* to) {
    std::memcpy(to, static_cast<const std::byte*>(from) + static_cast<std::size_t>(begin) * Element,
                static_cast<std::size_t>(count) * Element);
  }
  std::vector<std::byte> bytes_{};
  std::vector<Source> sources_{};
};

}  // namespace gatefold::io::safetensors
