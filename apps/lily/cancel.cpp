#include "apps/lily/cancel.h"

#include <csignal>

namespace lily::app {
namespace {

std::atomic<bool> cancelled{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch it");

void on_signal(int signal) {
  cancelled.store(true);
  std::signal(signal, SIG_DFL);
}

}  // namespace

CancelOnSignal::CancelOnSignal() {
  cancelled.store(false);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

CancelOnSignal::~CancelOnSignal() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

const std::atomic<bool>& CancelOnSignal::flag() const { return cancelled; }

}  // namespace lily::app
