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

/// Runs training steps until the last step is done, a signal is received, or a number is not finite.
///
/// - At the end, the state after the last complete step is saved. Exception: if several processes or shards train
///   together, a number that is not finite ends the run without saving.
/// - A model can write a file while training continues. Such a model has a member `wait()`, and writes one file at a
///   time.
/// - With --fresh, the previous run is deleted only when this run writes its first file. If the first step fails, no
///   run is lost.
///
/// @param step      step() runs one step of the model and returns the loss before the step
/// @param validate  validate() returns the value of the goal
/// @param routing   routing() returns the routing of some validation items, which are the same each time
/// @param say       say(loss, value) returns a text about the training loss and the value of the goal, for the line
///   that is printed after each validation
/// @param role      role of this process or shard; all processes and shards of one run save and stop together
/// @return true if the run has reached its last step
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
    role.any(false);  // waits until the previous run is deleted
  };
  // Saves the metrics first: a later reread() drops lines after the step of the state, but fails if earlier lines are
  // missing.
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
