// Measures distributed inference of a mixture of experts in which a few experts get most items. Experts are spread
// evenly by number, spread evenly by load, or copied (dist::replicate). Prints the imbalance and the processor time of
// the busiest shard, one JSON object per line.
//
//   dist_serve [SHARDS ITEMS DIM HIDDEN EXPERTS K]
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <gatefold/distributed.hpp>
#include <gatefold/gatefold.hpp>
#include <type_traits>
#include <vector>

using namespace gatefold;

namespace {

struct Shape {
  Index shards = 4, items = 2048, dim = 256, hidden = 1024, experts = 32, k = 2;
};

/// The time of a shard is the median of `repetitions` runs, after `warm_up` runs that are not timed.
constexpr int repetitions = 9, warm_up = 2;

/// Returns the processor time of the calling thread in milliseconds. The time of other programs, and the time that the
/// thread waits for other shards, do not count.
double processor_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

/// An object that ExpertLoads::add accepts: the parameters, and the saved values of one forward pass.
template <class ParamsT, class SavedT>
struct Run {
  const ParamsT& params;
  SavedT saved;
};

void serve(auto& shard, const Shape& s) {
  Cpu::Context ctx(1);
  const dist::ExpertParallel branch{Mixture{SoftmaxTopK{.scores = {.experts = s.experts}, .selection = {.k = s.k}},
                                            Mlp<Gelu>{.model_dim = s.dim, .hidden_dim = s.hidden}},
                                    &shard};
  auto params = init_params<float, Cpu>(branch, ctx, Seed{1});
  // Logits get a standard deviation of about 1, and a bias of −1.5 log(1 + e) for expert e, so that few experts get
  // most items.
  auto& scores = params.gate.scores;
  const auto weights = uniform_tensor<float>(ctx, Seed{2}, 3 / std::sqrt(double(s.dim)), s.dim, s.experts);
  std::copy_n(weights.data(), weights.size(), scores.weight.data());
  for (Index e = 0; e < s.experts; ++e) scores.bias(e) = static_cast<float>(-1.5 * std::log(1 + double(e)));

  const auto all = uniform_tensor<float>(ctx, Seed{3}, 1, s.items, s.dim);
  const auto mine = shard.part_of(s.items);
  const auto x = all.view().rows(mine.first, mine.count);
  Tensor<float, 2, Cpu> u(mine.count, s.dim);
  Run<decltype(params), Saved<std::remove_const_t<decltype(branch)>, float, Cpu>> run{params, {}};
  branch.forward(ctx, params, x, u, run.saved);
  dist::ExpertLoads counted;
  counted.add(shard, run);
  const auto loads = counted.of_all(shard);

  const auto measure = [&](const char* placement, double imbalance, Index copies) {
    std::vector<double> taken;
    for (int i = 0; i < warm_up + repetitions; ++i) {
      const double begin = processor_ms();
      infer(branch, ctx, params, x, u);
      if (i >= warm_up) taken.push_back(processor_ms() - begin);
    }
    std::nth_element(taken.begin(), taken.begin() + repetitions / 2, taken.end());
    const std::vector<double> of_all = shard.all_gather(taken[repetitions / 2]);
    double total = 0;
    for (const double ms : of_all) total += ms;
    if (shard.index() == 0)
      std::printf(
          "{\"placement\": \"%s\", \"shards\": %lld, \"items\": %lld, \"experts\": %lld, \"copies\": %lld, "
          "\"imbalance\": %.3f, \"busiest_ms\": %.2f, \"mean_ms\": %.2f}\n",
          placement, static_cast<long long>(s.shards), static_cast<long long>(s.items),
          static_cast<long long>(s.experts), static_cast<long long>(copies), imbalance,
          *std::max_element(of_all.begin(), of_all.end()), total / static_cast<double>(s.shards));
  };
  const auto place = [&](const char* placement, const auto& planner) {
    const auto found = dist::replicate(shard, ctx, params, loads, planner);
    measure(placement, found.after[0], found.copies);
  };
  measure("even", dist::imbalance(loads[0], dist::Placement::even(s.experts, s.shards), s.shards), 0);
  place("moved", dist::LongestFirst{.gain = 0});
  place("copied", dist::HottestFirst{.extra = 1});
}

}  // namespace

int main(int argc, char** argv) {
  Shape s;
  Index* const given[] = {&s.shards, &s.items, &s.dim, &s.hidden, &s.experts, &s.k};
  for (int i = 1; i < argc && i <= 6; ++i) *given[i - 1] = std::atoll(argv[i]);
  dist::Alone world;
  dist::run(world, s.shards, [&](auto& shard) { serve(shard, s); });
}
