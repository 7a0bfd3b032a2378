// SPDX-License-Identifier: MIT
//
// speedscope's own page, as its npm package ships it, imports what we export.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { exportTrace, launch, openPage, report } from "./support.mjs";

const speedscope = join(dirname(createRequire(import.meta.url).resolve("speedscope/package.json")), "dist/release/index.html");

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

// Hands the file to speedscope in the way of its own command-line program, and opens the table of functions.
async function open(file, name) {
  const { page, problems } = await openPage(browser);
  const script = file + ".js";
  writeFileSync(script, `speedscope.loadFileFromBase64(${JSON.stringify(name)}, ${JSON.stringify(readFileSync(file).toString("base64"))})`);
  await page.goto(`${pathToFileURL(speedscope).href}#localProfilePath=${script}`);
  await page.getByText("Sandwich").click();
  await page.getByText("Symbol Name").waitFor();
  const rows = await page.locator("table").last().evaluate((table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim())));
  return { page, problems, rows };
}

// What the table should say of a profile: [total, self, name], most self first. Slow and obvious.
function functionsOf(file, index) {
  const { shared, profiles } = JSON.parse(readFileSync(file, "utf8"));
  const { samples, weights, endValue } = profiles[index];
  const rows = shared.frames.map((frame) => ({ name: frame.name, self: 0, total: 0 }));
  samples.forEach((stack, i) => {
    if (stack.length > 0) rows[stack.at(-1)].self += weights[i];
    for (const frame of new Set(stack)) rows[frame].total += weights[i];
  });
  assert.equal(weights.reduce((sum, weight) => sum + weight, 0), endValue);
  return { rows: rows.filter((row) => row.total > 0).sort((a, b) => b.self - a.self), all: endValue };
}

const nanoseconds = { ns: 1, "\u00b5s": 1e3, "\u03bcs": 1e3, ms: 1e6, s: 1e9 };
// "12.34ms (56%)" is 12340000.
function weightOf(text) {
  const [, number, unit] = text.match(/^([\d.]+)(\D*) \(/);
  assert.ok(unit in nanoseconds, text);
  return Number(number) * nanoseconds[unit];
}

test("speedscope shows the functions of the heaviest thread, with their times", async () => {
  const file = exportTrace("dotnet/cpu-launched", "speedscope");
  const { page, problems, rows } = await open(file, "cpu.speedscope.json");
  const { threads } = report("dotnet/cpu-launched");
  assert.ok((await page.locator("body").innerText()).includes(`(${threads[0].tid}) (1/${threads.length})`));
  const expected = functionsOf(file, 0);
  for (let i = 0; i < 8; i++) {  // further down many are equal
    const [total, self, name] = rows[i];
    assert.equal(name, expected.rows[i].name);
    assert.ok(Math.abs(weightOf(self) / expected.rows[i].self - 1) < 0.01, `${name}: ${self}, not ${expected.rows[i].self}`);
    assert.ok(Math.abs(weightOf(total) / expected.rows[i].total - 1) < 0.01, `${name}: ${total}, not ${expected.rows[i].total}`);
  }
  assert.equal(expected.all, threads[0].weight);
  assert.deepEqual(problems, []);
});

test("speedscope reads collapsed stacks as well", async () => {
  const { problems, rows } = await open(exportTrace("dotnet/cpu-launched", "collapsed"), "cpu.collapsed.txt");
  assert.ok(rows.some(([, , name]) => name === "P.A(int32)_[j]"));
  assert.deepEqual(problems, []);
});

for (const name of ["full_v4", "dotnet/deep", "dotnet/threads", "dotnet/unload", "dotnet/killed"]) {
  test(`speedscope accepts ${name}`, async () => {
    const file = exportTrace(name, "speedscope");
    const { problems, rows } = await open(file, "p.speedscope.json");
    const expected = functionsOf(file, 0).rows;
    const hottest = expected.filter(({ self }) => self === expected[0].self);
    assert.ok(hottest.some(({ name: one }) => one === rows[0][2]), rows[0][2]);
    assert.deepEqual(problems, []);
  });
}
