// A program with macros of other headers and its own locale. It traps floating-point exceptions, because training must
// not raise them. See hosts.sh.
#include <complex.h>
#include <fenv.h>

#include <cstdio>
#include <exception>
#include <gatefold/gatefold.hpp>
#include <locale>
#include <string>
#include <type_traits>

using namespace gatefold;

struct Marks : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

int main() {
  feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
  std::locale::global(std::locale(std::locale::classic(), new Marks));
  Cpu::Context ctx(2);
  const LanguageSizes sizes{.vocabulary = 20, .model_dim = 8, .heads = 2, .window = 4, .depth = 1};
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Mlp<Gelu>{8, 12}};
  const auto model = switch_model(sizes, update::HeavyBall{}, mixture);
  Trainer trainer{ctx, model, sizes.loss(), optim::Clipped{optim::AdamW{}, 1.0}, Seed{1}};
  const Tensor<Index, 1, Cpu> ids = [] {
    Tensor<Index, 1, Cpu> all(12);
    for (Index i = 0; i < 12; ++i) all(i) = i * 7 % 20;
    return all;
  }();
  using Given = Extra<std::remove_cvref_t<decltype(model)>, float, Cpu>;
  double loss = 0;
  for (int step = 0; step < 3; ++step) loss = trainer.step(ids, ids, extra_of<Given>(Segment<float, Cpu>{.length = 6}));
  std::string said;
  try {
    expect_shape("f", "x", Tensor<float, 1, Cpu>(1234), {5678});
  } catch (const std::exception& error) {
    said = error.what();
  }
  std::printf("%s\n", said.c_str());
  return loss > 0 && loss < 5 && said == "f: x: expected [5678], got [1234]" ? 0 : 1;
}
