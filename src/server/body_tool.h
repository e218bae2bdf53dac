// What is made of the JSON of a request's body alone, on a worker, without a job. Private to src/server.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "server/connection.h"

namespace lily {

// The body of the answer.
using BodyTool = ApiResult<std::string> (*)(const boost::json::value& body, const ServedModel& model);

BodyTool body_tool(Route route);  // null: none

Connection::Awaitable<void> serve_body_tool(Connection& connection, BodyTool tool);

}  // namespace lily
