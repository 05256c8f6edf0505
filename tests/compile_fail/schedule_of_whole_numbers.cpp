// expect: gatefold: Scheduled\{optimizer, schedule\} takes a schedule, of which factor\(step\), a double, times the rate
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
