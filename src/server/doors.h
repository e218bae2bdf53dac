// Which door a path leads to. Private to src/server.
#pragma once

#include <memory>

#include "server/door.h"
#include "server/router.h"

namespace lily {

// Null: what is there is no generated answer.
std::shared_ptr<Door> make_door(Route route);

}  // namespace lily
