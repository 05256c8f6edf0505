#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// An array on backend B that owns its memory. It is row-major and can be moved but not copied.
///
/// Only `clone(ctx, tensor)` makes a copy. The copy constructor is declared, not deleted, so that a copy by mistake
/// fails a static_assert that names `clone`. With a deleted constructor, the compiler would list every pack and
/// std::vector around the tensor, without that advice.
///
/// `resize` keeps the capacity and drops the contents, so a loop allocates nothing after its largest step. Elements are
/// not initialised (builds with assertions fill them with 0xff bytes: NaN, or −1 for integers).
/// @throws std::bad_alloc (or DeviceError) if memory is short, ArgumentError on a negative or overflowing size
template <class T, int Rank, class B>
class Tensor;

/// Records whether a rounded copy of the elements of a tensor is up to date. It holds the number of the pass over all
/// weights that made the copy. Any non-const access to the elements clears the number, because the copy can then be
/// stale. Writes through a view that was taken before the copy was made are not detected.
class CopyStamp {
 public:
  /// Returns a number for a new pass that copies weights. The number is unique in the process.
  static std::uint64_t next() { return last_.fetch_add(1, std::memory_order_relaxed) + 1; }

  CopyStamp() = default;
  CopyStamp(CopyStamp&& other) noexcept { other.forget(); }
  CopyStamp& operator=(CopyStamp&& other) noexcept {
    forget();
    other.forget();
    return *this;
  }
  ~CopyStamp() = default;

  void set(std::uint64_t pass) const { pass_.store(pass, std::memory_order_relaxed); }
  bool is(std::uint64_t pass) const { return pass_.load(std::memory_order_relaxed) == pass; }
  /// Clears the stamp, so that the rounded copy of the elements counts as stale. The function writes only if the stamp
  /// is set, because many threads can call it at once while they access different elements of a tensor.
  void forget() const {
    if (!is(0)) set(0);
  }

 private:
  GATEFOLD_UNIQUE static inline std::atomic<std::uint64_t> last_{0};
  mutable std::atomic<std::uint64_t> pass_{0};
};

/// Replaces CopyStamp in tensors whose elements are never copied in rounded form. It records nothing.
struct NoCopyStamp {
  static void set(std::uint64_t) {}
  static bool is(std::uint64_t) { return false; }
  static void forget() {}
};

namespace detail_ {

/// A mutex that a thread holds while it writes the deferred zeros of a tensor, because several threads can access the
/// tensor at once.
GATEFOLD_UNIQUE inline std::mutex writing_zeros;

}  // namespace detail_

[[noreturn, gnu::noinline, gnu::cold]] inline void throw_deferred_zeros() {
  throw Error("Tensor: the zeros of set_zero_later are not yet written: call write_zeros(pack) before you read it");
}

/// Marks a tensor as zero without writing the zeros. They are written at the first non-const access, on the accessing
/// thread. A matrix product that overwrites every element calls take() instead; the zeros are then never written. A
/// const access to a tensor that is still marked is an error, so that const access never writes.
template <class B>
class DeferredZeros {
 public:
  DeferredZeros() = default;
  DeferredZeros(DeferredZeros&& other) noexcept : ctx_(other.ctx_.exchange(nullptr, std::memory_order_relaxed)) {}
  DeferredZeros& operator=(DeferredZeros&& other) noexcept {
    ctx_.store(other.ctx_.exchange(ctx_.load(std::memory_order_relaxed), std::memory_order_relaxed),
               std::memory_order_relaxed);
    return *this;
  }
  ~DeferredZeros() = default;

  /// Marks the tensor as zero without writing the zeros.
  /// @param ctx  the context that writes the zeros. It must live until the zeros are written
  void defer(auto& ctx) { ctx_.store(&ctx, std::memory_order_relaxed); }
  /// Returns whether the zeros of the tensor are still to be written, and cancels them. If it returns true, the caller
  /// must write all elements.
  bool take() { return ctx_.exchange(nullptr, std::memory_order_relaxed) != nullptr; }
  void write(void* data, std::size_t bytes) {
    if (ctx_.load(std::memory_order_acquire) != nullptr) write_now(data, bytes);
  }
  /// @throws Error if the zeros are still to be written
  void expect_written() const {
    if (ctx_.load(std::memory_order_acquire) != nullptr) throw_deferred_zeros();
  }

 private:
  [[gnu::noinline, gnu::cold]] void write_now(void* data, std::size_t bytes) {
    const std::lock_guard lock(detail_::writing_zeros);
    void* const ctx = ctx_.load(std::memory_order_relaxed);
    if (ctx == nullptr) return;
    B::write_zeros(*static_cast<typename B::Context*>(ctx), data, bytes);
    ctx_.store(nullptr, std::memory_order_release);
  }

  std::atomic<void*> ctx_{nullptr};
};

/// Replaces DeferredZeros in tensors that write their zeros at once.
struct NoDeferredZeros {
  static bool take() { return false; }
  static void write(void*, std::size_t) {}
  static void expect_written() {}
};

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
      detail_::Sentence says = "gatefold: a Tensor allocates its memory; use View{pointer, extents...} for your memory">
  explicit Tensor(  // gatefold: a Tensor allocates its memory; use View{pointer, extents...} for your memory
      const From&, Extent...) = delete;
  Tensor(const Tensor&) { refuse_copy(); }
  Tensor& operator=(const Tensor&) {
    refuse_copy();
    return *this;
  }
  Tensor(Tensor&& other) noexcept
      : view_(std::exchange(other.view_, {})),
        capacity_(std::exchange(other.capacity_, 0)),
        zeros_(std::move(other.zeros_)),
        copied_(std::move(other.copied_)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(view_, other.view_);
    std::swap(capacity_, other.capacity_);
    zeros_ = std::move(other.zeros_);
    copied_ = std::move(other.copied_);
    return *this;
  }
  ~Tensor();

  template <class... Extent>
  void resize(Extent... extents) {
    GATEFOLD_REQUIRE(
        sizeof...(Extent) == Rank,
        "gatefold: resize and the constructor of a Tensor<T, Rank, B> take Rank extents, one for each dimension");
    take({static_cast<Index>(extents)...});
  }
  /// Resizes this tensor to the extents of `other`. If `other` is marked as a gradient that is not needed (skip()),
  /// marks this tensor in the same way instead.
  template <class U, class OtherB>
  void resize_like(const Tensor<U, Rank, OtherB>& other) {
    if (other.is_skipped()) return skip();
    const auto parts = [&]<std::size_t... D>(std::index_sequence<D...>) { resize(other.extent(D)...); };
    parts(std::make_index_sequence<std::size_t{Rank}>{});
  }
  /// Gives the tensor extents and an address, without memory of its own. There are two uses: elements that another
  /// object owns, and weights of which a backend has only a packed copy (layer/frozen.hpp). Weights of the second kind
  /// have no elements: nothing may read or write them, and products find the packed copy by their address.
  /// @param address  the address that data() returns
  template <class... Extent>
  void resize_without_memory(T* address, Extent... extents) {
    GATEFOLD_REQUIRE(sizeof...(Extent) == Rank, "gatefold: resize_without_memory takes an address and Rank extents");
    outgrow();
    view_ = View<T, Rank, B>(address, static_cast<Index>(extents)...);
  }
  /// Marks the tensor as a gradient that is not needed. It becomes empty, frees its memory, and backward passes skip it
  /// (see gradient_is_optional in tensor/pack.hpp). `resize` removes the mark.
  void skip() {
    zeros_.take();
    copied_.forget();
    outgrow();
    capacity_ = kSkipped;
  }
  bool is_skipped() const { return capacity_ == kSkipped; }

  View<T, Rank, B> view() { return to_write(); }
  View<const T, Rank, B> view() const { return elements(); }
  operator View<T, Rank, B>() { return to_write(); }
  operator View<const T, Rank, B>() const { return elements(); }
  /// Converts to a view of a different backend that uses the same memory, for example from Cpu to CpuBf16.
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

  /// Returns the element at the given indices, one for each dimension. Only for host backends.
  template <class... Extent>
  T& operator()(Extent... i) {
    GATEFOLD_REQUIRE(B::is_host,
                     "gatefold: the host cannot read elements of a device tensor; copy them to a host tensor with "
                     "transfer(ctx, from, to)");
    return to_write()(i...);
  }
  template <class... Extent>
  const T& operator()(Extent... i) const {
    GATEFOLD_REQUIRE(B::is_host,
                     "gatefold: the host cannot read elements of a device tensor; copy them to a host tensor with "
                     "transfer(ctx, from, to)");
    return elements()(i...);
  }

  /// Sets all elements to 0, but the zeros are written only at the first non-const access. Until then, a const access
  /// throws Error. A matrix product that overwrites all elements calls take_zeros first; the zeros are then never
  /// written. Only for rank 3, the weights of experts.
  /// @param ctx  must live until the zeros are written
  void defer_zeros(auto& ctx) {
    GATEFOLD_REQUIRE(Rank == 3, "gatefold: only tensors of rank 3 can defer their zeros; use set_zero(ctx, tensor)");
    copied_.forget();
    zeros_.defer(ctx);
  }
  /// Returns whether the zeros of defer_zeros are still to be written, and cancels them. If it returns true, the caller
  /// must write all elements.
  bool take_zeros() { return zeros_.take(); }

  /// Records the number of the pass over the weights (CopyStamp::next) that made a rounded copy of the elements.
  /// Non-const access to the elements clears the record. Only for rank 3, the weights of experts.
  void copied_by(std::uint64_t pass) const { copied_.set(pass); }
  /// Returns whether the rounded copy of the elements that was made in the given pass is up to date. This is true if,
  /// since copied_by(pass), there was no non-const access to the elements, no resize and no move of the tensor.
  bool is_copied_by(std::uint64_t pass) const { return copied_.is(pass); }

 private:
  static void refuse_copy() {
    GATEFOLD_REQUIRE(sizeof(T) == 0,
                     "gatefold: copy tensors and packs with clone: auto best = clone(ctx, trainer.params)");
  }
  using Extents = std::array<Index, std::size_t{Rank}>;
  static constexpr Index kSkipped = -1;

  void take(const Extents& extents);
  void release();
  /// Gives up the memory of the tensor, for example because it has become too small. A backend can retire the memory
  /// instead of freeing it, because other code, for example a captured CUDA graph, can still hold its address.
  void outgrow() {
    if constexpr (requires { B::retire(view_.data()); }) {
      if (capacity_ > 0) B::retire(view_.data());
      capacity_ = 0;
    }
    release();
  }
  const View<T, Rank, B>& elements() const { return zeros_.expect_written(), view_; }
  const View<T, Rank, B>& to_write() {
    return copied_.forget(), zeros_.write(view_.data(), static_cast<std::size_t>(view_.size()) * sizeof(T)), view_;
  }

  View<T, Rank, B> view_;
  Index capacity_ = 0;  // number of elements of the memory, or kSkipped
  [[no_unique_address]] std::conditional_t<Rank == 3, DeferredZeros<B>, NoDeferredZeros> zeros_;
  [[no_unique_address]] std::conditional_t<Rank == 3, CopyStamp, NoCopyStamp> copied_;
};

// These member functions of Tensor are defined outside the class, because functions defined inside a class are inline.
// An optimised build would compile inline functions again in each file, in spite of the instantiations in kernels.hpp.
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
  if (is_skipped()) capacity_ = 0;
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
