#pragma once

#include <stdio.h>  // popen is POSIX
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gatefold/core/error.hpp>
#include <locale>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

/// Helpers for the pictures of all examples: pieces of a gnuplot script, and a function that runs it.
namespace gnuplot {

/// Returns a text as a gnuplot string in single quotes, in which only the single quote is a special character.
inline std::string quote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\n' || c == '\r') continue;  // left out, because a line break would end the command
    quoted += c;
    if (c == '\'') quoted += c;
  }
  return quoted + "'";
}

/// Returns true if gnuplot is on the PATH.
inline bool available() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/gnuplot";
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored) && access(file.c_str(), X_OK) == 0) return true;
  }
  return false;
}

inline std::ostringstream stream() {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // because a decimal comma would begin a new column
  out.precision(7);
  return out;
}
inline std::string number(double value) {
  if (!std::isfinite(value)) return "NaN";
  std::ostringstream out = stream();
  out << value;
  return out.str();
}

/// Returns the gnuplot command that sets the margins of one panel. The arguments are shares of the picture, measured
/// from the lower left.
inline std::string place(double left, double right, double bottom, double top) {
  std::ostringstream out = stream();
  out << "set lmargin at screen " << left << "\nset rmargin at screen " << right << "\nset bmargin at screen " << bottom
      << "\nset tmargin at screen " << top << '\n';
  return out.str();
}

/// Returns a gnuplot data block with one line for each row of numbers.
inline std::string table(const char* name, const std::vector<std::vector<double>>& rows) {
  std::string text = std::string(name) + " << EOD\n";
  for (const auto& row : rows) {
    for (const double value : row) text += number(value) + ' ';
    text += '\n';
  }
  return text + "EOD\n";
}

/// Returns the argument of gnuplot's `set xtics` or `set ytics` for an axis with `count` entries, numbered from 0. The
/// axis gets at most `most` tics, at whole numbers.
inline std::string every(std::size_t count, std::size_t most) {
  return "0," + std::to_string((count + most - 1) / most);
}

/// Returns gnuplot commands that draw a matrix as a colour map, with the first row at the top. gnuplot needs at least
/// two rows and two columns, so a single row or column is doubled. The copy is outside the range that is drawn.
inline std::string map(std::vector<std::vector<double>> rows) {
  const auto end = [](std::size_t count) { return number(static_cast<double>(count) - 0.5); };
  const std::string ranges =
      "set xrange [-0.5:" + end(rows[0].size()) + "]\nset yrange [" + end(rows.size()) + ":-0.5]\n";
  for (auto& row : rows)
    if (row.size() == 1) row.push_back(row[0]);
  if (rows.size() == 1) rows.push_back(rows[0]);
  return table("$map", rows) + ranges + "plot $map matrix with image pixels notitle\n";
}

/// Runs a gnuplot script and writes its picture as one SVG of width x height pixels. If gnuplot is missing, draws
/// nothing. The first such call prints one line.
/// @throws gatefold::FileError if the picture cannot be written; an existing file is unchanged then
inline void draw(const std::filesystem::path& svg, double width, double height, const std::string& body) {
  if (!available()) {
    [[maybe_unused]] static const int told = std::fputs("gnuplot not found: no picture\n", stdout);
    return;
  }
  // The path is absolute, because gnuplot reads '|name' as a command and '~' as a home directory.
  const std::string part = std::filesystem::absolute(svg).string() + ".tmp";
  // The file is checked here, because gnuplot's own message has five lines.
  if (!std::ofstream(part)) throw gatefold::FileError(svg.string() + ": cannot draw: cannot create " + part);
  std::ostringstream script = stream();
  script << "set terminal svg noenhanced size " << width << ',' << height
         << " font 'Helvetica,Arial,sans-serif,12' background '#ffffff'\nset output " << quote(part) << '\n'
         << body << "set output\n";
  const std::string text = script.str();

  // SIGPIPE is ignored, because it would end the program if gnuplot ends early.
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  // If gnuplot cannot write its output file, it writes the picture to stdout.
  std::FILE* pipe = popen("gnuplot >/dev/null", "w");
  const bool sent = pipe && std::fwrite(text.data(), 1, text.size(), pipe) == text.size();
  const int status = pipe ? pclose(pipe) : -1;
  std::signal(SIGPIPE, handler);

  std::error_code error;
  if (sent && status == 0) std::filesystem::rename(part, svg, error);
  if (!sent || status != 0 || error) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw gatefold::FileError(svg.string() + ": cannot draw: " + (error ? error.message() : "gnuplot failed"));
  }
}

}  // namespace gnuplot
