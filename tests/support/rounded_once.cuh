#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/bf16_product.cuh"

/// Checks rows that are rounded once for several products.
namespace gatefold::test {

/// Two products that read the same rows, which are rounded once. The rounded rows are in scratch memory or in `room`.
struct TwoReaders {
  ProductCase c;
  OnDevice on;
  BothGroups groups{on.memory, c};
  DeviceArray<float> a{on.memory, random_vector<float>(c.items() * c.depth, 1)},
      w{on.memory, random_vector<float>(c.experts() * c.depth * c.columns, 2)},
      d{on.memory, random_vector<float>(c.slots() * c.columns, 3)},
      sums{on.memory, std::vector<float>(static_cast<std::size_t>(c.slots() * c.columns), -77)},
      gradient{on.memory, std::vector<float>(static_cast<std::size_t>(c.experts() * c.depth * c.columns))};

  explicit TwoReaders(ProductCase of) : c(std::move(of)) {}
  View<const float, 2, CudaBf16> rows() { return of_bf16(a.in(c.items(), c.depth)); }
  std::vector<float> run() {
    const Groups<CudaBf16> g = on.groups(groups);
    CudaBf16::grouped_gemm(on.ctx, g, rows(), of_bf16(w.in(c.experts(), c.depth, c.columns)), false,
                           {sums.data(), c.slots(), c.columns}, functor::Store{});
    CudaBf16::grouped_outer(on.ctx, g, rows(), of_bf16(d.in(c.slots(), c.columns)),
                            {gradient.data(), c.experts(), c.depth, c.columns}, false);
    on.ctx.synchronize();
    auto all = sums.values();
    const auto more = gradient.values();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

/// Checks that grouped_pair with rows in slot order gives the same bits whether the result overwrites the input or not.
inline void check_pair_in_place(const ProductCase& c) {
  OnDevice on;
  REQUIRE(!c.gather);
  BothGroups groups(on.memory, c);
  DeviceArray<float> a(on.memory, random_vector<float>(c.items() * c.depth, 1)),
      up(on.memory, random_vector<float>(c.experts() * c.depth * c.columns, 2)),
      down(on.memory, random_vector<float>(c.experts() * c.columns * c.depth, 3)), elsewhere(on.memory, a.values());
  const auto run = [&](DeviceArray<float>& from, DeviceArray<float>& to) {
    CudaBf16::grouped_pair(on.ctx, on.groups(groups), of_bf16(from.in(c.items(), c.depth)),
                           std::array{of_bf16(up.in(c.experts(), c.depth, c.columns))}, functor::Store{},
                           of_bf16(down.in(c.experts(), c.columns, c.depth)),
                           View<float, 2, CudaBf16>{to.data(), c.slots(), c.depth}, functor::Store{});
    on.ctx.synchronize();
    return to.values();
  };
  const auto expected = run(a, elsewhere);
  CHECK((expected != a.values()));
  CHECK((run(a, a) == expected));
}

/// Checks that two products read the rounded rows, in scratch memory or in `room`. Products that round the rows
/// themselves must give the same bits.
inline void check_rounded_once(const ProductCase& of) {
  TwoReaders two(of);
  const Index depth = of.depth;
  CAPTURE(two.c);
  const auto expected = two.run();
  const std::vector<float> ones(static_cast<std::size_t>(two.c.slots() * depth), 1.f);
  for (const Index room_rows : {Index(0), two.c.slots()}) {
    CAPTURE(room_rows);
    DeviceArray<float> room(two.on.memory, ones);
    two.on.ctx.synchronize();
    const auto taken = two.on.ctx.taken();
    {
      const auto mark = two.on.ctx.mark();
      const auto once = CudaBf16::rounded_once(two.on.ctx, two.on.groups(two.groups), two.rows(),
                                               View<float, 2, CudaBf16>{room.data(), room_rows, depth});
      // The rounded rows are stored in `room` if it has rows of whole units (8 floats) and the rounded rows are in slot
      // order: always on Hopper, otherwise only if no rows are gathered.
      const bool in_room = room_rows > 0 && depth % 8 == 0 && (!of.gather || two.on.ctx.has_hopper_code());
      CHECK((two.on.ctx.taken() == taken) == in_room);
      CHECK((two.run() == expected));
      // From now on the rows are 0, so that a product that rounds them again gives other results.
      const std::vector<float> other(two.a.values().size(), 0.f);
      Cuda::from_host(two.on.memory, static_cast<Index>(other.size()), other.data(), two.a.data());
      CHECK((two.run() == expected));
      for (Index s = 0; s < two.c.slots(); ++s) {
        const bool used = two.c.first <= s && s < two.c.slots() - two.c.more;
        if (!used) CHECK(room.values()[static_cast<std::size_t>(s * depth)] == 1.f);
      }
    }
    CHECK((two.run() != expected));
    const auto again = random_vector<float>(two.c.items() * depth, 1);
    Cuda::from_host(two.on.memory, static_cast<Index>(again.size()), again.data(), two.a.data());
  }
}

}  // namespace gatefold::test
