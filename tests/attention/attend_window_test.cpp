#include "gatefold/attention/attend_window.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using namespace gatefold::support;
using detail_::attending::Window;

namespace {

constexpr Index width = 3;  // of a head
constexpr double sentinel = 777;

/// An attention without its projections.
template <class T>
struct Attended {
  Cpu::Context ctx;
  detail_::attending::WindowForm<T, Cpu> form;
  std::vector<T> valid;  // of keys if some are padding
  Tensor<T, 2, Cpu> q, k, v, relative, dcontext, dlog_sum_exp, context, log_sum_exp, entropy, dq, dk, dv, drelative;

  Attended(Index sequences, const Window& window, Index heads, bool places = true, int threads = 1)
      : ctx(threads, true), form{.window = window, .heads = heads, .scale = 0.8} {
    const Index items = sequences * window.length, keys = sequences * window.keys(), dim = heads * width;
    q = uniform_tensor<T>(ctx, Seed{1}, 1, items, dim);
    k = uniform_tensor<T>(ctx, Seed{2}, 1, keys, dim);
    v = uniform_tensor<T>(ctx, Seed{3}, 1, keys, dim);
    dcontext = uniform_tensor<T>(ctx, Seed{4}, 1, items, dim);
    dlog_sum_exp = uniform_tensor<T>(ctx, Seed{6}, 1, items, heads);
    relative = uniform_tensor<T>(ctx, Seed{5}, 1, window.width, width);
    drelative = constant_tensor<T>(ctx, 0, window.width, width);
    if (places) form.relative = relative;
    context = constant_tensor<T>(ctx, sentinel, items, dim);
    for (auto* t : {&log_sum_exp, &entropy}) *t = constant_tensor<T>(ctx, sentinel, items, heads);
    dq = constant_tensor<T>(ctx, 0, items, dim);
    for (auto* t : {&dk, &dv}) *t = constant_tensor<T>(ctx, 0, keys, dim);
  }
  void forward() { detail_::attending::forward(ctx, form, q, k, v, context, log_sum_exp, entropy); }
  void backward() {
    detail_::attending::backward(ctx, form, q, k, v, context, log_sum_exp, dcontext, dlog_sum_exp, dq, dk, dv,
                                 form.relative.data() ? drelative.view() : View<T, 2, Cpu>{});
  }
  std::vector<double> outcome() const { return values(context, log_sum_exp, entropy, dq, dk, dv, drelative); }
  void pad() {
    for (Index m = 0; m < k.extent(0); ++m) valid.push_back(m % 5 == 1 || m % 7 < 2 ? 0 : 1);
    form.valid = valid;
  }
  bool real(Index m) const { return valid.empty() || valid[std::size_t(m)] != 0; }
  /// Returns the row of key j in the sequence of item n.
  Index key(Index n, Index j) const { return n / form.window.length * form.window.keys() + j; }
};

/// Checks (1) and (2) for item n and head h, with all probabilities computed first.
void check_row(const Attended<double>& a, Index n, Index h) {
  const Window& w = a.form.window;
  std::vector<double> weight, context(width, 0.0);
  double total = 0;
  for (Index o = 0; o < w.width; ++o) {
    const Index j = w.past + n % w.length - w.width + (w.itself ? 1 : 0) + o;
    double dot = 0;
    for (Index d = 0; d < width && j >= 0; ++d)
      dot +=
          a.q(n, h * width + d) * (a.k(a.key(n, j), h * width + d) + (a.form.relative.data() ? a.relative(o, d) : 0));
    weight.push_back(j >= 0 && a.real(w.own(n)) && a.real(a.key(n, j)) ? std::exp(a.form.scale * dot) : 0);
    total += weight.back();
  }
  for (Index o = 0; o < w.width; ++o) {
    const Index j = w.past + n % w.length - w.width + (w.itself ? 1 : 0) + o;
    if (weight[std::size_t(o)] == 0) continue;
    double kept = 1;
    if (a.form.drops()) {
      const auto number = std::uint64_t((n * a.form.heads + h) * w.width + o);
      kept = uniform<double>(a.form.noise.random->seed, a.form.noise.random->step, number) < a.form.rate
                 ? 0
                 : 1 / (1 - a.form.rate);
    }
    for (Index d = 0; d < width; ++d)
      context[std::size_t(d)] += kept * weight[std::size_t(o)] / total * a.v(a.key(n, j), h * width + d);
  }
  for (Index d = 0; d < width; ++d) REQUIRE(std::abs(a.context(n, h * width + d) - context[std::size_t(d)]) <= 1e-13);
  REQUIRE(std::abs(a.log_sum_exp(n, h) - (total > 0 ? std::log(total) : 0)) <= 1e-13);
  double entropy = 0;
  for (const double w_o : weight)
    if (w_o > 0) entropy -= w_o / total * std::log(w_o / total);
  REQUIRE(std::abs(a.entropy(n, h) - entropy) <= 1e-12);
}

const std::vector<Window> small{{1, 0, 1}, {1, 0, 3, false}, {4, 0, 2}, {4, 0, 9, false}, {3, 5, 4}, {5, 2, 4, false}};
const std::vector<Window> large{{300, 0, 150}, {140, 500, 520, false}, {1, 1100, 1101}};
const Noise noise{Random{Seed{9}, 4}};

}  // namespace

TEST_CASE("window attention (1), (2): equals loops, with positions and dropout") {
  for (const auto* windows : {&small, &large})
    for (const Window& window : *windows)
      for (const Index heads : {1, 2, 5})
        for (const bool places : {false, true})
          for (const double rate : {0.0, 0.4}) {
            if (support::slow_build && heads == 1) continue;
            const Index sequences = windows == &small ? 7 : 2;
            Attended<double> a(sequences, window, heads, places, 2);
            if (heads == 2) a.pad();
            a.form.rate = rate;
            a.form.noise = noise;
            a.forward();
            for (Index n = 0; n < sequences * window.length; n += windows == &small ? 1 : 37)
              for (Index h = 0; h < heads; ++h) check_row(a, n, h);
          }
}

TEST_CASE("window attention: gradients are added and equal finite differences") {
  for (const Window& window : {Window{4, 0, 3}, Window{4, 0, 9, false}, Window{3, 5, 4}, Window{5, 2, 4, false}})
    for (const Index heads : {1, 2})
      for (const double rate : {0.0, 0.4}) {
        Attended<double> a(3, window, heads);
        if (rate > 0) a.pad();
        a.form.rate = rate;
        a.form.noise = noise;
        a.forward();
        a.backward();
        const auto loss = [&] {
          a.forward();
          double f = 0;
          for (Index i = 0; i < a.context.size(); ++i) f += a.context.data()[i] * a.dcontext.data()[i];
          for (Index i = 0; i < a.log_sum_exp.size(); ++i) f += a.log_sum_exp.data()[i] * a.dlog_sum_exp.data()[i];
          return f;
        };
        const auto report =
            check::compare_gradients({{"q", a.q.data(), a.dq.data(), a.q.size()},
                                      {"k", a.k.data(), a.dk.data(), a.k.size()},
                                      {"v", a.v.data(), a.dv.data(), a.v.size()},
                                      {"relative", a.relative.data(), a.drelative.data(), a.relative.size()}},
                                     loss, [] { return std::uint64_t(0); }, {.of_largest = 1e-8});
        CHECK_MESSAGE(report, report.str());
        const auto once = values(a.dq, a.dk, a.dv, a.drelative);
        a.forward();
        a.backward();
        auto twice = values(a.dq, a.dk, a.dv, a.drelative);
        for (double& g : twice) g /= 2;
        CHECK(difference(twice, once) <= 1e-13);
      }
}

TEST_CASE("window attention: gradients across blocks equal finite differences" * doctest::skip(support::slow_build)) {
  // A directional derivative with respect to all inputs contains the gradient of every block.
  for (const Window& window : large)
    for (const double rate : {0.0, 0.4}) {
      Attended<double> a(2, window, 2);
      a.form.rate = rate;
      a.form.noise = noise;
      a.forward();
      a.backward();
      double slope = 0;
      std::uint64_t seed = 60;
      std::vector<Tensor<double, 2, Cpu>> directions;
      const std::vector<std::pair<Tensor<double, 2, Cpu>*, Tensor<double, 2, Cpu>*>> all{
          {&a.q, &a.dq}, {&a.k, &a.dk}, {&a.v, &a.dv}, {&a.relative, &a.drelative}};
      for (const auto& [value, gradient] : all) {
        directions.push_back(uniform_tensor<double>(a.ctx, Seed{++seed}, 1, value->extent(0), value->extent(1)));
        for (Index i = 0; i < value->size(); ++i) slope += gradient->data()[i] * directions.back().data()[i];
      }
      const auto at = [&](double h) {
        for (std::size_t t = 0; t < all.size(); ++t) add_scaled(a.ctx, h, directions[t], all[t].first->view());
        a.forward();
        for (std::size_t t = 0; t < all.size(); ++t) add_scaled(a.ctx, -h, directions[t], all[t].first->view());
        double f = 0;
        for (Index i = 0; i < a.context.size(); ++i) f += a.context.data()[i] * a.dcontext.data()[i];
        for (Index i = 0; i < a.log_sum_exp.size(); ++i) f += a.log_sum_exp.data()[i] * a.dlog_sum_exp.data()[i];
        return f;
      };
      const double h = 1e-4, numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      CHECK(std::abs(numeric - slope) <= 1e-8 * std::abs(slope));
    }
}

TEST_CASE("window attention: other sequences and threads change no bit") {
  // The last two windows have more keys than a product adds in one chain (keys_of_a_chain). With the first of them, all
  // rows of a sequence are in one block of scores. With the second, they are in two blocks.
  for (const Window& window : {Window{4, 3, 6}, Window{140, 30, 100}, Window{1, 40, 41}, Window{3, 0, 8, false},
                               Window{100, 180, 200}, Window{200, 100, 150}}) {
    std::vector<double> first;
    for (const int threads : {1, 2, 3, 8}) {
      Attended<float> many(5, window, 2, true, threads), alone(1, window, 2, true, threads);
      const auto third = [](const auto& t) { return t.view().rows(3 * t.extent(0) / 5, t.extent(0) / 5); };
      copy(many.ctx, third(std::as_const(many.q)), alone.q.view());
      copy(many.ctx, third(std::as_const(many.k)), alone.k.view());
      copy(many.ctx, third(std::as_const(many.v)), alone.v.view());
      copy(many.ctx, third(std::as_const(many.dcontext)), alone.dcontext.view());
      copy(many.ctx, third(std::as_const(many.dlog_sum_exp)), alone.dlog_sum_exp.view());
      for (auto* a : {&many, &alone}) {
        a->form.rate = 0;
        a->forward();
        a->backward();
      }
      if (first.empty()) first = many.outcome();
      CHECK(same_bits(many.outcome(), first));
      const auto same = [&](const Tensor<float, 2, Cpu>& of_many, const Tensor<float, 2, Cpu>& of_one) {
        for (Index i = 0; i < of_one.size(); ++i) REQUIRE(third(of_many).data()[i] == of_one.data()[i]);
      };
      same(many.context, alone.context);
      same(many.log_sum_exp, alone.log_sum_exp);
      same(many.entropy, alone.entropy);
      same(many.dq, alone.dq);
      same(many.dk, alone.dk);
      same(many.dv, alone.dv);
    }
  }
}

TEST_CASE("window attention: NaN reaches only rows that see its key") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool itself : {true, false})
    for (const Index length : {8, 300}) {
      const Window window{length, 3, 5, itself};
      Attended<float> clean(2, window, 2), changed(2, window, 2);
      // NaN in the key and the value of the first head, and in the value of the second.
      for (Index c = 0; c < width; ++c) changed.k(6, c) = nan;
      for (Index c = 0; c < 2 * width; ++c) changed.v(6, c) = nan;
      clean.forward();
      changed.forward();
      for (Index n = 0; n < 2 * length; ++n) {
        const bool sees = n < length && window.first(n) <= 6 && 6 < window.first(n) + 5;
        for (Index c = 0; c < changed.context.extent(1); ++c) {
          if (sees)
            REQUIRE(std::isnan(changed.context(n, c)));
          else
            REQUIRE(changed.context(n, c) == clean.context(n, c));
        }
      }
    }
}

TEST_CASE("window attention: padding gives 0 and reaches nothing") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Index length : {8, 300}) {
    Attended<float> clean(2, {length, 3, 5}, 2), changed(2, {length, 3, 5}, 2);
    for (auto* a : {&clean, &changed}) a->pad();
    for (Index m = 0; m < changed.k.extent(0); ++m)
      for (Index c = 0; c < 2 * width && !changed.real(m); ++c) changed.k(m, c) = changed.v(m, c) = nan;
    for (Index n = 0; n < 2 * length; ++n)
      for (Index c = 0; c < 2 * width && !changed.real(changed.form.window.own(n)); ++c) changed.q(n, c) = nan;
    clean.forward();
    changed.forward();
    CHECK(same_bits(values(clean.context, clean.log_sum_exp, clean.entropy),
                    values(changed.context, changed.log_sum_exp, changed.entropy)));
    for (Index n = 0; n < 2 * length; ++n)
      for (Index c = 0; c < 2 * width && !clean.real(clean.form.window.own(n)); ++c) REQUIRE(clean.context(n, c) == 0);
  }
}

TEST_CASE("window attention: works without items and without position gradient") {
  Attended<float> none(0, {1, 0, 3}, 2);
  none.form.window.length = 0;
  none.forward();
  none.backward();
  CHECK(none.context.size() == 0);
  Attended<double> with(3, {4, 2, 3}, 2), without(3, {4, 2, 3}, 2);
  for (auto* a : {&with, &without}) a->forward();
  with.backward();
  detail_::attending::backward(without.ctx, without.form, without.q, without.k, without.v, without.context,
                               without.log_sum_exp, without.dcontext, without.dlog_sum_exp, without.dq, without.dk,
                               without.dv, {});
  CHECK(same_bits(values(with.dq, with.dk, with.dv), values(without.dq, without.dk, without.dv)));
  CHECK(values(without.drelative) == std::vector<double>(9, 0));
}

TEST_CASE("window attention: computing entropies changes no other bit") {
  Attended<float> with(3, {140, 2, 30}, 2), without(3, {140, 2, 30}, 2);
  with.forward();
  detail_::attending::forward(without.ctx, without.form, without.q, without.k, without.v, without.context,
                              without.log_sum_exp, {});
  CHECK(same_bits(values(with.context, with.log_sum_exp), values(without.context, without.log_sum_exp)));
  CHECK(without.entropy(0, 0) == sentinel);
}
