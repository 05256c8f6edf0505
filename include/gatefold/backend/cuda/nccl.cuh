#pragma once

#include <nccl.h>

#include <span>
#include <string>
#include <utility>

#include "gatefold/backend/cuda/handles.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/error.hpp"

namespace gatefold::detail_::device {

/// Checks the result of a call of NCCL.
/// @throws DeviceError with the name of the call and NCCL's messages, unless the call succeeded or is in progress
inline void expect_success(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const latest = ncclGetLastError(comm);
  std::string sentence = std::string(call) + ": " + ncclGetErrorString(result);
  if (latest && *latest) sentence += std::string(": ") + latest;
  throw DeviceError(sentence);
}

/// A rank of an NCCL communicator. Each rank has one device: the one that is current when the communicator is created.
/// No function waits for other ranks: functions start an operation, and done() returns whether it is complete.
class NcclCommunicator {
 public:
  using Id = ncclUniqueId;

  /// Returns the id of a new communicator. One rank calls make_id and sends the id to all other ranks, because all
  /// ranks construct the communicator with the same id.
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

  /// Returns whether the operation that the constructor, begin() or finalize() has started is complete.
  /// @throws DeviceError if the operation failed on this or another rank
  bool done() {
    ncclResult_t state = ncclSuccess;
    expect_success(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    expect_success(state, "ncclCommGetAsyncError", comm_);
    if (state == ncclInProgress) return false;
    const cudaError_t left = cudaStreamQuery(stream_.get());
    if (left == cudaErrorNotReady) {
      cudaGetLastError();  // clears cudaErrorNotReady, which is not an error here
      return false;
    }
    expect_success(left, "cudaStreamQuery");
    return true;
  }
  /// Starts to send the messages `outgoing` and to receive the messages `incoming`, in memory of this device. A message
  /// has the `rank` of the other side, the address `data` and the number of `bytes`. If a rank sends several messages
  /// to another, the lists of both ranks must have them in the same order. The bytes to send must already be written.
  /// @throws ArgumentError if a message is in memory of another device or of the host; no message is sent then
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
  /// Starts to leave the communicator. Call destroy() once done() returns true.
  void finalize() { expect_success(ncclCommFinalize(comm_), "ncclCommFinalize", comm_); }
  void destroy() { expect_success(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy"); }
  /// Cancels the current operation and destroys the communicator. The other ranks get an error.
  void abort() noexcept {
    if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
  }

 private:
  void expect_here(const void* data) const {
    cudaPointerAttributes of{};
    expect_success(cudaPointerGetAttributes(&of, data), "cudaPointerGetAttributes");
    if (of.type == cudaMemoryTypeDevice && of.device == stream_.device()) return;
    const std::string found =
        of.type == cudaMemoryTypeDevice ? "memory of device " + std::to_string(of.device) : "memory of the host";
    expect(false, "Nccl.exchange", "bytes",
           Joined{"memory of device ", stream_.device(), ", on which the Nccl world was created"}, found);
  }

  Stream stream_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace gatefold::detail_::device
