#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

/// Helpers for pages that consist of one HTML file and refer to no other file.
namespace html {

/// Returns a text in which no character has a meaning in HTML, neither between tags nor in a quoted attribute.
inline std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

/// Returns an element with an escaped text.
inline std::string element(const std::string& tag, std::string_view text) {
  return '<' + tag + '>' + escaped(text) + "</" + tag + '>';
}

using Cells = std::vector<std::string>;

/// Returns a row of a table.
/// @param tag  td for data, th for a header
inline std::string row(const Cells& cells, const std::string& tag = "td") {
  std::string text = "<tr>";
  for (const std::string& cell : cells) text += element(tag, cell);
  return text + "</tr>\n";
}
/// Returns a table. On a narrow screen, it scrolls in its own box.
inline std::string table(const Cells& header, const std::vector<Cells>& rows) {
  std::string text = "<div><table>\n";
  if (!header.empty()) text += row(header, "th");
  for (const Cells& cells : rows) text += row(cells);
  return text + "</table></div>\n";
}

/// Returns the bytes in base64 (RFC 4648).
inline std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      group = group << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0);
    for (std::size_t j = 0; j < 4; ++j) out += i + j <= bytes.size() ? digits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns a picture as an element of a page: an SVG as the element svg, a PNG as an img with its bytes. Returns an
/// empty text if the file is missing or is no SVG.
inline std::string picture(const std::filesystem::path& path) {
  std::string text = content(path);
  const std::string name = path.stem().string();
  if (path.extension() == ".png") {
    if (text.empty()) return {};
    return "<figure><img alt=\"" + escaped(name) + "\" src=\"data:image/png;base64," + base64(text) + "\"></figure>\n";
  }
  const std::size_t begin = text.find("<svg");
  if (begin == std::string::npos) return {};
  text.erase(0, begin);
  // gnuplot gives the same ids to the elements of all pictures. In one page, ids must differ.
  for (const std::string before : {" id=\"", " id='", "href=\"#", "href='#", "url(#"})
    for (std::size_t at = 0; (at = text.find(before, at)) != std::string::npos;) {
      at += before.size();
      text.insert(at, escaped(name) + '_');
    }
  return "<figure>" + text + "</figure>\n";
}

/// Returns a page. Wide tables and pictures scroll in their own boxes, so that the page can be read on a phone.
inline std::string page(const std::string& title, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n" +
         element("title", title) +
         "\n<style>body{font:15px/1.4 sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;color:#202020}"
         "figure{margin:1em 0}figure,div{overflow-x:auto}svg,img{max-width:100%;min-width:500px;height:auto}"
         "table{border-collapse:collapse;font-size:14px}"
         "td,th{padding:2px 12px 2px 0;border-bottom:1px solid #e6e6e6;vertical-align:top;text-align:left}"
         "pre{white-space:pre-wrap;overflow-wrap:anywhere}section{display:flex;flex-wrap:wrap;gap:3em}</style>\n"
         "</head>\n<body>\n" +
         element("h1", title) + '\n' + body + "</body>\n</html>\n";
}

}  // namespace html
