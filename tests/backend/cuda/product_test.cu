// The grouped products: bit for bit the documented chains of fused multiply-adds.
#include "gatefold/backend/cuda/product.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/graph.cuh"
#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Row counts at the edges of tiles of 16, 32, 64 and 128 rows, and experts without rows in front, in the middle and at
/// the end.
const std::vector<Index> kEdges = {0, 1, 15, 16, 17, 31, 33, 0, 127, 128, 129, 300, 0};

/// Returns these counts followed by empty experts, `experts` in all.
std::vector<Index> with_empty_experts(std::vector<Index> counts, std::size_t experts) {
  counts.resize(experts);
  return counts;
}

/// Returns the counts of more experts than a warp has lanes. Every fifth expert is empty.
std::vector<Index> many_experts(Index experts) {
  std::vector<Index> counts;
  for (Index e = 0; e < experts; ++e) counts.push_back(e % 5 == 3 ? 0 : 1 + e * 7 % 19);
  return counts;
}

/// Checks operands that are transposed or not, gathered or not, and aligned or not. Unaligned operands are either
/// transposed or gathered.
template <class T>
void check_layouts(const std::vector<Index>& counts, Index depth, Index columns) {
  Cuda::Context ctx;
  for (int way = 0; way < 4; ++way)
    for (const auto& [a_skip, w_skip] : {std::pair(0, 0), std::pair(1, 0), std::pair(0, 1)}) {
      if (way % 3 == 0 && a_skip + w_skip > 0) continue;
      const ProductCase c{counts, depth, columns, way / 2 == 1, way % 2 == 1, a_skip, w_skip};
      CAPTURE(c);
      CHECK(difference_of_product<T>(ctx, c) == "");
    }
}

template <class T>
void check_edges() {
  Cuda::Context ctx;
  const auto few = with_empty_experts(kEdges, 28);
  for (const auto& [depth, columns] : {std::pair(4, 4), std::pair(64, 4), std::pair(4, 132), std::pair(36, 64)}) {
    for (const auto& counts : {kEdges, few}) {
      const ProductCase c{.counts = counts, .depth = depth, .columns = columns, .gather = columns == 64};
      CAPTURE(c);
      CHECK(difference_of_product<T>(ctx, c) == "");
    }
  }
  for (const auto& [depth, columns] :
       {std::pair(1, 1), std::pair(3, 5), std::pair(5, 3), std::pair(65, 1), std::pair(1, 65)}) {
    const ProductCase c{.counts = kEdges, .depth = depth, .columns = columns, .gather = columns == 3};
    CAPTURE(c);
    CHECK(difference_of_product<T>(ctx, c) == "");
  }
}

/// Returns the number of rounds of blocks of a product, which decides about the kernel.
template <class T, int Matrices>
Index rounds_of(const Cuda::Context& ctx, const ProductCase& c) {
  using Shape = detail_::device::ManyTiles<T, Matrices>;
  return c.slots() / Shape::rows * detail_::device::blocks(c.columns, Shape::columns) /
         detail_::device::blocks_at_once<Shape>(ctx.multiprocessors());
}

/// Checks blocks that take several tiles of the largest shape and share some of them, and blocks of one tile each.
template <class T>
void check_many_tiles() {
  Cuda::Context ctx;
  for (const bool transpose : {false, true})
    for (const Index rounds : {Index(1), Index(2), detail_::device::kManyRounds}) {
      ProductCase c = many_tiles<T, 1>(ctx, rounds, rounds > 2 ? 20 : 76);
      c.transpose = transpose;
      c.gather = !transpose;
      c.first = 7;
      CAPTURE(c);
      REQUIRE((rounds_of<T, 1>(ctx, c) >= detail_::device::kManyRounds) == (rounds == detail_::device::kManyRounds));
      CHECK(difference_of_product<T>(ctx, c) == "");
    }
  for (const Index rounds : {Index(1), detail_::device::kManyRounds}) {
    const ProductCase two = many_tiles<T, 2>(ctx, rounds, 20);
    CAPTURE(two);
    REQUIRE((rounds_of<T, 2>(ctx, two) >= detail_::device::kManyRounds) == (rounds == detail_::device::kManyRounds));
    CHECK(difference_of_pair<T, 2>(ctx, two, 12) == "");
  }
}

/// Checks a product whose blocks stay on the device and share tiles. If a captured graph with the product runs
/// repeatedly, each run must give the bits of a plain launch and lower the flags again.
void check_replay() {
  Cuda::Context ctx;
  using Shape = detail_::device::ManyTiles<float, 1>;
  const ProductCase c = many_tiles<float, 1>(ctx, 2, 5 * Shape::depth - 4);
  CAPTURE(c);
  Index row_tiles = 0;
  for (const Index count : c.counts) row_tiles += detail_::device::blocks(count, Shape::rows);
  for (const Index blocks : {ctx.multiprocessors(), Shape::blocks * ctx.multiprocessors()}) {
    const detail_::device::Schedule schedule(row_tiles * detail_::device::blocks(c.columns, Shape::columns), 5, blocks);
    bool shared = false;
    for (Index block = 0; block < blocks; ++block)
      for (Index n = 0; schedule.part(block, n).tile >= 0; ++n) shared = shared || schedule.part(block, n).begin > 0;
    REQUIRE(shared);
  }
  BothGroups groups(ctx, c);
  DeviceArray<float> a(ctx, random_vector<float>(c.items() * c.depth, 1)),
      w(ctx, random_vector<float>(c.experts() * c.depth * c.columns, 2)),
      bias(ctx, random_vector<float>(c.experts() * c.columns, 3));
  const std::vector<float> before(static_cast<std::size_t>(c.slots() * c.columns), -77);
  DeviceArray<float> out(ctx, before), kept(ctx, before);
  const auto run = [&] {
    Cuda::grouped_gemm(ctx, groups.on_device(), a.in(c.items(), c.depth), w.in(c.experts(), c.depth, c.columns), false,
                       out.as(c.slots(), c.columns), BiasAndKeep<float>{bias.data(), kept.data(), c.columns});
  };
  const auto flags_are_lowered = [&] {
    std::vector<int> flags(static_cast<std::size_t>(detail_::device::Flags::each * ctx.multiprocessors()), -1);
    Cuda::to_host(ctx, static_cast<Index>(flags.size()), ctx.flags(), flags.data());
    return flags == std::vector<int>(flags.size(), 0);
  };
  run();
  const std::vector<float> expected = out.values();
  CHECK(expected != before);
  CHECK(flags_are_lowered());

  const Graph graph(ctx.stream(), run);
  for (int launch = 0; launch < 2; ++launch) {
    Cuda::from_host(ctx, static_cast<Index>(before.size()), before.data(), out.data());
    graph.launch();
    CHECK(difference(expected, out.values()) == "");
    CHECK(flags_are_lowered());
  }
  Cuda::from_host(ctx, static_cast<Index>(before.size()), before.data(), out.data());
  run();  // a plain launch after those of the graph gives the same bits
  CHECK(difference(expected, out.values()) == "");
}

/// Checks few rows of an expert, in narrow and wide strips of columns, with several rounds of the ring.
template <class T>
void check_strips() {
  Cuda::Context ctx;
  for (const Index columns : {Index(36), 32 * ctx.multiprocessors() + Index(4)}) {
    const ProductCase c{.counts = {1, 5, 16, 17}, .depth = 420, .columns = columns, .gather = true, .first = 7};
    CAPTURE(c);
    CHECK(difference_of_product<T>(ctx, c) == "");
    CHECK(difference_of_pair<T, 2>(ctx, c, 12) == "");
  }
}

template <class T>
void check_many_experts() {
  Cuda::Context ctx;
  for (const Index experts : {32, 33, 70})
    for (const Index columns : {4, 5}) {
      const ProductCase c{.counts = many_experts(experts), .depth = 4, .columns = columns, .gather = true};
      CAPTURE(c);
      CHECK(difference_of_product<T>(ctx, c) == "");
    }
}

/// Returns the first row of a product of one expert with `rows` items. The first item does not depend on `rows`.
template <class T>
std::vector<T> first_row_among(Index rows, Index depth, Index columns, bool transpose) {
  Cuda::Context ctx;
  auto items = random_vector<T>(300 * depth, 8);
  items.resize(static_cast<std::size_t>(rows * depth));
  DeviceArray<T> a(ctx, items), w(ctx, random_vector<T>(depth * columns, 9)),
      bias(ctx, std::vector<T>(static_cast<std::size_t>(columns))),
      kept(ctx, std::vector<T>(static_cast<std::size_t>(rows * columns))), c(ctx, kept.values());
  DeviceArray<Index> offsets(ctx, {0, rows});
  Cuda::grouped_gemm(ctx, Groups<Cuda>{offsets.in(2), {}, rows}, a.in(rows, depth),
                     weights_view(w, 1, depth, columns, transpose), transpose, c.as(rows, columns),
                     BiasAndKeep<T>{bias.data(), kept.data(), columns});
  auto all = c.values();
  all.resize(static_cast<std::size_t>(columns));
  return all;
}

template <class T>
void check_independence() {
  for (const auto& shape : {std::pair(64, 40), std::pair(33, 7)})
    for (const bool transpose : {false, true}) {
      const Index depth = shape.first, columns = shape.second;
      CAPTURE(columns);
      CAPTURE(transpose);
      const auto alone = first_row_among<T>(1, depth, columns, transpose);
      CHECK(std::abs(alone[0]) > 0);
      for (const Index rows : {2, 20, 300}) {
        CAPTURE(rows);
        CHECK(difference(alone, first_row_among<T>(rows, depth, columns, transpose)) == "");
      }
    }
}

/// Checks products over slots that begin after the slots of other experts and end before the bound on the number of
/// slots.
template <class T>
void check_part_of_slots() {
  Cuda::Context ctx;
  for (const bool gather : {false, true})
    for (const Index columns : {5, 8}) {
      const ProductCase c{
          .counts = {2, 0, 40}, .depth = 12, .columns = columns, .gather = gather, .first = 7, .more = 50};
      CAPTURE(c);
      CHECK(difference_of_product<T>(ctx, c) == "");
    }
}

template <class T>
void check_pairs() {
  Cuda::Context ctx;
  const std::vector<Index> few{0, 3, 17, 0, 1}, many{0, 3, 0, 130, 97};
  for (const auto& counts : {few, many}) {
    for (const Index last : {20, 9}) {
      const ProductCase c{.counts = counts, .depth = 12, .columns = 68, .gather = true};
      CAPTURE(c);
      CHECK(difference_of_pair<T, 1>(ctx, c, last) == "");
      CHECK(difference_of_pair<T, 2>(ctx, c, last) == "");
    }
    const ProductCase odd{.counts = counts, .depth = 5, .columns = 33};
    CAPTURE(odd);
    CHECK(difference_of_pair<T, 2>(ctx, odd, 12) == "");
  }
}

template <class T>
void check_nothing() {
  Cuda::Context ctx;
  const auto check = [&](const ProductCase& c) {
    CAPTURE(c);
    CHECK(difference_of_product<T>(ctx, c) == "");
  };
  check({.counts = {}, .depth = 4, .columns = 4});
  check({.counts = {0, 0, 0}, .depth = 4, .columns = 4});
  check({.counts = {0}, .depth = 4, .columns = 4, .more = 0});
  check({.counts = {3, 2}, .depth = 4, .columns = 0});
  for (const Index columns : {4, 5}) check({.counts = {3, 2}, .depth = 0, .columns = columns});
  check({.counts = {100}, .depth = 0, .columns = 4});
}

/// Returns a random case with even or skewed counts, empty experts and any layout.
ProductCase random_case(unsigned seed) {
  std::mt19937 generator(seed);
  const auto from = [&](Index least, Index most) {
    return least + static_cast<Index>(generator() % static_cast<unsigned>(most - least + 1));
  };
  ProductCase c{.counts = std::vector<Index>(static_cast<std::size_t>(from(1, from(0, 3) == 0 ? 40 : 8))),
                .depth = from(1, from(0, 2) == 0 ? 140 : 24),
                .columns = from(1, from(0, 2) == 0 ? 150 : 24),
                .transpose = from(0, 1) == 1,
                .gather = from(0, 1) == 1,
                .a_skip = from(0, 2),
                .w_skip = from(0, 2),
                .first = from(0, 9),
                .more = from(0, 9)};
  const Index work = 600'000, most = std::clamp<Index>(work / (c.depth * c.columns), 4, 300);
  const Index skew = from(0, 2), favoured = from(0, c.experts() - 1);
  for (Index e = 0, left = most; e < c.experts(); ++e) {
    Index n = skew == 0 ? from(0, 9) : skew == 1 ? (e == favoured ? most : from(0, 2)) : from(0, 1) * from(0, most / 2);
    n = std::min(n, left);
    left -= n;
    c.counts[static_cast<std::size_t>(e)] = n;
  }
  return c;
}
template <class T>
void check_random(unsigned cases) {
  Cuda::Context ctx;
  for (unsigned seed = 1; seed <= cases; ++seed) {
    CAPTURE(seed);
    const ProductCase c = random_case(seed);
    CAPTURE(c);
    CHECK(difference_of_product<T>(ctx, c) == "");
    const Index last = 1 + static_cast<Index>(seed % 40);
    CHECK(difference_of_pair<T, 1>(ctx, c, last) == "");
    CHECK(difference_of_pair<T, 2>(ctx, c, last) == "");
  }
}
#if defined(GATEFOLD_SLOW_TESTS)
constexpr unsigned kRandomCases = 300;
#else
constexpr unsigned kRandomCases = 12;
#endif

}  // namespace

TEST_CASE_TEMPLATE("cuda: grouped_gemm: equals loops for random cases", T, double, float) {
  check_random<T>(kRandomCases);
}
TEST_CASE_TEMPLATE("cuda: grouped_gemm: equals loops for any rows per expert", T, double, float) { check_edges<T>(); }
TEST_CASE_TEMPLATE("cuda grouped_gemm: correct with more tiles than resident blocks", T, double, float) {
  check_many_tiles<T>();
}
TEST_CASE("cuda: grouped_gemm: captured and replayed while blocks share tiles") { check_replay(); }
TEST_CASE_TEMPLATE("cuda: grouped_gemm: narrow and wide strips equal loops", T, double, float) { check_strips<T>(); }
TEST_CASE_TEMPLATE("cuda: grouped_gemm: equals loops for 32, 33 and 70 experts", T, double, float) {
  check_many_experts<T>();
}
TEST_CASE_TEMPLATE("cuda: grouped_gemm: a row's bits are independent of batch", T, double, float) {
  check_independence<T>();
}
TEST_CASE_TEMPLATE("cuda: grouped_gemm: does not touch slots of other experts", T, double, float) {
  check_part_of_slots<T>();
}
TEST_CASE_TEMPLATE("cuda: grouped_pair: accepts one or two first matrices", T, double, float) { check_pairs<T>(); }
TEST_CASE_TEMPLATE("cuda: grouped_gemm: accepts empty slots, experts, columns or depth", T, double, float) {
  check_nothing<T>();
}
TEST_CASE_TEMPLATE("cuda: grouped_gemm: accepts any memory layout of operands", T, double, float) {
  check_layouts<T>({0, 3, 129, 33}, 64, 132);
  check_layouts<T>({5, 0, 20}, 68, 36);
  check_layouts<T>({5, 0, 20}, 65, 3);
}
