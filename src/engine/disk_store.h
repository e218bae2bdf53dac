// The disk tier: checkpoints written in the background, found again after a restart, read when a prompt
// begins with one that memory does not hold. Two threads of its own, one that writes and one that reads:
// nobody who calls waits for the disk. Thread-safe.
//
// In the given folder, one folder for each model and layout of states, which belongs to one process at a
// time. The limit is for all of them together, but for those that other processes have.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "engine/disk_file.h"
#include "engine/disk_folder.h"
#include "engine/disk_index.h"
#include "engine/engine.h"

namespace lily {

class DiskStore {
 public:
  // Checkpoints that may wait to be written; of one more the shortest is not written: a short side request
  // never costs a long conversation its place.
  static constexpr size_t kMostWaiting = 8;

  // Reads what is there. `backend` must outlive it. `reading`: ReadingRule::name().
  static Result<std::unique_ptr<DiskStore>> open(const DiskOptions& options, Backend& backend,
                                                 const std::string& reading = {});
  ~DiskStore();  // writes what waits
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  // Writes a checkpoint of the state that has absorbed `tokens`, some time.
  void keep(std::span<const int32_t> tokens, std::shared_ptr<const Checkpoint> checkpoint);
  // Not any more, if it waits: its memory is wanted.
  void let_go(const Checkpoint& checkpoint);

  // A checkpoint on its way from the disk.
  struct Fetch {
    std::vector<int32_t> tokens;
    std::shared_ptr<const StoredCheckpoint> stored;
    std::shared_ptr<const Checkpoint> base;  // one of fewer of the same tokens, to share rows with; or null
    std::function<void()> told;
    std::vector<Hash128> damaged;  // rows that were not what they should be
    std::atomic<bool> done = false;
    std::shared_ptr<Checkpoint> checkpoint;  // once done; null: it could not be read
  };
  // Begins to read the longest stored proper beginning of `prompt`, if it is longer than `longer_than`; null
  // otherwise. `told` is called from another thread when it is done.
  std::shared_ptr<Fetch> fetch(std::span<const int32_t> prompt, uint32_t longer_than,
                               std::shared_ptr<const Checkpoint> base, std::function<void()> told);

  DiskIndex::Match look(std::span<const int32_t> prompt) const;
  std::vector<std::vector<int32_t>> continuations(std::span<const int32_t> prefix, int32_t end,
                                                  size_t most) const;
  void advance(uint64_t tokens);
  DiskMetrics metrics() const;

 private:
  struct Waiting {
    std::vector<int32_t> tokens;
    std::shared_ptr<const Checkpoint> checkpoint;
  };
  DiskStore(const DiskOptions& options, Backend& backend, const std::string& reading);

  void write_all();
  Result<void> write(const Waiting& item);
  Result<void> write_segments(const Waiting& item, StoredCheckpoint& stored, std::vector<Hash128>& held);
  void tell(const Result<void>& written);
  std::vector<std::string> make_room();
  void read_all();
  Result<std::shared_ptr<Checkpoint>> read(const Fetch& fetch);
  Result<DiskReader> open_rows(const StoredCheckpoint& stored, size_t segment) const;
  std::vector<Hash128> damaged_rows(const StoredCheckpoint& stored) const;

  const DiskOptions options_;
  Backend& backend_;
  Hash128 store_;
  DiskFolder folder_;
  DiskNeighbours neighbours_;  // of the thread that writes, once there is one

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  DiskIndex index_;
  std::deque<Waiting> waiting_;
  std::deque<std::shared_ptr<Fetch>> fetches_;
  std::vector<std::weak_ptr<Fetch>> under_way_;
  std::vector<std::string> garbage_;  // files that the writer removes
  uint64_t writes_failed_ = 0;        // since one went well: said once, not for each
  DiskMetrics counts_;
  bool stop_ = false;
  std::thread writer_;
  std::thread reader_;
};

}  // namespace lily
