#include "gatefold/io/folder_replacement.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "support/temp_directory.hpp"
#include "support/text_file.hpp"

using gatefold::io::FolderReplacement;
using gatefold::io::Replacement;
using gatefold::support::read_bytes;
using gatefold::support::refusal;
using gatefold::support::TempDirectory;

namespace {

void write(const FolderReplacement& folder, const std::string& name, const std::string& text) {
  Replacement file(folder.path() / name);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace

TEST_CASE("FolderReplacement: commit makes and replaces a folder") {
  const TempDirectory temp;
  for (const char* target : {"a/b/new", "a/b/new", "a/b/new/"})
    for (const std::string text : {"one", "two"}) {
      FolderReplacement folder(temp.path / target, {"x", "y"});
      write(folder, "x", text);
      write(folder, "y", "y" + text);
      folder.commit();
      CHECK(read_bytes(temp.path / "a/b/new/x") == text);
      CHECK(read_bytes(temp.path / "a/b/new/y") == "y" + text);
      CHECK(std::distance(std::filesystem::directory_iterator(temp.path / "a/b"), {}) == 1);
    }
}

TEST_CASE("FolderReplacement: without commit the target is unchanged") {
  const TempDirectory temp;
  std::filesystem::create_directory(temp.path / "a");
  temp.write("old", "a/x");
  {
    FolderReplacement folder(temp.path / "a", {"x"});
    write(folder, "x", "new");
    CHECK(read_bytes(temp.path / "a/x") == "old");
  }
  CHECK(read_bytes(temp.path / "a/x") == "old");
  CHECK(temp.entries() == 1);
}

TEST_CASE("FolderReplacement: removes what a killed writer left") {
  const TempDirectory temp;
  for (const char* left : {"a.gatefold.tmp", "a.gatefold.old"}) {
    std::filesystem::create_directory(temp.path / left);
    temp.write("left", std::string(left) + "/z");
  }
  FolderReplacement folder(temp.path / "a", {"x"});
  write(folder, "x", "new");
  folder.commit();
  CHECK(temp.entries() == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(temp.path / "a"), {}) == 1);
}

TEST_CASE("FolderReplacement: a link to a folder stays a link") {
  const TempDirectory temp;
  std::filesystem::create_directory(temp.path / "real");
  std::filesystem::create_directory_symlink(temp.path / "real", temp.path / "link");
  FolderReplacement folder(temp.path / "link", {"x"});
  write(folder, "x", "new");
  folder.commit();
  CHECK(std::filesystem::is_symlink(temp.path / "link"));
  CHECK(read_bytes(temp.path / "real/x") == "new");
}

TEST_CASE("FolderReplacement: refuses targets with other files") {
  const TempDirectory temp;
  const std::string at = std::filesystem::canonical(temp.path).string();
  temp.write("text");
  CHECK(refusal([&] { FolderReplacement(temp.file(), {"x"}); }) == at + "/file: cannot write: not a folder");
  std::filesystem::create_directories(temp.path / "a/notes");
  CHECK(refusal([&] { FolderReplacement(temp.path / "a", {"x"}); }) ==
        at + "/a: cannot replace: expected a new folder, or only files of an earlier save, got notes");
  CHECK(refusal([&] { FolderReplacement("", {"x"}); }) == "cannot write: the name of the folder is empty");
  CHECK(refusal([&] { FolderReplacement(temp.path / "file/a", {"x"}); }).starts_with(at + "/file/a: cannot create"));
  CHECK(temp.entries() == 2);
}
