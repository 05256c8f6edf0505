#pragma once

#include <nccl.h>

#include <span>
#include <string>
#include <utility>

#include "gatefold/backend/cuda/handles.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/error.hpp"

namespace gatefold::detail_::device {

/// @throws DeviceError with the call and NCCL's own sentences, unless it succeeded or is under way
inline void expect_success(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const latest = ncclGetLastError(comm);
  std::string sentence = std::string(call) + ": " + ncclGetErrorString(result);
  if (latest && *latest) sentence += std::string(": ") + latest;
  throw DeviceError(sentence);
}

/// A rank among others that NCCL connects: one device each, the one that is current when this is made. None of its
/// calls waits for other ranks: `done` says whether what was begun is done.
class NcclCommunicator {
 public:
  using Id = ncclUniqueId;

  /// What all ranks of a communicator are made with, from one of them.
  static Id make_id() {
    Id id;
    expect_success(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return id;
  }
  NcclCommunicator(const Id& id, int rank, int size) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    expect_success(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig");
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() { abort(); }

  /// @throws DeviceError on what went wrong since it was begun, here or on another rank
  bool done() {
    ncclResult_t state = ncclSuccess;
    expect_success(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    expect_success(state, "ncclCommGetAsyncError", comm_);
    if (state == ncclInProgress) return false;
    const cudaError_t left = cudaStreamQuery(stream_.get());
    if (left == cudaErrorNotReady) {
      cudaGetLastError();  // it is no error
      return false;
    }
    expect_success(left, "cudaStreamQuery");
    return true;
  }
  /// Send and receive bytes in memory of this device: messages have the `rank` of the other side, `data` and `bytes`.
  /// Those from one rank to another are in the order of both lists. What is sent was written before.
  /// @throws ArgumentError where they are on another device; nothing is sent
  template <class Outgoing, class Incoming>
  void begin(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    for (const Outgoing& message : outgoing) expect_here(message.data);
    for (const Incoming& message : incoming) expect_here(message.data);
    const OnDevice here(stream_.device());
    expect_success(ncclGroupStart(), "ncclGroupStart", comm_);
    try {
      for (const Incoming& m : incoming)
        expect_success(ncclRecv(m.data, m.bytes, ncclUint8, m.rank, comm_, stream_.get()), "ncclRecv", comm_);
      for (const Outgoing& m : outgoing)
        expect_success(ncclSend(m.data, m.bytes, ncclUint8, m.rank, comm_, stream_.get()), "ncclSend", comm_);
    } catch (...) {
      ncclGroupEnd();
      throw;
    }
    expect_success(ncclGroupEnd(), "ncclGroupEnd", comm_);
  }
  /// Begin to leave the others, and, once that is done, leave.
  void finalize() { expect_success(ncclCommFinalize(comm_), "ncclCommFinalize", comm_); }
  void destroy() { expect_success(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy"); }
  /// Give up what was begun; the others find an error.
  void abort() noexcept {
    if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
  }

 private:
  void expect_here(const void* data) const {
    cudaPointerAttributes of{};
    expect_success(cudaPointerGetAttributes(&of, data), "cudaPointerGetAttributes");
    if (of.type == cudaMemoryTypeDevice && of.device == stream_.device()) return;
    const std::string found = of.type == cudaMemoryTypeDevice ? "device " + std::to_string(of.device) : "the host";
    expect(false, "Nccl.exchange", "bytes", Joined{"those of device ", stream_.device(), ", where its world was made"},
           found);
  }

  Stream stream_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace gatefold::detail_::device
