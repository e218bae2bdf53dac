// A request for generated text on one connection, whichever API it is of. Private to src/server.
#pragma once

#include <memory>

#include "server/connection.h"
#include "server/door.h"

namespace lily {

// Reads the request that the connection holds, runs it and answers, streamed or not. A client that goes away
// ends its job: while the request is prepared, waits, is prefilled or answered. Every request has one line in
// the log.
Connection::Awaitable<void> serve_answer(Connection& connection, std::shared_ptr<Door> door);

}  // namespace lily
