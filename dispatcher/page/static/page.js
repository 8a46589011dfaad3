// The page: it asks for JSON and shows it. Whatever comes from models is written as text, never as HTML.
"use strict";

const EVERY_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const COLUMNS = [
  ["model", (r) => r.model],
  ["state", (r) => r.state],
  ["instances", (r) => (r.instance ? 0 : r.instances[0])],
  ["requests/s", (r) => r.rates.requests_s],
  ["last minutes", null],
  ["queue", (r) => r.waiting],
  ["rows", (r) => r.rates.rows],
  ["wait ms", (r) => r.rates.wait_p50],
  ["p50 ms", (r) => r.rates.p50],
  ["p99 ms", (r) => r.rates.p99],
  ["busy", (r) => r.rates.busy],
  ["memory", (r) => r.resident],
  ["ends", (r) => r.ends],
  ["last end", (r) => r.last_end],
];
let rows = [];
let chosen = null;
let form = null; // whom the form asks: {name}, another one for each request; null while it shows none
let order = 0;
let downwards = false;
let asking = false;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (className) made.className = className;
  return made;
}

function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const value = seconds * 1000;
  return value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0);
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1000; unit += 1; }
  return `${bytes >= 10 || unit === 0 ? bytes.toFixed(0) : bytes.toFixed(1)} ${units[unit]}`;
}

const number = (value, digits = 1) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });

function stateClass(state) {
  if (["ready", "spare", "asleep", "serving"].includes(state)) return "good";
  return ["failed", "given up", "lost", "degraded"].includes(state) ? "bad" : "warn";
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return { error: text.slice(0, 2000) }; }
}

// The text of an answer: numbers are shown as they were sent, which JavaScript's own could not hold.
async function askText(path, options) {
  const token = byId("token").value;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { cache: "no-store", headers, ...options });
  const text = await answer.text();
  if (!answer.ok) throw new Error(parsed(text).error || `status ${answer.status}`);
  return text;
}

async function ask(path) {
  return parsed(await askText(path));
}

// What is read out when it changes; what it says again is not.
function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

// ── plots ──────────────────────────────────────────────────────────────────────────────────────

function svg(width, height, label) {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("width", width);
  made.setAttribute("height", height);
  made.setAttribute("viewBox", `0 0 ${width} ${height}`);
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", label);
  return made;
}

function sparkline(points, label) {
  const [width, height] = [90, 20];
  const made = svg(width, height, label);
  if (points.length < 2) return made;
  const top = Math.max(...points, 1e-9);
  const path = document.createElementNS(SVG, "path");
  const step = width / (points.length - 1);
  path.setAttribute("d", points.map((value, i) =>
    `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`).join(""));
  made.append(path);
  return made;
}

function histogram(title, bars, name) {
  const figure = element("figure");
  figure.append(element("figcaption", title));
  if (!bars || !bars.length) {
    figure.append(element("p", "nothing yet"));
    return figure;
  }
  const [width, height, top] = [340, 110, Math.max(...bars.map((bar) => bar[1]))];
  const all = bars.reduce((sum, bar) => sum + bar[1], 0);
  const made = svg(width, height, `${title}: ${bars.map((bar) => `up to ${name(bar[0])}: ${bar[1]}`).join(", ")}`);
  const step = Math.min(24, width / bars.length);
  bars.forEach(([bound, count], i) => {
    const rect = document.createElementNS(SVG, "rect");
    const high = (count / top) * (height - 20);
    rect.setAttribute("x", (i * step).toFixed(1));
    rect.setAttribute("y", (height - 14 - high).toFixed(1));
    rect.setAttribute("width", Math.max(1, step - 1).toFixed(1));
    rect.setAttribute("height", high.toFixed(1));
    const tip = document.createElementNS(SVG, "title");
    tip.textContent = `up to ${name(bound)}: ${count} (${((100 * count) / all).toFixed(1)} %)`;
    rect.append(tip);
    made.append(rect);
  });
  for (const [x, anchor, bound] of [[0, "start", bars[0][0]], [Math.max(80, step * bars.length), "end", bars[bars.length - 1][0]]]) {
    const text = document.createElementNS(SVG, "text");
    text.setAttribute("x", x);
    text.setAttribute("y", height - 2);
    text.setAttribute("text-anchor", anchor);
    text.textContent = name(bound);
    made.append(text);
  }
  figure.append(made);
  return figure;
}

// ── the table ──────────────────────────────────────────────────────────────────────────────────

function cells(row) {
  const rates = row.rates;
  const requests = element("td", number(rates.requests_s));
  if (rates.failures_s) requests.append(" ", element("span", `(${number(rates.failures_s)} fail)`, "bad"));
  const plot = element("td");
  if (row.points.length) plot.append(sparkline(row.points.map((p) => p[0]), `requests per second of ${row.model}`));
  const count = row.instance ? element("td", row.pid === null ? "" : `pid ${row.pid}`)
    : element("td", row.instances[1] ? `${row.instances[0]}/${row.instances[1]}` : "–",
      row.instances[0] < row.instances[1] ? "bad" : "");
  const coming = row.instance ? 0 : rows.filter((r) => r.instance && r.model === row.model && ["starting", "loading"].includes(r.state)).length;
  if (coming) {
    count.append(" ", element("span", `+${coming}`, "warn"));
    count.title = `${coming} being loaded`;
  }
  const last = element("td", row.last_end, "last");
  last.title = row.last_end;
  return [
    nameCell(row), element("td", row.state, `left ${stateClass(row.state)}`), count, requests, plot,
    element("td", row.waiting === null ? "–" : row.waiting), element("td", number(rates.rows)),
    element("td", milliseconds(rates.wait_p50)), element("td", milliseconds(rates.p50)),
    element("td", milliseconds(rates.p99)), element("td", `${(rates.busy * 100).toFixed(0)} %`),
    element("td", size(row.resident)), element("td", row.ends, row.ends ? "bad" : ""), last,
  ];
}

function nameCell(row) {
  const cell = element("td", row.instance ? `└ ${row.instance}${row.device ? ` on ${row.device}` : ""}` : null, "name");
  if (!row.instance) {
    const button = element("button", row.model);
    button.type = "button";
    button.addEventListener("click", () => choose(row.model, true));
    cell.append(button);
  }
  return cell;
}

function arranged() {
  const wanted = byId("filter").value.toLowerCase();
  const models = rows.filter((r) => !r.instance && r.model.toLowerCase().includes(wanted));
  const value = COLUMNS[order][1];
  models.sort((a, b) => {
    const [x, y] = [value(a) ?? -1, value(b) ?? -1];
    const found = typeof x === "string" ? x.localeCompare(y) : y - x;
    return downwards ? -found : found;
  });
  if (!byId("instances").checked) return models;
  return models.flatMap((m) => [m, ...rows.filter((r) => r.instance && r.model === m.model)]);
}

function showRows() {
  const body = byId("rows");
  const focused = document.activeElement;
  const kept = body.contains(focused) ? focused.textContent : null;
  body.replaceChildren(...arranged().map((row) => {
    const line = element("tr", null, row.instance ? "instance" : "");
    line.append(...cells(row));
    return line;
  }));
  if (kept !== null) {
    for (const button of body.querySelectorAll("button")) if (button.textContent === kept) { button.focus(); break; }
  }
  byId("none").hidden = rows.length > 0;
}

function showColumns() {
  byId("columns").replaceChildren(...COLUMNS.map(([title, value], i) => {
    const head = element("th", value ? null : title, i < 2 ? "left" : "");
    head.scope = "col";
    if (value) {
      const button = element("button", title);
      button.type = "button";
      button.addEventListener("click", () => {
        downwards = order === i && !downwards;
        order = i;
        showColumns();
        showRows();
        byId("columns").children[i].firstChild.focus();
      });
      head.append(button);
      head.setAttribute("aria-sort", order === i ? (downwards ? "ascending" : "descending") : "none");
    }
    return head;
  }));
}

async function refresh() {
  if (byId("paused").checked || asking) return;
  asking = true;
  try {
    const found = await ask("view.json");
    rows = found.rows || [];
    byId("headline").textContent = found.headline;
    byId("total").textContent = `${number(found.requests_s || 0)} requests/s, ${number(found.failures_s || 0)} failures/s`;
    const problems = found.problems.join("\n");
    if (byId("problems").dataset.shown !== problems) {
      byId("problems").dataset.shown = problems;
      byId("problems").replaceChildren(...found.problems.map((text) => element("li", text)));
    }
    say("trouble", "");
    showRows();
    if (chosen !== null) await showModel();
  } catch (error) {
    say("trouble", `No answer: ${error.message}. What is shown below is as it was before.`);
  } finally {
    asking = false;
  }
}

// ── single requests ────────────────────────────────────────────────────────────────────────────

const REQUEST_COLUMNS = [
  ["time", (r) => new Date(r.time * 1000).toLocaleTimeString("en-GB")],
  ["instance", (r) => r.instance],
  ["status", (r) => r.status],
  ["call ms", (r) => milliseconds(r.compute_ns / 1e9)],
  ["wait ms", (r) => milliseconds(r.queue_ns === null ? null : r.queue_ns / 1e9)],
  ["requests", (r) => r.batch_requests],
  ["rows", (r) => r.batch_rows],
  ["in", (r) => size(r.bytes_in)],
  ["out", (r) => size(r.bytes_out)],
  ["error", (r) => r.error],
  ["id", (r) => r.id],
];

function requestTable(requests) {
  if (!requests.length) return element("p", "none");
  const table = element("table");
  const head = element("tr");
  head.append(...REQUEST_COLUMNS.map(([title]) => {
    const cell = element("th", title, title === "id" ? "left" : "");
    cell.scope = "col";
    return cell;
  }));
  const body = element("tbody");
  body.append(...requests.map((one) => {
    const line = element("tr");
    line.append(...REQUEST_COLUMNS.map(([title, text]) =>
      element("td", text(one), title === "id" ? "last" : title === "status" && one.status !== "ok" ? "bad" : "")));
    return line;
  }));
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

// ── one model ──────────────────────────────────────────────────────────────────────────────────

// Nothing of one model stays below the name of another, and no answer comes there later.
function clear(title) {
  form = null;
  byId("model-title").textContent = title;
  byId("request").value = "";
  for (const one of byId("ask").elements) one.disabled = true;
  const filled = ["model-state", "model-error", "histograms", "errors", "slowest", "failed", "answer", "snippets", "config", "log"];
  for (const id of filled) byId(id).replaceChildren();
}

function choose(name, focus) {
  chosen = name;
  location.hash = encodeURIComponent(name);
  clear(name);
  showModel().then(() => { if (focus && chosen === name) byId("model-title").focus(); });
}

function close() {
  const name = chosen;
  chosen = null;
  byId("model").hidden = true;
  location.hash = "";
  const button = [...byId("rows").querySelectorAll("button")].find((one) => one.textContent === name);
  if (button) button.focus();
}

// The model that the address names; "" where it names none.
function named() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

async function showModel() {
  const name = chosen;
  let found;
  try {
    found = await ask(`model.json?name=${encodeURIComponent(name)}`);
  } catch (error) {
    if (chosen !== name) return;
    byId("model").hidden = false;
    byId("model-state").textContent = error.message;
    return;
  }
  if (chosen !== name) return; // it was closed, or another one chosen meanwhile
  byId("model").hidden = false;
  byId("model-title").textContent = found.name;
  byId("model-state").textContent = `${found.state}, version ${found.versions.join(", ")}, ${found.served_by}`;
  byId("model-error").textContent = found.error || "";
  byId("histograms").replaceChildren(
    histogram("Time of calls", found.histograms.call_s, (s) => `${milliseconds(s)} ms`),
    histogram("Wait before calls", found.histograms.wait_s, (s) => `${milliseconds(s)} ms`),
    histogram("Rows of calls", found.histograms.rows, (n) => number(n, 0)),
  );
  byId("errors").replaceChildren(...(found.errors.length || found.ends.length ? [] : [element("p", "none")]),
    ...found.ends.map((end) => element("pre", `instance ${end.instance}: ${end.last_exit} (${end.restarts} restarts)`)),
    ...found.errors.map((one) => element("pre",
      [one.timestamp, one.event, one.exception].filter(Boolean).join("\n"))));
  byId("slowest").replaceChildren(requestTable(found.slowest));
  byId("failed").replaceChildren(requestTable(found.failed));
  byId("log").textContent = found.log.map((one) =>
    [one.timestamp, one.level, one.event, one.exception].filter(Boolean).join(" ")).join("\n");
  byId("config").textContent = JSON.stringify(found.config, null, 1);
  if (found.is_private) {
    for (const id of ["errors", "slowest", "failed", "config", "log"]) byId(id).replaceChildren(element("p", "shown with the access token"));
  }
  if (form !== null) return; // what somebody has written there stays
  form = { name };
  for (const one of byId("ask").elements) one.disabled = false;
  byId("address").textContent = `POST /v2/models/…/${found.decoupled ? "generate_stream" : "infer"}`;
  byId("request").value = JSON.stringify(found.request, null, 1);
  byId("snippets").replaceChildren(...Object.entries(found.snippets).flatMap(([name, text]) => {
    const code = element("pre", text);
    code.tabIndex = 0;
    code.setAttribute("role", "region");
    code.setAttribute("aria-label", name);
    return [element("h4", name), code];
  }));
}

byId("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (form === null) return;
  const asked = form = { ...form };
  byId("answer").textContent = "…";
  const path = `infer?name=${encodeURIComponent(asked.name)}`;
  const text = await askText(path, { method: "POST", body: byId("request").value }).catch((error) => error.message);
  if (form === asked) byId("answer").textContent = text;
});
byId("close").addEventListener("click", close);
byId("filter").addEventListener("input", showRows);
byId("token").addEventListener("change", refresh);
byId("instances").addEventListener("change", showRows);
showColumns();
if (named()) choose(named(), false);
addEventListener("hashchange", () => {
  if (named() === (chosen || "")) return;
  if (named()) choose(named(), true);
  else close();
});
refresh();
setInterval(refresh, EVERY_MS);
