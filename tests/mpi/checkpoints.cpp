// Trains on four shards and continues from a checkpoint in the folder, if there is one. After each step it writes a
// checkpoint, in one file or in parts, while the next step runs. One rank may kill itself at a given system call,
// counted from the start of training. checkpoints.sh checks the files.
//
//   mpirun -n R checkpoints FOLDER STEPS [RANK CALL]
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.hpp"
#include "gatefold/io.hpp"
#include "gatefold/mpi.hpp"
#include "support/system_calls.hpp"

using namespace gatefold;

namespace {

std::atomic<int> until_kill = -1;  // number of system calls until this process kills itself; negative: never
void count_call(const support::SystemCall& call) {
  if (call.kind == support::SystemCall::write) return;  // MPI makes such calls, too
  if (until_kill >= 0 && until_kill-- == 0) ::kill(::getpid(), SIGKILL);
}

constexpr Index shards = 4, dim = 8, items = 24;

void train(auto& shard, const std::filesystem::path& folder, Index steps) {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = dim, .hidden_dim = 12}};
  Trainer trainer{ctx, Stack{Residual{update::HeavyBall{}, dist::ExpertParallel{mixture, &shard}}, 2},
                  dist::LossOfShards{MeanSquaredError{}, &shard},
                  dist::DataParallel{dist::Zero{optim::AdamW{.lr = 0.01}, &shard}, &shard}, Seed{5}};
  if (io::exists(folder / "state")) dist::load_checkpoint(shard, folder / "state", trainer);
  shard.barrier();
  // [snippet asynchronous]
  dist::AsyncCheckpoint checkpoint(shard);
  while (trainer.state.step < steps) {
    const Index number = trainer.state.step;
    const auto x = uniform_tensor<float>(ctx, Seed{7}.fork(static_cast<std::uint64_t>(number)), 1.0, items, dim);
    const auto mine = shard.part_of(items);
    trainer.step(x.view().rows(mine.first, mine.count), x.view().rows(mine.first, mine.count));
    checkpoint.save(folder / "state", trainer, {}, {.max_file_bytes = number % 3 == 0 ? 0 : 4000});
  }
  checkpoint.wait();
  // [/snippet]
  dist::save_checkpoint(shard, folder / "end", trainer);
}

}  // namespace

int main(int count, char** arguments) {
  dist::Mpi world{{.timeout = 60}};
  if (count > 4 && world.rank() == std::atoi(arguments[3])) {
    until_kill = std::atoi(arguments[4]);
    support::on_system_call = count_call;
  }
  try {
    dist::run(world, shards, [&](auto& shard) { train(shard, arguments[1], std::atoi(arguments[2])); });
  } catch (const std::exception& error) {
    world.fail(error.what());
    std::cerr << "rank " << world.rank() << ": " << error.what() << std::endl;
    return 1;
  }
}
