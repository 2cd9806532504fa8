// The chart and the table of a report. Takes its numbers from the page; text is only ever set as text.
"use strict";

const points = JSON.parse(document.getElementById("chart-points").textContent);
const labels = JSON.parse(document.getElementById("chart-labels").textContent);
const filters = document.getElementById("filters");
const chart = document.getElementById("chart");
// By temperature, then what other rules chose.
const methods = distinct([...points].sort((a, b) => (a.temperature ?? 9) - (b.temperature ?? 9))
  .map((point) => point.method));
const models = distinct(points.map((point) => point.model));
const ALL = "all";

if (points.length) startChart();
const table = document.getElementById("runs-table");
if (table) startTable();

function distinct(values) {
  return [...new Set(values)];
}

function element(name, attributes = {}, ...children) {
  return furnish(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// ---- filters ----

function startChart() {
  filters.hidden = false;
  for (const method of methods) {
    const box = element("input", { type: "checkbox", name: "method", value: method, checked: "" });
    const look = drawn("svg", { width: 16, height: 16, class: `swatch ${colorOf(method)}`, "aria-hidden": "true" },
      marker(8, 8, method));
    document.getElementById("methods").append(element("label", {}, box, look, method));
  }
  offer("data", distinct(points.map((point) => point.data)));
  filters.elements.data.addEventListener("change", offerForData);
  filters.addEventListener("change", draw);
  filters.addEventListener("submit", (event) => event.preventDefault());
  offerForData();
  draw();
  let width = chart.clientWidth;
  addEventListener("resize", () => {
    if (chart.clientWidth === width) return;  // phones change the height while one scrolls
    width = chart.clientWidth;
    draw();
  });
}

function offerForData() {
  const own = points.filter((point) => point.data === filters.elements.data.value);
  const ownModels = distinct(own.map((point) => point.model));
  offer("model", ownModels.length > 1 ? [ALL, ...ownModels] : ownModels);
  const options = distinct(own.map((point) => point.options));
  const times = (option) => own.filter((point) => point.options === option).length;
  options.sort((a, b) => times(b) - times(a));  // the most usual first, so that it is chosen
  offer("options", options.length > 1 ? [...options, ALL] : options);
  offer("metric", distinct(own.flatMap((point) => Object.keys(point.metrics))), (metric) => labels[metric]);
  for (const box of filters.querySelectorAll("[name=method]")) {
    box.parentNode.hidden = own.every((point) => point.method !== box.value);
  }
  filters.elements.bound.parentNode.hidden = own.every((point) => point.best_possible === null);
  filters.elements.bound.checked = boundIsNear(chosenPoints());
}

// Far below all points, the best possible loss would squeeze them into a stripe: then it is shown on request.
function boundIsNear(shown) {
  const losses = shown.map((point) => point.metrics[point.objective][0]);
  const low = Math.min(...losses), high = Math.max(...losses);
  return shown.some((point) => point.best_possible !== null && point.best_possible >= low - (high - low));
}

function offer(name, values, nameOfValue = (value) => value || "none") {
  const select = filters.elements[name];
  const before = select.value;
  select.replaceChildren(...values.map((value) => element("option", { value }, nameOfValue(value))));
  if (values.includes(before)) select.value = before;
  if (name === "options") select.parentNode.hidden = values.length < 2;
}

function chosenPoints() {
  const { data, model, options, metric } = filters.elements;
  const ticked = new Set([...filters.querySelectorAll("[name=method]:checked")].map((box) => box.value));
  return points.filter((point) =>
    point.data === data.value && (model.value === ALL || point.model === model.value) &&
    (options.value === ALL || point.options === options.value) &&
    ticked.has(point.method) && metric.value in point.metrics);
}

// ---- the chart ----

function draw() {
  const shown = chosenPoints();
  const metric = filters.elements.metric.value;
  if (!shown.length) {
    chart.replaceChildren(element("p", {}, "No run fits these filters."));
    return;
  }
  const width = Math.max(chart.clientWidth, 260), height = Math.round(Math.min(480, Math.max(300, width * 0.55)));
  const bounds = filters.elements.bound.checked
    ? distinct(shown.filter((point) => point.objective === metric).map((point) => point.best_possible))
      .filter((bound) => bound !== null) : [];
  const ends = shown.flatMap(({ metrics: { [metric]: [mean, deviation] } }) =>
    [mean - (deviation ?? 0), mean + (deviation ?? 0)]);
  const [low, high] = padded(Math.min(...ends, ...bounds), Math.max(...ends, ...bounds));
  const yTicks = linearTicks(low, high, 6);
  const left = 26 + 8 * Math.max(...yTicks.map((tick) => tick.text.length)), right = 14, top = 12, bottom = 48;
  const sizes = shown.map((point) => point.parameters);
  const from = Math.log(Math.min(...sizes) / 1.25), to = Math.log(Math.max(...sizes) * 1.25);
  const x = (size) => left + (width - left - right) * (Math.log(size) - from) / (to - from);
  const y = (value) => top + (height - top - bottom) * (high - value) / (high - low);

  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group",
    "aria-label": `${labels[metric]} against parameters of the whole model, ${shown.length} points` });
  for (const { value, text } of yTicks) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const size of sizeTicks(Math.exp(from), Math.exp(to), width / 70)) {
    svg.append(drawn("line", { class: "grid", x1: x(size), x2: x(size), y1: top, y2: height - bottom }),
      drawn("text", { x: x(size), y: height - bottom + 18, "text-anchor": "middle" }, shortSize(size)));
  }
  svg.append(
    drawn("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" },
      "parameters of the whole model (log scale)"),
    drawn("text", { transform: `translate(14 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" },
      labels[metric]));
  for (const bound of bounds) {
    svg.append(drawn("line", { class: "bound", x1: left, x2: width - right, y1: y(bound), y2: y(bound) }),
      drawn("text", { x: left + 6, y: y(bound) - 5 }, `best possible ${bound.toPrecision(4)}`));
  }
  for (const series of distinct(shown.map((point) => point.series))) {
    const line = shown.filter((point) => point.series === series).sort((a, b) => a.parameters - b.parameters);
    svg.append(drawn("polyline", { class: `series ${colorOf(line[0].method)}`,
      "stroke-dasharray": dashesOf(line[0].model),
      points: line.map((point) => `${x(point.parameters)},${y(point.metrics[metric][0])}`).join(" ") }));
  }
  const marks = [...shown].sort((a, b) => a.parameters - b.parameters).map((point) => {
    const [mean, deviation] = point.metrics[metric];
    const mark = drawn("g", { class: `point ${colorOf(point.method)}`, tabindex: -1, role: "img",
      "aria-label": point.about.map((line) => line.join(" ")).join(", ") });
    const at = x(point.parameters);
    if (deviation) {
      const [above, below] = [y(mean + deviation), y(mean - deviation)];
      mark.append(drawn("path", { class: "series",
        d: `M${at - 4} ${above}h8M${at} ${above}V${below}M${at - 4} ${below}h8` }));
    }
    mark.append(drawn("circle", { class: "halo", cx: at, cy: y(mean), r: 11 }), marker(at, y(mean), point.method));
    mark.about = point.about;
    return mark;
  });
  svg.append(...marks);
  chart.replaceChildren(legend(distinct(shown.map((point) => point.model))), svg);
  explain(svg, marks);
}

function legend(shownModels) {
  const entries = shownModels.map((model) => element("span", {}, drawn(
    "svg", { width: 44, height: 12, class: "swatch color-7", "aria-hidden": "true" },
    drawn("line", { x1: 0, x2: 40, y1: 6, y2: 6, "stroke-dasharray": dashesOf(model) })), model));
  const node = element("p", { class: "legend" }, ...entries);
  node.hidden = shownModels.length < 2;
  return node;
}

function explain(svg, marks) {
  const about = element("div", { id: "about", role: "status" });
  about.hidden = true;
  chart.append(about);
  marks[0].setAttribute("tabindex", 0);  // one stop for Tab; the arrow keys do the rest

  const hide = () => {
    about.hidden = true;
    marks.forEach((mark) => mark.classList.remove("chosen"));
  };
  const show = (mark) => {
    hide();
    mark.classList.add("chosen");
    about.replaceChildren(element("dl", {}, ...mark.about.flatMap(
      ([name, text]) => [element("dt", {}, name), element("dd", {}, text)])));
    about.hidden = false;
    const frame = chart.getBoundingClientRect(), place = mark.querySelector(".halo").getBoundingClientRect();
    const beside = place.right - frame.left + 8;
    const fits = beside + about.offsetWidth <= frame.width;
    about.style.left = `${fits ? beside : Math.max(0, place.left - frame.left - about.offsetWidth - 8)}px`;
    about.style.top = `${Math.max(0, Math.min(place.top - frame.top, frame.height - about.offsetHeight))}px`;
  };
  marks.forEach((mark, number) => {
    mark.addEventListener("pointerenter", () => show(mark));
    mark.addEventListener("focus", () => show(mark));
    mark.addEventListener("blur", hide);
    mark.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      const next = marks[(number + step + marks.length) % marks.length];
      mark.setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    });
  });
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
}

function colorOf(method) {
  return `color-${methods.indexOf(method) % 8}`;
}

function dashesOf(model) {
  return ["none", "9 4", "2 4", "9 3 2 3"][models.indexOf(model) % 4];
}

function marker(x, y, method) {
  const shapes = [
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", "M-4.5-4.5h9v9h-9z", "M0-6.5 6.5 0 0 6.5-6.5 0z", "M0-6 6 5H-6z",
    "M0 6 6-5H-6z", "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z", "M-6 0 5-6V6z", "M6 0-5-6V6z",
  ];
  return drawn("path", { class: "marker", transform: `translate(${x} ${y})`,
    d: shapes[methods.indexOf(method) % shapes.length] });
}

function padded(low, high) {
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

function linearTicks(low, high, most) {
  const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let number = Math.ceil(low / step); number * step <= high; number++) {
    ticks.push({ value: number * step, text: (number * step).toFixed(decimals) });
  }
  return ticks;
}

function sizeTicks(low, high, most) {
  const ladders = [[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]];
  let ticks = [];
  for (const ladder of ladders) {
    ticks = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
      ticks.push(...ladder.map((step) => step * 10 ** decade).filter((tick) => low <= tick && tick <= high));
    }
    if (ticks.length <= most) break;
  }
  return ticks;
}

function shortSize(size) {
  const [unit, name] = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([unit]) => size >= unit) ?? [1, ""];
  return `${+(size / unit).toPrecision(3)}${name}`;
}

// ---- the table ----

function startTable() {
  table.querySelectorAll("th").forEach((head, column) => {
    head.firstChild.addEventListener("click", () => sortBy(head, column));
  });
  document.getElementById("download").addEventListener("click", download);
}

function sortBy(head, column) {
  const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", direction);
  const valueOf = (row) => row.cells[column].dataset.value;
  const rows = [...table.tBodies[0].rows];
  const areNumbers = rows.every((row) => valueOf(row) === "" || row.cells[column].classList.contains("number"));
  rows.sort((a, b) => {
    const [first, second] = [valueOf(a), valueOf(b)];
    if (first === "" || second === "") return (first === "") - (second === "");  // nothing is always last
    const order = areNumbers ? first - second : first < second ? -1 : first > second ? 1 : 0;
    return direction === "ascending" ? order : -order;
  });
  table.tBodies[0].append(...rows);
}

function csv() {
  const quoted = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const heads = [...table.querySelectorAll("th")].map((head) => head.dataset.column);
  const lines = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.dataset.value));
  return [heads, ...lines].map((line) => line.map(quoted).join(",") + "\r\n").join("");
}

function download() {
  const address = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  element("a", { href: address, download: "runs.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
