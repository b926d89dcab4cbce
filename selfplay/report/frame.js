"use strict";
// What both kinds of page share: head, sections, theme, redrawing.

function head(title, lines, choices) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("lora-evo-theme"); } catch { return null; } };
  const themed = () => { document.documentElement.dataset.theme = kept() || (dark.matches ? "dark" : "light"); };
  const toggle = el("button", { type: "button", id: "theme", onclick: () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("lora-evo-theme", next); } catch { /* not kept, then */ }
    document.documentElement.dataset.theme = next;
  } }, "Light / dark");
  dark.addEventListener("change", themed);
  themed();
  const smooth = el("select", { id: "smooth", oninput: (event) => { state.smooth = Number(event.target.value); redraw(); } },
    ...[[1, "as they are"], [5, "mean of 5 steps"], [21, "mean of 21 steps"]].map(([value, label]) => el("option", { value }, label)));
  document.getElementById("top").append(el("div", { class: "bar" },
    el("div", {}, el("div", { class: "eyebrow" }, "lora-evo self-play"), el("h1", {}, visible(title)), ...lines.map((line) => el("p", {}, visible(line)))),
    el("div", { class: "controls" }, ...choices, el("label", {}, "lines", smooth), toggle)));
}

function tiles(pairs) {
  document.getElementById("top").append(el("div", { class: "tiles" }, ...pairs.map(([name, value, note]) =>
    el("div", { class: "tile" }, el("span", {}, name), el("b", {}, visible(value)), el("span", {}, visible(note || "\u00a0"))))));
}

function section(title, about, columns) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-"), nav = document.getElementById("nav");
  if (!nav.firstChild) nav.append(el("div", {}));
  nav.firstChild.append(el("a", { href: `#${id}` }, title));
  const grid = el("div", { class: columns ? `grid ${columns}` : "grid" });
  const node = el("section", { id }, el("h2", {}, title), about ? el("p", { class: "about" }, about) : null, grid);
  document.getElementById("main").append(node);
  return { node, grid };
}

function begin() {
  redraw();
  let width = window.innerWidth, timer = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // phones resize in height while they scroll
    width = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(redraw, 100);
  });
  document.addEventListener("scroll", hideTip, { passive: true });
  document.body.dataset.ready = "yes";
}
