// expect: gatefold: with_noise of an expert must be callable as with_noise\(noise\) const, which returns its own type; see docs/reference/optional_members\.md
// An expert whose with_noise does not take the noise.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : Linear {
#ifdef GATEFOLD_FAIL
  Odd with_noise() const { return *this; }
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{SoftmaxTopK{.scores = {.experts = 2}}, Odd{{.model_dim = 2}}}, MeanSquaredError{},
                  optim::Sgd{}, Seed{1}};
}
