// What the scripts of a report share. Takes its numbers from the page; text is only ever set as text.
"use strict";

const points = JSON.parse(document.getElementById("chart-points").textContent);
const labels = JSON.parse(document.getElementById("chart-labels").textContent);
const filters = document.getElementById("filters");
const chart = document.getElementById("chart");
const table = document.getElementById("runs-table");
// By temperature, then what methods or other rules chose.
const methods = distinct([...points].sort((a, b) => (a.temperature ?? 9) - (b.temperature ?? 9))
  .map((point) => point.method));
const models = distinct(points.map((point) => point.model));

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
