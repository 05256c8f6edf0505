// Graphs: they run the operations that a capture has recorded, in the order of recording.
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

// Shared with captures that have recorded a launch of the graph.
using Executable = std::shared_ptr<const Operations>;

Handles<cudaGraph_t, Operations>& graphs() {
  static auto& all = *new Handles<cudaGraph_t, Operations>;
  return all;
}

Handles<cudaGraphExec_t, Executable>& executables() {
  static auto& all = *new Handles<cudaGraphExec_t, Executable>;
  return all;
}

cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  const Operations* found = graphs().find(graph);
  if (!found || !executable) return cudaErrorInvalidValue;
  *executable = executables().add(std::make_shared<const Operations>(*found));
  return cudaSuccess;
}

}  // namespace

cudaGraph_t add_graph(Operations operations) { return graphs().add(std::move(operations)); }

std::size_t live_graphs() { return graphs().size() + executables().size(); }

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

// Returns only the number of the nodes.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return runtime_call("cudaGraphGetNodes", [&] {
    const Operations* found = graphs().find(graph);
    if (!found || !count) return cudaErrorInvalidValue;
    if (nodes) return cudaErrorNotSupported;
    *count = found->size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return runtime_call("cudaGraphDestroy", [&] { return graphs().remove(graph) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return runtime_call("cudaGraphInstantiate", [&] { return instantiate(executable, graph); });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return runtime_call("cudaGraphInstantiateWithFlags", [&] { return instantiate(executable, graph); });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return runtime_call("cudaGraphExecDestroy",
                      [&] { return executables().remove(executable) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return runtime_call("cudaGraphUpload", [&] {
    if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
    return executables().find(executable) ? refused_while_capturing() : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return runtime_call("cudaGraphLaunch", [&] {
    const auto* found = executables().find(executable);
    if (!found) return cudaErrorInvalidValue;
    return submit(stream, [operations = *found] {
      for (const Operation& operation : *operations) operation();
    });
  });
}
