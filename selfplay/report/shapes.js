"use strict";
// The other shapes: what adds up, who met whom, who comes from whom.

// Layers that add up, one column for each x. `share`: of the column's total.
function stackChart(parent, spec) {
  card(parent, { ...spec, legend: spec.layers, draw: (width) => drawStack(width, spec) });
}

function drawStack(width, spec) {
  const sums = spec.x.map((_, i) => spec.layers.reduce((sum, layer) => sum + (layer.y[i] || 0), 0));
  if (!sums.some((sum) => sum > 0)) return null;
  const scaled = spec.layers.map((layer) => smoothed(layer.y.map((v, i) => spec.share ? (sums[i] ? (v || 0) / sums[i] : null) : v || 0)));
  const tops = spec.x.map((_, i) => scaled.reduce((sum, layer) => sum + (layer[i] || 0), 0));
  const plot = frame(width, { ...spec, x: [spec.x[0], spec.x[spec.x.length - 1]], y: [0, spec.share ? 1 : Math.max(...tops) * 1.04], pad: 0.5 });
  let floor = spec.x.map(() => 0);
  spec.layers.forEach((layer, k) => {
    const roof = floor.map((v, i) => v + (scaled[k][i] || 0));
    const edge = (of) => spec.x.flatMap((at, i) => [-0.5, 0.5].map((d) => `${plot.sx(at + d).toFixed(1)} ${plot.sy(of[i]).toFixed(1)}`));
    plot.picture.append(svg("path", { class: "layer", "data-series": layer.name, d: `M${edge(roof).join("L")}L${edge(floor).reverse().join("L")}Z`, color: layer.color }));
    floor = roof;
  });
  const say = spec.share ? (v, raw) => `${percent(v)} (${short(raw)})` : (v) => short(v);
  hover(plot, spec.x, width, (at) => {
    const i = spec.x.indexOf(at);
    const rows = spec.layers.map((layer, k) => [layer.color, layer.name, say(scaled[k][i], layer.y[i])]);
    return [`${spec.xlabel} ${at}`, rows.reverse()];
  });
  return plot.picture;
}

// A matrix of shares from 0 to `high`: rows are teachers, columns are students.
function heatMap(parent, spec) {
  card(parent, { ...spec, draw: (width) => spec.rows.length && spec.columns.length ? drawHeat(width, spec) : null });
}

function drawHeat(width, { rows, columns, values, high, tell, xlabel, ylabel }) {
  const left = 44, top = 34, cell = Math.max(24, Math.min(76, (width - left - 6) / columns.length)), tall = Math.min(38, cell);
  const wide = Math.max(width - 2, left + cell * columns.length + 6), height = top + tall * rows.length + 6;
  const picture = svg("svg", { width: wide, height, viewBox: `0 0 ${wide} ${height}` });
  picture.append(svg("text", { class: "unit", x: 2, y: 11 }, `${ylabel} ↓  ${xlabel} →`));
  columns.forEach((name, j) => picture.append(svg("text", { class: "name", x: left + cell * (j + 0.5), y: top - 7, "text-anchor": "middle" }, visible(name))));
  rows.forEach((name, i) => {
    picture.append(svg("text", { class: "name", x: left - 8, y: top + tall * (i + 0.5) + 4, "text-anchor": "end" }, visible(name)));
    columns.forEach((_, j) => {
      const value = values[i][j], x = left + cell * j, y = top + tall * i;
      const fill = value === null ? "var(--grid)" : `color-mix(in oklab, var(--heat-high) ${Math.round(100 * value / high)}%, var(--heat-low))`;
      const box = svg("rect", { x: x + 1, y: y + 1, width: cell - 2, height: tall - 2, rx: 3, color: fill });
      picture.append(box);
      const say = (event) => showTip(event.clientX, event.clientY, ...tell(i, j));
      box.addEventListener("pointermove", say);
      box.addEventListener("pointerdown", say);
      box.addEventListener("pointerleave", hideTip);
      if (value !== null && cell >= 34) {
        const ink = svg("text", { x: x + cell / 2, y: y + tall / 2 + 4, "text-anchor": "middle", color: heatInk(value / high) }, `${Math.round(100 * value)}%`);
        ink.style.pointerEvents = "none";
        picture.append(ink);
      }
    });
  });
  return picture;
}

// The ink that is read best on a cell; where it switches depends on the theme.
function heatInk(value) {
  return `color-mix(in srgb, var(--heat-ink-high) clamp(0%, calc((${value.toFixed(3)} - var(--heat-switch)) * 100000%), 100%), var(--heat-ink-low))`;
}

// Lives as bars, one row for each place in the population; a curve leads from each parent to the start of the child's bar.
function lineage(parent, spec) {
  card(parent, { ...spec, wide: true, tall: true, draw: (width) => spec.members.length && spec.last > 0 ? drawLineage(width, spec) : null });
}

function drawLineage(width, { members, last, shade, tell }) {
  const left = 10, bottom = 30, pitch = 34, bar = 18, rows = Math.max(...members.map((m) => m.place)) + 1;
  const births = [...new Set(members.map((m) => m.born))].length;
  const wide = Math.max(width - 2, births * 112 + 30), height = rows * pitch + bottom + 8;
  const sx = (step) => left + (step / last) * (wide - 2 * left), sy = (place) => 6 + place * pitch;
  const picture = svg("svg", { width: wide, height, viewBox: `0 0 ${wide} ${height}` });
  const named = Object.fromEntries(members.map((m) => [m.name, m]));
  const ends = (m) => [sx(m.born) + (m.born ? 2 : 0), Math.max(sx(m.died === null ? last : m.died) - 1, sx(m.born) + 4)];
  const bars = svg("g"), edges = svg("g"), labels = svg("g");
  for (const m of members) {
    const [from, to] = ends(m), y = sy(m.place);
    const life = svg("rect", { class: "life", x: from, y, width: to - from, height: bar, color: `color-mix(in oklab, ${shade(m)} ${m.died === null ? 62 : 30}%, var(--card))` });
    const say = (event) => showTip(event.clientX, event.clientY, ...tell(m));
    for (const kind of ["pointermove", "pointerdown"]) life.addEventListener(kind, say);
    life.addEventListener("pointerleave", hideTip);
    bars.append(life);
    m.parents.forEach((name, k) => { if (named[name]) edges.append(edge(m, named[name], m.parents.length > 1 && k === 0, { sx, sy, bar })); });
    const kept = m.operator && m.kept_energy !== null && to - from > 76 ? ` ${percent(m.kept_energy)}` : "";
    const name = svg("text", { class: "name", x: from + 6, y: y + 13 }, visible(m.name), svg("tspan", { class: "kept" }, kept));
    name.style.pointerEvents = "none";
    labels.append(name);
    if (m.operator) {
      const text = m.operator, room = Math.floor((to - from + 2) / 6.3);
      labels.append(svg("text", { x: from + 2, y: y + bar + 11 }, visible(text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text)));
    }
  }
  picture.append(bars, edges, labels);
  for (const tick of ticks(0, last, Math.min(8, wide / 80))) picture.append(svg("text", { x: sx(tick), y: height - 14, "text-anchor": tick === 0 ? "start" : tick === last ? "end" : "middle" }, short(tick)));
  picture.append(svg("text", { class: "unit", x: wide / 2, y: height - 1, "text-anchor": "middle" }, "step"));
  return picture;
}

function edge(child, parent, worse, { sx, sy, bar }) {
  const x = sx(child.born), from = sy(parent.place) + bar / 2, to = sy(child.place) + bar / 2;
  const start = Math.max(sx(parent.born), x - 26);
  return svg("path", { class: worse ? "edge worse" : "edge", d: `M${start} ${from}C${x - 4} ${from} ${x - 16} ${to} ${x + 2} ${to}` });
}
