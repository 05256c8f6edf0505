// expect: gatefold: summary takes a model, not its parameters: summary\(model\); it needs no parameters; see docs/reference/functions\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const OneExpert model{Linear{.model_dim = 2}};
  const auto params = model.init<float, Cpu>(ctx, Seed{1});
#ifndef GATEFOLD_FAIL
  return static_cast<int>(summary(model).values);
#else
  return static_cast<int>(summary(params).values);
#endif
}
