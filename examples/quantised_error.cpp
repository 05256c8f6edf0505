// Prints a Markdown table with the errors of two mixture layers, for each form of their weights (core/weights.hpp). The
// error is the difference from the same layer in double. The first layer has weights from a normal distribution; the
// second is trained here.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <utility>
#include <vector>
using namespace gatefold;

namespace {

constexpr Index items = 512, dim = 128, hidden = 256, batch = 256;

auto make_layer() {
  const Initial normal{Initial::Law::normal_fan_in};
  return Mixture{SoftmaxTopK{.scores = {.experts = 8, .initial = normal}, .selection = {.k = 2}},
                 GatedMlp<Silu>{.model_dim = dim, .hidden_dim = hidden, .initial = normal}};
}
using Layer = decltype(make_layer());
template <class T>
using LayerParams = Params<Layer, T, Cpu>;

/// Runs the layer on backend B in type T, with the given parameters (Params or FrozenParams). Returns the outputs
/// [items, dim].
template <class T, class B, class P>
std::vector<double> outputs(const P& params, const Tensor<float, 2, Cpu>& x) {
  typename B::Context ctx;
  Tensor<T, 2, B> in(items, dim), y(items, dim);
  std::copy(x.data(), x.data() + x.size(), in.data());
  infer(make_layer(), ctx, params, in, y);
  return {y.data(), y.data() + y.size()};
}

/// Copies the values of parameters to parameters of another type or backend.
template <class T, class B>
Params<Layer, T, B> copied(const LayerParams<float>& params) {
  typename B::Context ctx;
  auto to = make_layer().init<T, B>(ctx, Seed{1});
  for_each_tensor(
      [](const Name&, auto& t, const auto& from) { std::copy(from.data(), from.data() + from.size(), t.data()); }, to,
      params);
  return to;
}

/// The differences of outputs y from z, relative to the root of the mean square of z.
struct Difference {
  double mean = 0, largest = 0;  // root of the mean square, and the largest magnitude

  Difference(const std::vector<double>& y, const std::vector<double>& z) {
    double of_z = 0;
    for (std::size_t i = 0; i < z.size(); ++i) {
      of_z += z[i] * z[i];
      mean += (y[i] - z[i]) * (y[i] - z[i]);
      largest = std::max(largest, std::abs(y[i] - z[i]));
    }
    largest /= std::sqrt(of_z / static_cast<double>(z.size()));
    mean = std::sqrt(mean / of_z);
  }
};

/// Returns the error of the layer with frozen weights.
template <class B>
Difference error(const LayerParams<float>& params, Weights form, const Tensor<float, 2, Cpu>& x,
                 const std::vector<double>& exact) {
  typename B::Context ctx;
  return {outputs<float, B>(freeze(ctx, copied<float, B>(params), {.weights = form}), x), exact};
}
/// Returns the error of each row of the table.
std::vector<Difference> errors(const LayerParams<float>& params, const Tensor<float, 2, Cpu>& x) {
  const std::vector<double> exact = outputs<double, Cpu>(copied<double, Cpu>(params), x);
  std::vector<Difference> all;
  for (const Weights form : {Weights::unchanged, Weights::bfloat16}) all.push_back(error<Cpu>(params, form, x, exact));
  all.push_back(error<CpuBf16>(params, Weights::bfloat16, x, exact));
  for (const Weights form : {Weights::int8, Weights::int4, Weights::mxfp4})
    all.push_back(error<Cpu>(params, form, x, exact));
  return all;
}

/// Returns the parameters of a layer that has learned the outputs of a random network of two layers.
LayerParams<float> trained(Cpu::Context& ctx) {
  const Mlp<Gelu> network{.model_dim = dim, .hidden_dim = 2 * dim};
  const OneExpert teacher{network};
  const auto of_teacher = teacher.init<float, Cpu>(ctx, Seed{11});
  constexpr Index steps = 400;
  Trainer trainer{ctx, make_layer(), MeanSquaredError{},
                  optim::Scheduled{optim::AdamW{.lr = 3e-3}, optim::WarmupCosine{.warmup = 20, .total = steps}},
                  Seed{12}};
  Tensor<float, 2, Cpu> x(batch, dim), target(batch, dim);
  double before = 0, loss = 0;
  for (Index step = 0; step < steps; ++step) {
    fill_normal(ctx, Seed{13}.fork(static_cast<std::uint64_t>(step)), 1.0, x);
    infer(teacher, ctx, of_teacher, x, target);
    loss = trainer.step(x, target);
    if (step == 0) before = loss;
  }
  std::printf("The training reduced the loss from %.4f to %.4f.\n\n", before, loss);
  return std::move(trainer.params.branch);
}

}  // namespace

int main() {
  Cpu::Context ctx;
  Tensor<float, 2, Cpu> x(items, dim);
  fill_normal(ctx, Seed{2}, 1.0, x);
  const std::vector<Difference> learned = errors(trained(ctx), x);
  const std::vector<Difference> drawn = errors(make_layer().init<float, Cpu>(ctx, Seed{1}), x);
  const char* const names[] = {
      "`unchanged`, float", "`bfloat16`", "`bfloat16` on `CpuBf16`", "`int8`", "`int4`", "`mxfp4`"};
  std::printf("| weights | normal: error | largest | trained: error | largest |\n|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < drawn.size(); ++i)
    std::printf("| %s | %.2g | %.2g | %.2g | %.2g |\n", names[i], drawn[i].mean, drawn[i].largest, learned[i].mean,
                learned[i].largest);
}
