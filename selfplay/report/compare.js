"use strict";
// The page that lays runs over each other. The axis is a choice: steps, or completion tokens, which are what a run costs.

const several = data.groups.some((group) => group.seeds.length > 1);
const axis = { name: new URLSearchParams(location.hash.slice(1)).get("x") === "tokens" ? "tokens" : "steps" };
const named = (i) => data.groups[i].label;

function table() {
  const columns = [["run", (r) => r.name], ["group", (r) => r.group], ["seed", (r) => r.seed], ["steps", (r) => `${r.steps} / ${r.planned ?? "?"}`], ["solve rate", (r) => percent(r.solve_rate)],
    ["valid", (r) => percent(r.valid)], ["coverage", (r) => percent(r.coverage)], ["AST depth", (r) => short(r.ast_depth)], ["lines", (r) => short(r.lines)], ["tokens", (r) => short(r.tokens)],
    ["time", (r) => duration(r.seconds)], ["replaced", (r) => r.replaced]];
  const kind = (i) => i > 1 ? { class: "number" } : {};
  const swatch = (label) => el("span", { class: "swatch", color: color(data.groups.findIndex((g) => g.label === label)) });
  return el("div", { class: "card" }, el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...columns.map(([name], i) => el("th", kind(i), name)))),
    el("tbody", {}, ...data.runs.map((r) => el("tr", {}, ...columns.map(([, of], i) => el("td", kind(i), i === 1 ? swatch(r.group) : null, i === 1 ? " " : null, visible(of(r) ?? "–")))))))));
}

function chart(parent, { title, unit, curve, share }) {
  if (!data.groups.some((group) => group.steps[curve])) return;
  const legend = data.groups.map((group, i) => ({ name: `g${i}`, label: named(i), color: color(i) })).filter((_, i) => data.groups[i].steps[curve]);
  card(parent, { title, legend, draw: (width) => {
    const series = data.groups.flatMap((group, i) => {
      const own = group[axis.name], line = own[curve];
      if (!line) return [];
      const band = group.seeds.length > 1 ? { low: line.low, high: line.high } : {};
      return [{ name: `g${i}`, label: named(i), color: color(i), dash: i >= PALETTE ? "6 3" : null, x: own.x, y: line.mean, ...band }];
    });
    return drawLines(width, { title, ylabel: unit, xlabel: axis.name === "steps" ? "step" : "completion tokens", share }, series);
  } });
}

const over = el("select", { id: "axis", oninput: (event) => {
  axis.name = event.target.value;
  try { history.replaceState(null, "", `#x=${axis.name}`); } catch { /* some browsers refuse this for local files */ }
  redraw();
} }, el("option", { value: "steps" }, "steps"), el("option", { value: "tokens" }, "completion tokens"));
over.value = axis.name;
const bands = several ? "Runs that differ in nothing but the seed are one line, their mean; the band goes from the lowest to the highest seed. A group is drawn as far as its shortest run." : "Each line is one run.";
head(`${data.runs.length} runs compared`, [bands], [el("label", {}, "over", over)]);
const shares = data.runs[0].window > 1 ? "Solve rate and valid share are means of each run's last steps, at most 10; the other figures are of its last step." : null;
const runs = section("Runs", shares);
runs.grid.replaceWith(table());
for (const name of new Set(data.charts.map((c) => c.section))) {
  const own = data.charts.filter((c) => c.section === name && data.groups.some((g) => g.steps[c.curve]));
  if (own.length) { const { grid } = section(name, null, own.length % 3 === 1 || own.length === 2 ? "two" : ""); own.forEach((c) => chart(grid, c)); }
}
begin();
