"use strict";
// The page of an exam: a table and a chart of intervals for each suite, and which questions who got right.

const exam = data.exam;
const columns = exam.ks.map((k) => `pass@${k}`);
const people = (suite) => Object.keys(suite.members);
const cell = (f) => f.mean === null ? "–" : `${(100 * f.mean).toFixed(1)} [${(100 * f.low).toFixed(1)}, ${(100 * f.high).toFixed(1)}]`;

function rows(suite) {
  const found = people(suite).map((name, i) => ({ name, of: suite.members[name], color: color(i) })), p = suite.population;
  if (!p) return found;
  return [...found, { name: "population, mean", of: p.mean }, { name: `population, best: ${p.best.member}`, of: p.best }, { name: `population, worst: ${p.worst.member}`, of: p.worst },
    { name: `population, best on ${p.chosen.chosen_on} questions, reported on the other ${p.chosen.reported_on}: ${p.chosen.member}`, of: p.chosen }];
}

function table(suite) {
  const kinds = [...new Set(people(suite).flatMap((name) => Object.keys(suite.members[name].verdicts)))];
  const heads = ["", ...columns, "cut off", "tokens", ...kinds];
  const body = rows(suite).map(({ name, of, color: own }) => [name, ...columns.map((c) => cell(of[c])),
    ...(of.verdicts ? [percent(of.cut_off), short(of.tokens), ...kinds.map((k) => of.verdicts[k] || 0)] : ["", "", ...kinds.map(() => "")])]
    .map((text, i) => el("td", i ? { class: "number" } : {}, i === 0 && own ? el("span", { class: "swatch", color: own }) : null, i === 0 && own ? " " : null, visible(text))));
  return el("div", { class: "card wide" }, el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((text, i) => el("th", i ? { class: "number" } : {}, text)))), el("tbody", {}, ...body.map((cells) => el("tr", {}, ...cells))))));
}

function intervals(suite) {
  const shown = rows(suite).filter(({ of }) => of[columns[0]].mean !== null), width = 640, left = 190, line = 24, tall = shown.length * line + 26;
  const at = (share) => left + share * (width - left - 20);
  const marks = shown.flatMap(({ name, of, color: own }, i) => {
    const f = of[columns[0]], y = i * line + line / 2, ink = own || "var(--soft)", title = `${name}: ${cell(f)}`;
    return [svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, visible(name.length > 28 ? `${name.slice(0, 27)}…` : name)),
      svg("line", { x1: at(f.low), x2: at(f.high), y1: y, y2: y, stroke: ink, "stroke-width": 2 }), svg("circle", { cx: at(f.mean), cy: y, r: 4.5, color: ink }, svg("title", {}, visible(title)))];
  });
  const grid = [0, 0.25, 0.5, 0.75, 1].flatMap((s) => [svg("line", { class: "gridline", x1: at(s), x2: at(s), y1: 0, y2: tall - 20 }), svg("text", { x: at(s), y: tall - 5, "text-anchor": "middle" }, percent(s))]);
  return el("figure", { class: "card wide" }, el("figcaption", {}, columns[0], el("small", {}, "mean over questions, with 95% intervals by drawing questions anew")),
    el("div", { class: "plot" }, svg("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img", "aria-label": `${columns[0]} of everybody` }, ...grid, ...marks)));
}

function questions(suite) {
  const names = people(suite), size = 11, left = 150, wide = Math.max(1, Math.floor(480 / size)), ids = suite.solved.ids, high = Math.ceil(ids.length / wide) * size;
  const drawn = names.map((name) => el("div", {}, el("b", {}, visible(name)), svg("svg", { width: wide * size, height: high, role: "img", "aria-label": `questions that ${name} got right` },
    ...ids.map((id, i) => svg("rect", { x: (i % wide) * size, y: Math.floor(i / wide) * size, width: size - 1, height: size - 1, color: "var(--good)", "fill-opacity": 0.12 + 0.88 * suite.solved[name][i] / exam.samples },
      svg("title", {}, visible(`${id}: ${suite.solved[name][i]} of ${exam.samples}`)))))));
  return el("figure", { class: "card wide" }, el("figcaption", {}, "Questions", el("small", {}, "one square each, the same place for everybody; the darker, the more answers were right")), el("div", { class: "grid" }, ...drawn));
}

head(`Exam on ${exam.base.name}`, [`${Object.keys(exam.members).length} adapters${exam.with_base ? " and the base" : ""}, ${exam.samples} ${exam.samples === 1 ? "answer" : "answers"} to each question, temperature ${exam.temperature}, seed ${exam.seed}.`], []);
document.getElementById("smooth").parentElement.remove();
for (const [name, suite] of Object.entries(data.suites)) {
  const out = Object.entries(suite.excluded).map(([id, why]) => `${id} (${why})`);
  const { grid } = section(name, `${suite.questions} questions, ${suite.style} prompts.${out.length ? ` Left out: ${out.join("; ")}.` : ""}`);
  grid.append(table(suite), intervals(suite), questions(suite));
}
begin();
