#include "tests/cuda_emulator/grid.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

namespace lily::cuda::emulator {
namespace {

Thread* running = nullptr;
constexpr uint64_t kPatience = 20000;  // rounds in which nothing happens

}  // namespace

struct Grid::Barriers {
  std::unordered_map<void*, CopyBarrier> at;
};

Thread& self() { return *running; }

Grid::Grid(const Options& options)
    : options_(options),
      state_(options.seed * 0x9E3779B97F4A7C15ULL + 1),
      barriers_(std::make_unique<Barriers>()) {
  static metal::emulator::Stacks stacks;  // grids run one after the other
  const size_t count = size_t{options.blocks} * options.blocks_y * options.blocks_z * options.threads;
  if (!stacks.reserve(count, count < 20000)) {
    throw std::runtime_error("no memory for the stacks of the threads");
  }
  for (uint32_t b = 0; b < options.blocks * options.blocks_y * options.blocks_z; ++b) {
    auto& block = *blocks_.emplace_back(std::make_unique<Block>());
    block.index = {b % options.blocks, b / options.blocks % options.blocks_y,
                   b / options.blocks / options.blocks_y};
    block.shared.resize(options.shared_bytes + 128, 0xff);
    block.warps.resize(options.threads / 32);
    for (uint32_t t = 0; t < options.threads; ++t) {
      auto& thread = *threads_.emplace_back(std::make_unique<Thread>());
      thread.grid = this;
      thread.block = &block;
      thread.index.x = t;
      thread.warp = &block.warps[t / 32];
      const size_t at = threads_.size() - 1;
      thread.fibre.prepare(stacks.bottom(at), stacks.top(at), enter);
    }
  }
}
Grid::~Grid() = default;

void Grid::enter() {
  Thread& thread = self();
  try {
    (*thread.grid->kernel_)();
  } catch (...) {
    thread.grid->fault_ = std::current_exception();
  }
  thread.done = true;
  while (true) {
    thread.grid->yield();
  }
}

uint64_t Grid::random() {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return state_;
}

void Grid::yield() {
  Thread* const own = running;
  metal::emulator::Fibre::change(own->fibre, scheduler_);
}

void Grid::wait_until(const std::function<bool()>& ready) {
  while (!ready()) {
    yield();
  }
  changed_ = round_;
}

void Grid::run(const std::function<void()>& kernel) {
  kernel_ = &kernel;
  const size_t warps = threads_.size() / 32;
  std::vector<uint32_t> order(warps);
  for (uint32_t i = 0; i < warps; ++i) {
    order[i] = i;
  }
  size_t live = warps;
  while (live > 0) {
    ++round_;
    std::swap(order[random() % live], order[random() % live]);
    std::swap(order[random() % live], order[random() % live]);
    finish_due();
    for (size_t i = 0; i < live;) {
      bool done = true;
      // Some warps go further than others in a round.
      for (uint64_t turns = 1 + random() % 4; turns > 0; --turns) {
        done = true;
        for (uint32_t lane = 0; lane < 32; ++lane) {
          Thread& thread = *threads_[order[i] * 32 + lane];
          if (!thread.done) {
            running = &thread;
            metal::emulator::Fibre::change(scheduler_, thread.fibre);
            done = done && thread.done;
            if (fault_) {
              std::rethrow_exception(fault_);
            }
          }
        }
      }
      if (done) {
        order[i] = order[--live];
        changed_ = round_;
      } else {
        ++i;
      }
    }
    if (round_ - changed_ > kPatience && later_.empty()) {
      throw std::runtime_error("the grid waits for what does not come: " + std::to_string(live) + " of " +
                               std::to_string(warps) + " warps are not done");
    }
  }
  finish_due();
}

void Grid::finish_due() {
  size_t kept = 0;
  for (size_t i = 0; i < later_.size(); ++i) {
    Later& l = later_[i];
    if (l.due > round_) {
      later_[kept++] = l;
      continue;
    }
    changed_ = round_;
    if (l.storing != nullptr) {
      std::memcpy(l.copy.to, l.copy.from, l.copy.bytes);
      --l.storing->stores;
    } else if (l.barrier != nullptr) {
      std::memcpy(l.copy.to, l.copy.from, l.copy.bytes);
      complete(*l.barrier, l.copy.bytes);
    } else {
      *l.to = l.word;
    }
  }
  later_.resize(kept);
}

void Grid::copy_later(const AsyncCopy& copy, CopyBarrier& barrier) {
  if (reinterpret_cast<uintptr_t>(copy.to) % 16 != 0 || reinterpret_cast<uintptr_t>(copy.from) % 16 != 0 ||
      copy.bytes % 16 != 0) {
    throw std::runtime_error("a copy to shared memory that is not of 16-byte units");
  }
  std::memset(copy.to, 0xff, copy.bytes);
  later_.push_back({round_ + 1 + random() % options_.delay, copy, &barrier, nullptr, 0});
}
void Grid::store_block_later(const AsyncCopy& copy, Thread& thread) {
  ++thread.stores;
  later_.push_back({round_ + 1 + random() % options_.delay, copy, nullptr, nullptr, 0, &thread});
}
void Grid::store_later(uint64_t* to, uint64_t word) {
  later_.push_back({round_ + random() % options_.delay, {}, nullptr, to, word});
}
void Grid::store_after_all(uint64_t* to, uint64_t word) {
  later_.push_back({round_ + options_.delay, {}, nullptr, to, word});
}

CopyBarrier& Grid::barrier(void* at) { return barriers_->at[at]; }
void Grid::arrive(CopyBarrier& barrier, int64_t bytes) {
  barrier.bytes += bytes;
  --barrier.pending;
  complete(barrier, 0);
}
void Grid::complete(CopyBarrier& barrier, int64_t bytes) {
  barrier.bytes -= bytes;
  if (barrier.pending == 0 && barrier.bytes == 0) {
    ++barrier.phases;
    barrier.pending = barrier.expected;
  }
}

Met::Met(int kind, const uint32_t* words, uint32_t count) {
  Thread& thread = self();
  Meeting& meeting = *thread.warp;
  const uint64_t now = meeting.count;
  uint32_t(*const brought)[Meeting::kWords] = meeting.words[now & 1];
  if (meeting.arrived != 0 && meeting.kind != kind) {
    throw std::runtime_error("lanes of a warp meet in different instructions");
  }
  meeting.kind = kind;
  std::copy_n(words, count, brought[thread.index.x % 32]);
  if (++meeting.arrived == 32) {
    meeting.arrived = 0;
    ++meeting.count;
  } else {
    while (meeting.count == now) {
      thread.grid->yield();
    }
  }
  from_ = brought;
}

void sync_threads(uint32_t id, uint32_t threads) {
  Thread& thread = self();
  Block::Sync& sync = thread.block->syncs[id];
  const uint64_t now = sync.count;
  if (++sync.arrived == threads) {
    sync.arrived = 0;
    ++sync.count;
  } else {
    thread.grid->wait_until([&] { return sync.count != now; });
  }
}

}  // namespace lily::cuda::emulator
