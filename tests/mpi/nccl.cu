// Trains on four shards whose devices NCCL connects, and writes the bits of the run to a file. nccl.sh compares the
// files of 1 to 3 processes. With `late`, rank 1 is late, and the others must report it.
//
//   mpirun -n R nccl FILE|late
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.cuh"
#include "gatefold/mpi.hpp"
#include "gatefold/nccl.cuh"
#include "support/shard_run.hpp"
#ifdef CUDA_EMULATOR
#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#endif

using namespace gatefold;

int main(int, char** argv) {
  const std::string file = argv[1];
  dist::Mpi processes{{.timeout = file == "late" ? 2.0 : 60.0}};
  try {
#ifdef CUDA_EMULATOR
    cuda_emulator::options().devices = processes.size();
#endif
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < processes.size()) return 77;  // each process needs one
    const auto device = [&](Index) {
      if (cudaSetDevice(processes.rank()) != cudaSuccess) throw DeviceError("no such device");
    };
    device(0);
    dist::Nccl world(processes, {.timeout = 5});
    if (file == "late") {
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
      std::byte bytes[8];
      const dist::Outgoing out[] = {{1 - world.rank(), bytes, 8}};
      const dist::Incoming in[] = {{1 - world.rank(), bytes, 8}};
      world.exchange_on_device(out, in);
    }
    const test::ShardRun run = test::run_on_shards<Cuda>(world, 4, device, true);
#ifdef CUDA_EMULATOR
    if ((cuda_emulator::calls()["ncclSend"] > 0) != (world.size() > 1)) throw DeviceError("not by NCCL");
#endif
    if (world.rank() > 0) return 0;
    std::ofstream out(file, std::ios::binary);
    for (const auto* values : {&run.losses, &run.params})
      out.write(reinterpret_cast<const char*>(values->data()), static_cast<std::streamsize>(values->size() * 8));
  } catch (const std::exception& error) {
    processes.fail(error.what());
    std::cerr << "rank " << processes.rank() << ": " << error.what() << std::endl;
    return 1;
  }
}
