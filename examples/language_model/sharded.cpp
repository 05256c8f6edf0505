#include "sharded.hpp"

#include <memory>

#include "../training/in_world.hpp"
#include "../training/on_shard.hpp"
#include "../training/one_of.hpp"
#include "network.hpp"
#include "train.hpp"

namespace language {

void train_on_shards(const Options& o) {
  expect(o.update == "plain" || o.update == "heavy-ball", "options", "shards", "the update plain or heavy-ball",
         o.update);
  expect(o.backend == "cpu", "options", "shards", "the backend cpu", o.backend);
  const auto train_shard = [&](auto& shard) {
    Options own = o;
    own.threads = training::threads_of_shard(shard, o.threads);
    const training::OnShard place{&shard};
    const training::Role role{
        .alone = false, .reports = shard.index() == 0, .any = [&](bool mine) { return shard.sum(Index(mine)) > 0; }};
    train(own, role, [&](const Options& options, Index vocabulary) {
      training::OneOf<update::Plain, update::HeavyBall> rule{};
      if (o.update == "heavy-ball") rule.rule = update::HeavyBall{.mu = o.mu, .gamma = o.gamma};
      return make_with_layout<Cpu>(options, vocabulary, rule, place);
    });
  };
  training::in_world("language_model", o.shards, train_shard, {.measure_waiting = true});
}

}  // namespace language
