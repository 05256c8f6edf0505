#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "gatefold/policy/named.hpp"

namespace gatefold::check {

/// The optional members that one part of a layer has, for example {"branch.gate.scores", {"Params", "validate",
/// "forward_rows"}}.
struct NamedHooks {
  std::string part;  // path from the layer to the part, for example "branch.gate"; empty: the layer itself
  // The names have the order of policy/named.hpp. Members of nested types, for example "Params.adapt", come last.
  std::vector<std::string> names;
};

namespace steps {

/// Returns the names of the optional members that a policy and its nested types (for example Params) have.
template <class B, class P>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for_each_hook<P>([&](const char* name) { names.emplace_back(name); });
  const auto add = [&](bool named, const char* name) {
    if (named) names.emplace_back(name);
  };
  using Extra = gatefold::Extra<P, double, B>;
  using Saved = gatefold::Saved<P, double, B>;
  add(detail_::named::adapt<Params<P, double, B>>(), "Params.adapt");
  add(detail_::named::mixtures<Saved>(), "Saved.mixtures");
  add(detail_::named::choices<Saved>(), "Saved.choices");
  add(detail_::named::pass<Carry<P, double, B>>(), "Carry.pass");
  add(detail_::named::at<Extra>(), "Extra.at");
  add(detail_::named::without_auxiliary<Extra>(), "Extra.without_auxiliary");
  add(detail_::named::with_valid<Extra>(), "Extra.with_valid");
  add(detail_::named::WithoutTrace<Extra>(), "Extra.WithoutTrace");
  add(detail_::named::with_trace<Extra>(), "Extra.with_trace");
  add(detail_::named::set_trace<ExtraGrad<P, double, B>>(), "ExtraGrad.set_trace");
  add(detail_::named::slot_weights<Plan<P, double, B>>(), "Plan.slot_weights");
  add(detail_::named::weights_inputs<Plan<P, double, B>>(), "Plan.weights_inputs");
  return names;
}

template <class B, class P>
void find_hooks(const std::string& at, const P& policy, std::vector<NamedHooks>& found);

template <class B, class P>
void find_hooks_of_each(const std::string& at, const P& policies, std::vector<NamedHooks>& found) {
  std::apply(
      [&](const auto&... policy) {
        int i = 0;
        (find_hooks<B>(at + "." + std::to_string(i++), policy, found), ...);
      },
      policies);
}

template <class B, class P>
void find_hooks(const std::string& at, const P& policy, std::vector<NamedHooks>& found) {
  found.push_back({at, names_of<B, P>()});
  const auto within = [&](const char* member) { return at.empty() ? std::string(member) : at + "." + member; };
  if constexpr (requires { policy.rule; }) find_hooks<B>(within("rule"), policy.rule, found);
  if constexpr (requires {
                  policy.first;
                  policy.rest;
                }) {
    find_hooks<B>(within("first"), policy.first, found);
    find_hooks<B>(within("rest"), policy.rest, found);
  }
  if constexpr (requires { policy.schedule.mu(Index(1)); }) find_hooks<B>(within("schedule"), policy.schedule, found);
  if constexpr (requires { policy.norm; } && (
                                                 requires { policy.branch; } || requires { policy.layer; }))
    find_hooks<B>(within("norm"), policy.norm, found);
  if constexpr (requires {
                  policy.attention;
                  policy.layer;
                })
    find_hooks<B>(within("attention"), policy.attention, found);
  if constexpr (requires { policy.branch; }) find_hooks<B>(within("branch"), policy.branch, found);
  if constexpr (requires { policy.layer; }) find_hooks<B>(within("layer"), policy.layer, found);
  if constexpr (requires { policy.gate; }) find_hooks<B>(within("gate"), policy.gate, found);
  if constexpr (requires { policy.scores; }) find_hooks<B>(within("scores"), policy.scores, found);
  if constexpr (requires { policy.mixing; }) find_hooks<B>(within("mixing"), policy.mixing, found);
  if constexpr (requires { policy.selection; }) find_hooks<B>(within("selection"), policy.selection, found);
  if constexpr (requires { policy.expert; }) find_hooks<B>(within("expert"), policy.expert, found);
  if constexpr (requires { policy.shared; }) find_hooks<B>(within("shared"), policy.shared, found);
  if constexpr (requires { std::tuple_size<decltype(policy.auxiliary)>::value; })
    find_hooks_of_each<B>(within("auxiliary"), policy.auxiliary, found);
  if constexpr (requires { std::tuple_size<decltype(policy.kinds)>::value; })
    find_hooks_of_each<B>(within("kinds"), policy.kinds, found);
  if constexpr (requires { std::tuple_size<decltype(policy.layers)>::value; })
    find_hooks_of_each<B>(within("layers"), policy.layers, found);
}

}  // namespace steps

/// Returns the optional members of a layer and of all policies inside it. Outer policies come first.
template <class B, class L>
std::vector<NamedHooks> hooks_of(const L& part) {
  std::vector<NamedHooks> found;
  steps::find_hooks<B>("", part, found);
  return found;
}

/// Converts a list of optional members to text, with one line for each part that has any, for example "gate.scores:
/// validate, forward_rows".
inline std::string to_string(const std::vector<NamedHooks>& hooks) {
  std::string text;
  for (const NamedHooks& of : hooks) {
    if (of.names.empty()) continue;
    text += "\n  " + (of.part.empty() ? std::string("itself") : of.part) + ": ";
    for (std::size_t i = 0; i < of.names.size(); ++i) text.append(i ? ", " : "").append(of.names[i]);
  }
  return text;
}

/// Compares the optional members that policies have with the expected ones. Returns a sentence for each expected member
/// that is missing, for example because it is misspelt, and for each part in `expected` that does not exist. Also
/// returns a sentence for each member of a part in `expected` that was not expected. Other parts are not compared.
inline std::vector<std::string> compare_hooks(const std::vector<NamedHooks>& found,
                                              const std::vector<NamedHooks>& expected) {
  std::vector<std::string> sentences;
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const NamedHooks& of : expected) {
    const auto part = std::find_if(found.begin(), found.end(), [&](const NamedHooks& f) { return f.part == of.part; });
    const std::string who = of.part.empty() ? "the part" : of.part;
    if (part == found.end()) {
      std::string parts;
      for (const NamedHooks& f : found)
        if (!f.part.empty()) parts.append(parts.empty() ? "" : ", ").append(f.part);
      sentences.push_back("there is no part " + of.part + (parts.empty() ? "" : "; the parts are " + parts));
      continue;
    }
    const std::vector<std::string>& names = part->names;
    for (const std::string& name : of.names)
      if (!has(names, name)) sentences.push_back(who + " has no " + name + ", which was expected: is it misspelt?");
    for (const std::string& name : names)
      if (!has(of.names, name)) sentences.push_back(who + " has " + name + ", which was not expected");
  }
  return sentences;
}

}  // namespace gatefold::check
