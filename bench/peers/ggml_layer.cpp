// One mixture-of-experts layer with SwiGLU experts as a graph of ggml, with a C interface that bench/quantised.cpp
// loads at run time. The graph is the one that build_moe_ffn in llama.cpp's src/llama-graph.cpp builds.
// bench/peers/ggml.sh compiles this file with the sources of ggml.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace {

struct Free {
  void operator()(ggml_context* p) const { ggml_free(p); }
  void operator()(ggml_backend* p) const { ggml_backend_free(p); }
  void operator()(ggml_backend_buffer* p) const { ggml_backend_buffer_free(p); }
  void operator()(ggml_gallocr* p) const { ggml_gallocr_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

Owned<ggml_context> empty_context() {
  return Owned<ggml_context>(ggml_init({ggml_tensor_overhead() * 128 + ggml_graph_overhead(), nullptr, true}));
}

/// A graph for a number of items, and its memory.
struct Graph {
  Owned<ggml_context> context;
  Owned<ggml_gallocr> memory;
  ggml_cgraph* nodes;
  ggml_tensor *x, *y;  // [T, D]
};

struct Layer {
  std::int64_t dim, hidden, experts, picks;
  Owned<ggml_backend> backend;
  Owned<ggml_context> context;
  Owned<ggml_backend_buffer> router_memory, expert_memory;
  ggml_tensor* router;                   // [E, D]
  ggml_tensor *gate, *up, *down;         // [E, H, D], [E, H, D], [E, D, H]
  std::map<std::int64_t, Graph> graphs;  // by the number of items
};

ggml_type type_of(const char* name) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_MXFP4})
    if (std::strcmp(ggml_type_name(type), name) == 0) return type;
  return GGML_TYPE_COUNT;
}

/// Returns the buffer type whose weights ggml reorders for its matrix products, or null.
ggml_backend_buffer_type_t repacked() {
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
  const auto list = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts"));
  if (!list) return nullptr;
  for (ggml_backend_buffer_type_t* type = list(device); type && *type; ++type)
    if (std::strcmp(ggml_backend_buft_name(*type), "CPU_REPACK") == 0) return *type;
  return nullptr;
}

/// Converts weights to the type of the tensor. Uses several threads, because the conversion takes longer than the
/// benchmark.
void set_weights(ggml_tensor* tensor, const float* weights, int threads) {
  const std::int64_t columns = tensor->ne[0], rows = tensor->ne[1] * tensor->ne[2];
  std::vector<char> converted(ggml_nbytes(tensor));
  ggml_quantize_init(tensor->type);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&, first = rows * t / threads, last = rows * (t + 1) / threads] {
      ggml_quantize_chunk(tensor->type, weights, converted.data(), first * columns, last - first, columns, nullptr);
    });
  for (std::thread& worker : workers) worker.join();
  ggml_backend_tensor_set(tensor, converted.data(), 0, converted.size());
}

Graph make_graph(Layer& layer, std::int64_t items) {
  Graph graph{empty_context(), nullptr, nullptr, nullptr, nullptr};
  ggml_context* const c = graph.context.get();
  graph.nodes = ggml_new_graph(c);
  graph.x = ggml_new_tensor_2d(c, GGML_TYPE_F32, layer.dim, items);
  graph.x->data = &graph;  // gallocr allocates only tensors without data; forward() sets the address

  ggml_tensor* const probabilities = ggml_soft_max(c, ggml_mul_mat(c, layer.router, graph.x));
  ggml_tensor* const picked = ggml_argsort_top_k(c, probabilities, static_cast<int>(layer.picks));
  ggml_tensor* weights = ggml_get_rows(c, ggml_reshape_3d(c, probabilities, 1, layer.experts, items), picked);
  weights = ggml_reshape_2d(c, weights, layer.picks, items);
  weights = ggml_div(c, weights, ggml_clamp(c, ggml_sum_rows(c, weights), 6.103515625e-5f, INFINITY));
  weights = ggml_reshape_3d(c, weights, 1, layer.picks, items);
  ggml_build_forward_expand(graph.nodes, weights);

  ggml_tensor* const x = ggml_reshape_3d(c, graph.x, layer.dim, 1, items);
  ggml_tensor* const up = ggml_mul_mat_id(c, layer.up, x, picked);
  ggml_tensor* const gate = ggml_mul_mat_id(c, layer.gate, x, picked);
  ggml_tensor* z = ggml_mul_mat_id(c, layer.down, ggml_swiglu_split(c, gate, up), picked);
  z = ggml_mul(c, z, weights);
  ggml_build_forward_expand(graph.nodes, z);
  const auto pick = [&](std::int64_t k) {
    return ggml_view_2d(c, z, layer.dim, items, z->nb[2], static_cast<std::size_t>(k) * z->nb[1]);
  };
  graph.y = pick(0);
  for (std::int64_t k = 1; k < layer.picks; ++k) graph.y = ggml_add(c, graph.y, pick(k));
  if (layer.picks == 1) graph.y = ggml_cont(c, graph.y);
  ggml_set_output(graph.y);
  ggml_build_forward_expand(graph.nodes, graph.y);
  graph.memory.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(layer.backend.get())));
  if (!ggml_gallocr_alloc_graph(graph.memory.get(), graph.nodes)) graph.nodes = nullptr;
  return graph;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

/// Makes a layer. Returns null if ggml has no such type, or if `repack` is not 0 and ggml cannot reorder the weights on
/// this machine.
/// @param type  f32, bf16, q8_0, q4_0 or mxfp4
/// @param repack  if not 0, the experts' weights are in a buffer of type CPU_REPACK
/// @param router  [E, D]
/// @param gate, up  [E, H, D]
/// @param down  [E, D, H]
EXPORTED void* ggml_layer_make(std::int64_t dim, std::int64_t hidden, std::int64_t experts, std::int64_t picks,
                               const char* type, int repack, int threads, const float* router, const float* gate,
                               const float* up, const float* down) {
  const ggml_type of = type_of(type);
  Owned<ggml_backend> backend(ggml_backend_cpu_init());
  const ggml_backend_buffer_type_t memory = repack ? repacked() : ggml_backend_get_default_buffer_type(backend.get());
  if (of == GGML_TYPE_COUNT || !memory) return nullptr;
  ggml_backend_cpu_set_n_threads(backend.get(), threads);

  auto layer = std::make_unique<Layer>(Layer{dim,
                                             hidden,
                                             experts,
                                             picks,
                                             std::move(backend),
                                             empty_context(),
                                             nullptr,
                                             nullptr,
                                             nullptr,
                                             nullptr,
                                             nullptr,
                                             nullptr,
                                             {}});
  ggml_context* const c = layer->context.get();
  layer->router = ggml_new_tensor_2d(c, GGML_TYPE_F32, dim, experts);
  layer->router_memory.reset(ggml_backend_alloc_ctx_tensors(c, layer->backend.get()));
  layer->gate = ggml_new_tensor_3d(c, of, dim, hidden, experts);
  layer->up = ggml_new_tensor_3d(c, of, dim, hidden, experts);
  layer->down = ggml_new_tensor_3d(c, of, hidden, dim, experts);
  layer->expert_memory.reset(ggml_backend_alloc_ctx_tensors_from_buft(c, memory));
  // ggml sets `extra` only if it has a reordered form of this type for this machine.
  if (!layer->expert_memory || (repack && !(layer->gate->extra && layer->down->extra))) return nullptr;
  set_weights(layer->router, router, 1);
  set_weights(layer->gate, gate, threads);
  set_weights(layer->up, up, threads);
  set_weights(layer->down, down, threads);
  return layer.release();
}

EXPORTED void ggml_layer_free(void* layer) { delete static_cast<Layer*>(layer); }

/// Returns the bytes of the three weight matrices of one expert.
EXPORTED std::int64_t ggml_layer_expert_bytes(const void* of) {
  const Layer& layer = *static_cast<const Layer*>(of);
  return static_cast<std::int64_t>(layer.gate->nb[2] + layer.up->nb[2] + layer.down->nb[2]);
}

/// Computes the output for the items x [T, D], and returns its address [T, D], which the next call overwrites. Returns
/// null if ggml reports an error.
EXPORTED const float* ggml_layer_forward(void* of, const float* x, std::int64_t items) {
  Layer& layer = *static_cast<Layer*>(of);
  auto found = layer.graphs.find(items);
  if (found == layer.graphs.end()) found = layer.graphs.emplace(items, make_graph(layer, items)).first;
  Graph& graph = found->second;
  if (!graph.nodes) return nullptr;
  graph.x->data = const_cast<float*>(x);
  for (ggml_tensor* view = ggml_get_first_tensor(graph.context.get()); view;
       view = ggml_get_next_tensor(graph.context.get(), view))
    if (view->view_src == graph.x) view->data = graph.x->data;
  if (ggml_backend_graph_compute(layer.backend.get(), graph.nodes) != GGML_STATUS_SUCCESS) return nullptr;
  return static_cast<const float*>(graph.y->data);
}
