#include "server/doors.h"

#include "server/chat.h"
#include "server/completions.h"
#include "server/messages.h"
#include "server/responses.h"

namespace lily {

std::shared_ptr<Door> make_door(Route route) {
  switch (route) {
    case Route::chat_completions:
      return make_chat_door();
    case Route::completions:
      return make_completions_door();
    case Route::messages:
      return make_messages_door();
    case Route::responses:
      return make_responses_door();
    default:
      return nullptr;
  }
}

}  // namespace lily
