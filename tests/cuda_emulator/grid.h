// A grid of blocks on the host, for kernels whose blocks wait for one another: every thread is a fibre, all
// of them live at once, and one is at work at a time. What a device does later than it is asked to do it is
// done later here, too, by a number of rounds that a seed decides: copies to shared memory, whose place holds
// nonsense until then, and words for other blocks. Warps run in an order that changes from round to round. So
// a wait that is missing shows.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/metal_emulator/fibre.h"

namespace lily::cuda::emulator {

struct Index3 {
  uint32_t x = 0, y = 0, z = 0;
};

// Where lanes of a warp meet: what each brought, for this meeting and the one before.
struct Meeting {
  static constexpr uint32_t kWords = 10;
  uint32_t words[2][32][kWords];
  uint64_t count = 0;  // of meetings that are over
  uint32_t arrived = 0;
  int kind = 0;
};

struct CopyBarrier {
  uint32_t expected = 1, pending = 1;
  int64_t bytes = 0;
  uint64_t phases = 0;  // that are over
};

struct AsyncCopy {
  uint8_t* to;
  const uint8_t* from;  // null: zeros
  uint32_t bytes;
};

class Grid;
struct Block;
struct Thread {
  metal::emulator::Fibre fibre;
  Grid* grid = nullptr;
  Block* block = nullptr;
  Index3 index;
  Meeting* warp = nullptr;
  bool done = false;
  std::vector<std::vector<AsyncCopy>> groups;  // of copies that were committed and not waited for
  std::vector<AsyncCopy> open;
  uint32_t stores = 0;  // blocks that it has stored from shared memory and that are still read there
};
struct Block {
  Index3 index;
  std::vector<uint8_t> shared;
  std::vector<Meeting> warps;
  struct Sync {
    uint32_t arrived = 0;
    uint64_t count = 0;
  };
  Sync syncs[16];
  std::map<int, std::vector<uint64_t>> statics;  // by the line of their declaration
};

class Grid {
 public:
  struct Options {
    uint32_t blocks, threads, shared_bytes;
    uint32_t blocks_y = 1, blocks_z = 1;
    uint64_t seed = 1;
    uint32_t delay = 8;  // most rounds by which something comes later
  };
  explicit Grid(const Options& options);
  ~Grid();
  // Runs `kernel` in every thread to its end. Throws std::runtime_error where nothing goes on any more.
  void run(const std::function<void()>& kernel);

  const Options& options() const { return options_; }
  void yield();  // of the running thread
  void wait_until(const std::function<bool()>& ready);

  void copy_later(const AsyncCopy& copy, CopyBarrier& barrier);
  void store_block_later(const AsyncCopy& copy, Thread& thread);  // reads only when it is due
  void store_later(uint64_t* to, uint64_t word);
  void store_after_all(uint64_t* to, uint64_t word);  // and after all other words of now
  CopyBarrier& barrier(void* at);
  void arrive(CopyBarrier& barrier, int64_t bytes);
  void complete(CopyBarrier& barrier, int64_t bytes);

 private:
  struct Later {
    uint64_t due;
    AsyncCopy copy;
    CopyBarrier* barrier;
    uint64_t* to;
    uint64_t word;
    Thread* storing = nullptr;
  };
  uint64_t random();
  void finish_due();
  static void enter();

  Options options_;
  uint64_t state_;
  uint64_t round_ = 0;
  uint64_t changed_ = 0;  // round in which something last happened
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Later> later_;
  struct Barriers;
  std::unique_ptr<Barriers> barriers_;
  metal::emulator::Fibre scheduler_;
  const std::function<void()>* kernel_ = nullptr;
  std::exception_ptr fault_;  // of a thread
};

Thread& self();

// All lanes of the running thread's warp bring `count` words; `get(lane, word)` reads what a lane brought.
class Met {
 public:
  Met(int kind, const uint32_t* words, uint32_t count);
  uint32_t get(uint32_t lane, uint32_t word = 0) const { return from_[lane][word]; }

 private:
  const uint32_t (*from_)[Meeting::kWords];
};
void sync_threads(uint32_t id, uint32_t threads);
template <class T>
T& static_shared(int line) {
  std::vector<uint64_t>& bytes = self().block->statics[line];
  if (bytes.empty()) {
    bytes.assign((sizeof(T) + 23) / 8, ~uint64_t{0});
  }
  const auto at = (reinterpret_cast<uintptr_t>(bytes.data()) + 15) / 16 * 16;
  return *reinterpret_cast<T*>(at);
}

}  // namespace lily::cuda::emulator
