// The device thread: the only caller of the backend. Takes jobs from the mailbox, lets the scheduler decide,
// keeps up to Backend::kMaxInFlight passes on the device and turns their outputs into events.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/keeper.h"
#include "engine/mailbox.h"
#include "engine/session.h"

namespace lily {

class Runner {
 public:
  // All must outlive it. Makes the first state on the caller's thread, so that a device that cannot hold one
  // is refused here.
  static Result<std::unique_ptr<Runner>> create(Backend& backend, const Plan& plan,
                                                const Tokenizer& tokenizer, Mailbox& mailbox,
                                                const EngineOptions& options);
  // The body of the device thread: returns when the mailbox says stop, with every job ended.
  void run();
  // Both from any thread, once created. The memory is null where nothing is kept.
  std::optional<DiskMetrics> disk_metrics() const { return keeper_->disk_metrics(); }
  const TokenMemory* memory() const { return keeper_->enabled() ? keeper_.get() : nullptr; }

 private:
  struct Flight {
    PassWatch watch;
    Ticket ticket = 0;
    std::vector<Session*> sessions;
    std::vector<Assignment> assignments;  // in the order of `sessions`
  };

  Runner(Backend& backend, const Plan& plan, const Tokenizer& tokenizer, Mailbox& mailbox)
      : backend_(backend),
        plan_(plan),
        tokenizer_(tokenizer),
        mailbox_(mailbox),
        rule_(backend.device().reading, tokenizer) {}

  // A job that waits for what its prompt begins with: to come from the disk, or to be kept by a session that
  // has just ended.
  struct Loading {
    std::shared_ptr<JobRecord> job;
    std::shared_ptr<DiskStore::Fetch> fetch;
    std::shared_ptr<JobRecord> before;  // of that session
  };

  void step();
  void admit();
  std::shared_ptr<JobRecord> ending_before(const JobRecord& job) const;
  bool load(const std::shared_ptr<JobRecord>& job);
  void admit_loaded();
  void begin(const std::shared_ptr<JobRecord>& job, bool from_disk);
  Result<std::unique_ptr<Session>> make_session(const std::shared_ptr<JobRecord>& job, bool from_disk);
  void keep_at_stops();
  void sweep();
  void end_overdue();
  void report();
  void reuse(Session& session);
  void end_all();
  void fail_all(const Error& error);

  bool submit_next();
  Result<bool> submit(std::span<const Assignment> assignments);
  void submit_one_by_one(std::span<const Assignment> assignments);
  void collect_oldest();
  void take(Flight& flight, Result<Output> output);
  void finish(Session& session, Finished last);
  void fail_session(Session& session, Error error);

  Backend& backend_;
  const Plan& plan_;
  const Tokenizer& tokenizer_;
  Mailbox& mailbox_;
  const ReadingRule rule_;
  std::unique_ptr<Keeper> keeper_;  // destroyed after the states
  double unsaved_seconds_ = 0;
  std::vector<Loading> loading_;                   // they count as running
  std::vector<std::unique_ptr<Session>> running_;  // ended ones stay until no pass holds them
  std::deque<std::unique_ptr<Flight>> flights_;    // oldest first
  uint64_t passes_ = 0;                            // submitted
  uint64_t jobs_ = 0;                              // admitted
};

}  // namespace lily
