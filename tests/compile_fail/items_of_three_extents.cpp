// expect: gatefold: Items of a branch or layer must be View<const T, 2, B> \(rows\) or View<const Index, 1, B> \(ids\); see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifdef GATEFOLD_FAIL
constexpr int rank = 3;
#else
constexpr int rank = 2;
#endif
struct Layer {
  template <class T, class B>
  using Items = View<const T, rank, B>;
  Index in_dim() const { return 1; }
  Index out_dim() const { return 1; }
  void begin(auto&&...) const {}
  template <class T, class B>
  void forward(auto&, const Nothing<T, B>&, auto&&...) const {}
  template <class T, class B>
  void backward(auto&, const Nothing<T, B>&, auto&&...) const {}
};

int main() { [[maybe_unused]] const auto layer = as_layer<float, Cpu>(Layer{}); }
