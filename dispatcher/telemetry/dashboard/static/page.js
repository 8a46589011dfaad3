// The dashboard: fetches JSON and shows it. Data from models is inserted as text, never as HTML.
"use strict";

const EVERY_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const COLUMNS = [
  ["model", (r) => r.model],
  ["state", (r) => r.state],
  ["instances", (r) => (r.instance ? 0 : r.instances[0])],
  ["requests/s", (r) => r.rates.requests_s],
  ["recent", null],
  ["queue", (r) => r.waiting],
  ["rows", (r) => r.rates.rows],
  ["wait ms", (r) => r.rates.wait_p50],
  ["p50 ms", (r) => r.rates.p50],
  ["p99 ms", (r) => r.rates.p99],
  ["busy", (r) => r.rates.busy],
  ["memory", (r) => r.resident],
  ["exits", (r) => r.exits],
  ["last exit", (r) => r.last_exit],
];
let rows = [];
let token = ""; // the access token, once it has been entered completely
let chosen = null;
let form = null; // the form's model: {name}, a new object for each request; null if none is shown
let order = 0;
let downwards = false;
let asking = false;
let again = false;
let total = null; // the series of all models
let shown = null; // the series of the model that is shown
let eventsAt = 0; // when the list of events was last fetched
const EVENTS_EVERY_MS = 10000;

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
  if (["ready", "standby", "suspended", "serving"].includes(state)) return "good";
  return ["failed", "lost", "degraded"].includes(state) ? "bad" : "warn";
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return { error: text.slice(0, 2000) }; }
}

// Fetch text. Numbers are shown as sent, because JavaScript cannot represent all of them.
async function askText(path, options) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { cache: "no-store", headers, ...options });
  const text = await answer.text();
  if (!answer.ok) throw new Error(parsed(text).error || `status ${answer.status}`);
  return text;
}

async function ask(path) {
  return parsed(await askText(path));
}

// Set the text of a live region only if it changed, so that screen readers do not repeat it.
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

// Ticks of an axis from 0 to `top`: at most four round steps of at least `least`.
function ticks(top, least) {
  const raw = Math.max(top / 4, least) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999) || raw;
  return Array.from({ length: Math.floor(top / step + 0.001) + 1 }, (_, i) => i * step);
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

// A chart of one or two series over time, with axes. `series`: [[name, points], ...]; null in them is a gap. `least`: the
// smallest step of the axis of values.
function chart(title, at, series, text, least = 0) {
  const figure = element("figure");
  const caption = element("figcaption", title);
  series.forEach(([name, points], i) => {
    if (series.length > 1) caption.append(element("span", null, i ? "key second" : "key"), name);
    const known = points.filter((one) => one !== null);
    if (known.length) caption.append(" ", element("strong", text(known[known.length - 1])));
  });
  figure.append(caption);
  const until = at.length ? at[at.length - 1] : 0;
  // The selected range or the recorded time, at least a minute.
  const since = Math.min(until - 60, Math.max(until - Number(byId("range").value), at.length ? at[0] : 0));
  const from = Math.max(0, at.findIndex((one) => one >= since));
  const times = at.slice(from);
  const cut = series.map(([name, points]) => [name, points.slice(from)]);
  const all = cut.flatMap(([, points]) => points.filter((one) => one !== null));
  if (times.length < 2 || !all.length) {
    figure.append(element("p", times.length < 2 ? "no data yet" : "no data in this time range"));
    return figure;
  }
  const [width, height, left, bottom, up] = [360, 150, 52, 18, 6];
  const steps = ticks(Math.max(...all) * 1.05 || Math.max(1, least), least);
  const top = Math.max(Math.max(...all) * 1.05, steps[steps.length - 1]) || 1;
  const x = (time) => left + ((time - since) / (until - since)) * (width - left - 4);
  const y = (value) => height - bottom - (value / top) * (height - bottom - up);
  const made = svg(width, height, `${title} from ${clock(times[0])} to ${clock(until)}: ${cut.map(([name, points]) => {
    const known = points.filter((one) => one !== null);
    return known.length ? `${name} now ${text(known[known.length - 1])}, at most ${text(Math.max(...known))}` : `${name}: nothing`;
  }).join("; ")}`);
  const draw = (tag, attributes, words) => {
    const one = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    if (words !== undefined) one.textContent = words;
    made.append(one);
  };
  for (const step of steps) {
    draw("line", { x1: left, x2: width - 4, y1: y(step).toFixed(1), y2: y(step).toFixed(1) });
    draw("text", { x: left - 4, y: (y(step) + 3).toFixed(1), "text-anchor": "end" }, text(step));
  }
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const time = since + share * (until - since);
    draw("text", { x: x(time).toFixed(1), y: height - 4, "text-anchor": anchor }, clock(time));
  }
  cut.forEach(([, points], i) => {
    let pen = "M";
    const path = points.map((value, k) => {
      if (value === null) { pen = "M"; return ""; }
      const to = `${pen}${x(times[k]).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
      return to;
    }).join("");
    draw("path", { d: path, class: i ? "second" : "first" });
  });
  figure.append(made);
  return figure;
}

const perSecond = (value) => number(value, value < 10 ? 1 : 0);

function showCharts(id, one, latency) {
  if (one === null) return;
  const charts = [
    chart("Requests per second", one.at, [["requests", one.requests_s]], perSecond),
    chart("Failures per second", one.at, [["failed", one.failures_s]], perSecond),
  ];
  if (latency) charts.push(chart("Call duration, ms", one.at, [["p50", one.p50], ["p99", one.p99]], milliseconds));
  charts.push(
    chart("Queued requests", one.at, [["waiting", one.waiting]], (value) => number(value, 0), 1),
    chart(latency ? "Worker memory" : "Memory of all processes", one.at, [["memory", one.resident]], size),
  );
  byId(id).replaceChildren(...charts);
}

function histogram(title, bars, name) {
  const figure = element("figure");
  figure.append(element("figcaption", title));
  if (!bars || !bars.length) {
    figure.append(element("p", "no data yet"));
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
  if (rates.failures_s) requests.append(" ", element("span", `(${number(rates.failures_s)} failed)`, "bad"));
  const plot = element("td");
  if (row.points.length) plot.append(sparkline(row.points, `requests per second of ${row.model}`));
  const count = row.instance ? element("td", row.pid === null ? "" : `pid ${row.pid}`)
    : element("td", row.instances[1] ? `${row.instances[0]}/${row.instances[1]}` : "–",
      row.instances[0] < row.instances[1] ? "bad" : "");
  const coming = row.instance ? 0 : rows.filter((r) => r.instance && r.model === row.model && ["starting", "loading"].includes(r.state)).length;
  if (coming) {
    count.append(" ", element("span", `+${coming}`, "warn"));
    count.title = `${coming} loading`;
  }
  const last = element("td", row.last_exit, "last");
  last.title = row.last_exit;
  const state = element("td", row.state, `left ${stateClass(row.state)}`);
  if (row.state !== "ready" && row.last_exit) state.title = row.last_exit;
  return [
    nameCell(row), state, count, requests, plot,
    element("td", row.waiting === null ? "–" : row.waiting), element("td", number(rates.rows)),
    element("td", milliseconds(rates.wait_p50)), element("td", milliseconds(rates.p50)),
    element("td", milliseconds(rates.p99)), element("td", `${(rates.busy * 100).toFixed(0)} %`),
    element("td", size(row.resident)), element("td", row.exits, row.exits ? "bad" : ""), last,
  ];
}

// On narrow screens a row is shown as a card, with a title per cell.
function titled(cell, title) {
  cell.dataset.title = title;
  return cell;
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
    line.append(...cells(row).map((cell, i) => titled(cell, COLUMNS[i][0])));
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

// A problem of a model links to the model.
function problem(text) {
  const item = element("li");
  const model = rows.find((one) => !one.instance && text.startsWith(`model ${one.model}: `));
  if (!model) {
    item.textContent = text;
    return item;
  }
  const button = element("button", text);
  button.type = "button";
  button.addEventListener("click", () => choose(model.model, true));
  item.append(button);
  return item;
}

// `force`: refresh even if paused, and repeat a refresh in progress, which used another token.
async function refresh(force = false) {
  if (asking) again = again || force;
  if ((byId("paused").checked && !force) || asking) return;
  asking = true;
  try {
    const found = await ask("view.json");
    rows = found.rows || [];
    byId("headline").textContent = found.headline;
    byId("total").textContent = `${number(found.requests_s || 0)} requests/s, ${number(found.failures_s || 0)} failures/s`;
    const problems = found.problems.join("\n");
    if (byId("problems").dataset.shown !== problems) {
      byId("problems").dataset.shown = problems;
      byId("problems").replaceChildren(...found.problems.map(problem));
    }
    total = found.total || null;
    showCharts("total-charts", total, false);
    say("trouble", token && found.is_private ? "The access token is wrong. Run pytriton-daemon access-token to print it." : "");
    showRows();
    if (chosen !== null) await showModel();
    await showEvents();
  } catch (error) {
    say("trouble", `Cannot refresh: ${error.message}. The data below is out of date.`);
  } finally {
    asking = false;
  }
  if (again) {
    again = false;
    await refresh(true);
  }
}

// ── events ─────────────────────────────────────────────────────────────────────────────────────

// The time, with the date unless it is today.
function moment(seconds) {
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-GB")} ${time}`;
}

const EVENT_COLUMNS = [
  ["time", (e) => moment(e.at)],
  ["model", (e) => (e.model ? `${e.model}${e.instance === null ? "" : `/${e.instance}`}` : "daemon")],
  ["event", (e) => e.says],
  ["by", (e) => e.who],
  ["reason", (e) => [e.reason, e.numbers].filter(Boolean).join("; ")],
];

function eventTable(events, withModel) {
  if (!events.length) return element("p", "none");
  const columns = EVENT_COLUMNS.filter(([title]) => withModel || title !== "model");
  const table = element("table");
  const head = element("tr");
  head.append(...columns.map(([title]) => {
    const cell = element("th", title, "left");
    cell.scope = "col";
    return cell;
  }));
  const body = element("tbody");
  body.append(...events.map((one) => {
    const line = element("tr");
    line.append(...columns.map(([title, text]) => {
      const level = title === "event" ? { error: "bad", warning: "warn" }[one.level] || "" : "";
      return titled(element("td", text(one), `left ${title === "reason" ? "why" : "wide"} ${level}`), title);
    }));
    return line;
  }));
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

// Events change rarely, so they are fetched less often.
async function showEvents() {
  if (Date.now() - eventsAt < EVENTS_EVERY_MS) return;
  eventsAt = Date.now();
  try {
    const found = await ask(`events.json${byId("asked").checked ? "?asked=1" : ""}`);
    byId("event-list").replaceChildren(found.is_private ? element("p", "Enter the access token to show this.") : eventTable(found.events, true));
  } catch (error) {
    byId("event-list").replaceChildren(element("p", error.message));
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
      titled(element("td", text(one), title === "id" ? "last" : title === "status" && one.status !== "ok" ? "bad" : ""), title)));
    return line;
  }));
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

// ── one model ──────────────────────────────────────────────────────────────────────────────────

// Clear everything of the previous model, so that nothing is shown under the wrong name.
function clear(title) {
  form = null;
  byId("model-title").textContent = title;
  byId("request").value = "";
  for (const one of byId("ask").elements) one.disabled = true;
  shown = null;
  const filled = ["model-state", "model-error", "findings", "model-charts", "model-events", "histograms", "errors", "slowest", "failed", "answer", "snippets", "config", "log"];
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

// The model in the address, or "".
function named() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

function findings(found) {
  if (!found.verdict) return [element("p", "no explanation available")];
  return [element("p", found.verdict), ...found.findings.map((one) => {
    const made = element("div", null, `finding ${one.severity}`);
    if (!found.verdict.endsWith(one.text)) made.append(element("p", `${one.severity}: ${one.text}`));
    if (one.advice) made.append(element("p", one.advice));
    return made;
  })];
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
  if (chosen !== name) return; // closed, or another model selected
  byId("model").hidden = false;
  byId("model-title").textContent = found.name;
  byId("model-state").textContent = `${found.state}, version ${found.versions.join(", ")}, ${found.served_by}`;
  byId("model-error").textContent = found.verdict ? "" : found.error || "";
  byId("findings").replaceChildren(...findings(found));
  shown = found.series;
  showCharts("model-charts", shown, true);
  byId("model-events").replaceChildren(eventTable(found.events, false));
  byId("histograms").replaceChildren(
    histogram("Call duration", found.histograms.call_s, (s) => `${milliseconds(s)} ms`),
    histogram("Batch wait time", found.histograms.wait_s, (s) => `${milliseconds(s)} ms`),
    histogram("Rows per call", found.histograms.rows, (n) => number(n, 0)),
  );
  byId("errors").replaceChildren(...(found.errors.length || found.exits.length ? [] : [element("p", "none")]),
    ...found.exits.map((end) => element("pre", `instance ${end.instance}: ${end.last_exit} (${end.restarts} restarts)`)),
    ...found.errors.map((one) => element("pre",
      [one.timestamp, one.event, one.exception].filter(Boolean).join("\n"))));
  byId("slowest").replaceChildren(requestTable(found.slowest));
  byId("failed").replaceChildren(requestTable(found.failed));
  byId("log").textContent = found.log.map((one) =>
    [one.timestamp, one.level, one.event, one.exception].filter(Boolean).join(" ")).join("\n");
  byId("config").textContent = JSON.stringify(found.config, null, 1);
  if (found.is_private) {
    for (const id of ["findings", "model-events", "errors", "slowest", "failed", "config", "log"]) byId(id).replaceChildren(element("p", "Enter the access token to show this."));
  }
  if (form !== null) return; // keep the user's input
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
  const sent = form = { ...form };
  byId("answer").textContent = "…";
  const path = `infer?name=${encodeURIComponent(sent.name)}`;
  const text = await askText(path, { method: "POST", body: byId("request").value }).catch((error) => error.message);
  if (form === sent) byId("answer").textContent = text;
});
byId("close").addEventListener("click", close);
byId("filter").addEventListener("input", showRows);
byId("token").addEventListener("change", () => { token = byId("token").value; eventsAt = 0; refresh(true); });
byId("asked").addEventListener("change", () => { eventsAt = 0; showEvents(); });
byId("range").addEventListener("change", () => {
  showCharts("total-charts", total, false);
  showCharts("model-charts", shown, true);
});
byId("instances").addEventListener("change", showRows);
showColumns();
if (named()) choose(named(), false);
addEventListener("hashchange", () => {
  if (named() === (chosen || "")) return;
  if (named()) choose(named(), true);
  else close();
});
refresh();
setInterval(() => refresh(), EVERY_MS);
