#pragma once

#include "gatefold/optim/averaged.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/expert_rates.hpp"
#include "gatefold/optim/optimizer.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/policy/named.hpp"
#include "gatefold/train/in_groups.hpp"

/// Compile-time properties of optimizers that compute a norm of gradients. On several shards, an optimizer must not
/// compute the norm itself, because it would include only the gradients of one shard.
namespace gatefold::dist {

template <class OptimizerT, class ShardT>
struct Zero;
template <class OptimizerT, class ShardT>
struct SyncNorm;

namespace norms {

template <class O>
struct Of {
  static constexpr bool taken = detail_::named::measure<O>();  // the optimizer computes a norm of the gradients itself
  static constexpr bool given = !taken;       // the optimizer needs at most a norm that the caller passes
  static constexpr bool by_element = !taken;  // the step of an element depends only on that element
  static constexpr bool in_rows = true;       // the optimizer can update some rows without the others
};
template <class O>
struct Of<optim::Clipped<O>> {
  static constexpr bool taken = true, given = !Of<O>::taken, by_element = false, in_rows = Of<O>::in_rows;
};
template <class O, class S>
struct Of<SyncNorm<O, S>> {
  static constexpr bool taken = false, given = true, by_element = false, in_rows = true;
};
template <class O, class S>
struct Of<optim::Scheduled<O, S>> : Of<O> {};
template <class O>
struct Of<optim::Averaged<O>> : Of<O> {
  static constexpr bool in_rows = false;  // swap_averages would need the averages of all rows on each shard
};
template <class O, class F>
struct Of<optim::ExpertRates<O, F>> : Of<O> {
  static constexpr bool in_rows = false;  // rates belong to row numbers, and row 0 is a different expert on each shard
};
template <class O, class S>
struct Of<Zero<O, S>> {
  static constexpr bool taken = Of<O>::taken, given = !taken, by_element = Of<O>::by_element;
  static constexpr bool in_rows = Of<O>::in_rows;
};
template <class F, class R>
struct Of<InGroups<F, R>> {
  static constexpr bool taken = Of<F>::taken || Of<R>::taken, given = !taken;
  static constexpr bool by_element = Of<F>::by_element && Of<R>::by_element;
  static constexpr bool in_rows = Of<F>::in_rows && Of<R>::in_rows;
};

}  // namespace norms
}  // namespace gatefold::dist
