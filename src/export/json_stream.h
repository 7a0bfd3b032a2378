// SPDX-License-Identifier: MIT
//
// Lets rapidjson write to an Output.
#ifndef STACKPIPE_EXPORT_JSON_STREAM_H_
#define STACKPIPE_EXPORT_JSON_STREAM_H_

#include <rapidjson/encodings.h>
#include <rapidjson/writer.h>

#include <string_view>

#include "export/output.h"

namespace stackpipe {

class JsonStream {
 public:
  using Ch = char;
  explicit JsonStream(Output* output) : output_(output) {}
  void Put(char c) { output_->Put(c); }
  void Flush() {}

 private:
  Output* output_;
};

// JSON that may stand inside an HTML <script>: `<` and `&` only occur inside strings, where an escape means
// the same; all that is not ASCII is escaped too (U+2028 ends a line in old JavaScript).
class ScriptStream {
 public:
  using Ch = char;
  explicit ScriptStream(Output* output) : output_(output) {}
  void Put(char c) {
    switch (c) {
      case '<':
        output_->Write("\\u003c");
        break;
      case '>':
        output_->Write("\\u003e");
        break;
      case '&':
        output_->Write("\\u0026");
        break;
      default:
        output_->Put(c);
    }
  }
  void Flush() {}

 private:
  Output* output_;
};

// rapidjson looks this up by the stream's type.
inline void PutUnsafe(ScriptStream& stream, char c) { stream.Put(c); }

using JsonWriter = rapidjson::Writer<JsonStream>;
using ScriptWriter = rapidjson::Writer<ScriptStream, rapidjson::UTF8<>, rapidjson::ASCII<>>;

template <typename Writer>
void JsonText(Writer& writer, std::string_view text) {
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

}  // namespace stackpipe

#endif  // STACKPIPE_EXPORT_JSON_STREAM_H_
