#pragma once

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/tensor/find.hpp"

namespace gatefold {

/// Selects tensors by patterns of their names. The names are those of for_each_tensor.
///
/// A pattern is compared with a name from the beginning, part by part. It selects the tensor of this name, or all
/// tensors of the pack of this name: `layers.0` selects `layers.0.rule.mu`, and `layers.1` does not select
/// `layers.10.rule.mu`. In a part, `*` matches any characters. The part `**` matches any number of parts, including 0:
/// `**.gate.scores` selects all routers.
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
  /// @param names  the names of the tensors; the message also proposes names of the packs around them
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
