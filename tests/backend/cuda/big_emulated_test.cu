// Arrays of more than 2^31 elements. Only the last blocks of each launch run, on reserved addresses that have memory
// only where it is used.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "gatefold/backend/cuda/cuda.cuh"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/mixing/independent.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/routing/sparse_plan.hpp"

using namespace gatefold;

namespace {

constexpr Index kMany = (Index(1) << 31) + 5;

/// A reserved array whose elements read as 0 and cost memory only where they are used. Device addresses are host
/// addresses here.
template <class T>
struct Reserved {
  explicit Reserved(Index n)
      : data(static_cast<T*>(cuda_emulator::Memory::device().reserve(static_cast<std::size_t>(n) * sizeof(T)))),
        size(n) {}
  Reserved(const Reserved&) = delete;
  ~Reserved() { cuda_emulator::Memory::device().release(data); }
  T& back(Index i) const { return data[size - i]; }  // back(1) is the last one
  T* data;
  Index size;
};

struct LastBlocks {
  explicit LastBlocks(std::uint64_t blocks) { cuda_emulator::options().last_blocks = blocks; }
  ~LastBlocks() { cuda_emulator::options().last_blocks = 0; }
};

struct MarkRow {
  float* x;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    if (lanes.lane == 31) x[row] = static_cast<float>(row % 1000);
  }
};
struct MarkIndex {
  float* x;
  GATEFOLD_HD void operator()(Index i) const { x[i] = static_cast<float>(i % 1000); }
};

struct Remainder {
  __device__ float operator()(Index i) const { return static_cast<float>(i % 1000); }
};

/// A view of reserved memory.
template <class T, class... I>
auto view(const Reserved<T>& of, I... extents) {
  return View<T, sizeof...(I), Cuda>(of.data, extents...);
}

void set_offsets(Reserved<Index>& offsets, const std::vector<Index>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) offsets.data[i] = values[i];
}

}  // namespace

TEST_CASE("for_each, fill and for_rows: reach elements beyond 2^31") {
  Cuda::Context ctx;
  const Reserved<float> x(kMany);
  const LastBlocks last(1);
  Cuda::for_each(ctx, kMany, MarkIndex{x.data});
  for (Index i = 1; i <= 5; ++i) CHECK(x.back(i) == static_cast<float>((kMany - i) % 1000));
  fill(ctx, View<float, 1, Cuda>(x.data, kMany), 7);
  CHECK(x.back(1) == 7);
  CHECK(x.back(5) == 7);
  Cuda::for_rows(ctx, kMany, MarkRow{x.data});
  for (Index i = 1; i <= 5; ++i) CHECK(x.back(i) == static_cast<float>((kMany - i) % 1000));
}

TEST_CASE("packed weights: elements beyond 2^31 are rounded") {
  Cuda::Context ctx;
  constexpr Index columns = 8, rows = kMany / columns;
  const Reserved<float> w(rows * columns);
  const Reserved<Bfloat16> rounded(rows * columns);
  w.back(1) = 1.5f;
  const LastBlocks last(1);
  detail_::device::round_rows(ctx.stream(), rows, columns, w.data, rounded.data);
  CHECK(rounded.back(1).bits == 0x3fc0);
  CHECK(rounded.back(2).bits == 0);
}

TEST_CASE("products and gradients: compute elements beyond 2^31") {
  Cuda::Context ctx;
  const Index slots = (Index(1) << 29) + 3, depth = 4, columns = 8;  // c has over 2^32 elements, a has over 2^31
  const Reserved<float> a(slots * depth), w(2 * depth * columns), c(slots * columns);
  Reserved<Index> offsets(3);
  set_offsets(offsets, {0, 2, slots});
  for (Index i = 1; i <= depth; ++i) a.back(i) = static_cast<float>(i);
  for (Index i = 1; i <= depth * columns; ++i) w.back(i) = static_cast<float>(i);
  const Groups<Cuda> groups{View<const Index, 1, Cuda>(offsets.data, 3), {}, slots};
  const View<const float, 2, Cuda> a_view(a.data, slots, depth), c_view(c.data, slots, columns);
  {
    const LastBlocks last(3);  // some of them compute tiles past the last row
    Cuda::grouped_gemm(ctx, groups, a_view, View<const float, 3, Cuda>(w.data, 2, depth, columns), false,
                       View<float, 2, Cuda>(c.data, slots, columns), functor::Store{});
  }
  // The last row is Σ_k a[k] w[k, j], with a and w counted from the end.
  for (Index j = 1; j <= columns; ++j) {
    float sum = 0;
    for (Index k = 1; k <= depth; ++k) sum += static_cast<float>(k * (j + (k - 1) * columns));
    CHECK(c.back(j) == sum);
    CHECK(c.back(j + columns) == 0);
  }

  // The last two slots belong to another expert than the others.
  set_offsets(offsets, {0, slots - 2, slots});
  const Reserved<float> db(2 * columns);
  const LastBlocks last(1);
  Cuda::grouped_sum(ctx, groups, c_view, View<float, 2, Cuda>(db.data, 2, columns));
  for (Index j = 1; j <= columns; ++j) CHECK(db.back(j) == c.back(j));
  const Reserved<float> dw(2 * depth * columns);
  Cuda::grouped_outer(ctx, groups, a_view, c_view, View<float, 3, Cuda>(dw.data, 2, depth, columns));
  for (Index i = 1; i <= depth; ++i)
    for (Index j = 1; j <= columns; ++j) CHECK(dw.back((i - 1) * columns + j) == static_cast<float>(i) * c.back(j));
}

TEST_CASE("weights and their gradients: can have more than 2^31 elements") {
  Cuda::Context ctx;
  const Index experts = 3, depth = 4000, columns = 200000;
  const Reserved<float> dw(experts * depth * columns), a(depth), dc(columns);
  Reserved<Index> offsets(4);
  set_offsets(offsets, {0, 0, 0, 1});
  const Groups<Cuda> groups{View<const Index, 1, Cuda>(offsets.data, 4), {}, 1};
  a.back(1) = 3;
  dc.back(1) = 5;
  dc.back(2) = 7;
  const LastBlocks last(1);
  Cuda::grouped_outer(ctx, groups, View<const float, 2, Cuda>(a.data, 1, depth),
                      View<const float, 2, Cuda>(dc.data, 1, columns),
                      View<float, 3, Cuda>(dw.data, experts, depth, columns));
  CHECK(dw.back(1) == 15);
  CHECK(dw.back(2) == 21);
  CHECK(dw.back(3) == 0);

  // The weights have as many elements as the gradient. Checks the last columns of the result, which are sums over the
  // whole depth.
  const Reserved<float> c(columns);
  Cuda::grouped_gemm(ctx, groups, View<const float, 2, Cuda>(a.data, 1, depth),
                     View<const float, 3, Cuda>(dw.data, experts, depth, columns), false,
                     View<float, 2, Cuda>(c.data, 1, columns), functor::Store{});
  CHECK(c.back(1) == 45);
  CHECK(c.back(2) == 63);
  CHECK(c.back(3) == 0);
}

TEST_CASE("reduce: sums the last block of more than 2^31 terms") {
  Cuda::Context ctx;
  const Index blocks = detail_::device::blocks(kMany, detail_::device::kSumBlock);
  const Reserved<float> partial(blocks);
  const LastBlocks last(1);
  detail_::device::partial_sums_kernel<float>
      <<<detail_::device::grid(blocks), detail_::device::kThreads, 0, ctx.stream()>>>(kMany, Remainder{}, partial.data);
  float sum = 0;
  for (Index i = (blocks - 1) * detail_::device::kSumBlock; i < kMany; ++i) sum += static_cast<float>(i % 1000);
  CHECK(partial.back(1) == sum);
}

TEST_CASE("gates: route correctly with more than 2^31 picks") {
  Cuda::Context ctx;
  constexpr Index items = (Index(1) << 30) + 3, dim = 4, experts = 5, k = 2;
  const Reserved<float> x(items * dim), w(dim * experts), weight(items * k);
  const Reserved<float> logits(items * experts), q(items * experts);
  const Reserved<Index> item(items * k), expert(items * k);
  // z = x w. The last item is (0, 0, 0, 2), so its logits are twice the last row of w.
  x.back(1) = 2;
  const float row[experts] = {0.5f, -1, 2, 0.25f, 1};
  for (Index e = 0; e < experts; ++e) w.back(experts - e) = row[e];
  const auto z = view(logits, items, experts);
  const View<const float, 2, Cuda> ranked = z;
  const functor::PickTopK<float, Cuda> pick{ranked,
                                            view(q, items, experts),
                                            k,
                                            true,
                                            view(item, items * k),
                                            view(expert, items * k),
                                            view(weight, items * k)};
  const functor::Softmax<float, Cuda> softmax{ranked, view(q, items, experts)};
  const View<const float, 2, Cuda> x_view = view(x, items, dim), w_view = view(w, dim, experts);
  {
    const LastBlocks last(1);
    Cuda::gemm_rows(ctx, x_view, w_view, false, z, functor::Store{},
                    functor::RouteRowAnywhere{softmax, pick, view(q, items, experts)});
  }
  double total = 0;
  for (const float v : row) total += std::exp(2.0 * v);
  for (Index e = 0; e < experts; ++e) {
    CHECK(logits.back(experts - e) == 2 * row[e]);
    CHECK(q.back(experts - e) == doctest::Approx(std::exp(2.0 * row[e]) / total).epsilon(1e-6));
  }
  const double first = std::exp(4.0), second = std::exp(2.0);  // of experts 2 and 4
  CHECK(item.back(2) == items - 1);
  CHECK(item.back(1) == items - 1);
  CHECK(expert.back(2) == 2);
  CHECK(expert.back(1) == 4);
  CHECK(weight.back(2) == doctest::Approx(first / (first + second)).epsilon(1e-6));
  CHECK(weight.back(1) == doctest::Approx(second / (first + second)).epsilon(1e-6));
  CHECK(expert.back(3) == 1);  // ties go to the lower expert
  CHECK(expert.back(4) == 0);
}

TEST_CASE("combine: reaches slots and items beyond 2^31 values") {
  Cuda::Context ctx;
  constexpr Index items = (Index(1) << 29) + 3, slots = items + 1, columns = 4;
  const Reserved<Index> item_offsets(items + 1), item_slots(slots), pick(slots);
  const Reserved<float> weight(slots), z(slots * columns), out(items * columns);
  // The last item has the last two slots; the other items of its block have none.
  item_offsets.back(1) = slots;
  for (Index i = 2; i <= 1 + detail_::device::kRows; ++i) item_offsets.back(i) = slots - 2;
  item_slots.back(1) = slots - 1;
  item_slots.back(2) = slots - 2;
  pick.back(1) = slots - 2;  // the order of picks is not that of slots
  pick.back(2) = slots - 1;
  weight.back(1) = 0.5f;
  weight.back(2) = 4;
  for (Index j = 1; j <= 2 * columns; ++j) z.back(j) = static_cast<float>(j);
  const LastBlocks last(1);
  Cuda::for_rows(
      ctx, items,
      functor::Combine<float, Cuda>{view(item_offsets, items + 1), view(item_slots, slots), view(pick, slots),
                                    view(weight, slots), view(z, slots, columns), view(out, items, columns), false});
  for (Index j = 1; j <= columns; ++j) {
    CHECK(out.back(j) == 4 * static_cast<float>(j) + 0.5f * static_cast<float>(columns + j));
    CHECK(out.back(columns + j) == 0);
  }
}
