#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/tensor/copy_stamp.hpp"
#include "gatefold/tensor/pack.hpp"

namespace gatefold {

namespace detail_::pack {

/// Rounds tensors [E, rows, columns] into their copies, and counts them.
template <class B>
struct RoundTensors {
  typename B::Context& ctx;
  typename B::PackedWeights& packed;
  std::uint64_t pass;
  std::size_t& count;
  void operator()(const Name&, const auto&) const {}
  template <class T>
  void operator()(const Name&, const Tensor<T, 3, B>& t) const {
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
    if (t.size() > 0) current = current && t.is_copied_by(pass) && packed.find(t.data(), t.extent(2));
  }
};

}  // namespace detail_::pack

/// Copies of the weights of experts, rounded as the products of a backend would round them (CudaBf16: to bfloat16),
/// that many products read: each of these need not round them anew. On other backends it is empty, and does nothing.
///
///     RoundedWeights<CudaBf16> rounded;
///     rounded.refresh(ctx, params);               // and again after whatever wrote params
///     const auto use = ctx.use(rounded.packed);   // what runs while it lives reads the copies
///
/// The bits are those of products that round by themselves. A copy that was not refreshed makes wrong numbers; builds
/// with assertions compare each copy that a product reads with the weights (but in a capture: a graph should refresh
/// what it reads). Copies are of tensors [E, rows, columns], found by their address: they are for the context that
/// refreshed them. A Trainer has its own.
/// @cost  one pass over the weights for each refresh; half as much memory as they take, columns filled up to eight. No
///        allocation after the first refresh of a pack, nothing waits for the device
template <class B>
struct RoundedWeights {
  static constexpr bool exist = requires(typename B::Context & ctx, View<const float, 3, B> w,
                                         typename decltype(detail_::lookup::packed_weights<B>())::type& copies) {
    B::refresh(ctx, w, copies);
  };
  typename decltype(detail_::lookup::packed_weights<B>())::type packed;

  template <class P>
  void refresh(typename B::Context& ctx, const P& params) {
    if constexpr (exist) {
      if (round_all(ctx, params) == packed.size()) return;
      packed = {};  // of memory that is none of theirs any more: another tensor's by now, perhaps
      round_all(ctx, params);
    }
  }
  /// When copies are kept for what runs, and whether they are to be refreshed although they are current.
  struct Use {
    bool keep = true, written = true;
  };
  /// f(), whose products read copies of params where they are kept; else there are none, and it rounds as it goes.
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

  /// Whether each copy is of a tensor that nobody has asked for to write it since. Who holds a view from before and
  /// writes through it is not seen.
  template <class P>
  bool current(const P& params) const {
    bool all = true;
    if constexpr (exist) for_each_tensor(detail_::pack::FindCopies<B>{packed, pass_, all}, params);
    return all;
  }

 private:
  template <class P>
  std::size_t round_all(typename B::Context& ctx, const P& params) {
    std::size_t count = 0;
    pass_ = CopyStamp::next();
    for_each_tensor(detail_::pack::RoundTensors<B>{ctx, packed, pass_, count}, params);
    return count;
  }

  std::uint64_t pass_ = 0;
};

}  // namespace gatefold
