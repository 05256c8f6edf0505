#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace studies {

/// Facts about this process that the page of the study shows.
struct Session {
  std::string program{}, title{};      // name and description of the program
  std::vector<std::string> options{};  // of the command line
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::vector<std::filesystem::path> pictures{};  // drawn so far
};

/// Returns the facts about this process. study_main() and draw() write them. Only the main thread may use them.
inline Session& session() {
  static Session of_process;
  return of_process;
}

}  // namespace studies
