// POST /v1/chat/completions on one connection. Private to src/server.
#pragma once

#include "server/connection.h"

namespace lily {

// Reads the request that the connection holds, runs it and answers, streamed or not. A client that goes away
// ends its job: while the request is prepared, waits, is prefilled or answered.
Connection::Awaitable<void> serve_chat(Connection& connection);

}  // namespace lily
