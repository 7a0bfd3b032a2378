// SPDX-License-Identifier: MIT
#include "nettrace/clr_events.h"

#include <gtest/gtest.h>

#include <string>

#include "nettrace/stream_blocks.h"

namespace stackpipe::nettrace {
namespace {

Bytes FromHex(std::string_view hex) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// Each prefix of `payload` is too short.
template <typename DecodeFunction>
void ExpectPrefixesRefused(const Payload& payload, DecodeFunction decode) {
  ASSERT_TRUE(decode(std::span(payload)));
  for (std::size_t size = 0; size < payload.size(); ++size) {
    EXPECT_FALSE(decode(std::span(payload).first(size))) << size << " of " << payload.size();
  }
  Payload longer = payload;
  longer.push_back(std::byte{7});
  EXPECT_TRUE(decode(std::span(longer))) << "later versions may append";
}

TEST(ClrEventsTest, SampleHasWeightAndFlags) {
  Payload payload;
  Encode(Sample{.type = SampleType::kManaged, .flags = 0x30, .weight_ns = 300, .elided = 9}, &payload);
  EXPECT_EQ(payload, FromHex("0200000030ac02"));
  Sample sample;
  ASSERT_TRUE(Decode(payload, &sample));
  EXPECT_EQ(sample.type, SampleType::kManaged);
  EXPECT_TRUE(sample.extended);
  EXPECT_EQ(sample.flags, kSampleInKernel | kSampleOffCpu);
  EXPECT_EQ(sample.weight_ns, 300u);
  EXPECT_EQ(sample.elided, 0u) << "written for stacks that were cut only";

  Encode(Sample{.type = SampleType::kExternal, .flags = kSampleStopDepth, .weight_ns = 1, .elided = 900},
         &payload);
  EXPECT_EQ(payload, FromHex("0100000001018407"));
  ASSERT_TRUE(Decode(payload, &sample));
  EXPECT_EQ(sample.elided, 900u);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    EXPECT_EQ(Decode(std::span(payload).first(size), &sample), size == 4) << size;
  }
}

TEST(ClrEventsTest, SampleOfDotnetHasFourBytes) {
  Sample sample;
  sample.weight_ns = 77;
  ASSERT_TRUE(Decode(FromHex("01000000"), &sample));
  EXPECT_EQ(sample.type, SampleType::kExternal);
  EXPECT_FALSE(sample.extended);
  EXPECT_EQ(sample.weight_ns, 0u);
}

TEST(ClrEventsTest, MethodHasTheRuntimesLayout) {
  Method method{.method_id = 0x1001,
                .module_id = 0x77,
                .start = 0x7f0000001000,
                .size = 0x100,
                .token = 0x6000001,
                .flags = 0x108,
                .name_space = "Demo",
                .name = "leaf",
                .signature = "void (int32)"};
  Payload payload;
  Encode(method, &payload);
  // As in golden/full_v4.nettrace.
  const Bytes golden = ReadFile(STACKPIPE_GOLDEN "/full_v4.nettrace");
  const auto found = std::search(golden.begin(), golden.end(), payload.begin(), payload.end());
  EXPECT_NE(found, golden.end());

  Method back;
  ASSERT_TRUE(Decode(payload, 2, &back));
  EXPECT_EQ(back.method_id, 0x1001u);
  EXPECT_EQ(back.module_id, 0x77u);
  EXPECT_EQ(back.start, 0x7f0000001000u);
  EXPECT_EQ(back.size, 0x100u);
  EXPECT_EQ(back.token, 0x6000001u);
  EXPECT_EQ(back.flags, 0x108u);
  EXPECT_EQ(back.name_space, "Demo");
  EXPECT_EQ(back.name, "leaf");
  EXPECT_EQ(back.signature, "void (int32)");
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    Method out;
    return Decode(bytes, 2, &out);
  });
}

TEST(ClrEventsTest, OlderMethodsAreShorter) {
  Payload payload;
  Method method;
  method.name = "m";
  method.rejit_id = 5;
  Encode(method, &payload);
  Method out;
  ASSERT_TRUE(Decode(payload, 2, &out));
  EXPECT_EQ(out.rejit_id, 5u);
  EXPECT_FALSE(Decode(std::span(payload).first(payload.size() - 8), 2, &out));
  ASSERT_TRUE(Decode(std::span(payload).first(payload.size() - 8), 1, &out));
  EXPECT_EQ(out.rejit_id, 0u);
  EXPECT_FALSE(Decode(std::span(payload).first(payload.size() - 10), 1, &out));
  EXPECT_TRUE(Decode(std::span(payload).first(payload.size() - 10), 0, &out));
}

TEST(ClrEventsTest, ModuleHasTheRuntimesLayout) {
  Module module;
  module.module_id = 0x77;
  module.assembly_id = 0x66;
  module.flags = 8;
  module.il_path = "/opt/demo/demo.wasm";
  Payload payload;
  Encode(module, &payload);
  const Bytes golden = ReadFile(STACKPIPE_GOLDEN "/full_v4.nettrace");
  EXPECT_NE(std::search(golden.begin(), golden.end(), payload.begin(), payload.end()), golden.end());

  module.native_path = "n";
  module.pdb_signature[0] = 1;
  module.pdb_signature[15] = 2;
  module.pdb_age = 3;
  module.pdb_path = "p";
  module.native_pdb_signature[7] = 4;
  module.native_pdb_age = 5;
  module.native_pdb_path = "q";
  Encode(module, &payload);
  Module back;
  ASSERT_TRUE(Decode(payload, 2, &back));
  EXPECT_EQ(back.assembly_id, 0x66u);
  EXPECT_EQ(back.flags, 8u);
  EXPECT_EQ(back.il_path, "/opt/demo/demo.wasm");
  EXPECT_EQ(back.native_path, "n");
  EXPECT_EQ(back.pdb_signature[0], 1);
  EXPECT_EQ(back.pdb_signature[15], 2);
  EXPECT_EQ(back.pdb_age, 3u);
  EXPECT_EQ(back.pdb_path, "p");
  EXPECT_EQ(back.native_pdb_signature[7], 4);
  EXPECT_EQ(back.native_pdb_age, 5u);
  EXPECT_EQ(back.native_pdb_path, "q");
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    Module out;
    return Decode(bytes, 2, &out);
  });
  const std::size_t v1_size = 16 + 8 + 2 * 20 + 2 * 2 + 2;
  EXPECT_TRUE(Decode(std::span(payload).first(v1_size), 1, &back));
  EXPECT_EQ(back.pdb_path, "");
  EXPECT_FALSE(Decode(std::span(payload).first(v1_size), 2, &back));
  EXPECT_TRUE(Decode(std::span(payload).first(v1_size - 2), 0, &back));
}

TEST(ClrEventsTest, ProcessInfoAndInstanceAreAsInTheGoldenFile) {
  Payload payload;
  EncodeProcessInfo("/opt/demo/host --run", "Linux", "x64", &payload);
  const Bytes golden = ReadFile(STACKPIPE_GOLDEN "/full_v4.nettrace");
  EXPECT_NE(std::search(golden.begin(), golden.end(), payload.begin(), payload.end()), golden.end());
  std::string command_line, os, arch;
  ASSERT_TRUE(DecodeProcessInfo(payload, &command_line, &os, &arch));
  EXPECT_EQ(command_line, "/opt/demo/host --run");
  EXPECT_EQ(os, "Linux");
  EXPECT_EQ(arch, "x64");
  EncodeClrInstance(&payload);
  EXPECT_EQ(payload, FromHex("0900"));
}

TEST(ClrEventsTest, OwnEventsGoThereAndBack) {
  Payload payload;
  Encode(SessionStart{.mode = "cpu",
                      .period_ns = 1,
                      .monotonic_ns = 2,
                      .realtime_ns = -3,
                      .tool_version = "0.1",
                      .runtime = "Mono 6.8"},
         &payload);
  SessionStart start;
  ASSERT_TRUE(Decode(payload, &start));
  EXPECT_EQ(start.format_version, 1);
  EXPECT_EQ(start.mode, "cpu");
  EXPECT_EQ(start.period_ns, 1);
  EXPECT_EQ(start.monotonic_ns, 2);
  EXPECT_EQ(start.realtime_ns, -3);
  EXPECT_EQ(start.tool_version, "0.1");
  EXPECT_EQ(start.runtime, "Mono 6.8");
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    SessionStart out;
    return Decode(bytes, &out);
  });

  Encode(ThreadName{.thread_id = 7, .name = "w\xc3\xb6rker"}, &payload);
  ThreadName name;
  ASSERT_TRUE(Decode(payload, &name));
  EXPECT_EQ(name.thread_id, 7);
  EXPECT_EQ(name.name, "w\xc3\xb6rker");
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    ThreadName out;
    return Decode(bytes, &out);
  });

  Encode(CodeInfo{.method_id = 8, .kind = 2, .source_file = "f.cs", .source_line = 12}, &payload);
  CodeInfo info;
  ASSERT_TRUE(Decode(payload, &info));
  EXPECT_EQ(info.method_id, 8u);
  EXPECT_EQ(info.kind, 2);
  EXPECT_EQ(info.source_file, "f.cs");
  EXPECT_EQ(info.source_line, 12);
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    CodeInfo out;
    return Decode(bytes, &out);
  });

  Encode(
      ThreadTotals{.thread_id = 9, .totals = {.expected = 10, .recorded = 6, .dropped = 3, .suppressed = 1}},
      &payload);
  ThreadTotals totals;
  ASSERT_TRUE(Decode(payload, &totals));
  EXPECT_EQ(totals.thread_id, 9);
  EXPECT_EQ(totals.totals.expected, 10u);
  EXPECT_EQ(totals.totals.recorded, 6u);
  EXPECT_EQ(totals.totals.dropped, 3u);
  EXPECT_EQ(totals.totals.suppressed, 1u);
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    ThreadTotals out;
    return Decode(bytes, &out);
  });

  Encode(SessionEnd{.totals = {.expected = 1, .recorded = 1},
                    .handler_ns = 2,
                    .handler_max_ns = 3,
                    .collector_cpu_ns = 4,
                    .process_cpu_ns = 5,
                    .duration_ns = 6,
                    .handler_p50_ns = 7,
                    .handler_p99_ns = 8},
         &payload);
  SessionEnd end;
  ASSERT_TRUE(Decode(payload, &end));
  EXPECT_EQ(end.totals.recorded, 1u);
  EXPECT_EQ(end.handler_ns, 2u);
  EXPECT_EQ(end.handler_max_ns, 3u);
  EXPECT_EQ(end.collector_cpu_ns, 4u);
  EXPECT_EQ(end.process_cpu_ns, 5u);
  EXPECT_EQ(end.duration_ns, 6u);
  EXPECT_EQ(end.handler_p50_ns, 7u);
  EXPECT_EQ(end.handler_p99_ns, 8u);
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    SessionEnd out;
    return Decode(bytes, &out);
  });
}

TEST(ClrEventsTest, LifecycleEventsGoThereAndBack) {
  Payload payload;
  Encode(AppDomain{.id = 5, .flags = 1, .name = "plugins", .index = 2}, &payload);
  AppDomain domain;
  ASSERT_TRUE(Decode(payload, &domain));
  EXPECT_EQ(domain.id, 5u);
  EXPECT_EQ(domain.flags, 1u);
  EXPECT_EQ(domain.name, "plugins");
  EXPECT_EQ(domain.index, 2u);

  Encode(ModulePhase{.module_id = 6, .phase = 2, .path = "a.dll", .guid = "g", .flags = 3}, &payload);
  ModulePhase module;
  ASSERT_TRUE(Decode(payload, &module));
  EXPECT_EQ(module.module_id, 6u);
  EXPECT_EQ(module.phase, 2);
  EXPECT_EQ(module.path, "a.dll");
  EXPECT_EQ(module.guid, "g");
  EXPECT_EQ(module.flags, 3);
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    ModulePhase out;
    return Decode(bytes, &out);
  });

  Encode(DomainPhase{.domain_id = 7, .phase = 3, .name = "d"}, &payload);
  DomainPhase phase;
  ASSERT_TRUE(Decode(payload, &phase));
  EXPECT_EQ(phase.domain_id, 7u);
  EXPECT_EQ(phase.phase, 3);
  EXPECT_EQ(phase.name, "d");
  ExpectPrefixesRefused(payload, [](std::span<const std::byte> bytes) {
    DomainPhase out;
    return Decode(bytes, &out);
  });
}

// Trap 7: a payload is no longer than readers can take.
TEST(ClrEventsTest, LongTextsAreCutAndShortOnesStay) {
  const std::string longer(50'000, 'a');
  Payload payload;
  Encode(Method{.name_space = "Space", .name = longer, .signature = longer}, &payload);
  EXPECT_LE(payload.size(), 65'535u);
  EXPECT_GE(payload.size(), 65'530u);
  Method method;
  ASSERT_TRUE(Decode(payload, 2, &method));
  EXPECT_EQ(method.name_space, "Space");
  EXPECT_GT(method.name.size(), 16'000u);
  EXPECT_EQ(method.name, longer.substr(0, method.name.size()));
  EXPECT_EQ(method.signature.size(), method.name.size());

  // Characters of two units do not divide the room evenly.
  std::string faces;
  for (int i = 0; i < 20'000; ++i) faces += "\xf0\x9f\x98\x80";
  EncodeProcessInfo(faces, "Linux", "x64", &payload);
  EXPECT_LE(payload.size(), 65'535u);
  std::string command_line, os, arch;
  ASSERT_TRUE(DecodeProcessInfo(payload, &command_line, &os, &arch));
  EXPECT_EQ(command_line, faces.substr(0, command_line.size()));
  EXPECT_EQ(command_line.size() % 4, 0u);
  EXPECT_EQ(os, "Linux");
  EXPECT_EQ(arch, "x64");
}

TEST(ClrEventsTest, TypesOfTheRuntimeHaveNoFieldsAndNoName) {
  for (const TypeInfo* type :
       {&kSampleType, &kMethodLoadVerboseType, &kMethodUnloadVerboseType, &kModuleLoadType,
        &kModuleUnloadType, &kDcEndInitType, &kDcEndCompleteType, &kMethodDcEndVerboseType, &kModuleDcEndType,
        &kAppDomainLoadType, &kAppDomainUnloadType}) {
    EXPECT_STREQ(type->name, "");
    EXPECT_TRUE(type->fields.empty());
  }
  EXPECT_EQ(kProcessInfoType.fields.size(), 3u);
  for (const TypeInfo* type : {&kSessionStartType, &kThreadNameType, &kCodeInfoType, &kThreadTotalsType,
                               &kSessionEndType, &kModulePhaseType, &kDomainPhaseType}) {
    EXPECT_STRNE(type->name, "");
    EXPECT_FALSE(type->fields.empty());
  }
}

}  // namespace
}  // namespace stackpipe::nettrace
