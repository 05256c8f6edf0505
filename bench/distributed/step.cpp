// Measures a training step of a mixture of experts that is distributed over shards, in one process or under mpirun.
// Prints one JSON object: the seconds of a step, the seconds that its exchanges take, the bytes that shards exchange,
// and a lower bound of these bytes. See steps.sh.
//
//   mpirun -n R dist_step SHARDS ITEMS DIM HIDDEN EXPERTS K THREADS [OPTION…]
//
// If SHARDS is 0, the program measures a Mixture without shards.
//
// Options: bfloat16 (rows are exchanged as bfloat16), chunks (two chunks of experts), progress (a separate thread moves
// messages).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <gatefold/distributed.hpp>
#include <gatefold/gatefold.hpp>
#include <gatefold/mpi.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace gatefold;

namespace {

struct Shape {
  Index shards, items, dim, hidden, experts, k;
  int threads;
  std::set<std::string> options;
  bool has(const char* option) const { return options.contains(option); }
};

/// The time of a step is the time of its slowest shard. The program prints the median of `repetitions` steps, after
/// `warm_up` steps that are not timed.
constexpr int repetitions = 9, warm_up = 2;

auto mixture(const Shape& s) {
  return Mixture{SoftmaxTopK{.scores = {.experts = s.experts}, .selection = {.k = s.k}},
                 Mlp<Gelu>{.model_dim = s.dim, .hidden_dim = s.hidden}};
}
template <class TrainerT>
double seconds_of_step(TrainerT& trainer, View<const float, 2, Cpu> x, View<const float, 2, Cpu> target) {
  const auto begin = std::chrono::steady_clock::now();
  trainer.step(x, target);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}
void print(const Shape& s, int ranks, double seconds, double in_exchanges, double bytes, double floor) {
  std::string options;
  for (const std::string& option : s.options) options += (options.empty() ? "" : " ") + option;
  std::printf(
      "{\"ranks\": %d, \"shards\": %lld, \"threads\": %d, \"items\": %lld, \"dim\": %lld, \"hidden\": %lld, "
      "\"experts\": %lld, \"k\": %lld, \"options\": \"%s\", \"seconds\": %.6f, \"seconds_exchange\": %.6f, \"bytes\": "
      "%.0f, "
      "\"bytes_floor\": %.0f}\n",
      ranks, static_cast<long long>(s.shards), s.threads, static_cast<long long>(s.items),
      static_cast<long long>(s.dim), static_cast<long long>(s.hidden), static_cast<long long>(s.experts),
      static_cast<long long>(s.k), options.c_str(), seconds, in_exchanges, bytes, floor);
}

void without_shards(const Shape& s) {
  Cpu::Context ctx(s.threads);
  Trainer trainer{ctx, mixture(s), MeanSquaredError{}, optim::Sgd{.lr = 1e-3}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, s.items, s.dim);
  const auto target = uniform_tensor<float>(ctx, Seed{3}, 1.0, s.items, s.dim);
  std::vector<double> all;
  for (int i = 0; i < warm_up + repetitions; ++i) {
    const double seconds = seconds_of_step(trainer, x, target);
    if (i >= warm_up) all.push_back(seconds);
  }
  print(s, 1, median(all), 0, 0, 0);
}

/// Returns the least number of rows that shards must exchange in a training step. Each item is sent once to every other
/// shard that has one of the item's experts, and one row comes back. This happens in forward and again in backward.
template <class PlanT>
Index rows_of_floor(const PlanT& plan, const Shape& s) {
  std::set<std::pair<Index, Index>> crossing;
  for (Index p = 0; p < plan.item.size(); ++p)
    for (Index j = 0; j < s.shards; ++j) {
      const auto of = dist::Range::of(s.experts, j, s.shards), home = dist::Range::of(s.items, j, s.shards);
      const bool here = home.first <= plan.item(p) && plan.item(p) < home.first + home.count;
      if (of.first <= plan.expert(p) && plan.expert(p) < of.first + of.count && !here)
        crossing.emplace(plan.item(p), j);
    }
  return 4 * static_cast<Index>(crossing.size());
}

void on_shards(const Shape& s) {
  dist::Mpi world{{.progress = s.has("progress")}};
  const dist::ExchangeOptions exchange{.bfloat16 = s.has("bfloat16"), .chunks = s.has("chunks") ? 2 : 1};
  dist::run(world, s.shards, [&](auto& shard) {
    Cpu::Context ctx(std::max(1, s.threads / static_cast<int>(shard.in_this_process())));
    Trainer trainer{ctx, dist::ExpertParallel{mixture(s), &shard, {}, exchange},
                    dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{.lr = 1e-3}, &shard},
                    Seed{1}};
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, s.items, s.dim);
    const auto target = uniform_tensor<float>(ctx, Seed{3}, 1.0, s.items, s.dim);
    const auto mine = shard.part_of(s.items);
    std::vector<double> all, waited;
    double bytes = 0;
    for (int i = 0; i < warm_up + repetitions; ++i) {
      shard.barrier();
      const dist::Traffic before = shard.traffic();
      const double seconds =
          seconds_of_step(trainer, x.view().rows(mine.first, mine.count), target.view().rows(mine.first, mine.count));
      const double in_exchanges = shard.traffic().seconds - before.seconds;
      const double given = static_cast<double>(shard.traffic().given - before.given);
      const std::vector<double> of_all = shard.all_gather(seconds);
      if (i >= warm_up) {
        all.push_back(*std::max_element(of_all.begin(), of_all.end()));
        waited.push_back(shard.sum(in_exchanges) / static_cast<double>(s.shards));
        bytes = shard.sum(given);
      }
    }
    if (shard.index() == 0)
      print(s, world.size(), median(all), median(waited), bytes,
            static_cast<double>(rows_of_floor(trainer.saved.branch.plan, s) * s.dim) * sizeof(float));
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::set<std::string> options(argv + std::min(argc, 8), argv + argc), known{"bfloat16", "chunks", "progress"};
  if (argc < 8 || !std::includes(known.begin(), known.end(), options.begin(), options.end())) {
    std::fprintf(stderr, "usage: dist_step SHARDS ITEMS DIM HIDDEN EXPERTS K THREADS [bfloat16] [chunks] [progress]\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<Index>(std::atoll(argv[i])); };
  const Shape s{number(1), number(2), number(3), number(4), number(5), number(6), static_cast<int>(number(7)), options};
  s.shards == 0 ? without_shards(s) : on_shards(s);
}
