// The table of runs: sorted by any column, and as CSV.

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

if (table) startTable();
