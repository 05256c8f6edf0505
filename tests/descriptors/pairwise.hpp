#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "bitwise/bitwise.hpp"
#include "descriptors/composition.hpp"
#include "descriptors/extras.hpp"
#include "descriptors/initial_values.hpp"
#include "descriptors/saved.hpp"
#include "descriptors/shards.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/check/hooks.hpp"
#include "support/wrong_shapes.hpp"

/// Checks of compositions in which any two policies meet. cover.sh makes the compositions from the rows.
namespace gatefold::rows {

/// Checks that a policy and its nested types have the optional members that its row lists. This finds misspelt members.
/// Nested types themselves are not checked, because the checks of gradients need them. Members of a layer's Params,
/// Carry, Extra and ExtraGrad are not checked either, because these types belong to the layer's parts.
template <class Policy>
void check_hooks(const Facts& facts, const std::string& of_parts = "") {
  std::string found;
  for (const std::string& name : check::steps::names_of<Cpu, Policy>()) {
    const std::string type = name.substr(0, name.find('.'));
    const bool own = type == name ? name[0] >= 'a' : of_parts.find(type) == std::string::npos;
    if (own) found += (found.empty() ? "" : " ") + name;
  }
  CHECK(found == facts.hooks);
}
template <class... Row>
void check_hooks_of(const Row&... row) {
  (check_hooks<std::remove_cvref_t<decltype(row.make(tiny))>>(row.facts), ...);
}
template <class C>
void check_hooks_of_all(const C& c) {
  check_hooks_of(c.scores, c.mixing, c.selection, c.auxiliary, c.rule, c.expert);
  check_hooks<std::remove_cvref_t<decltype(c.make(tiny))>>(c.layer.facts, "Params Carry Extra ExtraGrad");
}

/// Returns true if no sentence of a report says that a gradient is wrong. Each sentence then only says that a point
/// shows nothing, because the routing changes there or because a gradient is zero.
inline bool says_nothing(const check::GradientReport& report) {
  return std::all_of(report.sentences.begin(), report.sentences.end(), [](const std::string& sentence) {
    return sentence.find("because the routing changes") != std::string::npos ||
           sentence.find("the gradient is zero everywhere") != std::string::npos ||
           sentence.find("the gradient is zero to rounding") != std::string::npos;
  });
}

/// Checks gradients of the layer's input, parameters and carry in double. If the numbers drawn with a seed show nothing
/// about one of them, the check tries the next seed, up to three in all. The compositions, and so their seeds, can
/// change with each new row.
template <class C>
void check_gradients(const C& c) {
  constexpr Index items = 8;
  Cpu::Context ctx(1);
  const auto layer = c.make(tiny);
  using Layer = std::remove_const_t<decltype(layer)>;
  const Extras<double> extras(items, tiny.item());
  check::GradientReport report;
  for (int seeds = 0; seeds < 3; ++seeds) {
    const Seed seed{static_cast<std::uint64_t>(c.most(&Facts::seed) + seeds)};
    // The seeds are chosen so that no routing decision is close to changing. Still, up to a tenth of the values may be
    // skipped.
    report = check::gradients(
        ctx, layer,
        {.items = items, .seed = seed, .most_skipped = 0.1, .moved = c.most(&Facts::moved), .zero = c.zeros()},
        extras.of<Extra<Layer, double, Cpu>>({.length = tiny.sequence, .noise = true}, 0, items));
    if (report || !says_nothing(report)) break;
  }
  CHECK_MESSAGE(report, report.str());
}

/// Checks that forward and backward refuse tensors of a wrong shape before they write anything.
template <class C>
void check_shapes(const C& c) {
  constexpr Index items = 2 * odd.sequence;
  Cpu::Context ctx(1);
  const auto layer = c.make(odd);
  using Layer = std::remove_const_t<decltype(layer)>;
  const Extras<float> extras(items, odd.item());
  support::Pass<float, Layer> run(
      ctx, layer, items, Seed{1},
      extras.of<Extra<Layer, float, Cpu>>({.length = odd.sequence, .noise = true}, 0, items));
  support::check_wrong_shapes(run);
}

/// Checks that results have the same bits with any number of threads, in `infer` and `forward`, and in any batch,
/// unless the items of a batch depend on each other.
template <class T, class B = Cpu, class C>
void check_bits(const C& c) {
  using namespace bitwise;
  const auto layer = c.make(odd);
  const Meets meets = c.most(&Facts::meets);
  on_any_threads<T, B>(layer, few, true, {.noise = true, .padding = true});
  if (meets == Meets::itself) in_any_batch<T, B>(layer, {}, 1, {0, 5, 29}, 40);
  if (meets == Meets::sequence)
    in_any_batch<T, B>(layer, {.length = odd.sequence}, odd.sequence, {0, 2}, 9 * odd.sequence);
}

/// Checks the optional members, and the bits also for larger sizes. The work of many items is divided among threads,
/// and an expert's rows fill more than one block.
template <class T, class C>
void check_bits_of_many_in(const C& c) {
  using namespace bitwise;
  const auto layer = c.make(odd);
  const Meets meets = c.most(&Facts::meets);
  const Index unit = meets == Meets::sequence ? odd.sequence : 1;
  check_hooks_of_all(c);
  check_bits<T>(c);
  without_gradients<T>(layer, few, {.noise = true, .padding = true});
  without_gradients<T>(layer, 6 * odd.sequence, {.length = odd.sequence});
  on_any_threads<T>(layer, 48, true, {.length = odd.sequence});
  on_any_threads<T>(layer, 300, true);
  on_any_threads<T>(layer, 1024, false, {.length = 128, .noise = true, .padding = true});
  if (meets == Meets::batch) return;
  in_any_batch<T>(layer, {.length = odd.sequence}, unit);
  in_any_batch<T>(layer, {.length = odd.sequence, .padding = true}, unit);
  in_any_batch<T>(layer, {.length = odd.sequence, .noise = true}, unit, {0});  // an item's noise depends on its place
}
template <class C>
void check_bits_of_many(const C& c) {
  check_bits_of_many_in<float>(c);
#ifdef GATEFOLD_SLOW_TESTS
  check_bits_of_many_in<double>(c);
#endif
}

}  // namespace gatefold::rows
