#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <gatefold/gatefold.cuh>

/// Shared code of the GPU benchmarks: timing with CUDA events, and the arithmetic and memory limits of a device.
namespace bench {

using namespace gatefold;

inline double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// A CUDA event, which records the time at which the GPU finishes the work launched before it.
class Event {
 public:
  Event() { detail_::device::expect_success(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void record(cudaStream_t stream) {
    detail_::device::expect_success(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  double seconds_since(const Event& begin) const {
    detail_::device::expect_success(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float ms = 0;
    detail_::device::expect_success(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Times several functions in turn, round after round, so that their ratios are taken under the same conditions. A
/// round repeats a function for about ten milliseconds. Times include kernel launches, unless the function launches a
/// Graph.
class Rounds {
 public:
  explicit Rounds(cudaStream_t stream) : stream_(stream) {}

  std::size_t add(std::function<void()> work) {
    works_.push_back({std::move(work), 1, {}});
    return works_.size() - 1;
  }
  void run(int rounds = 7) {
    for (auto& w : works_) {
      for (int i = 0; i < 3; ++i) w.work();
      const double once = time(w);
      w.repeats = static_cast<int>(std::clamp(0.01 / once, 1.0, 2000.0));
    }
    for (int round = 0; round < rounds; ++round)
      for (auto& w : works_) w.seconds.push_back(time(w));
  }
  double median_of(std::size_t i) const { return median(works_[i].seconds); }
  double ratio(std::size_t a, std::size_t b) const {
    std::vector<double> r;
    for (std::size_t k = 0; k < works_[a].seconds.size(); ++k) r.push_back(works_[a].seconds[k] / works_[b].seconds[k]);
    return median(r);
  }

 private:
  struct Work {
    std::function<void()> work;
    int repeats;
    std::vector<double> seconds;
  };
  double time(const Work& w) {
    begin_.record(stream_);
    for (int i = 0; i < w.repeats; ++i) w.work();
    end_.record(stream_);
    return end_.seconds_since(begin_) / w.repeats;
  }

  cudaStream_t stream_;
  std::vector<Work> works_;
  Event begin_, end_;
};

/// GPU work that is captured once and then launched repeatedly as one CUDA graph.
class Graph {
 public:
  template <class Context, class F>
  Graph(Context& ctx, const F& work) {
    for (int i = 0; i < 2; ++i) work();  // allocates memory, which must not happen during the capture
    cudaGraph_t graph;
    detail_::device::expect_success(cudaStreamBeginCapture(ctx.stream(), cudaStreamCaptureModeThreadLocal),
                                    "cudaStreamBeginCapture");
    work();
    detail_::device::expect_success(cudaStreamEndCapture(ctx.stream(), &graph), "cudaStreamEndCapture");
    detail_::device::expect_success(cudaGraphInstantiate(&instance_, graph, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(instance_); }
  template <class Context>
  void launch(Context& ctx) const {
    detail_::device::expect_success(cudaGraphLaunch(instance_, ctx.stream()), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t instance_ = nullptr;
};

/// Computes fused multiply-adds on registers only. Each thread computes kChains independent chains of multiply-adds,
/// which hides their latency.
struct FmaLoop {
  static constexpr int kChains = 16, kSteps = 1024;
  float* out;
  __device__ void operator()(Index i) const {
    float v[kChains];
    for (int c = 0; c < kChains; ++c) v[c] = static_cast<float>(i + c);
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int c = 0; c < kChains; ++c) v[c] = fmaf(v[c], 0.999f, 0.5f);
    float sum = 0;
    for (int c = 0; c < kChains; ++c) sum += v[c];
    if (sum == 12345.f) out[i] = sum;
  }
  static double flop(Index n) { return 2.0 * kChains * kSteps * static_cast<double>(n); }
};

/// Measures the limits of the device: float operations per second, and bytes per second that a large copy reads and
/// writes.
class Limits {
 public:
  Limits(Cuda::Context& ctx, Rounds& rounds) : sink_(kThreads), from_(kCopied), to_(kCopied) {
    fill(ctx, from_.view(), 1);
    fma_ = rounds.add([&ctx, this] { Cuda::for_each(ctx, kThreads, FmaLoop{sink_.data()}); });
    copy_ = rounds.add([&ctx, this] {
      detail_::device::expect_success(
          cudaMemcpyAsync(to_.data(), from_.data(), kCopied * sizeof(float), cudaMemcpyDeviceToDevice, ctx.stream()),
          "cudaMemcpyAsync");
    });
  }
  double flops(const Rounds& rounds) const { return FmaLoop::flop(kThreads) / rounds.median_of(fma_); }
  double bandwidth(const Rounds& rounds) const { return 2.0 * kCopied * sizeof(float) / rounds.median_of(copy_); }

 private:
  static constexpr Index kThreads = 132 * 2048 * 4, kCopied = Index(1) << 28;
  Tensor<float, 1, Cuda> sink_, from_, to_;
  std::size_t fma_, copy_;
};

}  // namespace bench
