#include "support/sampler.hpp"

// Times how a language model generates one more token, with a KV cache and without one. Without a cache, the model
// reads all tokens of the attention window again.
namespace {

using namespace bench;

void sampling(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(0));
  Sampler cached(threads), again(threads);
  auto memory = cached.memory();
  const auto window = cached.ids(kCharacters.window), token = cached.ids(1);
  cached.read(window, memory.of(kCharacters.window));
  memory.advance();
  Rounds rounds;
  const auto one = rounds.time([&] {
    cached.read(token, memory.of(1));
    memory.advance();
  });
  const auto all = rounds.time([&] { again.read(window, {}); });
  run_rounds(state, rounds, one);
  count(state, "tokens_per_s", 1 / rounds.median_of(one));
  count(state, "again_over_cached", rounds.ratio(all, one));
}
BENCHMARK(sampling)->Apply(timed)->ArgName("threads")->Arg(1)->Arg(2);

}  // namespace
