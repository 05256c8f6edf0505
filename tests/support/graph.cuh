#pragma once

#include <doctest/doctest.h>

#include "gatefold/backend/cuda/status.cuh"

namespace gatefold::test {

/// A graph that captures work() on a stream and can launch it repeatedly.
class Graph {
 public:
  template <class F>
  Graph(cudaStream_t stream, const F& work) : stream_(stream) {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    work();
    REQUIRE(cudaStreamEndCapture(stream, &graph_) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executable_, graph_, 0) == cudaSuccess);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    CHECK(cudaGraphExecDestroy(executable_) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph_) == cudaSuccess);
  }
  void launch() const { REQUIRE(cudaGraphLaunch(executable_, stream_) == cudaSuccess); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace gatefold::test
