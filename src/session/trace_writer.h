// SPDX-License-Identifier: MIT
//
// TraceWriter: says in nettrace events what the collector has found. It knows which code and which modules
// the stream has been told of already, and tells of others right before the first sample that needs them; so
// a stream that is cut anywhere names all that it shows.
#ifndef STACKPIPE_SESSION_TRACE_WRITER_H_
#define STACKPIPE_SESSION_TRACE_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "aot/aot_images.h"
#include "lifecycle/event_queue.h"
#include "nettrace/clr_events.h"
#include "nettrace/writer.h"
#include "stackpipe/code_map.h"
#include "stackpipe/session.h"
#include "unwind/native_unwinder.h"

namespace stackpipe {

// A sample as it goes into the file.
struct SampleOut {
  std::uint64_t time_ns = 0;
  std::int32_t tid = 0;
  nettrace::Sample sample;
  const std::vector<std::uint64_t>* stack = nullptr;  // leaf first
};

// Collector thread only. Errors are sticky and come from the sink; see failed().
class TraceWriter {
 public:
  TraceWriter(nettrace::Sink& sink, std::int32_t capture_tid, const CodeMap& code, const AotImages& images,
              const NativeUnwinder& native);

  void Begin(const SessionOptions& options);

  // Each makes sure that the stream names that code: true if it does now. Events that this writes get the
  // time `time_ns`. `pc` says which method it is, where `id` is an AOT image.
  bool AnnounceCode(CodeId id, std::uint64_t pc, std::uint64_t time_ns);
  bool AnnounceNative(std::uint64_t pc, std::uint64_t time_ns);
  // The same for a method of an AOT image that was decoded, if the stream has come to where the image opens.
  // False: it has not yet. A method of an image that has closed there is never named again.
  bool AnnounceSeen(const AotHit& method, std::uint64_t time_ns);
  // Returns false if the sample could not be written.
  bool Write(const SampleOut& sample);
  void Write(const LifecycleEvent& event);
  void Write(const nettrace::ThreadTotals& totals, std::uint64_t time_ns);

  // Samples that are lost: readers of the standard format see the gap.
  void CountLost(std::uint32_t samples) { writer_.SkipSequence(samples); }

  // Native objects may have come or gone: names found earlier are checked again when they are needed.
  void NativeObjectsChanged(std::uint64_t time_ns);

  void Flush();
  void SequencePoint(std::uint64_t time_ns);
  bool WantsSequencePoint() const { return writer_.WantsSequencePoint(); }
  // Rundown of all code that is live, then the end mark.
  void End(const nettrace::SessionEnd& end, std::uint64_t time_ns);

  // True once a write has failed: nothing more is written, and what had not reached the sink is lost.
  bool failed() const { return failed_; }
  // Bytes that have reached the sink.
  std::uint64_t bytes() const { return writer_.bytes(); }

 private:
  enum class Told : std::uint8_t { kNothing, kLoad, kImage, kUnload };
  struct NativeMethod {
    std::uint64_t end = 0;
    std::uint64_t method_id = 0;
    std::uint64_t object_id = 0;
    std::uint64_t certain_from_ns = 0, certain_until_ns = 0;  // of its object
    nettrace::Method method;
  };
  // An AOT image that is open in the stream.
  struct OpenImage {
    AotHit range;
    AotOrigin origin;
    nettrace::Module module;
    std::map<std::uint32_t, nettrace::Method> methods;  // that the stream names, by index
  };

  void Event(const nettrace::TypeInfo& type, std::uint64_t time_ns, std::int32_t tid = 0);
  Told& ToldOf(CodeId id);
  bool MethodOf(CodeId id, nettrace::Method* method, nettrace::CodeInfo* info) const;
  // False: not an AOT image, or one that is not known any more.
  bool OpenAotImage(CodeId id, std::uint64_t time_ns);
  void CloseAotImage(CodeId id, std::uint64_t time_ns, std::int32_t tid);
  void Load(const nettrace::CodeInfo& info, const nettrace::Method& method, std::uint64_t time_ns);
  void UnloadNatives(std::uint64_t start, std::uint64_t end, std::uint64_t time_ns);
  void WriteModule(const ModuleSnapshot& module, const nettrace::TypeInfo& type, std::uint64_t time_ns,
                   std::int32_t tid);

  // Ids of native methods and modules start here; those of registered code and of runtimes' modules lie
  // below.
  static constexpr std::uint64_t kNativeIds = std::uint64_t{1} << 32;
  // The module of an AOT image has this plus the image's CodeId.
  static constexpr std::uint64_t kAotModuleIds = std::uint64_t{1} << 33;

  const CodeMap& code_;
  const AotImages& images_;
  const NativeUnwinder& native_;
  nettrace::Writer writer_;
  std::int32_t capture_tid_;
  nettrace::Payload payload_;
  std::uint64_t last_time_ns_ = 0;
  bool failed_ = false;

  std::vector<Told> code_told_;                               // by CodeId
  std::map<CodeId, OpenImage> open_images_;                   // told kImage
  std::map<std::uint64_t, ModuleSnapshot> modules_;           // loaded now, by id
  std::map<std::uint64_t, NativeMethod> natives_;             // by start
  std::map<std::uint64_t, nettrace::Module> native_modules_;  // by object id
  std::uint64_t next_native_id_ = kNativeIds;
};

}  // namespace stackpipe

#endif  // STACKPIPE_SESSION_TRACE_WRITER_H_
