// What the reader chooses to see.

const ALL = "all";

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
  filters.addEventListener("change", (event) => {
    event.target.chosen = true;
    draw();
  });
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
  const inBytes = own.every((point) => point.bytes !== null);
  const sizes = own.some((point) => point.by_bytes) ? ["bytes", "parameters"] : ["parameters", "bytes"];
  offer("size", inBytes ? sizes : ["parameters"], (size) => SIZES[size]);
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
  const before = select.chosen ? select.value : null;
  select.replaceChildren(...values.map((value) => element("option", { value }, nameOfValue(value))));
  if (values.includes(before)) select.value = before;
  if (name === "options" || name === "size") select.parentNode.hidden = values.length < 2;
}

function chosenPoints() {
  const { data, model, options, metric } = filters.elements;
  const ticked = new Set([...filters.querySelectorAll("[name=method]:checked")].map((box) => box.value));
  return points.filter((point) =>
    point.data === data.value && (model.value === ALL || point.model === model.value) &&
    (options.value === ALL || point.options === options.value) &&
    ticked.has(point.method) && metric.value in point.metrics);
}

if (points.length) startChart();
