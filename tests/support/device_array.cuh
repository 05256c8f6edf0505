#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "gatefold/backend/cuda/cuda.cuh"
#include "gatefold/core/philox.hpp"
#include "gatefold/tensor/tensor.hpp"

/// Host vectors and device arrays for the tests of the CUDA backend's own headers.
namespace gatefold::test {

/// Returns n numbers in [-1, 1).
template <class T>
std::vector<T> random_vector(Index n, std::uint64_t seed) {
  std::vector<T> x;
  for (Index i = 0; i < n; ++i) x.push_back(2 * uniform<T>(Seed{seed}, 0, static_cast<std::uint64_t>(i)) - 1);
  return x;
}
/// Returns n integers in [least, least + count).
inline std::vector<Index> random_integers(Index n, Index least, Index count, std::uint64_t seed) {
  std::vector<Index> x;
  for (Index i = 0; i < n; ++i)
    x.push_back(least +
                static_cast<Index>(mix64(seed + static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(count)));
  return x;
}

/// Returns where two vectors first differ by more than `tolerance`, or an empty text. If `tolerance` is 0, compares
/// bits.
template <class T>
std::string difference(const std::vector<T>& expected, const std::vector<T>& got, double tolerance = 0) {
  const auto same = [&](const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (tolerance > 0 && std::abs(static_cast<double>(a - b)) <= tolerance);
  };
  std::ostringstream message;
  message.precision(17);
  if (expected.size() != got.size()) {
    message << "expected " << expected.size() << " elements, got " << got.size();
    return message.str();
  }
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!same(expected[i], got[i])) {
      message << "[" << i << "] of " << got.size() << ": expected " << expected[i] << ", got " << got[i];
      break;
    }
  return message.str();
}

/// Writes x[i] = i after a delay.
struct Slow {
  double* x;
  GATEFOLD_HD void operator()(Index i) const {
    double v = 1;
    for (int k = 0; k < 2000; ++k) v = v * 0.5 + 0.5 * static_cast<double>(i);
    x[i] = v;
  }
};

/// Numbers on the device, which begin at element `skip` of an allocation and can be viewed in any shape.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Cuda::Context& ctx, const std::vector<T>& values, Index skip = 0)
      : ctx_(ctx), size_(static_cast<Index>(values.size())), skip_(skip), memory_(size_ + skip) {
    Cuda::from_host(ctx_, size_, values.data(), data());
  }

  T* data() { return memory_.data() + skip_; }
  template <class... I>
  View<T, static_cast<int>(sizeof...(I)), Cuda> as(I... extents) {
    return {data(), extents...};
  }
  /// A view for reading.
  template <class... I>
  View<const T, static_cast<int>(sizeof...(I)), Cuda> in(I... extents) {
    return {data(), extents...};
  }
  std::vector<T> values() {
    std::vector<T> x(static_cast<std::size_t>(size_));
    Cuda::to_host(ctx_, size_, data(), x.data());
    return x;
  }

 private:
  Cuda::Context& ctx_;
  Index size_, skip_;
  Tensor<T, 1, Cuda> memory_;
};

}  // namespace gatefold::test
