#include "support/layer.hpp"
#include "support/peers.hpp"

// Times the matrix products in experts, gates and their backward, compared with the machine's peak.
namespace {

using namespace bench;

/// Reports the speed of a product and its share of the machine's peak.
/// @param bytes  size of an element; registers hold half as many doubles as floats, so doubles have a lower peak
void count_peak(benchmark::State& state, Rounds& rounds, double flop, std::size_t bytes = sizeof(float)) {
  const double narrower = static_cast<double>(sizeof(float)) / static_cast<double>(bytes);
  const auto peak = rounds.measure([=] { return fma_peak(cpu::available_threads()) * narrower; });
  run_rounds(state, rounds);
  count(state, "gflops", flop / rounds.median_of(0) * 1e-9);
  count(state, "peak_share", rounds.median_over([&](auto of) { return flop / of(0) / of(peak); }));
}

/// Times only the innermost kernel of a product, with one thread and operands in the first-level cache. No product can
/// reach a larger share of the peak than this kernel. The counters `lowest` and `highest` show how much other programs
/// on the machine disturb the measurement.
void tile(benchmark::State& state) {
  using Tile = cpu::Tile<float>;
  constexpr int kCalls = 2000;
  const std::vector<float> a(Tile::rows * Tile::stride, 0.5f), b(Tile::depth * Tile::columns, 0.25f);
  std::vector<float> sums(Tile::rows * Tile::columns);
  Rounds rounds;
  rounds.time([&] {
    for (int i = 0; i < kCalls; ++i)
      cpu::tile_sum<float>(Tile::rows, Tile::columns, Tile::depth, a.data(), b.data(), sums.data(), Tile::columns,
                           cpu::Into::add, cpu::Prefetch::nothing(b.data()));
  });
  const auto peak = add_peak(rounds, 1);
  run_rounds(state, rounds);
  const double flop = 2.0 * kCalls * Tile::rows * Tile::columns * Tile::depth;
  const auto shares = rounds.over([&](auto of) { return flop / of(0) / of(peak); });
  count(state, "peak_share", median(shares));
  count(state, "lowest", *std::min_element(shares.begin(), shares.end()));
  count(state, "highest", *std::max_element(shares.begin(), shares.end()));
}
BENCHMARK(tile)->Apply(timed);

/// Times a dense product c [m, n] = a [m, k] b [k, n], compared with other libraries.
void gemm(benchmark::State& state) {
  const Index m = state.range(0), n = state.range(1), k = state.range(2);
  Cpu::Context ctx = context();
  const auto a = uniform_tensor<float>(ctx, Seed{1}, 1, m, k), b = uniform_tensor<float>(ctx, Seed{2}, 1, k, n);
  Tensor<float, 2, Cpu> c(m, n), other(m, n);
  Rounds rounds;
  rounds.time([&] { Cpu::gemm(ctx, a.view(), false, b.view(), false, false, c.view(), functor::Store{}); });
  std::vector<std::size_t> entries;
  for (const Peer<float>& peer : present_peers<float>())
    entries.push_back(rounds.time([&] { peer.sgemm(m, n, k, a.data(), b.data(), other.data()); }, peer.rest));
  count_peak(state, rounds, 2.0 * static_cast<double>(m * n * k));
  for (std::size_t i = 0; i < entries.size(); ++i)
    count(state, "peer_ratio_" + present_peers<float>()[i].name, rounds.ratio(entries[i], 0));
}
BENCHMARK(gemm)
    ->Apply(timed)
    ->ArgNames({"m", "n", "k"})
    ->Args({4096, 2048, 512})
    ->Args({4096, 8, 512})
    ->Args({352, 352, 4096});

enum Kind { forward, transposed, outer };

/// Times products in which each expert e multiplies its own `rows` rows of a. `kind` chooses c = a W_e, c = a W_eᵀ or
/// the gradient dW_e += aᵀ dc.
template <Kind kind, class T = float>
void grouped(benchmark::State& state) {
  const Index rows = state.range(0), experts = state.range(1), in = state.range(2), out = state.range(3);
  Cpu::Context ctx = context();
  Tensor<Index, 1, Cpu> offsets(experts + 1);
  for (Index e = 0; e <= experts; ++e) offsets(e) = rows * e;
  const Index slots = rows * experts;
  const Groups<Cpu> groups{offsets, {}, slots};
  const auto a = uniform_tensor<T>(ctx, Seed{1}, 1, slots, in), dc = uniform_tensor<T>(ctx, Seed{2}, 1, slots, out);
  auto w = uniform_tensor<T>(ctx, Seed{3}, 1, experts, in, out);
  Tensor<T, 2, Cpu> c(slots, kind == transposed ? in : out);
  Rounds rounds;
  rounds.time([&] {
    if constexpr (kind == forward)
      Cpu::grouped_gemm(ctx, groups, std::as_const(a).view(), std::as_const(w).view(), false, c.view(),
                        functor::Store{});
    if constexpr (kind == transposed)
      Cpu::grouped_gemm(ctx, groups, std::as_const(dc).view(), std::as_const(w).view(), true, c.view(),
                        functor::Store{});
    if constexpr (kind == outer)
      Cpu::grouped_outer(ctx, groups, std::as_const(a).view(), std::as_const(dc).view(), w.view());
  });
  const std::size_t bytes = static_cast<std::size_t>(w.size()) * sizeof(T);
  const ReadBandwidth read(bytes);
  const auto bandwidth = rounds.measure([&] { return read(ctx.threads()); });
  count_peak(state, rounds, 2.0 * static_cast<double>(slots * in * out), sizeof(T));
  count(state, "weight_bandwidth_share",
        rounds.median_over([&](auto of) { return static_cast<double>(bytes) / of(0) / of(bandwidth); }));
}
void groupings(benchmark::internal::Benchmark* b) {
  timed(b);
  b->ArgNames({"rows", "E", "in", "out"});
  for (Index rows : {1, 4, 16, 64, 256, 1024}) b->Args({rows, 8, 512, 2048});
}
void large(benchmark::internal::Benchmark* b) {
  timed(b);
  b->ArgNames({"rows", "E", "in", "out"})->Args({1024, 8, 512, 2048})->Args({512, 16, 352, 352});
}
BENCHMARK_TEMPLATE(grouped, forward)->Name("grouped_gemm")->Apply(groupings);
BENCHMARK_TEMPLATE(grouped, forward, double)->Name("grouped_gemm_double")->Apply(large);
BENCHMARK_TEMPLATE(grouped, transposed)->Name("grouped_gemm_transposed")->Apply(large);
BENCHMARK_TEMPLATE(grouped, outer)->Name("grouped_outer")->Apply(large);

}  // namespace
