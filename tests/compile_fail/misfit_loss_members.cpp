// expect: gatefold: counted of a loss must be callable as counted\(ctx, target\) const, which returns an Index; see docs/reference/optional_members\.md
// expect: gatefold: no_batch of a loss must be callable as no_batch\(items\) const, which returns a bool; see docs/reference/optional_members\.md
// expect: gatefold: choices of a Saved must be callable as choices\(f\) const; see docs/reference/optional_members\.md
// Members with the right names, but with other arguments or another result than those of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : MeanSquaredError {
#ifdef GATEFOLD_FAIL
  Index counted() const { return 0; }
  int no_batch(Index) const { return 0; }
#endif
};
struct Choices {
#ifdef GATEFOLD_FAIL
  void choices() const {}
#endif
};

int main() {
  Cpu::Context ctx;
  const Tensor<float, 2, Cpu> x(1, 2);
  detail_::loss::counted<Cpu>(Odd{}, ctx, 1, x.view());
  Trainer trainer{ctx, Linear{.model_dim = 2}, Odd{}, optim::Sgd{}, Seed{1}};
  const auto take = [](const Index&) {};
  detail_::hook::saved::choices<const Choices, decltype(take)>();
}
