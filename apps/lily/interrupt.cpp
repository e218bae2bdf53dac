#include "apps/lily/interrupt.h"

#include <atomic>
#include <csignal>

namespace lily::app {
namespace {

// A signal handler has no argument for this.
std::atomic<int> pressed{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_interrupt(int) { pressed.fetch_add(1, std::memory_order_relaxed); }

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a read of the terminal is to return
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

Interrupts::Interrupts() {
  reset();
  install(on_interrupt);
}

Interrupts::~Interrupts() { install(SIG_DFL); }

int Interrupts::count() const { return pressed.load(std::memory_order_relaxed); }

void Interrupts::reset() { pressed.store(0, std::memory_order_relaxed); }

}  // namespace lily::app
