#pragma once

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <gatefold/core/error.hpp>
#include <gatefold/io.hpp>
#include <string>
#include <system_error>
#include <type_traits>

namespace training {

using gatefold::io::Metadata;

/// The files of a run: its complete state, the model that was best on validation, metrics, pictures and a page.
struct Folder {
  std::filesystem::path path;
  const char* drawn;  // file name of the picture

  std::filesystem::path state() const { return path / "state.safetensors"; }
  std::filesystem::path best() const { return path / "best.safetensors"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path picture() const { return path / drawn; }
  std::filesystem::path routing() const { return path / "routing.svg"; }
  std::filesystem::path page() const { return path / "report.html"; }
  std::filesystem::path shards() const { return path / "shards.jsonl"; }
  std::filesystem::path shards_picture() const { return path / "shards.svg"; }

  /// Returns the names of the run's files that exist.
  std::string files() const {
    std::string names;
    for (const auto& file : {state(), best(), metrics(), picture(), routing(), page(), shards(), shards_picture()})
      if (std::filesystem::exists(file)) names += (names.empty() ? "" : ", ") + file.filename().string();
    return names;
  }
  /// Makes the folder if it does not exist.
  void make() const {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error || !std::filesystem::is_directory(path))
      throw gatefold::FileError(path.string() + ": cannot make this folder" + (error ? ": " + error.message() : ""));
  }
  /// Deletes the files of the run from the folder.
  void forget() const {
    std::error_code error;
    for (const auto& file : {state(), best(), metrics(), picture(), routing(), page(), shards(), shards_picture()}) {
      std::filesystem::remove(file, error);
      if (error) throw gatefold::FileError(file.string() + ": cannot remove: " + error.message());
    }
  }
};

/// Resolves a path relative to the folder of the program, so that a run leaves no file outside the build folder.
inline std::string from_program(const char* name) {
  std::error_code error;
  const auto program = std::filesystem::canonical("/proc/self/exe", error);
  return error ? std::string(name) : (program.parent_path() / name).lexically_normal().string();
}

/// Converts an option to text. from_text converts it back to the same bits.
template <class T>
std::string to_text(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else {
    char text[40];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }
}
template <class T>
bool from_text(const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    value = text == "true";
    return value || text == "false";
  } else {
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stopped == end;
  }
}

/// Returns the metadata of a checkpoint: the program, the options of the run, and the hash of the data.
/// @param data  key under which the metadata have `hash`, for example "text" or "images"
template <class Options>
Metadata describe(const char* program, const char* data, std::uint64_t hash, const Options& o) {
  Metadata metadata{{"program", std::string("gatefold ") + program}, {data, to_text(hash)}};
  Options::each_of_run([&](const char* name, const auto& value) { metadata[name] = to_text(value); }, o);
  return metadata;
}

/// Returns text for the end of an error message. During training, it says that --fresh begins a new run.
template <class Options>
const char* or_afresh(const Options& o) {
  return o.command == "train" ? " (--fresh starts a new run)" : "";
}

/// Calls f(), which reads a file of a run. If f throws FileError, appends or_afresh(o) to the message.
/// @throws FileError if f throws it; during training, the message also says how to begin a new run
template <class Options, class F>
void on_run(const Options& o, const F& f) {
  try {
    f();
  } catch (const gatefold::FileError& error) {
    throw gatefold::FileError(std::string(error.what()) + or_afresh(o));
  }
}

/// Sets `o` to the options of a run, which are read from its checkpoint.
/// @param given  given(name) is true if the command line has the option; its value must then agree with the run
template <class Options, class Given>
void adopt(const std::filesystem::path& file, Options& o, const Given& given) {
  const Metadata metadata = gatefold::io::read_metadata(file);
  Options::each_of_run(
      [&](const char* name, auto& value) {
        const auto found = metadata.find(name);
        const auto fail = [&](const std::string& reason) {
          throw gatefold::FileError(file.string() + ": metadata: " + name + ": " + reason);
        };
        if (found == metadata.end()) fail("missing: this file is not a checkpoint of this program");
        if (given(name) && found->second != to_text(value))
          fail("expected " + found->second + ", as in the run, got " + to_text(value));
        if (!from_text(found->second, value)) fail("not a valid value: " + found->second);
      },
      o);
}

/// @throws FileError unless the checkpoint was made from data with this hash
inline void expect_same(const std::filesystem::path& file, const char* data, std::uint64_t hash) {
  const Metadata metadata = gatefold::io::read_metadata(file);
  const auto found = metadata.find(data);
  if (found == metadata.end() || found->second != to_text(hash))
    throw gatefold::FileError(file.string() + ": metadata: " + data + ": expected the data of the run, got other data");
}

}  // namespace training
