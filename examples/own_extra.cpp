// Implements a gate with an additional input: the caller chooses the expert of each item.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
#include <vector>
using namespace gatefold;

// clang-format off
// [snippet own-extra]
struct ByTable {
  Index count = 0;
  template <class T, class B> using Plan = SparsePlan<T, B>;
  template <class T, class B> struct Extra { Required<View<const Index, 1, B>> table; };  // [N]; required
  template <class T, class B> struct Pick {
    View<const Index, 1, B> table;
    View<Index, 1, B> item, expert;
    View<T, 1, B> weight;
    GATEFOLD_HD void operator()(Index n) const { item(n) = n, expert(n) = table(n), weight(n) = 1; }
  };
  Index experts() const { return count; }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, const Extra<T, B>& extra) const {
    expect_shape("ByTable", "extra.table", extra.table.value, {items});
  }
  template <class T, class B>
  void forward(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, SparsePlan<T, B>& plan, auto&,
               const Extra<T, B>& extra) const {
    plan.resize(x.extent(0), count, x.extent(0));
    B::for_each(ctx, x.extent(0), Pick<T, B>{extra.table.value, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  template <class T, class B> void backward(auto&, const Nothing<T, B>&, auto&&...) const {}  // nothing to learn
};
// [/snippet]
// clang-format on

int main() {
  const std::vector<Index> table{0, 2, 1, 1, 2, 0, 2};
  const Residual layer{update::Plain{}, Mixture{ByTable{.count = 3}, Mlp<Gelu>{.model_dim = 5, .hidden_dim = 6}}};
  // conformance() calls this function to get the extra inputs of the items [first, first + count), in double and in
  // float.
  const auto report = check::conformance<Cpu>(
      layer, {.items_are_independent = true}, [&]<class T>(Element<T>, Index first, Index count) {
        return ByTable::Extra<T, Cpu>{View<const Index, 1, Cpu>(table.data() + first, count)};
      });
  std::printf("ByTable %s\n%s\n", report ? "conforms" : "DOES NOT CONFORM", report.str().c_str());
  return report ? 0 : 1;
}
