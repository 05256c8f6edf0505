// A stand-in for NCCL: nonblocking communicators, and send and receive between pairs of ranks, in one process or
// several. Messages are files in a folder that the unique id names. A message arrives when the receiver calls
// ncclCommGetAsyncError, which returns ncclInProgress until all messages have arrived. Calls on a stream do not wait
// for messages.
#include <nccl.h>
#include <stdlib.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

namespace fs = std::filesystem;

struct Message {
  bool send;
  void* at;
  std::size_t bytes;
  int peer;
};

struct Communicator {
  fs::path folder;
  int rank, ranks, device;
  bool connected = false, finalized = false;
  std::vector<std::size_t> sent, received;  // number of messages to and from each rank
  std::deque<std::pair<Message, std::size_t>> expected = {};
  ncclResult_t error = ncclSuccess;

  fs::path of_rank(const char* what, int of) const { return folder / (what + std::to_string(of)); }
  fs::path message(int from, int to, std::size_t number) const {
    return folder / (std::to_string(from) + "to" + std::to_string(to) + "." + std::to_string(number));
  }
  int count(const char* what) const {
    int there = 0;
    for (int r = 0; r < ranks; ++r) there += fs::exists(of_rank(what, r));
    return there;
  }
  bool all(const char* what) const { return count(what) == ranks; }
};

Handles<ncclComm_t, Communicator>& communicators() {
  static auto& all = *new Handles<ncclComm_t, Communicator>;
  return all;
}

thread_local int groups = 0;
thread_local std::vector<std::pair<ncclComm_t, Message>> of_group;
thread_local std::string latest;

ncclResult_t failed(ncclResult_t result, const std::string& sentence) {
  latest = sentence;
  return result;
}

template <class Body>
ncclResult_t nccl_call(const char* name, Body&& body) {
  const std::lock_guard lock(runtime_lock());
  if (const cudaError_t error = begin_call(name))
    return failed(ncclUnhandledCudaError, std::string("Cuda failure '") + cudaGetErrorString(error) + "'");
  return body();
}
template <class Body>
ncclResult_t communicator_call(const char* name, ncclComm_t comm, Body&& body) {
  return nccl_call(name, [&] {
    Communicator* const found = communicators().find(comm);
    return found ? body(*found) : failed(ncclInvalidArgument, std::string(name) + ": no communicator");
  });
}

bool mark(const fs::path& path) { return static_cast<bool>(std::ofstream(path)); }

/// Writes a file so that it is complete as soon as it exists.
bool put(const fs::path& path, const void* data, std::size_t bytes) {
  const fs::path part = path.string() + ".part";
  std::ofstream file(part, std::ios::binary);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  std::error_code error;
  if (file) fs::rename(part, path, error);
  return file && !error;
}

const void* expect_memory(const char* call, const Communicator& of, const void* at, std::size_t bytes) {
  if (Memory::device().contains(at, bytes, of.device)) return at;
  throw Fault(std::string(call) + ": expected " + std::to_string(bytes) + " bytes in memory of device " +
              std::to_string(of.device) + ", that of the communicator, got " +
              hexadecimal(reinterpret_cast<std::uintptr_t>(at)));
}

/// Takes a message if it has arrived.
bool receive(const Communicator& of, const Message& message, std::size_t number) {
  const fs::path path = of.message(message.peer, of.rank, number);
  if (!fs::exists(path)) return false;
  if (fs::file_size(path) != message.bytes)
    throw Fault("ncclRecv: expected " + std::to_string(message.bytes) + " bytes from rank " +
                std::to_string(message.peer) + ", which sends " + std::to_string(fs::file_size(path)));
  expect_memory("ncclRecv", of, message.at, message.bytes);
  std::ifstream(path, std::ios::binary)
      .read(static_cast<char*>(message.at), static_cast<std::streamsize>(message.bytes));
  fs::remove(path);
  return true;
}

ncclResult_t go_on(Communicator& of) {
  if (of.error != ncclSuccess) return of.error;
  if (fs::exists(of.folder / "aborted")) return of.error = failed(ncclRemoteError, "another rank has aborted");
  if (!of.connected && !(of.connected = of.all("rank"))) return ncclInProgress;
  for (auto next = of.expected.begin(); next != of.expected.end();)
    next = receive(of, next->first, next->second) ? of.expected.erase(next) : next + 1;
  if (!of.expected.empty()) return ncclInProgress;
  return of.finalized && !of.all("end") ? ncclInProgress : ncclSuccess;
}

/// Leaves the communicator. The last rank that leaves removes the folder.
void leave(ncclComm_t comm, const Communicator& of) {
  std::error_code ignored;
  mark(of.of_rank("left", of.rank));
  if (of.count("left") == of.count("rank")) fs::remove_all(of.folder, ignored);
  communicators().remove(comm);
}

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      throw Fault("NCCL: data type " + std::to_string(type) + " is not modelled");
  }
}

ncclResult_t start(Communicator& of, const Message& message) {
  const auto peer = static_cast<std::size_t>(message.peer);
  if (!message.send) {
    of.expected.emplace_back(message, of.received[peer]++);
  } else if (!put(of.message(of.rank, message.peer, of.sent[peer]++), message.at, message.bytes)) {
    return of.error = failed(ncclSystemError, "the folder of the communicator is gone");
  }
  return ncclSuccess;
}

ncclResult_t transfer(const char* name, ncclComm_t comm, cudaStream_t stream, std::size_t count, ncclDataType_t type,
                      Message message) {
  return communicator_call(name, comm, [&](Communicator& of) {
    if (!of.connected) return failed(ncclInvalidUsage, std::string(name) + ": the communicator is not ready");
    if (of.finalized) return failed(ncclInvalidUsage, std::string(name) + ": the communicator is finalized");
    if (message.peer < 0 || message.peer >= of.ranks)
      return failed(ncclInvalidArgument,
                    std::string(name) + ": peer " + std::to_string(message.peer) + " of " + std::to_string(of.ranks));
    if (message.peer == of.rank) throw Fault(std::string(name) + ": messages of a rank to itself are not modelled");
    if (!known_stream(stream) || device_of(stream) != of.device)
      throw Fault(std::string(name) + ": expected a stream of device " + std::to_string(of.device) +
                  ", that of the communicator");
    if (is_capturing(stream)) throw Fault(std::string(name) + ": NCCL in a graph is not modelled");
    message.bytes = count * size_of(type);
    expect_memory(name, of, message.at, message.bytes);
    if (groups == 0) return start(of, message);
    of_group.emplace_back(comm, message);
    return ncclSuccess;
  });
}

}  // namespace

std::size_t live_communicators() { return communicators().size(); }

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call("ncclGetUniqueId", [&] {
    std::string path = (fs::temp_directory_path() / "cuda_emulator_nccl_XXXXXX").string();
    if (!mkdtemp(path.data()) || path.size() >= sizeof id->internal) return failed(ncclSystemError, "no folder");
    std::snprintf(id->internal, sizeof id->internal, "%s", path.c_str());
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return nccl_call("ncclCommInitRankConfig", [&] {
    if (!config || config->blocking != 0)
      throw Fault("ncclCommInitRankConfig: communicators that block are not modelled");
    if (rank < 0 || rank >= ranks) return failed(ncclInvalidArgument, "rank " + std::to_string(rank));
    const auto count = static_cast<std::size_t>(ranks);
    const Communicator made{.folder = id.internal,
                            .rank = rank,
                            .ranks = ranks,
                            .device = current_device(),
                            .sent = std::vector<std::size_t>(count),
                            .received = std::vector<std::size_t>(count)};
    if (fs::exists(made.of_rank("rank", rank))) return failed(ncclInvalidUsage, "two ranks " + std::to_string(rank));
    if (!mark(made.of_rank("rank", rank))) return failed(ncclSystemError, "the folder of the unique id is gone");
    *comm = communicators().add(made);
    return ncclInProgress;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return communicator_call("ncclCommGetAsyncError", comm, [&](Communicator& of) {
    *error = go_on(of);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return communicator_call("ncclCommFinalize", comm, [&](Communicator& of) {
    of.finalized = true;
    mark(of.of_rank("end", of.rank));
    return ncclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return communicator_call("ncclCommDestroy", comm, [&](Communicator& of) {
    if (!of.expected.empty()) throw Fault("ncclCommDestroy: messages of the communicator have not arrived");
    leave(comm, of);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return communicator_call("ncclCommAbort", comm, [&](Communicator& of) {
    mark(of.folder / "aborted");
    leave(comm, of);
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupStart() {
  return nccl_call("ncclGroupStart", [&] {
    ++groups;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  return nccl_call("ncclGroupEnd", [&] {
    if (groups == 0) return failed(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--groups > 0) return ncclSuccess;
    ncclResult_t result = ncclSuccess;
    for (const auto& [comm, message] : std::exchange(of_group, {}))
      if (Communicator* const of = communicators().find(comm); of && result == ncclSuccess)
        result = start(*of, message);
    return result == ncclSuccess ? ncclInProgress : result;
  });
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer("ncclSend", comm, stream, count, type, {true, const_cast<void*>(from), 0, peer});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return transfer("ncclRecv", comm, stream, count, type, {false, to, 0, peer});
}

const char* ncclGetLastError(ncclComm_t) { return latest.c_str(); }

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
