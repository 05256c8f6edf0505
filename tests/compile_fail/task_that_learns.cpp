// expect: gatefold: a TaskLoss takes a loss without parameters \(MeanSquaredError, CrossEntropy, Logistic\):
// put learned weights into the model; see docs/how-to/extending\.md#loss
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifndef GATEFOLD_FAIL
  const MultiTask losses{TaskLoss{1, MeanSquaredError{}, 0.5}, TaskLoss{7, CrossEntropy{}}};
#else
  const MultiTask losses{TaskLoss{1, MeanSquaredError{}, 0.5},
                         TaskLoss{7, StreamedCrossEntropy{.vocabulary = 9, .model_dim = 7}}};
#endif
}
