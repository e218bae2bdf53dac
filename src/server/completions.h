// POST /v1/completions: text goes on, without a template and without anything taken out of it. Private to
// src/server.
#pragma once

#include <memory>

#include "server/door.h"

namespace lily {

std::shared_ptr<Door> make_completions_door();

}  // namespace lily
