"use strict";
// Zoomable map, filter, sorting and GPU buttons. Without scripts the tables still have every number.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const make = (name, className, text) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  // Names come from other people's wheels: they only ever become text.
  if (text !== undefined) element.textContent = text;
  return element;
};

// The same words as in the tables and on the terminal.
function sizeText(bytes) {
  if (bytes < 1e3) return bytes + " B";
  if (bytes < 1e6) return (bytes / 1e3).toFixed(1) + " kB";
  if (bytes < 1e9) return (bytes / 1e6).toFixed(1) + " MB";
  return (bytes / 1e9).toFixed(2) + " GB";
}

// Squarified treemap (Bruls, Huizing, van Wijk, 2000): a row along the shorter side grows for as
// long as its most oblong tile gets less oblong. Weights are sorted, the largest first.
function squarify(weights, width, height) {
  const boxes = [];
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const areas = weights.map((weight) => (weight * width * height) / total);
  let [left, top, at] = [0, 0, 0];
  const worst = (row, side) => {
    const thick = row.reduce((sum, area) => sum + area, 0) / side;
    return Math.max(...row.map((area) => Math.max(thick ** 2 / area, area / thick ** 2)));
  };
  while (at < areas.length) {
    const upright = width >= height;
    const side = Math.max(1e-9, Math.min(width, height));
    let count = 1;
    while (at + count < areas.length &&
      worst(areas.slice(at, at + count + 1), side) <= worst(areas.slice(at, at + count), side)) count++;
    const row = areas.slice(at, at + count);
    const thick = row.reduce((sum, area) => sum + area, 0) / side;
    let offset = 0;
    for (const area of row) {
      const length = area / thick;
      boxes.push(upright ? [left, top + offset, thick, length] : [left + offset, top, length, thick]);
      offset += length;
    }
    if (upright) { left += thick; width -= thick; } else { top += thick; height -= thick; }
    at += count;
  }
  return boxes;
}

const map = find("map");
const state = { path: [], measure: data.measures && data.measures[0], gpu: data.gpu || "", marked: null };
const weight = (node) => node.bytes[state.measure] || 0;
const chosenGpu = () => data.gpus.find((one) => one.id === state.gpu);
const takes = (gpu, node) =>
  (node.live ? gpu.targets : node.texture === "outside" ? gpu.outside : []).includes(node.target);
// Two colors for a GPU: used, not used. Without one, each generation has its own.
const use = (node) => {
  const gpu = chosenGpu();
  return gpu && node.target ? (takes(gpu, node) ? "used" : "unused") : "";
};
// The rest has no target, so its texture stands for it.
const isMarked = (node) => !state.marked || node.parts.some(isMarked) ||
  ((node.target === state.marked.target || node.texture === "rest" && node.label === state.marked.target) &&
    (node.texture === "rest" || (node.texture || "") === state.marked.texture));
const title = (node) => [node.label, node.note, sizeText(weight(node))].filter(Boolean).join(", ");

function current() {
  return state.path.reduce((node, index) => node.parts[index], data.root);
}

function shown(node, most) {
  // Tiles of less than a pixel can't be seen: the smallest are one tile.
  const parts = node.parts.map((part, index) => ({ part, index })).filter((one) => weight(one.part) > 0);
  parts.sort((one, other) => weight(other.part) - weight(one.part));
  const few = parts.slice(0, most);
  const others = parts.slice(most);
  if (others.length) {
    const bytes = {};
    for (const name of data.measures)
      bytes[name] = others.reduce((sum, one) => sum + (one.part.bytes[name] || 0), 0);
    few.push({ part: { label: others.length + " more", note: "", bytes, color: "", parts: [] } });
  }
  return few;
}

function put(tile, [left, top, width, height], whole) {
  const percent = (value, of) => (100 * value) / of + "%";
  tile.style.left = percent(left, whole[0]);
  tile.style.top = percent(top, whole[1]);
  tile.style.width = percent(width, whole[0]);
  tile.style.height = percent(height, whole[1]);
}

function leaf(node, box, zoom) {
  const tile = make(zoom ? "button" : "div", "tile " + (node.texture || ""));
  tile.style.backgroundColor = node.color || "#6a5669";
  tile.title = title(node);
  if (zoom) tile.addEventListener("click", zoom);
  if (use(node)) tile.classList.add(use(node));
  if (!isMarked(node)) tile.classList.add("unmarked");
  if (box[2] > 24 && box[3] > 14) tile.append(make("span", "", node.name || node.label));
  else if (zoom) tile.setAttribute("aria-label", title(node));
  if (box[2] > 40 && box[3] > 32) tile.append(make("span", "", sizeText(weight(node))));
  return tile;
}

function group(node, path, box) {
  const tile = make("div", "tile group");
  const caption = make("button", "", (node.name || node.label) + "  " + sizeText(weight(node)));
  tile.title = title(node);
  caption.addEventListener("click", () => zoomTo(path));
  tile.append(caption);
  const inner = [box[2] - 4, box[3] - 22];
  if (inner[0] < 6 || inner[1] < 6) return tile;
  const area = make("div");
  area.style.cssText = "position:absolute;left:2px;right:2px;top:18px;bottom:2px";
  const parts = shown(node, 40);
  squarify(parts.map((one) => weight(one.part)), ...inner).forEach((part, at) => {
    const child = parts[at];
    const tile = leaf(child.part, part, null);
    tile.addEventListener("click", () => zoomTo(path));
    put(tile, part, inner);
    area.append(tile);
  });
  tile.append(area);
  return tile;
}

function draw() {
  if (!map) return;
  const node = current();
  const whole = [map.clientWidth || 1000, map.clientHeight || 500];
  const parts = shown(node, 60);
  const tiles = squarify(parts.map((one) => weight(one.part)), ...whole).map((box, at) => {
    const { part, index } = parts[at];
    const path = [...state.path, index];
    const hasParts = part.parts && part.parts.length > 0;
    const isGroup = hasParts && box[2] > 60 && box[3] > 44;
    const tile = isGroup ? group(part, path, box) : leaf(part, box, hasParts && (() => zoomTo(path)));
    put(tile, box, whole);
    return tile;
  });
  map.replaceChildren(...tiles);
  // One stop for the Tab key: arrow keys go from tile to tile.
  buttons().forEach((button, at) => { button.tabIndex = at ? -1 : 0; });
  drawCrumbs();
  find("map-note").textContent = title(node);
}

const buttons = () => [...map.querySelectorAll("button")];

function drawCrumbs() {
  const crumbs = [];
  let node = data.root;
  const path = [];
  for (const index of [null, ...state.path]) {
    if (index !== null) { node = node.parts[index]; path.push(index); }
    const at = [...path];
    const name = node.name || node.label;
    const isLast = at.length === state.path.length;
    const crumb = make(isLast ? "span" : "button", "", name);
    if (isLast) crumb.setAttribute("aria-current", "true");
    else crumb.addEventListener("click", () => zoomTo(at));
    crumbs.push(crumb, document.createTextNode(isLast ? "" : " › "));
  }
  find("crumbs").replaceChildren(...crumbs);
}

function zoomTo(path) {
  state.path = path;
  draw();
  const [first] = buttons();
  (first || find("crumbs").querySelector("button") || map).focus({ preventScroll: true });
}

function moveFocus(event) {
  const all = buttons();
  const at = all.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step && at >= 0) {
    const next = all[(at + step + all.length) % all.length];
    all[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    event.preventDefault();
  } else if (event.key === "Escape" && state.path.length) {
    zoomTo(state.path.slice(0, -1));
    event.preventDefault();
  }
}

function judge() {
  const gpu = chosenGpu();
  for (const row of document.querySelectorAll("tr[data-target]"))
    row.classList.toggle("unused", Boolean(gpu && !takes(gpu, row.dataset)));
  for (const button of find("gpus").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.dataset.gpu === state.gpu));
  find("gpu-note").textContent = gpu ? gpu.text : "";
  // The legend has the colors of the map.
  for (const { dataset, firstChild } of document.querySelectorAll(".legend button")) {
    const node = { ...dataset, live: !["link", "outside"].includes(dataset.texture) };
    firstChild.classList.toggle("used", Boolean(gpu && takes(gpu, node)));
    firstChild.classList.toggle("unused", Boolean(gpu && !takes(gpu, node) && dataset.texture !== "rest"));
  }
  if (gpu) find("answer").textContent = gpu.answer;
}

// The address has the GPU, so that a link shows what its sender saw.
function readAddress() {
  const found = /^#gpu=([0-9.]*)$/.exec(location.hash);
  if (!found) return;
  state.gpu = data.gpus.some((one) => one.id === found[1]) ? found[1] : "";
  draw();
  judge();
}

// A click or the Space key keeps the mark; with only the keyboard's focus it shows until the focus leaves.
function makeLegend(buttons) {
  const pressed = () => buttons.find((one) => one.getAttribute("aria-pressed") === "true");
  const mark = (button) => { state.marked = button ? button.dataset : null; draw(); };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const chosen = pressed() !== button;
      for (const other of buttons) other.setAttribute("aria-pressed", String(chosen && other === button));
      mark(pressed());
    });
    button.addEventListener("focus", () => { if (button.matches(":focus-visible")) mark(button); });
    button.addEventListener("blur", () => mark(pressed()));
  }
}

function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    if (!head.textContent) return;
    const button = make("button", "sort");
    // The heading keeps its explanations.
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((one, other) =>
        key(one).localeCompare(key(other), "en", { numeric: true }));
      body.append(...(down ? rows.reverse() : rows));
    });
  });
}

function filter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of document.querySelectorAll("table.filtered tbody tr")) {
    const line = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => line.includes(word));
    count += !row.hidden;
  }
  find("filter-note").textContent = words.length ? count + (count === 1 ? " row matches" : " rows match") : "";
}

for (const table of document.querySelectorAll("table.sortable")) sortable(table);
for (const part of document.querySelectorAll("[hidden].needs-script")) part.hidden = false;
if (find("filter")) find("filter").addEventListener("input", (event) => filter(event.target.value));
if (map) {
  find("gpus").addEventListener("click", (event) => {
    const gpu = event.target.dataset.gpu;
    if (gpu !== undefined) location.hash = "gpu=" + gpu;
  });
  addEventListener("hashchange", readAddress);
  if (find("measure"))
    find("measure").addEventListener("change", (event) => { state.measure = event.target.value; draw(); });
  // On the document: after a step up the focus may be on the crumbs, outside of the map.
  document.addEventListener("keydown", moveFocus);
  makeLegend([...document.querySelectorAll(".legend button")]);
  // Tiles are laid out for the map's real shape.
  new ResizeObserver(draw).observe(map);
  draw();
  judge();
  readAddress();
}
