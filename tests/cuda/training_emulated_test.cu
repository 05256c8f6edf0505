// The emulator counts the CUDA calls of a training step. Later steps allocate no memory. In a later step, the host
// waits only in two cases: once per mixture and direction (forward, backward) if cuBLAS computes the experts, and once
// in a Trainer, for the loss. A graph can repeat a step.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "gatefold/gatefold.cuh"
#include "support/graph.cuh"

using namespace gatefold;
using cuda_emulator::calls;

namespace {

constexpr Index dim = 12, items = 24;

const Residual mixture{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 2}},
                                                    Mlp<Gelu>{.model_dim = dim, .hidden_dim = 8}}};
const Residual linear{update::HeavyBall{}, Mixture{mixture.branch.gate, Linear{.model_dim = dim}}};
const Residual attention{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = dim, .heads = 2}}};
const Residual follower{
    update::HeavyBall{},
    Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 5}, .selection = {.k = 2}}, Linear{.model_dim = dim}}};

/// A Trainer's step written out, without its copy of the loss to the host.
template <class L, class OptimizerT>
struct Training {
  Cuda::Context& ctx;
  L model;
  OptimizerT optimizer;
  MeanSquaredError loss{};
  Params<L, double, Cuda> params = model.template init<double, Cuda>(ctx, Seed{1}), grads = zeros_like(ctx, params);
  decltype(optimizer.begin(ctx, params)) state = optimizer.begin(ctx, params);
  Saved<L, double, Cuda> saved{};
  Carry<L, double, Cuda> carry{};
  Tensor<double, 2, Cuda> x = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
  Tensor<double, 2, Cuda> target = uniform_tensor<double>(ctx, Seed{3}, 1, items, dim);
  Tensor<double, 2, Cuda> y{items, dim}, dy{items, dim}, dx{items, dim};
  Tensor<double, 1, Cuda> value{1};

  void forward() {
    model.begin(ctx, params, items, carry);
    model.forward(ctx, params, x, carry, y, saved);
    loss.forward<double, Cuda>(ctx, y, target, value);
  }
  void backward() {
    loss.backward<double, Cuda>(ctx, y, target, dy);
    set_zero(ctx, grads);
    set_zero(ctx, dx);
    set_zero(ctx, carry);
    gatefold::backward(model, ctx, params, x, saved, dy, carry, dx, grads);
  }
  void update() {
    optimizer.step(ctx, params, grads, state);
    adapt_params(ctx, params, grads);
  }
  void step() {
    forward();
    backward();
    update();
  }
};
template <class L, class O>
Training(Cuda::Context&, L, O) -> Training<L, O>;

/// Returns every parameter on the host.
template <class TrainingT>
std::vector<double> values(const TrainingT& training) {
  std::vector<double> all;
  for_each_tensor(
      [&](const Name&, const auto& t) {
        const auto part = metric::to_vector(training.ctx, t.view());
        all.insert(all.end(), part.begin(), part.end());
      },
      training.params);
  return all;
}

/// Returns the kernel launches and cuBLAS calls of f.
template <class F>
std::uint64_t launches_of(const F& f) {
  calls().by_name.clear();
  f();
  return calls()["cudaLaunchKernel"] + calls()["cublasGemmEx"];
}

template <class L>
void expect_no_allocation(const L& model) {
  Cuda::Context ctx;
  Training training{ctx, model, optim::AdamW{}};
  training.step();
  CHECK(launches_of([&] { training.step(); }) > 0);
  for (const auto& call : calls().by_name) {
    const std::string& name = call.first;
    CAPTURE(name);
    CAPTURE(call.second);
    CHECK(name.find("Malloc") == std::string::npos);
    CHECK(name.find("Free") == std::string::npos);
    CHECK(name.find("Synchronize") == std::string::npos);
    CHECK(name.find("Memcpy") == std::string::npos);
    CHECK(name.find("Create") == std::string::npos);
  }
}

/// Returns how often the host waits for the device in f. Checks that f allocates no memory, and that there are as many
/// copies as waits.
template <class F>
std::uint64_t waits_of(const F& f) {
  calls().by_name.clear();
  f();
  std::uint64_t waits = 0, copies = 0;
  for (const auto& [name, count] : calls().by_name) {
    CHECK(name.find("Malloc") == std::string::npos);
    if (name.find("Synchronize") != std::string::npos) waits += count;
    if (name.find("Memcpy") != std::string::npos) copies += count;
  }
  CHECK(copies == waits);
  return waits;
}

template <class L>
void expect_waits_of_blas_experts(const L& model, std::uint64_t mixtures) {
  Cuda::Context ctx({.blas_experts = true});
  Training training{ctx, model, optim::AdamW{}};
  const auto inference = [&] {
    model.begin(ctx, training.params, items, training.carry);
    infer<double, Cuda>(model, ctx, training.params, training.x, training.carry, training.y);
  };
  inference();
  training.step();
  CHECK(waits_of(inference) == mixtures);
  CHECK(waits_of([&] { training.forward(); }) == mixtures);
  CHECK(waits_of([&] { training.backward(); }) == mixtures);
  CHECK(waits_of([&] { training.update(); }) == 0);
}

/// Checks that the host waits only once in a step. The result of the check for finite values is copied together with
/// the loss.
template <class O>
void expect_one_wait(const O& optimizer) {
  Cuda::Context ctx;
  Trainer trainer{ctx, linear, MeanSquaredError{}, optimizer, Seed{1}, Element<double>{}};
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
  trainer.step(x, x);
  CHECK(waits_of([&] { trainer.step(x, x); }) == 1);
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// Returns true if `launches` launches of a captured step give the same parameters as the same number of steps that are
/// not captured.
template <class L, class O>
bool graph_repeats(const L& model, const O& optimizer, int launches) {
  Cuda::Context ctx, other;
  Training step_by_step{ctx, model, optimizer}, captured{other, model, optimizer};
  step_by_step.step();
  captured.step();
  REQUIRE(same_bits(values(captured), values(step_by_step)));
  const auto before = values(captured);
  const test::Graph graph(other.stream(), [&] { captured.step(); });
  CHECK(same_bits(values(captured), before));  // capturing runs nothing
  for (int i = 0; i < launches; ++i) {
    step_by_step.step();
    graph.launch();
  }
  CHECK(!same_bits(values(captured), before));
  return same_bits(values(captured), values(step_by_step));
}

}  // namespace

TEST_CASE("cuda: a later training step neither allocates nor waits") {
  SUBCASE("Stack of mixtures") { expect_no_allocation(Stack{mixture, 2}); }
  SUBCASE("Block of attention and mixture") { expect_no_allocation(Block{attention, follower}); }
}

TEST_CASE("cuda: cuBLAS experts wait once per mixture and direction") {
  SUBCASE("Mlp") { expect_waits_of_blas_experts(Stack{mixture, 2}, 2); }
  SUBCASE("Linear") { expect_waits_of_blas_experts(linear, 1); }
}

TEST_CASE("cuda: Trainer: waits once per step to check gradients") {
  SUBCASE("separate check") { expect_one_wait(optim::AdamW{}); }
  SUBCASE("check by the norm") { expect_one_wait(optim::Clipped{optim::Sgd{}}); }
}

TEST_CASE("cuda: a graph of a training step repeats it") {
  SUBCASE("Stack of mixtures") { CHECK(graph_repeats(Stack{mixture, 2}, optim::Sgd{.lr = 0.1, .momentum = 0.9}, 3)); }
  SUBCASE("Block of attention and mixture") { CHECK(graph_repeats(Block{attention, follower}, optim::Sgd{}, 2)); }
}

TEST_CASE("cuda: a graph keeps host counters from its capture") {
  const optim::AdamW adamw{.lr = 0.01};  // every launch of the graph uses the bias corrections of step 2
  CHECK(graph_repeats(mixture, adamw, 1));
  CHECK_FALSE(graph_repeats(mixture, adamw, 2));
}

TEST_CASE("cuda: capturing the first step throws") {
  Cuda::Context ctx;
  Training training{ctx, mixture, optim::Sgd{}};
  REQUIRE(cudaStreamBeginCapture(ctx.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  const char* const refused =
      "cudaMalloc: cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing";
  CHECK_THROWS_WITH_AS(training.step(), refused, DeviceError);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(ctx.stream(), &graph) == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  CHECK_NOTHROW(training.step());
}

namespace {

/// The number of launches of each kernel, and of calls of cublasGemmEx, by name.
using Launches = std::map<std::string, std::uint64_t>;
template <class F>
Launches named_launches_of(const F& f) {
  calls().by_name.clear();
  cuda_emulator::counters_by_kernel().clear();
  f();
  Launches launches;
  for (const auto& [kernel, counters] : cuda_emulator::counters_by_kernel()) launches[kernel] = counters.launches;
  if (const auto products = calls()["cublasGemmEx"]) launches["cublasGemmEx"] = products;
  return launches;
}

/// Returns what launches of this name are for.
std::string purpose_of(const std::string& name) {
  const std::pair<const char*, const char*> purposes[] = {{"RouteRow", "gating"},
                                                          {"table_", "dispatch"},
                                                          {"Combine", "combine"},
                                                          {"ActivateBackward", "experts"},
                                                          {"slots_are_depth", "gradient"},
                                                          {"grouped_sum", "bias"},
                                                          {"slots_are_rows", "product"},
                                                          {"skinny", "product"},
                                                          {"HeavyBall", "update"},
                                                          {"AdamW", "AdamW"},
                                                          {"cublasGemmEx", "cuBLAS"},
                                                          {"EvenOffsets", "offsets"},
                                                          {"Fill", "zeros"}};
  for (const auto& [word, purpose] : purposes)
    if (name.find(word) != std::string::npos) return purpose;
  return name;
}

/// Returns the launches that `more` has beyond those of `less`, as "combine 1, dispatch 1".
std::string beyond(const Launches& less, const Launches& more) {
  Launches purposes;
  for (const auto& [name, count] : more) {
    const auto before = less.find(name);
    purposes[purpose_of(name)] += count - (before == less.end() ? 0 : before->second);
  }
  std::string text;
  for (const auto& [purpose, count] : purposes)
    if (count > 0) text += (text.empty() ? "" : ", ") + purpose + " " + std::to_string(count);
  return text;
}

/// The launches that one layer adds to each part of a step.
struct LayerLaunches {
  Launches inference{}, forward{}, backward{}, update{};

  template <class L>
  explicit LayerLaunches(const L& layer, int layers) {
    Cuda::Context ctx;
    const Stack model{layer, layers};
    Training training{ctx, model, optim::AdamW{}};
    const auto infer_all = [&] {
      infer<double, Cuda>(model, ctx, training.params, training.x, training.carry, training.y);
    };
    const auto begin = [&] { model.begin(ctx, training.params, training.x.extent(0), training.carry); };
    training.step();
    begin();
    infer_all();
    begin();
    inference = named_launches_of(infer_all);
    forward = named_launches_of([&] { training.forward(); });
    backward = named_launches_of([&] {
      gatefold::backward(model, ctx, training.params, training.x, training.saved, training.dy, training.carry,
                         training.dx, training.grads);
    });
    update = named_launches_of([&] { training.update(); });
  }
};

}  // namespace

// Each list is also in docs/explanation/gpu_speed.md.
TEST_CASE("cuda: a layer in training launches only the listed kernels") {
  const LayerLaunches one(mixture, 1), two(mixture, 2), three(mixture, 3);
  for (const auto& [less, more] : {std::pair{&one, &two}, {&two, &three}}) {
    CHECK(beyond(less->inference, more->inference) == "combine 1, dispatch 1, gating 1, product 4");
    CHECK(beyond(less->forward, more->forward) == "combine 1, dispatch 1, gating 1, product 4");
    CHECK(beyond(less->backward, more->backward) ==
          "bias 3, combine 1, cuBLAS 2, experts 1, gating 1, gradient 2, offsets 1, product 2, update 1, zeros 2");
    CHECK(beyond(less->update, more->update) == "AdamW 6");  // one launch for each of the 6 tensors of parameters
  }
}

TEST_CASE("cuda: a layer in inference launches only the listed kernels") {
  const auto launches = [](Index experts, Index rows) {
    Residual layer = mixture;
    layer.branch.gate.scores.experts = experts;
    Cuda::Context ctx;
    const auto params = init_params<double, Cuda>(layer, ctx, Seed{1});
    const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, rows, dim);
    Tensor<double, 2, Cuda> y(rows, dim);
    Carry<decltype(layer), double, Cuda> carry;
    layer.begin(ctx, params, rows, carry);
    const auto run = [&] { infer<double, Cuda>(layer, ctx, params, x, carry, y); };
    run();
    layer.begin(ctx, params, rows, carry);
    return beyond({}, named_launches_of(run));
  };
  CHECK(launches(5, 1024) == "combine 1, dispatch 1, gating 1, product 4");
  CHECK(launches(5, 1025) == "combine 1, dispatch 3, gating 1, product 4");
  CHECK(launches(64, items) == "combine 1, dispatch 1, gating 1, product 4");
  CHECK(launches(65, items) == "combine 1, cuBLAS 1, dispatch 1, gating 1, product 4");
}

TEST_CASE("cuda: combine: applies the update rule without storing u") {
  const Residual layer = mixture;
  Cuda::Context ctx;
  const auto params = init_params<double, Cuda>(layer, ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
  Tensor<double, 2, Cuda> y(items, dim);
  Carry<std::remove_const_t<decltype(layer)>, double, Cuda> carry;
  layer.begin(ctx, params, items, carry);
  cuda_emulator::counters_by_kernel().clear();
  infer<double, Cuda>(layer, ctx, params, x, carry, y);
  cuda_emulator::Counters combine;
  for (const auto& [kernel, counters] : cuda_emulator::counters_by_kernel())
    if (purpose_of(kernel) == "combine") combine = counters;
  CHECK(combine.launches == 1);
  const Index array = items * dim * Index(sizeof(double)), picks = layer.branch.gate.selection.k;
  const Index looked_up = items * Index(sizeof(Index)) * (2 + 3 * picks);  // offsets; slots, picks and weights
  CHECK(static_cast<Index>(combine.global_bytes_stored) == 2 * array);     // p, y
  CHECK(static_cast<Index>(combine.global_bytes_loaded) == (picks + 2) * array + looked_up);  // z, x, p
}
