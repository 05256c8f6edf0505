#pragma once

#include <algorithm>
#include <cstdio>
#include <gatefold/core/error.hpp>
#include <gatefold/core/types.hpp>
#include <string>
#include <utility>
#include <vector>

#include "metrics.hpp"
#include "progress.hpp"
#include "role.hpp"
#include "routing_json.hpp"
#include "run.hpp"
#include "stop.hpp"

namespace training {

/// Steps until the last one, or until a signal or a number that is not finite. Whichever ends it, the state of the last
/// step done is saved (not of one of several that train together where a number is not finite). A model that saves
/// while steps go on has `wait()`, and writes one file after the other. What --fresh forgets is there until this run
/// writes: what its first step refuses costs nobody a run.
/// @param step      step(): one step of the model; returns the loss before it
/// @param validate  validate(): the goal's value
/// @param routing   routing(): of some items of validation, the same each time
/// @param say       say(loss, value): a sentence about both
/// @param role      of one of several: of those that save together and stop together
/// @return whether it is the last one
template <class Model, class Options, class Step, class Validate, class Route, class Say>
bool take_steps(Model& model, const Options& o, const Folder& folder, const Metadata& metadata, Metrics& metrics,
                const Goal& goal, Items items, const Step& step, const Validate& validate, const Route& routing,
                const Say& say, const Role& role = {}) {
  const auto number = [](Index n) { return static_cast<long long>(n); };
  const Index begun = model.steps(), last = o.stop > 0 ? std::min(o.stop, o.steps) : o.steps;
  Stop stop;
  Progress progress(items, begun, o.steps);
  bool forgotten = !o.fresh;
  const auto forget = [&] {
    if (std::exchange(forgotten, true)) return;
    if (role.reports) folder.forget();
    role.any(false);  // until nothing of another run is in the folder
  };
  // Metrics first: those beyond the state are forgotten, those before it would be missed.
  const auto save = [&] {
    forget();
    if (role.reports) metrics.write();
    model.save(folder.state(), metadata);
  };
  const auto save_last = [&] {
    if (model.steps() == begun) return;
    save();
    if constexpr (requires { model.wait(); }) model.wait();
  };
  while (model.steps() < last && !role.any(stop.asked())) {
    const double loss = [&] {
      try {
        return step();
      } catch (const gatefold::NotFiniteError&) {
        if (role.alone) save_last();
        throw;
      }
    }();
    const Index done = model.steps();
    if (role.reports) progress.show(done, loss);
    if (done % o.log == 0) metrics.add({{"step", done}, {"loss", loss}});
    if (validates(done, o)) {
      const double now = validate();
      const bool better = goal.is_better(now, metrics.best(goal).second);
      Metrics::Json line{{"step", done}, {goal.name, now}};
      if (const std::vector<Routing> layers = routing(); !layers.empty())
        line["layers"] = to_json(layers, metrics.last("layers"), o.k);
      metrics.add(std::move(line));
      if (better) {
        forget();
        model.save(folder.best(), metadata);
      }
      if (role.reports) {
        progress.clear();
        const std::string said = say(loss, now);
        std::printf("step %lld: %s%s\n", number(done), said.c_str(), better ? "" : ", not the best");
        std::fflush(stdout);
      }
    }
    if (done % o.save == 0) save();
  }
  if (role.reports) progress.clear();
  save_last();
  const bool ended = model.steps() == o.steps;
  if (role.reports) {
    if (model.steps() > begun)
      std::printf("%lld steps in %.1f s, %.0f %s/s with validation\n", number(model.steps() - begun),
                  progress.seconds(), progress.rate(model.steps()), items.name);
    if (!ended)
      std::printf("stopped at step %lld of %lld: the same command goes on, without --fresh\n", number(model.steps()),
                  number(o.steps));
    std::fflush(stdout);
  }
  if (!ended && role.alone && stop.asked()) Stop::leave();
  return ended;
}

}  // namespace training
