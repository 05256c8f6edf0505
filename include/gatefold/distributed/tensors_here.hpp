#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/distributed/sharded.hpp"
#include "gatefold/io/safetensors.hpp"

/// The rows of a checkpoint's tensors that one shard reads or writes. gatefold.hpp does not include this header,
/// because the header needs gatefold::io.
namespace gatefold::dist {

/// Lists the tensors of a pack (a struct of named tensors) with their shapes in a file, which include the experts of
/// all shards. Also lists the rows of each tensor that this shard reads or writes.
template <class C>
class TensorsHere {
 public:
  /// Selects the rows of tensors of which every shard has a copy: a shard takes all rows (to read a file), or only a
  /// part of the rows (to write a file together with the other shards).
  enum class Takes { all, part };

  /// Finds the rows of this shard in all tensors of a pack.
  /// @throws ArgumentError on all shards, naming the tensor, if the rows of a shard differ from the experts that are
  ///         assigned to it; ArgumentError if experts have copies
  /// @cost   an exchange of a number for each distributed tensor
  template <class ShardT, class P>
  TensorsHere(ShardT& shard, const char* where, P& pack, Takes takes) {
    for_each_tensor(Visitor{found_}, pack);
    std::vector<Index> mine;
    for (const Found& t : found_)
      if (t.dealt) mine.push_back(t.tensor.extents[0]);
    const HeldRows held(shard, mine);

    io::safetensors::Entries entries(where);
    std::size_t next = 0;
    for (const Found& t : found_) {
      auto rows = static_cast<std::uint64_t>(t.tensor.extents[0]);
      std::vector<Range> here;
      if (t.dealt) {
        held.expect_dealt(where, t.name, next, t.rows);
        t.rows.expect_once(where);
        rows = static_cast<std::uint64_t>(held.count(next));
        if (rows > 0) here = rows_of(shard.index(), t, held, next);
        ++next;
      } else {
        const Index all = t.tensor.extents[0];  // nvcc 13.0 fails to compile an initialiser list here
        here.push_back(takes == Takes::all ? Range{0, all} : Range::of(all, shard.index(), shard.count()));
      }
      io::safetensors::with_element(t.tensor, [&](auto element) { add(element, t, rows, here, entries); });
    }
    list = std::move(entries.list);
  }

  /// Copies data that was read from a file into the tensors of the pack.
  void fill(C& ctx, const io::safetensors::Data& data) const {
    const io::safetensors::Fill<C> fill{ctx, data.bytes.data(), data.begins.data()};
    for (const Found& t : found_) fill(Name{}, &t.tensor);
  }

  std::vector<io::safetensors::Entry> list{};
  std::vector<io::safetensors::Source> sources{};  // one for each entry

 private:
  struct Found {
    std::string name;
    AnyTensor tensor;
    bool dealt;
    DealtRows rows;
  };
  struct Visitor {
    std::vector<Found>& found;
    void operator()(const Name& at, auto& t) const { add(at, t, false, {}); }
    void sharded(const Name& at, auto& pack) const {
      const auto one = [&](const Name& name, auto& t, const DealtRows& rows) { add(name, t, true, rows); };
      dist::sharded::Visitor<false, decltype(one)>{one}.sharded(at, pack);
    }
    template <class P>
    void add(const Name& at, P& t, bool dealt, const DealtRows& rows) const {
      using TensorT = std::remove_const_t<P>;
      io::safetensors::Storable<typename C::Backend>::template tensor<TensorT>();
      found.push_back({at.str(), AnyTensor(const_cast<TensorT&>(t)), dealt, rows});
    }
  };
  /// Adds a tensor to the lists `list` and `sources`.
  /// @param rows  number of rows of the whole tensor
  /// @param here  the rows of this shard, as ranges
  template <class T>
  void add(T, const Found& t, std::uint64_t rows, const std::vector<Range>& here, io::safetensors::Entries& entries) {
    std::vector<std::uint64_t> shape(t.tensor.extents, t.tensor.extents + t.tensor.rank);
    shape[0] = rows;
    std::uint64_t width = 1;  // number of elements of a row
    for (std::size_t d = 1; d < shape.size(); ++d) width *= shape[d];
    entries.add(Name{nullptr, t.name}, io::safetensors::dtype<T>(), rows * width * sizeof(T), shape);
    auto& slices = entries.list.back().here;
    slices.clear();
    Index count = 0;
    for (const Range& r : here) {
      slices.push_back({static_cast<std::uint64_t>(r.first) * width * sizeof(T),
                        static_cast<std::uint64_t>(r.count) * width * sizeof(T)});
      count += r.count;
    }
    // On this shard, the rows of a distributed tensor are adjacent and begin at 0. The rows of any other tensor have
    // the same position as in the file.
    const std::size_t first = t.dealt || here.empty() ? 0 : static_cast<std::size_t>(here[0].first) * width;
    sources.push_back(io::safetensors::source_of<C>(static_cast<const T*>(t.tensor.elements) + first,
                                                    count * static_cast<Index>(width)));
  }
  /// Returns the rows of a distributed tensor that this shard holds, as ranges of row numbers, in the order of its
  /// memory. Adjacent rows are in one range.
  static std::vector<Range> rows_of(Index shard, const Found& t, const HeldRows& held, std::size_t tensor) {
    if (!t.rows.deal) return {{held.before(tensor, shard), t.tensor.extents[0]}};
    std::vector<Range> ranges;
    for (const Index row : t.rows.of(shard)) {
      if (!ranges.empty() && ranges.back().first + ranges.back().count == row)
        ++ranges.back().count;
      else
        ranges.push_back({row, 1});
    }
    return ranges;
  }

  std::vector<Found> found_{};
};

}  // namespace gatefold::dist
