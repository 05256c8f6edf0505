#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <type_traits>

#include "gatefold/backend/shapes.hpp"
#include "gatefold/io/tensor_map.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/train/checkpoint.hpp"

/// Makes the parameters of a model from a file. The model determines the shapes, and the file has the values. Random
/// values are drawn only if a TensorMap (the names of the tensors in the file) leaves tensors out. gatefold.hpp does
/// not include this header, because the header needs nlohmann-json (CMake target gatefold::io).
namespace gatefold {

namespace io {

/// The type of the parameters of a model on the backend of a context. For a layer or branch, it is the type that `init`
/// returns; for an expert, it is the type of the parameters of the layer that wraps the expert.
template <class T, class C, class M>
using ParametersOf = detail_::lookup::ParametersOf<M, T, typename C::Backend>;

/// Returns the parameters of a model as tensors with extents but without elements (backend Shapes).
/// @throws ArgumentError if `init` of the model throws ArgumentError because of the model's options
template <class T, class M>
auto shapes_of(const M& model) {
  Shapes::Context ctx;
  return init_params<T, Shapes>(detail_::lookup::with_init<T, Shapes>(model), ctx, Seed{});
}
/// Returns parameters of a model with the shapes that `init` gives them. Elements are not initialised.
/// @throws ArgumentError if `init` of the model throws ArgumentError because of the model's options
template <class T, class C, class M>
ParametersOf<T, C, M> uninitialised_parameters(C& ctx, const M& model) {
  const auto here = ctx.here();
  ParametersOf<T, C, M> params;
  shape_like(params, shapes_of<T>(model));
  return params;
}

/// Returns the parameters of a model from a safetensors file that has exactly their tensors:
///
///     io::save("model.safetensors", ctx, {}, io::Part{"", params});
///     auto params = io::load("model.safetensors", ctx, model);              // float parameters
///     auto exact = io::load<double>("exact.safetensors", ctx, model);
///
/// @param prefix  prefix of the names in the file, for example "params" for a file of Part{"params", params}. For the
///                parameters inside a checkpoint, use `load_model(path, ctx, model)`
/// @throws FileError under the same conditions as `load` of parts, with the name of a tensor that is missing,
///         unexpected or of a different type or shape; ArgumentError if `init` of the model throws ArgumentError
///         because of the model's options
/// @cost   the cost of `load` of parts; parameters are allocated once and written once
template <class T = float, class C, class M, class = std::enable_if_t<has_dims<M>>>
ParametersOf<T, C, M> load(const std::filesystem::path& path, C& ctx, const M& model, const std::string& prefix = "") {
  auto params = uninitialised_parameters<T>(ctx, model);
  load(path, ctx, Part{prefix, params});
  return params;
}
/// Returns the parameters of a model from files of a different library. The TensorMap gives the name of each tensor in
/// the files:
///
///     auto params = io::load(io::TensorFiles(path), ctx, io::published::mixtral("model.layers.0.mlp."), block);
///
/// @param seed  seed of the tensors that the map leaves out (an empty `theirs`). If there are any, `init` first sets
///              all parameters with this seed. The values of the files then overwrite all parameters that the map names
/// @throws ArgumentError, FileError under the same conditions as `load` with a TensorMap
/// @cost   memory for the parameters; in addition host memory for four blocks of 1 MiB, or for four copies of the
///         largest matrix if it has more than 1 MiB
template <class T = float, class C, class M, class = std::enable_if_t<has_dims<M>>>
ParametersOf<T, C, M> load(const TensorFiles& files, C& ctx, const TensorMap& map, const M& model, Seed seed = {}) {
  using B = typename C::Backend;
  const bool all = std::none_of(map.begin(), map.end(), [](const MapEntry& entry) { return entry.theirs.empty(); });
  auto params = all ? uninitialised_parameters<T>(ctx, model)
                    : init_params<T, B>(detail_::lookup::with_init<T, B>(model), ctx, seed);
  tensor_map::fill(files, ctx, map, params);
  return params;
}
template <class T = float, class C, class M, class = std::enable_if_t<has_dims<M>>>
ParametersOf<T, C, M> load(const std::filesystem::path& path, C& ctx, const TensorMap& map, const M& model,
                           Seed seed = {}) {
  return load<T>(TensorFiles(path), ctx, map, model, seed);
}

}  // namespace io

/// Returns the parameters of a model from a checkpoint of a Trainer. Calls the overload of `load_model` that fills
/// existing parameters.
///
///     auto params = load_model("run.safetensors", ctx, model);
///
/// @throws FileError under the same conditions as the overload that fills existing parameters; ArgumentError if the
///         options of the model are invalid
template <class T = float, class C, class M, class = std::enable_if_t<io::has_dims<M>>>
io::ParametersOf<T, C, M> load_model(const std::filesystem::path& path, C& ctx, const M& model) {
  auto params = io::uninitialised_parameters<T>(ctx, model);
  load_model(path, ctx, params);
  return params;
}

}  // namespace gatefold
