#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/beside.hpp"
#include "support/whole_layer.hpp"

// Times inference of one layer of published models, with SwiGLU experts whose weights are stored in 32, 16, 8 or 4
// bits. Compares the times with ggml, PyTorch and onnxruntime, whose weights have the same number of bits. In a
// measurement with few items, no cache holds the weights, because successive items pick different experts and several
// copies of a small layer run in turn.
namespace {

using namespace bench;

const LayerSizes kLayers[] = {
    {"olmoe", 2048, 1024, 64, 8},           // OLMoE-1B-7B
    {"qwen3", 2048, 768, 128, 8},           // Qwen3-30B-A3B
    {"mixtral_quarter", 1024, 3584, 8, 2},  // a quarter of the width of Mixtral
};
constexpr Index kBatches[] = {1, 4, 16, 64, 256, 512}, kItems = 512;

/// Batches of at most this many items must read their weights from memory. Only these batches use several copies of a
/// layer in turn.
constexpr Index kFewItems = 16;

/// A layer of gatefold: computes the outputs of items with one of its copies.
using Forward = std::function<const float*(int copy, const float* x, Index items)>;

/// A storage format of weights.
struct Format {
  std::string name;
  double bytes;      // bytes of one weight, including its share of a scale
  double tolerance;  // largest allowed mean difference from the float layer, relative to the mean output
  // Freezes `copies` layers of gatefold in this format.
  Forward (*ours)(const LayerSizes& s, int copies);
  std::vector<std::string> peers;  // each is the name of a library, an underscore and a format of the library
};

auto mixture_of(const LayerSizes& s) {
  return Mixture{SoftmaxTopK{.scores = {.experts = s.experts, .bias = false}, .selection = {.k = s.picks}},
                 GatedMlp<Silu>{.model_dim = s.dim, .hidden_dim = s.hidden}};
}
template <class B>
auto params_of(const LayerSizes& s, typename B::Context& ctx) {
  return init_params<float, B>(mixture_of(s), ctx, Seed{1});
}
/// Freezes `copies` layers of gatefold.
template <class B, Weights weights>
Forward frozen(const LayerSizes& s, int copies) {
  struct State {
    typename B::Context ctx = context<B>();
    std::vector<decltype(freeze(ctx, params_of<B>(LayerSizes{}, ctx)))> params{};
    Tensor<float, 2, B> y{};
  };
  const auto state = std::make_shared<State>();
  for (int i = 0; i < copies; ++i)
    state->params.push_back(freeze(state->ctx, params_of<B>(s, state->ctx), {.weights = weights}));
  return [state, mixture = mixture_of(s), dim = s.dim](int copy, const float* x, Index items) {
    state->y.resize(items, dim);
    infer(mixture, state->ctx, state->params[static_cast<std::size_t>(copy)], View<const float, 2, B>(x, items, dim),
          state->y.view());
    return static_cast<const float*>(state->y.data());
  };
}

// The format bfloat16_widened converts the weights from bfloat16 to float and multiplies floats. The items stay floats.
// A tolerance is a few times the mean rounding error of a weight, because three products contribute to an output.
const Format kFormats[] = {
    {"float", 4, 1e-4, frozen<Cpu, Weights::unchanged>, {"ggml_f32", "torch_float", "onnxruntime_float"}},
    {"bfloat16", 2, 0.01, frozen<CpuBf16, Weights::bfloat16>, {"ggml_bf16", "torch_bfloat16"}},
    {"bfloat16_widened", 2, 0.01, frozen<Cpu, Weights::bfloat16>, {"ggml_bf16", "torch_bfloat16"}},
    {"int8", 34.0 / 32, 0.02, frozen<Cpu, Weights::int8>, {"ggml_q8_0", "ggml_q8_0_repacked", "onnxruntime_int8"}},
    {"int4",
     18.0 / 32,
     0.15,
     frozen<Cpu, Weights::int4>,
     {"ggml_q4_0", "ggml_q4_0_repacked", "onnxruntime_int4", "onnxruntime_int4_int8"}},
    {"mxfp4", 18.0 / 32, 0.25, frozen<Cpu, Weights::mxfp4>, {"ggml_mxfp4", "ggml_mxfp4_repacked"}},
};

/// Writes the transposed matrices of weights [E, rows, columns] to `to` [E, columns, rows].
void transpose(In<float, 3, Cpu> weights, float* to) {
  const Index rows = weights.extent(1), columns = weights.extent(2);
  constexpr Index block = 32;
  gatefold::cpu::parallel_for(workers(), gatefold::cpu::available_threads(), weights.extent(0), [&](Index e, int) {
    const float* const from = weights.data() + e * rows * columns;
    float* const out = to + e * rows * columns;
    for (Index i = 0; i < rows; i += block)
      for (Index j = 0; j < columns; j += block)
        for (Index c = j; c < std::min(j + block, columns); ++c)
          for (Index r = i; r < std::min(i + block, rows); ++r) out[c * rows + r] = from[r * columns + c];
  });
}

/// Returns the experts [N, K] that each item picks. The logits are computed in double.
std::vector<std::vector<Index>> picks_of(const LayerSizes& s, const SharedItems& items, const float* router) {
  std::vector<std::vector<Index>> all(static_cast<std::size_t>(items.count));
  for (Index n = 0; n < items.count; ++n) {
    std::vector<double> logits;
    for (Index e = 0; e < s.experts; ++e)
      logits.push_back(std::inner_product(items.x(n), items.x(n) + s.dim, router + e * s.dim, 0.0));
    std::vector<Index>& order = all[static_cast<std::size_t>(n)];
    order.resize(static_cast<std::size_t>(s.experts));
    std::iota(order.begin(), order.end(), Index(0));
    std::partial_sort(order.begin(), order.begin() + s.picks, order.end(), [&](Index a, Index b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    order.resize(static_cast<std::size_t>(s.picks));
  }
  return all;
}

/// One layer in one format, with its peers. The benchmarks of all batch sizes share this object, because making it
/// takes seconds.
class Compared {
 public:
  Compared(const LayerSizes& sizes, const Format& format)
      : s(sizes), items(kItems, sizes.dim), copies_(copies(sizes, format)) {
    Cpu::Context ctx = context<Cpu>();
    Out<float, 2, Cpu> x(items.x(0), items.count, s.dim);
    fill_uniform(ctx, Seed{2}, -1.7, 1.7, x);
    {
      const PeerWeights weights(s);
      write_weights(ctx, weights);
      picks_ = picks_of(s, items, weights.router);
      for (const std::string& name : format.peers) {
        const auto end = name.find('_');
        const std::string library = name.substr(0, end), variant = name.substr(end + 1);
        WholeLayer made = library == "ggml"
                              ? peers::Ggml::get().layer(variant, s, ctx.threads(), copies_, weights, items)
                              : peers::python_layer(library, variant, s, copies_, weights, items);
        if (made.seconds)
          peers.push_back(std::move(made));
        else
          std::fprintf(stderr, "%s: absent\n", name.c_str());
      }
    }
    ours = in_process("ours", items, format.ours(s, copies_));
  }

  /// Returns the batches of one pass. Batches of at most kFewItems items use all copies of the layer in turn, so that
  /// no cache holds the weights that they read. A larger batch is the only batch of its pass.
  Batches batches(Index count) const {
    Batches made{.items = count, .all = {}};
    if (count == 1) return single_items();
    const Index number = count > kFewItems ? 1 : in_turn(kFewItems / count);
    for (Index b = 0; b < number; ++b) made.all.push_back({b * count, static_cast<int>(b) % copies_});
    return made;
  }
  /// Returns the mean number of experts that a batch uses.
  double used_experts(const Batches& batches) const {
    double sum = 0;
    for (const auto& batch : batches.all) {
      std::set<Index> used;
      for (Index n = batch.first; n < batch.first + batches.items; ++n)
        used.insert(picks_[static_cast<std::size_t>(n)].begin(), picks_[static_cast<std::size_t>(n)].end());
      sum += static_cast<double>(used.size());
    }
    return sum / static_cast<double>(batches.all.size());
  }
  /// Returns the mean difference between the outputs of the first `count` items and the outputs of the layer of floats,
  /// relative to the mean magnitude of the latter outputs.
  double difference(const WholeLayer& layer, Index count) const {
    return mean_difference({layer.output(count, 0), count, s.dim}, {expected_.data(), count, s.dim});
  }

  const LayerSizes s;
  const SharedItems items;
  WholeLayer ours;
  std::vector<WholeLayer> peers;

 private:
  /// Returns the number of copies whose weights together are at least four times as large as the last-level cache.
  static int copies(const LayerSizes& s, const Format& format) {
    const double bytes = static_cast<double>(s.experts * s.weights()) * format.bytes;
    return static_cast<int>(std::ceil(4 * static_cast<double>(machine::last_level_cache()) / bytes));
  }
  /// Writes the weights of the layer for the peers, and computes the expected outputs.
  void write_weights(Cpu::Context& ctx, const PeerWeights& weights) {
    const auto params = params_of<Cpu>(s, ctx);
    const auto& w = params.gate.scores.weight;  // [D, E]
    for (Index e = 0; e < s.experts; ++e)
      for (Index j = 0; j < s.dim; ++j) weights.router[e * s.dim + j] = w(j, e);
    transpose(params.expert.gate.view(), weights.gate);
    transpose(params.expert.up.view(), weights.up);
    transpose(params.expert.down.view(), weights.down);
    expected_.resize(kItems, s.dim);
    infer(mixture_of(s), ctx, params, View<const float, 2, Cpu>(items.x(0), kItems, s.dim), expected_.view());
  }
  /// Rounds `number` up to a multiple of the number of copies, so that a pass does not end with the copy with which the
  /// next pass begins.
  Index in_turn(Index number) const { return (number + copies_ - 1) / copies_ * copies_; }
  /// Returns about 16 batches of one item each. Each batch takes, from the remaining items, the item whose experts have
  /// not been used for the longest time; the most recently used expert of an item counts.
  Batches single_items() const {
    Batches made{.items = 1, .all = {}};
    std::vector<Index> last(static_cast<std::size_t>(s.experts), -1);
    std::vector<bool> taken(picks_.size());
    for (Index i = 0; i < in_turn(kFewItems); ++i) {
      Index best = -1, best_age = -1;
      for (std::size_t n = 0; n < picks_.size(); ++n) {
        Index age = kItems;
        for (const Index e : picks_[n]) age = std::min(age, i - last[static_cast<std::size_t>(e)]);
        if (!taken[n] && age > best_age) best = static_cast<Index>(n), best_age = age;
      }
      taken[static_cast<std::size_t>(best)] = true;
      for (const Index e : picks_[static_cast<std::size_t>(best)]) last[static_cast<std::size_t>(e)] = i;
      made.all.push_back({best, static_cast<int>(i) % copies_});
    }
    return made;
  }

  const int copies_;
  std::vector<std::vector<Index>> picks_;
  Tensor<float, 2, Cpu> expected_;  // [kItems, D]
};

void layer_quantised(benchmark::State& state, const LayerSizes& s, const Format& format, Index items) {
  static std::unique_ptr<Compared> compared;
  static std::string made;
  if (made != s.name + format.name) {
    compared.reset();  // frees the memory of the previous layer first
    compared = std::make_unique<Compared>(s, format);
    made = s.name + format.name;
  }
  const double difference = compared->difference(compared->ours, items);
  expect(difference <= format.tolerance, "bench", "y of the frozen layer",
         Joined{"a mean difference of at most ", format.tolerance}, difference);
  std::vector<WholeLayer> peers;
  for (const WholeLayer& peer : compared->peers) {
    const double other = compared->difference(peer, items);
    if (other <= format.tolerance)
      peers.push_back(peer);
    else
      std::fprintf(stderr, "%s: left out, because its output differs by %g\n", peer.name.c_str(), other);
  }
  const Batches batches = compared->batches(items);
  Rounds rounds;
  const ReadBandwidth read;
  const auto bandwidth = [&] { return read(gatefold::cpu::available_threads()); };
  const std::size_t before = rounds.measure(bandwidth), ours = time_layer(rounds, compared->ours, batches),
                    after = rounds.measure(bandwidth);
  std::vector<std::size_t> entries;
  for (const WholeLayer& peer : peers) entries.push_back(time_layer(rounds, peer, batches, 0.04));
  run_rounds(state, rounds, ours);

  const double bytes = compared->used_experts(batches) * static_cast<double>(s.weights()) * format.bytes +
                       static_cast<double>(s.dim * s.experts) * sizeof(float);
  count(state, "mbytes", bytes * 1e-6);
  count(state, "bandwidth_share",
        rounds.median_over([&](auto of) { return bytes / of(ours) * 2 / (of(before) + of(after)); }));
  count(state, "difference", difference);
  double least = 1e30;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string& name = peers[i].name;
    count(state, "ms_" + name, rounds.median_of(entries[i]) * 1e3);
    const double ratio = rounds.ratio(entries[i], ours);
    count(state, "peer_ratio_" + name, ratio);
    least = std::min(least, ratio);
  }
  if (!entries.empty()) count(state, "peer_ratio", least);
}
[[maybe_unused]] const bool registered = [] {
  for (const LayerSizes& s : kLayers)
    for (const Format& format : kFormats)
      for (const Index items : kBatches) {
        const std::string name = "layer_quantised/" + s.name + "/T:" + std::to_string(items) + "/" + format.name;
        timed(benchmark::RegisterBenchmark(
            name.c_str(), [&s, &format, items](benchmark::State& state) { layer_quantised(state, s, format, items); }));
      }
  return true;
}();

}  // namespace
