#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/core/types.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/train/checkpoint.hpp"

/// Checkpoints of a run on shards: the files of train/checkpoint.hpp, whatever wrote them. Outside the umbrella: they
/// need nlohmann-json (gatefold::io).
namespace gatefold::dist {

namespace whole {

/// The tensors of a run, each of a Sharded pack replaced by that of all shards.
template <class ShardT, class R>
class Run {
 public:
  /// Empty tensors for what is sharded, of the size of the whole, on the shards that hold them.
  Run(ShardT& shard, R& run, bool on_all) : shard_(shard), run_(run) {
    each_part([&](const Name&, const auto& part, Index) {
      using Whole = std::remove_cvref_t<decltype(part)>;
      Place place{std::vector<Index>(static_cast<std::size_t>(shard.count())), std::make_shared<Whole>()};
      const Index rows = part.extent(0);
      shard.all_gather(&rows, Index(1), place.rows.data());
      const Index all = std::accumulate(place.rows.begin(), place.rows.end(), Index(0));
      const auto resize = [&]<std::size_t... D>(std::index_sequence<D...>) {
        static_cast<Whole*>(place.tensor.get())->resize(all, part.extent(D + 1)...);
      };
      if (on_all || shard.index() == 0) resize(std::make_index_sequence<static_cast<std::size_t>(Whole::rank - 1)>{});
      places_.push_back(std::move(place));
    });
  }

  /// Shard 0 has the values of all.
  void gather() {
    each_part([&](const Name&, const auto& part, Index i) {
      std::vector<Index> counts = places_[at(i)].rows;
      for (Index& n : counts) n *= width(part);
      shard_.gather(part.data(), counts, whole_of(part, i).data());
    });
  }
  /// Every shard takes its own.
  void scatter() {
    each_part([&](const Name&, auto& part, Index i) {
      const auto& rows = places_[at(i)].rows;
      const Index before = std::accumulate(rows.begin(), rows.begin() + shard_.index(), Index(0));
      if (part.size() > 0)
        std::memcpy(part.data(), whole_of(part, i).data() + before * width(part),
                    static_cast<std::size_t>(part.size()) * sizeof(*part.data()));
    });
  }

  /// As a pack: the names of the run.
  static void each(auto&& f, auto& self, auto&...) {
    for_each_tensor(Visitor{[&](const Name& at, auto& t, Index) { f(at.str(), t); },
                            [&](const Name& at, auto& part, Index i) { f(at.str(), self.whole_of(part, i)); }},
                    self.run_);
  }

 private:
  struct Place {
    std::vector<Index> rows;  // first extents, by shard
    std::shared_ptr<void> tensor;
  };
  /// f(name, tensor, number) of a tensor that is whole, g of one of a Sharded pack, numbered.
  template <class F, class G>
  struct Visitor {
    F f;
    G g;
    Index next = 0;
    void operator()(const Name& at, auto& t) { f(at, t, 0); }
    void sharded(const Name& at, auto& p) {
      auto one = [&](const Name& name, auto& t) { g(name, t, next++); };
      pack::visit<false>(one, at, p.part);
    }
  };
  template <class F, class G>
  Visitor(F, G) -> Visitor<F, G>;

  template <class G>
  void each_part(const G& g) {
    for_each_tensor(Visitor{[](const Name&, auto&, Index) {}, g}, run_);
  }
  template <class P>
  std::remove_const_t<P>& whole_of(const P&, Index i) const {
    return *static_cast<std::remove_const_t<P>*>(places_[at(i)].tensor.get());
  }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  template <class P>
  static Index width(const P& t) {
    Index n = 1;
    for (int d = 1; d < P::rank; ++d) n *= t.extent(d);
    return n;
  }

  ShardT& shard_;
  R& run_;
  std::vector<Place> places_;
};

}  // namespace whole

/// save_checkpoint of a run on shards: one file, that of a single process with all experts. Shard 0 writes it; it is
/// there, whole, when any shard returns.
/// @throws as save_checkpoint on shard 0, and DeviceError on the others
/// @cost   shard 0 takes and holds all experts and their optimizer's state for the time of writing
template <class ShardT, class R>
void save_checkpoint(ShardT& shard, const std::filesystem::path& path, const R& run,
                     const io::Metadata& metadata = {}) {
  whole::Run<ShardT, const R> all(shard, run, false);
  all.gather();
  if (shard.index() == 0) io::save(path, run.context(), checkpoint::with_counters(metadata, run), io::Part{"", all});
  shard.barrier();
}

/// load_checkpoint of a run on shards, from a file that any number of shards has written, or one process. Every
/// process reads it.
/// @throws as load_checkpoint
/// @cost   every shard reads the whole file, and holds all experts meanwhile
template <class ShardT, class R>
io::Metadata load_checkpoint(ShardT& shard, const std::filesystem::path& path, R& run) {
  whole::Run<ShardT, R> all(shard, run, true);
  io::Metadata metadata = checkpoint::load(path, all, run);
  all.scatter();
  shard.barrier();  // a shard that could not read has stopped the others before anybody goes on
  return metadata;
}

}  // namespace gatefold::dist
