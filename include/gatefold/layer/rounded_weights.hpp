#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/core/weights.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold {

namespace detail_::pack {

template <class B>
struct RoundTensors;
template <class B>
struct FindCopies;

}  // namespace detail_::pack

/// Copies of expert weights, rounded as the matrix products of a backend round them (CudaBf16: to bfloat16). Several
/// products can then read one copy instead of rounding the weights again. On backends other than CudaBf16,
/// RoundedWeights is empty and does nothing.
///
///     RoundedWeights<CudaBf16> rounded;
///     rounded.refresh(ctx, params);               // again after every write to params
///     const auto use = ctx.use(rounded.packed);   // products that run during its lifetime read the copies
///
/// Results have the same bits as without copies. A copy that was not refreshed after a write to the weights gives wrong
/// results. Builds with assertions compare each copy that a product reads with the weights, except during graph
/// capture, because a graph should itself refresh the copies that it reads. Only tensors [E, rows, columns] with
/// elements have copies (FreezeOptions::keep_plain can release the elements). A product finds the copy by the address
/// of the tensor, if the product runs in the context that refreshed the copy. A Trainer has its own RoundedWeights.
/// @cost  one pass over the weights for each refresh; half as much memory as the weights, with columns padded to a
///         multiple of eight. After the first refresh of a pack, refresh allocates no memory. It never waits for the
///         device
template <class B>
struct RoundedWeights {
  static constexpr bool exist = requires(typename B::Context & ctx, View<const float, 3, B> w,
                                         typename decltype(detail_::lookup::packed_weights<B>())::type& copies) {
    B::refresh(ctx, w, copies);
  };
  typename decltype(detail_::lookup::packed_weights<B>())::type packed;

  void refresh(typename B::Context& ctx, const auto& params) {
    if constexpr (exist) {
      if (round_all(ctx, params) == packed.size()) return;
      packed = {};  // drops copies made for freed tensors, whose addresses other tensors may have now
      round_all(ctx, params);
    }
  }
  /// Selects how `run` uses rounded copies of the weights. If `keep` is true, copies are kept, and products read them.
  /// If `written` is true, copies are refreshed even if they are current.
  struct Use {
    bool keep = true, written = true;
  };
  /// Calls f() with or without rounded copies of the weights. If `how.keep` is true, first refreshes the copies if
  /// necessary; matrix products that f runs then read the copies. If `how.keep` is false, drops the copies; each
  /// product then rounds the weights that it reads.
  template <class P, class F>
  void run(typename B::Context& ctx, const P& params, [[maybe_unused]] Use how, const F& f) {
    if constexpr (exist) {
      if (how.keep) {
        if (how.written || !current(params)) refresh(ctx, params);
        const auto use = ctx.use(packed);
        return f();
      }
      packed = {};
    }
    f();
  }

  /// Returns true if every tensor that needs a rounded copy has one, and no caller has requested write access to the
  /// tensor since the copy was made. Writes through an older view are not detected.
  bool current(const auto& params) const {
    bool all = true;
    if constexpr (exist) for_each_tensor(detail_::pack::FindCopies<B>{packed, pass_, all}, params);
    return all;
  }

 private:
  std::size_t round_all(typename B::Context& ctx, const auto& params) {
    std::size_t count = 0;
    pass_ = CopyStamp::next();
    for_each_tensor(detail_::pack::RoundTensors<B>{ctx, packed, pass_, count}, params);
    return count;
  }

  std::uint64_t pass_ = 0;
};

namespace detail_::pack {

/// A visitor of tensors: makes a rounded copy of each tensor [experts, rows, columns] of a pack (a struct of tensors).
/// `count` is the number of copies.
template <class B>
struct RoundTensors {
  typename B::Context& ctx;
  typename B::PackedWeights& packed;
  std::uint64_t pass;
  std::size_t& count;
  void operator()(const Name&, const auto&) const {}
  template <class T>
  void operator()(const Name&, const Tensor<T, 3, B>& t) const {
    if (!has_elements(t.data())) return;
    B::refresh(ctx, t.view(), packed);
    t.copied_by(pass);
    if (std::is_same_v<T, float> && t.size() > 0) ++count;
  }
};
template <class B>
struct FindCopies {
  const typename B::PackedWeights& packed;
  std::uint64_t pass;
  bool& current;
  void operator()(const Name&, const auto&) const {}
  void operator()(const Name&, const Tensor<float, 3, B>& t) const {
    if (t.size() > 0 && has_elements(t.data()))
      current = current && t.is_copied_by(pass) && packed.find(t.data(), t.extent(2));
  }
};

}  // namespace detail_::pack
}  // namespace gatefold
