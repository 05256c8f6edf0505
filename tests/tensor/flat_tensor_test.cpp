#include "gatefold/tensor/flat_tensor.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.hpp"

namespace gatefold {
namespace {

/// Packs with a template parameter for the type of their elements, and a pack `Plain` without this parameter.
template <class T, class B>
struct Inner {
  Tensor<T, 1, B> bias{3};
  Table<T, B> table{};
  GATEFOLD_PACK(bias, table)
};
template <class T, class B>
struct Kept {
  static constexpr bool learned = false;
  Tensor<Index, 1, B> count{2};
  GATEFOLD_PACK(count)
};
template <class T, class B>
struct Outer {
  Tensor<T, 3, B> weight{2, 3, 4};
  std::vector<Inner<T, B>> inner{2};
  std::tuple<Kept<T, B>, Inner<T, B>> both{};
  GATEFOLD_PACK(weight, inner, both)
};
struct Plain {
  Tensor<double, 2, Cpu> weight{2, 2};
  Outer<double, Cpu> outer{};
  GATEFOLD_PACK(weight, outer)
};
template <class T, class B>
struct OfOthers {
  Tensor<double, 1, B> weight{2};
  GATEFOLD_PACK(weight)
};

const std::vector<std::string> in_outer{"weight",        "inner.0.bias", "inner.0.table", "inner.1.bias",
                                        "inner.1.table", "both.1.bias",  "both.1.table"};

}  // namespace

TEST_CASE("FlatTensor: has the elements and extents of its source") {
  Tensor<float, 3, Cpu> t(2, 3, 4);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<float>(i);
  FlatTensor flat(t);
  static_assert(std::is_same_v<decltype(flat), FlatTensor<float, Cpu>>);
  CHECK(flat.size() == 24);
  CHECK(flat.rank() == 3);
  CHECK(flat.extent(0) == 2);
  CHECK(flat.extent(2) == 4);
  CHECK(flat.data() == t.data());
  CHECK(flat.all_touched());
  CHECK(flat.view()(23) == 23);
  flat.view()(1) = -1;
  CHECK(t(0, 0, 1) == -1);

  const FlatTensor read(std::as_const(t));
  static_assert(std::is_same_v<std::remove_const_t<decltype(read)>, FlatTensor<const float, Cpu>>);
  CHECK(read.data() == t.data());
}

TEST_CASE("FlatTensor: mutable access to a table touches all rows") {
  Cpu::Context ctx(1);
  Table<float, Cpu> table;
  table.resize(3, 2);
  set_zero(ctx, table);
  table.rows().marks[1] = 1;
  FlatTensor flat(table);
  CHECK_FALSE(flat.all_touched());
  CHECK(flat.rows().touched(1));
  CHECK_FALSE(flat.rows().touched(2));
  CHECK(flat.rows().columns == 2);
  CHECK(std::as_const(flat).data() == std::as_const(table).data());
  FlatTensor read(std::as_const(table));
  read.data();
  read.view();
  CHECK_FALSE(table.all_touched());
  flat.data();
  CHECK(flat.all_touched());
  CHECK(table.all_touched());
}

// The CMake preset `test` links with --icf=all, which merges identical functions and constants. The types must stay
// distinct even then.
TEST_CASE("FlatTensor: elements of another type are refused") {
  Tensor<double, 1, Cpu> t(2);
  CHECK_THROWS_WITH_AS((FlatTensor<float, Cpu>{AnyTensor(t)}),
                       "FlatTensor: tensor: expected elements of the same type as its pack, got another type",
                       ArgumentError);
  OfOthers<float, Cpu> pack;
  CHECK_THROWS_AS(for_each_learned([](const Name&, auto&) {}, pack), ArgumentError);
}

TEST_CASE("for_each_learned: visits flat tensors of several packs by name") {
  Outer<float, Cpu> a, b;
  const Outer<float, Cpu>& read = b;
  std::vector<std::string> names;
  for_each_learned(
      [&](const Name& at, auto& to, auto& from) {
        static_assert(std::is_same_v<decltype(to), FlatTensor<float, Cpu>&>);
        static_assert(std::is_same_v<decltype(from), FlatTensor<const float, Cpu>&>);
        CHECK(to.size() == from.size());
        names.push_back(at.str());
      },
      a, read);
  CHECK(names == in_outer);

  Plain plain;
  names.clear();
  for_each_learned(
      [&](const Name& at, auto& t) {
        static_assert(std::is_same_v<decltype(t), FlatTensor<double, Cpu>&>);
        names.push_back(at.str());
      },
      plain);
  std::vector<std::string> expected{"weight"};
  for (const std::string& name : in_outer) expected.push_back("outer." + name);
  CHECK(names == expected);
}

TEST_CASE("visit_any: visits every tensor, learned or not") {
  const Outer<float, Cpu> pack;
  Index values = 0, tensors = 0;
  const auto count = [&](const Name&, const AnyTensor* t) {
    ++tensors;
    values += t->size;
  };
  detail_::pack::visit_any(count, Name{}, false, pack);
  CHECK(tensors == 8);
  CHECK(values == 24 + 3 * 3 + 2);
  CHECK(count_tensors(pack) == 8);
  CHECK(count_values(pack) == values);
  tensors = 0;
  detail_::pack::visit_any(count, Name{}, true, pack);
  CHECK(tensors == 7);
}

}  // namespace gatefold
