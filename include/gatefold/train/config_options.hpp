#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/io/json.hpp"

namespace gatefold::io::config_json {

/// Reads single options of config.json. An option with the value null counts as absent.
template <class Json>
class Options {
 public:
  Options(const std::string& path, const Json& all) : path_(path), all_(all) {}

  bool has(const char* name) const { return all_.contains(name) && !all_[name].is_null(); }
  bool is_null(const char* name) const { return all_.contains(name) && all_[name].is_null(); }
  Index integer(const char* name) const {
    if (!has(name)) fail(name, "an integer", "nothing");
    return integer(name, 0);
  }
  /// Returns the integer option `name`, or `otherwise` if it is absent. Throws FileError for negative integers and
  /// integers above 1e9, so that products of two sizes do not overflow.
  Index integer(const char* name, Index otherwise) const {
    if (!has(name)) return otherwise;
    expect_integer(name, all_[name], kMost);
    return all_[name].template get<Index>();
  }
  /// Returns the integer option `name`, which must be at least `least`.
  Index at_least(Index least, const char* name) const {
    const Index value = integer(name);
    if (value < least) fail(name, "at least " + std::to_string(least));
    return value;
  }
  Index at_least(Index least, const char* name, Index otherwise) const {
    return has(name) ? at_least(least, name) : otherwise;
  }
  double number(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    if (!all_[name].is_number()) fail(name, "a number");
    return all_[name].template get<double>();
  }
  bool flag(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!all_[name].is_boolean()) fail(name, "true or false");
    return all_[name].template get<bool>();
  }
  /// Returns the flag `name`, which the file can store as true or false or as a number. The number 0 means false.
  bool flag_or_number(const char* name, bool otherwise) const {
    return has(name) && all_[name].is_number() ? number(name, 0) != 0 : flag(name, otherwise);
  }
  std::string text(const char* name, const std::string& otherwise) const {
    if (!has(name)) return otherwise;
    if (!all_[name].is_string()) fail(name, "a text");
    return all_[name].template get<std::string>();
  }
  std::vector<Index> integers(const char* name, Index most = kMost) const {
    std::vector<Index> list;
    if (!has(name)) return list;
    if (!all_[name].is_array()) fail(name, "a list of integers");
    for (const Json& one : all_[name]) {
      expect_integer(name, one, most);
      list.push_back(one.template get<Index>());
    }
    return list;
  }
  /// Returns the indices of layers, from 0, that the option `name` lists. The model has `depth` layers.
  std::vector<Index> layers(const char* name, Index depth) const {
    if (has(name) && all_[name].is_array() && all_[name].size() > static_cast<std::size_t>(depth))
      fail(name, "at most " + std::to_string(depth) + " layers", std::to_string(all_[name].size()));
    return integers(name, depth - 1);
  }
  std::vector<std::string> texts(const char* name) const {
    std::vector<std::string> list;
    if (!has(name)) return list;
    if (!all_[name].is_array()) fail(name, "a list of texts");
    for (const Json& one : all_[name]) {
      if (!one.is_string()) fail(name, "a list of texts");
      list.push_back(one.template get<std::string>());
    }
    return list;
  }
  /// Returns the options inside the object `name`, or a copy of this Options if the file has no such object.
  Options inside(const char* name) const {
    if (!has(name)) return *this;
    if (!all_[name].is_object()) fail(name, "an object");
    return {path_, all_[name]};
  }
  /// Calls f. If f throws ArgumentError, throws a FileError instead, with the path of the file before the message.
  /// @param prefix  text before the name of the option in messages of f, for example "rotary."; the FileError omits
  ///         this text and everything before it
  template <class F>
  void check(const std::string& prefix, const F& f) const {
    try {
      f();
    } catch (const ArgumentError& error) {
      const std::string text = error.what();
      const std::size_t at = text.find(prefix);
      throw FileError(path_ + ": " + (at == text.npos ? text : text.substr(at + prefix.size())));
    }
  }
  [[noreturn]] void fail(const char* name, const std::string& expected, std::string got = "") const {
    if (got.empty()) got = has(name) ? text_of(all_[name]) : "nothing";
    throw FileError(path_ + ": " + name + ": expected " + expected + ", got " + got.substr(0, 200));
  }

 private:
  static constexpr Index kMost = 1'000'000'000;

  static std::string text_of(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace); }
  void expect_integer(const char* name, const Json& value, Index most) const {
    const double v = value.is_number_integer() ? value.template get<double>() : -1;
    if (v < 0 || v > static_cast<double>(most))
      fail(name, "an integer from 0 to " + std::to_string(most), text_of(value));
  }

  std::string path_;
  const Json& all_;
};

}  // namespace gatefold::io::config_json
