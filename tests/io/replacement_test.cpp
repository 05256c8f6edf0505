#include "gatefold/io/replacement.hpp"

#include <doctest/doctest.h>

#if defined(__linux__)

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/system_calls.hpp"
#include "support/temp_directory.hpp"

using gatefold::FileError;
using gatefold::io::Replacement;
using gatefold::support::read_bytes;
using gatefold::support::TempDirectory;
namespace fs = std::filesystem;

namespace {

/// One system call of the library.
struct Call {
  enum Kind { write, sync, sync_folder, rename } kind;
  std::string file;   // the file that was written, or the old name
  std::string bytes;  // the bytes that were written, or the new name
};
std::vector<Call>* calls = nullptr;  // where calls are recorded

std::string name_of(int file) {
  char path[4096];
  const auto n = ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path);
  return n < 0 ? "" : fs::path(std::string(path, static_cast<std::size_t>(n))).filename().string();
}

void note(const gatefold::support::SystemCall& call) {
  using gatefold::support::SystemCall;
  struct stat now {};
  if (call.kind == SystemCall::write) calls->push_back({Call::write, name_of(call.file), std::string(call.bytes)});
  if (call.kind == SystemCall::sync && ::fstat(call.file, &now) == 0)
    calls->push_back({S_ISDIR(now.st_mode) ? Call::sync_folder : Call::sync, name_of(call.file), {}});
  if (call.kind == SystemCall::rename)
    calls->push_back({Call::rename, fs::path(call.from).filename().string(), fs::path(call.to).filename().string()});
}

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
void replace(const fs::path& path, const std::string& text) {
  Replacement file(path);
  file.write(text.data(), text.size() / 3);
  file.write(text.data() + text.size() / 3, text.size() - text.size() / 3);
  file.commit();
}
std::string refusal(const fs::path& path) {
  try {
    replace(path, "new");
  } catch (const FileError& e) {
    return e.what();
  }
  return "";
}
mode_t mode(const fs::path& path) {
  struct stat now {};
  REQUIRE(::lstat(path.c_str(), &now) == 0);
  return now.st_mode & 07777;
}

/// Returns the text of version n. A mixture of two versions, or a part of one, can be recognised.
std::string version(int n) {
  const std::string line = "version " + std::to_string(n) + "\n";
  std::string text;
  while (text.size() < 200'000) text += line;
  return text + "end";
}
bool is_a_version(const std::string& text) { return text.size() > 8 && text == version(std::stoi(text.substr(8))); }

}  // namespace

TEST_CASE("Replacement: keeps the mode; new files follow the umask") {
  const TempDirectory temp;
  const mode_t before = ::umask(027);
  replace(temp.file(), "first");
  CHECK(mode(temp.file()) == 0640);
  ::umask(before);
  for (const mode_t m : {0600, 0444 | 0200, 0755, 0664}) {
    REQUIRE(::chmod(temp.file().c_str(), m) == 0);
    replace(temp.file(), "next");
    CHECK(mode(temp.file()) == m);
    CHECK(read_bytes(temp.file()) == "next");
  }
}

TEST_CASE("Replacement: a symbolic link stays; its target is replaced") {
  const TempDirectory temp;
  fs::create_directory(temp.path / "away");
  put(temp.path / "away" / "target", "old");
  fs::create_symlink("away/target", temp.path / "link");
  fs::create_symlink("link", temp.path / "link_to_link");
  replace(temp.path / "link_to_link", "new");
  CHECK(fs::is_symlink(temp.path / "link_to_link"));
  CHECK(fs::is_symlink(temp.path / "link"));
  CHECK(read_bytes(temp.path / "away" / "target") == "new");
  // A link whose target does not exist yet.
  fs::create_symlink("away/other", temp.path / "dangling");
  replace(temp.path / "dangling", "first");
  CHECK(read_bytes(temp.path / "away" / "other") == "first");
  CHECK(temp.entries() == 4);
  // Two links that point to each other.
  fs::create_symlink("other_circle", temp.path / "circle");
  fs::create_symlink("circle", temp.path / "other_circle");
  CHECK(refusal(temp.path / "circle") ==
        (temp.path / "circle").string() + ": cannot write: Too many levels of symbolic links");
  CHECK(fs::is_symlink(temp.path / "circle"));
  CHECK(temp.entries() == 6);
}

TEST_CASE("Replacement: read-only files and pipes throw, also for root") {
  const TempDirectory temp;
  put(temp.file(), "old");
  REQUIRE(::chmod(temp.file().c_str(), 0444) == 0);
  CHECK(refusal(temp.file()) == temp.file().string() + ": cannot write: the file is read-only");
  CHECK(read_bytes(temp.file()) == "old");
  const fs::path pipe = temp.path / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refusal(pipe) == pipe.string() + ": cannot write: not a regular file");
  CHECK(temp.entries() == 2);
  CHECK(refusal("/proc/gatefold").starts_with("/proc/gatefold: cannot create "));  // a folder that takes no files
  CHECK(refusal("") == "cannot write: the name of the file is empty");
}

TEST_CASE("Replacement: accepts the longest names of the file system") {
  const TempDirectory temp;
  for (const std::size_t length : {250, 255}) {
    const fs::path path = temp.path / std::string(length, 'n');
    replace(path, "first");
    replace(path, "second");
    CHECK(read_bytes(path) == "second");
  }
  CHECK(temp.entries() == 2);
}

TEST_CASE("Replacement: removes only temporary files of killed writers") {
  const TempDirectory temp;
  fs::path left;
  const pid_t child = ::fork();
  if (child == 0) {
    Replacement file(temp.file());
    file.write("half", 4);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(temp.entries() == 1);  // the leftover
  put(temp.path / "file.tmp", "somebody else's");
  put(temp.path / "file.7.tmp", "somebody else's");

  Replacement living(temp.path / "file");
  living.write("living", 6);
  CHECK(temp.entries() == 3);  // the file of the killed writer is gone, that of the living one is there
  replace(temp.file(), "other");
  CHECK(temp.entries() == 4);
  living.commit();
  CHECK(read_bytes(temp.file()) == "living");
  CHECK(temp.entries() == 3);
  CHECK(read_bytes(temp.path / "file.tmp") == "somebody else's");
}

TEST_CASE("Replacement: without commit only the old file remains") {
  const TempDirectory temp;
  put(temp.file(), "old");
  {
    Replacement file(temp.file());
    file.write("new", 3);
  }
  CHECK(read_bytes(temp.file()) == "old");
  CHECK(temp.entries() == 1);
}

TEST_CASE("Replacement: power loss leaves the old or new file, complete") {
  if (!gatefold::support::hears_system_calls) return;  // the address sanitizer hides system calls from tests
  const TempDirectory temp;
  const std::string before = version(1), after = version(2);
  put(temp.file(), before);
  std::vector<Call> log;
  calls = &log;
  gatefold::support::on_system_call = note;
  replace(temp.file(), after);
  gatefold::support::on_system_call = nullptr;
  REQUIRE(log.size() >= 5);
  // After a power loss, the disk holds what was synced of each file, and possibly a part of later writes. Of the
  // renames since the last sync of the folder, the first few are done, possibly none or all.
  int old_ones = 0, new_ones = 0;
  std::mt19937 random(1);
  for (std::size_t cut = 0; cut <= log.size(); ++cut)
    for (int turn = 0; turn < 20; ++turn) {
      struct OnDisk {
        std::string synced, since;
      };
      std::map<std::string, OnDisk> files{{"file", {before, ""}}};
      std::map<std::string, std::string> names{{"file", "file"}};  // name → file on the disk
      std::vector<std::pair<std::string, std::string>> renames;    // not synced yet
      for (std::size_t i = 0; i < cut; ++i) {
        const Call& call = log[i];
        if (call.kind == Call::write) files[call.file].since += call.bytes;
        if (call.kind == Call::sync) files[call.file].synced += std::exchange(files[call.file].since, "");
        if (call.kind == Call::rename) renames.emplace_back(call.bytes, call.file);
        if (call.kind == Call::sync_folder)
          for (const auto& [to, from] : std::exchange(renames, {})) names[to] = from;
      }
      const std::size_t renamed = random() % (renames.size() + 1);
      for (std::size_t i = 0; i < renamed; ++i) names[renames[i].first] = renames[i].second;
      const OnDisk& found = files[names["file"]];
      const std::string text =
          found.synced + found.since.substr(0, found.since.empty() ? 0 : random() % found.since.size());
      CHECK((text == before || text == after));
      old_ones += text == before;
      new_ones += text == after;
      if (cut == log.size()) CHECK(text == after);
    }
  CHECK(old_ones > 0);
  CHECK(new_ones > 0);
}

namespace {

/// Kills, at random moments, a process that saves version after version. Then reads the file and saves again.
void check_kills(int kills) {
  const TempDirectory temp;
  replace(temp.file(), version(0));
  std::mt19937 random(2);
  int between = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const pid_t child = ::fork();
    if (child == 0)
      for (int n = 1;; ++n) replace(temp.file(), version(n));
    ::usleep(static_cast<useconds_t>(1000 + random() % 20'000));
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    REQUIRE(is_a_version(read_bytes(temp.file())));
    between += temp.entries() > 1;
    replace(temp.file(), version(0));
    REQUIRE(temp.entries() == 1);
  }
  CHECK(between > 0);  // some were killed during a save
}

}  // namespace

TEST_CASE("Replacement: survives kill -9 at random moments") { check_kills(20); }
TEST_CASE("Replacement: survives kill -9 at 300 random moments" * doctest::skip()) { check_kills(300); }

#endif
