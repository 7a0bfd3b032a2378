// SPDX-License-Identifier: MIT
//
// The flame graph page as a person uses it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { exportTrace, launch, openPage, report, until } from "./support.mjs";

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser.close(); });

async function open(name, options) {
  const { page, problems } = await openPage(browser, { reducedMotion: "reduce", ...options });
  await page.goto(pathToFileURL(exportTrace(name, "flamegraph")).href);
  await page.waitForSelector("body[data-ready]");
  return { page, problems };
}

const frames = (page) => page.locator("#chart g.frame");
const dataset = (page, key) => page.evaluate((k) => document.body.dataset[k], key);
const fills = (page) => page.$$eval("#chart g.frame rect", (all) => new Set(all.map((r) => r.getAttribute("fill"))).size);
const widest = (page, name) =>
  page.$$eval("#chart g.frame", (all, wanted) => Math.max(0, ...all.filter((g) => g.getAttribute("name").startsWith(wanted)).map((g) => g.getBoundingClientRect().width)), name);

// The tree that the page should hold, from the collapsed stacks: every distinct path is a node.
async function pathsOf(name) {
  const { readFileSync } = await import("node:fs");
  const paths = new Set();
  for (const line of readFileSync(exportTrace(name, "collapsed"), "utf8").trim().split("\n")) {
    const stack = line.slice(0, line.lastIndexOf(" ")).split(";").slice(1);  // without the thread
    stack.forEach((_, i) => paths.add(stack.slice(0, i + 1).join(";")));
  }
  return paths;
}

test("a small trace shows every frame, by name", async () => {
  const { page, problems } = await open("full_v4");
  assert.equal(await frames(page).count(), 3);  // all threads, root, leaf
  const names = await page.$$eval("#chart g.frame", (all) => all.map((g) => g.getAttribute("name")));
  assert.deepEqual(names.sort(), ["Demo.leaf(int32)", "Demo.root()", "all threads"]);
  assert.equal(await page.title(), "full_v4.nettrace");
  assert.deepEqual(problems, []);
});

test("a real trace has all its nodes in the page and draws those that are wide enough", async () => {
  const { page, problems } = await open("dotnet/cpu-launched");
  assert.equal(Number(await dataset(page, "nodes")), (await pathsOf("dotnet/cpu-launched")).size);
  const drawn = await frames(page).count();
  assert.ok(drawn > 20 && drawn <= Number(await dataset(page, "nodes")) + 1, `${drawn} drawn`);
  const facts = await page.locator("#facts").innerText();
  assert.match(facts, new RegExp(report("dotnet/cpu-launched").samples.toLocaleString("en-US")));
  assert.deepEqual(problems, []);
});

test("search highlights what matches and says how much it is", async () => {
  const { page, problems } = await open("dotnet/cpu-launched");
  const { rows } = report("dotnet/cpu-launched", "--limit", "0");
  const row = rows.find((r) => r.name === "P.A(int32)");
  await page.fill("#search", "p.a(int32)");
  await page.waitForFunction(() => document.body.dataset.highlighted !== "0");
  const matches = await page.locator("#matches").innerText();
  const weight = rows.reduce((sum, r) => sum + r.self, 0);
  assert.equal(matches, `1 function · ${((100 * row.total) / weight).toFixed(1)}%`);
  assert.equal(await fills(page), 2);  // what matches, and the rest
  await page.fill("#search", "no such function");
  await page.waitForFunction(() => document.getElementById("matches").textContent === "no match");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.getElementById("matches").textContent === "");
  assert.ok((await fills(page)) > 2);
  assert.deepEqual(problems, []);
});

test("search takes special characters as they are", async () => {
  const { page, problems } = await open("dotnet/async");
  await page.fill("#search", "[System.__Canon](");
  await page.waitForFunction(() => document.getElementById("matches").textContent !== "");
  assert.deepEqual(problems, []);
});

test("a click zooms in, and the button zooms out again", async () => {
  const { page, problems } = await open("dotnet/cpu-launched");
  const chart = (await page.locator("#chart svg").boundingBox()).width;
  const before = await widest(page, "P.A(int32)");
  assert.ok(before > 10 && before < chart * 0.9, `${before} of ${chart}`);
  await page.locator('#chart g.frame[name^="P.A"]').first().click();
  await page.waitForFunction(() => !document.getElementById("reset").disabled);
  await until(async () => (await widest(page, "P.A(int32)")) > chart * 0.98, "P.A fills the width");
  assert.match(await page.locator("#crumbs").innerText(), /P\.A\(int32\).*of all threads/s);
  await page.click("#reset");
  await until(async () => Math.abs((await widest(page, "P.A(int32)")) - before) < 2, "P.A is as wide as before");
  assert.deepEqual(problems, []);
});

test("each thread can be shown alone", async () => {
  const { page, problems } = await open("dotnet/cpu-launched");
  const { threads } = report("dotnet/cpu-launched");
  assert.equal(await page.locator("#thread option").count(), threads.length + 2);
  const all = await frames(page).count();
  await page.selectOption("#thread", "1");
  assert.notEqual(await frames(page).count(), all);
  assert.match(await page.locator("#crumbs").innerText(), new RegExp(String(threads[1].tid)));
  await page.selectOption("#thread", "-2");
  const names = await page.$$eval("#chart g.frame", (g) => g.map((e) => e.getAttribute("name")));
  for (const { tid } of threads) assert.ok(names.some((n) => n.includes(String(tid))), `thread ${tid}`);
  assert.deepEqual(problems, []);
});

test("kinds have their own colours and a legend that highlights them", async () => {
  const { page, problems } = await open("dotnet/cpu-launched");
  const labels = await page.locator("#legend b").allInnerTexts();
  assert.deepEqual(labels, ["JIT", "AOT"]);
  await page.click('#legend button[data-kind="jit"]');
  assert.equal(await fills(page), 2);
  assert.equal(await page.getAttribute('#legend button[data-kind="jit"]', "aria-pressed"), "true");
  await page.click('#legend button[data-kind="jit"]');
  assert.ok((await fills(page)) > 2);
  assert.deepEqual(problems, []);
});

test("the tooltip tells module, kind and numbers", async () => {
  const { page, problems } = await open("dotnet/cpu-launched");
  await page.locator('#chart g.frame[name^="P.A"]').first().hover();
  const tip = page.locator("#tip");
  await tip.waitFor({ state: "visible" });
  const text = await tip.innerText();
  for (const part of ["P.A(int32)", "JIT", "netapp.dll", "Total", "Self", "%", "Samples"]) {
    assert.ok(text.includes(part), `${part} in ${text}`);
  }
  assert.deepEqual(problems, []);
});

test("managed time and time outside of it can be looked at apart", async () => {
  const { page, problems } = await open("dotnet/cpu-launched");
  const shown = async () => page.locator("#crumbs span").innerText();
  const all = await shown();
  await page.click('#time [data-time="external"]');
  const external = await shown();
  await page.click('#time [data-time="managed"]');
  const managed = await shown();
  assert.equal(new Set([all, external, managed]).size, 3);
  assert.deepEqual(problems, []);
});

test("a trace without samples says so", async () => {
  const { page, problems } = await open("dotnet/events");
  assert.match(await page.locator("#empty").innerText(), /no samples/);
  assert.deepEqual(problems, []);
});

test("a thousand threads and the dark scheme work too", async () => {
  const { page, problems } = await open("dotnet/threads", { colorScheme: "dark" });
  assert.ok((await page.locator("#thread option").count()) > 900);
  const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.match(back, /^rgb\((\d|[1-4]\d), /);
  assert.deepEqual(problems, []);
});
