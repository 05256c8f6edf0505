// Sums over the slots of each expert: in the documented order, whatever the other experts have.
#include "gatefold/backend/cuda/grouped_sum.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Returns the sums of a matrix of `columns` columns, added to the values before or stored over NaN.
template <class T>
std::vector<T> sums_of(const std::vector<Index>& counts, Index columns, const std::vector<T>& dc, bool accumulate) {
  Cuda::Context ctx;
  std::vector<Index> offsets{0};
  for (const Index count : counts) offsets.push_back(offsets.back() + count);
  const Index experts = static_cast<Index>(counts.size()), slots = static_cast<Index>(dc.size()) / columns;
  DeviceArray<Index> on_device(ctx, offsets);
  DeviceArray<T> from(ctx, dc),
      to(ctx, std::vector<T>(static_cast<std::size_t>(experts * columns), accumulate ? T(0.5) : T(std::nan(""))));
  Cuda::grouped_sum(ctx, Groups<Cuda>{on_device.in(experts + 1), {}, slots}, from.in(slots, columns),
                    to.as(experts, columns), accumulate);
  return to.values();
}

template <class T>
void check(const std::vector<Index>& counts, Index columns, Index more = 3) {
  CAPTURE(counts.size());
  CAPTURE(columns);
  Index slots = more;
  for (const Index count : counts) slots += count;
  const auto dc = random_vector<T>(slots * columns, 5);
  for (const bool accumulate : {true, false}) {
    std::vector<T> expected;
    Index s = 0;
    for (const Index count : counts) {
      for (Index j = 0; j < columns; ++j) {
        std::vector<T> terms;
        for (Index i = s; i < s + count; ++i) terms.push_back(dc[static_cast<std::size_t>(i * columns + j)]);
        const T sum = sum_in_two_levels(terms, columns);
        expected.push_back(!accumulate ? sum : count == 0 ? T(0.5) : T(0.5) + sum);
      }
      s += count;
    }
    CHECK(difference(expected, sums_of(counts, columns, dc, accumulate)) == "");
  }
}

template <class T>
void check_all() {
  for (const Index columns : {1, 2, 3, 8, 9, 31, 32, 33, 70}) check<T>({5, 0, 1, 300}, columns);
  for (const Index count : {255, 256, 257, 511, 512, 513, 2000}) check<T>({count}, 4);
  check<T>({0, 255, 0, 257, 1, 0}, 5);
  check<T>({0, 0}, 5);
  check<T>({}, 5);
  check<T>({70'000}, 1, 0);  // partial sums take more than one round
  check<T>(std::vector<Index>(70, 9), 3);
}

}  // namespace

TEST_CASE("sum_width: rounds columns up to a power of two") {
  for (const auto& [columns, width] : {std::pair(1, 1), std::pair(2, 2), std::pair(3, 4), std::pair(8, 8),
                                       std::pair(17, 32), std::pair(32, 32), std::pair(1000, 32)})
    CHECK(detail_::device::sum_width(columns) == width);
}
TEST_CASE_TEMPLATE("cuda: grouped_sum: sums in the documented order, added or stored", T, double, float) {
  check_all<T>();
}
TEST_CASE("cuda: grouped_sum: an expert's bits do not depend on others") {
  const Index columns = 6, count = 200;
  const auto own = random_vector<float>(count * columns, 1);
  auto others = random_vector<float>(1000 * columns, 2);
  const auto alone = sums_of({count}, columns, own, false);
  others.insert(others.begin(), own.begin(), own.end());
  auto among = sums_of({count, 1000}, columns, others, false);
  among.resize(static_cast<std::size_t>(columns));
  CHECK(difference(alone, among) == "");
}
TEST_CASE("cuda: grouped_sum: many rows are not summed in one chain") {
  // Each addition rounds by up to half a unit in the last place of the sum so far. One long chain would have an
  // error of about 600 times the bound below.
  const Index n = 1 << 16;
  const std::vector<float> tenths(static_cast<std::size_t>(n), 0.1f);
  const float sum = sums_of({n}, 1, tenths, false)[0];
  CHECK(std::abs(sum - n * static_cast<double>(0.1f)) < 1e-6 * n * 0.1);
}
