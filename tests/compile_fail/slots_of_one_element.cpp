// expect: gatefold: an expert that declares stores_slots needs forward<T, B, Z>, infer<T, B, Z> and weighted_backward<T, B, Z> with z and dslots of type Out<Z, 2, B>; see docs/reference/optional_members\.md
// An expert may declare that slots have another element type. Then all three of its functions must take this type.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : Mlp<Gelu> {
#ifdef GATEFOLD_FAIL
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z) const {
    Mlp<Gelu>::infer(ctx, p, groups, x, z);
  }
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{SoftmaxTopK{.scores = {.experts = 2}}, Odd{{.model_dim = 2, .hidden_dim = 3}}},
                  MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
