"use strict";
// The page of one run.

const steps = data.steps, lines = data.series, run = data.run, figures = data.figures;
const ROLE_COLOR = { teacher: color(1), student: color(0), both: color(4) };
const COLOR_OF = {
  ok: "var(--good)", right: "var(--good)", "solved less than half": "var(--good)", "solved half and more": "var(--mild)", "solved always": "var(--idle)",
  "solved never": "var(--odd)", wrong: "var(--idle)", malformed: "var(--odd)", invalid: "var(--bad)", "not judged": "var(--none)", others: "var(--none)", infra_error: "var(--none)",
};
const stepped = { x: steps, xlabel: "step" };

function unfold(life, name) {
  const whole = steps.map(() => null);
  life[name].forEach((value, i) => { whole[life.from + i] = value; });
  return whole;
}

function one(parent, title, note, name, ylabel, share) {
  lineChart(parent, { ...stepped, title, note, ylabel, share, floor: "zero", series: lines[name] ? [{ name: title, color: color(0), y: lines[name] }] : [] });
}

// A place in the population, by all who held it.
function place(m) {
  const held = data.members.filter((other) => other.place === m.place).map((other) => other.name);
  return held.length > 3 ? `${held[0]} → … → ${held[held.length - 1]}` : held.join(" → ");
}

function learning() {
  const { grid } = section("Learning", "What the population can do, and what it sets itself to do.", "two");
  const kinds = Object.keys(lines).filter((name) => name.startsWith("solve_") && name !== "solve_rate");
  one(grid, "Solve rate", "right answers to valid problems; a rate near one half teaches most", "solve_rate", "share of answers", true);
  lineChart(grid, { ...stepped, title: "Solve rate by task kind", note: "mean over the valid problems of a step", ylabel: "share of answers", share: true,
    series: kinds.map((name, i) => ({ name: name.slice(6), color: color(i), y: lines[name] })) });
  one(grid, "Valid proposals", "proposals that are problems", "valid", "share of proposals", true);
  one(grid, "Coverage", "cells of the complexity archive that a valid problem has reached", "coverage", "share of cells", true);
}

function complexity() {
  const { grid } = section("Complexity", "Of the valid proposals of each step: how deep, how branched, how long, how many names.", "four");
  one(grid, "AST depth", "longest way in the syntax tree", "ast_depth", "nodes");
  one(grid, "Cyclomatic complexity", "1, and 1 for every branch", "cyclomatic", "paths");
  one(grid, "Lines of code", "without comments and empty lines", "lines", "lines");
  one(grid, "Variables", "assigned names and parameters", "variables", "names");
}

function people() {
  const { grid } = section("Members", "A child takes the place and the colour of the member it stands for. Faint bars have died.");
  for (const role of new Set(data.members.map((m) => m.role))) {
    if (role === "both") continue; // nobody to be rated against
    const own = data.members.filter((m) => m.role === role && data.ratings[m.name]), first = Math.min(...own.map((m) => m.place));
    const series = own.map((m) => {
      const [mu, sigma] = [unfold(data.ratings[m.name], "mu"), unfold(data.ratings[m.name], "sigma")];
      const at = (sign) => mu.map((v, i) => v === null ? null : v + sign * sigma[i]);
      const k = m.place - first;
      return { name: `place ${m.place}`, label: m.name, group: place(m), color: color(k), dash: k >= PALETTE ? "6 3" : null, y: mu, low: at(-1), high: at(1) };
    });
    lineChart(grid, { ...stepped, title: `Ratings of ${role}s`, note: "TrueSkill: μ, and the band from μ − σ to μ + σ", ylabel: "rating", series, floor: "free", height: Math.max(240, Math.min(420, 36 * data.pairs.teachers.length + 40)) });
  }
  const met = data.pairs, most = Math.max(0, ...met.solve.flat().map((v) => v || 0)), high = [0.25, 0.5, 1].find((v) => v >= most);
  heatMap(grid, { title: "Solve rate of each pair", note: "right answers of the student to problems of the teacher, over the whole run", rows: met.teachers, columns: met.students, values: met.solve,
    xlabel: "student", ylabel: "teacher", tall: true, wide: Math.max(met.teachers.length, met.students.length) > 12,
    high, key: el("div", { class: "key" }, "0%", el("span", { class: "scale" }), percent(high), el("span", { class: "swatch", color: "var(--grid)" }), "no problem between them"),
    tell: (i, j) => [`${met.teachers[i]} → ${met.students[j]}`, [["", "solve rate", percent(met.solve[i][j])], ["", "problems", short(met.problems[i][j])], ["", "matches", short(met.matches[i][j])]]] });
  const firsts = Object.fromEntries([...new Set(data.members.map((m) => m.role))].map((r) => [r, Math.min(...data.members.filter((m) => m.role === r).map((m) => m.place))]));
  lineage(grid, { title: "Lineage", note: "who comes from whom: kept energy beside each child, operator below it; of two parents, the better one by the solid line",
    members: data.members, last: steps.length ? steps[steps.length - 1] : 0, shade: (m) => color(m.place - firsts[m.role]), tell: life });
}

function life(m) {
  const rows = [["", "role", m.role], ["", "born", m.born ? `step ${m.born}` : "founder"]];
  if (m.died !== null) rows.push(["", "replaced", `step ${m.died}`]);
  if (m.parents.length) rows.push(["", m.parents.length > 1 ? "parents" : "parent", m.parents.join(", ")], ["", "operator", m.operator], ...(m.fallback ? [["", "instead of the one drawn", m.fallback]] : []), ["", "kept energy", percent(m.kept_energy)],
    ["", "relative change", short(m.relative_change)], ["", "cosine to parents", (m.parent_cosines || []).map(short).join(", ") || "–"]);
  const rated = data.ratings[m.name];
  if (rated && rated.mu.length) rows.push(["", "last rating", `${short(rated.mu[rated.mu.length - 1])} ± ${short(rated.sigma[rated.sigma.length - 1])}`]);
  return [m.name, rows];
}

function mixes() {
  const { grid } = section("Rewards and verdicts", "What was paid for, and what the referee said, as shares of each step.");
  const layers = (counts) => Object.entries(counts).map(([name, y], i) => ({ name, y, color: COLOR_OF[name] || color(i + 2) }));
  const add = (title, note, counts, ylabel) => stackChart(grid, { ...stepped, title, note, ylabel, share: true, layers: layers(counts) });
  add("Rewards of teachers", "by how often the problem was solved; less often pays more, never pays nothing", data.mix.outcomes.teacher, "share of proposals");
  add("Rewards of students", "right, well-formed but wrong, malformed", data.mix.outcomes.student, "share of answers");
  lineChart(grid, { ...stepped, title: "Mean reward", note: "over what the referee could judge", ylabel: "reward",
    series: ["teacher", "student"].filter((r) => lines[`reward_${r}`]).map((r) => ({ name: `${r}s`, color: ROLE_COLOR[r], y: lines[`reward_${r}`] })) });
  add("Verdicts on proposals", null, data.mix.verdicts.teacher, "share of proposals");
  add("Verdicts on answers", null, data.mix.verdicts.student, "share of answers");
}

function learner() {
  const { grid } = section("Updates", "Of each role: the mean over its members, and the band from the lowest to the highest.");
  const add = (name, title, note, ylabel, share) => lineChart(grid, { ...stepped, title, note, ylabel, share, series: Object.entries(data.updates.roles).map(([role, fields]) =>
    ({ name: role === "both" ? "the agent" : `${role}s`, color: ROLE_COLOR[role] || color(4), y: fields[name].mean, low: fields[name].low, high: fields[name].high })) });
  add("grad_norm", "Gradient norm", "before it is clipped", "norm");
  add("entropy", "Entropy", "of what was sampled", "nats per token");
  add("clipped", "Clipped tokens", "whose gradient the ratio's limits took", "share of tokens", true);
  add("dead", "Groups without a signal", "all of equal reward, so nothing to learn from", "share of groups", true);
  add("mismatch", "Trainer against sampler", "mean difference of their log-probabilities", "|Δ log p|");
  add("truncated", "Completions cut off", "at the limit of tokens", "share of completions", true);
  if (Object.values(data.updates.roles).some((fields) => fields.kl.high.some((v) => v > 0))) add("kl", "Divergence from the base", "k3 estimate", "nats per token");
}

function cost() {
  const { grid } = section("Cost", null, "two");
  one(grid, "Completion tokens in total", "since the start, of all members, the dead included", "tokens", "tokens");
  lineChart(grid, { ...stepped, title: "Completion tokens by member", note: "since each one's birth", ylabel: "tokens",
    series: data.members.filter((m) => data.tokens[m.name]).map((m) => ({ name: `place ${m.place}`, label: m.name, group: place(m), color: color(m.place), dash: m.place >= PALETTE ? "6 3" : null, y: unfold(data.tokens[m.name], "tokens") })) });
  one(grid, "Time in total", "since the start", "seconds", "seconds");
  stackChart(grid, { ...stepped, title: "Time of a step", note: "by phase", ylabel: "seconds", layers: longest(7) });
}

// The phases that take longest; the rest together.
function longest(count) {
  const sum = (y) => y.reduce((a, b) => a + (b || 0), 0);
  const all = Object.entries(data.phases).filter(([, y]) => sum(y) > 0).sort((a, b) => sum(b[1]) - sum(a[1]));
  const layers = all.slice(0, count).map(([name, y], i) => ({ name, y, color: color(i) })), rest = all.slice(count);
  if (rest.length) layers.push({ name: rest.map(([name]) => name).join(", "), y: steps.map((_, i) => rest.reduce((a, [, y]) => a + (y[i] || 0), 0)), color: "var(--none)" });
  return layers;
}

function settings() {
  const flat = (tree, where) => Object.entries(tree).flatMap(([key, value]) => value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${where}${key}.`) : [`${where}${key}: ${JSON.stringify(value)}`]);
  return el("details", { class: "config" }, el("summary", {}, "Configuration"), el("pre", {}, visible(flat(run.config, "").join("\n"))));
}

function header() {
  const planned = run.planned === null ? "?" : Math.max(run.planned, figures.steps); // a run may be resumed beyond its plan
  const people = Object.entries(figures.living).map(([role, n]) => role === "both" ? "one agent in both roles" : `${n} ${role}${n === 1 ? "" : "s"}`).join(", ");
  const far = run.ended ? `finished after ${figures.steps} steps` : `${figures.steps} of ${planned} steps so far`;
  head(data.name, [`base ${/^[/.~]/.test(run.base) ? run.base.split("/").pop() : run.base} · seed ${run.seed} · ${people} · ${far}`], []);
  const then = (of) => steps.length > 1 ? `first ${figures.window} steps: ${percent(of.early)}` : "";
  const over = figures.window > 1 ? `, last ${figures.window}` : "";
  tiles([["Steps", `${figures.steps} / ${planned}`, `${figures.proposals.toLocaleString("en")} proposals`], ["Members", String(Object.values(figures.living).reduce((a, b) => a + b, 0)), `${figures.replaced} replaced`],
    [`Solved${over}`, percent(figures.solve_rate.recent), then(figures.solve_rate)], [`Valid${over}`, percent(figures.valid.recent), then(figures.valid)],
    ["Coverage", percent(figures.coverage), "of archive cells"], ["Tokens", short(figures.tokens), "written"], ["Time", duration(figures.seconds), figures.seconds && figures.tokens ? `${short(figures.tokens / figures.seconds)} tokens/s` : ""]]);
  document.getElementById("top").append(settings());
}

header();
for (const part of [learning, complexity, people, mixes, learner, cost]) part();
const held = data.problems;
const some = held.rows.length < held.seen ? ` ${held.rows.length.toLocaleString("en")} of ${held.seen.toLocaleString("en")} are on this page, evenly over the run.` : "";
problemSection(section("Problems", `What teachers proposed and students answered.${some}`).node, held);
begin();
