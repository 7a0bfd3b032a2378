// SPDX-License-Identifier: MIT
//
// Makes the flame graph page one self-contained file and turns it into C++:
//
//     node build.mjs PAGE_DIR NODE_MODULES OUTPUT.cc
//
// The page's placeholders @@STYLE@@, @@SCRIPTS@@ and @@LICENSES@@ are filled here; @@TITLE@@ and @@DATA@@ stay for the exporter.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [pageDir, modules, output] = process.argv.slice(2);

// In the order that they need one another. d3-flame-graph uses these parts of d3 and no others: all of d3 would be twice as much.
const libraries = [
  ["d3-array", "dist/d3-array.min.js"],
  ["d3-dispatch", "dist/d3-dispatch.min.js"],
  ["d3-color", "dist/d3-color.min.js"],
  ["d3-ease", "dist/d3-ease.min.js"],
  ["d3-timer", "dist/d3-timer.min.js"],
  ["d3-interpolate", "dist/d3-interpolate.min.js"],
  ["d3-format", "dist/d3-format.min.js"],
  ["d3-time", "dist/d3-time.min.js"],
  ["d3-time-format", "dist/d3-time-format.min.js"],
  ["d3-scale", "dist/d3-scale.min.js"],
  ["d3-hierarchy", "dist/d3-hierarchy.min.js"],
  ["d3-selection", "dist/d3-selection.min.js"],
  ["d3-transition", "dist/d3-transition.min.js"],
  ["d3-flame-graph", "dist/d3-flamegraph.umd.min.js"],
];

function script(text) {
  if (/<\/script/i.test(text)) throw new Error("a script would end its own element");
  return `<script>\n${text.trim()}\n</script>\n`;
}

// The licences ask to go where the code goes.
const licenses = libraries
  .map(([name]) => `${name}\n\n${readFileSync(join(modules, name, "LICENSE"), "utf8").trim()}`)
  .join("\n\n----------\n\n");
if (licenses.includes("-->")) throw new Error("a licence would end its own comment");

const scripts =
  libraries.map(([name, file]) => script(readFileSync(join(modules, name, file), "utf8"))).join("") +
  script(readFileSync(join(pageDir, "page.js"), "utf8"));

const page = readFileSync(join(pageDir, "page.html"), "utf8")
  .replace("@@LICENSES@@", () => licenses)
  .replace("@@STYLE@@", () => readFileSync(join(pageDir, "page.css"), "utf8"))
  .replace("@@SCRIPTS@@", () => scripts);

const bytes = Buffer.from(page, "utf8");
const lines = [];
for (let i = 0; i < bytes.length; i += 32) lines.push([...bytes.subarray(i, i + 32)].join(","));
writeFileSync(
  output,
  `// Made by tools/web/build.mjs from src/export/page.
#include "export/page.h"
namespace stackpipe {
namespace {
constexpr unsigned char kBytes[] = {
${lines.join(",\n")}};
}  // namespace
std::string_view FlamegraphPage() { return {reinterpret_cast<const char*>(kBytes), sizeof(kBytes)}; }
}  // namespace stackpipe
`,
);
