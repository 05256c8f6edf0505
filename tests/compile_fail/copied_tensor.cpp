// expect: (use of deleted function .*gatefold::Tensor<float, 2, gatefold::([a-z0-9_]+::)?Cpu>::Tensor\(const|call to implicitly-deleted copy constructor of .Tensor<float, 2, gatefold::([a-z0-9_]+::)?Cpu>)
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Tensor<float, 2, Cpu> a(2, 3), b = std::move(a);
#ifdef GATEFOLD_FAIL
  Tensor<float, 2, Cpu> c = b;
#endif
}
