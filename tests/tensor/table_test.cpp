#include "gatefold/tensor/table.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/transfer.hpp"
#include "gatefold/tensor/pack.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::message_of, support::values;

namespace {

template <class B>
struct TableAndBias {
  Tensor<float, 1, B> bias;
  Table<float, B> weight;
  GATEFOLD_PACK(bias, weight)
};

/// A table [rows, columns] of 0, 1, 2, … of which no row is touched.
Table<float, Cpu> counted(Index rows, Index columns) {
  Table<float, Cpu> table;
  table.resize(rows, columns);
  Cpu::Context ctx(1);
  zero(ctx, table);
  for (Index i = 0; i < table.size(); ++i) table.rows().data[i] = static_cast<float>(i);
  return table;
}

}  // namespace

TEST_CASE("Table: is a matrix with extents, elements and views") {
  const Table<float, Cpu> table = counted(3, 2);
  CHECK(table.extent(0) == 3);
  CHECK(table.extent(1) == 2);
  CHECK(table.size() == 6);
  CHECK(table(2, 1) == 5);
  CHECK(table.view()(1, 0) == 2);
  CHECK(table.data()[3] == 3);
  const View<const float, 2, Cpu> view = table;
  CHECK(view.data() == table.data());
  CHECK(table.rows().columns == 2);
}

TEST_CASE("Table: marks touch rows; mutable access touches all rows") {
  auto table = counted(3, 2);
  const auto& read = table;
  CHECK(!table.all_touched());
  CHECK(!table.rows().touched(1));
  table.rows().marks[1] = 1;
  CHECK(table.rows().touched(1));
  CHECK(!read.rows().touched(2));
  CHECK(read(1, 1) + read.view()(1, 1) + read.data()[3] == 9);
  CHECK(!table.all_touched());

  SUBCASE("an element") { table(0, 0) = 7; }
  SUBCASE("a view") { table.view()(0, 0) = 7; }
  SUBCASE("a pointer") { table.data()[0] = 7; }
  SUBCASE("a conversion") {
    const View<float, 2, Cpu> view = table;
    view(0, 0) = 7;
  }
  SUBCASE("touch_all") {
    table.touch_all();
    table.rows().data[0] = 7;
  }
  CHECK(table.all_touched());
  CHECK(read.rows().touched(2));
  CHECK(read(0, 0) == 7);
  Cpu::Context ctx(1);
  zero(ctx, table);
  CHECK(values(read) == std::vector<double>(6, 0));
  CHECK(!read.rows().touched(1));
}

TEST_CASE("Table: construction from a tensor and resize touch all rows") {
  Tensor<float, 2, Cpu> elements(2, 2);
  const float* data = elements.data();
  Table<float, Cpu> table(std::move(elements));
  CHECK(std::as_const(table).data() == data);
  CHECK(table.all_touched());
  auto other = counted(4, 3);
  std::swap(table, other);
  CHECK(table.extent(0) == 4);
  CHECK(!table.all_touched());
  CHECK(other.all_touched());
  table.resize(5, 1);
  CHECK(table.all_touched());
  CHECK(table.size() == 5);
}

TEST_CASE("Table: a table in a pack is a named tensor") {
  Cpu::Context ctx(1);
  TableAndBias<Cpu> weights{Tensor<float, 1, Cpu>(2), counted(3, 2)};
  fill(ctx, weights.bias.view(), 1);
  std::string names;
  for_each_tensor([&](const Name& name, const auto& t) { names += name.str() + std::to_string(t.rank); }, weights);
  CHECK(names == "bias1weight2");
  CHECK(count_values(weights) == 8);
  auto same = zeros_like(ctx, weights);
  CHECK(values(same) == std::vector<double>(8, 0));
  CHECK(!same.weight.all_touched());
  copy_pack(ctx, std::as_const(weights), same);
  CHECK(values(same) == values(weights));
  CHECK(same.weight.all_touched());
  TableAndBias<Cpu> copy;
  transfer(ctx, weights, copy);
  CHECK(values(copy) == values(weights));
  same.weight.resize(3, 1);
  CHECK(message_of([&] { expect_like("here", "grads", weights, same); }) ==
        "here: grads.weight: expected [3, 2], got [3, 1]");
}

TEST_CASE("first_table: returns the first table of a pack") {
  TableAndBias<Cpu> weights{Tensor<float, 1, Cpu>(2), counted(3, 2)};
  std::vector<TableAndBias<Cpu>> two;
  two.push_back({Tensor<float, 1, Cpu>(1), counted(4, 2)});
  two.push_back(std::move(weights));
  std::tuple<Nothing<float, Cpu>, std::vector<TableAndBias<Cpu>>> model;
  std::get<1>(model) = std::move(two);
  CHECK((first_table<float, Cpu>(model)) == &std::get<1>(model)[0].weight);
  CHECK((first_table<float, Cpu>(std::as_const(model))->extent(0)) == 4);
  CHECK((first_table<double, Cpu>(model)) == nullptr);
}

TEST_CASE("Table: a skipped table is empty until it is resized") {
  Cpu::Context ctx(1);
  auto table = counted(3, 2);
  table.skip();
  CHECK(table.is_skipped());
  CHECK(table.size() == 0);
  zero(ctx, table);
  Table<double, Cpu> other;
  other.resize_like(table);
  CHECK(other.is_skipped());
  other.resize(3, 2);
  CHECK_FALSE(other.is_skipped());
  CHECK(other.size() == 6);
}
