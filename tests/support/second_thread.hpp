#pragma once

#include <functional>
#include <future>
#include <string>
#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/loss/mean_squared_error.hpp"

/// Calls functions on a second thread in the middle of a call on the first, at a place that does not depend on timing.
namespace gatefold::support {

inline const std::string second_thread_refused =
    "Context: thread: expected one at a time (use one context per thread), got a second thread while the first is "
    "inside a call";

/// Calls f(). Returns the message of the ArgumentError that f() throws, or "none".
template <class F>
std::string on_this_thread(const F& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "none";
}
/// Returns the result of on_this_thread(f) on a separate thread.
template <class F>
std::string on_second_thread(const F& f) {
  return std::async(std::launch::async, [&] { return on_this_thread(f); }).get();
}

/// A place in a call on the first thread. The call runs reach(), which calls f if f is set. reach() first clears the
/// member f, so each function assigned to f is called at most once.
struct Interruption {
  std::function<void()> f{};
  void reach() {
    if (f) std::exchange(f, nullptr)();
  }
};

/// A branch u = x. Its forward and backward call reach() between two primitives.
struct Interrupted {
  Index model_dim = 0;
  Interruption* at = nullptr;

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& = {}, const Step& step = {}) const {
    copy(ctx, x, u);
    at->reach();
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    at->reach();
    add(ctx, du, dx);
  }
};

/// A loss that calls reach() before its forward.
struct InterruptedLoss : MeanSquaredError {
  Interruption* at = nullptr;

  explicit InterruptedLoss(Interruption& place) : at(&place) {}
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 1, B> value) const {
    at->reach();
    MeanSquaredError::forward<T, B>(ctx, y, target, value);
  }
};

}  // namespace gatefold::support
