// What all connections of a server share. Private to src/server.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>

#include "server/metrics.h"
#include "server/router.h"
#include "server/server.h"

namespace lily {

class Connection;

struct Core {
  explicit Core(ServerOptions given)
      : options(std::move(given)),
        access{options.api_keys, options.allowed_origin},
        workers(options.workers > 0 ? options.workers : 1) {}

  const ServerOptions options;
  const AccessRules access;
  const int64_t created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();

  std::shared_ptr<const ServedModel> model() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return served;
  }
  void attach(ServedModel model) {
    const std::lock_guard<std::mutex> lock(mutex);
    served = std::make_shared<const ServedModel>(std::move(model));
  }
  // 24 letters and digits. On the thread of run() only.
  std::string new_id();

  std::atomic<bool> draining{false};

  // On the thread of run() only.
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  std::mt19937_64 random{std::random_device{}()};
  ServerCounts counts;
  uint64_t body_bytes = 0;  // of all requests that are read or prepared

  // Whether run() has something to do: drain() waits for it to end.
  std::condition_variable ended;
  bool running = false;

  mutable std::mutex mutex;  // of `served`, `running`
  std::shared_ptr<const ServedModel> served;

  boost::asio::io_context io{1};
  boost::asio::thread_pool workers;
};

}  // namespace lily
