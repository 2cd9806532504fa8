// The chart, and what it says of a point that one points at.

const SIZES = { bytes: "bytes of embeddings", parameters: "parameters of the whole model" };

function draw() {
  const shown = chosenPoints();
  const metric = filters.elements.metric.value, size = filters.elements.size.value;
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
  const left = 26 + 8 * Math.max(...yTicks.map((tick) => tick.text.length)), right = 22, top = 12, bottom = 48;
  shown.sort((a, b) => a[size] - b[size]);
  const sizes = shown.map((point) => point[size]);
  const from = Math.log(Math.min(...sizes) / 1.25), to = Math.log(Math.max(...sizes) * 1.25);
  const x = (place) => left + (width - left - right) * (Math.log(place) - from) / (to - from);
  const y = (value) => top + (height - top - bottom) * (high - value) / (high - low);

  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group",
    "aria-label": `${labels[metric]} against ${SIZES[size]}, ${shown.length} points` });
  for (const { value, text } of yTicks) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const tick of sizeTicks(Math.exp(from), Math.exp(to), width / 70)) {
    svg.append(drawn("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height - bottom }),
      drawn("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" },
        shortSize(tick, size === "bytes")));
  }
  svg.append(
    drawn("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" },
      `${SIZES[size]} (log scale)`),
    drawn("text", { transform: `translate(14 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" },
      labels[metric]));
  for (const bound of bounds) {
    svg.append(drawn("line", { class: "bound", x1: left, x2: width - right, y1: y(bound), y2: y(bound) }),
      drawn("text", { x: left + 6, y: y(bound) - 5 }, `best possible ${bound.toPrecision(4)}`));
  }
  for (const series of distinct(shown.map((point) => point.series))) {
    const line = shown.filter((point) => point.series === series);
    svg.append(drawn("polyline", { class: `series ${colorOf(line[0].method)}`, "data-series": series,
      "stroke-dasharray": dashesOf(line[0].model),
      points: line.map((point) => `${x(point[size])},${y(point.metrics[metric][0])}`).join(" ") }));
  }
  const marks = shown.map((point) => {
    const [mean, deviation] = point.metrics[metric];
    const mark = drawn("g", { class: `point ${colorOf(point.method)}`, tabindex: -1, role: "img", "data-series": point.series,
      "aria-label": point.about.map((line) => line.join(" ")).join(", ") });
    const at = x(point[size]);
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

  const lines = svg.querySelectorAll("[data-series]");
  const hide = () => {
    about.hidden = true;
    marks.forEach((mark) => mark.classList.remove("chosen"));
    lines.forEach((line) => line.classList.remove("faded"));
  };
  const show = (mark) => {
    hide();
    mark.classList.add("chosen");
    lines.forEach((line) => line.classList.toggle("faded", line.dataset.series !== mark.dataset.series));
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
