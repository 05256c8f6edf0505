#pragma once

#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/optimizer.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/policy/named.hpp"
#include "gatefold/train/in_groups.hpp"

/// Which optimizers take a norm of gradients by themselves: of those on one shard it would be that shard's.
namespace gatefold::dist {

template <class OptimizerT, class ShardT>
struct Zero;

namespace norms {

template <class O>
struct Of {
  static constexpr bool taken = named::measure<O>();  // it takes one itself
  static constexpr bool given = !taken;               // with that of all gradients it needs no other
};
template <class O>
struct Of<optim::Clipped<O>> {
  static constexpr bool taken = true, given = !Of<O>::taken;
};
template <class O, class S>
struct Of<optim::Scheduled<O, S>> : Of<O> {};
template <class O, class S>
struct Of<Zero<O, S>> {
  static constexpr bool taken = Of<O>::taken, given = !taken;
};
template <class F, class R>
struct Of<InGroups<F, R>> {
  static constexpr bool taken = Of<F>::taken || Of<R>::taken, given = !taken;
};

}  // namespace norms
}  // namespace gatefold::dist
