#include "apps/lily/interrupt.h"

#include <csignal>

namespace lily::app {
namespace {

// A signal handler has no argument for these.
std::atomic<int> came{0};
std::atomic<bool> any{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  came.fetch_add(1, std::memory_order_relaxed);
  any.store(true, std::memory_order_relaxed);
}

void install(int signal, void (*handler)(int), Interrupts::Kind kind) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read of the terminal is to return.
  action.sa_flags = kind == Interrupts::Kind::once ? static_cast<int>(SA_RESETHAND) : 0;
  sigaction(signal, &action, nullptr);
}

}  // namespace

Interrupts::Interrupts(Kind kind) {
  reset();
  any.store(false, std::memory_order_relaxed);
  install(SIGINT, on_signal, kind);
  if (kind == Kind::once) install(SIGTERM, on_signal, kind);
}

Interrupts::~Interrupts() {
  install(SIGINT, SIG_DFL, Kind::counted);
  install(SIGTERM, SIG_DFL, Kind::counted);
}

int Interrupts::count() const { return came.load(std::memory_order_relaxed); }

void Interrupts::reset() { came.store(0, std::memory_order_relaxed); }

const std::atomic<bool>& Interrupts::flag() const { return any; }

}  // namespace lily::app
