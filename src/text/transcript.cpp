#include "text/transcript.h"

namespace lily {

void ParsedOutput::add(const OutputPiece& piece) {
  switch (piece.kind) {
    case OutputPiece::Kind::reasoning:
      reasoning += piece.text;
      return;
    case OutputPiece::Kind::content:
      content += piece.text;
      return;
    case OutputPiece::Kind::call:
      calls.push_back({piece.text, {}, false});
      return;
    case OutputPiece::Kind::arguments:
      calls.at(piece.call).arguments += piece.text;
      return;
    case OutputPiece::Kind::call_end:
      calls.at(piece.call).complete = true;
      return;
  }
}

}  // namespace lily
