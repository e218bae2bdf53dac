// POST /v1/chat/completions. Private to src/server.
#pragma once

#include <memory>

#include "server/door.h"

namespace lily {

std::shared_ptr<Door> make_chat_door();

}  // namespace lily
