// The baseline explorer: baseline.py says what it shows, and computes the same numbers.

const SIZES = [2, 4, 8, 16];
const KINDS = [["none", "no baseline"], ["loo", "leave-one-out"], ["mean", "plain mean"]];
const LOOK = { none: ["orange", "square", [2, 4]], loo: ["blue", "circle", []],
  mean: ["purple", "triangle", [7, 4]] };
const [LOW, HIGH, BINS] = [-2, 4, 96]; // of the estimates, in units of the true slope

const sum = (xs) => xs.reduce((a, b) => a + b, 0);
const spread = (xs, centre) => Math.sqrt(sum(xs.map((x) => (x - centre) ** 2)) / (xs.length - 1));

// every estimate of the slope, [draws], for one group size
function estimates(pool, size, shift, kind) {
  const out = [];
  for (let at = 0; at < pool.draws.length; at += pool.budget) {
    let total = 0;
    for (let from = at; from < at + pool.budget; from += size) {
      let all = 0;
      for (let k = from; k < from + size; k++) all += pool.rewards[pool.draws[k]] + shift;
      for (let k = from; k < from + size; k++) {
        const r = pool.rewards[pool.draws[k]] + shift;
        const base = kind === "none" ? 0 : kind === "mean" ? all / size : (all - r) / (size - 1);
        total += (r - base) * pool.slopes[pool.draws[k]];
      }
    }
    out.push(total / pool.budget / pool.truth);
  }
  return out;
}

function measured(pool, size, shift) {
  const out = {};
  for (const [kind] of KINDS) {
    const all = estimates(pool, size, shift, kind);
    const centre = sum(all) / all.length;
    const width = spread(all, centre);
    out[kind] = { all, centre, width, ratio: width / centre };
  }
  return out;
}

let remembered = null; // the widths for every size depend on the shift and the pool alone

function bySize(data, shift) {
  if (remembered && remembered.data === data && remembered.shift === shift)
    return remembered.table;
  const pool = { rewards: floats(data.rewards), slopes: floats(data.slopes),
    draws: floats(data.draws), budget: data.budget, truth: data.truth };
  const table = Object.fromEntries(SIZES.map((size) => [size, measured(pool, size, shift)]));
  remembered = { data, shift, table };
  return table;
}

function group(values, data) {
  const rewards = Array.from({ length: data.count }, (_, i) => values[`r${i}`] + values.shift);
  const total = sum(rewards);
  return rewards.map((r, i) => {
    const baseline = (total - r) / (data.count - 1);
    return { name: data.names[i], r, baseline, advantage: r - baseline, plain: r - total / data.count };
  });
}

function heading(rows, size, of) {
  if (of) {
    const words = KINDS.slice(1).map(([kind, name]) =>
      `${name} ${fixed(of[kind].width)} / ${fixed(of[kind].centre)} = ${fixed(of[kind].ratio)}`);
    return `G = ${size}, width / centre: ${words.join(", ")}`;
  }
  const bases = rows.map((row) => row.baseline);
  return `Each answer has its own baseline: from ${fixed(Math.min(...bases))} `
    + `to ${fixed(Math.max(...bases))}`;
}

const explorer = {
  height(width, data) {
    if (!data.draws) return 250;
    return width < 820 ? 790 : 500;
  },

  compute(values, data) {
    const rows = group(values, data);
    const numbers = {};
    rows.forEach((row, i) => {
      numbers[`baseline ${i}`] = row.baseline;
      numbers[`advantage ${i}`] = row.advantage;
    });
    const sizes = data.draws ? bySize(data, values.shift) : null;
    const of = sizes && sizes[values.size];
    if (of)
      for (const [kind] of KINDS)
        for (const key of ["centre", "width", "ratio"]) numbers[`${kind} ${key}`] = of[kind][key];
    const table = {
      columns: ["answer", "reward", "its baseline", "advantage", "less mean"],
      rows: rows.map((row) => [row.name, ...[row.r, row.baseline, row.advantage, row.plain]
        .map((value) => fixed(value))]),
    };
    return { title: heading(rows, values.size, of), numbers, table, rows, sizes, of };
  },

  draw(stage, result, values, data) {
    const wide = stage.width >= 820;
    const half = wide ? stage.width / 2 - 20 : stage.width;
    bars(stage, result.rows, data, values.shift, data.draws && wide ? half : stage.width);
    if (!data.draws) return;
    const left = wide ? stage.width / 2 + 20 : 0;
    ratios(stage, result.sizes, values, wide ? left : 0, wide ? 0 : 250, half);
    clouds(stage, result.of, wide ? 250 : 500);
  },
};

// reward as a bar, the baseline as a thick stroke across it, the advantage between the two
function bars(stage, rows, data, shift, width) {
  const high = Math.max(1, ...rows.map((row) => row.r)) > 1.001 ? 6 : 1;
  const count = rows.length;
  const plot = stage.plot({ left: 40, top: 44, width: width - 52, height: 150, x: [0, count],
    y: [0, high * 1.12], xticks: [], title: "The group: reward, its baseline (thick), advantage",
    ylabel: "reward", yticks: [0, 0.5, 1].map((v) => [v * high, fixed(v * high, 1)]) });
  rows.forEach((row, i) => {
    plot.bar(i + 0.2, i + 0.5, 0, row.r, stage.ink, { alpha: 0.3 });
    const [x0, x1] = [plot.x(i + 0.12), plot.x(i + 0.62)];
    const y = plot.y(row.baseline);
    stage.line([[x0, y], [x1, y]], stage.blue, { width: 3 });
    const x = plot.x(i + 0.35);
    const colour = row.advantage < 0 ? stage.orange : stage.green;
    stage.line([[x, y], [x, plot.y(row.r)]], colour, { width: 2.5 });
    const tip = plot.y(row.r);
    const turn = Math.sign(y - tip) * 6;
    if (Math.abs(y - tip) > 8)
      stage.line([[x - 5, tip + turn], [x, tip], [x + 5, tip + turn]], colour, { width: 2.5 });
    const sign = row.advantage > 0.004 ? "+" : "";
    stage.text(sign + fixed(row.advantage), plot.x(i + 0.65), (y + tip) / 2, { bold: true });
    stage.text(row.name, plot.x(i + 0.38), plot.top + plot.height + 14, { align: "center" });
  });
  if (data.guess !== null && !shift) {
    const y = plot.y(data.guess);
    stage.line([[plot.x(1.04), y], [plot.x(1.96), y]], stage.ink, { width: 1.5, dash: [5, 4] });
    stage.text("your guess", plot.x(1.96), y - 8, { align: "right", size: 11 });
  }
}

function ratios(stage, sizes, values, left, top, width) {
  const within = (ratio) => Math.max(0.1, Math.min(10, ratio));
  const plot = stage.plot({ left: left + 40, top: top + 44, width: width - 150, height: 150,
    x: [2, 16], y: [0.1, 10], logx: true, logy: true,
    xticks: SIZES.map((size) => [size, String(size)]),
    yticks: [0.1, 0.3, 1, 3, 10].map((value) => [value, String(value)]),
    xlabel: "G, siblings in a group (16 answers in all)", ylabel: "width / centre",
    title: "How wide an estimate is, for its length" });
  const G = Number(values.size);
  stage.line([[plot.x(G), plot.top], [plot.x(G), plot.top + plot.height]], stage.ink, { alpha: 0.4 });
  const ends = KINDS.map(([kind]) => plot.y(within(sizes[16][kind].ratio)));
  KINDS.forEach(([kind, name], i) => {
    const [colour, shape, dash] = LOOK[kind];
    const points = SIZES.map((size) => [size, within(sizes[size][kind].ratio)]);
    const wide = kind === "loo" ? 4 : 2;
    plot.line(points, stage[colour], { dash, width: wide, alpha: kind === "loo" ? 0.55 : 1 });
    plot.marks(points, stage[colour], { shape, radius: kind === "loo" ? 5 : 3.5 });
    const shown = ends[i] + (kind === "loo" ? -8 : kind === "mean" ? 8 : 0);
    const y = kind === "none" && Math.abs(ends[0] - ends[1]) < 26 ? ends[1] - 26 : shown;
    stage.text(name, plot.left + plot.width + 12, y, { colour: stage[colour] });
  });
}

// one row for each baseline: the histogram of its estimates around the true slope, 1
function clouds(stage, of, top) {
  const labels = stage.width < 700 ? 116 : 250;
  const row = 56;
  const plot = stage.plot({ left: labels, top: top + 44, width: stage.width - labels - 16,
    height: 3 * row, x: [LOW, HIGH], y: [0, 3], yticks: [],
    xlabel: labels < 200 ? "estimate, in true gradients; beyond: outermost bars"
      : "estimate, in lengths of the true gradient; the outermost bars hold what lies beyond" });
  stage.text(`${of.none.all.length} estimates of one gradient`, 6, top + 14, { bold: true });
  const bin = (HIGH - LOW) / BINS;
  const counts = Object.fromEntries(KINDS.map(([kind]) => [kind, new Array(BINS).fill(0)]));
  for (const [kind] of KINDS)
    for (const x of of[kind].all)
      counts[kind][Math.max(0, Math.min(BINS - 1, Math.floor((x - LOW) / bin)))]++;
  const most = Math.max(...KINDS.map(([kind]) => Math.max(...counts[kind])));
  KINDS.forEach(([kind, name], at) => {
    const [colour, shape] = LOOK[kind];
    const floor = 2 - at;
    counts[kind].forEach((n, i) => {
      if (n)
        plot.bar(LOW + i * bin, LOW + (i + 0.85) * bin, floor, floor + (0.82 * n) / most,
          stage[colour], { alpha: 0.8 });
    });
    stage.line([[plot.left, plot.y(floor)], [plot.left + plot.width, plot.y(floor)]], stage.ink,
      { alpha: 0.3 });
    const y = plot.y(floor + 0.5);
    stage.mark(12, y - (labels < 200 ? 12 : 0), stage[colour], { shape, radius: 5 });
    const told = of[kind];
    if (labels > 200) {
      stage.text(name, 24, y);
      stage.text(`${fixed(told.width)} / ${fixed(told.centre)} = ${fixed(told.ratio)}`,
        labels - 14, y, { align: "right", bold: true });
    } else {
      stage.text(name, 22, y - 12);
      stage.text(`${fixed(told.width)} / ${fixed(told.centre)}`, 22, y + 6, { bold: true });
    }
    const centre = plot.x(Math.max(LOW, Math.min(HIGH, told.centre)));
    stage.mark(centre, plot.y(floor) + 1, stage.ink, { shape: "triangle", radius: 5 });
  });
  if (labels > 200)
    stage.text("width / centre", labels - 14, top + 34, { align: "right", alpha: 0.85 });
  const truth = plot.x(1);
  stage.line([[truth, plot.top - 6], [truth, plot.top + 3 * row]], stage.ink, { dash: [5, 4] });
  stage.text("true gradient", truth + 6, plot.top - 8, { size: 11 });
}
