#pragma once

#include <benchmark/benchmark.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gatefold/gatefold.hpp>
#include <vector>

namespace bench {

/// Child processes that keep cores busy until this object is destroyed.
class Busy {
 public:
  explicit Busy(int count) {
    for (int i = 0; i < count; ++i)
      if (const pid_t child = fork(); child != 0) {
        children_.push_back(child);
      } else {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (gatefold::Index n = 0;; ++n) benchmark::DoNotOptimize(n);
      }
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> children_;
};

}  // namespace bench
