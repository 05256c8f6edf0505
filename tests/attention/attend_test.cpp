#include "gatefold/attention/attend.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index width = 3;
constexpr double sentinel = 777;

/// An attention without its projections.
template <class T>
struct Attended {
  Cpu::Context ctx;
  detail_::attending::Form<T, Cpu> form;
  Tensor<T, 2, Cpu> q, k, v, dcontext, dlog_sum_exp, context, log_sum_exp, entropy, dq, dk, dv;

  Attended(Index items, const detail_::attending::Form<T, Cpu>& of, int threads = 1) : ctx(threads), form(of) {
    const auto random = [&](std::uint64_t seed, Index columns) {
      return uniform_tensor<T>(ctx, Seed{seed}, 1, items, columns);
    };
    const Index dim = form.heads * width;
    q = random(1, dim);
    k = random(2, dim);
    v = random(3, dim);
    dcontext = random(4, dim);
    dlog_sum_exp = random(5, form.heads);
    for (auto* t : {&context, &dq, &dk, &dv}) *t = constant_tensor<T>(ctx, sentinel, items, dim);
    for (auto* t : {&log_sum_exp, &entropy}) *t = constant_tensor<T>(ctx, sentinel, items, form.heads);
  }
  Index items() const { return q.extent(0); }
  void forward() { detail_::attending::forward(ctx, form, q, k, v, context, log_sum_exp, entropy); }
  void backward() {
    detail_::attending::backward(ctx, form, q, k, v, context, log_sum_exp, dcontext, dlog_sum_exp, dq, dk, dv);
  }
  bool sees(Index i, Index j) const {
    return i / form.length == j / form.length && (!form.causal || j <= i) &&
           (!form.valid.data() || (form.valid(i) != 0 && form.valid(j) != 0));
  }
};

/// Compares context (1), log-sum-exp and entropy of item i and head h with loops over all keys.
void check_row(const Attended<double>& a, Index i, Index h) {
  std::vector<double> weight, context(width, 0.0);
  double total = 0, entropy = 0;
  for (Index j = 0; j < a.items(); ++j) {
    double dot = 0;
    for (Index d = h * width; d < (h + 1) * width; ++d) dot += a.q(i, d) * a.k(j, d);
    weight.push_back(a.sees(i, j) ? std::exp(a.form.scale * dot) : 0);
    total += weight.back();
  }
  for (Index j = 0; j < a.items(); ++j) {
    const double p = total > 0 ? weight[std::size_t(j)] / total : 0;
    if (p > 0) entropy -= p * std::log(p);
    for (Index d = 0; d < width; ++d) context[std::size_t(d)] += p * a.v(j, h * width + d);
  }
  for (Index d = 0; d < width; ++d) REQUIRE(std::abs(a.context(i, h * width + d) - context[std::size_t(d)]) <= 1e-13);
  REQUIRE(std::abs(a.log_sum_exp(i, h) - (total > 0 ? std::log(total) : 0)) <= 1e-13);
  REQUIRE(std::abs(a.entropy(i, h) - entropy) <= 1e-12);
}

std::vector<double> mask_of(Index items) {
  std::vector<double> valid;
  for (Index n = 0; n < items; ++n) valid.push_back(n % 5 == 0 || n / 3 == 2 ? 0 : 1);
  return valid;
}

}  // namespace

TEST_CASE("attend (1): equals softmax attention for any heads, lengths, masks") {
  for (const bool causal : {false, true})
    for (const Index heads : {1, 2, 5})
      for (const Index length : {1, 3, 16, 300})
        for (const bool padded : {false, true}) {
          CAPTURE(causal);
          CAPTURE(heads);
          CAPTURE(length);
          const Index items = length < 300 ? 4 * length : length;
          const auto valid = mask_of(items);
          Attended<double> a(items, {.length = length, .heads = heads, .scale = 0.8, .causal = causal}, 2);
          if (padded) a.form.valid = valid;
          a.forward();
          for (Index i = 0; i < items; i += length < 300 ? 1 : 11)
            for (Index h = 0; h < heads; ++h) check_row(a, i, h);
        }
}

TEST_CASE("attend: NaN reaches only rows that see it") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Index heads : {1, 2})
    for (const Index length : {8, 300}) {
      std::vector<float> valid(std::size_t(2 * length), 1.f);
      valid[1] = 0;
      const detail_::attending::Form<float, Cpu> form{
          .length = length, .heads = heads, .scale = 1, .causal = true, .valid = valid};
      Attended<float> clean(2 * length, form), changed(2 * length, form);
      for (auto* t : {&changed.q, &changed.k, &changed.v})
        for (Index c = 0; c < heads * width; ++c) (*t)(1, c) = (*t)(5, c) = nan;
      clean.forward();
      changed.forward();
      for (Index i = 0; i < 2 * length; ++i)
        for (Index c = 0; c < heads * width; ++c) {
          if (changed.sees(i, 5))
            REQUIRE(std::isnan(changed.context(i, c)));
          else
            REQUIRE(changed.context(i, c) == clean.context(i, c));
        }
    }
}

TEST_CASE("attend: other sequences and threads change no bit") {
  for (const Index length : {4, 140})
    for (const bool causal : {false, true}) {
      const detail_::attending::Form<float, Cpu> form{.length = length, .heads = 2, .scale = 1, .causal = causal};
      std::vector<double> first;
      for (const int threads : {1, 2, 3, 8}) {
        Attended<float> many(5 * length, form, threads), alone(length, form, threads);
        for (const auto& [from, to] : {std::pair{&many.q, &alone.q},
                                       {&many.k, &alone.k},
                                       {&many.v, &alone.v},
                                       {&many.dcontext, &alone.dcontext},
                                       {&many.dlog_sum_exp, &alone.dlog_sum_exp}})
          copy(many.ctx, from->view().rows(3 * length, length), to->view());
        for (auto* a : {&many, &alone}) {
          a->forward();
          a->backward();
        }
        const auto all = values(many.context, many.log_sum_exp, many.entropy, many.dq, many.dk, many.dv);
        if (first.empty()) first = all;
        CHECK(same_bits(all, first));
        for (const auto& [from, to] : {std::pair{&many.context, &alone.context},
                                       {&many.dq, &alone.dq},
                                       {&many.dk, &alone.dk},
                                       {&many.dv, &alone.dv}})
          for (Index i = 0; i < to->size(); ++i)
            REQUIRE(to->data()[i] == from->data()[3 * length * from->extent(1) + i]);
      }
    }
}

TEST_CASE("attend: unused slots stay untouched; used slots keep their bits") {
  for (const Index heads : {1, 3})
    for (const Index length : {2, 130})
      for (const auto& offsets : std::vector<std::vector<Index>>{{1, 1, 3}, {0, 2}, {2, 2}, {4, 4}, {0, 4}}) {
        const detail_::attending::Form<double, Cpu> form{.length = length, .heads = heads, .scale = 1, .causal = true};
        Attended<double> all(4 * length, form), part(4 * length, form, 2);
        part.form.slots = offsets;
        const auto used = [&](Index i) { return i >= offsets.front() * length && i < offsets.back() * length; };
        for (Index i = 0; i < 4 * length; ++i)
          if (!used(i))
            for (auto* t : {&part.q, &part.k, &part.v, &part.dcontext, &part.dlog_sum_exp})
              for (Index c = 0; c < t->extent(1); ++c) (*t)(i, c) = quiet_nan;
        for (auto* a : {&all, &part}) {
          a->forward();
          a->backward();
        }
        const auto same = [&](const auto& of_all, const auto& of_part) {
          for (Index i = 0; i < 4 * length; ++i)
            for (Index c = 0; c < of_all.extent(1); ++c) REQUIRE(of_part(i, c) == (used(i) ? of_all(i, c) : sentinel));
        };
        same(all.context, part.context);
        same(all.log_sum_exp, part.log_sum_exp);
        same(all.entropy, part.entropy);
        same(all.dq, part.dq);
        same(all.dk, part.dk);
        same(all.dv, part.dv);
      }
}

TEST_CASE("attend: gradients are added and equal finite differences") {
  for (const bool causal : {false, true})
    for (const Index heads : {1, 2})
      for (const bool padded : {false, true}) {
        const auto valid = mask_of(12);
        Attended<double> a(12, {.length = 4, .heads = heads, .scale = 0.8, .causal = causal});
        if (padded) a.form.valid = valid;
        for (auto* t : {&a.dq, &a.dk, &a.dv}) set_zero(a.ctx, *t);
        a.forward();
        a.backward();
        const auto loss = [&] {
          a.forward();
          double f = 0;
          for (Index i = 0; i < a.context.size(); ++i) f += a.context.data()[i] * a.dcontext.data()[i];
          for (Index i = 0; i < a.log_sum_exp.size(); ++i) f += a.log_sum_exp.data()[i] * a.dlog_sum_exp.data()[i];
          return f;
        };
        const auto once = values(a.dq, a.dk, a.dv);
        const auto report = check::compare_gradients({{"q", a.q.data(), a.dq.data(), a.q.size()},
                                                      {"k", a.k.data(), a.dk.data(), a.k.size()},
                                                      {"v", a.v.data(), a.dv.data(), a.v.size()}},
                                                     loss, [] { return std::uint64_t(0); }, {.of_largest = 1e-8});
        CHECK_MESSAGE(report, report.str());
        a.forward();
        a.backward();
        auto twice = values(a.dq, a.dk, a.dv);
        for (double& g : twice) g /= 2;
        CHECK(difference(twice, once) <= 1e-14);
      }
}

TEST_CASE("attend: works without entropy and without items") {
  Attended<float> with(12, {.length = 4, .heads = 2, .scale = 1, .causal = true}), without(12, with.form),
      none(0, with.form);
  with.forward();
  detail_::attending::forward(without.ctx, without.form, without.q, without.k, without.v, without.context,
                              without.log_sum_exp, {});
  CHECK(same_bits(values(with.context, with.log_sum_exp), values(without.context, without.log_sum_exp)));
  none.forward();
  none.backward();
  CHECK(none.context.size() == 0);
}
