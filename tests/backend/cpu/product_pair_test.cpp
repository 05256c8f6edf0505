#include "gatefold/backend/cpu/product_pair.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;

namespace {

struct Activate {
  template <class A>
  typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v) const {
    return Gelu::value(v);
  }
};
struct ActivateScalar : Activate {
  static constexpr bool scalar_only = true;
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    return Relu::value(Activate{}(at, e, s, j, v));
  }
};
/// Returns act(v) w + e + s + bias[j], so that a wrong expert, slot or column shows.
template <class T>
struct Gated {
  const T* bias;
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v, typename A::Value w) const {
    return Silu::value(v) * w + at.load(bias + j) + T(e + s);
  }
};
/// Returns v + e + s + bias[j].
template <class T>
struct Last {
  const T* bias;
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    return v + at.load(bias + j) + T(e + s);
  }
};
/// Computes Gated after two separate products: reads v from `first`, and w is the sum of the second product.
template <class T>
struct GatedWith {
  View<const T, 2, Cpu> first;
  const T* bias;
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value w) const {
    return Gated<T>{bias}(at, e, s, j, at.load(&first(s, j)), w);
  }
};

template <class T>
struct Pair {
  Index depth, hidden, columns, count;
  std::vector<Index> offsets, rows;
  std::vector<T> x, up, more, down;

  Pair(std::vector<Index> counts, Index d, Index h, Index c) : depth(d), hidden(h), columns(c), offsets{0} {
    for (const Index n : counts) offsets.push_back(offsets.back() + n);
    const Index items = count = slots() / 2 + 1, experts = static_cast<Index>(counts.size());
    for (Index s = 0; s < slots(); ++s) rows.push_back(s * 7 % items);
    x = naive::random_vector<T>(items * depth, 1);
    up = naive::random_vector<T>(experts * depth * hidden, 2);
    more = naive::random_vector<T>(experts * depth * hidden, 3);
    down = naive::random_vector<T>(experts * hidden * columns, 4);
  }
  Index slots() const { return offsets.back(); }
  Index experts() const { return static_cast<Index>(offsets.size()) - 1; }
  Groups<Cpu> groups() const {
    return {View<const Index, 1, Cpu>(offsets.data(), experts() + 1), View<const Index, 1, Cpu>(rows.data(), slots()),
            slots()};
  }
  View<const T, 2, Cpu> items() const { return {x.data(), count, depth}; }
  cpu::PairBatch<T> batch(T* c) const {
    return {.a = {x.data(), depth, true, rows.data()},
            .up = {up.data()},
            .down = down.data(),
            .c = c,
            .depth = depth,
            .hidden = hidden,
            .columns = columns,
            .offsets = offsets.data(),
            .experts = experts()};
  }
  View<const T, 3, Cpu> matrix(const std::vector<T>& w, Index r, Index c) const { return {w.data(), experts(), r, c}; }
};

template <class T>
using Tensor2 = Tensor<T, 2, Cpu>;

template <class T>
bool same(const Tensor2<T>& a, const Tensor2<T>& b) {
  return a.size() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0;
}

template <class T, class E>
void check(const Pair<T>& p, const E& middle) {
  const auto up = p.matrix(p.up, p.depth, p.hidden), down = p.matrix(p.down, p.hidden, p.columns);
  Tensor2<T> hidden(p.slots(), p.hidden), expected(p.slots(), p.columns);
  Cpu::Context one(1);
  Cpu::grouped_gemm(one, p.groups(), p.items(), up, false, hidden.view(), middle);
  Cpu::grouped_gemm(one, p.groups().in_slot_order(), std::as_const(hidden).view(), down, false, expected.view(),
                    functor::Store{});
  for (const int threads : {1, 2, 3, 8}) {
    Cpu::Context ctx(threads, true);
    Tensor2<T> c(p.slots(), p.columns);
    Cpu::grouped_pair(ctx, p.groups(), p.items(), std::array{up}, middle, down, c.view(), functor::Store{});
    CHECK(same(c, expected));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("grouped_pair: equals two products, bit for bit" * doctest::skip(support::slow_build), T, float,
                   double) {
  // There are experts without rows, with a few rows (multiplied in place), with one tile and with many tiles. Most
  // widths are no multiple of the width of a tile.
  const std::vector<std::vector<Index>> counts{{3}, {0, 1, 8, 0, 9, 14, 15, 60}, {130, 0, 2}, {0, 0}};
  for (const auto& n : counts)
    for (const auto& [d, h, c] : {std::array<Index, 3>{5, 7, 3}, {33, 70, 41}, {270, 290, 40}}) {
      const Pair<T> p(n, d, h, c);
      check(p, Activate{});
      check(p, ActivateScalar{});
    }
}

TEST_CASE_TEMPLATE("grouped_pair: many small experts equal two products" * doctest::skip(support::slow_build), T, float,
                   double) {
  // The large experts have two blocks of rows for one thread, and for three.
  const std::vector<std::vector<Index>> counts{{340, 20, 9, 350, 0, 15, 1},
                                               {60, 126, 61, 62, 63, 64, 3, 65, 66, 67, 68, 69, 70, 57}};
  for (const auto& n : counts)
    for (const Index columns : {40, 64})  // with sums formed in c and without
      check(Pair<T>(n, 9, 270, columns), Activate{});
}

TEST_CASE_TEMPLATE("grouped_pair: few and many rows per expert equal two products", T, float, double) {
  // Experts with few rows read packed weights in another way than experts with many rows.
  check(Pair<T>({8, 9, 31, 23, 16, 19, 12, 10}, 128, 128, 128), Activate{});
}

TEST_CASE_TEMPLATE("grouped_pair: sums formed in whole panels of c are correct" * doctest::skip(support::slow_build), T,
                   float, double) {
  for (const auto& [d, h] : {std::array<Index, 2>{7, 0}, {7, 9}, {20, 300}, {270, 512}, {20, 600}})
    for (const Index panels : {1, 3})
      check(Pair<T>({130, 0, 1, 15, 61}, d, h, panels * cpu::Tile<T>::columns), Activate{});
}

TEST_CASE_TEMPLATE("grouped_pair: prepacked weights keep the bits of whole panels", T, float, double) {
  const Pair<T> p({130, 0, 1, 15, 61}, 270, 300, 2 * cpu::Tile<T>::columns);
  Cpu::Context ctx(3, true);
  Tensor2<T> expected(p.slots(), p.columns), c(p.slots(), p.columns);
  Cpu::grouped_pair(ctx, p.groups(), p.items(), std::array{p.matrix(p.up, p.depth, p.hidden)}, Activate{},
                    p.matrix(p.down, p.hidden, p.columns), expected.view(), functor::Store{});
  cpu::PackedWeights weights;
  weights.add<T>(ctx, p.up.data(), p.experts(), p.depth, p.hidden, Weights::unchanged);
  weights.add<T>(ctx, p.down.data(), p.experts(), p.hidden, p.columns, Weights::unchanged);
  const Activate middle;
  const functor::Store last;
  cpu::PairBatch<T> batch = p.batch(c.data());
  batch.packed_up[0] = weights.template find<T>(p.up.data());
  batch.packed_down = weights.template find<T>(p.down.data());
  cpu::ProductPair<T>::run(ctx, batch, cpu::HiddenEpilogue<T>::template with<1>(middle), cpu::Epilogue<T>::with(last));
  CHECK(same(c, expected));
}

TEST_CASE_TEMPLATE("grouped_pair: few rows with long hidden pieces equal two products", T, float, double) {
  // A hidden width of 600 has three chunks of Tile::depth columns, 2180 has nine, and 2041 has eight. The last chunks
  // are not full.
  check(Pair<T>({8, 0, 1, 3}, 270, 600, 40), Activate{});
  check(Pair<T>({8}, 270, 2180, 40), Activate{});
  check(Pair<T>({8, 1}, 270, 2041, 40), ActivateScalar{});
}

TEST_CASE_TEMPLATE("grouped_pair: empty sums are 0", T, float, double) {
  for (const auto& n : {std::vector<Index>{3}, {60}, {130, 0, 2}}) {
    check(Pair<T>(n, 0, 300, 5), Activate{});
    check(Pair<T>(n, 5, 0, 3), Activate{});
    check(Pair<T>(n, 5, 300, 0), Activate{});
  }
}

TEST_CASE_TEMPLATE("grouped_pair: accepts two first matrices and positional epilogues" *
                       doctest::skip(support::slow_build),
                   T, float, double) {
  using Shape = std::array<Index, 3>;
  for (const auto& [counts, shape] : {std::pair{std::vector<Index>{5, 0, 40, 12}, Shape{270, 290, 30}},
                                      {{8, 1}, {270, 2041, 30}},
                                      {{8}, {70, 2180, 30}},
                                      {{60, 3}, {0, 300, 5}}}) {
    const Pair<T> p(counts, shape[0], shape[1], shape[2]);
    const auto up = p.matrix(p.up, p.depth, p.hidden), more = p.matrix(p.more, p.depth, p.hidden),
               down = p.matrix(p.down, p.hidden, p.columns);
    Tensor2<T> first(p.slots(), p.hidden), hidden(p.slots(), p.hidden), expected(p.slots(), p.columns);
    Cpu::Context one(1);
    Cpu::grouped_gemm(one, p.groups(), p.items(), up, false, first.view(), functor::Store{});
    const auto of_hidden = naive::random_vector<T>(p.hidden, 8), of_columns = naive::random_vector<T>(p.columns, 9);
    const Gated<T> middle{of_hidden.data()};
    const Last<T> last{of_columns.data()};
    Cpu::grouped_gemm(one, p.groups(), p.items(), more, false, hidden.view(), GatedWith<T>{first, of_hidden.data()});
    Cpu::grouped_gemm(one, p.groups().in_slot_order(), std::as_const(hidden).view(), down, false, expected.view(),
                      last);
    for (const int threads : {1, 3}) {
      Cpu::Context ctx(threads, true);
      Tensor2<T> c(p.slots(), p.columns);
      Cpu::grouped_pair(ctx, p.groups(), p.items(), std::array{up, more}, middle, down, c.view(), last);
      CHECK(same(c, expected));
    }
  }
}

TEST_CASE("grouped_pair: has the same bits if memory forces several waves") {
  const Pair<float> p({100, 90, 80, 1, 70, 8, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 40, 600, 40);
  const auto up = p.matrix(p.up, p.depth, p.hidden), down = p.matrix(p.down, p.hidden, p.columns);
  Tensor2<float> expected(p.slots(), p.columns), c(p.slots(), p.columns);
  Cpu::Context ctx(3, true);
  Cpu::grouped_pair(ctx, p.groups(), p.items(), std::array{up}, Activate{}, down, expected.view(), functor::Store{});
  const Activate middle;
  const functor::Store last;
  cpu::PairBatch<float> batch = p.batch(c.data());
  cpu::ProductPair<float>::run(ctx, batch, cpu::HiddenEpilogue<float>::with<1>(middle),
                               cpu::Epilogue<float>::with(last), 1);
  CHECK(same(c, expected));
}

TEST_CASE_TEMPLATE("grouped_pair: blocks of many tiles equal two products", T, float, double) {
  // Tiles in one block of rows, depth, hidden width, columns.
  for (const auto& [tiles, d, h, c] : {std::array<Index, 4>{5, 256, 512, 320},
                                       {5, 512, 300, 300},
                                       {5, 127, 256, 64},
                                       {5, 129, 256, 64},
                                       {10, 3, 300, 40}}) {
    const Pair<T> p({tiles * cpu::Tile<T>::rows}, d, h, c);
    check(p, Activate{});
    const auto up = p.matrix(p.up, d, h), more = p.matrix(p.more, d, h), down = p.matrix(p.down, h, c);
    Tensor2<T> first(p.slots(), h), hidden(p.slots(), h), expected(p.slots(), c), result(p.slots(), c);
    Cpu::Context one(1);
    Cpu::grouped_gemm(one, p.groups(), p.items(), up, false, first.view(), functor::Store{});
    const auto bias = naive::random_vector<T>(h, 8);
    Cpu::grouped_gemm(one, p.groups(), p.items(), more, false, hidden.view(), GatedWith<T>{first, bias.data()});
    Cpu::grouped_gemm(one, p.groups().in_slot_order(), std::as_const(hidden).view(), down, false, expected.view(),
                      functor::Store{});
    Cpu::grouped_pair(one, p.groups(), p.items(), std::array{up, more}, Gated<T>{bias.data()}, down, result.view(),
                      functor::Store{});
    CHECK(same(result, expected));
  }
}
