#pragma once

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/shapes.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/tensor/table.hpp"

namespace gatefold {

namespace detail_::lookup {

/// Returns a part of a model as a type with the member `init(ctx, seed)`. Wraps an expert in a layer, because `init` of
/// an expert also takes a number of experts. Returns a layer, branch or loss unchanged.
template <class T, class B, class P>
auto with_init(const P& part) {
  if constexpr (!requires { part.in_dim(); } || detail_::policy::Branch<P, T, B>) {
    return part;
  } else {
    return as_layer<T, B>(part);
  }
}
/// The type of the parameters of a part of a model: a layer, branch, expert or loss.
template <class P, class T, class B>
using ParametersOf = Params<decltype(with_init<T, B>(std::declval<const P&>())), T, B>;

}  // namespace detail_::lookup

/// Returns the number of values in the parameters of layers, branches, experts or losses. The function allocates no
/// parameters, so it can count a model that does not fit into memory. `count_parameters(model, loss)` counts the
/// parameters that a Trainer holds.
///
///     count = Σ over all tensors of the product of the extents                                           (1)
///
/// @throws ArgumentError if `init` throws it because of the options, or if there are 2^63 values or more
/// @cost   visits each tensor once
template <class... L>
Index count_parameters(const L&... parts) {
  Shapes::Context ctx;
  return count_values(init_params<float, Shapes>(detail_::lookup::with_init<float, Shapes>(parts), ctx, Seed{})...);
}

/// The result of `summary`: names, shapes and sizes of the parameters of a model. You can read its members or print it.
struct Summary {
  /// Describes one tensor of the parameters. `active` is the number of its values that are used to compute one item.
  /// For a tensor of E experts, of which an item uses K, `active` is values · K / E.
  struct Row {
    std::string name;
    std::vector<Index> extents;
    Index values, active, bytes;
    bool learned;  // if false, no optimizer changes the tensor (is_learned)
  };
  std::vector<Row> rows{};
  Index values = 0;   // number of values of all tensors
  Index active = 0;   // number of values that are used to compute one item
  Index bytes = 0;    // size of all tensors
  Index learned = 0;  // number of values that an optimizer changes

  /// Prints a line for each tensor that has values, and a line with the sums:
  ///
  ///     gate.scores.weight   [8, 4]         32 values    32 active    128 bytes
  ///     expert.up            [4, 8, 16]    512 values   256 active   2048 bytes
  ///     expert.down          [4, 16, 8]    512 values   256 active   2048 bytes
  ///     total                             1056 values   544 active   4224 bytes
  friend std::ostream& operator<<(std::ostream& stream, const Summary& summary) {
    Row total{"total", {}, summary.values, summary.active, summary.bytes, true};
    std::ostringstream text = message_stream();
    std::size_t of_name = 0, of_field[4]{};  // widths of the columns
    for (const bool write : {false, true}) {
      const auto line = [&](const Row& row) {
        const std::string fields[]{shape_text(row), std::to_string(row.values), std::to_string(row.active),
                                   std::to_string(row.bytes)};
        if (!write) {
          of_name = std::max(of_name, row.name.size());
          for (std::size_t i = 0; i < 4; ++i) of_field[i] = std::max(of_field[i], fields[i].size());
          return;
        }
        const auto width = [](std::size_t n) { return std::setw(static_cast<int>(n)); };
        text << std::left << width(of_name) << row.name << "   " << width(of_field[0]) << fields[0] << std::right
             << "   " << width(of_field[1]) << fields[1] << " values   " << width(of_field[2]) << fields[2]
             << " active   " << width(of_field[3]) << fields[3] << " bytes" << (row.learned ? "" : "   not learned")
             << '\n';
      };
      for (const Row& row : summary.rows)
        if (row.values > 0) line(row);
      line(total);
    }
    return stream << text.str();
  }

 private:
  static std::string shape_text(const Row& row) {
    std::string text;
    for (const Index extent : row.extents) text += (text.empty() ? "[" : ", ") + std::to_string(extent);
    return text.empty() ? text : text + ']';
  }
};

namespace detail_::summing {

/// A visitor that adds a row to the summary `all` for each tensor of a pack (a struct of tensors). The tensors have
/// shapes, but no values.
struct Rows {
  Summary& all;

  /// Adds the rows of one part of a pack.
  /// @param active, experts  an item uses `active` of `experts` experts; both are 1 for tensors outside experts
  template <class P>
  void part(const Name& at, const P& p, bool learned, Index active, Index experts) const {
    if constexpr (detail_::pack::is_tensor<P>) {
      tensor(at, p, learned, active, experts);
    } else if constexpr (requires {
                           p.active.count;
                           p.active.experts;
                         }) {
      part(Name{&at, "gate"}, p.gate, learned, active, experts);
      part(Name{&at, "expert"}, p.expert, learned, active * p.active.count, experts * p.active.experts);
    } else if constexpr (detail_::pack::check<P>()) {
      detail_::pack::each_part(
          [&](auto name, const auto& of) {
            part(Name{&at, name}, of, learned && is_learned<P>, active, experts);
          },
          p);
    }
  }

 private:
  template <class T>
  void tensor(const Name& at, const T& t, bool learned, Index active, Index experts) const {
    using Element = std::remove_cvref_t<decltype(*t.data())>;
    Summary::Row row{at.str(), {}, t.size(), 0, t.size() * static_cast<Index>(sizeof(Element)), learned};
    for (int d = 0; d < T::rank; ++d) row.extents.push_back(t.extent(d));
    row.active = row.values / experts * active + row.values % experts * active / experts;
    all.values += row.values;
    all.active += row.active;
    all.bytes += row.bytes;
    all.learned += learned ? row.values : 0;
    all.rows.push_back(std::move(row));
  }
};

}  // namespace detail_::summing

/// Returns name, shape and size of every tensor in the parameters of a model, and the number of values that are used to
/// compute one item. The function allocates no parameters, so it works for a model that does not fit into memory.
///
///     std::cout << summary(model);                 // for parameters of type float
///     summary<double>(model).bytes, summary(model).active, summary(model).rows[0].name
///
///     active = Σ values of tensors outside experts + Σ values of tensors of experts · K / E              (1)
///
/// K is the number of picks of an item (active_experts), E the number of experts; for Experts of several kinds, (1) is
/// the mean if all experts are picked equally often. All values in the table of an Embedding count as used.
/// @param model  a layer, branch, expert, or a loss with parameters
/// @throws ArgumentError if `init` throws it because of the options
/// @cost   visits each tensor once
template <class T = float, class M>
Summary summary(const M& model) {
  GATEFOLD_REQUIRE(!detail_::pack::holds_tensors<M>,
                   "gatefold: summary takes a model, not its parameters: summary(model); it needs no parameters; see "
                   "docs/reference/functions.md");
  Summary all;
  if constexpr (!detail_::pack::holds_tensors<M>) {
    Shapes::Context ctx;
    const auto params = init_params<T, Shapes>(detail_::lookup::with_init<T, Shapes>(model), ctx, Seed{});
    detail_::summing::Rows{all}.part(Name{}, params, true, 1, 1);
  }
  return all;
}

}  // namespace gatefold
