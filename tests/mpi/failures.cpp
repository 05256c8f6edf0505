// failures WAY[.begun] [TIMEOUT]: the ranks exchange messages around a ring for 20 rounds. In the third round, rank 1
// ends in the given way; with .begun, it ends during an exchange. failures.sh checks how the other ranks end. A rank
// that throws prints the message, for example "rank 0: rank 1: no more data".

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../support/forked.hpp"
#include "gatefold/distributed/mpi.hpp"

namespace {

using gatefold::dist::Incoming;
using gatefold::dist::Mpi;
using gatefold::dist::Outgoing;

/// Allocates all memory except a small rest, keeps it, and throws std::bad_alloc. Without the rest, Open MPI crashes.
void use_memory_up() {
  static std::vector<std::unique_ptr<char[]>> held;
  if (!gatefold::support::may_limit_memory) throw std::bad_alloc();
  const rlimit limit{0, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
  for (std::size_t bytes = 1 << 20;;) {
    std::unique_ptr<char[]> more(new (std::nothrow) char[bytes]);
    if (more)
      held.push_back(std::move(more));
    else if ((bytes /= 2) < 1 << 16)
      throw std::bad_alloc();
  }
}

void end(const std::string& way) {
  if (way == "memory") use_memory_up();
  if (way == "throw" || way == "unwind" || way == "busy") throw std::runtime_error("no more data");
  if (way == "kill") std::raise(SIGKILL);
  if (way == "stop") std::raise(SIGSTOP);
  if (way == "exit") std::exit(3);
}

void run(Mpi& world, const std::string& given) {
  const bool begun = given.ends_with(".begun");
  const std::string way = given.substr(0, given.find('.'));
  const int n = world.size(), self = world.rank();
  for (int round = 0; round < 20; ++round) {
    if (way == "return" && round == 2 && self == 1) return;
    if (!begun && round == 2 && self == 1) end(way);
    if (way == "busy" && round == 2 && self == 2) std::this_thread::sleep_for(std::chrono::hours(1));
    const std::size_t bytes = 300000;  // MPI does not send so many bytes before the receiver is ready
    static std::vector<std::byte> sent,
        got;  // static, because an exchange can still use them when the world is destroyed
    sent.resize(way == "size" && round == 2 && self == 1 ? bytes / 2 : bytes);
    got.resize(bytes);
    const Outgoing outgoing[] = {{(self + 1) % n, sent.data(), sent.size()}};
    const Incoming incoming[] = {{(self + n - 1) % n, got.data(), got.size()}};
    world.begin(outgoing, incoming);
    if (begun && round == 2 && self == 1) end(way);
    world.finish();
  }
}

// An exception leaves this function while `world` is alive, so that the destructor of `world` runs.
void run_within(const std::string& way, double timeout, int& rank) {
  Mpi world({.timeout = timeout, .progress = way.ends_with(".begun")});
  rank = world.rank();
  run(world, way);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string way = count > 1 ? arguments[1] : "none";
  const double timeout = count > 2 ? std::atof(arguments[2]) : 300;
  if (way.starts_with("unwind")) {
    int rank = -1;
    try {
      run_within(way, timeout, rank);
    } catch (const std::exception& error) {
      std::cout << "rank " << rank << ": " << error.what() << std::endl;
      return 1;
    }
    return 0;
  }
  // [snippet world]
  Mpi world{{.timeout = timeout}};  // seconds; 300 if not given
  try {
    run(world, way);
  } catch (const std::exception& error) {
    world.fail(error.what());  // the others stop waiting
    std::cout << "rank " << world.rank() << ": " << error.what() << std::endl;
    return 1;
  }
  return 0;
  // [/snippet]
}
