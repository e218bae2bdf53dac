#include "server/props.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "server/jobs.h"

namespace lily {
namespace {

namespace json = boost::json;

json::object params_json(const ServedModel& model) {
  const Sampling sampling = resolve_sampling(ChatRequest{}, model.generation);
  const bool greedy = sampling.mode == Sampling::Mode::greedy;
  json::object out;
  out["n_predict"] = -1;
  out["max_tokens"] = -1;
  out["seed"] = -1;
  out["temperature"] = greedy ? 0.0F : sampling.temperature;
  out["top_k"] = sampling.top_k;
  out["top_p"] = sampling.top_p;
  out["min_p"] = sampling.min_p;
  out["repeat_penalty"] = sampling.repetition_penalty;
  out["presence_penalty"] = sampling.presence_penalty;
  out["frequency_penalty"] = sampling.frequency_penalty;
  out["stop"] = json::array();
  out["stream"] = false;
  out["n_probs"] = 0;
  out["ignore_eos"] = false;
  return out;
}

// `running`: null for a slot that is free.
json::object slot_json(const ServedModel& model, uint32_t id, const SequenceMetrics* running) {
  json::object out;
  out["id"] = id;
  out["id_task"] = running != nullptr ? static_cast<int64_t>(running->job) : -1;
  out["n_ctx"] = model.engine->plan().context;
  out["speculative"] = false;
  out["is_processing"] = running != nullptr;
  out["params"] = params_json(model);
  if (running != nullptr) {
    out["n_prompt_tokens"] = running->prompt_tokens;
    out["n_prompt_tokens_processed"] = running->read_tokens - running->cached_tokens;
    out["n_prompt_tokens_cache"] = running->cached_tokens;
    json::object next;
    next["has_next_token"] = true;
    next["n_remain"] = running->max_tokens - running->sampled_tokens;
    next["n_decoded"] = running->sampled_tokens;
    out["next_token"] = json::array{std::move(next)};
  }
  return out;
}

}  // namespace

std::string props_json(const ServedModel& model) {
  const std::vector<int32_t>& stops = model.generation.stop_ids;
  json::object out;
  out["default_generation_settings"] = slot_json(model, 0, nullptr);
  out["total_slots"] = model.engine->plan().sequences;
  out["model_alias"] = model.name;
  out["model_path"] = model.name;
  out["modalities"] = json::object{{"vision", false}, {"audio", false}};
  out["bos_token"] = "";
  out["eos_token"] = stops.empty() ? std::string() : std::string(model.tokenizer->bytes_of(stops.front()));
  out["build_info"] = "lily " LILY_VERSION;
  out["is_sleeping"] = false;
  return json::serialize(out);
}

std::string slots_json(const ServedModel& model) {
  const std::vector<SequenceMetrics> running = model.engine->metrics().sequences;
  json::array out;
  for (uint32_t id = 0; id < model.engine->plan().sequences; ++id) {
    out.emplace_back(slot_json(model, id, id < running.size() ? &running[id] : nullptr));
  }
  return json::serialize(out);
}

}  // namespace lily
