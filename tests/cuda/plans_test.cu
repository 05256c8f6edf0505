// Sorting by group, and plans: dispatch, combination and their adjoints. CUDA is compared with the naive backend and
// with the definition.
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Compares group_by on both backends. The elements of `order` after the last group are not compared.
void expect_same_groups(const std::vector<Index>& keys, Index groups) {
  Backends on;
  const Index n = static_cast<Index>(keys.size());
  CAPTURE(n);
  CAPTURE(groups);
  Tensor<Index, 1, Naive> key(n), offsets(groups + 1), order(n);
  for (Index i = 0; i < n; ++i) key(i) = keys[static_cast<std::size_t>(i)];
  Naive::group_by(on.naive, std::as_const(key).view(), offsets.view(), order.view());
  const auto cuda_key = on_cuda<Tensor<Index, 1, Cuda>>(on, key);
  Tensor<Index, 1, Cuda> cuda_offsets(groups + 1), cuda_order(n);
  Cuda::group_by(on.cuda, cuda_key.view(), cuda_offsets.view(), cuda_order.view());
  expect_same(on, "offsets", offsets, cuda_offsets, {});
  expect_same<Index, 1>(on, "order", order.view(), cuda_order.view(), {}, offsets(groups));
}
/// Returns n keys in [least, least + count).
std::vector<Index> random_keys(Index n, Index least, Index count) {
  std::vector<Index> keys;
  for (Index i = 0; i < n; ++i)
    keys.push_back(least +
                   static_cast<Index>(mix64(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(count)));
  return keys;
}

/// The same plan on both backends, with dropped picks, experts without items and an item without an expert.
template <class T>
struct Plans {
  SparsePlan<T, Naive> naive;
  SparsePlan<T, Cuda> cuda;

  Plans(Backends& on, Index items, Index experts, Index picks) {
    naive.resize(items, experts, picks);
    cuda.resize(items, experts, picks);
    const auto random = [](Index i, Index count) {
      return static_cast<Index>(mix64(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(count));
    };
    for (Index p = 0; p < picks; ++p) {
      naive.item(p) = random(p, items - 1);
      naive.expert(p) = 2 * random(p + 1000, (experts + 1) / 2);
      if (p % 6 == 1) naive.expert(p) = ~naive.expert(p);
      if (p % 11 == 4) naive.expert(p) = no_pick;
      naive.weight(p) = static_cast<T>(0.1 + 0.01 * static_cast<double>(p));
    }
    transfer(on.cuda, naive.item, cuda.item);
    transfer(on.cuda, naive.expert, cuda.expert);
    transfer(on.cuda, naive.weight, cuda.weight);
    naive.build(on.naive);
    cuda.build(on.cuda);
  }
  /// Returns the number of slots without those of dropped picks.
  Index used() const { return naive.offsets(naive.experts()); }
};

/// The results of combine for random slots, of the adjoint of combine, and of the adjoint of dispatch.
template <class T, class B>
struct Combined {
  Tensor<T, 2, B> out, dz, dx;
  Tensor<T, 1, B> dweight;

  template <class P>
  Combined(typename B::Context& ctx, const P& plan, const Tensor<T, 2, B>& z, const Tensor<T, 2, B>& dout)
      : out(constant_tensor<T>(ctx, 12345, dout.extent(0), dout.extent(1))),
        dz(z.extent(0), z.extent(1)),
        dx(constant_tensor<T>(ctx, 0.5, dout.extent(0), dout.extent(1))),
        dweight(plan.weight.size()) {
    const auto mark = ctx.mark();
    auto d = plan.grad(ctx);
    plan.combine(ctx, z, out);
    plan.combine_backward(ctx, z, dout, dz, d);
    plan.dispatch_backward(ctx, dout, z, dx, d);
    copy(ctx, View<const T, 1, B>(d.weight), dweight.view());
  }
};

}  // namespace

TEST_CASE("group_by: matches the naive backend for random keys") {
  expect_same_groups(random_keys(300, 0, 7), 7);
  expect_same_groups(random_keys(300, 0, 64), 64);
  expect_same_groups(random_keys(200, 0, 1000), 1000);
}
TEST_CASE("group_by: skips negative keys and keys past the last group") {
  expect_same_groups(random_keys(300, -4, 13), 5);
  expect_same_groups({-1, -2, std::numeric_limits<Index>::min(), 7, std::numeric_limits<Index>::max()}, 7);
  expect_same_groups({Index(1) << 32, (Index(1) << 32) + 1, 1, 0}, 2);
  expect_same_groups({-1, -1, -1}, 3);
}
TEST_CASE("group_by: accepts no or one key, no or one group") {
  expect_same_groups({}, 4);
  expect_same_groups({3}, 4);
  expect_same_groups(random_keys(100, 0, 1), 1);
  expect_same_groups(random_keys(40, 0, 3), 0);
  expect_same_groups({}, 0);
}
TEST_CASE("group_by: accepts all keys in one of many groups") {
  expect_same_groups(std::vector<Index>(500, 3), 9);
  expect_same_groups(std::vector<Index>(500, 8), 9);
}
TEST_CASE("group_by: is stable if keys fill many tiles") { expect_same_groups(random_keys(9000, -1, 40), 38); }
TEST_CASE("group_by: without offsets has no effect") {
  Cuda::Context ctx;
  Tensor<Index, 1, Cuda> keys(3), offsets, order(3);
  CHECK_NOTHROW(Cuda::group_by(ctx, std::as_const(keys).view(), offsets.view(), order.view()));
}
TEST_CASE("group_by: sizes beyond 32 bits throw before any write") {
  Cuda::Context ctx;
  Index* const nowhere = nullptr;
  const Index many = Index(1) << 31;
  const View<Index, 1, Cuda> order(nowhere, many), offsets(nowhere, 3);
  CHECK_THROWS_AS(Cuda::group_by(ctx, order, offsets, order), ArgumentError);
  CHECK_THROWS_AS(Cuda::group_by(ctx, order.rows(0, 1), order, order), ArgumentError);
}

TEST_CASE_TEMPLATE("SparsePlan: order, combine and both adjoints match naive backend", T, double, float) {
  Backends on;
  for (const Index columns : {1, 7, 45, 132}) {
    CAPTURE(columns);
    const Index items = 20, experts = 9, picks = 63;
    const Plans<T> plan(on, items, experts, picks);
    CHECK(plan.used() < picks);
    expect_same(on, "plan", plan.naive, plan.cuda, {});
    const auto z = random_tensor<T>(on, {1}, 1, picks, columns), dout = random_tensor<T>(on, {2}, 1, items, columns);
    const Combined<T, Naive> naive(on.naive, plan.naive, z, dout);
    const Combined<T, Cuda> cuda(on.cuda, plan.cuda, on_cuda<Tensor<T, 2, Cuda>>(on, z),
                                 on_cuda<Tensor<T, 2, Cuda>>(on, dout));
    expect_same(on, "out", naive.out, cuda.out, {});
    expect_same(on, "dz", naive.dz, cuda.dz, {.slots = picks, .used = plan.used()});
    expect_same(on, "dweight", naive.dweight, cuda.dweight, {});
    expect_same(on, "dx", naive.dx, cuda.dx, {});
  }
}
TEST_CASE_TEMPLATE("SparsePlan: a fused step has the bits of separate steps", T, double, float) {
  Backends on;
  const Index items = 20, experts = 9, picks = 63;
  const Plans<T> plan(on, items, experts, picks);
  for (const Index columns : {1, 7, 45, 132}) {
    CAPTURE(columns);
    const auto z = on_cuda<Tensor<T, 2, Cuda>>(on, random_tensor<T>(on, {1}, 1, picks, columns));
    const auto x = on_cuda<Tensor<T, 2, Cuda>>(on, random_tensor<T>(on, {2}, 1, items, columns));
    Tensor<T, 2, Cuda> out(items, columns), before(items, columns), after(items, columns);
    const auto values = [&](bool at_the_end) {
      for (auto* t : {&before, &after}) fill(on.cuda, t->view(), T(0.5));
      fill(on.cuda, out.view(), T(12345));
      // Sets before += 2 out, then out += 3 x, then after += out
      const functor::InTurn step{functor::InTurn{functor::AddScaled<T>{T(2), out.data(), before.data()},
                                                 functor::AddScaled<T>{T(3), x.data(), out.data()}},
                                 functor::AddScaled<T>{T(1), out.data(), after.data()}};
      if (at_the_end) {
        plan.cuda.combine(on.cuda, z, out, step);
      } else {
        plan.cuda.combine(on.cuda, z, out);
        run_step(on.cuda, out.view(), step);
      }
      std::vector<std::vector<T>> all;
      for (auto* t : {&out, &before, &after}) all.push_back(metric::to_vector(on.cuda, t->view()));
      return all;
    };
    const auto afterwards = values(false);
    CHECK(values(true) == afterwards);
    CHECK(afterwards[0] != afterwards[1]);
    CHECK(afterwards[1] != std::vector<T>(afterwards[1].size(), T(0.5)));
  }
}
TEST_CASE_TEMPLATE("SparsePlan: an item's bits do not depend on other items", T, double, float) {
  Backends on;
  const Index few = 20, many = 8 * 4 * on.cuda.multiprocessors() + 3, each = 11;
  for (const Index columns : {5, 70, 200, 260}) {
    CAPTURE(columns);
    CHECK((detail_::device::warps_of_row(few, columns / 4, on.cuda.multiprocessors()) > 1) == (columns >= 256));
    CHECK(detail_::device::warps_of_row(many, columns / 4, on.cuda.multiprocessors()) == 1);
    const auto combined = [&](Index items, bool with_step) {
      // Item n has n % each slots, one for each of the experts 0, 1, …
      SparsePlan<T, Naive> plan;
      Index picks = 0;
      for (Index n = 0; n < items; ++n) picks += n % each;
      plan.resize(items, each, picks);
      for (Index n = 0, p = 0; n < items; ++n)
        for (Index e = 0; e < n % each; ++e, ++p)
          plan.item(p) = n, plan.expert(p) = e, plan.weight(p) = T(0.3) + T(n % 7) / 8 - T(e) / 16;
      plan.build(on.naive);
      SparsePlan<T, Cuda> on_device;
      on_device.resize(items, each, picks);
      transfer(on.cuda, plan.item, on_device.item);
      transfer(on.cuda, plan.expert, on_device.expert);
      transfer(on.cuda, plan.weight, on_device.weight);
      on_device.build(on.cuda);
      // Rows with the same item and expert get the same values, whatever their slot.
      Tensor<T, 2, Naive> z(picks, columns), expected(items, columns), out;
      const auto value = [&](Index n, Index e, Index j) { return T((n * 31 + e * 17 + j * 7) % 101 - 50) / 64; };
      for (Index s = 0; s < picks; ++s)
        for (Index j = 0; j < columns; ++j) z(s, j) = value(plan.item(plan.pick(s)), plan.expert(plan.pick(s)), j);
      for (Index n = 0; n < items; ++n)
        for (Index j = 0; j < columns; ++j) {
          double sum = with_step ? 2 : 0;
          for (Index e = 0; e < n % each; ++e)
            sum += double(T(0.3) + T(n % 7) / 8 - T(e) / 16) * double(value(n, e, j));
          expected(n, j) = T(sum);
        }
      Tensor<T, 2, Cuda> device_out(items, columns), two(items, columns);
      fill(on.cuda, device_out.view(), T(12345));
      fill(on.cuda, two.view(), T(2));
      const auto device_z = on_cuda<Tensor<T, 2, Cuda>>(on, z);
      if (with_step) {
        on_device.combine(on.cuda, device_z, device_out, functor::AddScaled<T>{T(1), two.data(), device_out.data()});
      } else {
        on_device.combine(on.cuda, device_z, device_out);
      }
      transfer(on.cuda, device_out, out);
      const double epsilon = std::numeric_limits<T>::epsilon();
      int wrong = 0;
      for (Index n = 0; n < items; ++n)
        for (Index j = 0; j < columns; ++j)
          wrong += !(std::abs(double(out(n, j)) - double(expected(n, j))) <= 30 * epsilon);
      CHECK(wrong == 0);
      const auto all = metric::to_vector(on.cuda, device_out.view());
      return std::vector<T>(all.begin(), all.begin() + few * columns);
    };
    for (const bool with_step : {false, true}) CHECK(combined(few, with_step) == combined(many, with_step));
  }
}
TEST_CASE("SparsePlan: bfloat16 slots combine exactly, also with a step") {
  Backends on;
  const Index items = 20, experts = 9, picks = 63;
  const Plans<float> plan(on, items, experts, picks);
  for (const Index columns : {1, 7, 12, 130, 264}) {
    CAPTURE(columns);
    Tensor<float, 2, Naive> z = random_tensor<float>(on, {1}, 1, picks, columns);
    std::vector<Bfloat16> halves;
    for (Index i = 0; i < z.size(); ++i) {
      halves.push_back(Bfloat16::from(z.data()[i]));
      z.data()[i] = float(halves.back());
    }
    const auto values = on_cuda<Tensor<float, 2, Cuda>>(on, z);
    Tensor<Bfloat16, 2, Cuda> stored(picks, columns);
    Cuda::from_host(on.cuda, stored.size(), halves.data(), stored.data());
    const auto x = on_cuda<Tensor<float, 2, Cuda>>(on, random_tensor<float>(on, {2}, 1, items, columns));
    const auto combined = [&]<class Z>(const Tensor<Z, 2, Cuda>& from, bool with_step) {
      Tensor<float, 2, Cuda> out(items, columns);
      fill(on.cuda, out.view(), 12345.f);
      if (with_step) {
        plan.cuda.combine<Z>(on.cuda, from, out, functor::AddScaled<float>{3.f, x.data(), out.data()});
      } else {
        plan.cuda.combine<Z>(on.cuda, from, out);
      }
      return metric::to_vector(on.cuda, out.view());
    };
    for (const bool with_step : {false, true}) CHECK(combined(stored, with_step) == combined(values, with_step));
  }
}
TEST_CASE("SparsePlan: an item is the weighted sum of its slots") {
  Backends on;
  const Index items = 20, experts = 9, picks = 63, columns = 5;
  const Plans<double> plan(on, items, experts, picks);
  const auto z = random_tensor<double>(on, {1}, 1, picks, columns);
  Tensor<double, 2, Cuda> device_out(items, columns);
  plan.cuda.combine(on.cuda, on_cuda<Tensor<double, 2, Cuda>>(on, z), device_out);
  Tensor<double, 2, Naive> out;
  transfer(on.cuda, device_out, out);
  for (Index n = 0; n < items; ++n)
    for (Index j = 0; j < columns; ++j) {
      // The slot of a pick is the number of kept picks with a lower expert, or with the same expert and an earlier
      // place.
      double sum = 0;
      for (Index p = 0; p < picks; ++p) {
        if (plan.naive.item(p) != n || plan.naive.expert(p) < 0) continue;
        Index slot = 0;
        for (Index other = 0; other < picks; ++other) {
          const Index e = plan.naive.expert(other), own = plan.naive.expert(p);
          slot += e >= 0 && (e < own || (e == own && other < p));
        }
        sum += plan.naive.weight(p) * z(slot, j);
      }
      CHECK(out(n, j) == doctest::Approx(sum).epsilon(1e-13));
    }
  CHECK(out(items - 1, 0) == 0);
}

TEST_CASE_TEMPLATE("mixtures: dropping, sequence and soft-slot plans match naive backend", G, VMoe, SoftmaxExpertChoice,
                   SoftMoe) {
  Backends on;
  const Mixture layer{with_experts(G{}, 5), Linear{.model_dim = 6}};
  expect_same_layer<double>(on, layer, {.items = 30});
  expect_same_layer<double>(on, layer, {.items = 30, .length = 10, .padding = true});
}
TEST_CASE_TEMPLATE("mixtures: no item and one item match naive backend", G, SoftmaxExpertChoice, SoftMoe) {
  Backends on;
  const Mixture layer{with_experts(G{}, 5), Linear{.model_dim = 6}};
  expect_same_layer<double>(on, layer, {.items = 0, .expected = {.zeros = {"grads"}}});
  expect_same_layer<double>(on, layer, {.items = 1});
}
