// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "stackpipe/report.h"
#include "stackpipe/text.h"

namespace stackpipe {
namespace {

std::string Plural(std::uint64_t count, const char* one) {
  return fmt::format("{} {}{}", CountText(count), one, count == 1 ? "" : "s");
}

std::string WeightText(const Profile& profile, std::uint64_t weight) {
  return profile.weight_unit == WeightUnit::kNanoseconds ? TimeText(weight) : CountText(weight);
}

std::string ProgramLine(const Profile& profile) {
  const ProfileProcess& process = profile.process;
  std::string line = process.command_line.empty() ? "a program" : process.command_line;
  if (process.pid != 0) line += fmt::format(" (pid {})", process.pid);
  const std::string& runtime = profile.session.runtime;  // "mono 6.8.0 (what else it says of itself)"
  if (!runtime.empty()) line += ", " + runtime.substr(0, runtime.find(" ("));
  return line;
}

std::string HowLine(const Profile& profile) {
  const ProfileSession& session = profile.session;
  std::string line = TimeText(profile.duration_ns) + " recorded, ";
  if (session.period_ns != 0) {
    const std::string period = TimeText(session.period_ns);
    if (session.mode == "cpu") {
      line += fmt::format("a sample each {} of CPU time, ", period);
    } else if (session.mode == "wall") {
      line += fmt::format("a sample each {}, running or not, ", period);
    } else {
      line += fmt::format("a sample of all threads each {}, ", period);  // .NET's sampler
    }
  }
  return line + Plural(profile.threads.size(), "thread");
}

std::string SamplesLine(const Profile& profile) {
  std::string line = Plural(profile.cost.samples, "sample");
  if (profile.weight_unit == WeightUnit::kNanoseconds) line += " for " + TimeText(profile.cost.weight);
  if (profile.cost.external != 0) {
    line += fmt::format(", {} of it in native code or waiting", TimeText(profile.cost.external));
  }
  const LossTotals& loss = profile.loss;
  if (loss.dropped == 0) return line + "; none lost";
  return line + fmt::format("; {} lost ({} of {})", CountText(loss.dropped),
                            PercentText(loss.dropped, loss.expected), CountText(loss.expected));
}

std::string NamesLine(const Profile& profile) {
  std::string line = "no managed frames";
  if (profile.managed_frames != 0) {
    line = fmt::format("{} of {} named", PercentText(profile.managed_named, profile.managed_frames),
                       Plural(profile.managed_frames, "managed frame"));
  }
  std::uint64_t cut = 0;
  for (std::size_t reason = 1; reason < kStopReasonCount; ++reason) cut += profile.stop_reasons[reason];
  if (cut != 0) {
    line += fmt::format("; {} of stacks incomplete (", PercentText(cut, profile.cost.samples));
    const char* comma = "";
    for (std::size_t reason = 1; reason < kStopReasonCount; ++reason) {
      if (profile.stop_reasons[reason] == 0) continue;
      line += fmt::format("{}{} {}", comma, StopReasonName(reason), CountText(profile.stop_reasons[reason]));
      comma = ", ";
    }
    line += ')';
  }
  return line;
}

std::string CostLine(const Profile& profile) {
  const ProfileSession& session = profile.session;
  const std::uint64_t cost = session.handler_ns + session.collector_cpu_ns;
  std::string line = TimeText(cost);
  if (session.process_cpu_ns != 0) {
    line += fmt::format(", {} of the program's CPU time", PercentText(cost, session.process_cpu_ns));
  }
  return line + fmt::format("; a sample interrupts for {} at most", TimeText(session.handler_max_ns));
}

std::string Header(const Profile& profile, std::size_t width) {
  std::string text;
  const auto add = [&](const char* label, const std::string& line) {
    text += CutText(fmt::format("{:<9}{}", label, line), width) + '\n';
  };
  add("Program", ProgramLine(profile));
  add("Session", HowLine(profile));
  add("Samples", SamplesLine(profile));
  if (profile.frames != 0) add("Names", NamesLine(profile));
  if (profile.session.handler_ns != 0) add("Cost", CostLine(profile));
  return text;
}

TextTable MakeTable(const Profile& profile, GroupBy by, const std::vector<ProfileRow>& rows,
                    std::size_t shown) {
  std::vector<TextTable::Column> columns = {
      {"SELF", true}, {"", true}, {"TOTAL", true}, {"", true}, {"KIND"}};
  switch (by) {
    case GroupBy::kFunction:
      columns.insert(columns.end(), {{"FUNCTION", false, true}, {"MODULE"}});
      break;
    case GroupBy::kModule:
      columns.push_back({"MODULE", false, true});
      break;
    case GroupBy::kThread:
      columns = {{"TIME", true}, {"", true}, {"SAMPLES", true}, {"THREAD", false, true}};
      break;
  }
  TextTable table(columns);
  const std::uint64_t all = profile.cost.weight;
  for (std::size_t i = 0; i < shown; ++i) {
    const ProfileRow& row = rows[i];
    std::vector<std::string> cells = {PercentText(row.self.weight, all),
                                      WeightText(profile, row.self.weight)};
    if (by == GroupBy::kThread) {
      cells.push_back(CountText(row.self.samples));
      cells.push_back(ThreadLabel(row.name, row.tid));
    } else {
      cells.push_back(PercentText(row.total.weight, all));
      cells.push_back(WeightText(profile, row.total.weight));
      cells.emplace_back(KindName(row.kind));
      cells.push_back(row.name);
      if (by == GroupBy::kFunction) cells.push_back(row.module);
    }
    table.AddRow(std::move(cells));
  }
  return table;
}

}  // namespace

std::string ReportTable(const Profile& profile, const ReportOptions& options) {
  std::string text = Header(profile, options.width) + '\n';
  if (profile.cost.samples == 0) return text + "There are no samples in this file.\n";
  const std::vector<ProfileRow> rows = MakeRows(profile, options.by);
  const std::size_t shown = options.limit == 0 ? rows.size() : std::min(rows.size(), options.limit);
  text += MakeTable(profile, options.by, rows, shown).Text(options.width);
  if (shown < rows.size()) {
    text += fmt::format("... and {} more; --limit 0 shows all\n", CountText(rows.size() - shown));
  }
  return text;
}

}  // namespace stackpipe
