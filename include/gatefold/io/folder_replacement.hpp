#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "gatefold/io/replacement.hpp"

namespace gatefold::io {

/// Writes a folder under a temporary name in the folder of the target; `commit` then gives it the name of the target.
/// Without `commit`, or after an exception, an existing target is unchanged.
///
///     FolderReplacement folder("tuned", {"config.json"});
///     Replacement file(folder.path() / "config.json");
///     …
///     folder.commit();
///
/// An existing target is replaced only if `names` contains the names of all its files, so that no file is lost. The
/// replacement consists of two renames. Between them, for an instant, no folder has the name of the target; its
/// previous content is in TARGET.gatefold.old. A killed writer leaves TARGET.gatefold.tmp, TARGET.gatefold.old, or
/// both. For the same target, the next constructor removes TARGET.gatefold.tmp, and the next `commit` removes
/// TARGET.gatefold.old. Only one program at a time may write to a target.
///
/// @throws FileError with path and reason if the target is not a folder, or has files that are not in `names`. Nothing
///         has been written then
class FolderReplacement {
 public:
  /// @param names  names of the files that the new folder will have
  FolderReplacement(const std::filesystem::path& target, const std::set<std::string>& names)
      : target_(resolved(target)), temporary_(beside(".gatefold.tmp")), old_(beside(".gatefold.old")) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(target_, error);
    if (std::filesystem::exists(status)) {
      if (!std::filesystem::is_directory(status)) fail("cannot write: not a folder");
      for (const auto& entry : std::filesystem::directory_iterator(target_, error))
        if (!names.contains(entry.path().filename().string()))
          fail("cannot replace: expected a new folder, or only files of an earlier save, got " +
               entry.path().filename().string());
      expect_done("cannot open", error);
    }
    std::filesystem::create_directories(target_.parent_path(), error);
    expect_done("cannot create its folder", error);
    std::filesystem::remove_all(temporary_, error);
    expect_done("cannot remove " + temporary_.string(), error);
    std::filesystem::create_directory(temporary_, error);
    expect_done("cannot create " + temporary_.string(), error);
  }
  FolderReplacement(const FolderReplacement&) = delete;
  FolderReplacement& operator=(const FolderReplacement&) = delete;
  ~FolderReplacement() {
    std::error_code ignored;
    if (!committed_) std::filesystem::remove_all(temporary_, ignored);
  }

  /// Returns the folder to which the files are written.
  const std::filesystem::path& path() const { return temporary_; }
  /// Gives the new folder the name of the target. Before this call, all files of the folder must be flushed to the
  /// disk, for example with Replacement::commit.
  void commit() {
    std::error_code error;
    std::filesystem::remove_all(old_, error);
    expect_done("cannot remove " + old_.string(), error);
    const std::filesystem::file_status status = std::filesystem::status(target_, error);
    const bool replaces = std::filesystem::exists(status);
    if (replaces) {
      std::filesystem::permissions(temporary_, status.permissions(), error);
      expect_done("cannot set permissions", error);
      std::filesystem::rename(target_, old_, error);
      expect_done("cannot replace", error);
    }
    std::filesystem::rename(temporary_, target_, error);
    if (error) {
      std::error_code ignored;
      if (replaces) std::filesystem::rename(old_, target_, ignored);
      expect_done("cannot replace", error);
    }
    committed_ = true;
    Replacement::sync_folder(target_.parent_path(), target_.string());
    std::filesystem::remove_all(old_, error);
  }

 private:
  /// Returns the absolute path of a folder, without links and without a slash at the end.
  static std::filesystem::path resolved(const std::filesystem::path& target) {
    if (target.empty()) throw FileError("cannot write: the name of the folder is empty");
    std::error_code error;
    std::filesystem::path path = std::filesystem::weakly_canonical(std::filesystem::absolute(target), error);
    if (error) throw FileError(target.string() + ": cannot open: " + error.message());
    return path.has_filename() ? path : path.parent_path();
  }
  std::filesystem::path beside(const char* ending) const { return std::filesystem::path(target_) += ending; }
  [[noreturn]] void fail(const std::string& what) const { throw FileError(target_.string() + ": " + what); }
  void expect_done(const std::string& what, const std::error_code& error) const {
    if (error) fail(what + ": " + error.message());
  }

  std::filesystem::path target_, temporary_, old_;
  bool committed_ = false;
};

}  // namespace gatefold::io
