#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

/// Makes the bytes of safetensors files without the library.
namespace gatefold::support {

template <class T>
struct GivenTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::vector<T> elements;
};

/// Returns the bytes of a file of floats or doubles.
template <class T>
std::string safetensors_text(const std::vector<GivenTensor<T>>& tensors) {
  std::string header, bytes;
  for (const auto& [name, shape, elements] : tensors) {
    std::string extents;
    for (const std::uint64_t extent : shape) extents += (extents.empty() ? "" : ",") + std::to_string(extent);
    const std::string begin = std::to_string(bytes.size());
    bytes.append(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T));
    header += (header.empty() ? "{\"" : ",\"") + name + R"(":{"dtype":")" + (std::is_same_v<T, float> ? "F32" : "F64") +
              R"(","shape":[)" + extents + R"(],"data_offsets":[)" + begin + "," + std::to_string(bytes.size()) + "]}";
  }
  header += "}";
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i));
  return text + header + bytes;
}

}  // namespace gatefold::support
