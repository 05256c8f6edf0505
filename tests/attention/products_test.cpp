#include "gatefold/attention/products.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/followed.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

// Attention reads keys and values in place on CPUs (few_rows.hpp).
template <class B>
concept ReadsInPlace = requires(typename B::Context& ctx, Groups<B> g, View<const float, 2, B> a,
                                View<const float, 3, B> w, View<float, 2, B> c) {
  FullPrecision<B>::grouped_gemm_in_place(ctx, g, a, w, true, c, functor::Store{});
};
static_assert(ReadsInPlace<Cpu> && ReadsInPlace<CpuBf16>);

TEST_CASE("block products: each row uses the keys of its head") {
  for (const Index length : {5, 256, 300}) {
    CAPTURE(length);
    const Index items = 2 * length, heads = 3, dim = 2;
    Followed f(heads, items, length);
    const auto queries = uniform_tensor<double>(f.ctx, Seed{1}, 1, items, dim);
    const auto keys = uniform_tensor<double>(f.ctx, Seed{2}, 1, heads * items, dim);
    detail_::attending::for_each_block(
        f.ctx, items, length, true, detail_::attending::Following<Cpu>::size,
        [&](auto& own, const detail_::attending::Block& b) {
          auto mark = own.mark();
          const auto s = detail_::attending::Products<double, Cpu>(own, b, {}, f.following).scores(own, queries, keys);
          for (Index r = 0; r < b.all_rows(); ++r)
            for (Index j = 0; j < b.keys; ++j) {
              const Index row = b.row + r, key = f.following.key_for(f.following.item(row), b.first_key(r) + j);
              const double dot = queries(row, 0) * keys(key, 0) + queries(row, 1) * keys(key, 1);
              REQUIRE(s(r, j) == doctest::Approx(dot).epsilon(1e-13));
            }
        });
  }
}

TEST_CASE("block products: sums equal loops; unused rows stay untouched") {
  constexpr Index length = 5, slots = 6, items = length * slots, dim = 3;
  Cpu::Context ctx(1);
  const auto q = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
             k = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
  const std::vector<Index> offsets{2, 3, 3, 5}, none{4, 4}, after{6, 6};
  for (const auto* of : {&offsets, &none, &after})
    for (const detail_::attending::BlockSize size :
         {detail_::attending::BlockSize{}, detail_::attending::BlockSize{5, 10}, detail_::attending::BlockSize{3, 2}}) {
      const detail_::attending::InUse<Cpu> in_use{*of, length};
      auto sums = constant_tensor<double>(ctx, 7, items, dim), transposed = constant_tensor<double>(ctx, 7, items, dim);
      std::vector<double> expected(std::size_t(items * dim), 7), expected_transposed = expected;
      detail_::attending::for_each_block(ctx, items, length, false, size,
                                         [&](auto& own, const detail_::attending::Block& b) {
                                           auto mark = own.mark();
                                           const detail_::attending::Products<double, Cpu> products(own, b, in_use);
                                           auto s = products.scores(own, q, k);
                                           for (Index r = 0; r < b.all_rows(); ++r)
                                             for (Index j = 0; j < b.keys; ++j) {
                                               const Index i = b.row + r, key = b.first_key(r) + j;
                                               if (!in_use.has(i)) {
                                                 s(r, j) = quiet_nan;  // must not be read
                                                 continue;
                                               }
                                               double dot = 0;
                                               for (Index d = 0; d < dim; ++d) dot += q(i, d) * k(key, d);
                                               REQUIRE(s(r, j) == doctest::Approx(dot).epsilon(1e-13));
                                               for (Index d = 0; d < dim; ++d) {
                                                 expected[std::size_t(i * dim + d)] += dot * k(key, d);
                                                 expected_transposed[std::size_t(key * dim + d)] += dot * q(i, d);
                                               }
                                             }
                                           products.add(own, s, k, sums);
                                           products.add_transposed(own, s, q, transposed);
                                         });
      CHECK(difference(values(sums), expected) <= 1e-13);
      CHECK(difference(values(transposed), expected_transposed) <= 1e-13);
    }
}

TEST_CASE("block products: an item may have several keys") {
  constexpr Index length = 4, items = 12, dim = 3, wide = 2;
  Cpu::Context ctx(1);
  const auto q = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
             k = uniform_tensor<double>(ctx, Seed{2}, 1, items * wide, dim);
  Index pairs = 0;
  for (const detail_::attending::BlockSize size :
       {detail_::attending::BlockSize{}, detail_::attending::BlockSize{3, 4}})
    detail_::attending::for_each_block(
        ctx, items, length, false, size, [&](auto& own, const detail_::attending::Block& b) {
          auto mark = own.mark();
          const auto s = detail_::attending::Products<double, Cpu>(own, b).with_keys(wide).scores(own, q, k);
          for (Index r = 0; r < b.all_rows(); ++r)
            for (Index j = 0; j < length * wide; ++j, ++pairs) {
              double dot = 0;
              for (Index d = 0; d < dim; ++d) dot += q(b.row + r, d) * k(b.first_key(r) * wide + j, d);
              REQUIRE(s(r, j) == doctest::Approx(dot).epsilon(1e-13));
            }
        });
  CHECK(pairs == 2 * items * length * wide);
}

TEST_CASE("even_groups: gives every group the same number of slots") {
  Cpu::Context ctx(1);
  auto mark = ctx.mark();
  const auto groups = detail_::attending::even_groups(ctx, 3, 4);
  CHECK(groups.experts() == 3);
  CHECK(groups.slots == 12);
  for (Index s = 0; s < 12; ++s) CHECK(groups.expert(s) == s / 4);
}
