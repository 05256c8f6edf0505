// expect: gatefold: Scheduled\{optimizer, schedule\} takes a schedule, whose factor\(step\), a double, multiplies the learning rate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Harmonic {
#ifndef GATEFOLD_FAIL
  double factor(Index step) const { return 1.0 / static_cast<double>(step); }
#else
  Index factor(Index step) const { return 1 / step; }
#endif
};

int main() { const optim::Scheduled scheduled{optim::AdamW{}, Harmonic{}}; }
