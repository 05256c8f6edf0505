#include "gatefold/tensor/copy_stamp.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <thread>
#include <utility>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/flat_tensor.hpp"
#include "gatefold/tensor/pack.hpp"

using namespace gatefold;

namespace {

using Rank3 = Tensor<float, 3, Cpu>;
const std::uint64_t pass = CopyStamp::next(), another = CopyStamp::next();

/// Returns whether the tensor still counts as copied after f.
template <class F>
bool kept_by(const F& f) {
  Rank3 t(2, 3, 4);
  t.copied_by(pass);
  f(t);
  return t.is_copied_by(pass);
}

}  // namespace

TEST_CASE("CopyStamp: each pass has its own number") { CHECK((pass != 0 && another != 0 && pass != another)); }

TEST_CASE("CopyStamp: a tensor keeps its stamp until mutable access") {
  CHECK(kept_by([](Rank3&) {}));
  CHECK(kept_by([](Rank3& t) { std::as_const(t).data(); }));
  CHECK(kept_by([](Rank3& t) { std::as_const(t).view(); }));
  CHECK(kept_by([](Rank3& t) { static_cast<void>(std::as_const(t)(0, 1, 2)); }));
  CHECK(kept_by([](Rank3& t) {
    View<const float, 3, Cpu> v = t;
    static_cast<void>(v);
  }));
  CHECK(kept_by([](Rank3& t) {
    View<const float, 3, CpuBf16> v = t;
    static_cast<void>(v);
  }));
  CHECK(kept_by([](Rank3& t) { count_values(t); }));
  CHECK(kept_by([](Rank3& t) { FlatTensor(std::as_const(t)).data(); }));
  CHECK(kept_by([](Rank3& t) { for_each_learned([](const Name&, const auto& w) { w.data(); }, std::as_const(t)); }));
  CHECK(!kept_by([](Rank3& t) { t.data(); }));
  CHECK(!kept_by([](Rank3& t) {
    Cpu::Context ctx;
    t.defer_zeros(ctx);
    t.take_zeros();
  }));
  CHECK(!kept_by([](Rank3& t) { t.view(); }));
  CHECK(!kept_by([](Rank3& t) { t(0, 1, 2) = 3; }));
  CHECK(!kept_by([](Rank3& t) {
    View<float, 3, Cpu> v = t;
    static_cast<void>(v);
  }));
  CHECK(!kept_by([](Rank3& t) {
    View<float, 3, CpuBf16> v = t;
    static_cast<void>(v);
  }));
  CHECK(!kept_by([](Rank3& t) { FlatTensor<float, Cpu>(t).data(); }));
  CHECK(!kept_by([](Rank3& t) { for_each_tensor([](const Name&, auto& w) { w.data(); }, t); }));
  CHECK(!kept_by([](Rank3& t) { for_each_learned([](const Name&, auto& w) { w.data(); }, t); }));
  CHECK(!kept_by([](Rank3& t) { t.copied_by(another); }));
}

TEST_CASE("CopyStamp: moving or reshaping a tensor clears its stamp") {
  CHECK(!kept_by([](Rank3& t) { t.resize(2, 3, 4); }));
  CHECK(!kept_by([](Rank3& t) { t = Rank3(2, 3, 4); }));
  CHECK(!kept_by([](Rank3& t) { const Rank3 taken = std::move(t); }));
  CHECK(!kept_by([](Rank3& t) {
    Rank3 other;
    std::swap(t, other);
    CHECK(!other.is_copied_by(pass));
    std::swap(t, other);
  }));
}

TEST_CASE("CopyStamp: threads that write different elements do not race") {  // for the thread sanitizer
  CHECK(!kept_by([](Rank3& t) {
    std::thread one([&] { t(0, 0, 0) = 1; });
    t(1, 0, 0) = 2;
    one.join();
    CHECK(std::as_const(t)(0, 0, 0) == 1);
  }));
}
