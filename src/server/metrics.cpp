#include "server/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace lily {
namespace {

void head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <class Value>
void single(std::string& out, std::string_view name, std::string_view type, std::string_view help,
            Value value) {
  head(out, name, type, help);
  fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      out += '\\';
    }
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// Of this process, on Linux; 0 where the system does not say.
uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) {
    return 0;
  }
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void write_cache(std::string& out, const CacheMetrics& cache) {
  head(out, "lily_cache_prompts_total", "counter", "Prompts by what was kept of them.");
  fmt::format_to(
      std::back_inserter(out),
      "lily_cache_prompts_total{{result=\"hit\"}} {}\nlily_cache_prompts_total{{result=\"partial\"}} "
      "{}\nlily_cache_prompts_total{{result=\"miss\"}} {}\n",
      cache.hits, cache.partial, cache.misses);
  head(out, "lily_cache_parted_total", "counter",
       "Prompts that part from every kept conversation, by the turn where they do.");
  constexpr const char* kTurns[] = {"system", "user", "assistant", "tool"};
  for (size_t i = 0; i < cache.parted.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "lily_cache_parted_total{{turn=\"{}\"}} {}\n", kTurns[i],
                   cache.parted[i]);
  }
  single(out, "lily_cache_dropped_total", "counter",
         "Prompts that a checkpoint dropped for want of room would have spared more of.", cache.dropped);
  single(out, "lily_cache_recalled_answers_total", "counter",
         "Answers in prompts that were put back as they were generated.", cache.recalled);
  single(out, "lily_cache_tokens_total", "counter", "Prompt tokens that were not computed again.",
         cache.tokens);
  single(out, "lily_cache_evictions_total", "counter", "Checkpoints dropped for want of room.",
         cache.evictions);
  single(out, "lily_cache_checkpoints", "gauge", "Checkpoints kept now.", cache.checkpoints);
  single(out, "lily_cache_bytes", "gauge", "Bytes of running sequences and kept checkpoints.", cache.bytes);
  if (!cache.disk) {
    return;
  }
  const DiskMetrics& disk = *cache.disk;
  single(out, "lily_disk_checkpoints", "gauge", "Checkpoints on disk now.", disk.checkpoints);
  single(out, "lily_disk_bytes", "gauge", "Bytes of their files.", disk.bytes);
  head(out, "lily_disk_operations_total", "counter", "What became of checkpoints on disk.");
  fmt::format_to(
      std::back_inserter(out),
      "lily_disk_operations_total{{what=\"written\"}} {}\nlily_disk_operations_total{{what=\"read\"}} "
      "{}\nlily_disk_operations_total{{what=\"skipped\"}} {}\n"
      "lily_disk_operations_total{{what=\"failed\"}} {}\n"
      "lily_disk_operations_total{{what=\"evicted\"}} {}\n",
      disk.written, disk.read, disk.skipped, disk.failed, disk.evictions);
}

void write_engine(std::string& out, const ServedModel& model) {
  const EngineMetrics metrics = model.engine->metrics();
  const Plan& plan = model.engine->plan();
  const DeviceInfo& device = model.engine->device();
  head(out, "lily_model_info", "gauge", "What is served, and by which device.");
  fmt::format_to(std::back_inserter(out), "lily_model_info{{model=\"{}\",device=\"{}\"}} 1\n",
                 escaped(model.name), escaped(device.name));
  single(out, "lily_context_tokens", "gauge", "The longest prompt and answer together.", plan.context);
  single(out, "lily_sequences", "gauge", "Requests that may run at once.", plan.sequences);
  single(out, "lily_requests_running", "gauge", "Requests that are read or answered now.", metrics.running);
  single(out, "lily_requests_waiting", "gauge", "Requests in the queue.", metrics.waiting);
  head(out, "lily_jobs_total", "counter",
       "Jobs of the engine by how they ended. Cancelled are those whose client left or did not read, and "
       "those that the end of the server cut off.");
  fmt::format_to(std::back_inserter(out),
                 "lily_jobs_total{{end=\"finished\"}} {}\nlily_jobs_total{{end=\"failed\"}} "
                 "{}\nlily_jobs_total{{end=\"cancelled\"}} {}\n",
                 metrics.jobs_finished, metrics.jobs_failed, metrics.jobs_cancelled);
  single(out, "lily_computed_prompt_tokens_total", "counter",
         "Prompt tokens that were computed, of jobs that did not finish too.", metrics.prompt_tokens);
  single(out, "lily_generated_tokens_total", "counter",
         "Tokens that were sampled, of jobs that did not finish too.", metrics.completion_tokens);
  single(out, "lily_thinking_closed_total", "counter",
         "Answers that ended while they thought, and were made to go on.", metrics.thinking_closed);
  single(out, "lily_passes_total", "counter", "Passes of the device.", metrics.passes);
  single(out, "lily_device_seconds_total", "counter", "Time in passes.", metrics.device_seconds);
  single(out, "lily_device_read_bytes_total", "counter", "Bytes that passes read.", metrics.bytes_read);
  single(out, "lily_device_memory_bytes", "gauge", "Memory of the device.", device.memory_bytes);
  write_cache(out, metrics.cache);
}

}  // namespace

void Histogram::observe(double seconds) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), seconds);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  sum_ += seconds;
}

void Histogram::write(std::string& out, std::string_view name, std::string_view help) const {
  head(out, name, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    fmt::format_to(std::back_inserter(out), "{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], below);
  }
  below += counts_.back();
  fmt::format_to(std::back_inserter(out), "{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name,
                 below, name, sum_, name, below);
}

void ServerCounts::end(const EndedRequest& request) {
  ++requests_[Key{request.path, request.status, request.finish}];
  total_.observe(request.seconds);
  const Usage& usage = request.usage;
  if (usage.completion_tokens == 0) {  // refused, or gone before its end
    return;
  }
  prompt_tokens_ += usage.prompt_tokens;
  cached_tokens_ += usage.cached_tokens;
  completion_tokens_ += usage.completion_tokens;
  reasoning_tokens_ += usage.reasoning_tokens;
  queue_.observe(usage.queue_seconds);
  first_token_.observe(usage.queue_seconds + usage.prefill_seconds);
  if (usage.completion_tokens > 1) {
    per_token_.observe(usage.decode_seconds / (usage.completion_tokens - 1));
  }
}

void ServerCounts::write(std::string& out) const {
  head(out, "lily_requests_total", "counter",
       "Requests for generated text by path, status and end. Those that came to a job end as it did, whether "
       "their client read it or not; left: the client had gone before there was one.");
  for (const auto& [key, count] : requests_) {
    const auto& [path, status, finish] = key;
    fmt::format_to(std::back_inserter(out),
                   "lily_requests_total{{path=\"{}\",status=\"{}\",finish=\"{}\"}} {}\n", escaped(path),
                   status, escaped(finish), count);
  }
  single(out, "lily_prompt_tokens_total", "counter", "Prompt tokens of finished requests.", prompt_tokens_);
  single(out, "lily_cached_prompt_tokens_total", "counter", "Of them, not computed again.", cached_tokens_);
  single(out, "lily_completion_tokens_total", "counter", "Tokens of finished answers.", completion_tokens_);
  single(out, "lily_reasoning_tokens_total", "counter", "Of them, thinking.", reasoning_tokens_);
  first_token_.write(out, "lily_time_to_first_token_seconds", "From the queue to the first token.");
  per_token_.write(out, "lily_time_per_output_token_seconds", "Mean of one answer, after its first token.");
  queue_.write(out, "lily_queue_seconds", "Time in the queue.");
  total_.write(out, "lily_request_seconds", "From the whole request to the end of its answer.");
}

std::string metrics_text(const ServerCounts& counts, size_t connections, const ServedModel* model) {
  std::string out;
  head(out, "lily_build_info", "gauge", "The version of lily.");
  out += "lily_build_info{version=\"" LILY_VERSION "\"} 1\n";
  single(out, "lily_ready", "gauge", "1 once the model is loaded.", model != nullptr ? 1 : 0);
  single(out, "lily_connections", "gauge", "Open connections.", connections);
  single(out, "process_resident_memory_bytes", "gauge", "Resident memory of the process.", resident_bytes());
  counts.write(out);
  if (model != nullptr) {
    write_engine(out, *model);
  }
  return out;
}

}  // namespace lily
