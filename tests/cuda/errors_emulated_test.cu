// Lets CUDA calls fail one after the other. Each failure is a DeviceError and leaks no memory, and the next try
// succeeds.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "gatefold/gatefold.cuh"

using namespace gatefold;
using cuda_emulator::Memory;

namespace {

constexpr Index dim = 5, items = 7;

const Residual model{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                  Mlp<Gelu>{.model_dim = dim, .hidden_dim = 4}}};
using Model = decltype(model);
using Numbers = std::vector<double>;

/// All objects that a first step needs, in the order in which they are created.
struct Run {
  Cuda::Context ctx{};
  Params<Model, double, Cuda> params = init_params<double, Cuda>(model, ctx, Seed{1}), grads = zeros_like(ctx, params);
  Tensor<double, 2, Cuda> x = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
  Tensor<double, 2, Cuda> y{items, dim}, dx = constant_tensor<double>(ctx, 0, items, dim);
  Carry<Model, double, Cuda> carry{};
  Saved<Model, double, Cuda> saved{};

  void forward() {
    model.begin(ctx, params, items, carry);
    model.forward(ctx, params, x, carry, y, saved);
  }
  /// Begins with zeroed gradients, so that it can be repeated.
  void backward() {
    set_zero(ctx, grads);
    set_zero(ctx, dx);
    set_zero(ctx, carry);
    gatefold::backward(model, ctx, params, x, saved, x, carry, dx, grads);
  }
  template <class P>
  Numbers numbers(const P& pack) {
    Numbers all;
    for_each_tensor(
        [&](const Name&, const auto& t) {
          const auto part = metric::to_vector(ctx, t.view());
          all.insert(all.end(), part.begin(), part.end());
        },
        pack);
    return all;
  }
};

bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// Returns the message of the DeviceError that f throws, or "" if f throws none.
template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

/// Makes the first, second, … call in `f` fail, until f has no further call.
/// @param arm    makes the nth call from now fail
/// @param after  checks the message of each failure
/// @return how many calls failed
template <class Arm, class F, class After>
long each_fails(const Arm& arm, const F& f, const After& after) {
  for (long nth = 0;; ++nth) {
    CAPTURE(nth);
    arm(nth);
    const std::string message = message_of(f);
    if (message.empty()) {  // f made no nth call
      Memory::device().fail_at(-1);
      cuda_emulator::reset_runtime();
      return nth;
    }
    after(message);
  }
}

void fail_allocation(long nth) { Memory::device().fail_at(nth); }
void fail_launch(long nth) { cuda_emulator::fail("cudaLaunchKernel", nth, cudaErrorLaunchOutOfResources); }
const std::string out_of_memory = "cudaMalloc: cudaErrorMemoryAllocation: out of memory";

/// Returns how many allocations f makes. Each fails once, and every failure must leave nothing allocated.
template <class F>
long failures_of(const F& f) {
  const std::size_t before = Memory::device().live(), handles = cuda_emulator::live_handles();
  return each_fails(fail_allocation, f, [&](const std::string& message) {
    CHECK(message == out_of_memory);
    CHECK(Memory::device().live() == before);
    CHECK(cuda_emulator::live_handles() == handles);
  });
}

}  // namespace

TEST_CASE("cuda: poison: does not throw or leave errors on failure") {
  const Cuda::Context ctx;
  void* const p = Cuda::allocate(16);
  for (const char* call : {"cudaGetDevice", "cudaPointerGetAttributes", "cudaSetDevice", "cudaMemsetAsync"}) {
    cuda_emulator::fail(call, 0, cudaErrorAssert);
    Cuda::poison(p, 16);  // must not throw
    CHECK(cudaGetLastError() == cudaSuccess);
    cuda_emulator::reset_runtime();
  }
  Cuda::release(p);
}

TEST_CASE("cuda: a failed allocation in a layer frees all memory") {
  const auto first_step = [](detail_::device::Options options) {
    Run run{.ctx = Cuda::Context(options)};
    run.forward();
    run.backward();
  };
  // Allocates parameters, gradients, plan, saved values, scratch memory and cuBLAS's workspace.
  SUBCASE("experts with own kernels") {
    CHECK(failures_of([&] { first_step({}); }) > 20);
  }
  SUBCASE("experts with cuBLAS") {
    CHECK(failures_of([&] { first_step({.blas_experts = true}); }) > 20);
  }
}

#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda: a failed allocation in a trainer frees all memory") {
  const Residual attention{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = 4, .heads = 2}}};
  const AttentionAware<SoftmaxTopK> gate{.scores = {.experts = 3}, .selection = {.k = 2}};
  const Block block{attention, Residual{update::HeavyBall{}, Mixture{gate, Linear{.model_dim = 4}}}};
  const long failures = failures_of([&] {
    Cuda::Context ctx;
    Trainer trainer{ctx, block, MeanSquaredError{}, optim::AdamW{}, Seed{1}, Element<double>{}};
    const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 6, 4);
    trainer.step(x, x);
  });
  CHECK(failures > 60);  // 10 parameters (attention 4, norm 2, mixture 4), each with its gradient and two moments
}

TEST_CASE("cuda: a failed allocation with frozen weights frees all memory") {
  const long failures = failures_of([] {
    Cuda::Context ctx;
    const auto frozen = freeze(ctx, init_params<float, Cuda>(model, ctx, Seed{1}), {.weights = Weights::bfloat16});
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
    Tensor<float, 2, Cuda> y(items, dim);
    Carry<Model, float, Cuda> carry;
    model.begin(ctx, model_params(frozen), items, carry);
    infer<float, Cuda>(model, ctx, frozen, x, carry, y);
  });
  CHECK(failures > 10);  // 6 parameters, 2 rounded weights, items, results, momentum, plan
}
#endif

TEST_CASE("cuda: a step can be repeated after a failed allocation") {
  Run untroubled;
  untroubled.forward();
  untroubled.backward();
  const Numbers y = untroubled.numbers(untroubled.y), grads = untroubled.numbers(untroubled.grads);
  Run run;
  const Numbers params = run.numbers(run.params);
  const auto after = [&](const std::string& message) {
    CHECK(message == out_of_memory);
    CHECK(same_bits(run.numbers(run.params), params));
  };
  CHECK(each_fails(
            fail_allocation, [&] { run.forward(); }, after) > 2);  // the next try keeps what the last one allocated
  CHECK(same_bits(run.numbers(run.y), y));
  run.backward();
  CHECK(same_bits(run.numbers(run.grads), grads));
}

TEST_CASE("cuda: a failed launch throws DeviceError, a retry works") {
  Run run;
  run.forward();
  run.backward();
  const Numbers y = run.numbers(run.y), grads = run.numbers(run.grads);
  std::vector<std::string> primitives;
  const auto after = [&](const std::string& message) {
    const auto why = message.find(": cudaErrorLaunchOutOfResources: too many resources requested for launch");
    CHECK_MESSAGE(why != std::string::npos, message);
    primitives.push_back(message.substr(0, why));
  };
  CHECK(each_fails(
            fail_launch, [&] { run.forward(); }, after) > 5);
  CHECK(same_bits(run.numbers(run.y), y));
  CHECK(each_fails(
            fail_launch, [&] { run.backward(); }, after) > 10);
  CHECK(same_bits(run.numbers(run.grads), grads));
  const Index picks = 3000;  // more picks than one block counts
  Tensor<Index, 1, Cuda> keys(picks), offsets(4), order(picks), rows(picks), row_offsets(picks / 2 + 1),
      row_slots(picks);
  fill(run.ctx, keys.view(), 2);
  const View<const Index, 1, Cuda> key = keys;
  CHECK(each_fails(
            fail_launch, [&] { Cuda::group_by(run.ctx, key, offsets.view(), order.view()); }, after) > 2);
  const auto table = [&] {
    Cuda::group_table(run.ctx, key.as(picks / 2, 2), offsets.view(), order.view(), rows.view(), row_offsets.view(),
                      row_slots.view());
  };
  CHECK(each_fails(fail_launch, table, after) == 3);
  for (const char* primitive :
       {"Cuda::for_each", "Cuda::for_rows", "Cuda::gemm_rows", "Cuda::group_table", "Cuda::grouped_gemm",
        "Cuda::grouped_outer", "Cuda::grouped_sum", "cub::DeviceRadixSort::SortPairs"})
    CHECK_MESSAGE(std::find(primitives.begin(), primitives.end(), primitive) != primitives.end(), primitive);
}

TEST_CASE("cuda: a failed cuBLAS call throws DeviceError") {
  Run run;
  run.forward();
  cuda_emulator::fail("cublasCreate", 0, cudaErrorMemoryAllocation);
  CHECK(message_of([&] { run.backward(); }) ==
        "cublasCreate: CUBLAS_STATUS_ALLOC_FAILED: the resource allocation failed");
  cuda_emulator::fail("cublasSetWorkspace", 0, cudaErrorUnknown);
  CHECK(message_of([&] { run.backward(); }).rfind("cublasSetWorkspace: CUBLAS_STATUS_", 0) == 0);
  cuda_emulator::fail("cublasGemmEx", 0, cudaErrorUnknown);
  CHECK(message_of([&] { run.backward(); }).rfind("cublasGemmEx: CUBLAS_STATUS_", 0) == 0);
  CHECK(message_of([&] { run.backward(); }) == "");
}

TEST_CASE("cuda: a failed copy or synchronization throws DeviceError") {
  Run run;
  std::vector<double> host(items * dim);
  const auto copy = [&] { Cuda::to_host(run.ctx, run.x.size(), std::as_const(run.x).data(), host.data()); };
  cuda_emulator::fail("cudaMemcpyAsync", 0, cudaErrorInvalidValue);
  CHECK(message_of(copy) == "cudaMemcpyAsync: cudaErrorInvalidValue: invalid argument");
  cuda_emulator::fail("cudaStreamSynchronize", 0, cudaErrorIllegalAddress);
  CHECK(message_of(copy) == "cudaStreamSynchronize: cudaErrorIllegalAddress: an illegal memory access was encountered");
  CHECK(message_of(copy) == "");
}

TEST_CASE("cuda: Context: throws without a device") {
  cuda_emulator::options().devices = 0;
  CHECK(message_of([] { Cuda::Context ctx; }) == "Cuda::Context: no CUDA device: no CUDA-capable device is detected");
  CHECK(message_of([] { Cuda::Context ctx(cudaStreamLegacy); }) ==
        "Cuda::Context: no CUDA device: no CUDA-capable device is detected");
  cuda_emulator::options().devices = 1;
  CHECK(message_of([] { Cuda::Context ctx; }) == "");  // the failure is not reported again
}

TEST_CASE("cuda: Context: throws if the stream cannot be created") {
  cuda_emulator::fail("cudaStreamCreate", 0, cudaErrorMemoryAllocation);
  CHECK(message_of([] { Cuda::Context ctx; }) == "cudaStreamCreate: cudaErrorMemoryAllocation: out of memory");
}
