#include "gatefold/layer/fields.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/per_token.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Fields fields{.vocabularies = {5, 3}, .dim = 4, .numeric = 2};

/// Replaces the first columns of uniform rows in [-1, 1) by ids.
template <class T>
void draw_ids(const Fields& of, View<T, 2, Cpu> x) {
  for (Index n = 0; n < x.extent(0); ++n)
    for (Index f = 0; f < of.vocabularies.size(); ++f)
      x(n, f) = std::floor((x(n, f) + 1) / 2 * static_cast<T>(of.vocabularies[f]));
}
/// A branch that runs Fields on uniform rows in [-1, 1), for checks that draw such rows. The rounding to ids has
/// gradient 0.
struct OnUniformRows {
  Fields of;
  template <class T, class B>
  using Params = Fields::Params<T, B>;
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> rows;
  };
  Index in_dim() const { return of.in_dim(); }
  Index out_dim() const { return of.out_dim(); }
  template <class T, class B>
  Params<T, B> init(auto& ctx, Seed seed) const {
    return of.init<T, B>(ctx, seed);
  }
  template <class T, class B>
  void forward(auto& ctx, const Fields::Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Saved<T, B>& saved, const auto&,
               const auto& step) const {
    saved.rows.resize(x.extent(0), x.extent(1));
    copy(ctx, x, saved.rows.view());
    draw_ids(of, saved.rows.view());
    Nothing<T, B> none;
    of.forward(ctx, p, saved.rows, u, none, {}, step);
  }
  template <class T, class B>
  void backward(auto& ctx, const Fields::Params<T, B>& p, In<T, 2, B>, const Saved<T, B>& saved, In<T, 2, B> du,
                Out<T, 2, B> dx, Fields::Params<T, B>& grads, auto&&...) const {
    Nothing<T, B> none;
    of.backward(ctx, p, saved.rows, none, du, dx, grads, none, none);
  }
};

/// Returns a pass of Fields on ids.
template <class T>
Pass<T, Fields> run_of(Cpu::Context& ctx, const Fields& of, Index items) {
  auto p = pass<T>(ctx, of, items);
  draw_ids(of, p.x.view());
  return p;
}

}  // namespace

TEST_CASE_TEMPLATE("Fields (1): outputs rows, then numbers; gradients add in order", T, float, double) {
  for (const Index items : {1, 7, 300})
    for (const Index dim : {1, 4, 19})
      for (const Index numeric : {0, 1, 5}) {
        CAPTURE(items);
        const Fields of{.vocabularies = {11, 1, 6}, .dim = dim, .numeric = numeric};
        Cpu::Context ctx(2, true);
        auto p = run_of<T>(ctx, of, items);
        p.forward();
        p.backward();
        const auto& weight = std::as_const(p.params.branch.weight);
        std::vector<std::vector<T>> sums;
        for (Index f = 0; f < 3; ++f) sums.emplace_back(static_cast<std::size_t>(of.vocabularies[f] * dim), T(0));
        REQUIRE(p.y.extent(1) == 3 * dim + numeric);
        for (Index n = 0; n < items; ++n) {
          for (Index f = 0; f < 3; ++f) {
            CHECK(p.dx(n, f) == 0);
            const auto id = static_cast<Index>(p.x(n, f));
            for (Index d = 0; d < dim; ++d) {
              CHECK(p.y(n, f * dim + d) == weight[static_cast<std::size_t>(f)](id, d));
              sums[static_cast<std::size_t>(f)][static_cast<std::size_t>(id * dim + d)] += p.dy(n, f * dim + d);
            }
          }
          for (Index c = 0; c < numeric; ++c) {
            CHECK(p.y(n, 3 * dim + c) == p.x(n, 3 + c));
            CHECK(p.dx(n, 3 + c) == p.dy(n, 3 * dim + c));
          }
        }
        for (std::size_t f = 0; f < 3; ++f)
          CHECK(values(p.grads.branch.weight[f]) == std::vector<double>(sums[f].begin(), sums[f].end()));
        const auto once = values(p.y);
        fill(ctx, p.y, T(quiet_nan));
        p.infer();
        CHECK(same_bits(values(p.y), once));
      }
}

TEST_CASE("Fields: backward adds to dx and to gradients") {
  Cpu::Context ctx(1);
  auto p = run_of<double>(ctx, fields, 9);
  p.forward();
  p.backward();
  const auto dx = values(p.dx), grads = values(p.grads);
  p.backward();  // doubling a sum is exact
  const auto twice = values(p.dx), both = values(p.grads);
  for (std::size_t i = 0; i < dx.size(); ++i) CHECK(twice[i] == 2 * dx[i]);
  for (std::size_t i = 0; i < grads.size(); ++i) CHECK(both[i] == 2 * grads[i]);
}

TEST_CASE("Fields: sparse and dense tables pass conformance, also in chains") {
  for (const bool sparse : {true, false}) {
    Fields of = fields;
    of.sparse = sparse;
    const auto report = check::conformance<Cpu, double>(OnUniformRows{of}, {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
    const auto chain = check::conformance<Cpu, double>(
        Chain{OnUniformRows{of}, Mlp<Gelu>{.model_dim = 10, .hidden_dim = 3}}, {.items_are_independent = true});
    CHECK_MESSAGE(chain, chain.str());
  }
  const auto sequences = check::conformance<Cpu, double>(PerToken{2, OnUniformRows{fields}});
  CHECK_MESSAGE(sequences, sequences.str());
}

TEST_CASE("Fields: a step accesses only rows with a gradient") {
  Cpu::Context ctx(2, true);
  const Fields of{.vocabularies = {50, 4}, .dim = 3, .numeric = 1};
  Trainer trainer{ctx, Chain{of, Linear{.model_dim = 7, .output_dim = 2}}, MeanSquaredError{},
                  optim::Clipped{optim::AdamW{.lr = 0.1, .decay = 0.1}, 0.5}, Seed{1}};
  auto& weight = std::get<0>(trainer.grads.layers).branch.weight;
  const auto in_batch = [](std::size_t f, Index v) { return f == 0 ? v == 7 || v == 49 : v != 3; };
  for (std::size_t f = 0; f < 2; ++f)
    for (Index v = 0; v < of.vocabularies[static_cast<Index>(f)]; ++v)
      for (Index d = 0; d < 3; ++d)
        if (!in_batch(f, v)) weight[f].rows().data[v * 3 + d] = std::numeric_limits<float>::quiet_NaN();
  const auto x = matrix<float>({{7, 0, 0.5}, {49, 1, -1}, {7, 2, 0.3}});
  const auto target = matrix<float>({{1, 0}, {0, 1}, {-1, 1}});
  const auto weights = [&](std::size_t f) { return values(std::get<0>(trainer.params.layers).branch.weight[f]); };
  const std::vector<std::vector<double>> before{weights(0), weights(1)};
  const double first = trainer.step(x, target);
  CHECK(trainer.step(x, target) < first);
  for (std::size_t f = 0; f < 2; ++f) {
    const auto after = weights(f);
    for (std::size_t i = 0; i < after.size(); ++i)
      CHECK((after[i] != before[f][i]) == in_batch(f, static_cast<Index>(i) / 3));
  }
}

TEST_CASE("Fields: no step after the first allocates") {
  Cpu::Context ctx(2, true);
  Trainer trainer{
      ctx, Chain{Fields{.vocabularies = {50, 4, 9}, .dim = 3, .numeric = 1}, Linear{.model_dim = 10, .output_dim = 2}},
      MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  const auto x = matrix<float>({{7, 0, 8, 0.5}, {49, 1, 0, -1}}), target = matrix<float>({{1, 0}, {0, 1}});
  Tensor<float, 2, Cpu> y(2, 2);
  trainer.step(x, target);
  trainer.infer(x, y);
  const int before = support::allocations;
  for (int i = 0; i < 3; ++i) {
    trainer.step(x, target);
    trainer.infer(x, y);
  }
  CHECK(support::allocations == before);
}

TEST_CASE("Fields: rows() joins the columns of ids and numbers") {
  const std::vector<Index> ids{4, 2, 0, 1, 3, 0};
  const std::vector<float> numbers{0.5, -1, 2, 3, -4, 5};
  const View<const Index, 2, Cpu> all(ids.data(), 3, 2);
  const View<const float, 2, Cpu> columns(numbers.data(), 3, 2);
  CHECK(values(fields.rows<float, Cpu>(all, columns)) == std::vector<double>{4, 2, 0.5, -1, 0, 1, 2, 3, 3, 0, -4, 5});
  CHECK(values(Fields{.vocabularies = {5, 3}, .dim = 1}.rows<float, Cpu>(all, {})) ==
        std::vector<double>(ids.begin(), ids.end()));
  CHECK(values(Fields{.numeric = 2}.rows<float, Cpu>({}, columns)) ==
        std::vector<double>(numbers.begin(), numbers.end()));
  CHECK(message_of([&] {
          Fields{.vocabularies = {5, 2}, .dim = 1}.rows<float, Cpu>(all, {});
        }) == "Fields.rows: ids[0, 1]: expected an id from 0 to 1, got 2");
  CHECK(message_of([&] { fields.rows<float, Cpu>(all, columns.rows(0, 2)); }) ==
        "Fields.rows: numbers: expected [3, 2], got [2, 2]");
}

TEST_CASE("Fields: float ids below 2^24 are exact") {
  Cpu::Context ctx(1);
  const Fields of{.vocabularies = {Index(1) << 24}, .dim = 1};
  auto p = run_of<float>(ctx, of, 2);
  const Index last = (Index(1) << 24) - 1;
  p.x(0, 0) = static_cast<float>(last);
  p.x(1, 0) = static_cast<float>(last - 1);
  p.forward();
  CHECK(p.y(0, 0) == std::as_const(p.params.branch.weight[0])(last, 0));
  CHECK(p.y(1, 0) == std::as_const(p.params.branch.weight[0])(last - 1, 0));
}

TEST_CASE("Fields: tables start with different values; copies keep the sizes") {
  Cpu::Context ctx(1);
  const Fields of{.vocabularies = {200, 200}, .dim = 50, .initial = Initial::normal(0.1)};
  const auto p = of.init<double, Cpu>(ctx, Seed{1});
  for (const auto& table : p.weight) {
    double squares = 0;
    for (const double w : values(table)) squares += w * w;
    CHECK(std::sqrt(squares / 10000) == doctest::Approx(0.1).epsilon(0.05));
  }
  CHECK(values(p.weight[0]) != values(p.weight[1]));
  std::string names;
  for_each_tensor([&](const Name& name, const auto&) { names += name.str() + ' '; }, p);
  CHECK(names == "weight.0 weight.1 ");
  const std::vector<Index> sizes{200, 300};
  const Vocabularies from_vector = sizes, copy = from_vector;
  CHECK(copy.size() == 2);
  CHECK(copy[1] == 300);
  CHECK(Fields{.vocabularies = copy, .dim = 50}.out_dim() == 100);
  CHECK(Fields{.numeric = 3}.out_dim() == 3);
}

TEST_CASE("Fields: wrong options and ids throw before anything is written") {
  Cpu::Context ctx(1);
  const auto refused = [&](const Fields& of) { return message_of([&] { of.init<float, Cpu>(ctx, Seed{1}); }); };
  CHECK(refused({}) == "Fields.init: vocabularies: expected at least one field or numeric column, got none");
  CHECK(refused({.vocabularies = {3}}) == "Fields.init: dim: expected at least 1, got 0");
  CHECK(refused({.vocabularies = {3}, .dim = 1, .numeric = -1}) == "Fields.init: numeric: expected at least 0, got -1");
  CHECK(refused({.vocabularies = {3, 0}, .dim = 1}) ==
        "Fields.init: vocabularies[1]: expected 1 to 16777216 (ids are stored in the element type), got 0");
  CHECK(refused({.vocabularies = {(1 << 24) + 1}, .dim = 1}) ==
        "Fields.init: vocabularies[0]: expected 1 to 16777216 (ids are stored in the element type), got 16777217");
  auto p = run_of<float>(ctx, fields, 4);
  const auto with_id = [&](double id) {
    p.x(2, 1) = static_cast<float>(id);
    const std::string message = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return message;
  };
  CHECK(with_id(3) == "Fields.forward: x[2, 1]: expected an id from 0 to 2, a whole number, got 3");
  CHECK(with_id(-1) == "Fields.forward: x[2, 1]: expected an id from 0 to 2, a whole number, got -1");
  CHECK(with_id(1.5) == "Fields.forward: x[2, 1]: expected an id from 0 to 2, a whole number, got 1.5");
  CHECK(with_id(quiet_nan) == "Fields.forward: x[2, 1]: expected an id from 0 to 2, a whole number, got nan");
  p.x(2, 1) = 2;
  p.forward();
  p.x(2, 1) = 3;
  Nothing<float, Cpu> none;
  CHECK(message_of([&] { fields.backward(ctx, p.params.branch, p.x, none, p.dy, p.dx, p.grads.branch, none, none); }) ==
        "Fields.backward: x[2, 1]: expected an id from 0 to 2, a whole number, got 3");
  auto other = run_of<float>(ctx, Fields{.vocabularies = {5, 4}, .dim = 4, .numeric = 2}, 4);
  CHECK(message_of([&] { fields.forward(ctx, other.params.branch, other.x, other.y, none); }) ==
        "Fields: params.weight: expected [3, 4], got [4, 4]");
}
