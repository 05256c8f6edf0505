#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "layer.hpp"
#include "peers.hpp"
#include "routing.hpp"

/// Measurements that a layer is compared with: the machine's peak, and the same layer made with other libraries.
namespace bench {

/// Times a function between two measurements of the machine's peak. Shares of the peak use the mean of the two
/// measurements, because the processor's clock rate can change.
struct BetweenPeaks {
  std::size_t before, ours, after;

  BetweenPeaks(Rounds& rounds, int threads, std::function<void()> f)
      : before(add_peak(rounds, threads)), ours(rounds.time(std::move(f))), after(add_peak(rounds, threads)) {}

  /// Returns the share of the machine's peak that a timed entry reaches, if it does `flop` floating-point operations.
  double share(const Rounds& rounds, double flop, std::size_t entry) const {
    return rounds.median_over([&](auto of) { return flop / of(entry) * 2 / (of(before) + of(after)); });
  }
  double share(const Rounds& rounds, double flop) const { return share(rounds, flop, ours); }
};

/// Returns the mean of |a − b| divided by the mean of |b|. A maximum would be too strict, because rounding can, in rare
/// cases, send an item to another expert.
inline double mean_difference(In<float, 2, Cpu> a, In<float, 2, Cpu> b) {
  double difference = 0, size = 0;
  for (Index i = 0; i < a.size(); ++i) {
    difference += std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]));
    size += std::abs(static_cast<double>(b.data()[i]));
  }
  return difference / size;
}

template <class RunT>
PeerLayer<float>::Weights peer_weights(const RunT& run) {
  const auto& p = run.params.branch;
  return {p.gate.scores.weight.data(), p.expert.up.data(), p.expert.down.data()};
}
/// Makes a layer of the given sizes with the matrix products of another library (`peer`).
template <class S>
auto peer_layer(const Peer<S>& peer, const Shape& s) {
  const typename PeerLayer<S>::Shape shape{s.items, s.dim, s.hidden, s.experts, s.picks};
  return std::make_shared<PeerLayer<S>>(peer.sgemm, peer.product, shape);
}
template <class S, class RunT>
void expect_same_y(const Peer<S>& peer, const Tensor<float, 2, Cpu>& y, RunT& run) {
  run.infer();
  expect(mean_difference(y, run.y) < 0.01, "bench", "y of " + peer.name, "the output of the layer",
         "a different output");
}

/// Adds entries that time the layer made with other libraries, whose outputs must agree with the output of `run`.
template <class RunT>
std::vector<std::size_t> add_peers(Rounds& rounds, const Shape& s, RunT& run) {
  std::vector<std::size_t> entries;
  for (const Peer<float>& peer : present_peers<float>()) {
    auto layer = peer_layer(peer, s);
    auto y = std::make_shared<Tensor<float, 2, Cpu>>(s.items, s.dim);
    entries.push_back(
        rounds.time([=, &run] { layer->forward(peer_weights(run), run.x.data(), y->data()); }, peer.rest));
    expect_same_y(peer, *y, run);
  }
  return entries;
}

inline void count_peers(benchmark::State& state, const Rounds& rounds, const std::vector<std::size_t>& entries,
                        std::size_t ours) {
  double least = 1e30;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const double ratio = rounds.ratio(entries[i], ours);
    count(state, "peer_ratio_" + present_peers<float>()[i].name, ratio);
    least = std::min(least, ratio);
  }
  count(state, "peer_ratio", least);
}

/// Returns the bytes of the weights that inference reads. These are the weights of the gate, and of the experts that
/// have items.
template <class RunT>
double weight_bytes(const Shape& s, const RunT& run) {
  const auto& offsets = run.saved.branch.plan.offsets;
  Index used = 0;
  for (Index e = 0; e < s.experts; ++e) used += offsets(e + 1) > offsets(e);
  return static_cast<double>(sizeof(float)) * static_cast<double>(2 * used * s.dim * s.hidden + s.dim * s.experts);
}

/// Copies of a layer that together do not fit into any cache, and run one after the other.
template <class RunT>
struct Copies {
  std::vector<std::unique_ptr<RunT>> runs;
  double bytes = 0;  // bytes of the weights that one call of every copy reads

  auto& ctx() const { return runs[0]->ctx; }
  void infer() const {
    for (const auto& run : runs) run->infer(ctx());
  }
};
template <class RunT>
Copies<RunT> cold_copies(const Shape& s) {
  Copies<RunT> copies;
  double parameters = 0;
  while (copies.bytes < 4.0 * static_cast<double>(machine::last_level_cache()) && parameters < machine::memory() / 8) {
    copies.runs.push_back(std::make_unique<RunT>(plain_mixture(s), s.items));
    RunT& run = *copies.runs.back();
    fill_uniform(run.ctx, Seed{copies.runs.size()}, -1.7, 1.7, run.x);
    run.forward();  // makes the routing plan that weight_bytes reads
    copies.bytes += weight_bytes(s, run);
    parameters += static_cast<double>(count_values(run.params)) * sizeof(float);
  }
  return copies;
}
/// Reports the speed of `layer.ours`, which does `flop` operations for `items` items, and its share of the machine's
/// peak. Also reports the bandwidth if memory is the limit.
/// @param bytes  bytes of weights that one call reads; 0 if memory is not the limit
/// @param bandwidth  index of the entry that measures the bandwidth; not used if `bytes` is 0
inline void count_speed(benchmark::State& state, const Rounds& rounds, const BetweenPeaks& layer, double items,
                        double flop, double bytes, std::size_t bandwidth) {
  const double seconds = rounds.median_of(layer.ours);
  count(state, "gflops", flop / seconds * 1e-9);
  count(state, "tokens_per_second", items / seconds);
  count(state, "peak_share", layer.share(rounds, flop));
  if (bytes == 0) return;
  count(state, "bytes_per_second", bytes / seconds);
  count(state, "bandwidth_share", rounds.median_over([&](auto of) { return bytes / of(layer.ours) / of(bandwidth); }));
}

/// Times one call of every copy of a layer, and reports the shares of the memory bandwidth and of the machine's peak.
template <class RunT>
void count_decoding(benchmark::State& state, Rounds& rounds, const Shape& s, const Copies<RunT>& copies,
                    const BetweenPeaks& layers, const Routing& routing, double bytes) {
  const ReadBandwidth read;
  const auto bandwidth = rounds.measure([&] { return read(copies.ctx().threads()); });
  run_rounds(state, rounds, layers.ours);
  const double runs = static_cast<double>(copies.runs.size());
  count(state, "ms_per_layer", rounds.median_of(layers.ours) * 1e3 / runs);
  count(state, "routing_share", routing.over(rounds, layers.ours) * runs);
  count_speed(state, rounds, layers, static_cast<double>(s.items) * runs, s.flop() * runs, bytes, bandwidth);
}
/// Adds one entry for each other library. The entry times all copies of the layer with the library's matrix products.
template <class RunT>
std::vector<std::size_t> add_cold_peers(Rounds& rounds, const Shape& s,
                                        const std::vector<std::unique_ptr<RunT>>& runs) {
  std::vector<std::size_t> entries;
  for (const Peer<float>& peer : present_peers<float>()) {
    auto layer = peer_layer(peer, s);
    auto y = std::make_shared<Tensor<float, 2, Cpu>>(s.items, s.dim);
    entries.push_back(rounds.time(
        [=, &runs] {
          for (const auto& run : runs) layer->forward(peer_weights(*run), run->x.data(), y->data());
        },
        peer.rest));
  }
  return entries;
}
inline void decoding(benchmark::internal::Benchmark* b) { shapes(b, {{16, 512, 2048, 8, 2}, {1, 512, 2048, 8, 2}}); }

}  // namespace bench
