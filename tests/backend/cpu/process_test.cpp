#include "gatefold/backend/cpu/process.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

using namespace gatefold::cpu;

namespace {

/// Whether the calling thread would receive the signal.
bool receives(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 0;
}

}  // namespace

TEST_CASE("process_id: constant in a process, different in its child") {
  const long here = process_id();
  CHECK(here > 0);
  CHECK(process_id() == here);
  const pid_t child = fork();
  if (child == 0) _exit(process_id() == here ? 1 : 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("SignalsBlocked: blocks this thread temporarily, started threads permanently") {
  REQUIRE(receives(SIGINT));
  std::thread started;
  bool inside = true, of_started = true;
  {
    const SignalsBlocked blocked;
    inside = receives(SIGINT) || receives(SIGTERM);
    started = std::thread([&] { of_started = receives(SIGINT) || receives(SIGTERM); });
  }
  started.join();
  CHECK_FALSE(inside);
  CHECK_FALSE(of_started);
  CHECK(receives(SIGINT));
  CHECK(receives(SIGTERM));
}
