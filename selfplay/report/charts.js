"use strict";
// Elements, numbers, and the chart of lines. Everything that a model wrote goes through `el` or `svg`, which set text, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const PALETTE = 8;
const drawings = [];
const state = { smooth: 1 };

function make(space, tag, attributes, children) {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "color") node.style.setProperty(space ? "fill" : "background", value);
    else if (name === "stroke") node.style.stroke = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
const svg = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);
const color = (i) => `var(--c${i % PALETTE})`;

// Control characters and those that turn the direction of text are shown by name, so that no program looks like another.
function visible(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (c) => c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit * 0.99995) return `${Number((value / unit).toPrecision(3))}${name}`;
  }
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}
const percent = (value) => value === null || value === undefined ? "–" : `${Number((100 * value).toPrecision(3))}%`;
const format = (share) => share ? percent : short;
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const [s, m] = [Math.round(seconds), Math.round(seconds / 60)];
  return s < 180 ? `${Number(seconds.toPrecision(2))} s` : m < 100 ? `${m} min` : `${Number((seconds / 3600).toPrecision(3))} h`;
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((k) => k * power >= rough * 0.999) * power, found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function range(values, share, floor) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value !== null && value !== undefined) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return null;
  if (share || (floor !== "free" && low >= 0 && (floor === "zero" || low < 0.6 * high))) low = 0;
  if (share) return [0, high > 0.6 ? 1 : Math.max(high * 1.1, 0.01)];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  return [low === 0 ? 0 : low - (high - low) * 0.06, high + (high - low) * 0.06];
}

function smoothed(values) {
  const half = (state.smooth - 1) / 2;
  if (!values || half <= 0) return values;
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((v) => v !== null);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
}

// A card with a title; `draw(width)` gives an SVG or null, and is asked again when the width or a choice changes.
function card(parent, { title, note, wide, tall, legend, key, draw }) {
  const plot = el("div", { class: tall ? "plot tall" : "plot" });
  const figure = el("figure", { class: wide ? "card wide" : "card" }, el("figcaption", {}, title, note ? el("small", {}, note) : null), plot);
  const chart = { plot, draw, title, chosen: null, legend: null };
  if (legend && legend.length > 1) {
    chart.legend = el("div", { class: "legend" });
    for (const one of legend) {
      chart.legend.append(el("button", { type: "button", "aria-pressed": "false", onclick: (event) => choose(chart, one.name, event.currentTarget) },
        el("span", { class: "swatch", color: one.color }), visible(one.label || one.name)));
    }
    figure.append(chart.legend);
  }
  if (key) figure.append(key);
  parent.append(figure);
  drawings.push(chart);
}

function choose(chart, name, button) {
  chart.chosen = chart.chosen === name ? null : name;
  for (const other of chart.legend.children) other.setAttribute("aria-pressed", String(other === button && chart.chosen !== null));
  emphasise(chart);
}

function emphasise(chart) {
  for (const node of chart.plot.querySelectorAll("[data-series]")) {
    node.classList.toggle("dim", chart.chosen !== null && node.dataset.series !== chart.chosen);
  }
}

function redraw() {
  let drawn = 0;
  hideTip();
  for (const chart of drawings) {
    const picture = chart.draw(Math.max(240, chart.plot.clientWidth));
    if (picture) {
      drawn += 1;
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", chart.title);
    }
    chart.plot.replaceChildren(picture || el("p", { class: "nothing" }, "Nothing to show yet."));
    emphasise(chart);
  }
  document.body.dataset.charts = drawn;
}

const MARGIN = { left: 44, right: 10, top: 24, bottom: 32 };

// Axes of a plot: gives the SVG and the two scales.
function frame(width, { x, y, xlabel, ylabel, share, height = 220, pad = 0 }) {
  const { left, right, top, bottom } = MARGIN;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0 });
  const span = x[1] - x[0] + 2 * pad || 1;
  const sx = (v) => left + ((v - x[0] + pad) / span) * (width - left - right);
  const sy = (v) => height - bottom - ((v - y[0]) / (y[1] - y[0])) * (height - top - bottom);
  for (const tick of ticks(y[0], y[1], 4)) {
    picture.append(svg("line", { class: "gridline", x1: left, x2: width - right, y1: sy(tick), y2: sy(tick) }),
      svg("text", { x: left - 6, y: sy(tick) + 4, "text-anchor": "end" }, format(share)(tick)));
  }
  const between = x[1] > x[0] ? ticks(x[0], x[1], Math.min(6, width / 70)) : [x[0]];
  for (const tick of between) picture.append(svg("text", { x: sx(tick), y: height - bottom + 15, "text-anchor": "middle" }, short(tick)));
  picture.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    svg("text", { class: "unit", x: 2, y: 11 }, ylabel), svg("text", { class: "unit", x: width - right, y: height - 3, "text-anchor": "end" }, xlabel));
  return { picture, sx, sy, height };
}

function path(x, y, sx, sy) {
  let text = "", open = false;
  x.forEach((at, i) => {
    if (y[i] === null || y[i] === undefined) { open = false; return; }
    text += `${open ? "L" : "M"}${sx(at).toFixed(1)} ${sy(y[i]).toFixed(1)}${open ? "" : "h0"}`; // h0: a lone point shows as a dot
    open = true;
  });
  return text;
}

function bandPath(x, low, high, sx, sy) {
  const parts = [];
  let run = [];
  x.forEach((at, i) => {
    if (low[i] !== null && high[i] !== null) run.push(i);
    if ((low[i] === null || high[i] === null || i === x.length - 1) && run.length) { parts.push(run); run = []; }
  });
  const point = (i, of) => `${sx(x[i]).toFixed(1)} ${sy(of[i]).toFixed(1)}`;
  return parts.map((run) => `M${run.map((i) => point(i, high)).join("L")}L${run.slice().reverse().map((i) => point(i, low)).join("L")}Z`).join("");
}

// Lines with bands. A series is {name, label, group, color, x, y, low, high, dash}; `x` may be shared by all. Series of one name share an
// entry of the legend, which says `group`; `label` is for the single one.
function lineChart(parent, spec) {
  const all = spec.series.filter((one) => one.y && one.y.some((value) => value !== null));
  const legend = [...new Map(all.map((one) => [one.name, { name: one.name, color: one.color, label: one.group }])).values()];
  card(parent, { ...spec, legend, draw: (width) => drawLines(width, spec, all) });
}

function drawLines(width, spec, all) {
  const series = all.map((one) => ({ ...one, x: one.x || spec.x, y: smoothed(one.y), low: smoothed(one.low), high: smoothed(one.high) }));
  const y = range(series.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]), spec.share, spec.floor);
  const x = range(series.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]));
  if (!y || !x) return null;
  const ends = [Math.min(...series.map((one) => one.x[0])), Math.max(...series.map((one) => one.x[one.x.length - 1]))];
  const plot = frame(width, { ...spec, x: ends, y });
  if (new Set(series.map((one) => one.name)).size > 8) plot.picture.setAttribute("class", "many");
  for (const one of series) {
    const group = svg("g", { "data-series": one.name });
    if (one.low) group.append(svg("path", { class: "band", d: bandPath(one.x, one.low, one.high, plot.sx, plot.sy), color: one.color }));
    group.append(svg("path", { class: "line", d: path(one.x, one.y, plot.sx, plot.sy), stroke: one.color, "stroke-dasharray": one.dash }));
    plot.picture.append(group);
  }
  const stops = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  hover(plot, stops, width, (at) => [`${spec.xlabel} ${short(at)}`, series.flatMap((one) => told(one, at, spec, stops))]);
  return plot.picture;
}

function told(one, at, spec) {
  let i = one.x.indexOf(at);
  if (i < 0) {
    if (at < one.x[0] || at > one.x[one.x.length - 1]) return [];
    i = one.x.findIndex((value) => value > at) - 1; // other runs have other places on an axis of tokens
  }
  if (one.y[i] === null || one.y[i] === undefined) return [];
  const say = format(spec.share), around = one.low && one.low[i] !== null ? ` (${say(one.low[i])} to ${say(one.high[i])})` : "";
  return [[one.color, one.label || one.name, say(one.y[i]) + around]];
}

// A cursor at the nearest of `stops` under mouse, finger or arrow keys; `tell(stop)` gives a title and rows of [color, name, value].
function hover(plot, stops, width, tell) {
  const { picture, sx, height } = plot;
  const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
  picture.append(cursor);
  let now = -1;
  const show = (i) => {
    now = Math.max(0, Math.min(stops.length - 1, i));
    const box = picture.getBoundingClientRect(), at = sx(stops[now]);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.setAttribute("visibility", "visible");
    showTip(box.left + at, box.top + MARGIN.top, ...tell(stops[now]));
  };
  const hide = () => { cursor.setAttribute("visibility", "hidden"); hideTip(); };
  const move = (event) => {
    const at = event.clientX - picture.getBoundingClientRect().left;
    let best = 0;
    stops.forEach((stop, i) => { if (Math.abs(sx(stop) - at) < Math.abs(sx(stops[best]) - at)) best = i; });
    show(best);
  };
  picture.addEventListener("pointermove", move);
  picture.addEventListener("pointerdown", move);
  picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) { event.preventDefault(); show(now + by); } else if (event.key === "Escape") hide();
  });
}

function showTip(x, y, title, rows) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(el("b", {}, visible(title)));
  const grid = el("div", {});
  for (const [shade, name, value] of rows.slice(0, 24)) {
    grid.append(el("span", shade ? { class: "swatch", color: shade } : {}), el("span", {}, visible(name)), el("span", {}, visible(value)));
  }
  tip.append(grid);
  tip.hidden = false;
  const right = x + 14 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${Math.max(4, right ? x - 14 - tip.offsetWidth : x + 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(y, window.innerHeight - tip.offsetHeight - 4))}px`;
}
function hideTip() { document.getElementById("tip").hidden = true; }
