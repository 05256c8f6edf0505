#include "gatefold/distributed/norm_of_gradients.hpp"

#include <doctest/doctest.h>

#include "gatefold/distributed/shards.hpp"
#include "gatefold/distributed/sync_norm.hpp"
#include "gatefold/distributed/zero_optimizer.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

using Shard = dist::Shard<dist::Alone>;
template <class O>
constexpr bool given = dist::norms::Of<O>::given;
template <class O>
using Scheduled = optim::Scheduled<O, optim::WarmupCosine>;
using optim::AdamW, optim::Clipped, optim::NormalizedGd, optim::Sgd;

static_assert(given<AdamW> && given<Clipped<AdamW>> && given<Scheduled<Clipped<AdamW>>>);
static_assert(given<Clipped<Scheduled<AdamW>>>);
static_assert(given<Clipped<InGroups<AdamW, Sgd>>> && given<Scheduled<Clipped<dist::Zero<AdamW, Shard>>>>);
static_assert(!given<NormalizedGd> && !given<Clipped<Clipped<Sgd>>> && !given<Clipped<NormalizedGd>>);
static_assert(!given<InGroups<Clipped<Sgd>, Sgd>> && !given<InGroups<Sgd, Scheduled<Clipped<Sgd>>>>);
static_assert(!given<Clipped<InGroups<Sgd, InGroups<Sgd, NormalizedGd>>>>);
static_assert(!given<dist::Zero<InGroups<Clipped<Sgd>, Sgd>, Shard>>);
// These find the norm of all shards themselves. They do not work inside Zero, which shows them only some rows.
using Synced = dist::SyncNorm<NormalizedGd, Shard>;
static_assert(given<Synced> && given<InGroups<Synced, Sgd>> && given<Clipped<Scheduled<Synced>>>);
static_assert(!given<InGroups<Synced, NormalizedGd>>);
template <class O>
constexpr bool by_element = dist::norms::Of<O>::by_element;
static_assert(by_element<AdamW> && by_element<InGroups<AdamW, Scheduled<Sgd>>>);
static_assert(!by_element<NormalizedGd> && !by_element<Clipped<Sgd>> && !by_element<InGroups<Synced, Sgd>>);
template <class O>
constexpr bool in_rows = dist::norms::Of<O>::in_rows;
using Factor = double (*)(const Name&, Index);
using Averaged = optim::Averaged<AdamW>;
using Rates = optim::ExpertRates<AdamW, Factor>;
static_assert(given<Averaged> && given<Clipped<Averaged>> && given<optim::Averaged<Clipped<AdamW>>> && given<Rates>);
static_assert(!given<optim::Averaged<NormalizedGd>> && by_element<Averaged> &&
              !by_element<optim::Averaged<Clipped<Sgd>>>);
static_assert(in_rows<AdamW> && in_rows<InGroups<AdamW, Scheduled<Sgd>>>);
static_assert(!in_rows<Averaged> && !in_rows<Rates> && !in_rows<InGroups<Sgd, Scheduled<Rates>>>);
static_assert(!in_rows<optim::Averaged<Sgd>> && in_rows<dist::Zero<Sgd, Shard>>);

}  // namespace

TEST_CASE("norms: detects optimizers with a norm over one shard's gradients") { CHECK(given<Clipped<AdamW>>); }
