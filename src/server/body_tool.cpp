#include "server/body_tool.h"

#include <exception>

#include "base/log.h"
#include "server/json_fields.h"
#include "server/messages.h"
#include "server/responses.h"
#include "server/text_tools.h"

namespace lily {
namespace {

struct Work {
  std::string body;
  std::shared_ptr<const ServedModel> model;
  BodyTool tool = nullptr;
  Route route = Route::unknown;
  HttpResponse response;

  void run() {
    try {
      const ApiResult<boost::json::value> json = parse_body(body);
      const ApiResult<std::string> answer = json ? tool(*json, *model) : fail(json.error());
      response = answer ? json_response(*answer) : route_error(route, answer.error());
    } catch (const std::exception& fault) {
      response = route_error(route, from_error(Error{ErrorKind::internal, fault.what(), {}}));
    }
  }
};

}  // namespace

BodyTool body_tool(Route route) {
  switch (route) {
    case Route::count_message_tokens:
      return count_message_tokens;
    case Route::count_response_tokens:
      return count_response_tokens;
    case Route::tokenize:
      return tokenize_json;
    case Route::detokenize:
      return detokenize_json;
    case Route::apply_template:
      return apply_template_json;
    default:
      return nullptr;
  }
}

Connection::Awaitable<void> serve_body_tool(Connection& connection, BodyTool tool) {
  const auto work = std::make_shared<Work>();
  work->route = match_route(connection.request().path).route;
  work->tool = tool;
  work->model = connection.core().model();
  if (!work->model) {
    const HttpResponse response = route_error(work->route, loading());
    co_await connection.respond(response);
    co_return;
  }
  work->body = connection.take_body();
  std::function<void()> run = [work] { work->run(); };
  const bool done = co_await connection.on_worker(std::move(run));
  if (done) {
    log_debug("{} {} -> {}", connection.request().method, printable(connection.request().path),
              work->response.status);
    co_await connection.respond(work->response);
  }
}

}  // namespace lily
