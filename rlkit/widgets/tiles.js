// The tile stepper. Frames come from Python (tile_steps.py); here they are only drawn.

const KINDS = { z: ["blue", "logit", "square"], p: ["purple", "log-prob", "circle"],
  g: ["orange", "gradient", "triangle"] };
const CHART = 190;

function lastFrame(values, data) {
  const run = data.runs[data.full === undefined ? "rows" : `${values.mode} ${values.tile}`];
  const at = Math.min(values.step, run.length - 1);
  return { run, at, frame: run[at] };
}

const bytesOf = (frame) => Object.values(frame.b).reduce((sum, n) => sum + n, 0);
const rowsOf = (data) => data.targets.length;
const isWide = (width) => width >= 1020;

// sizes of a cell, so that all columns have room in a narrow page too
function cells(width, data) {
  const H = data.weight ? data.weight[0].length : 0;
  const columns = 2 * H + data.cells.z[0].length + 4.2;
  const gaps = data.weight ? 3 : 1;
  const w = Math.min(43, (Math.min(width, 700) - 8 - 14 * gaps) / columns);
  const roomy = w >= 38;
  const font = roomy ? 11.5 : w >= 28 ? 10 : 9;
  return { w, h: 25, gap: roomy ? 22 : 12, font, digits: w >= 34 ? 2 : 1, H };
}

const bottom = (data) => 50 + 25 * (2 * data.weight[0].length + rowsOf(data)) + 2 * 24;

const explorer = {
  height: (width, data) => data.full === undefined ? 56 + 25 * rowsOf(data)
    : isWide(width) ? bottom(data) + 4 : bottom(data) + 40 + CHART,

  compute(values, data) {
    const { run, at, frame } = lastFrame(values, data);
    const seen = run.slice(0, at + 1).map(bytesOf);
    const numbers = { bytes: seen[at], most: Math.max(...seen) };
    const where = `step ${at} of ${run.length - 1}`;
    if (data.full === undefined)
      return { title: `Row by row, ${where}`, numbers, run, at, frame, notes: [`${frame.t}.`] };
    const pass = frame.f ? "forward pass" : "backward pass";
    return { numbers, run, at, frame, notes: [`Step ${at} of ${run.length - 1}, ${pass}. ${frame.t}.`],
      title: `${values.mode}: at most ${numbers.most} bytes so far, ${numbers.bytes} now; ` +
        `full logits need ${data.full}` };
  },

  draw(stage, result, values, data) {
    const { frame, run, at } = result;
    const cell = cells(stage.width, data);
    legend(stage, data);
    if (data.full === undefined) {
      grid(stage, frame, data, 4, 50, cell);
      return;
    }
    const right = head(stage, frame, data, cell);
    const box = isWide(stage.width)
      ? { left: right + 70, top: 50, width: stage.width - right - 84, height: bottom(data) - 96 }
      : { left: 44, top: bottom(data) + 34, width: stage.width - 60, height: CHART - 52 };
    curve(stage, box, run, at, data);
  },
};

// hidden | logits | maximum, sum, target | d_hidden, weight above, d_weight below
function head(stage, frame, data, cell) {
  const [V, N, H] = [data.weight.length, rowsOf(data), cell.H];
  const left = 4 + H * cell.w + cell.gap;
  const top = 50 + H * cell.h + 24;
  const turned = (rows) => Array.from({ length: H }, (_, h) => rows.map((row) => row[h]));
  const rows = (flat, size) => Array.from({ length: size }, (_, i) =>
    flat ? flat.slice(i * H, i * H + H) : Array(H).fill(null));
  matrix(stage, "weight", turned(data.weight), left, 50, cell);
  matrix(stage, "hidden", data.hidden, 4, top, cell);
  const right = grid(stage, frame, data, left, top, cell) + cell.gap;
  matrix(stage, "d_hidden", rows(frame.H, N), right, top, cell);
  matrix(stage, "d_weight", turned(rows(frame.W, V)), left, top + N * cell.h + 24, cell);
  return right + H * cell.w;
}

function matrix(stage, name, rows, left, top, cell) {
  stage.text(name, left, top - 10, { bold: true });
  rows.forEach((row, i) => row.forEach((x, j) => {
    const [a, b] = [left + j * cell.w, top + i * cell.h];
    stage.rect(a, b, cell.w - 2, cell.h - 2, stage.ink, { alpha: 0.07 });
    number(stage, x, a, b, cell);
  }));
}

function number(stage, x, left, top, cell) {
  const words = x === null || x === undefined ? "–" : fixed(x, cell.digits);
  stage.text(words, left + cell.w - (cell.w >= 28 ? 5 : 3), top + cell.h / 2 - 0.5,
    { align: "right", size: cell.font, alpha: x === null ? 0.5 : 1 });
}

// the logits, and what is known of each row; returns its right edge
function grid(stage, frame, data, left, top, cell) {
  const [N, V] = [rowsOf(data), data.cells.z[0].length];
  const edge = data.vocabulary === undefined ? V : data.vocabulary;
  for (let v = 0; v < V; v++)
    if (!data.weight)
      stage.text(v < edge ? String(v) : "edge", left + (v + 0.5) * cell.w, top - 10,
        { align: "center", size: cell.font, alpha: 0.8 });
  for (let n = 0; n < N; n++)
    for (let v = 0; v < V; v++)
      logit(stage, frame, data, n, v, left + v * cell.w, top + n * cell.h, cell, v >= edge);
  if (frame.r) {
    const [r0, r1, c0, c1] = frame.r;
    stage.rect(left + c0 * cell.w - 2, top + r0 * cell.h - 2, (c1 - c0) * cell.w + 2,
      (r1 - r0) * cell.h + 2, stage.ink, { outline: true, lineWidth: 2.5 });
  }
  let at = left + V * cell.w + cell.gap - 4;
  for (const [name, values] of [["max", frame.m], ["sum", frame.s], ["target", frame.y]]) {
    stage.text(name, at + 1.4 * cell.w - 5, top - 10, { align: "right", size: cell.font });
    for (let n = 0; n < N; n++)
      number(stage, values[n], at + 0.4 * cell.w, top + n * cell.h, cell);
    at += 1.4 * cell.w;
  }
  return at;
}

function logit(stage, frame, data, n, v, a, b, cell, beyond) {
  const letter = frame.k[n * data.cells.z[0].length + v];
  const kind = KINDS[letter];
  if (!kind) {
    stage.rect(a + 0.5, b + 0.5, cell.w - 3, cell.h - 3, stage.ink,
      { alpha: beyond ? 0.12 : 0.3, outline: true, lineWidth: 1 });
  } else {
    const colour = stage[kind[0]];
    stage.rect(a, b, cell.w - 2, cell.h - 2, colour, { alpha: stage.dark ? 0.35 : 0.2 });
    stage.mark(a + 4, b + 4, colour, { shape: kind[2], radius: 2.4 });
    const x = data.cells[letter][n][v];
    if (x === null)
      stage.text("−inf", a + cell.w - 5, b + cell.h / 2, { align: "right", size: cell.font });
    else number(stage, x, a, b, cell);
  }
  if (data.targets[n] === v) // the token that was chosen
    stage.line([[a + 3, b + cell.h - 4], [a + cell.w - 5, b + cell.h - 4]], stage.ink,
      { width: 2 });
}

function legend(stage, data) {
  let at = 4;
  for (const kind in data.cells) {
    const [colour, words, shape] = KINDS[kind];
    stage.mark(at + 5, 12, stage[colour], { shape, radius: 4 });
    at += 26 + stage.text(words, at + 14, 12);
  }
  stage.line([[at, 16], [at + 16, 16]], stage.ink, { width: 2 });
  at += 36 + stage.text("target", at + 21, 12);
  stage.rect(at, 5, 14, 14, stage.ink, { outline: true, lineWidth: 2 });
  stage.text("tile", at + 20, 12);
}

// bytes step by step: what has happened is drawn thick, what is to come thin
function curve(stage, box, run, at, data) {
  const bytes = run.map(bytesOf);
  const last = run.length - 1;
  const plot = stage.plot({ ...box, x: [0, last], y: [0, data.full * 1.12],
    xlabel: "step", ylabel: "bytes held" });
  const stair = (to) => {
    const path = [[0, bytes[0]]];
    for (let i = 1; i <= to; i++) path.push([i, bytes[i - 1]], [i, bytes[i]]);
    return path;
  };
  plot.line([[0, data.full], [last, data.full]], stage.ink, { dash: [6, 4], width: 1.2 });
  plot.text(`full logits ${data.full}`, 0.3, data.full, { base: "bottom", size: 11.5 });
  plot.line(stair(last), stage.blue, { width: 1.2, alpha: 0.6 });
  plot.line(stair(at), stage.blue, { width: 3 });
  plot.marks([[at, bytes[at]]], stage.blue, { radius: 5 });
  const turn = run.findIndex((frame) => !frame.f) - 0.5;
  if (turn < 0) return;
  plot.line([[turn, 0], [turn, data.full]], stage.ink, { alpha: 0.5, dash: [2, 3], width: 1 });
  const late = turn > 0.75 * last;
  stage.text(late ? "backward ▸" : "▸ backward", plot.x(turn) + (late ? -5 : 5), plot.y(0) - 9,
    { size: 11.5, align: late ? "right" : "left" });
}
