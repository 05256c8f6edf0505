#pragma once

#include <sys/resource.h>
#include <unistd.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <gatefold/core/error.hpp>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

/// Checks of options, and exit codes, that the programs share. The exit code is 0 after success, 2 if an option, file
/// or size is invalid (one line on stderr says which), 1 after any other error.
namespace command_line {

/// Accepts finite numbers above 0; if `or_zero` is true, also 0. CLI11's own checks accept NaN, and their messages
/// print the largest double with 309 digits.
inline CLI::Validator above_zero(bool or_zero = false) {
  const auto refuse = [or_zero](const std::string& text) {
    double value = 0;
    const bool fits =
        CLI::detail::lexical_cast(text, value) && std::isfinite(value) && (or_zero ? value >= 0 : value > 0);
    return fits ? std::string() : "Value " + text + (or_zero ? " is no number from 0 on" : " is no number above 0");
  };
  return {refuse, or_zero ? "NONNEGATIVE" : "POSITIVE"};
}

/// Accepts numbers between two bounds. Unlike CLI::Range, it refuses NaN.
inline CLI::Validator within(double least, double most) {
  const auto refuse = [least, most](const std::string& text) {
    double value = 0;
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    char bounds[80];
    std::snprintf(bounds, sizeof bounds, " is no number from %.10g to %.10g", least, most);
    return fits ? std::string() : "Value " + text + bounds;
  };
  return {refuse, "NUMBER"};
}

/// Refuses whole numbers that begin with 0, because CLI11 reads 010 as 8.
inline void refuse_octal(CLI::App& app) {
  const auto refuse = [](const std::string& text) {
    const std::size_t zero = text.find_first_not_of("+-"), next = text.find_first_of("0123456789", zero + 1);
    const bool octal = zero < text.size() && text[zero] == '0' && next == zero + 1;
    return octal ? "Value " + text + " begins with 0" : std::string();
  };
  for (CLI::Option* option : app.get_options(nullptr)) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT") || type.starts_with("UINT")) option->check(CLI::Validator(refuse, ""));
  }
}

/// Refuses unknown options with a clear message. CLI11 would complain about the value of a mistyped option, which it
/// treats as a positional argument.
inline void refuse_unknown(const CLI::App& app, int argc, char** argv) {
  for (int i = 1; i < argc && argv[i] != std::string("--"); ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const bool option = name.size() > 1 && name[0] == '-' && name.find_first_of("0123456789.") != 1;
    if (!option) continue;
    const CLI::Option* const known = app.get_option_no_throw(name);
    if (!known) throw CLI::ExtrasError(std::vector<std::string>{name});
    if (name == argument) i += known->get_expected_min();  // skips the option's values, which can begin with -
  }
}

/// Accepts a seed from 0 to 2⁶⁴ − 1 − `room`. CLI11 itself turns −1, and numbers that are too large, into the largest
/// number.
inline CLI::Validator seed(std::uint64_t room = 0) {
  const auto refuse = [room](const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::uint64_t most = ~std::uint64_t(0) - room;
    const bool fits = error == std::errc() && end == text.data() + text.size() && value <= most;
    return fits ? std::string() : "Value " + text + " is no whole number from 0 to " + std::to_string(most);
  };
  return {refuse, "SEED"};
}

/// Limits the memory of this process to the free memory, so that an allocation that is too large fails. Without the
/// limit, Linux would grant the allocation, and kill the process when it uses the memory.
inline void limit_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // a sanitizer's shadow memory exceeds any limit
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
  return;
#endif
#endif
  rlim_t free = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string name, unit; info >> name >> free; std::getline(info, unit))
    if (name == "MemAvailable:") break;
  rlimit limit{};
  if (!info || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min({limit.rlim_cur, limit.rlim_max, free * 1024});
  setrlimit(RLIMIT_DATA, &limit);
}

/// Flushes stdout.
/// @throws std::runtime_error if some of the printed text could not be written, for example to a full disk
inline void expect_printed() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw std::runtime_error("standard output: cannot write all of it");
}

/// Parses the command line and calls body(), which does the work of the program. Returns the exit code.
inline int run(const char* program, CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  const auto refuse = [program](std::string reason, int code) {
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    std::fprintf(stderr, "%s: %s\n", program, reason.c_str());
    return code;
  };
  try {
    try {
      refuse_octal(app);
      refuse_unknown(app, argc, argv);
      app.parse(argc, argv);
      body();
    } catch (const CLI::Success& help) {
      app.exit(help);
    }
    expect_printed();
  } catch (const CLI::ParseError& error) {
    return refuse(error.what(), 2);
  } catch (const gatefold::Error& error) {
    return refuse(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return refuse("sizes: there is not enough memory for these sizes", 2);
  } catch (const std::length_error&) {
    return refuse("sizes: there is not enough memory for these sizes", 2);
  } catch (const std::exception& error) {
    return refuse(error.what(), 1);
  }
  return 0;
}

}  // namespace command_line
