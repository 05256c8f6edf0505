#include "gatefold/tensor/sampled_hash.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

template <class T>
SampledHash of(const Tensor<T, 2, Cpu>& x, std::size_t most) {
  SampledHash hash;
  hash.add(x.view(), most);
  return hash;
}
/// Returns the floats of x that change the hash.
std::vector<Index> seen(Tensor<float, 2, Cpu>& x, std::size_t most) {
  std::vector<Index> found;
  const std::uint64_t before = of(x, most).hash;
  for (Index i = 0; i < x.size(); ++i) {
    x.data()[i] += 1;
    if (of(x, most).hash != before) found.push_back(i);
    x.data()[i] -= 1;
  }
  return found;
}

}  // namespace

TEST_CASE("SampledHash: every element of a small array counts") {
  for (const Index columns : {1, 2, 3, 7, 10}) {
    Tensor<float, 2, Cpu> x(3, columns);
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i);
    CHECK(static_cast<Index>(seen(x, 16).size()) == x.size());
  }
}

TEST_CASE("SampledHash: a sample spreads from first to last element") {
  for (const Index rows : {5, 6, 9, 11, 64, 100, 333}) {
    for (const Index columns : {8, 16, 37}) {
      Tensor<float, 2, Cpu> x(rows, columns);
      for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i % 100);
      const auto found = seen(x, 16);
      CAPTURE(rows);
      CAPTURE(columns);
      CHECK(found.size() <= 2 * 17);
      CHECK(found.front() == 0);
      CHECK(found.back() == x.size() - 1);
      Index gap = 0;
      std::vector<bool> of_columns(static_cast<std::size_t>(columns));
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (i > 0) gap = found[i] - found[i - 1] > gap ? found[i] - found[i - 1] : gap;
        of_columns[static_cast<std::size_t>(found[i] % columns)] = true;
      }
      CHECK(gap <= x.size() / 16 + 6);  // a word is two floats, and strides are odd
      std::size_t different = 0;
      for (const bool one : of_columns) different += one;
      CHECK(different >= 4);  // rows are sampled in different columns
    }
  }
}

TEST_CASE("SampledHash: depends on the contents, not on the address") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 50, 8), other = uniform_tensor<float>(ctx, Seed{2}, 1, 50, 8);
  Tensor<float, 2, Cpu> same(50, 8);
  std::memcpy(same.data(), x.data(), static_cast<std::size_t>(x.size()) * sizeof(float));
  CHECK(of(same, 16).hash == of(x, 16).hash);
  CHECK(of(other, 16).hash != of(x, 16).hash);
  CHECK(of(x, 1000).hash != of(x, 16).hash);
}

TEST_CASE("SampledHash: zeros and empty arrays give bits 0") {
  Tensor<float, 2, Cpu> x(9, 9);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = 0;
  CHECK(of(x, 16).bits == 0);
  x(8, 8) = 1;
  CHECK(of(x, 16).bits != 0);
  CHECK(of(Tensor<float, 2, Cpu>(0, 5), 16).bits == 0);
}
