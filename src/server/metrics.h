// GET /metrics in Prometheus' text format. Private to src/server.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "server/server.h"

namespace lily {

// Seconds, in buckets of fixed bounds.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double seconds);
  void write(std::string& out, std::string_view name, std::string_view help) const;

 private:
  std::vector<double> bounds_;    // ascending: a bucket holds what is at most its bound
  std::vector<uint64_t> counts_;  // of each bucket alone; the last: above all bounds
  double sum_ = 0;
};

// One request for generated text that has ended.
struct EndedRequest {
  std::string path;
  unsigned status = 200;
  std::string finish;  // as the log says it
  double seconds = 0;
  Usage usage;  // of one that finished
};

// What the server counts, besides the engine. On the thread of Server::run() only.
class ServerCounts {
 public:
  void end(const EndedRequest& request);
  void write(std::string& out) const;

 private:
  using Key = std::tuple<std::string, unsigned, std::string>;  // path, status, finish
  std::map<Key, uint64_t> requests_;
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0, reasoning_tokens_ = 0;
  Histogram total_{{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}};
  Histogram queue_{{0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}};
  Histogram first_token_{{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}};
  Histogram per_token_{{0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5}};
};

// `model` null: it is still loading, and what is the engine's is left out.
std::string metrics_text(const ServerCounts& counts, size_t connections, const ServedModel* model);

}  // namespace lily
