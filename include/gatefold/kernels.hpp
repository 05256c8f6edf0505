#pragma once

// Explicit template instantiations that most models use: loops over elements and rows, and member functions of
// policies, for float and double. A program that links the CMake target gatefold::kernels does not instantiate these
// templates itself, so it compiles faster. Most matrix products are instantiated in backend/cpu/kernels.hpp.
// gatefold.hpp includes this file if GATEFOLD_KERNELS is defined.

#include "gatefold/gatefold.hpp"

#if defined(GATEFOLD_KERNELS)

#if defined(GATEFOLD_KERNELS_SOURCE)
#define GATEFOLD_KERNEL template
#else
#define GATEFOLD_KERNEL extern template
#endif
#define GATEFOLD_FOR_EACH(...) \
  GATEFOLD_KERNEL void cpu::Plain::for_each(Cpu::Context&, Index, const functor::__VA_ARGS__&);
#define GATEFOLD_FOR_ROWS(...) \
  GATEFOLD_KERNEL void cpu::Plain::for_rows(Cpu::Context&, Index, const functor::__VA_ARGS__&);

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE {

GATEFOLD_FOR_EACH(EvenOffsets<Cpu>)
GATEFOLD_FOR_EACH(SlotItems<Cpu>)
GATEFOLD_FOR_EACH(SlotsOfRow<Cpu>)
GATEFOLD_FOR_EACH(TableSlots<Cpu>)
GATEFOLD_FOR_EACH(BlockOffsets<Cpu>)
GATEFOLD_FOR_EACH(SequenceOffsets<Cpu>)
GATEFOLD_FOR_EACH(SetIndex)
GATEFOLD_FOR_EACH(ClipFactor)

#define GATEFOLD_PAIR(T, A, ...)                                                                      \
  GATEFOLD_KERNEL void cpu::Plain::grouped_pair(                                                      \
      Cpu::Context&, Groups<Cpu>, View<const T, 2, Cpu>, const std::array<View<const T, 3, Cpu>, 1>&, \
      const functor::BiasActivate<A, T, Cpu>&, View<const T, 3, Cpu>, View<T, 2, Cpu>, const functor::__VA_ARGS__&);
#define GATEFOLD_WITH_ACTIVATION(T, A)                                                                               \
  GATEFOLD_FOR_ROWS(OnSlot<functor::HiddenAdjointRow<functor::ActivateBackward<A, T, Cpu>, T, Cpu>, T, Cpu>)         \
  GATEFOLD_KERNEL void cpu::run_hidden<1>(const functor::BiasActivate<A, T, Cpu>&, const T* const*, cpu::SumsLayout, \
                                          Index, Index, Index, Index, Index, T*);                                    \
  GATEFOLD_PAIR(T, A, AddBias<T, Cpu>)                                                                               \
  GATEFOLD_PAIR(T, A, Store)
#define GATEFOLD_KERNELS_OF(T)                                                                                        \
  GATEFOLD_FOR_EACH(Fill<T>)                                                                                          \
  GATEFOLD_FOR_EACH(Copy<T>)                                                                                          \
  GATEFOLD_FOR_EACH(Scale<T>)                                                                                         \
  GATEFOLD_FOR_EACH(AddScaled<T>)                                                                                     \
  GATEFOLD_FOR_EACH(ScaledSum<T>)                                                                                     \
  GATEFOLD_FOR_EACH(Uniform<T>)                                                                                       \
  GATEFOLD_FOR_EACH(Normal<T>)                                                                                        \
  GATEFOLD_FOR_EACH(RepeatFirst<T>)                                                                                   \
  GATEFOLD_FOR_EACH(AdamWStep<T>)                                                                                     \
  GATEFOLD_FOR_EACH(ClipStep<T>)                                                                                      \
  GATEFOLD_FOR_EACH(Verdict<T>)                                                                                       \
  GATEFOLD_FOR_EACH(TakeMean<T>)                                                                                      \
  GATEFOLD_FOR_EACH(KeepValid<T, Cpu>)                                                                                \
  GATEFOLD_FOR_EACH(DropPadding<T, Cpu>)                                                                              \
  GATEFOLD_FOR_EACH(PicksByWeight<T, Cpu>)                                                                            \
  GATEFOLD_FOR_EACH(JoinValid<T, Cpu>)                                                                                \
  GATEFOLD_FOR_EACH(LastValid<T, Cpu>)                                                                                \
  GATEFOLD_FOR_EACH(HeavyBallBackward<T>)                                                                             \
  GATEFOLD_FOR_EACH(MomentumBackward<T>)                                                                              \
  GATEFOLD_FOR_EACH(LookAheadBackward<T>)                                                                             \
  GATEFOLD_FOR_EACH(AdamRuleBackward<T>)                                                                              \
  GATEFOLD_FOR_EACH(BalanceValue<T, Cpu>)                                                                             \
  GATEFOLD_FOR_EACH(LoadKey<T, Cpu>)                                                                                  \
  GATEFOLD_FOR_EACH(SquaredDifferenceBackward<T>)                                                                     \
  GATEFOLD_FOR_EACH(SoftmaxScale<T, Cpu>)                                                                             \
  GATEFOLD_FOR_EACH(StreamedValue<T, Cpu>)                                                                            \
  GATEFOLD_FOR_EACH(SubtractLabel<T, Cpu>)                                                                            \
  GATEFOLD_FOR_ROWS(FiniteSum<T>)                                                                                     \
  GATEFOLD_FOR_ROWS(Squares<T>)                                                                                       \
  GATEFOLD_FOR_ROWS(Combine<T, Cpu>)                                                                                  \
  GATEFOLD_FOR_ROWS(SumPositions<T, Cpu>)                                                                             \
  GATEFOLD_FOR_ROWS(SumPositionsBackward<T, Cpu>)                                                                     \
  GATEFOLD_FOR_ROWS(SquaredDifference<T, Cpu>)                                                                        \
  GATEFOLD_FOR_ROWS(AddById<T, Cpu>)                                                                                  \
  GATEFOLD_FOR_ROWS(AddByPlace<T, Cpu>)                                                                               \
  GATEFOLD_FOR_ROWS(TakeById<T, Cpu>)                                                                                 \
  GATEFOLD_FOR_ROWS(AddHeads<T, Cpu>)                                                                                 \
  GATEFOLD_FOR_ROWS(AttendFinish<T, Cpu>)                                                                             \
  GATEFOLD_FOR_ROWS(AttendMean<T, Cpu>)                                                                               \
  GATEFOLD_FOR_ROWS(DropRows<T, Cpu>)                                                                                 \
  GATEFOLD_FOR_ROWS(DropWindow<T, Cpu>)                                                                               \
  GATEFOLD_FOR_ROWS(JoinPast<T, Cpu>)                                                                                 \
  GATEFOLD_FOR_ROWS(LastRows<T, Cpu>)                                                                                 \
  GATEFOLD_FOR_ROWS(CopyCounted<T, Cpu>)                                                                              \
  GATEFOLD_FOR_ROWS(HiddenFactors<T, Cpu>)                                                                            \
  GATEFOLD_FOR_ROWS(Normalise<T, Cpu>)                                                                                \
  GATEFOLD_FOR_ROWS(NormaliseBackward<T, Cpu>)                                                                        \
  GATEFOLD_FOR_ROWS(StreamLogits<T, Cpu>)                                                                             \
  GATEFOLD_FOR_ROWS(TotalBackward<T, Cpu>)                                                                            \
  GATEFOLD_FOR_ROWS(TotalOfExperts<T, Cpu>)                                                                           \
  GATEFOLD_FOR_ROWS(WindowPlaces<T, Cpu>)                                                                             \
  GATEFOLD_FOR_ROWS(WindowScores<T, Cpu>)                                                                             \
  GATEFOLD_FOR_ROWS(ZeroTouched<T>)                                                                                   \
  GATEFOLD_FOR_ROWS(RowsInUse<Cpu, functor::CleanKeys<T, Cpu>>)                                                       \
  GATEFOLD_FOR_ROWS(RowsInUse<Cpu, functor::SplitHeads<T, Cpu>>)                                                      \
  GATEFOLD_FOR_ROWS(SoftmaxBlock<T, Cpu, detail_::attending::WindowMask<T, Cpu>>)                                     \
  GATEFOLD_FOR_ROWS(SoftmaxBlockBackward<T, Cpu, detail_::attending::WindowMask<T, Cpu>>)                             \
  GATEFOLD_FOR_ROWS(RouteRowBackward<functor::SoftmaxBackward<T, Cpu>, functor::PickTopKBackward<T, Cpu>, T, Cpu>)    \
  GATEFOLD_FOR_ROWS(StepTouched<T, functor::AdamWStep<T>>)                                                            \
  GATEFOLD_FOR_ROWS(StepTouched<T, functor::ClipStep<T>>)                                                             \
  GATEFOLD_FOR_ROWS(StepTouched<T, functor::Scale<T>>)                                                                \
  GATEFOLD_FOR_ROWS(RowWithStep<functor::Combine<T, Cpu>, functor::AddScaled<T>>)                                     \
  GATEFOLD_FOR_ROWS(RowWithStep<functor::Combine<T, Cpu>, functor::HeavyBallStep<T>>)                                 \
  GATEFOLD_FOR_ROWS(RowWithStep<functor::Combine<T, Cpu>, functor::AdamRuleStep<T>>)                                  \
  GATEFOLD_FOR_ROWS(RowWithStep<functor::DropRows<T, Cpu>, functor::AddScaled<T>>)                                    \
  GATEFOLD_FOR_ROWS(RowWithStep<functor::DropRows<T, Cpu>, functor::HeavyBallStep<T>>)                                \
  GATEFOLD_FOR_ROWS(RowWithStep<functor::DropRows<T, Cpu>, functor::AdamRuleStep<T>>)                                 \
  GATEFOLD_KERNEL void cpu::Plain::reduce(Cpu::Context&, Index, const functor::Term<T>&, T*);                         \
  GATEFOLD_KERNEL void cpu::Plain::reduce(Cpu::Context&, Index, const functor::InDouble<functor::Term<T>>&, double*); \
  GATEFOLD_KERNEL void cpu::run_epilogue(const functor::AddBias<T, Cpu>&, const T*, cpu::SumsLayout, Index, Index,    \
                                         Index, Index, Index, T*, Index);                                             \
  GATEFOLD_KERNEL void cpu::run_epilogue(const functor::SoftmaxOfLogit<T, Cpu>&, const T*, cpu::SumsLayout, Index,    \
                                         Index, Index, Index, Index, T*, Index);                                      \
  GATEFOLD_KERNEL void cpu::run_epilogue(const functor::AddTo<T, Cpu>&, const T*, cpu::SumsLayout, Index, Index,      \
                                         Index, Index, Index, T*, Index);                                             \
  GATEFOLD_KERNEL void cpu::Plain::gemm_rows(                                                                         \
      Cpu::Context&, View<const T, 2, Cpu>, View<const T, 2, Cpu>, bool, View<T, 2, Cpu>,                             \
      const functor::AddBias<T, Cpu>&,                                                                                \
      const functor::RouteRowAnywhere<functor::Softmax<T, Cpu>, functor::PickTopK<T, Cpu>, T, Cpu>&);                 \
  GATEFOLD_KERNEL void cpu::Plain::gemm_rows(                                                                         \
      Cpu::Context&, View<const T, 2, Cpu>, View<const T, 2, Cpu>, bool, View<T, 2, Cpu>, const functor::Store&,      \
      const functor::RouteRowAnywhere<functor::Softmax<T, Cpu>, functor::PickTopK<T, Cpu>, T, Cpu>&);                 \
  GATEFOLD_WITH_ACTIVATION(T, Relu)                                                                                   \
  GATEFOLD_WITH_ACTIVATION(T, Gelu)                                                                                   \
  GATEFOLD_WITH_ACTIVATION(T, Silu)
GATEFOLD_KERNELS_OF(float)
GATEFOLD_KERNELS_OF(double)
#undef GATEFOLD_KERNELS_OF
#undef GATEFOLD_WITH_ACTIVATION
#undef GATEFOLD_PAIR

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE

namespace gatefold {

// Instantiates single members of Tensor. The whole class cannot be instantiated, because the static_assert in its copy
// constructor would stop the compiler.
#define GATEFOLD_TENSOR(T, Rank)                                                   \
  GATEFOLD_KERNEL Tensor<T, Rank, Cpu>::~Tensor();                                 \
  GATEFOLD_KERNEL void Tensor<T, Rank, Cpu>::take(const std::array<Index, Rank>&); \
  GATEFOLD_KERNEL void Tensor<T, Rank, Cpu>::release();
GATEFOLD_TENSOR(Index, 1)
GATEFOLD_TENSOR(Index, 2)
GATEFOLD_TENSOR(unsigned char, 1)

// Explicit instantiations of member functions of frequently used policies. These functions are the same for every
// model.
#define GATEFOLD_EXPERT(T, ...)                                                                                        \
  GATEFOLD_KERNEL void __VA_ARGS__::forward(Cpu::Context&, const __VA_ARGS__::Params<T, Cpu>&, Groups<Cpu>,            \
                                            In<T, 2, Cpu>, Out<T, 2, Cpu>, __VA_ARGS__::Saved<T, Cpu>&, In<T, 2, Cpu>) \
      const;                                                                                                           \
  GATEFOLD_KERNEL void __VA_ARGS__::infer(Cpu::Context&, const __VA_ARGS__::Params<T, Cpu>&, Groups<Cpu>,              \
                                          In<T, 2, Cpu>, Out<T, 2, Cpu>, In<T, 2, Cpu>) const;                         \
  GATEFOLD_KERNEL void __VA_ARGS__::weighted_backward(Cpu::Context&, const __VA_ARGS__::Params<T, Cpu>&, Groups<Cpu>,  \
                                                      In<T, 2, Cpu>, const __VA_ARGS__::Saved<T, Cpu>&, In<T, 2, Cpu>, \
                                                      const SlotWeights<T, Cpu>&, Out<T, 2, Cpu>,                      \
                                                      __VA_ARGS__::Params<T, Cpu>&, In<T, 2, Cpu>) const;
#define GATEFOLD_GATE(T, ...)                                                                                 \
  GATEFOLD_KERNEL void __VA_ARGS__::forward(Cpu::Context&, const __VA_ARGS__::Params<T, Cpu>&, In<T, 2, Cpu>, \
                                            SparsePlan<T, Cpu>&, __VA_ARGS__::Saved<T, Cpu>&,                 \
                                            const __VA_ARGS__::Extra<T, Cpu>&) const;                         \
  GATEFOLD_KERNEL void __VA_ARGS__::infer(Cpu::Context&, const __VA_ARGS__::Params<T, Cpu>&, In<T, 2, Cpu>,   \
                                          SparsePlan<T, Cpu>&, const __VA_ARGS__::Extra<T, Cpu>&) const;      \
  GATEFOLD_KERNEL void __VA_ARGS__::backward(                                                                 \
      Cpu::Context&, const __VA_ARGS__::Params<T, Cpu>&, In<T, 2, Cpu>, const SparsePlan<T, Cpu>&,            \
      const __VA_ARGS__::Saved<T, Cpu>&, const SparsePlan<T, Cpu>::Grad&, Out<T, 2, Cpu>,                     \
      __VA_ARGS__::Params<T, Cpu>&, const __VA_ARGS__::Extra<T, Cpu>&, __VA_ARGS__::ExtraGrad<T, Cpu>&) const;
#define GATEFOLD_KERNELS_OF(T)                                                                                         \
  GATEFOLD_TENSOR(T, 1)                                                                                                \
  GATEFOLD_TENSOR(T, 2)                                                                                                \
  GATEFOLD_TENSOR(T, 3)                                                                                                \
  GATEFOLD_KERNEL bool all_finite(Cpu::Context&, const FlatTensor<const T, Cpu>&);                                     \
  GATEFOLD_KERNEL metric::Load metric::load(Cpu::Context&, const SparsePlan<T, Cpu>&, In<T, 1, Cpu>);                  \
  GATEFOLD_KERNEL double metric::entropy(Cpu::Context&, View<T, 2, Cpu>, In<T, 1, Cpu>);                               \
  GATEFOLD_KERNEL double metric::entropy(Cpu::Context&, View<const T, 2, Cpu>, In<T, 1, Cpu>);                         \
  GATEFOLD_EXPERT(T, Mlp<Relu>)                                                                                        \
  GATEFOLD_EXPERT(T, Mlp<Gelu>)                                                                                        \
  GATEFOLD_EXPERT(T, Mlp<Silu>)                                                                                        \
  GATEFOLD_GATE(T, SoftmaxTopK)                                                                                        \
  GATEFOLD_GATE(T, WithAuxiliary<SoftmaxTopK, Balance>)                                                                \
  GATEFOLD_KERNEL void RelativeAttention::forward(                                                                     \
      Cpu::Context&, const RelativeAttention::Params<T, Cpu>&, In<T, 2, Cpu>, Out<T, 2, Cpu>,                          \
      RelativeAttention::Saved<T, Cpu>&, const RelativeAttention::Extra<T, Cpu>&, const functor::AddScaled<T>&) const; \
  GATEFOLD_KERNEL void RelativeAttention::infer(                                                                       \
      Cpu::Context&, const RelativeAttention::Params<T, Cpu>&, In<T, 2, Cpu>, Out<T, 2, Cpu>,                          \
      const RelativeAttention::Extra<T, Cpu>&, const functor::AddScaled<T>&) const;                                    \
  GATEFOLD_KERNEL void RelativeAttention::backward(                                                                    \
      Cpu::Context&, const RelativeAttention::Params<T, Cpu>&, In<T, 2, Cpu>, const RelativeAttention::Saved<T, Cpu>&, \
      In<T, 2, Cpu>, Out<T, 2, Cpu>, RelativeAttention::Params<T, Cpu>&, const RelativeAttention::Extra<T, Cpu>&,      \
      RelativeAttention::ExtraGrad<T, Cpu>&) const;                                                                    \
  GATEFOLD_KERNEL void detail_::attending::forward(Cpu::Context&, const detail_::attending::WindowForm<T, Cpu>&,       \
                                                   In<T, 2, Cpu>, In<T, 2, Cpu>, In<T, 2, Cpu>, Out<T, 2, Cpu>,        \
                                                   Out<T, 2, Cpu>, Out<T, 2, Cpu>);                                    \
  GATEFOLD_KERNEL void detail_::attending::backward(Cpu::Context&, const detail_::attending::WindowForm<T, Cpu>&,      \
                                                    In<T, 2, Cpu>, In<T, 2, Cpu>, In<T, 2, Cpu>, In<T, 2, Cpu>,        \
                                                    In<T, 2, Cpu>, In<T, 2, Cpu>, In<T, 2, Cpu>, Out<T, 2, Cpu>,       \
                                                    Out<T, 2, Cpu>, Out<T, 2, Cpu>, Out<T, 2, Cpu>);                   \
  GATEFOLD_KERNEL Tensor<T, 2, Cpu> initial_weights<T>(Cpu::Context&, const Initial&, Seed, Index, Index);             \
  GATEFOLD_KERNEL Tensor<T, 3, Cpu> initial_weights<T>(Cpu::Context&, const Initial&, Seed, Index, Index, Index);      \
  GATEFOLD_KERNEL Tensor<T, 1, Cpu> initial_biases<T>(Cpu::Context&, const Initial&, Seed, Index, Index);              \
  GATEFOLD_KERNEL Tensor<T, 2, Cpu> initial_biases<T>(Cpu::Context&, const Initial&, Seed, Index, Index, Index);
GATEFOLD_KERNELS_OF(float)
GATEFOLD_KERNELS_OF(double)
#undef GATEFOLD_KERNELS_OF
#undef GATEFOLD_GATE
#undef GATEFOLD_TENSOR
#undef GATEFOLD_EXPERT

}  // namespace gatefold

#undef GATEFOLD_FOR_ROWS
#undef GATEFOLD_FOR_EACH
#undef GATEFOLD_KERNEL
#endif
