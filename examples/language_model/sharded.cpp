#include "sharded.hpp"

#include <memory>

#include "../training/in_world.hpp"
#include "../training/on_shard.hpp"
#include "network.hpp"
#include "train.hpp"

namespace language {

void train_on_shards(const Options& o) {
  expect(o.update == "plain" || o.update == "heavy-ball", "options", "shards", "the update plain or heavy-ball",
         o.update);
  expect(o.backend == "cpu", "options", "shards", "the backend cpu", o.backend);
  training::in_world(
      "language_model", o.shards,
      [&](auto& shard) {
        Options own = o;
        own.threads = training::threads_of_shard(shard, o.threads);
        const training::OnShard place{&shard};
        const training::Role role{.alone = false, .reports = shard.index() == 0, .any = [&](bool mine) {
                                    return shard.sum(Index(mine)) > 0;
                                  }};
        train(own, role, [&](const Options& options, Index vocabulary) -> std::unique_ptr<Model> {
          const auto with = [&]<class RuleT>(const RuleT& rule) {
            return std::make_unique<Network<Cpu, RuleT, training::OnShard<std::remove_reference_t<decltype(shard)>>>>(
                options, vocabulary, rule, place);
          };
          if (o.update == "plain") return with(update::Plain{});
          return with(update::HeavyBall{.mu = o.mu, .gamma = o.gamma});
        });
      },
      {.measure_waiting = true});
}

}  // namespace language
