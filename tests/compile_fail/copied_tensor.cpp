// expect: use of deleted function .*Tensor|implicitly[- ]deleted.*Tensor
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Tensor<float, 2, Cpu> a(2, 3), b = std::move(a);
#ifdef GATEFOLD_FAIL
  Tensor<float, 2, Cpu> c = b;
#endif
}
