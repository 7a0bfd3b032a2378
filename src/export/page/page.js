// SPDX-License-Identifier: MIT
//
// The flame graph page. d3-flame-graph draws and zooms; the rest (views of threads, kinds, search, numbers) is here.
// The data's layout: src/export/flamegraph.cc. All text from the profile goes into the page as text, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // Hue and saturation for each kind of code; the shade of a frame comes from its name.
  const KINDS = {
    jit: { label: "JIT", hue: 148, saturation: 48 },
    aot: { label: "AOT", hue: 212, saturation: 66 },
    interpreter: { label: "Interpreter", hue: 322, saturation: 52 },
    wrapper: { label: "Wrapper", hue: 264, saturation: 52 },
    native: { label: "Native", hue: 40, saturation: 78 },
    kernel: { label: "Kernel boundary", hue: 12, saturation: 72 },
    unknown: { label: "Unknown", hue: 215, saturation: 10 },
  };
  const CELL = 22;        // height of a frame, px
  const LETTER = 6.95;    // width of a letter in a frame, px, about
  const NARROWEST = 1.5;  // frames below this width are not drawn, px
  const DEEPEST = 3000;   // levels below this one count as part of it: d3-flame-graph recurses, and the browser's stack ends
  const FRAME = 0, DISTANCE = 1, WEIGHT = 2, SAMPLES = 3, EXTERNAL = 4, STRIDE = 5;  // data.threads[].nodes

  const frames = data.frames.map(([name, module, kind, file, line]) => ({
    name, module: data.modules[module], kind: data.kinds[kind], file, line, shade: shadeOf(name),
    text: (name + "\n" + data.modules[module]).toLowerCase(), labels: labelsOf(name),
  }));

  // Shorter and shorter forms of a name: "A.B.Type.Method(int)", "A.B.Type.Method", "Type.Method", "Method".
  function labelsOf(name) {
    const labels = [name];
    let bare = name;
    if (name.endsWith(")")) {
      let depth = 0, at = name.length - 1;
      for (; at >= 0; at--) {
        if (name[at] === ")") depth++;
        if (name[at] === "(" && --depth === 0) break;
      }
      if (at > 0) labels.push((bare = name.slice(0, at)));
    }
    const dots = [];  // outside of [..] and <..>
    for (let i = 0, depth = 0; i < bare.length; i++) {
      if ("[<".includes(bare[i])) depth++;
      if ("]>".includes(bare[i])) depth--;
      if (bare[i] === "." && depth === 0 && i > 0 && bare[i - 1] !== ".") dots.push(i);  // "Type..ctor" is Type's .ctor
    }
    for (const keep of [2, 1]) {
      if (dots.length >= keep && dots[dots.length - keep] + 1 < bare.length) labels.push(bare.slice(dots[dots.length - keep] + 1));
    }
    return labels;
  }

  // 0..1, equal for equal names without their arguments.
  function shadeOf(name) {
    let hash = 2166136261;
    const end = name.indexOf("(") > 0 ? name.indexOf("(") : name.length;
    for (let i = 0; i < end; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
    return ((hash >>> 8) % 1000) / 999;
  }
  function kindColor(kind, shade) {
    const { hue, saturation } = KINDS[kind];
    const lightness = dark.matches ? 30 + 11 * shade : 68 + 13 * shade;
    const strength = dark.matches ? saturation * 0.72 : saturation;
    return `hsl(${hue + 10 * (shade - 0.5)} ${strength}% ${lightness}%)`;
  }

  // ---- Numbers for people.
  const count = (n) => n.toLocaleString("en-US");
  function time(ns) {
    if (data.unit !== "ns") return count(ns) + (ns === 1 ? " sample" : " samples");
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (ns >= size) return `${trim(ns / size)} ${unit}`;
    }
    return ns + " ns";
  }
  const trim = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
  const percent = (part, whole) => (whole === 0 ? "0%" : ((100 * part) / whole).toFixed(part === whole ? 0 : 1) + "%");

  // ---- Views: a tree of {frame, value, self, samples, selfSamples, children} made from the threads.
  const threadName = (t) => (t.name ? `${t.name} (${t.tid})` : `Thread ${t.tid}`);
  const weigh = {
    all: (n, i) => n[i + WEIGHT],
    managed: (n, i) => n[i + WEIGHT] - n[i + EXTERNAL],
    external: (n, i) => n[i + EXTERNAL],
  };
  const newNode = (name, frame, depth) => ({ name, frame, depth, value: 0, self: 0, samples: 0, children: [] });

  // Adds a thread's nodes below `root`, with equal frames of equal parents as one.
  function addThread(root, thread, weight) {
    const n = thread.nodes;
    const made = [root];
    for (let i = 0, at = 1; i < n.length; i += STRIDE, at++) {
      const parent = made[at - n[i + DISTANCE]];
      parent.index ??= new Map();
      let node = parent.depth >= DEEPEST ? parent : parent.index.get(n[i + FRAME]);
      if (!node) {
        const frame = frames[n[i + FRAME]];
        node = newNode(frame.name, frame, parent.depth + 1);
        parent.index.set(n[i + FRAME], node);
        parent.children.push(node);
      }
      node.self += weight(n, i);
      node.samples += n[i + SAMPLES];
      made.push(node);
    }
  }
  // Totals from the leaves up; what weighs nothing in this view goes.
  function sumUp(root) {
    const order = [root];
    for (let i = 0; i < order.length; i++) {
      for (const child of order[i].children) order.push(child);
    }
    for (let i = order.length; i-- > 0; ) {
      const node = order[i];
      node.index = undefined;
      node.value = node.self;
      node.children = node.children.filter((child) => child.value > 0);
      for (const child of node.children) {
        node.value += child.value;
        node.samples += child.samples;
      }
      node.children.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
    }
    return root;
  }
  function makeView(choice, which) {
    const threads = choice >= 0 ? [data.threads[choice]] : data.threads;
    const root = newNode(choice >= 0 ? threadName(threads[0]) : "all threads", null, 0);
    for (const thread of threads) {
      let below = root;
      if (choice === -2) root.children.push((below = newNode(threadName(thread), null, 1)));
      addThread(below, thread, weigh[which]);
    }
    return sumUp(root);
  }

  // ---- State of the page, and what follows from it.
  const state = { choice: -1, which: "all", term: "", kind: null, zoomed: null };
  const matching = () => state.term !== "" || state.kind !== null;
  function matches(node) {
    if (!node.frame) return false;
    if (state.kind !== null && node.frame.kind !== state.kind) return false;
    return state.term === "" || node.frame.text.includes(state.term);
  }

  function color(d) {
    const frame = d.data.frame;
    if (matching()) {
      if (d.highlight) return dark.matches ? "hsl(48 88% 38%)" : "hsl(48 96% 60%)";
      return dark.matches ? "hsl(215 12% 26%)" : "hsl(215 18% 91%)";
    }
    if (!frame) return dark.matches ? "hsl(215 14% 28%)" : "hsl(215 20% 87%)";
    return kindColor(frame.kind, frame.shade);
  }

  // The longest form of a frame's name that has room in it.
  function label(d) {
    const { frame, name } = d.data;
    if (!frame) return name;
    const room = ((d.x1 - d.x0) * chartElement.clientWidth - 12) / LETTER;
    return frame.labels.find((text) => text.length <= room) || frame.labels[frame.labels.length - 1];
  }

  let chart = null, whole = null;  // `whole`: the view's tree as d3 holds it
  const chartElement = $("chart");

  function draw() {
    const view = makeView(state.choice, state.which);
    state.zoomed = null;
    if (chart) chart.destroy();
    $("empty").hidden = view.value > 0;
    $("empty").textContent = data.threads.length === 0 ? "There are no samples in this recording." : "Nothing was sampled here.";
    chart = flamegraph.default()
      .width(chartElement.clientWidth)
      .cellHeight(CELL)
      .minFrameSize(NARROWEST)
      .transitionDuration(still.matches ? 0 : 220)
      .inverted($("down").getAttribute("aria-pressed") === "true")
      .resetHeightOnZoom(true)
      .minHeight(CELL * 4)
      .tooltip(tip)
      .setDetailsHandler(() => {})
      .getName(label)
      .setColorMapper(color)
      .onClick((d) => {
        state.zoomed = d.parent ? d : null;
        showZoom();
      });
    d3.select(chartElement).datum(view).call(chart);
    whole = d3.select(chartElement).datum();
    highlight();
    showZoom();
    showLegend();
    showHottest(view);
    if (matching()) chart.update();
    document.body.dataset.nodes = whole.descendants().length - 1;
  }

  // Marks what matches; says how much of the view's time that is (a match inside a match counts once).
  function highlight() {
    let found = 0, time = 0;
    const names = new Set();
    const stack = [[whole, false]];
    while (stack.length) {
      const [d, inside] = stack.pop();
      d.highlight = matching() && matches(d.data);
      if (d.highlight) {
        found++;
        names.add(d.data.frame);
        if (!inside) time += d.data.value;
      }
      for (const child of d.children || []) stack.push([child, inside || d.highlight]);
    }
    $("matches").textContent = !matching() ? "" : found === 0 ? "no match" : `${count(names.size)} ${names.size === 1 ? "function" : "functions"} · ${percent(time, whole.data.value)}`;
    document.body.dataset.highlighted = found;
  }
  function search() {
    highlight();
    chart.update();
    for (const button of $("legend").children) button.setAttribute("aria-pressed", button.dataset.kind === state.kind);
  }

  function showZoom() {
    const d = state.zoomed || whole;
    const name = document.createElement("b");
    name.textContent = d.data.name;
    const share = document.createElement("span");
    share.textContent = `${time(d.data.value)}${state.zoomed ? " · " + percent(d.data.value, whole.data.value) + " of " + whole.data.name : ""}`;
    $("crumbs").replaceChildren(name, share);
    $("reset").disabled = !state.zoomed;
  }

  // ---- The tooltip, in the form that d3-flame-graph asks for.
  function row(cells) {
    const tr = document.createElement("tr");
    for (const cell of cells) tr.insertCell().textContent = cell;
    return tr;
  }
  function tip() {}
  tip.show = (event, d) => {
    const { name, frame, value, self, samples } = d.data;
    const heading = document.createElement("h3");
    heading.textContent = name;
    const parts = [heading];
    if (frame) {
      const where = document.createElement("div");
      where.className = "where";
      const dot = document.createElement("i");
      dot.style.setProperty("--kind", kindColor(frame.kind, 0.5));
      const source = frame.file ? `${frame.file}${frame.line > 0 ? ":" + frame.line : ""}` : "";
      where.append(dot, [KINDS[frame.kind].label, frame.module, source].filter(Boolean).join(" · "));
      parts.push(where);
    }
    const numbers = document.createElement("table");
    const zoomed = state.zoomed && d.depth >= state.zoomed.depth ? [percent(value, state.zoomed.data.value) + " of zoom"] : [];
    numbers.append(row(["Total", time(value), percent(value, whole.data.value), ...zoomed]), row(["Self", time(self), percent(self, whole.data.value)]));
    if (data.unit === "ns") numbers.append(row(["Samples", count(samples)]));
    parts.push(numbers);
    $("tip").replaceChildren(...parts);
    $("tip").hidden = false;
    moveTip(event);
  };
  tip.hide = () => { $("tip").hidden = true; };
  tip.destroy = tip.hide;
  function moveTip(event) {
    const box = $("tip").getBoundingClientRect();
    const x = event.clientX + 14 + box.width > innerWidth ? Math.max(8, innerWidth - box.width - 8) : event.clientX + 14;
    const below = event.clientY + 18;
    const y = below + box.height > innerHeight ? Math.max(8, event.clientY - box.height - 12) : below;
    $("tip").style.transform = `translate(${x}px, ${y}px)`;
  }
  $("tip").style.left = $("tip").style.top = "0";
  chartElement.addEventListener("mousemove", (event) => { if (!$("tip").hidden) moveTip(event); });

  // ---- Around the chart.
  function showLegend() {
    const self = new Map();
    for (const d of whole.descendants()) {
      if (d.data.frame) self.set(d.data.frame.kind, (self.get(d.data.frame.kind) || 0) + d.data.self);
    }
    $("legend").replaceChildren();
    for (const [kind, { label }] of Object.entries(KINDS)) {
      if (!self.has(kind)) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.kind = kind;
      button.title = `Highlight: ${label}. The share is its self time.`;
      button.setAttribute("aria-pressed", kind === state.kind);
      const swatch = document.createElement("i");
      swatch.style.setProperty("--kind", kindColor(kind, 0.5));
      const name = document.createElement("b");
      name.textContent = label;
      const share = document.createElement("span");
      share.textContent = percent(self.get(kind), whole.data.value);
      button.append(swatch, name, share);
      button.addEventListener("click", () => {
        state.kind = state.kind === kind ? null : kind;
        search();
      });
      $("legend").append(button);
    }
  }

  function showHottest(view) {
    const costs = new Map();
    const above = new Map();  // how often a frame is on the path at hand
    const stack = [[view, false]];
    while (stack.length) {
      const [node, leaving] = stack.pop();
      const { frame } = node;
      if (leaving) {
        above.set(frame, above.get(frame) - 1);
        continue;
      }
      if (frame) {
        const cost = costs.get(frame) || { frame, self: 0, total: 0 };
        costs.set(frame, cost);
        cost.self += node.self;
        if (!above.get(frame)) cost.total += node.value;
        above.set(frame, (above.get(frame) || 0) + 1);
        stack.push([node, true]);
      }
      for (const child of node.children) stack.push([child, false]);
    }
    const hottest = [...costs.values()].filter((c) => c.self > 0).sort((a, b) => b.self - a.self).slice(0, 10);
    $("hottest").hidden = hottest.length === 0;
    const body = $("hottest").querySelector("tbody");
    body.replaceChildren();
    for (const { frame, self, total } of hottest) {
      const tr = row([percent(self, view.value), time(self), percent(total, view.value), time(total), "", frame.module]);
      const swatch = document.createElement("i");
      swatch.style.setProperty("--kind", kindColor(frame.kind, 0.5));
      tr.cells[4].append(swatch, frame.name);
      tr.title = frame.name;
      tr.addEventListener("click", () => {
        $("search").value = frame.name;
        setTerm(frame.name);
        scrollTo({ top: 0, behavior: still.matches ? "auto" : "smooth" });
      });
      body.append(tr);
    }
  }

  function showHeader() {
    $("title").textContent = data.title;
    $("command").textContent = $("command").title = data.command;
    const total = data.threads.reduce((sum, t) => { for (let i = 0; i < t.nodes.length; i += STRIDE) sum += t.nodes[i + SAMPLES]; return sum; }, 0);
    const facts = [["Duration", data.duration > 0 ? (data.duration / 1e9).toFixed(2) + " s" : "not known"]];
    if (data.mode) facts.push(["Mode", { cpu: "CPU time", wall: "Wall clock" }[data.mode] || data.mode]);
    if (data.period > 0) facts.push(["Rate", `${count(Math.round(1e9 / data.period))} Hz`]);
    facts.push(["Samples", count(total)], ["Threads", count(data.threads.length)]);
    if (data.managedFrames > 0) facts.push(["Named", percent(data.managedNamed, data.managedFrames)]);
    facts.push(["Lost", data.dropped === 0 ? "none" : percent(data.dropped, data.expected), data.dropped > 0]);
    if (!data.complete) facts.push(["File", "cut short", true]);
    for (const [term, text, warn] of facts) {
      const group = document.createElement("div");
      group.classList.toggle("warn", Boolean(warn));
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = term;
      dd.textContent = text;
      group.append(dt, dd);
      $("facts").append(group);
    }
  }

  function showThreads() {
    const weight = (t) => { let sum = 0; for (let i = 0; i < t.nodes.length; i += STRIDE) sum += t.nodes[i + WEIGHT]; return sum; };
    const all = data.threads.reduce((sum, t) => sum + weight(t), 0);
    const add = (value, text) => $("thread").append(new Option(text, value));
    add(-1, "All threads, merged");
    if (data.threads.length > 1) add(-2, "All threads, side by side");
    data.threads.forEach((t, i) => add(i, `${threadName(t)} · ${percent(weight(t), all)}`));
    $("time").hidden = !data.threads.some((t) => t.nodes.some((v, i) => i % STRIDE === EXTERNAL && v > 0 && v < all));
  }

  let waiting = 0;
  function setTerm(text) {
    state.term = text.trim().toLowerCase();
    search();
  }
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => setTerm($("search").value), 120);
  });
  $("thread").addEventListener("change", () => {
    state.choice = Number($("thread").value);
    draw();
  });
  function choose(buttons, chosen) {
    for (const button of buttons) button.setAttribute("aria-pressed", button === chosen);
    draw();
  }
  for (const button of $("time").children) {
    button.addEventListener("click", () => {
      state.which = button.dataset.time;
      choose($("time").children, button);
    });
  }
  $("down").addEventListener("click", () => choose([$("down"), $("up")], $("down")));
  $("up").addEventListener("click", () => choose([$("down"), $("up")], $("up")));
  function resetZoom() {
    chart.resetZoom();
    state.zoomed = null;
    showZoom();
  }
  $("reset").addEventListener("click", resetZoom);
  addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== $("search")) {
      event.preventDefault();
      $("search").select();
    } else if (event.key === "Escape" && (matching() || state.zoomed)) {
      if (matching()) {
        $("search").value = "";
        state.kind = null;
        setTerm("");
      } else {
        resetZoom();
      }
    }
  });
  let resizing = 0, width = chartElement.clientWidth;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      if (chartElement.clientWidth === width) return;
      width = chartElement.clientWidth;
      chart.width(width).update();
    }, 100);
  });
  dark.addEventListener("change", () => {
    chart.update();
    showLegend();
  });

  showHeader();
  showThreads();
  draw();
  document.body.dataset.ready = "true";
})();
