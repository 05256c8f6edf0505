#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/copy_stamp.hpp"
#include "gatefold/tensor/deferred_zeros.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// An owning, move-only, row-major array on backend B.
///
/// A copy is made by `clone(ctx, tensor)` only. The copy constructor is declared, and calling it stops the compiler
/// with a sentence: a deleted one would be reported through every pack and std::vector around it, without that
/// sentence.
///
/// `resize` keeps the capacity and drops the contents: a loop allocates nothing after its largest step.
/// Elements are not initialised (debug builds fill them with NaN or -1 bytes).
/// @throws std::bad_alloc (or DeviceError) when memory is short, ArgumentError on a negative or overflowing size
template <class T, int Rank, class B>
class Tensor {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr int rank = Rank;

  Tensor() = default;
  template <class... Extent, class = std::enable_if_t<sizeof...(Extent) == Rank && (std::is_integral_v<Extent> && ...)>>
  explicit Tensor(Extent... extents) {
    resize(extents...);
  }
  template <
      class From, class... Extent,
      std::enable_if_t<
          (std::is_integral_v<Extent> && ... && (std::is_pointer_v<From> || detail_::shape::HasData<From>)), int> = 0,
      detail_::Sentence says = "gatefold: a Tensor is new memory; View{pointer, extents...} is yours">
  explicit Tensor(const From&,  // gatefold: a Tensor is new memory; View{pointer, extents...} is yours
                  Extent...) = delete;
  Tensor(const Tensor&) { refuse_copy(); }
  Tensor& operator=(const Tensor&) {
    refuse_copy();
    return *this;
  }
  Tensor(Tensor&& other) noexcept
      : view_(std::exchange(other.view_, {})),
        capacity_(std::exchange(other.capacity_, 0)),
        skipped_(std::exchange(other.skipped_, false)),
        zeros_(std::move(other.zeros_)),
        copied_(std::move(other.copied_)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(view_, other.view_);
    std::swap(capacity_, other.capacity_);
    std::swap(skipped_, other.skipped_);
    zeros_ = std::move(other.zeros_);
    copied_ = std::move(other.copied_);
    return *this;
  }
  ~Tensor();

  template <class... Extent>
  void resize(Extent... extents) {
    GATEFOLD_REQUIRE(sizeof...(Extent) == Rank, "gatefold: one extent per dimension");
    take({static_cast<Index>(extents)...});
  }
  /// Takes the extents of another tensor, or is skipped if that is.
  template <class U, class OtherB>
  void resize_like(const Tensor<U, Rank, OtherB>& other) {
    if (other.is_skipped()) return skip();
    const auto parts = [&]<std::size_t... D>(std::index_sequence<D...>) { resize(other.extent(D)...); };
    parts(std::make_index_sequence<std::size_t{Rank}>{});
  }
  /// Makes the tensor a gradient that nobody needs: empty, without memory, and marked, so that backward passes skip it
  /// (see gradient_is_optional in tensor/pack.hpp). `resize` takes that back.
  void skip() {
    zeros_.take();
    copied_.forget();
    outgrow();
    skipped_ = true;
  }
  bool is_skipped() const { return skipped_; }

  View<T, Rank, B> view() { return to_write(); }
  View<const T, Rank, B> view() const { return elements(); }
  operator View<T, Rank, B>() { return to_write(); }
  operator View<const T, Rank, B>() const { return elements(); }
  /// For another backend that has the same memory.
  template <class To, class = std::enable_if_t<detail_::shape::shares_memory<B, To>()>>
  operator View<T, Rank, To>() {
    return to_write();
  }
  template <class To, class = std::enable_if_t<detail_::shape::shares_memory<B, To>()>>
  operator View<const T, Rank, To>() const {
    return elements();
  }

  T* data() { return to_write().data(); }
  const T* data() const { return elements().data(); }
  Index extent(int d) const { return view_.extent(d); }
  Index extent(std::size_t d) const { return view_.extent(static_cast<int>(d)); }
  Index size() const { return view_.size(); }

  /// One element. Host backends only.
  template <class... Extent>
  T& operator()(Extent... i) {
    GATEFOLD_REQUIRE(B::is_host,
                     "gatefold: elements of a device tensor are not reachable from the host; copy it first");
    return to_write()(i...);
  }
  template <class... Extent>
  const T& operator()(Extent... i) const {
    GATEFOLD_REQUIRE(B::is_host,
                     "gatefold: elements of a device tensor are not reachable from the host; copy it first");
    return elements()(i...);
  }

  /// All elements are 0 from here on, but nothing is written before somebody asks for them: where a product stores
  /// whatever it would add (take_zeros), never. Of rank 3, the weights of experts.
  /// @param ctx  outlives that
  template <class Context>
  void defer_zeros(Context& ctx) {
    GATEFOLD_REQUIRE(Rank == 3, "gatefold: tensors of rank 3 defer their zeros; set_zero(ctx, tensor) writes them");
    copied_.forget();
    zeros_.defer(ctx);
  }
  /// Whether zeros are deferred. If so they are no longer, and who asks writes all elements.
  bool take_zeros() { return zeros_.take(); }

  /// Remember which pass (CopyStamp::next) has copied the elements, until somebody asks for them to write them. Of rank
  /// 3, as above.
  void copied_by(std::uint64_t pass) const { copied_.set(pass); }
  /// Whether nobody has asked for the elements to write them since copied_by(pass), nor moved the tensor.
  bool is_copied_by(std::uint64_t pass) const { return copied_.is(pass); }

 private:
  static void refuse_copy() {
    GATEFOLD_REQUIRE(sizeof(T) == 0,
                     "gatefold: copy tensors and packs with clone: auto best = clone(ctx, trainer.params)");
  }
  using Extents = std::array<Index, std::size_t{Rank}>;

  void take(const Extents& extents);
  void release();
  /// Memory that is too small for it: a backend may keep it for who has its address.
  void outgrow() {
    if constexpr (requires { B::retire(view_.data()); }) {
      if (capacity_ > 0) B::retire(view_.data());
      capacity_ = 0;
    }
    release();
  }
  const View<T, Rank, B>& elements() const {
    zeros_.write(view_.data(), static_cast<std::size_t>(view_.size()) * sizeof(T));
    return view_;
  }
  const View<T, Rank, B>& to_write() { return copied_.forget(), elements(); }

  View<T, Rank, B> view_;
  Index capacity_ = 0;
  bool skipped_ = false;
  [[no_unique_address]] std::conditional_t<Rank == 3, DeferredZeros<B>, NoDeferredZeros> zeros_;
  [[no_unique_address]] std::conditional_t<Rank == 3, CopyStamp, NoCopyStamp> copied_;
};

// Out of the class: what is in it is inline, and compiled again by whoever optimises in spite of kernels.hpp.
template <class T, int Rank, class B>
Tensor<T, Rank, B>::~Tensor() {
  release();
}
template <class T, int Rank, class B>
void Tensor<T, Rank, B>::take(const Extents& extents) {
  Index count = 1;
  for (Index n : extents) {
    expect(n >= 0, "Tensor.resize", "extent", "at least 0", n);
    const Index most = std::numeric_limits<Index>::max() / static_cast<Index>(sizeof(T));
    expect(n == 0 || count <= most / n, "Tensor.resize", "size", "at most 2^63 bytes", "more");
    count *= n;
  }
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  zeros_.take();
  copied_.forget();
  skipped_ = false;
  T* data = view_.data();
  if (count > capacity_) {
    outgrow();
    data = static_cast<T*>(B::allocate(bytes));
    capacity_ = count;
  }
  std::apply([&](auto... n) { view_ = View<T, Rank, B>(data, n...); }, extents);
#ifndef NDEBUG
  if (count > 0) B::poison(data, bytes);
#endif
}
template <class T, int Rank, class B>
void Tensor<T, Rank, B>::release() {
  if (capacity_ > 0) B::release(view_.data());
  view_ = {};
  capacity_ = 0;
}

}  // namespace gatefold
