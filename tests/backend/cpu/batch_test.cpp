#include "gatefold/backend/cpu/batch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace gatefold;

using cpu::Batch;

TEST_CASE("Batch, slots as rows: returns the operands of each expert") {
  const std::vector<Index> offsets{0, 3, 3, 8}, rows(8);
  std::vector<float> a(1), b(1), c(1), packed(1);
  Batch<float> batch{.all = {.a = {a.data(), 4, true, rows.data()},
                             .b = {b.data(), 5, false},
                             .c = c.data(),
                             .c_stride = 5,
                             .rows = 0,
                             .columns = 5,
                             .depth = 4,
                             .first = 0,
                             .packed = {packed.data(), nullptr}},
                     .slots = Batch<float>::Slots::are_rows,
                     .offsets = offsets.data(),
                     .experts = 3,
                     .most_slots = 10};
  const auto p = batch[2];
  CHECK(p.rows == 5);
  CHECK(p.first == 3);
  CHECK(p.a.rows == rows.data() + 3);
  CHECK(p.b.data == b.data() + 2 * 4 * 5);
  CHECK(p.c == c.data() + 3 * 5);
  CHECK(p.packed.full == packed.data() + 2 * cpu::PackedMatrix<float>::size(4, 5));
  CHECK(batch[1].rows == 0);
  CHECK(batch.most_rows() == 10);
  CHECK(batch.most_depth() == 4);
}

TEST_CASE("Batch, slots as depth: empty experts keep or clear sums") {
  const std::vector<Index> offsets{0, 3, 3};
  std::vector<float> a(1), b(1), c(1);
  Batch<float> batch{.all = {.a = {a.data(), 4, false},
                             .b = {b.data(), 5, false},
                             .c = c.data(),
                             .c_stride = 5,
                             .rows = 4,
                             .columns = 5,
                             .depth = 0,
                             .first = 0},
                     .slots = Batch<float>::Slots::are_depth,
                     .offsets = offsets.data(),
                     .experts = 2,
                     .accumulate = true};
  CHECK(batch[0].depth == 3);
  CHECK(batch[0].rows == 4);
  CHECK(batch[1].c == c.data() + 20);
  CHECK(batch[1].a.data == a.data() + 3 * 4);
  CHECK(batch[1].b.data == b.data() + 3 * 5);
  CHECK(batch[1].depth == 0);
  CHECK(batch[1].rows == 0);
  batch.accumulate = false;
  CHECK(batch[1].rows == 4);
  CHECK(batch.most_depth() == 3);
}

TEST_CASE("PairBatch: computes the sizes of its weights") {
  const std::vector<Index> offsets{0, 3, 9};
  const cpu::PairBatch<double> b{
      .ups = 2, .depth = 300, .hidden = 600, .columns = 7, .offsets = offsets.data(), .experts = 2, .slots = 4};
  CHECK(b.blocks() == 2);
  CHECK(b.chunks() == 3);
  CHECK(b.packed_size() == 2 * cpu::PackedMatrix<double>::size(300, 600) + cpu::PackedMatrix<double>::size(600, 7));
  CHECK(b.work(3) == 3 * 600 * (2 * 300 + 7));
  CHECK(b.rows(1) == 6);
  CHECK(b.most_slots() == 9);  // more than b.slots, because offsets has 9 slots
  CHECK(!b.prepacked());
}

TEST_CASE_TEMPLATE("nanoseconds: returns the longer of arithmetic and weight-reading time", T, float, double) {
  const double products = 3.0 * cpu::Register<T>::size, weights = 24;  // per nanosecond, as in Tuning
  const auto longer = [&](Index work, Index read) {
    return std::max(static_cast<double>(work) / products, static_cast<double>(read) / weights);
  };
  // Experts of 1, 0 and 90 rows; expert 1 reads no weights.
  const std::vector<Index> offsets{0, 1, 1, 91};
  std::vector<T> memory(1);
  Batch<T> batch{.all = {.a = {memory.data(), 40, true},
                         .b = {memory.data(), 50, false},
                         .c = memory.data(),
                         .c_stride = 50,
                         .rows = 0,
                         .columns = 50,
                         .depth = 40,
                         .first = 0},
                 .slots = Batch<T>::Slots::are_rows,
                 .offsets = offsets.data(),
                 .experts = 3};
  CHECK(batch.nanoseconds() == (longer(91 * 50 * 40, 2 * 50 * 40)));
  const std::vector<Index> one{0, 1, 1, 2};
  batch.offsets = one.data();
  CHECK(batch.nanoseconds() == (longer(2 * 50 * 40, 2 * 50 * 40)));

  const cpu::PairBatch<T> pair{
      .ups = 2, .depth = 40, .hidden = 60, .columns = 50, .offsets = offsets.data(), .experts = 3};
  CHECK(pair.nanoseconds() == (longer(91 * 60 * (2 * 40 + 50), 2 * 60 * (2 * 40 + 50))));
}

using gatefold::cpu::WeightPath;

TEST_CASE("WeightPath: values are numbered without gaps") {
  constexpr int paths = 4;
  CHECK(static_cast<int>(WeightPath::prepacked) == 0);
  CHECK(static_cast<int>(WeightPath::by_task) == paths - 1);
}
