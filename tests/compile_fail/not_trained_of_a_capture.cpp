// expect: gatefold: NotTrained takes names, or a function of names: a lambda without captures, or a function; for names that are known at run time, pass a std::vector<std::string>; see docs/tutorials/own_program\.md
#include <gatefold/gatefold.hpp>
#include <string_view>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const OneExpert model{Linear{.model_dim = 2}};
  [[maybe_unused]] const std::string_view part = "bias";
#ifndef GATEFOLD_FAIL
  Trainer trainer{ctx,          model,   MeanSquaredError{},
                  optim::Sgd{}, Seed{1}, [](const Name& name) { return name.str() == "bias"; }};
#else
  Trainer trainer{ctx,          model,   MeanSquaredError{},
                  optim::Sgd{}, Seed{1}, [&](const Name& name) { return name.str() == part; }};
#endif
}
