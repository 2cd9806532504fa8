// Where an axis has its ticks, and what stands beside them. Knows no points.

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

function shortSize(size, ofBytes) {
  const [unit, name] = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([unit]) => size >= unit) ?? [1, ""];
  return `${+(size / unit).toPrecision(3)}${ofBytes ? ` ${name}B` : name}`;
}
