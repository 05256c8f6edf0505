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

/// What the pictures of all examples share: pieces of a gnuplot script, and running it.
namespace gnuplot {

/// A string of gnuplot: between single quotes nothing is special but the quote itself.
inline std::string quote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\n' || c == '\r') continue;  // would end the command
    quoted += c;
    if (c == '\'') quoted += c;
  }
  return quoted + "'";
}

/// Whether the shell would find gnuplot.
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
  out.imbue(std::locale::classic());  // a decimal comma would be a second column
  out.precision(7);
  return out;
}
inline std::string number(double value) {
  if (!std::isfinite(value)) return "NaN";
  std::ostringstream out = stream();
  out << value;
  return out.str();
}

/// Margins of one panel, as shares of the picture from the lower left.
inline std::string place(double left, double right, double bottom, double top) {
  std::ostringstream out = stream();
  out << "set lmargin at screen " << left << "\nset rmargin at screen " << right << "\nset bmargin at screen " << bottom
      << "\nset tmargin at screen " << top << '\n';
  return out.str();
}

/// A block of rows `x y…`.
inline std::string table(const char* name, const std::vector<std::vector<double>>& rows) {
  std::string text = std::string(name) + " << EOD\n";
  for (const auto& row : rows) {
    for (const double value : row) text += number(value) + ' ';
    text += '\n';
  }
  return text + "EOD\n";
}

/// The tics of an axis along `count` things from 0 on: whole numbers, `most` of them at most.
inline std::string every(std::size_t count, std::size_t most) {
  return "0," + std::to_string((count + most - 1) / most);
}

/// A map of colours, row by row from the top, where multiplot stands. gnuplot wants two rows and two columns: what is
/// alone is there twice, the second out of range.
inline std::string map(std::vector<std::vector<double>> rows) {
  const auto end = [](std::size_t count) { return number(static_cast<double>(count) - 0.5); };
  const std::string ranges =
      "set xrange [-0.5:" + end(rows[0].size()) + "]\nset yrange [" + end(rows.size()) + ":-0.5]\n";
  for (auto& row : rows)
    if (row.size() == 1) row.push_back(row[0]);
  if (rows.size() == 1) rows.push_back(rows[0]);
  return table("$map", rows) + ranges + "plot $map matrix with image pixels notitle\n";
}

/// Run a script whose picture becomes one SVG of width x height pixels. Without gnuplot, say so once and go on.
/// @throws gatefold::FileError when the picture cannot be written; a file that was there is untouched then
inline void draw(const std::filesystem::path& svg, double width, double height, const std::string& body) {
  if (!available()) {
    [[maybe_unused]] static const int told = std::fputs("gnuplot not found: no picture\n", stdout);
    return;
  }
  // Absolute, because gnuplot takes '|name' for a command and '~' for a home directory.
  const std::string part = std::filesystem::absolute(svg).string() + ".tmp";
  // gnuplot would say it in five lines.
  if (!std::ofstream(part)) throw gatefold::FileError(svg.string() + ": cannot draw: cannot create " + part);
  std::ostringstream script = stream();
  script << "set terminal svg noenhanced size " << width << ',' << height
         << " font 'Helvetica,Arial,sans-serif,12' background '#ffffff'\nset output " << quote(part) << '\n'
         << body << "set output\n";
  const std::string text = script.str();

  // A gnuplot that dies early must not take the program with it.
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  std::FILE* pipe = popen("gnuplot >/dev/null", "w");  // where it would draw if the output fails
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
