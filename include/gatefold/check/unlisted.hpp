#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/policy/hooks.hpp"

/// Finds tensors that are members of a pack, a struct of tensors, but are missing in its list GATEFOLD_PACK or its
/// function `each`.
namespace gatefold::check {

/// Searches a pack (a struct of tensors) and the packs inside it for tensors that its function `each` does not list.
/// Such a tensor is not learned, copied or saved. Returns a sentence for each pack with such a tensor, and for each
/// tensor or name that is listed twice.
///
/// The bytes of a pack are compared with the bytes of the parts that `each` lists. The numbers that the function
/// `counters` of an optimizer state lists (optim/clone.hpp) count as parts too. A gap of at least the size of a tensor
/// (24 bytes if a pointer has 8) counts as a tensor that is not listed. Other members of this size also count, because
/// copying or saving the pack would lose them. A pack that lists parts outside its own memory is not checked.
///
/// @tparam B  the backend of the tensors in `params`
/// @param name  the name of `params` in the sentences
template <class B, class P>
std::vector<std::string> unlisted(const P& params, std::string_view name);

namespace listed {

using Bytes = std::pair<const std::byte*, const std::byte*>;  // first byte, end

template <class V>
Bytes bytes_of(const V& v) {
  const auto* at = reinterpret_cast<const std::byte*>(std::addressof(v));
  return {at, at + sizeof(V)};
}

/// Returns the length of the longest range of bytes of an object `whole` that none of its `parts` covers. Returns 0 if
/// a part is outside the object, because such an object cannot be checked.
inline std::size_t longest_gap(const Bytes& whole, std::vector<Bytes> parts) {
  std::sort(parts.begin(), parts.end());
  parts.emplace_back(whole.second, whole.second);
  const std::byte* at = whole.first;
  std::ptrdiff_t longest = 0;
  for (const auto& [from, to] : parts) {
    if (from < whole.first || to > whole.second) return 0;
    longest = std::max(longest, from - at);
    at = std::max(at, to);
  }
  return static_cast<std::size_t>(longest);
}

template <class B, class P>
void look(const Name& at, const P& p, std::vector<std::string>& sentences) {
  if constexpr (detail_::pack::is_vector<P> || detail_::pack::is_tuple<P>) {
    detail_::pack::each_part([&](auto name, const auto& part) { look<B>(Name{&at, name}, part, sentences); }, p);
  } else if constexpr (detail_::pack::is_tensor<P> || detail_::pack::is_sharded<P> ||
                       requires { typename P::HoldsNoTensors; }) {
    return;
  } else if constexpr (detail_::pack::check<P>()) {
    std::vector<Bytes> parts;
    std::vector<std::pair<std::string, const void*>> before;
    P::each(
        [&](std::string_view name, const auto& part) {
          parts.push_back(bytes_of(part));
          for (const auto& [other, where] : before) {
            if (other == name && !name.empty())
              sentences.push_back(at.str() + ": its `each` lists two parts with the name " + other);
            if (where == &part && detail_::pack::is_tensor<std::remove_cvref_t<decltype(part)>>)
              sentences.push_back(at.str() + ": its `each` lists a tensor twice, as " + other + " and as " +
                                  std::string(name) + ": it would be learned twice");
          }
          before.emplace_back(name, &part);
          look<B>(Name{&at, name}, part, sentences);
        },
        p);
    const auto number = [&](std::string_view, const auto& n) { parts.push_back(bytes_of(n)); };
    if constexpr (detail_::hook::optimizer::counters<P, decltype(number)>()) P::counters(number, p);
    const std::size_t gap = longest_gap(bytes_of(p), std::move(parts));
    if (gap >= sizeof(Tensor<float, 1, B>))
      sentences.push_back(at.str() + ": " + std::to_string(gap) +
                          " consecutive bytes belong to no tensor or pack that its `each` lists; a tensor that is not "
                          "listed is not learned, copied or saved");
  }
}

}  // namespace listed

template <class B, class P>
std::vector<std::string> unlisted(const P& params, std::string_view name) {
  std::vector<std::string> sentences;
  listed::look<B>(Name{nullptr, name}, params, sentences);
  return sentences;
}

}  // namespace gatefold::check
