#include "gatefold/io/save.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"

using namespace gatefold;
namespace files = io::safetensors;

TEST_CASE("Snapshot: copies the elements and reuses its memory") {
  Cpu::Context ctx(1);
  Tensor<float, 1, Cpu> a(3);
  Tensor<double, 1, Cpu> b(2), none;
  for (Index i = 0; i < 3; ++i) a(i) = static_cast<float>(i);
  b(0) = 5;
  b(1) = 6;
  std::vector<files::Source> sources;
  const files::AddSource<Cpu::Context> add{sources};
  const AnyTensor any_a(a), any_none(none), any_b(b);
  for (const AnyTensor* t : {&any_a, &any_none, &any_b}) add(Name{}, t);
  files::Snapshot snapshot;
  snapshot.take(&ctx, sources);
  const void* memory = snapshot.sources()[0].data;
  for (int turn = 0; turn < 2; ++turn) {
    a(1) = 9;
    b(1) = 9;
    const auto& kept = snapshot.sources();
    REQUIRE(kept.size() == 3);
    CHECK(kept[1].size == 0);
    float x[2];
    kept[0].to_host(nullptr, kept[0].data, 1, 2, reinterpret_cast<std::byte*>(x));
    CHECK(x[0] == (turn == 0 ? 1 : 9));
    CHECK(x[1] == 2);
    double y[1];
    kept[2].to_host(nullptr, kept[2].data, 1, 1, reinterpret_cast<std::byte*>(y));
    CHECK(y[0] == (turn == 0 ? 6 : 9));
    CHECK(kept[0].data == memory);
    snapshot.take(&ctx, sources);
  }
}

#if defined(__linux__)

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/system_calls.hpp"
#include "support/temp_directory.hpp"
#include "support/text_file.hpp"

using support::read_bytes;
using support::refusal;
using support::TempDirectory;
namespace fs = std::filesystem;

namespace {

/// The number of system calls before the one that kills the process; −1: no call kills it.
int until_kill = -1;
void count_call(const support::SystemCall&) {
  if (until_kill >= 0 && until_kill-- == 0) ::kill(::getpid(), SIGKILL);
}

struct Three {
  Tensor<float, 1, Cpu> a{3}, b{2};
  Tensor<double, 1, Cpu> c{2};
  explicit Three(float value) {
    for (Index i = 0; i < 3; ++i) a(i) = value + static_cast<float>(i);
    for (Index i = 0; i < 2; ++i) b(i) = -value;
    for (Index i = 0; i < 2; ++i) c(i) = 10 * static_cast<double>(value);
  }
  GATEFOLD_PACK(a, b, c)
};
void save(const fs::path& path, float value, Index most) {
  Cpu::Context ctx(1);
  const Three three(value);
  io::save(path, ctx, {{"value", std::to_string(value)}}, {.max_file_bytes = most}, io::Part{"", three});
}
/// Returns the value of the saved tensors, all of which must have it.
float loaded(const fs::path& path) {
  Cpu::Context ctx(1);
  Three three(0);
  const io::Metadata metadata = io::load(path, ctx, io::Part{"", three});
  const float value = three.a(0);
  const Three expected(value);
  CHECK(metadata.at("value") == std::to_string(value));
  for (Index i = 0; i < 3; ++i) CHECK(three.a(i) == expected.a(i));
  for (Index i = 0; i < 2; ++i) CHECK(three.b(i) == expected.b(i));
  for (Index i = 0; i < 2; ++i) CHECK(three.c(i) == expected.c(i));
  return value;
}
std::map<std::string, std::string> contents(const TempDirectory& temp) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::directory_iterator(temp.path))
    found[entry.path().filename().string()] = read_bytes(entry.path());
  return found;
}

}  // namespace

TEST_CASE("save: parts are safetensors files, listed in an index") {
  const TempDirectory temp, one;
  save(temp.file(), 1, 20);  // c (16 bytes), a (12), b (8)
  auto found = contents(temp);
  REQUIRE(found.size() == 3);
  const auto index = nlohmann::json::parse(found.at("file.index.json"));
  CHECK(index["weight_map"]["a"] == index["weight_map"]["b"]);
  CHECK(index["weight_map"]["a"] != index["weight_map"]["c"]);
  CHECK(index["metadata"]["total_size"] == 36);
  CHECK(index["__metadata__"]["value"] == std::to_string(1.f));
  // Reads a part by its format, without the library.
  const std::string name = index["weight_map"]["b"];
  const std::string& part = found.at(name);
  const auto length = static_cast<std::size_t>(static_cast<unsigned char>(part[0])) +
                      (static_cast<std::size_t>(static_cast<unsigned char>(part[1])) << 8);
  const auto header = nlohmann::json::parse(part.substr(8, length));
  CHECK(header["a"]["data_offsets"] == nlohmann::json({0, 12}));
  CHECK(header["b"]["data_offsets"] == nlohmann::json({12, 20}));
  CHECK(header["__metadata__"] ==
        nlohmann::json({{"format", "pt"}, {"gatefold.content", name.substr(5, 16)}}));  // file-CONTENT-…
  CHECK(header.size() == 3);
  const float elements[] = {1, 2, 3, -1, -1};
  CHECK(part.substr(8 + length) == std::string(reinterpret_cast<const char*>(elements), sizeof elements));
  CHECK(loaded(temp.file()) == 1);

  // The same contents have the same names and bytes; other contents have other names.
  save(one.file(), 2, 20);
  for (const auto& [name, bytes] : contents(one)) CHECK((name == "file.index.json" || !found.contains(name)));
  save(one.file(), 1, 20);
  CHECK(contents(one) == found);
  save(one.file(), 1, 20);
  CHECK(contents(one) == found);
}

TEST_CASE("save: removes exactly the old file or parts") {
  const TempDirectory temp;
  temp.write("mine", "file-of-mine");
  temp.write("mine", "files-0123456789abcdef-00001-of-00002.safetensors");
  float value = 1;
  const std::map<Index, std::size_t> files{{0, 1}, {20, 3}, {1, 4}};
  for (const Index most : {0, 20, 1, 20, 0, 0, 1}) {
    CAPTURE(most);
    save(temp.file(), value, most);
    CHECK(loaded(temp.file()) == value++);
    CHECK(contents(temp).size() == files.at(most) + 2);
  }
}

TEST_CASE("save: saving in parts through a symbolic link throws") {
  const TempDirectory temp;
  save(temp.path / "real", 1, 0);
  fs::create_symlink(temp.path / "real", temp.file());
  CHECK_THROWS_WITH_AS(
      save(temp.file(), 2, 20),
      ("io::save: path: expected the target of the symbolic link, because tensors are written in parts, got " +
       temp.file().string())
          .c_str(),
      ArgumentError);
  CHECK(loaded(temp.path / "real") == 1);
  save(temp.file(), 3, 0);
  CHECK(loaded(temp.path / "real") == 3);
  CHECK(fs::is_symlink(temp.file()));

  const fs::path longest = temp.path / std::string(245, 'x');  // with ".index.json" it would exceed 255 bytes
  save(longest, 4, 0);
  CHECK(loaded(longest) == 4);
}

TEST_CASE("save: kill -9 leaves the old or the new checkpoint") {
  if (!gatefold::support::hears_system_calls) return;  // the address sanitizer hides system calls from tests
  for (const Index before : {-1, 0, 20})
    for (const Index after : {0, 20}) {
      CAPTURE(before);
      CAPTURE(after);
      int old_ones = 0, new_ones = 0;
      bool killed = true;
      for (int call = 0; killed; ++call) {
        const TempDirectory temp;
        if (before >= 0) save(temp.file(), 1, before);
        const pid_t child = ::fork();
        if (child == 0) {
          support::on_system_call = count_call;
          until_kill = call;
          save(temp.file(), 2, after);
          ::_exit(0);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        killed = WIFSIGNALED(status);
        const float found = io::exists(temp.file()) ? loaded(temp.file()) : 0;
        CHECK((found == (before < 0 ? 0 : 1) || found == 2));
        CHECK((killed || found == 2));
        (found == 2 ? new_ones : old_ones) += 1;
        save(temp.file(), 3, after);
        CHECK(loaded(temp.file()) == 3);
        CHECK(temp.entries() == (after == 0 ? 1 : 3));
      }
      CHECK(old_ones > 5);
      CHECK(new_ones > 0);
    }
}

TEST_CASE("save: a failure leaves only the old files") {
  const TempDirectory temp;
  const auto limited = [&](rlim_t bytes, float value, Index most) {
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string said = refusal([&] { save(temp.file(), value, most); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    return said;
  };
  for (const Index old : {0, 20}) {
    save(temp.file(), 1, old);
    const auto files = contents(temp);
    for (const Index most : {0, 20})
      CHECK(limited(100, 2, most) == temp.file().string() + ": cannot write: File too large");
    // The parts fit, but the index, which is longer, does not.
    CHECK(limited(200, 2, 20).find(": cannot write: File too large") != std::string::npos);
    CHECK(contents(temp) == files);
    CHECK(loaded(temp.file()) == 1);
  }
  CHECK(refusal([&] { save(temp.path / "none" / "file", 1, 20); }).find("cannot create") != std::string::npos);
  CHECK_THROWS_AS(save(temp.path / "file.index.json", 1, 20), ArgumentError);
}

TEST_CASE("Save: several writers produce the files of one writer") {
  using Parts = std::vector<std::vector<files::Slice>>;  // by tensor
  const Three three(4);
  const auto join = [&](const fs::path& path, Index most, const Parts& first, const Parts& second) {
    Cpu::Context ctx(1);
    const io::Part<const Three> part{"", three};
    const auto list_of = [&](const Parts& here) {
      auto list = files::entries<Cpu>("test", part);
      for (std::size_t i = 0; i < list.size(); ++i) list[i].here = here[i];
      return list;
    };
    const auto sources_of = [&](const Parts& here) {
      std::vector<files::Source> all;
      files::visit<Cpu>(files::AddSource<Cpu::Context>{all}, part);
      for (std::size_t i = 0; i < all.size(); ++i)
        if (!here[i].empty()) all[i].data = static_cast<const std::byte*>(all[i].data) + here[i][0].begin;
      return all;
    };
    const io::Metadata metadata{{"value", std::to_string(4.f)}};
    files::Save one(path, files::layout_of(metadata, list_of(first), {.max_file_bytes = most}));
    files::Save two(path, files::layout_of({}, list_of(second), {.max_file_bytes = most}), one.begun());
    two.write(&ctx, sources_of(second));
    CHECK_FALSE(io::exists(path));
    one.write(&ctx, sources_of(first));
    one.commit(one.content() + two.content());
  };
  for (const Index most : {0, 20}) {
    const TempDirectory alone, together;
    save(alone.file(), 4, most);
    // The first writer has elements 1 and 2 of tensor a, and b. The second has element 0 of a, and c.
    join(together.file(), most, {{{4, 8}}, {{0, 8}}, {}}, {{{0, 4}}, {}, {{0, 16}}});
    CHECK(contents(together) == contents(alone));
  }
  const TempDirectory temp;
  const auto layout = files::layout_of({}, files::entries<Cpu>("test", io::Part<const Three>{"", three}), {});
  const std::string sentence = temp.file().string() +
                               ": another process has created a file that this process cannot see: a checkpoint needs "
                               "a file system that all processes share";
  CHECK(refusal([&] { files::Save(temp.file(), layout, std::string("300 /none/file\0", 15)); }) == sentence);
  CHECK(refusal([&] {
          files::Save(temp.file(), layout, "300 " + temp.write("short", "x").string() + std::string(1, '\0'));
        }) == sentence);
  CHECK_THROWS_AS(files::Save(temp.file(), layout, ""), ArgumentError);
  // The file exists, but the process has too many open files to open it.
  const files::Save one(temp.file(), layout);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string said = refusal([&] { files::Save(temp.file(), layout, one.begun()); });
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(said == temp.file().string() + ": cannot open the file that another process has created: Too many open files");
}

#endif
