// Trains with the batch and the experts spread over several shards. The shards are threads of this process. With
// dist::Mpi, they are threads of several processes.
#include <cstdio>
#include <gatefold/distributed.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// [snippet distributed]
/// Runs on every shard, with its part of each batch.
void train(auto& shard) {
  Cpu::Context ctx(1);
  Stack model{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0},
                       dist::ExpertParallel{Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},
                                                    Mlp<Gelu>{.model_dim = 32, .hidden_dim = 64}},
                                            &shard}},
              4};
  Trainer trainer{ctx, model, dist::LossOfShards{MeanSquaredError{}, &shard},
                  dist::DataParallel{optim::Clipped{optim::AdamW{.lr = 3e-3}}, &shard}, Seed{42}};

  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 256, 32),
             target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 256, 32);
  const auto mine = shard.part_of(256);  // rows of this shard
  dist::ExpertLoads loads;
  for (int step = 0; step <= 200; ++step) {
    const double loss = trainer.step(x.view().rows(mine.first, mine.count), target.view().rows(mine.first, mine.count));
    if (step % 50 == 0 && shard.index() == 0) std::printf("step %3d  loss %.9f\n", step, loss);
    loads.add(shard, trainer);
    if (step % 100 == 99) dist::rebalance(shard, trainer, loads);  // spreads busy experts; results keep the same bits
  }
}

int main() {
  dist::Alone world;                                       // with MPI: dist::Mpi world; and mpirun -n 1, 2, 3 or 4
  dist::run(world, 4, [](auto& shard) { train(shard); });  // four shards: the same bits on any number of processes
}
// [/snippet]
