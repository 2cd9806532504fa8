// The colour and marker of a method, the dashes of a model. page.css has the colours.

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
