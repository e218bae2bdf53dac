#include "server/event_channel.h"

#include <iterator>
#include <new>

namespace lily {
namespace {

size_t bytes_of(const Delta& delta) {
  size_t bytes = delta.reasoning.size() + delta.content.size();
  if (delta.call) {
    bytes += sizeof(ToolCallDelta) + delta.call->name.size() + delta.call->arguments.size();
  }
  for (const TokenInfo& token : delta.logprobs) {
    bytes += sizeof(TokenInfo) + token.top.size() * sizeof(TokenInfo::Choice);
  }
  return bytes;
}

bool same_kind(const Delta& a, const Delta& b) {
  if (a.call || b.call) {
    return a.call && b.call && a.call->index == b.call->index;
  }
  return a.reasoning.empty() == b.reasoning.empty();
}

}  // namespace

void EventChannel::add(Delta delta) {
  bytes_ += bytes_of(delta);
  if (bytes_ > max_bytes_) {
    pending_.overflowed = true;
    return;
  }
  if (pending_.deltas.empty() || !same_kind(pending_.deltas.back(), delta)) {
    pending_.deltas.push_back(std::move(delta));
    return;
  }
  Delta& last = pending_.deltas.back();
  last.reasoning += delta.reasoning;
  last.content += delta.content;
  if (delta.call) {
    last.call->arguments += delta.call->arguments;
    last.call->complete = last.call->complete || delta.call->complete;
  }
  last.logprobs.insert(last.logprobs.end(), std::make_move_iterator(delta.logprobs.begin()),
                       std::make_move_iterator(delta.logprobs.end()));
}

void EventChannel::push(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) {
    return;
  }
  const bool before = pending_.overflowed;
  try {
    keep(std::move(event));
  } catch (const std::bad_alloc&) {
    pending_.overflowed = true;
  }
  if (!told_ || pending_.overflowed != before) {
    told_ = true;
    notify_(pending_.overflowed);
  }
}

void EventChannel::keep(Event event) {
  if (std::holds_alternative<Started>(event)) {
    pending_.started = true;
  } else if (PromptProgress* progress = std::get_if<PromptProgress>(&event)) {
    pending_.progress = *progress;
  } else if (Delta* delta = std::get_if<Delta>(&event)) {
    add(std::move(*delta));
  } else if (Finished* finished = std::get_if<Finished>(&event)) {
    pending_.finished = std::move(*finished);
  } else if (Failed* failed = std::get_if<Failed>(&event)) {
    pending_.failed = std::move(failed->error);
  }
}

EventChannel::Batch EventChannel::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Batch batch = std::move(pending_);
  pending_ = Batch{};
  pending_.overflowed = batch.overflowed;
  bytes_ = 0;
  told_ = false;
  return batch;
}

void EventChannel::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  pending_ = Batch{};
  notify_ = nullptr;
}

}  // namespace lily
