#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/weights.hpp"
#include "gatefold/diagnosis/layer.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/find.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold {

/// Options of freeze, which packs parameters for inference and returns FrozenParams (policy/policy.hpp). Each element
/// of `except` gives another form to the tensors that its pattern selects (NamePatterns). If several patterns select a
/// tensor, the last of them determines its form:
///
///     freeze(ctx, std::move(params), {.weights = Weights::int4, .except = {{"**.shared", Weights::int8}}});
struct FreezeOptions {
  struct Exception {
    std::string pattern;
    Weights weights;
  };
  Weights weights = Weights::unchanged;  // the form in which the weights of matrix products are stored
  std::vector<Exception> except{};
  bool keep_plain = true;  // if false, tensors of 8 or 4 bits keep only the packed copy; their elements are freed
};

namespace detail_::lookup {

/// Appends one value for each tensor of a pack, in the order of for_each_tensor: true if only products read the
/// weights. The value is true if the pack that lists the tensor declares `only_multiplied`. As an exception, it is
/// false for a tensor [E, rows, 1], because SigmoidGated reads elements of its weights.
/// @param only  whether the pack that lists `params` declares `only_multiplied`
template <class P>
void add_only_multiplied(const P& params, bool only, std::vector<bool>& all);
struct AddOnlyMultipliedOfPart {
  bool only;
  std::vector<bool>& all;
  void operator()(auto, const auto& part) const { add_only_multiplied(part, only, all); }
};
template <class P>
void add_only_multiplied(const P& params, bool only, std::vector<bool>& all) {
  if constexpr (detail_::pack::is_tensor<P>) {
    if constexpr (P::rank == 3) only = only && params.extent(2) != 1;
    all.push_back(only);
  } else if constexpr (detail_::pack::is_vector<P> || detail_::pack::is_tuple<P>) {
    detail_::pack::each_part(AddOnlyMultipliedOfPart{only, all}, params);
  } else {
    P::each(AddOnlyMultipliedOfPart{only_multiplied<P>, all}, params);
  }
}

/// Returns for each tensor of a pack, in the order of for_each_tensor, whether only products read its weights. A
/// rounded or packed copy can then replace the elements.
template <class P>
std::vector<bool> only_products_read(const P& params) {
  std::vector<bool> all;
  add_only_multiplied(params, false, all);
  return all;
}

/// Returns the form of each tensor of a pack, in the order of for_each_tensor. The form of a tensor [E, rows, columns]
/// is Weights::unchanged if code other than products can read the tensor.
/// @param prefix  is removed from the beginning of tensor names before they are compared with patterns
/// @throws ArgumentError if a pattern selects no tensor
template <class P>
[[gnu::noinline]] std::vector<Weights> forms(const FreezeOptions& options, const P& params,
                                             const std::string& prefix = "") {
  std::vector<Weights> forms(count_tensors(params), options.weights);
  if (!options.except.empty()) {
    std::vector<std::string> names;
    for_each_tensor(
        [&](const Name& name, const auto&) {
          const std::string whole = name.str();
          names.push_back(whole.substr(whole.starts_with(prefix) ? prefix.size() : 0));
        },
        params);
    for (const auto& [pattern, weights] : options.except) {
      std::vector<bool> selected(names.size());
      NamePatterns({pattern}).select("freeze", names, selected);
      for (std::size_t i = 0; i < names.size(); ++i)
        if (selected[i]) forms[i] = weights;
    }
  }
  const std::vector<bool> only = only_products_read(params);
  std::size_t at = 0;
  for_each_tensor(
      [&]<class Tensor>(const Name&, const Tensor&) {
        if constexpr (Tensor::rank == 3)
          if (!only[at]) forms[at] = Weights::unchanged;
        ++at;
      },
      params);
  return forms;
}

/// Returns whether backend B can store weights of type T with the extents of `like` only as a packed copy, without
/// elements. The answer holds for weights that only products read.
template <class B, class T, int Rank, class Like>
bool can_be_only_packed(const Like& like, Weights form) {
  if constexpr (Rank == 3 && requires { &B::template packs_only<T>; }) {
    return like.size() > 0 && B::template packs_only<T>(form);
  } else {
    return false;
  }
}
/// Packs the weights of a tensor and releases its elements.
template <class C, class T, class B>
void keep_packed(C& ctx, Tensor<T, 3, B>& t, const View<const T, 3, B>& weights, Weights form,
                 typename B::PackedWeights& packed) {
  const Index experts = t.extent(0), depth = t.extent(1), columns = t.extent(2);
  T* const address = B::template reserve_packed<T>(experts, depth, columns, form, packed);
  for (Index e = 0; e < experts; ++e)  // one expert at a time, because pack_experts can need scratch memory
    B::pack_experts(ctx, address, e, View<const T, 3, B>(weights.data() + e * depth * columns, 1, depth, columns),
                    packed);
  t.resize_without_memory(address, experts, depth, columns);
}

/// Freezes parameters with a form for each tensor, in the order of for_each_tensor.
template <class C, class P>
FrozenParams<P, typename C::Backend> freeze_as(C& ctx, P&& params, const std::vector<Weights>& forms, bool keep_plain) {
  using B = typename C::Backend;
  const auto here = ctx.here();
  FrozenParams<P, B> frozen{std::move(params), {}};
  const auto pack = [&]<class T, int Rank, class Of>(auto& t, const View<const T, Rank, Of>& weights, Weights form) {
    GATEFOLD_REQUIRE((std::is_same_v<Of, B>),
                     "gatefold: freeze needs parameters and a context of the same backend, for example Params<L, "
                     "float, Cpu> and a Cpu::Context");
    if constexpr (Rank == 3 && std::is_same_v<Of, B> && requires { &B::template packs_only<T>; })
      if (!keep_plain && is_quantised(form) && can_be_only_packed<B, T, Rank>(weights, form))
        return keep_packed(ctx, t, weights, form, frozen.packed);
    if constexpr (requires { B::pack(ctx, weights, form, frozen.packed); }) B::pack(ctx, weights, form, frozen.packed);
  };
  if constexpr (requires { typename B::PackedWeights; }) {
    auto form = forms.begin();
    for_each_tensor([&](const Name&, auto& t) { pack(t, std::as_const(t).view(), *form++); }, frozen.params);
  }
  return frozen;
}

}  // namespace detail_::lookup

/// Prepares parameters for inference: makes copies of the expert weights in the order in which the matrix products of
/// the backend read them. Takes ownership of the parameters: freeze(ctx, std::move(params)).
///
/// The option `weights` selects the form of the copies. With Weights::unchanged, results have the same bits as with the
/// original parameters. Weights::bfloat16 rounds weights to 8 significant bits, so by at most 2⁻⁸ of their value. With
/// the forms of 8 and 4 bits (core/weights.hpp), products also round the items. Fewer bytes are faster to read, which
/// helps if memory bandwidth is the limit. Only tensors of rank 3 are packed and rounded. Tensors with one column are
/// not rounded, because SigmoidGated reads their elements. A backend without packed weights neither packs nor rounds.
///
/// Only tensors of packs that declare `only_multiplied` (tensor/pack.hpp) are rounded, because other policies read
/// elements of their weights, for example SoftMoe. The experts of the library declare it, except ConstantExpert and
/// PatchMlp. Your own expert must declare it, too.
///
/// `Cuda` and `CudaBf16` store the same weights of 8 and 4 bits as `Cpu`, but their products do not round the items to
/// 8 bits. Results have the same bits as with unpacked parameters that have the values ŵ (core/weights.hpp), so they
/// differ from results of `Cpu`. `Cuda` computes ŵ as a float while a product reads the copy. `CudaBf16` rounds ŵ to
/// bfloat16 in scratch memory before each product. With Weights::unchanged, both make no copies.
/// @throws ArgumentError if weights of 8 or 4 bits are requested for parameters of double, or if a pattern of the
///         options selects no tensor
/// @cost  one pass over the weights, and memory for one more copy of them (see Weights for its size). The columns of
///         the copy are padded: on a CPU to a multiple of two registers, on a GPU to a multiple of 4, or of 8 for
///         Weights::bfloat16
template <class C, class P>
FrozenParams<std::remove_reference_t<P>, typename C::Backend> freeze(C& ctx, P&& params, FreezeOptions options = {}) {
  GATEFOLD_REQUIRE(!std::is_lvalue_reference_v<P>,
                   "gatefold: freeze takes ownership of the parameters: freeze(ctx, std::move(params)); see "
                   "docs/explanation/performance.md");
  if constexpr (!std::is_lvalue_reference_v<P>) {
    const std::vector<Weights> forms = detail_::lookup::forms(options, params);
    return detail_::lookup::freeze_as(ctx, std::move(params), forms, options.keep_plain);
  }
}

/// Runs a layer for inference with frozen parameters (packed by freeze): `infer(layer, ctx, frozen, x, carry, y)`.
template <class T, class B, class L, class P>
void infer(const L& layer, typename B::Context& ctx, const FrozenParams<P, B>& frozen, NonDeduced<Items<L, T, B>> x,
           NonDeduced<Carry<L, T, B>>& carry, Out<T, 2, B> y, const NonDeduced<Extra<L, T, B>>& extra = {}) {
  detail_::lookup::with_packed(ctx, frozen, [&] { infer<T, B>(layer, ctx, frozen.params, x, carry, y, extra); });
}
template <class L, template <class, class> class ParamsT, class T, class B,
          class = std::enable_if_t<detail_::lookup::are_params_of<L, ParamsT, T, B>()>>
void infer(const L& layer, typename B::Context& ctx, const FrozenParams<ParamsT<T, B>, B>& frozen,
           NonDeduced<Items<L, T, B>> x, Carry<L, T, B>& carry, Out<T, 2, B> y, const Extra<L, T, B>& extra = {}) {
  infer<T, B>(layer, ctx, frozen, x, carry, y, extra);
}
/// Runs a branch, for example a Mixture, for inference with frozen parameters (packed by freeze): `infer(branch, ctx,
/// frozen, x, u)`.
template <class L, template <class, class> class ParamsT, class T, class B,
          class = std::enable_if_t<detail_::lookup::are_params_of<L, ParamsT, T, B>()>>
void infer(const L& branch, typename B::Context& ctx, const FrozenParams<ParamsT<T, B>, B>& frozen,
           NonDeduced<Items<L, T, B>> x, Out<T, 2, B> u, const Extra<L, T, B>& extra = {}) {
  detail_::lookup::with_packed(ctx, frozen, [&] { infer(branch, ctx, frozen.params, x, u, extra); });
}

/// This overload of infer is chosen if the arguments belong to different models, element types or backends. It does not
/// compile, and a static_assert names the mistake.
template <class L, class C, template <class, class> class ParamsT, class T, class B, class... A,
          class = std::enable_if_t<(detail_::lookup::are_elements<T, B> &&
                                    !detail_::lookup::are_params_of<L, ParamsT, T, B>()) ||
                                   detail_::lookup::any_foreign<L, C, T, B, A...>()>>
void infer(const L& layer, C& ctx, const FrozenParams<ParamsT<T, B>, B>& frozen, A&&... arguments) {
  infer(layer, ctx, frozen.params, std::forward<A>(arguments)...);
}

}  // namespace gatefold
