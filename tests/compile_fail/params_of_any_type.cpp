// expect: gatefold: forward and backward of an update rule must take params as const Params<T, B>&, or as const Nothing<T, B>& if the rule has no parameters\. const auto& would also accept the parameters of another model; see docs/how-to/extending\.md#what-all-policies-share
// expect: gatefold: forward and backward of a gate must take params as
// expect: gatefold: forward and backward of an expert must take params as
// expect: gatefold: forward and backward of a branch must take params as
// expect: gatefold: forward and backward of a layer must take params as
// expect: gatefold: forward and backward of scores, mixing and selection must take params as
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
#define TEMPLATE template <class T, class B>
#define GIVEN const Nothing<T, B>&
#else
#define TEMPLATE
#define GIVEN const auto&
#endif

struct Rule {
  TEMPLATE void forward(auto&, GIVEN, auto x, auto&, auto&& f, auto y, auto&&) const { f(x, y, 0); }
  TEMPLATE void backward(auto&, GIVEN, auto x, auto&&, auto&& df, auto dy, auto&, auto dx, auto&) const {
    df(x, dy, dx, 0);
  }
};
struct Gate {
  template <class T, class B>
  using Plan = SparsePlan<T, B>;
  Index experts() const { return 2; }
  TEMPLATE void forward(auto&, GIVEN, auto, auto&, auto&, const auto&) const {}
  TEMPLATE void backward(auto&, GIVEN, auto, const auto&, const auto&, const auto&, auto, auto&, const auto&,
                         auto&) const {}
};
struct Expert {
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  template <class T, class B>
  Nothing<T, B> init(auto&, Index, Seed) const {
    return {};
  }
  TEMPLATE void forward(auto&, GIVEN, auto, auto, auto, auto&) const {}
  TEMPLATE void backward(auto&, GIVEN, auto, auto, const auto&, auto, auto, auto&) const {}
};
struct Branch {
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  TEMPLATE void forward(auto& ctx, GIVEN, auto, auto u, auto&, const auto&, const auto& step) const {
    run_step(ctx, u, step);
  }
  TEMPLATE void backward(auto&, GIVEN, auto, const auto&, auto, auto, auto&, const auto&, auto&) const {}
};
struct Layer {
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  TEMPLATE void begin(auto&, GIVEN, Index, auto&) const {}
  TEMPLATE void forward(auto&, GIVEN, auto, auto&, auto, auto&, const auto&) const {}
  TEMPLATE void backward(auto&, GIVEN, auto, const auto&, auto, auto&, auto, auto&, const auto&, auto&) const {}
};
struct Scores {
  Index model_dim = 2, experts = 2;
  TEMPLATE void forward(auto&, GIVEN, auto, auto) const {}
  TEMPLATE void backward(auto&, GIVEN, auto, auto, auto, auto&) const {}
};

int main() {
  Cpu::Context ctx;
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 2}}, Linear{.model_dim = 2}};
  Residual{Rule{}, branch}.init<float, Cpu>(ctx, Seed{1});
  Mixture{Gate{}, Linear{.model_dim = 2}}.init<float, Cpu>(ctx, Seed{1});
  Mixture{SoftmaxTopK{.scores = {.experts = 2}}, Expert{}}.init<float, Cpu>(ctx, Seed{1});
  Residual{update::Plain{}, Branch{}}.init<float, Cpu>(ctx, Seed{1});
  Stack{Layer{}}.init<float, Cpu>(ctx, Seed{1});
  Mixture{ComposedGate<Scores, Independent, TopK>{}, Linear{.model_dim = 2}}.init<float, Cpu>(ctx, Seed{1});
}
