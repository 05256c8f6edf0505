#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/expert/activation.hpp"
#include "support/bounded.hpp"
#include "support/engine_cases.hpp"
#include "support/quantised.hpp"
#include "support/slow_build.hpp"

/// Products with weights of 8 and 4 bits in the whole engine: random shapes, skews and numbers of threads.

using namespace gatefold;
using engine_cases::Choice;
using engine_cases::same_bits;
using engine_cases::Slots;

namespace {

template <class B>
using Matrix = Tensor<float, 2, B>;

/// Weights [E, depth, columns]. add() packs a quantised copy. The products find this copy by the address of the view.
template <class B>
struct Quantised {
  Index experts, depth, columns;
  std::vector<float> values;

  Quantised(Choice& choose, Index e, Index d, Index c) : experts(e), depth(d), columns(c) {
    values = choose.numbers<float>(e * d * c);
  }
  View<const float, 3, B> add(typename B::Context& ctx, Weights form, cpu::PackedWeights& packed) const {
    B::pack(ctx, view(), form, packed);
    return view();
  }
  View<const float, 3, B> view() const { return {values.data(), experts, depth, columns}; }
};

struct Gelu1 {
  template <class A, class V>
  V operator()(const A&, Index, Index, Index, V v) const {
    return Gelu::value(v);
  }
};
struct Silu2 {
  template <class A, class V>
  V operator()(const A&, Index, Index, Index, V v, V w) const {
    return Silu::value(v) * w;
  }
};
/// The second step of Silu2: the first values are read from memory.
struct SiluWith {
  View<const float, 2, Cpu> first;
  template <class A, class V>
  V operator()(const A& at, Index, Index s, Index j, V w) const {
    return Silu::value(at.load(&first(s, j))) * w;
  }
};

/// Computes products c = a w, one for each expert.
template <class B>
Matrix<B> product(int threads, Weights form, const Slots& slots, const std::vector<float>& a, const Quantised<B>& w) {
  typename B::Context ctx(threads, true);  // also divides products that are slower with threads
  cpu::PackedWeights packed;
  const auto weights = w.add(ctx, form, packed);
  const auto use = ctx.use(packed);
  Matrix<B> c(slots.count() + slots.spare, w.columns);
  B::grouped_gemm(ctx, slots.groups<B>(), View<const float, 2, B>(a.data(), slots.items, w.depth), weights, false,
                  c.view(), functor::Store{});
  return c;
}

/// Returns an environment variable that is a number, or `otherwise` if it is not set.
Index variable(const char* name, Index otherwise) {
  const char* text = std::getenv(name);
  return text ? std::stoll(text) : otherwise;
}
/// The random cases that each test runs: those from first_case() on, below end_of_cases(). Several processes can share
/// many cases.
Index first_case() { return variable("GATEFOLD_QUANTISED_FIRST", 0); }
Index end_of_cases() { return first_case() + variable("GATEFOLD_QUANTISED_CASES", support::slow_build ? 12 : 40); }

}  // namespace

TEST_CASE("quantised products: equal plain loops within their bounds") {
  for (Index i = first_case(); i < end_of_cases(); ++i) {
    Choice choose(static_cast<std::uint64_t>(i));
    const Weights form = naive::quantised_forms[choose.below(3)];
    const Slots slots(choose, 60);
    const Index depth = choose.one_in(3) ? choose.from(250, 600) : choose.from(1, 100), columns = choose.from(1, 90);
    const auto a = choose.numbers<float>(slots.items * depth);
    const Quantised<Cpu> w(choose, slots.experts(), depth, columns);
    const Matrix<Cpu> c = product<Cpu>(1, form, slots, a, w);
    const std::vector<Index> owners = slots.owners();
    int wrong = 0;
    for (Index n = 0; n < 40 && slots.count() > 0; ++n) {  // some elements, because plain loops are slow
      const Index s = choose.below(slots.count()), j = choose.below(columns);
      const Index row = slots.rows[std::size_t(s)], e = owners[std::size_t(s)];
      const naive::QuantisedSum sum = naive::quantised_dot(
          form, depth, [&](Index k) { return a[std::size_t(row * depth + k)]; },
          [&](Index k) { return w.values[std::size_t((e * depth + k) * columns + j)]; });
      // At most a product, a scale and two sums are rounded for each group of 32 terms.
      const double terms = static_cast<double>(depth) / 32 + 2;
      wrong += !(std::abs(double(c(s, j)) - sum.value) <= 0x1p-24 * 4 * terms * sum.magnitude);
    }
    CAPTURE(i);
    CHECK(wrong == 0);
  }
}

TEST_CASE("quantised products: threads, batch and CpuBf16 change no bits") {
  for (Index i = first_case(); i < end_of_cases(); ++i) {
    Choice choose(static_cast<std::uint64_t>(1000000 + i));
    const Weights form = naive::quantised_forms[choose.below(3)];
    const Slots slots(choose, 100);
    const Index depth = choose.one_in(3) ? choose.from(250, 600) : choose.from(1, 100), columns = choose.from(1, 90);
    const auto a = choose.numbers<float>(slots.items * depth);
    const Quantised<Cpu> w(choose, slots.experts(), depth, columns);
    Quantised<CpuBf16> half(choose, 1, 1, 1);
    half = {choose, slots.experts(), depth, columns};
    half.values = w.values;
    const Matrix<Cpu> one = product<Cpu>(1, form, slots, a, w);
    const Index elements = slots.count() * columns;
    CAPTURE(i);
    CHECK(same_bits(product<Cpu>(static_cast<int>(choose.from(2, 4)), form, slots, a, w).data(), one.data(), elements));
    CHECK(same_bits(product<CpuBf16>(2, form, slots, a, half).data(), one.data(), elements));
    if (slots.count() == 0) continue;
    // One slot alone.
    const Index s = choose.below(slots.count()), e = slots.owners()[std::size_t(s)];
    Slots alone = slots;
    for (std::size_t at = 0; at < alone.offsets.size(); ++at) alone.offsets[at] = Index(at) > e;
    alone.rows = {slots.rows[std::size_t(s)]};
    alone.spare = 0;
    CHECK(same_bits(product<Cpu>(1, form, alone, a, w).data(), &one(s, 0), columns));
  }
}

TEST_CASE("quantised products: large products are shared between threads") {
  struct Counting {
    int calls = 0;
    void run(int count, cpu::WorkerFunction f) {
      ++calls;
      for (int worker = 0; worker < count; ++worker) f(worker);
    }
  } executor;
  Choice choose(1);
  Slots slots(choose, 3);
  slots.offsets = {0, 40};
  slots.rows.assign(40, 0);
  slots.items = 1;
  slots.spare = 0;
  const auto a = choose.numbers<float>(300);
  const Quantised<Cpu> w(choose, 1, 300, 90);
  Cpu::Context ctx(executor, 3, true);
  cpu::PackedWeights packed;
  const auto weights = w.add(ctx, Weights::int4, packed);
  const auto use = ctx.use(packed);
  executor.calls = 0;
  Matrix<Cpu> c(40, 90);
  Cpu::grouped_gemm(ctx, slots.groups(), View<const float, 2, Cpu>(a.data(), 1, 300), weights, false, c.view(),
                    functor::Store{});
  CHECK(executor.calls > 0);
  CHECK(same_bits(c.data(), product<Cpu>(1, Weights::int4, slots, a, w).data(), 40 * 90));
}

TEST_CASE("quantised products: a pair equals two products, bit for bit") {
  for (Index i = first_case(); i < end_of_cases(); ++i) {
    Choice choose(static_cast<std::uint64_t>(2000000 + i));
    const Weights form = naive::quantised_forms[choose.below(3)], last_form = naive::quantised_forms[choose.below(3)];
    const Slots slots(choose, 80);
    const Index depth = choose.from(1, 300), hidden = choose.one_in(2) ? choose.from(250, 600) : choose.from(1, 100),
                columns = choose.from(1, 70), experts = slots.experts();
    const bool gated = choose.one_in(2);
    const auto a = choose.numbers<float>(slots.items * depth);
    const Quantised<Cpu> up(choose, experts, depth, hidden), more(choose, experts, depth, hidden),
        down(choose, experts, hidden, columns);
    const View<const float, 2, Cpu> items(a.data(), slots.items, depth);
    const Index count = slots.count() + slots.spare;
    cpu::PackedWeights packed;
    Cpu::Context one(1);
    const auto first = up.add(one, form, packed), second = more.add(one, form, packed),
               last = down.add(one, last_form, packed);
    const auto use = one.use(packed);
    Matrix<Cpu> expected(count, columns), values(count, hidden), middle(count, hidden);
    if (gated) {
      Cpu::grouped_gemm(one, slots.groups(), items, first, false, values.view(), functor::Store{});
      Cpu::grouped_gemm(one, slots.groups(), items, second, false, middle.view(), SiluWith{values});
    } else {
      Cpu::grouped_gemm(one, slots.groups(), items, first, false, middle.view(), Gelu1{});
    }
    Cpu::grouped_gemm(one, slots.groups().in_slot_order(), std::as_const(middle).view(), last, false, expected.view(),
                      functor::Store{});
    for (const int threads : {1, 3}) {
      Cpu::Context ctx(threads, true);
      const auto of_threads = ctx.use(packed);
      Matrix<Cpu> c(count, columns);
      if (gated)
        Cpu::grouped_pair(ctx, slots.groups(), items, std::array{first, second}, Silu2{}, last, c.view(),
                          functor::Store{});
      else
        Cpu::grouped_pair(ctx, slots.groups(), items, std::array{first}, Gelu1{}, last, c.view(), functor::Store{});
      CAPTURE(i);
      CAPTURE(threads);
      CHECK(same_bits(c.data(), expected.data(), slots.count() * columns));
    }
  }
}

TEST_CASE("quantised products: the adjoint equals products of decoded weights") {
  for (Index i = first_case(); i < end_of_cases(); ++i) {
    Choice choose(static_cast<std::uint64_t>(3000000 + i));
    const Weights form = naive::quantised_forms[choose.below(3)];
    const Slots slots(choose, 60);
    const Index depth = choose.one_in(3) ? choose.from(250, 600) : choose.from(1, 100), columns = choose.from(1, 90);
    const auto dy = choose.numbers<float>(slots.items * columns), bias = choose.numbers<float>(slots.experts() * depth);
    const Quantised<Cpu> w(choose, slots.experts(), depth, columns);
    Quantised<Cpu> decoded = w;
    for (Index e = 0; e < w.experts; ++e)
      for (Index j = 0; j < columns; ++j)
        for (Index k = 0; k < depth; k += 32) {
          const auto at = [&](Index row) { return std::size_t((e * depth + row) * columns + j); };
          const naive::Group group =
              naive::quantised(form, naive::group_of(k, depth, [&](Index row) { return w.values[at(row)]; }));
          for (std::size_t n = 0; n < group.q.size(); ++n)
            decoded.values[at(k + Index(n))] = static_cast<float>(group.scale * group.q[n]);
        }
    const View<const float, 2, Cpu> adjoints(dy.data(), slots.items, columns);
    const functor::AddBias<float, Cpu> epilogue{{bias.data(), slots.experts(), depth}};
    const Index count = slots.count() + slots.spare;
    Matrix<Cpu> expected(count, depth), dx(count, depth);
    Cpu::Context one(1), three(3);
    Cpu::grouped_gemm(one, slots.groups(), adjoints, decoded.view(), true, expected.view(), epilogue);
    cpu::PackedWeights packed;
    const auto weights = w.add(one, form, packed);
    const auto use = three.use(packed);
    Cpu::grouped_gemm(three, slots.groups(), adjoints, weights, true, dx.view(), epilogue);
    CAPTURE(i);
    CHECK(same_bits(dx.data(), expected.data(), slots.count() * depth));
  }
}

namespace {

/// A random output layer W [columns, depth], and rows that it multiplies.
struct RandomOutput {
  Weights form;
  Index rows, depth, columns;
  std::vector<float> a, w, bias;

  explicit RandomOutput(Choice& choose)
      : form(choose.one_in(4) ? Weights::bfloat16 : naive::quantised_forms[choose.below(3)]),
        rows(choose.one_in(2) ? choose.from(1, 9) : choose.from(1, 70)),
        depth(choose.one_in(3) ? choose.from(250, 600) : choose.from(1, 100)),
        columns(choose.one_in(4) ? choose.from(200, 700) : choose.from(1, 90)),
        a(choose.numbers<float>(rows * depth)),
        w(choose.numbers<float>(columns * depth)),
        bias(choose.numbers<float>(columns)) {}

  /// Returns the exact logit of a row and a word, and the documented bound of its error.
  support::Bounded exact(Index row, Index word) const {
    const auto x = [&](Index k) { return a[std::size_t(row * depth + k)]; };
    const auto weight = [&](Index k) { return w[std::size_t(word * depth + k)]; };
    const double b = double(bias[std::size_t(word)]);
    if (is_quantised(form)) {
      const naive::QuantisedSum sum = naive::quantised_dot(form, depth, x, weight);
      // At most a product, a scale and two sums are rounded for each group of 32 terms.
      const double terms = 4 * (static_cast<double>(depth) / 32 + 2);
      return {sum.value + b, 0x1p-24 * terms * (sum.magnitude + std::abs(b))};
    }
    support::BoundedSum<float> sum;
    for (Index k = 0; k < depth; ++k) sum.add(double(x(k)), double(naive::bf16(double(weight(k)))));
    sum.add(b, 1);
    return sum.result();
  }
  /// Computes rows `first` to first + count − 1 of the logits, in random blocks of words. The weights have no elements
  /// of their own, so a result shows that the products read the packed copy.
  template <class B>
  Matrix<B> logits(Choice& choose, int threads, Index first, Index count) const {
    typename B::Context ctx(threads, true);
    cpu::PackedWeights packed;
    const float* const address = B::template reserve_transposed<float>(columns, depth, form, packed);
    B::pack_columns(ctx, address, 0, View<const float, 2, B>(w.data(), columns, depth), columns, packed);
    CHECK(!has_elements(address));
    const auto use = ctx.use(packed);
    const View<const float, 2, B> weights(address, columns, depth), items(a.data() + first * depth, count, depth);
    Matrix<B> all(count, columns);
    for (Index j = 0, next = 0; j < columns; j = next) {
      next = std::min(columns, j + choose.from(1, 5) * B::template columns_together<float>);
      Matrix<B> c(count, next - j);
      const functor::AddBias<float, B> epilogue{{bias.data() + j, 1, next - j}};
      CHECK(B::gemm_transposed(ctx, items, weights, j, c.view(), epilogue));
      for (Index r = 0; r < count; ++r) std::copy_n(&c(r, 0), next - j, &all(r, j));
    }
    return all;
  }
};

}  // namespace

TEST_CASE("gemm_transposed: packed copies equal loops within bounds, in any batch") {
  for (Index i = first_case(); i < end_of_cases(); ++i) {
    Choice choose(static_cast<std::uint64_t>(4000000 + i));
    const RandomOutput output(choose);
    const Matrix<Cpu> all = output.logits<Cpu>(choose, 1, 0, output.rows);
    int wrong = 0;
    for (Index n = 0; n < 40; ++n) {  // some elements, because plain loops are slow
      const Index row = choose.below(output.rows), word = choose.below(output.columns);
      wrong += !support::within(all(row, word), output.exact(row, word));
    }
    CAPTURE(i);
    CAPTURE(int(output.form));
    CHECK(wrong == 0);
    CHECK(same_bits(all, output.logits<Cpu>(choose, 3, 0, output.rows)));
    for (const int threads : {1, 3})
      CHECK(same_bits(output.logits<CpuBf16>(choose, threads, 0, output.rows).data(), all.data(), all.size()));
    const Index first = choose.below(output.rows), count = choose.from(1, output.rows - first);
    CHECK(same_bits(output.logits<Cpu>(choose, 1, first, count).data(), &all(first, 0), count * output.columns));
  }
}

TEST_CASE_TEMPLATE("gemm_transposed: reads only packed weights; returns false without them", B, Cpu, CpuBf16) {
  for (Index i = first_case(); i < end_of_cases(); ++i) {
    Choice choose(static_cast<std::uint64_t>(5000000 + i));
    const RandomOutput output(choose);
    typename B::Context ctx(choose.one_in(2) ? 3 : 1, true);
    std::vector<float> w = output.w;
    const View<const float, 2, B> weights(w.data(), output.columns, output.depth),
        items(output.a.data(), output.rows, output.depth);
    cpu::PackedWeights packed;
    B::pack_transposed(ctx, weights, output.form, packed);
    const functor::AddBias<float, B> epilogue{{output.bias.data(), 1, output.columns}};
    Matrix<B> c(output.rows, output.columns);
    std::fill(c.data(), c.data() + c.size(), 7.0F);
    CHECK(!B::gemm_transposed(ctx, items, weights, 0, c.view(), epilogue));
    CHECK(std::count(c.data(), c.data() + c.size(), 7.0F) == c.size());
    // A product that reads the elements instead of the copy gives NaN.
    std::fill(w.begin(), w.end(), std::numeric_limits<float>::quiet_NaN());
    const auto use = ctx.use(packed);
    CHECK(B::gemm_transposed(ctx, items, weights, 0, c.view(), epilogue));
    CAPTURE(i);
    CHECK(same_bits(c.data(), output.logits<B>(choose, 1, 0, output.rows).data(), c.size()));
  }
}

TEST_CASE("quantised products: quantising only one first matrix throws") {
  Choice choose(1);
  Slots slots(choose, 3);
  slots.offsets = {0, 2};
  slots.rows = {0, 0};
  slots.items = 1;
  slots.spare = 0;
  const Quantised<Cpu> up(choose, 1, 8, 8), more(choose, 1, 8, 8), down(choose, 1, 8, 8);
  const std::vector<float> a(8);
  cpu::PackedWeights packed;
  Cpu::Context ctx(1);
  const auto first = up.add(ctx, Weights::int8, packed), second = more.add(ctx, Weights::bfloat16, packed),
             last = down.add(ctx, Weights::int8, packed);
  const auto use = ctx.use(packed);
  Matrix<Cpu> c(2, 8);
  CHECK_THROWS_WITH_AS(Cpu::grouped_pair(ctx, slots.groups(), View<const float, 2, Cpu>(a.data(), 1, 8),
                                         std::array{first, second}, Silu2{}, last, c.view(), functor::Store{}),
                       "freeze: weights: expected the first two matrices of an expert quantised, or none of them, got "
                       "one of them",
                       ArgumentError);
}
