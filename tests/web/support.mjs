// SPDX-License-Identifier: MIT
//
// What the tests share: the tool, the traces, and a browser that may not use the network.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const tool = process.env.STACKPIPE_TOOL;
const golden = process.env.STACKPIPE_GOLDEN;
assert.ok(tool && golden, "STACKPIPE_TOOL and STACKPIPE_GOLDEN say where the tool and the traces are");

const directory = mkdtempSync(join(tmpdir(), "stackpipe-web-"));
process.on("exit", () => rmSync(directory, { recursive: true, force: true }));

// Long, because a busy machine is no failure: nothing waits this long if all is well.
const patience = 120_000;

// Waits until `condition` holds.
export async function until(condition, what) {
  for (const end = Date.now() + patience; !(await condition()); ) {
    assert.ok(Date.now() < end, `never came true: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export const trace = (name) => join(golden, name + ".nettrace");

// Exports a trace and returns the file's path.
export function exportTrace(name, format) {
  const output = join(directory, `${name.replace("/", "-")}.${format === "flamegraph" ? "html" : format}`);
  execFileSync(tool, ["export", trace(name), "--to", format, "-o", output]);
  return output;
}

export function report(name, ...options) {
  return JSON.parse(execFileSync(tool, ["report", trace(name), "--json", ...options], { maxBuffer: 1 << 28 }));
}

export function launch() {
  return chromium.launch({
    timeout: patience,
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
      "--allow-file-access-from-files",
    ],
  });
}

// A fresh page. `problems` collects what no page may do: errors on the console, requests that leave the machine's files.
export async function openPage(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(patience);
  const problems = [];
  page.on("console", (message) => {
    // Drawing in software is slow, and Chromium says so.
    if (["error", "warning"].includes(message.type()) && !message.text().includes("GL Driver Message")) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!/^(file|data|blob):/.test(request.url())) problems.push(`request: ${request.url()}`);
  });
  return { page, problems };
}
