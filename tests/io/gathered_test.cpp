#include "gatefold/io/gathered.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;
using io::MapEntry;

namespace {

struct Pack {
  Tensor<double, 3, Cpu> gate{1, 2, 3}, up{1, 2, 3};
  Tensor<Index, 1, Cpu> count{1};
  GATEFOLD_PACK(gate, up, count)
};

template <class T>
std::vector<T> as(const std::vector<std::byte>& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

}  // namespace

TEST_CASE("gather: joins and converts parts in file order") {
  Cpu::Context ctx(1);
  Pack pack;
  for (Index i = 0; i < 6; ++i) {
    pack.gate.data()[i] = double(i);
    pack.up.data()[i] = double(10 + i);
  }
  pack.count(0) = 7;
  const auto elements = [&](MapEntry::Layout layout, bool interleaved) {
    const io::TensorMap map{{"up", "gu", layout, 1, 2, false, interleaved},
                            {"gate", "gu", layout, 0, 2, false, interleaved},
                            {"count", "n"}};
    const auto tensors = io::tensor_map::gather<Cpu::Context>(map, pack);
    REQUIRE(tensors.size() == 2);
    CHECK(tensors[0].name == "gu");
    CHECK(tensors[0].size() == 12);
    CHECK(tensors[0].dtype(io::Stored::as_they_are) == std::string("F64"));
    CHECK(tensors[0].dtype(io::Stored::bf16) == std::string("BF16"));
    CHECK(as<Index>(tensors[1].elements(ctx)) == std::vector<Index>{7});
    CHECK(as<float>(io::tensor_map::encoded(tensors[0], tensors[0].elements(ctx), "F32")).size() == 12);
    return as<double>(tensors[0].elements(ctx));
  };
  using Values = std::vector<double>;
  CHECK(elements(MapEntry::as_it_is, false) == Values{0, 1, 2, 10, 11, 12, 3, 4, 5, 13, 14, 15});
  CHECK(elements(MapEntry::as_it_is, true) == Values{0, 10, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15});
  CHECK(elements(MapEntry::transposed, false) == Values{0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15});
  CHECK(elements(MapEntry::transposed, true) == Values{0, 3, 10, 13, 1, 4, 11, 14, 2, 5, 12, 15});
}

TEST_CASE("gather: a part without the others is refused") {
  Pack pack;
  CHECK_THROWS_WITH_AS(
      io::tensor_map::gather<Cpu::Context>({{"gate", "gu", MapEntry::as_it_is, 0, 2}, {"up"}, {"count"}}, pack),
      "io::save: map: expected all parts of \"gu\", with the same shape and element type, got part 0 of 2",
      ArgumentError);
}
