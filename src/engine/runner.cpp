#include "engine/runner.h"

#include <algorithm>

#include "base/log.h"

namespace lily {
namespace {

// A backend reports what can go wrong as an Error; an exception is a fault of its own (base/check.h) or a
// lack of memory. Either way only the requests concerned end.
template <class F>
auto guarded(F&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::out_of_memory, "the host ran out of memory");
  } catch (const std::exception& error) {
    return fail(ErrorKind::internal, "the device failed: {}", error.what());
  }
}

Error shutting_down() {
  return {ErrorKind::cancelled, "the engine is shutting down: the request was not finished", {}};
}

Error out_of_time(const JobRecord& job, std::string_view where) {
  return {ErrorKind::timeout,
          fmt::format("the request was {} when its {:g} seconds were over", where, job.request.max_seconds),
          {}};
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(Backend& backend, const Plan& plan, const Tokenizer& tokenizer,
                                               Mailbox& mailbox, const EngineOptions& options) {
  const ReadingTraits& reading = backend.device().reading;
  if (reading.single_rows > 0 && plan.chunk % reading.unit != 0) {
    return fail(ErrorKind::invalid_input,
                "device '{}': expected a chunk of a multiple of {} tokens, found {}", backend.device().name,
                reading.unit, plan.chunk);
  }
  std::unique_ptr<Runner> runner(new Runner(backend, plan, tokenizer, mailbox));
  LILY_TRY(runner->keeper_, guarded([&] { return Keeper::create(backend, plan, options, runner->rule_); }));
  runner->unsaved_seconds_ = options.unsaved_seconds;
  return runner;
}

void Runner::run() {
  for (;;) {
    // What is loaded wakes it.
    const Mailbox::Orders orders = mailbox_.wait(
        !running_.empty(), running_.size() + loading_.size() >= plan_.sequences, !loading_.empty());
    if (orders.abort) end_all();
    if (orders.stop) break;
    if (Result<void> done = guarded([&]() -> Result<void> { return step(), Result<void>(); }); !done) {
      fail_all(done.error());
    }
  }
}

void Runner::step() {
  end_overdue();
  sweep();
  admit();
  keep_at_stops();
  const bool submitted = flights_.size() < Backend::kMaxInFlight && submit_next();
  // A pass is read only when the next one is on the device already, or when there is no next one.
  if (!flights_.empty() && (!submitted || flights_.size() == Backend::kMaxInFlight)) collect_oldest();
}

void Runner::admit() {
  admit_loaded();
  while (running_.size() + loading_.size() < plan_.sequences) {
    const std::shared_ptr<JobRecord> job = mailbox_.next();
    if (!job) return;
    if (std::shared_ptr<JobRecord> before = ending_before(*job)) {
      loading_.push_back({job, nullptr, std::move(before)});
    } else if (!load(job)) {
      begin(job, /*from_disk=*/false);
    }
  }
}

// The session that has ended and is about to leave a beginning of the prompt of `job` (reuse()), but for a
// pass that still holds its state.
std::shared_ptr<JobRecord> Runner::ending_before(const JobRecord& job) const {
  const auto found = std::ranges::find_if(running_, [&](const std::unique_ptr<Session>& session) {
    return !session->wanted() && session->leaves_beginning_of(job.request.prompt);
  });
  return found == running_.end() ? nullptr : (*found)->shared_job();
}

// Whether `job` has to wait for the disk.
bool Runner::load(const std::shared_ptr<JobRecord>& job) {
  std::shared_ptr<DiskStore::Fetch> fetch = keeper_->fetch(job->request.prompt, [this] { mailbox_.wake(); });
  if (!fetch) return false;
  loading_.push_back({job, std::move(fetch), nullptr});
  return true;
}

void Runner::admit_loaded() {
  for (Loading& one : std::exchange(loading_, {})) {
    if (one.job->cancelled()) {
      one.job->end(Failed{});  // dropped: nobody listens. What is on its way is not waited for.
      mailbox_.count(JobEnd::cancelled);
    } else if (one.before != nullptr) {
      const bool ending = std::ranges::any_of(
          running_, [&](const auto& session) { return session->shared_job() == one.before; });
      if (ending) {
        loading_.push_back(std::move(one));
      } else if (!load(one.job)) {
        begin(one.job, /*from_disk=*/false);
      }
    } else if (!one.fetch->done) {
      loading_.push_back(std::move(one));
    } else {
      keeper_->take(*one.fetch);
      // What could not be read is gone from the disk: perhaps something shorter is there.
      const bool read = one.fetch->checkpoint != nullptr;
      if (read || !load(one.job)) begin(one.job, read);
    }
  }
}

void Runner::begin(const std::shared_ptr<JobRecord>& job, bool from_disk) {
  Result<std::unique_ptr<Session>> session = guarded([&] { return make_session(job, from_disk); });
  if (!session) {
    job->end(Failed{std::move(session).error()});
    mailbox_.count(job->end_was_heard() ? JobEnd::failed : JobEnd::cancelled);
    return;
  }
  (*session)->last_turn = passes_;
  (*session)->number = ++jobs_;
  (*session)->start();
  running_.push_back(*std::move(session));
}

Result<std::unique_ptr<Session>> Runner::make_session(const std::shared_ptr<JobRecord>& job, bool from_disk) {
  LILY_TRY(auto state, keeper_->fresh_state());
  LILY_TRY(PromptReuse reuse, keeper_->begin(*state, job->request));
  reuse.from_disk = from_disk && reuse.cached > 0;
  LILY_TRY_VOID(state->begin_answer(job->request.prompt));
  auto session = std::make_unique<Session>(job, std::move(state), tokenizer_, plan_.context);
  Reading reading = rule_.read(job->request.prompt);
  std::vector<uint32_t> stops = keeper_->stops(job->request, reading, reuse.cached, plan_.chunk);
  session->resume(reuse, std::move(reading), std::move(stops));
  if (keeper_->enabled()) session->most_unsaved = unsaved_seconds_;
  return session;
}

void Runner::keep_at_stops() {
  for (auto& session : running_) {
    if (session->state_failed || !session->wanted()) continue;
    if (session->at_stop()) {
      keeper_->keep(session->state(), session->absorbed_tokens());
      session->pass_stop();
    } else if (session->at_risk()) {
      session->put_aside(keeper_->save(session->state()));
    }
  }
}

// Jobs that wait are looked at too: while others run or load, this is called often enough.
void Runner::end_overdue() {
  const EngineClock::time_point now = EngineClock::now();
  for (const std::shared_ptr<JobRecord>& job : mailbox_.take_overdue(now)) {
    job->end(Failed{out_of_time(*job, "still waiting for its turn")});
    mailbox_.count(JobEnd::failed);
  }
  for (const Loading& one : loading_) {
    if (!one.job->wanted() || !one.job->overdue(now)) continue;
    one.job->end(Failed{out_of_time(*one.job, "still waiting for its turn")});
    mailbox_.count(JobEnd::failed);
  }
  std::erase_if(loading_, [](const Loading& one) { return one.job->ended(); });
  for (auto& session : running_) {
    if (!session->wanted() || !session->job().overdue(now)) continue;
    if (std::optional<Finished> finished = session->cut_off()) {
      finish(*session, *std::move(finished));
    } else {
      fail_session(*session, out_of_time(session->job(), "still being read"));
    }
  }
}

// Lets go of sessions that want nothing more, once the device does not hold them either.
void Runner::sweep() {
  for (auto& session : running_) {
    if (session->job().cancelled() && !session->job().ended()) {
      session->job().end(Failed{});  // dropped: nobody listens
      mailbox_.count(JobEnd::cancelled);
    }
    if (session->job().ended() && session->passes_in_flight == 0) {
      reuse(*session);
      session.reset();
    }
  }
  if (std::erase(running_, nullptr) > 0) report();
}

void Runner::report() {
  std::vector<SequenceMetrics> sequences;
  for (const auto& session : running_) {
    if (session->wanted()) sequences.push_back(session->metrics());
  }
  mailbox_.report(keeper_->metrics(), std::move(sequences));
}

// What was read and answered is kept. There is no truncate(): a used state starts again from the empty
// checkpoint. At once, so that its keys and values are given back while it waits.
void Runner::reuse(Session& session) {
  Result<void> done = guarded([&]() -> Result<void> {
    // Of a cancelled pass what was put aside before it is left; and of a prompt that was read to its end
    // that alone is of use to who asks for the same again.
    if (const std::shared_ptr<Checkpoint> aside = session.left_aside())
      keeper_->keep(std::span(session.prompt()).first(aside->length()), aside);
    if (session.state_failed) return {};
    const std::span<const int32_t> tokens = session.absorbed_tokens();
    if (rule_.keeps(tokens, session.prompt().size())) keeper_->keep(session.state(), tokens);
    return keeper_->give_back(session.release_state());
  });
  if (!done)
    log_warn("what a request leaves could not be kept, its state is dropped: {}", done.error().text());
}

// A fault of the engine itself, outside any one request: no state can be trusted.
void Runner::fail_all(const Error& error) {
  for (auto& session : running_) {
    session->state_failed = true;
    fail_session(*session, error);
  }
  while (!flights_.empty()) collect_oldest();
  for (auto& session : running_) session->passes_in_flight = 0;  // even of a flight that the fault lost
  sweep();
}

void Runner::end_all() {
  while (std::shared_ptr<JobRecord> job = mailbox_.next()) {
    job->end(Failed{shutting_down()});
    mailbox_.count(JobEnd::cancelled);
  }
  for (const Loading& one : std::exchange(loading_, {})) {
    one.job->end(Failed{shutting_down()});
    mailbox_.count(JobEnd::cancelled);
  }
  for (auto& session : running_) {
    if (session->job().ended()) continue;
    session->job().end(Failed{shutting_down()});
    mailbox_.count(JobEnd::cancelled);
  }
  while (!flights_.empty()) collect_oldest();
  sweep();
}

bool Runner::submit_next() {
  std::vector<SequenceProgress> progress;
  progress.reserve(running_.size());
  for (const auto& session : running_) progress.push_back(session->progress());
  const std::vector<Assignment> assignments =
      schedule(progress, plan_.chunk, std::clamp(rule_.device().single_rows, 1U, plan_.chunk));
  if (assignments.empty()) return false;
  Result<bool> submitted = submit(assignments);
  if (submitted) return *submitted;
  const bool failed = running_[assignments.front().sequence]->state_failed;
  if (assignments.size() > 1 && !failed) {
    submit_one_by_one(assignments);
    return false;
  }
  for (const Assignment& assignment : assignments)
    fail_session(*running_[assignment.sequence], submitted.error());
  return false;
}

// False: a job was cancelled in between, nothing was submitted.
Result<bool> Runner::submit(std::span<const Assignment> assignments) {
  auto flight = std::make_unique<Flight>();
  std::vector<Slice> slices;
  for (const Assignment& assignment : assignments) {
    Session& session = *running_[assignment.sequence];
    slices.push_back(session.slice(assignment));
    flight->sessions.push_back(&session);
    flight->assignments.push_back(assignment);
    flight->watch.jobs.push_back(session.shared_job());
  }
  if (!mailbox_.watch(flight->watch)) return false;
  bool threw = true;
  Result<Ticket> ticket = guarded([&] {
    Result<Ticket> result =
        backend_.submit({.slices = slices, .cancel = &flight->watch.cancel, .probe = nullptr});
    threw = false;
    return result;
  });
  if (!ticket) {
    mailbox_.unwatch(flight->watch);
    // A refused pass has changed nothing; what an exception has left behind nobody knows.
    if (threw) {
      for (Session* session : flight->sessions) session->state_failed = true;
    }
    return fail(std::move(ticket).error());
  }
  flight->ticket = *ticket;
  ++passes_;
  for (size_t i = 0; i < assignments.size(); ++i) flight->sessions[i]->submitted(assignments[i], passes_);
  flights_.push_back(std::move(flight));
  return true;
}

// A pass of several sequences was refused as a whole: finds those it was refused for, and lets the others go
// on.
void Runner::submit_one_by_one(std::span<const Assignment> assignments) {
  while (!flights_.empty()) collect_oldest();
  for (const Assignment& assignment : assignments) {
    Session& session = *running_[assignment.sequence];
    if (!session.wanted()) continue;
    Result<bool> submitted = submit(std::span(&assignment, 1));
    if (!submitted) {
      fail_session(session, std::move(submitted).error());
    } else if (*submitted) {
      collect_oldest();
    }
  }
}

void Runner::collect_oldest() {
  const std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.pop_front();
  Result<Output> output = guarded([&] { return backend_.collect(flight->ticket); });
  mailbox_.unwatch(flight->watch);
  if (output && output->slices.size() != flight->sessions.size()) {
    output = fail(ErrorKind::internal, "the device answered {} slices of {}", output->slices.size(),
                  flight->sessions.size());
  }
  take(*flight, std::move(output));
}

void Runner::take(Flight& flight, Result<Output> output) {
  if (output) mailbox_.count_pass(*output);
  uint64_t tokens = 0;
  for (size_t i = 0; i < flight.sessions.size(); ++i) {
    Session& session = *flight.sessions[i];
    --session.passes_in_flight;
    if (!output) {
      session.state_failed = true;
      // A pass that was dropped on request: its jobs are cancelled already or about to be ended by end_all().
      if (!flight.watch.cancel) fail_session(session, output.error());
      continue;
    }
    if (!output->slices[i].finite) session.state_failed = true;
    if (flight.assignments[i].rows > 0) session.worked(output->seconds);
    session.sampled(output->slices[i].token);
    if (!session.wanted()) continue;  // ended or cancelled while the pass was on its way
    Result<std::optional<Finished>> taken =
        guarded([&] { return session.take(flight.assignments[i], output->slices[i], plan_.shape.vocab); });
    tokens += session.new_prompt_tokens + session.new_tokens;
    mailbox_.count_tokens(std::exchange(session.new_prompt_tokens, 0), std::exchange(session.new_tokens, 0));
    if (std::exchange(session.closed_thinking, false)) mailbox_.count_closed_thinking();
    if (!taken) {
      fail_session(session, std::move(taken).error());
    } else if (*taken) {
      finish(session, *std::move(*taken));
    }
  }
  keeper_->computed(tokens);
  report();
}

// The answer is known before its client can go on with it.
void Runner::finish(Session& session, Finished last) {
  keeper_->note(session.all_tokens());
  session.job().end(std::move(last));
  mailbox_.count(session.job().end_was_heard() ? JobEnd::finished : JobEnd::cancelled);
}

void Runner::fail_session(Session& session, Error error) {
  if (session.job().ended()) return;
  if (!session.job().cancelled()) log_warn("a request failed: {}", error.text());
  session.job().end(Failed{std::move(error)});
  mailbox_.count(session.job().end_was_heard() ? JobEnd::failed : JobEnd::cancelled);
}

}  // namespace lily
