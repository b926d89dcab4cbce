"use strict";
// Search over problems. The search is in the page's address (#search=...&kind=...), so it can be bookmarked and sent.

const PER_PAGE = 20;
const SORTS = {
  newest: (a, b) => b.place - a.place,
  oldest: (a, b) => a.place - b.place,
  hardest: (a, b) => (a.rho ?? 2) - (b.rho ?? 2) || b.place - a.place,
  easiest: (a, b) => (b.rho ?? -1) - (a.rho ?? -1) || b.place - a.place,
};
const START = { search: "", kind: "", status: "", answer: "", low: "0", high: "100", sort: "newest", page: "1" };

function problemSection(parent, held) {
  const keys = Object.fromEntries(held.columns.map((name, i) => [name, i]));
  const rows = held.rows.map((row, place) => ({ row, place, rho: row[keys.rho], text: null }));
  const get = (one, name) => one.row[keys[name]];
  const asked = { ...START, ...fromAddress() };
  const list = el("div", { id: "problems-list" });
  const pagers = [el("div", { class: "pager" }), el("div", { class: "pager" })];
  const options = (name) => [...new Set(rows.map((one) => get(one, name)))].sort();
  const answers = [...new Set(rows.flatMap((one) => get(one, "answers").map((a) => a[1])))].sort();
  const inputs = {
    search: el("input", { type: "search", placeholder: "Search programs, values, messages, answers …", "aria-label": "Search" }),
    kind: picker("any kind", options("kind")),
    status: picker("any verdict", options("status")),
    answer: picker("any answer", answers.map((s) => [s, `an answer is ${s}`])),
    low: el("input", { type: "number", min: 0, max: 100, step: "any", "aria-label": "Lowest solve rate in percent" }),
    high: el("input", { type: "number", min: 0, max: 100, step: "any", "aria-label": "Highest solve rate in percent" }),
    sort: picker(null, Object.keys(SORTS).map((s) => [s, `${s} first`])),
  };
  const labels = { kind: "Kind", status: "Verdict", answer: "Answers", sort: "Order" };
  for (const [name, label] of Object.entries(labels)) inputs[name].setAttribute("aria-label", label);
  for (const [name, input] of Object.entries(inputs)) {
    input.addEventListener("input", () => { asked[name] = input.value; asked.page = "1"; toAddress(asked); later(); });
  }
  parent.append(
    el("div", { class: "search", role: "search" }, inputs.search, inputs.kind, inputs.status, inputs.answer,
      el("label", {}, "solved", inputs.low, "to", inputs.high, "%"), inputs.sort),
    pagers[0], list, pagers[1]);

  let timer = 0;
  const later = () => { clearTimeout(timer); timer = setTimeout(show, rows.length > 2000 ? 150 : 0); };
  const turn = (page) => { asked.page = String(page); toAddress(asked); show(); };

  function show() {
    const found = matching(rows, asked, get).sort(SORTS[asked.sort] || SORTS.newest);
    const pages = Math.max(1, Math.ceil(found.length / PER_PAGE)), page = Math.min(pages, Math.max(1, parseInt(asked.page, 10) || 1));
    const shown = found.slice((page - 1) * PER_PAGE, page * PER_PAGE);
    list.replaceChildren(...shown.map((one, i) => problemCard(one, get, i === 0)));
    list.dataset.found = found.length;
    for (const pager of pagers) {
      pager.replaceChildren(
        el("button", { type: "button", disabled: page <= 1, onclick: () => turn(page - 1) }, "← Back"),
        el("button", { type: "button", disabled: page >= pages, onclick: () => turn(page + 1) }, "Next →"),
        `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} proposals, page ${page} of ${pages}`);
    }
  }
  const read = () => {
    for (const [name, input] of Object.entries(inputs)) input.value = asked[name];
    show();
  };
  window.addEventListener("hashchange", () => { if (location.hash.includes("=")) { Object.assign(asked, START, fromAddress()); read(); } });
  read();
}

function matching(rows, asked, get) {
  const words = asked.search.toLowerCase().split(/\s+/).filter(Boolean);
  const low = Number(asked.low) / 100, high = Number(asked.high) / 100, any = low <= 0 && high >= 1;
  return rows.filter((one) => {
    if (asked.kind && get(one, "kind") !== asked.kind) return false;
    if (asked.status && get(one, "status") !== asked.status) return false;
    if (!any && (one.rho === null || one.rho < low - 1e-9 || one.rho > high + 1e-9)) return false;
    if (asked.answer && !get(one, "answers").some((a) => a[1] === asked.answer)) return false;
    if (!words.length) return true;
    one.text ??= [...["id", "teacher", "student", "status", "reason", "program", "text", "message"].map((name) => get(one, name)),
      ...(get(one, "inputs") || []), ...(get(one, "outputs") || []), ...get(one, "answers").map((a) => a[0])].join("\n").toLowerCase();
    return words.every((word) => one.text.includes(word));
  });
}

function picker(all, values) {
  const choices = values.map((value) => Array.isArray(value) ? value : [value, value]);
  return el("select", {}, ...(all === null ? [] : [el("option", { value: "" }, all)]), ...choices.map(([value, label]) => el("option", { value }, visible(label))));
}

function fromAddress() {
  const found = {};
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in START) found[name] = value;
  return found;
}

function toAddress(asked) {
  const given = Object.entries(asked).filter(([name, value]) => value !== START[name]);
  const hash = new URLSearchParams(given.length ? given : [["search", ""]]).toString();
  try { history.replaceState(null, "", `#${hash}`); } catch { /* some browsers refuse this for local files */ }
}

// The body of a card is made when it is first opened.
function problemCard(one, get, open) {
  const status = get(one, "status"), rho = one.rho, program = get(one, "program") || get(one, "text") || "";
  const first = program.split("\n").map((line) => line.trim()).filter((line) => line && !line.startsWith("#")).slice(0, 3).join("  ");
  const node = el("details", { class: "problem" },
    el("summary", {}, el("b", {}, visible(get(one, "id"))), chip(status, status === "ok"),
      rho === null ? null : el("span", { class: "chip" }, `solved ${percent(rho)}`),
      el("span", {}, visible(`${get(one, "kind")}, ${get(one, "teacher")} → ${get(one, "student")}`)), el("code", {}, visible(first.slice(0, 160)))));
  const fill = () => { if (node.children.length < 2) node.append(problemBody(one, get)); };
  node.addEventListener("toggle", fill);
  if (open) { fill(); node.open = true; }
  return node;
}

function problemBody(one, get) {
  const part = (title, text) => text === null || text === undefined || text === "" ? null : el("div", {}, el("h3", {}, title), el("pre", {}, visible(text)));
  const inputs = get(one, "inputs") || [], outputs = get(one, "outputs") || [], complexity = get(one, "complexity");
  const calls = inputs.map((input, i) => i < outputs.length ? `f(${input}) = ${outputs[i]}` : `f(${input})`).join("\n");
  const facts = [`step ${get(one, "step")}`, `reward ${short(get(one, "reward"))}`];
  if (complexity) facts.push(["AST depth", "cyclomatic", "lines", "variables"].map((name, i) => `${name} ${complexity[i]}`).join(", "));
  if (get(one, "new")) facts.push("new");
  if (get(one, "new_cell")) facts.push("first of its archive cell");
  if (get(one, "truncated")) facts.push("cut off");
  return el("div", { class: "body" },
    el("div", {}, el("h3", {}, visible(facts.join(" · "))), part("Program", get(one, "program")), part("Calls", calls), part("Message", get(one, "message")),
      part("Why it is no problem", get(one, "reason")), raw(get(one, "text"), !get(one, "program"))),
    el("div", {}, el("h3", {}, "What the student answered"), answerTable(get(one, "answers"))));
}

function raw(text, open) {
  return text ? el("details", { class: "raw", open }, el("summary", {}, "What the teacher wrote, word for word"), el("pre", {}, visible(text))) : null;
}

function answerTable(answers) {
  if (!answers.length) return el("p", { class: "nothing" }, "Nobody was asked.");
  const head = el("tr", {}, el("th", { class: "number" }, "times"), el("th", {}, "verdict"), el("th", { class: "number" }, "reward"), el("th", {}, "text"));
  const rows = answers.map(([text, status, reason, reward, times]) => el("tr", {}, el("td", { class: "number" }, times),
    el("td", {}, chip(status, status === "ok")), el("td", { class: "number" }, short(reward)), el("td", {}, el("pre", {}, visible(text)), reason ? el("div", { class: "why" }, visible(reason)) : null)));
  return el("div", { class: "scroll" }, el("table", { class: "answers" }, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function chip(status, ok) { return el("span", { class: ok ? "chip ok" : "chip bad" }, visible(status)); }
