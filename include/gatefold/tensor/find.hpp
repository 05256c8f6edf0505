#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/tensor/flat_tensor.hpp"
#include "gatefold/tensor/pack.hpp"

namespace gatefold {

namespace detail_::pack {

[[noreturn, gnu::cold]] inline void throw_unknown_name(std::string_view name, std::vector<std::string> names);
template <class T, class B>
struct Find;

}  // namespace detail_::pack

/// Returns one tensor of a pack (a struct of named tensors: parameters, gradients, an optimizer's state) by its name,
/// as a FlatTensor. The tensor can have any rank:
///
///     auto weight = find(trainer.params, "layers.0.branch.gate.scores.weight");
///     weight.rank(), weight.extent(0), weight.size(), weight.data(), weight.view()   // view(): all elements, rank 1
///
/// The FlatTensor owns no memory, so the pack must outlive it. It dangles after a `resize` or a move of the tensor in
/// the pack. If the pack is const, the elements are const. On a device, `data()` is device memory.
/// @throws ArgumentError if no tensor has the name; the message lists the three nearest names. Also throws
///         ArgumentError if the tensor does not have the element type of its pack (such as Index in a pack of float)
/// @cost   one visit of the pack, and one string for each tensor
template <class P>
auto find(P& pack, std::string_view name) {
  using Of = detail_::pack::Of<std::remove_const_t<P>>;
  GATEFOLD_REQUIRE(Of::known,
                   "gatefold: find(pack, name) cannot read the element type and the backend from the type of this "
                   "pack: pass a Tensor, a P<T, B> such as Params<T, B>, or a template whose first argument is one of "
                   "these, such as State<Params<T, B>>");
  using T = std::conditional_t<std::is_const_v<P>, const typename Of::Element, typename Of::Element>;
  std::optional<FlatTensor<T, typename Of::Backend>> found;
  for_each_tensor(detail_::pack::Find<T, typename Of::Backend>{name, found}, pack);
  if (!found) {
    std::vector<std::string> names;
    const auto add = [&](const Name& at, const AnyTensor*) { names.push_back(at.str()); };
    detail_::pack::visit_any(add, Name{}, false, std::as_const(pack));
    detail_::pack::throw_unknown_name(name, std::move(names));
  }
  return *std::move(found);
}
/// Returns one tensor of a pack (a struct of named tensors) by its name, as a View of the given rank, so that
/// `weight(d, e)` works on the host:
///
///     View<float, 2, Cpu> weight = find<2>(trainer.params, "layers.0.branch.gate.scores.weight");   // [D, E]
///
/// @throws ArgumentError if no tensor has the name, or if its rank or element type is different
template <int Rank, class P>
auto find(P& pack, std::string_view name) {
  auto tensor = find(pack, name);
  expect(tensor.rank() == Rank, "find", name, Joined{"a tensor of rank ", Rank}, Joined{"rank ", tensor.rank()});
  return tensor.template as<Rank>();
}

namespace detail_::pack {

/// Returns the edit distance of two names: the least number of characters to insert, delete or replace to turn one name
/// into the other.
[[gnu::cold]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}
/// Returns whether the longer name ends with the shorter one, compared by whole parts between dots. For example, this
/// is true for `layers.0.branch.up` and `branch.up`.
[[gnu::cold]] inline bool same_end(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  return !b.empty() && a.ends_with(b) && (a.size() == b.size() || a[a.size() - b.size() - 1] == '.');
}
/// Returns the `count` names that a misspelt name most probably means: first names that end with the same parts (see
/// same_end), then names with the least edit distance.
[[gnu::cold]] inline std::vector<std::string> nearest_names(std::vector<std::string> names, std::string_view name,
                                                            std::size_t count = 3) {
  std::vector<std::string> nearest;
  while (nearest.size() < count && !names.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < names.size(); ++i) {
      const bool end = same_end(names[i], name), end_of_best = same_end(names[best], name);
      if (end != end_of_best ? end : edit_distance(names[i], name) < edit_distance(names[best], name)) best = i;
    }
    nearest.push_back(std::move(names[best]));
    names.erase(names.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return nearest;
}

/// Throws the error for a name that no tensor of a pack has. The message lists the nearest names.
[[noreturn, gnu::cold]] inline void throw_unknown_name(std::string_view name, std::vector<std::string> names) {
  std::string nearest;
  for (const std::string& of : nearest_names(std::move(names), name))
    nearest += (nearest.empty() ? " (nearest: " : ", ") + of;
  if (!nearest.empty()) nearest += ')';
  throw_unexpected("find", "name", Joined{"the name of a tensor of the pack", nearest}, name.empty() ? "\"\"" : name);
}

/// A visitor for the tensors of a pack. Stores a reference to the first tensor with the given name in `found`.
template <class T, class B>
struct Find {
  std::string_view name;
  std::optional<FlatTensor<T, B>>& found;
  void operator()(const Name& at, auto& tensor) const {
    if (!found && at.str() == name) found.emplace(AnyTensor(tensor));
  }
  template <class E, int Rank, class Of>
  void operator()(const Name& at, const Tensor<E, Rank, Of>& tensor) const {
    if (!found && at.str() == name) found.emplace(AnyTensor(const_cast<Tensor<E, Rank, Of>&>(tensor), true));
  }
  template <class E, class Of>
  void operator()(const Name& at, const Table<E, Of>& table) const {
    if (!found && at.str() == name) found.emplace(AnyTensor(const_cast<Table<E, Of>&>(table), true));
  }
};

}  // namespace detail_::pack

/// Selects tensors by patterns of their names. The names are the names that for_each_tensor passes to its visitor.
///
/// A pattern is compared with a name from the beginning, part by part. It selects the tensor of this name, or all
/// tensors of the pack of this name: `layers.0` selects `layers.0.rule.mu`, and `layers.1` does not select
/// `layers.10.rule.mu`. In a part, `*` matches any characters. The part `**` matches any number of parts, including 0:
/// `**.gate.scores` selects the scores of all gates.
class NamePatterns {
 public:
  NamePatterns() = default;
  explicit NamePatterns(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}

  bool empty() const { return patterns_.empty(); }

  /// Sets selected[i] to true for each name i that a pattern selects.
  /// @param where  the place that an error message names
  /// @throws ArgumentError if a pattern selects no name; the message proposes similar names
  [[gnu::cold]] void select(const char* where, const std::vector<std::string>& names,
                            std::vector<bool>& selected) const {
    for (const std::string& pattern : patterns_) {
      bool found = false;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (pattern.empty() || !selects(pattern, names[i])) continue;
        selected[i] = found = true;
      }
      if (!found) throw_nothing(where, pattern, names);
    }
  }

 private:
  /// Returns true if `part`, the text between two dots of a name, matches `pattern`, the text between two dots of a
  /// pattern. In `pattern`, `*` matches any characters.
  [[gnu::cold]] static bool fits(std::string_view pattern, std::string_view part) {
    if (pattern.empty()) return part.empty();
    if (pattern[0] != '*') return !part.empty() && part[0] == pattern[0] && fits(pattern.substr(1), part.substr(1));
    return fits(pattern.substr(1), part) || (!part.empty() && fits(pattern, part.substr(1)));
  }
  static std::string_view head(std::string_view name) { return name.substr(0, name.find('.')); }
  static std::string_view tail(std::string_view name) {
    const std::size_t dot = name.find('.');
    return dot == name.npos ? std::string_view{} : name.substr(dot + 1);
  }
  /// Returns true if the pattern selects the tensor with this name.
  [[gnu::cold]] static bool selects(std::string_view pattern, std::string_view name) {
    if (pattern.empty()) return true;
    const std::string_view part = head(pattern);
    if (part == "**" && selects(tail(pattern), name)) return true;
    if (name.empty()) return false;
    return part == "**" ? selects(pattern, tail(name)) : fits(part, head(name)) && selects(tail(pattern), tail(name));
  }
  /// Throws ArgumentError for a pattern that selects no tensor.
  /// @param names  the names of the tensors; the message also proposes the names of packs that contain tensors
  [[noreturn, gnu::cold, gnu::noinline]] static void throw_nothing(const char* where, const std::string& pattern,
                                                                   std::vector<std::string> names) {
    for (std::size_t i = 0, count = names.size(); i < count; ++i)
      for (std::string of = names[i]; of.rfind('.') != of.npos;) {
        of.resize(of.rfind('.'));
        if (std::find(names.begin(), names.end(), of) == names.end()) names.push_back(of);
      }
    std::ostringstream message = message_stream();
    message << where << ": pattern: expected the name of a tensor or of a part, got \"" << pattern << '"';
    const char* before = "; the nearest names: ";
    for (const std::string& name : detail_::pack::nearest_names(std::move(names), pattern)) {
      message << before << name;
      before = ", ";
    }
    throw ArgumentError(message.str());
  }

  std::vector<std::string> patterns_;
};

}  // namespace gatefold
