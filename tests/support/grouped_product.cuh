#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/device_array.cuh"
#include "support/quantised.hpp"

/// Compares grouped products on the device with their definition: for each element a chain of fused multiply-adds over
/// k, ascending from 0. Bits are compared unless a tolerance is given.
namespace gatefold::test {

/// The sizes and options of a product. If `gather` is true, its slots read some of items() stored rows. Otherwise each
/// slot has its own row.
struct ProductCase {
  std::vector<Index> counts;  // number of slots of each expert
  Index depth, columns;
  bool transpose = false, gather = false;
  // Elements before each operand in its allocation. The operand is aligned if this number is a multiple of 4.
  Index a_skip = 0, w_skip = 0;
  Index first = 0, more = 3;  // unused slots before those of the first expert, and after those of the last

  Index experts() const { return static_cast<Index>(counts.size()); }
  std::vector<Index> offsets() const {
    std::vector<Index> at{first};
    for (const Index count : counts) at.push_back(at.back() + count);
    return at;
  }
  Index slots() const { return offsets().back() + more; }
  Index items() const { return gather ? 29 : slots(); }
};

inline std::ostream& operator<<(std::ostream& stream, const ProductCase& c) {
  stream << "counts";
  for (const Index count : c.counts) stream << " " << count;
  return stream << "; depth " << c.depth << ", columns " << c.columns << (c.transpose ? ", transposed" : "")
                << (c.gather ? ", gathered" : "") << ", skips " << c.a_skip << " " << c.w_skip;
}

/// Returns a product with about `rounds` times as many tiles of the largest shape as the device computes at once, not
/// counting partial row tiles. If `rounds` is at least kManyRounds, each tile has its own block. Otherwise blocks share
/// some tiles.
template <class T, int Matrices>
ProductCase many_tiles(Cuda::Context& ctx, Index rounds, Index depth) {
  using Shape = detail_::device::ManyTiles<T, Matrices>;
  const Index at_once = detail_::device::blocks_at_once<Shape>(ctx.multiprocessors());
  // The first expert has one full row tile and a small one, the last expert two and a half. The choice of a shape
  // counts the three full row tiles.
  return {{Shape::rows + 2, 0, 5 * Shape::rows / 2}, depth, Shape::columns * (rounds * at_once / 3 + 2) - 4};
}
/// c = v + bias[e, j]. Also adds v to a second array, so that a test notices a second call for the same element.
template <class T>
struct BiasAndKeep {
  const T* bias;
  T* kept;
  Index columns;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    at.store(kept + s * columns + j, at.load(kept + s * columns + j) + v);
    return v + at.load(bias + e * columns + j);
  }
};

/// c = v − w. Also adds v and w to two further arrays, as BiasAndKeep does with v.
template <class T>
struct DifferenceAndKeep {
  T *first, *second;
  Index columns;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index s, Index j, typename A::Value v,
                                           typename A::Value w) const {
    at.store(first + s * columns + j, at.load(first + s * columns + j) + v);
    at.store(second + s * columns + j, at.load(second + s * columns + j) + w);
    return v - w;
  }
};

template <class T>
struct FillNan {
  T* x;
  GATEFOLD_HD void operator()(Index i) const { x[i] = T(0) / T(0); }
};

/// A host vector and its copy on the device.
template <class T>
struct Both {
  std::vector<T> host;
  DeviceArray<T> device;
  Both(Cuda::Context& ctx, std::vector<T> values, Index skip = 0) : host(std::move(values)), device(ctx, host, skip) {}
  std::string differs(double tolerance) { return difference(host, device.values(), tolerance); }
};

/// The slots of a case on host and device.
struct BothGroups {
  std::vector<Index> offsets, rows;
  DeviceArray<Index> device_offsets, device_rows;
  Index slots;

  BothGroups(Cuda::Context& ctx, const ProductCase& c)
      : offsets(c.offsets()),
        rows(c.gather ? random_integers(c.slots(), 0, c.items(), 4) : std::vector<Index>{}),
        device_offsets(ctx, offsets),
        device_rows(ctx, rows),
        slots(c.slots()) {}

  Index experts() const { return static_cast<Index>(offsets.size()) - 1; }
  Index row(Index s) const { return rows.empty() ? s : rows[static_cast<std::size_t>(s)]; }
  Groups<Cuda> on_device() {
    const auto gathered = device_rows.in(static_cast<Index>(rows.size()));
    return {device_offsets.in(experts() + 1), rows.empty() ? View<const Index, 1, Cuda>{} : gathered, slots};
  }
  template <class F>
  void each_slot(const F& f) const {
    for (Index e = 0; e < experts(); ++e)
      for (Index s = offsets[static_cast<std::size_t>(e)]; s < offsets[static_cast<std::size_t>(e) + 1]; ++s) f(e, s);
  }
};

/// Returns Σ_k a[k] w[k · step], with fused multiply-adds in ascending order of k, as in the products on the device.
template <class T>
T chain(Index depth, const T* a, const T* w, Index step) {
  T sum = 0;
  for (Index k = 0; k < depth; ++k) sum = std::fma(a[k], w[k * step], sum);
  return sum;
}
/// Returns Σ_k a[row, k] w[e, k, j] for weights [E, depth, columns], or Σ_k a[row, k] w[e, j, k] for transposed weights
/// [E, columns, depth].
template <class T>
T product_sum(const std::vector<T>& a, Index row, const std::vector<T>& w, Index e, Index j, Index depth, Index columns,
              bool transpose) {
  return transpose ? chain(depth, a.data() + row * depth, w.data() + (e * columns + j) * depth, 1)
                   : chain(depth, a.data() + row * depth, w.data() + e * depth * columns + j, columns);
}

/// The rounding of weights to 8 or 4 bits, as an argument of difference_of_pair.
struct ToForm {
  Weights form;
};
/// Rounds weights [E, rows, columns] by eq. (1) to (3) of core/weights.hpp, as plain loops.
inline void round_all(std::vector<float>& w, Index rows, Index columns, ToForm to) {
  const Index experts = static_cast<Index>(w.size()) / (rows * columns);
  for (Index e = 0; e < experts; ++e)
    for (Index j = 0; j < columns; ++j)
      for (Index k = 0; k < rows; k += 32) {
        const auto at = [&](Index row) { return static_cast<std::size_t>((e * rows + row) * columns + j); };
        const auto group = naive::quantised(to.form, naive::group_of(k, rows, [&](Index row) { return w[at(row)]; }));
        for (std::size_t i = 0; i < group.q.size(); ++i)
          w[at(k + static_cast<Index>(i))] = static_cast<float>(group.scale * group.q[i]);
      }
}
template <class T, class Round>
void round_all(std::vector<T>& w, Index, Index, const Round& round) {
  for (T& v : w) v = round(v);
}
template <class Round>
Weights form_of(const Round&) {
  return Weights::bfloat16;
}
inline Weights form_of(ToForm to) { return to.form; }

/// Writes NaN to the rows of `a` that no product may read: before the slots of the first expert, and after those of the
/// last. Does nothing if the rows are gathered.
template <class T>
void spoil_unused(std::vector<T>& a, const ProductCase& c) {
  if (c.gather) return;
  std::fill_n(a.begin(), c.first * c.depth, std::nan(""));
  std::fill(a.end() - c.more * c.depth, a.end(), std::nan(""));
}

/// Returns a view of weights: [experts, columns, depth] if `transpose` is true, [experts, depth, columns] if not.
template <class T>
View<const T, 3, Cuda> weights_view(DeviceArray<T>& w, Index experts, Index depth, Index columns, bool transpose) {
  return transpose ? w.in(experts, columns, depth) : w.in(experts, depth, columns);
}

/// Checks the product of a case with the epilogue BiasAndKeep.
/// @return  where a result differs from the definition, or an empty text
/// @param form  use packed weights of this form. Transposed products do not read packed weights of bfloat16
template <class T>
std::string difference_of_product(Cuda::Context& ctx, const ProductCase& c, double tolerance = 0,
                                  Weights form = Weights::unchanged) {
  BothGroups groups(ctx, c);
  auto a_values = random_vector<T>(c.items() * c.depth, 1);
  spoil_unused(a_values, c);
  Both<T> a(ctx, a_values, c.a_skip), w(ctx, random_vector<T>(c.experts() * c.depth * c.columns, 2), c.w_skip),
      bias(ctx, random_vector<T>(c.experts() * c.columns, 3));
  const std::size_t size = static_cast<std::size_t>(c.slots() * c.columns);
  Both<T> out(ctx, std::vector<T>(size, -77)), kept(ctx, std::vector<T>(size, 0));

  const auto weights = weights_view(w.device, c.experts(), c.depth, c.columns, c.transpose);
  Cuda::PackedWeights packed_weights;
  Cuda::pack(ctx, weights, form, packed_weights);
  const auto used = ctx.use(packed_weights);
  if constexpr (std::is_same_v<T, float>)
    if (is_quantised(form)) round_all(w.host, weights.extent(1), weights.extent(2), ToForm{form});
  Cuda::grouped_gemm(ctx, groups.on_device(), a.device.in(c.items(), c.depth), weights, c.transpose,
                     out.device.as(c.slots(), c.columns),
                     BiasAndKeep<T>{bias.device.data(), kept.device.data(), c.columns});
  const BiasAndKeep<T> epilogue{bias.host.data(), kept.host.data(), c.columns};
  groups.each_slot([&](Index e, Index s) {
    for (Index j = 0; j < c.columns; ++j)
      out.host[static_cast<std::size_t>(s * c.columns + j)] = epilogue(
          OneElement<T>{}, e, s, j, product_sum(a.host, groups.row(s), w.host, e, j, c.depth, c.columns, c.transpose));
  });
  if (const std::string at = out.differs(tolerance); !at.empty()) return "c" + at;
  if (const std::string at = kept.differs(tolerance); !at.empty()) return "the sums' own output" + at;
  return {};
}

/// Checks grouped_pair: a product with M (1 or 2) matrices and a result of `c.columns` columns, then a product with a
/// result of `last` columns. The weights are not transposed, even if c.transpose is true.
/// @param packed  number of weights that are packed, from the first; a product reads them if all its weights are packed
/// @param round   the rounding that packing applies: a function that rounds one weight to bfloat16, or ToForm
template <class T, std::size_t M, class Round>
std::string difference_of_pair(Cuda::Context& ctx, const ProductCase& c, Index last, std::size_t packed,
                               const Round& round, double tolerance = 0) {
  BothGroups groups(ctx, c);
  auto a_values = random_vector<T>(c.items() * c.depth, 1);
  spoil_unused(a_values, c);
  Both<T> a(ctx, a_values, c.a_skip), bias(ctx, random_vector<T>(c.experts() * c.columns, 3)),
      last_bias(ctx, random_vector<T>(c.experts() * last, 4));
  std::vector<std::unique_ptr<Both<T>>> weights;  // the M weights of the first product, then the weight of the second
  for (std::size_t m = 0; m <= M; ++m)
    weights.push_back(std::make_unique<Both<T>>(
        ctx, random_vector<T>(c.experts() * c.columns * (m < M ? c.depth : last), 5 + m), c.w_skip));
  const std::size_t middle_size = static_cast<std::size_t>(c.slots() * c.columns);
  const std::size_t size = static_cast<std::size_t>(c.slots() * last);
  Both<T> first(ctx, std::vector<T>(middle_size)), second(ctx, std::vector<T>(middle_size)),
      kept(ctx, std::vector<T>(size)), out(ctx, std::vector<T>(size, -77));

  std::array<View<const T, 3, Cuda>, M> up;
  for (std::size_t m = 0; m < M; ++m) up[m] = weights[m]->device.in(c.experts(), c.depth, c.columns);
  const View<const T, 3, Cuda> down = weights[M]->device.in(c.experts(), c.columns, last);
  Cuda::PackedWeights packed_weights;
  for (std::size_t m = 0; m < packed; ++m) Cuda::pack(ctx, m < M ? up[m] : down, form_of(round), packed_weights);
  const auto used = ctx.use(packed_weights);
  const auto middle_of = [&](T* bias_data, T* first_data, T* second_data) {
    if constexpr (M == 1) {
      return BiasAndKeep<T>{bias_data, first_data, c.columns};
    } else {
      return DifferenceAndKeep<T>{first_data, second_data, c.columns};
    }
  };
  Cuda::grouped_pair(ctx, groups.on_device(), a.device.in(c.items(), c.depth), up,
                     middle_of(bias.device.data(), first.device.data(), second.device.data()), down,
                     out.device.as(c.slots(), last), BiasAndKeep<T>{last_bias.device.data(), kept.device.data(), last});

  for (std::size_t m = 0; m <= M; ++m)
    if (packed >= M && (m < M || packed > M))
      round_all(weights[m]->host, m < M ? c.depth : c.columns, m < M ? c.columns : last, round);
  const auto middle = middle_of(bias.host.data(), first.host.data(), second.host.data());
  const BiasAndKeep<T> end{last_bias.host.data(), kept.host.data(), last};
  std::vector<T> hidden(middle_size);
  groups.each_slot([&](Index e, Index s) {
    for (Index j = 0; j < c.columns; ++j) {
      const auto sum = [&](std::size_t m) {
        return product_sum(a.host, groups.row(s), weights[m]->host, e, j, c.depth, c.columns, false);
      };
      T& to = hidden[static_cast<std::size_t>(s * c.columns + j)];
      if constexpr (M == 1) {
        to = middle(OneElement<T>{}, e, s, j, sum(0));
      } else {
        to = middle(OneElement<T>{}, e, s, j, sum(0), sum(1));
      }
    }
    for (Index j = 0; j < last; ++j)
      out.host[static_cast<std::size_t>(s * last + j)] =
          end(OneElement<T>{}, e, s, j, product_sum(hidden, s, weights[M]->host, e, j, c.columns, last, false));
  });
  for (auto& [name, part] : {std::pair("c", &out), std::pair("the first sums", &first),
                             std::pair("the second sums", &second), std::pair("the last sums", &kept)})
    if (const std::string at = part->differs(tolerance); !at.empty()) return name + at;
  return {};
}
template <class T, std::size_t M>
std::string difference_of_pair(Cuda::Context& ctx, const ProductCase& c, Index last, double tolerance = 0) {
  return difference_of_pair<T, M>(
      ctx, c, last, 0, [](T v) { return v; }, tolerance);
}

/// Adds terms in interleaved chains. Then adds the second half of the chains to the first half until one chain remains.
/// The number of chains is 256 (threads) divided by the smallest power of two that is at least `columns`, at most 32.
template <class T>
T sum_in_chains(const std::vector<T>& terms, Index columns) {
  std::size_t width = 1;
  while (width < 32 && width < static_cast<std::size_t>(columns)) width *= 2;
  std::vector<T> chains(256 / width);
  for (std::size_t i = 0; i < terms.size(); ++i) chains[i % chains.size()] += terms[i];
  for (std::size_t half = chains.size() / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) chains[i] += chains[i + half];
  return chains[0];
}
/// Adds up every 256 terms with sum_in_chains, then adds up these sums with sum_in_chains.
template <class T>
T sum_in_two_levels(const std::vector<T>& terms, Index columns) {
  std::vector<T> sums;
  for (std::size_t first = 0; first < terms.size(); first += 256) {
    const auto begin = terms.begin() + static_cast<std::ptrdiff_t>(first);
    sums.push_back(sum_in_chains(
        std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(256, terms.size() - first))),
        columns));
  }
  return sum_in_chains(sums, columns);
}

/// Checks dw[e] += Σ_s a[row(s)]ᵀ dc[s] and db[e] += Σ_s dc[s]; `depth` is the number of columns of a. If `accumulate`
/// is false, dw and db are NaN before. If `scattered` is true, slot s reads another row of dc, and has a weight in db.
template <class T>
std::string difference_of_gradients(Cuda::Context& ctx, const ProductCase& c, double tolerance = 0,
                                    bool accumulate = true, bool scattered = false) {
  BothGroups groups(ctx, c);
  auto a_values = random_vector<T>(c.items() * c.depth, 1), dc_values = random_vector<T>(c.slots() * c.columns, 2);
  spoil_unused(a_values, c);
  std::fill_n(dc_values.begin(), c.first * c.columns, std::nan(""));
  std::fill(dc_values.end() - c.more * c.columns, dc_values.end(), std::nan(""));
  // The used slots read the rows of dc in reverse order.
  const Index in_use = c.slots() - c.first - c.more;
  std::vector<Index> dc_rows(static_cast<std::size_t>(scattered ? c.slots() : 0), -1);
  for (Index s = 0; scattered && s < in_use; ++s)
    dc_rows[static_cast<std::size_t>(c.first + s)] = c.first + in_use - 1 - s;
  const auto weight = random_vector<T>(scattered ? c.slots() : 0, 5);
  DeviceArray<Index> dc_rows_on_device(ctx, dc_rows);
  DeviceArray<T> weight_on_device(ctx, weight);
  Both<T> a(ctx, a_values, c.a_skip), dc(ctx, dc_values, c.w_skip),
      dw(ctx, random_vector<T>(c.experts() * c.depth * c.columns, 3)),
      db(ctx, random_vector<T>(c.experts() * c.columns, 4));
  if (!accumulate) {
    Cuda::for_each(ctx, static_cast<Index>(dw.host.size()), FillNan<T>{dw.device.data()});
    Cuda::for_each(ctx, static_cast<Index>(db.host.size()), FillNan<T>{db.device.data()});
    std::fill(dw.host.begin(), dw.host.end(), T(0));
    std::fill(db.host.begin(), db.host.end(), T(0));
  }
  const auto dc_view = dc.device.in(c.slots(), c.columns);
  Cuda::grouped_outer(ctx, groups.on_device(), a.device.in(c.items(), c.depth), dc_view,
                      dw.device.as(c.experts(), c.depth, c.columns), accumulate,
                      scattered ? dc_rows_on_device.in(c.slots()) : View<const Index, 1, Cuda>{});
  Cuda::grouped_sum(ctx, groups.on_device(), dc_view, db.device.as(c.experts(), c.columns), accumulate,
                    scattered ? dc_rows_on_device.in(c.slots()) : View<const Index, 1, Cuda>{},
                    scattered ? weight_on_device.in(c.slots()) : View<const T, 1, Cuda>{});

  std::vector<T> sums(dw.host.size());
  std::vector<std::vector<T>> terms(db.host.size());
  groups.each_slot([&](Index e, Index s) {
    for (Index j = 0; j < c.columns; ++j) {
      const Index row = scattered ? dc_rows[static_cast<std::size_t>(s)] : s;
      const T d = dc.host[static_cast<std::size_t>(row * c.columns + j)];
      terms[static_cast<std::size_t>(e * c.columns + j)].push_back(scattered ? weight[static_cast<std::size_t>(s)] * d
                                                                             : d);
      for (Index i = 0; i < c.depth; ++i) {
        T& sum = sums[static_cast<std::size_t>((e * c.depth + i) * c.columns + j)];
        sum = std::fma(a.host[static_cast<std::size_t>(groups.row(s) * c.depth + i)], d, sum);
      }
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (c.counts[i / static_cast<std::size_t>(c.depth * c.columns)] > 0) dw.host[i] += sums[i];
  for (std::size_t j = 0; j < terms.size(); ++j)
    if (!terms[j].empty()) db.host[j] += sum_in_two_levels(terms[j], c.columns);
  if (const std::string at = dw.differs(tolerance); !at.empty()) return "dw" + at;
  if (const std::string at = db.differs(tolerance); !at.empty()) return "db" + at;
  return {};
}

}  // namespace gatefold::test
