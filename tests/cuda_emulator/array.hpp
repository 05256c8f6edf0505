// Device memory of a test. The host fills it and reads it.
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace gatefold::cuda_emulator {

struct NotInitialised {};
inline constexpr NotInitialised not_initialised;

template <class T>
struct Array {
  explicit Array(const std::vector<T>& host) : Array(not_initialised, host.size()) {
    REQUIRE(cudaMemcpy(data, host.data(), size * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  Array(NotInitialised, std::size_t count) : size(count) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data), size * sizeof(T)) == cudaSuccess);
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(data); }
  std::vector<T> host() const {
    std::vector<T> result(size);
    REQUIRE(cudaMemcpy(result.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return result;
  }
  std::size_t size;
  T* data = nullptr;
};

}  // namespace gatefold::cuda_emulator
