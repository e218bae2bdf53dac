// How a prompt is read on a device whose kernels for many rows give other bits than those for single ones
// (DeviceInfo::reading): as a function of its tokens alone, so that a state and an answer do not depend on
// what was kept of a conversation, nor on whether the model said a part of it or a client.
//
// What the model may have said is read as the model says it, as single rows: from a "<think>" that follows
// "<|im_start|>assistant\n" to the end of the turn. All else is read as many rows, in slices that end where
// that begins or at multiples of the device's unit. Which of the two a token is read as follows from the
// tokens up to it. So the state of a length that is a multiple of the unit, or whose last token was read as a
// single row, follows from its tokens; and no other state is kept.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "text/tokenizer.h"

namespace lily {

// Of one prompt.
class Reading {
 public:
  Reading() = default;  // on a device where it does not matter
  // `changes`: where the other way of reading begins, ascending; from 0 on it is many rows.
  Reading(uint32_t unit, std::vector<uint32_t> changes)
      : matters_(true), unit_(unit), changes_(std::move(changes)) {}

  // How a slice that begins with this token is read; it must end at next_change() at the latest.
  ReadAs as(uint32_t token) const {
    return !matters_ ? ReadAs::by_number : single(token) ? ReadAs::single : ReadAs::many;
  }
  bool single(uint32_t token) const;
  // Where the other way of reading begins next behind `token`; UINT32_MAX: nowhere.
  uint32_t next_change(uint32_t token) const;
  // Whether a state of so many of the tokens follows from them alone.
  bool keeps(uint32_t length) const;
  // The longest such length up to `length`.
  uint32_t kept_before(uint32_t length) const;
  // Whether single rows begin there, behind others.
  bool turns_single(uint32_t length) const;

 private:
  bool matters_ = false;
  uint32_t unit_ = 1;
  std::vector<uint32_t> changes_;
};

// Of one model on one device.
class ReadingRule {
 public:
  // A tokenizer without the tokens of a chat has no such turns: all is read as many rows.
  ReadingRule(const ReadingTraits& device, const Tokenizer& tokenizer);

  bool matters() const { return device_.single_rows > 0; }
  const ReadingTraits& device() const { return device_; }
  // Names what states depend on beside their tokens and the layout of checkpoints; empty where nothing is.
  std::string name() const;
  Reading read(std::span<const int32_t> tokens) const;
  // Whether the state that has absorbed `tokens`, those from `prompt` on one by one, is that of a prompt of
  // these tokens.
  bool keeps(std::span<const int32_t> tokens, size_t prompt) const;

 private:
  ReadingTraits device_;
  std::vector<int32_t> opening_;  // of an answer; empty: there are none
  int32_t think_ = -1;
  int32_t end_ = -1;
  int32_t line_ = -1;  // the line break behind `end_`
};

}  // namespace lily
