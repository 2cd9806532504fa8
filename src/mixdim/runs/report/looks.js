// The colour and marker of a method, the dashes of a model. page.css has the colours.
// "mixed, 8 bits" has the colour and the marker of "mixed", but an empty one; of fewer bits with a dot in it.

const plainOf = new Map(points.map((point) => [point.method, point.plain_method]));
const bitsOf = new Map(points.map((point) => [point.method, point.bits]));
const plainMethods = distinct(methods.map((method) => plainOf.get(method)));
const COLORS = 11;  // one less than shapes: together they differ for 132 methods
const DOT = "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z";
const SHAPES = [
  "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", "M-4.5-4.5h9v9h-9z", "M0-6.5 6.5 0 0 6.5-6.5 0z", "M0-6 6 5H-6z",
  "M0 6 6-5H-6z", "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z", "M-6 0 5-6V6z", "M6 0-5-6V6z",
  "M0-7 1.8-2.4 6.7-2.2 2.9 .9 4.1 5.7 0 3-4.1 5.7-2.9 .9-6.7-2.2-1.8-2.4z", "M-5.5-6h11L-5.5 6h11z",
  "M-3-5.8 0-2.8 3-5.8 5.8-3 2.8 0 5.8 3 3 5.8 0 2.8-3 5.8-5.8 3-2.8 0-5.8-3z", "M-7-2.5h14v5h-14z",
];

function numberOf(method) {
  return plainMethods.indexOf(plainOf.get(method));
}

function colorOf(method) {
  return `color-${numberOf(method) % COLORS}`;
}

function dashesOf(model) {
  return ["none", "9 4", "2 4", "9 3 2 3"][models.indexOf(model) % 4];
}

function marker(x, y, method) {
  const bits = bitsOf.get(method);
  return drawn("path", { class: bits < 32 ? "marker empty" : "marker", transform: `translate(${x} ${y})`,
    d: SHAPES[numberOf(method) % SHAPES.length] + (bits < 8 ? DOT : "") });
}
