#include "gatefold/expert/expert.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/random_fill.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// An expert of a user: z = x ⊙ scale_e.
struct Scale {
  Index model_dim = 0;

  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> scale;  // [E, D]
    GATEFOLD_PACK(scale)
  };
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, experts, model_dim)};
  }
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Nothing<T, B>&) const {
    for (Index s = 0; s < groups.slots; ++s)
      if (const Index e = groups.expert(s); e >= 0)
        for (Index d = 0; d < model_dim; ++d) z(s, d) = x(groups.row(s), d) * p.scale(e, d);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, const Nothing<T, B>&,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    for (Index s = 0; s < groups.slots; ++s)
      if (const Index e = groups.expert(s); e >= 0)
        for (Index d = 0; d < model_dim; ++d) {
          dslots(s, d) = dz(s, d) * p.scale(e, d);
          grads.scale(e, d) += dz(s, d) * x(groups.row(s), d);
        }
  }
};

}  // namespace

TEST_CASE("Expert: the concept accepts only experts") {
  CHECK(detail_::policy::Expert<Linear, float, Cpu>);
  CHECK(detail_::policy::Expert<Mlp<Gelu>, double, Cpu>);
  CHECK(detail_::policy::Expert<GatedMlp<Silu>, float, Cpu>);
  CHECK(detail_::policy::Expert<Scale, double, Cpu>);
  CHECK(detail_::policy::check_expert<Scale, double, Cpu>());
  CHECK_FALSE(detail_::policy::Expert<SoftmaxTopK, float, Cpu>);
  CHECK_FALSE(detail_::policy::Expert<update::Plain, float, Cpu>);
  CHECK_FALSE(detail_::policy::ExpertTypes<int, float, Cpu>);
}

TEST_CASE("Expert: a user-defined expert works in a mixture") {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, Scale{.model_dim = 4}};
  auto p = pass<double>(ctx, mixture, 6);
  p.forward();
  for (Index n = 0; n < 6; ++n)
    for (Index d = 0; d < 4; ++d)
      CHECK(p.y(n, d) == p.x(n, d) * p.params.branch.expert.scale(p.saved.branch.plan.expert(n), d));
  const auto report = check::conformance<Cpu>(
      Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Scale{.model_dim = 4}},
      {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Expert: works without a gate") {
  const auto report = check::conformance<Cpu>(Scale{.model_dim = 4}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}
