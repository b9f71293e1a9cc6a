// Live bytes of several ranks, side by side on one axis, and the reward below. It draws what the
// kernel sends and decides nothing. Every text goes in through textContent or onto the canvas.

const LEFT = 52;
const RIGHT = 8;
const GAP = 14;
const TOP = 42;
const STRIP = 74; // the reward, with the labels of the steps
const ANSWER_WITHIN = 4000; // milliseconds

function build(el) {
  const root = make("div", "rlkit-run rlkit-ranks", el);
  const title = make("div", "rlkit-title", root);
  const bar = make("div", "rlkit-bar", root);
  const start = make("button", "rlkit-button", bar, "Start");
  const stop = make("button", "rlkit-button", bar, "Stop");
  const status = make("span", "rlkit-status", bar);
  status.setAttribute("role", "status");
  const body = make("div", "rlkit-body", root);
  const left = make("div", "rlkit-left", body);
  const canvas = make("canvas", "rlkit-canvas", left);
  canvas.setAttribute("role", "img");
  const read = make("div", "rlkit-read", left);
  const right = make("div", "rlkit-right", body);
  return { root, title, start, stop, status, canvas, read, right };
}

// rows of x, phase, one number for each category, as little-endian float32
function unpack(view, columns) {
  const rows = [];
  const size = 4 * columns;
  for (let at = 0; view && at + size <= view.byteLength; at += size)
    rows.push(Array.from({ length: columns }, (_, i) => view.getFloat32(at + 4 * i, true)));
  return rows;
}

// hatching in the page's own background over a category's colour
function pattern(ctx, look, paper) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = look.colour;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = pen.fillStyle = paper;
  pen.lineWidth = 1.4;
  pen.globalAlpha = 0.75;
  const lines = { "/": [[0, 8, 8, 0], [-2, 2, 2, -2], [6, 10, 10, 6]],
    "\\": [[0, 0, 8, 8], [6, -2, 10, 2], [-2, 6, 2, 10]], "-": [[0, 4, 8, 4]] };
  lines.x = [...lines["/"], ...lines["\\"]];
  for (const [a, b, c, d] of lines[look.hatch] || []) {
    pen.beginPath();
    pen.moveTo(a, b);
    pen.lineTo(c, d);
    pen.stroke();
  }
  if (look.hatch === ".") pen.fillRect(3, 3, 2, 2);
  return ctx.createPattern(tile, "repeat");
}

function text(ctx, words, x, y, colour, align = "left", bold = false) {
  ctx.font = `${bold ? 600 : 400} 12px ${ctx.family}`;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.fillStyle = colour;
  ctx.fillText(words, x, y);
}

function line(ctx, path, colour, alpha = 1, width = 1, dash = []) {
  ctx.save();
  Object.assign(ctx, { globalAlpha: alpha, strokeStyle: colour, lineWidth: width });
  ctx.setLineDash(dash);
  ctx.beginPath();
  path.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.stroke();
  ctx.restore();
}

function layout(canvas, view) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const size = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== size[0]) canvas.width = size[0];
  if (canvas.height !== size[1]) canvas.height = size[1];
  const count = view.panels.length;
  const panel = (width - LEFT - RIGHT - GAP * (count - 1)) / count;
  const bottom = height - STRIP;
  return {
    width, height, scale, panel, bottom,
    x: (i, step) => LEFT + i * (panel + GAP) + (panel * step) / view.panels[i].steps,
    y: (bytes) => bottom - ((bottom - TOP) * bytes) / view.top,
    reward: (value) => height - 24 - (STRIP - 44) * value,
  };
}

function axes(ctx, box, view, ink) {
  text(ctx, view.unit, 2, 10, ink);
  for (let i = 0; i <= 4; i++) {
    const bytes = (view.top * i) / 4;
    line(ctx, [[LEFT, box.y(bytes)], [box.width - RIGHT, box.y(bytes)]], ink, i ? 0.14 : 0.6);
    text(ctx, view.ticks[i], LEFT - 8, box.y(bytes), ink, "right");
  }
  view.panels.forEach((panel, i) => {
    text(ctx, panel.name, box.x(i, 0), 28, ink, "left", true);
    const every = Math.max(1, Math.ceil(panel.steps / Math.max(2, box.panel / 34)));
    for (let step = 0; step <= panel.steps; step += every) {
      const align = step === 0 ? "left" : step === panel.steps ? "right" : "center";
      text(ctx, String(step), box.x(i, step), box.height - 10, ink, align);
    }
  });
  text(ctx, view.xlabel, 2, box.height - 10, ink);
  text(ctx, "reward", 2, box.reward(0.5), ink);
}

function areas(ctx, box, view, rows, i, fills, paper) {
  const mine = rows.filter((row) => row[0] === i);
  if (!mine.length) return;
  const floor = mine.map(() => 0);
  const edge = () => mine.flatMap((row, n) => { // each sample holds until the next one
    const next = mine[Math.min(n + 1, mine.length - 1)];
    return [[box.x(i, row[1]), box.y(floor[n])], [box.x(i, next[1]), box.y(floor[n])]];
  });
  view.looks.forEach((look, k) => {
    const under = edge();
    mine.forEach((row, n) => (floor[n] += row[3 + k]));
    const over = edge();
    ctx.beginPath();
    [...over, ...under.reverse()].forEach(([x, y], n) => (n ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.fillStyle = fills[k];
    ctx.fill();
    if (mine.some((row) => row[3 + k] > view.top / 200)) tops(ctx, over, paper);
  });
}

// level edges alone: upright ones would hide a peak that is a few pixels wide
function tops(ctx, edge, paper) {
  ctx.strokeStyle = paper;
  ctx.lineWidth = 0.8;
  ctx.beginPath();
  for (let n = 0; n + 1 < edge.length; n += 2) {
    ctx.moveTo(...edge[n]);
    ctx.lineTo(...edge[n + 1]);
  }
  ctx.stroke();
}

function rewards(ctx, box, view, ink) {
  view.panels.forEach((panel, i) => {
    for (const value of [0, 1])
      line(ctx, [[box.x(i, 0), box.reward(value)], [box.x(i, panel.steps), box.reward(value)]],
        ink, value ? 0.14 : 0.6);
    line(ctx, panel.rewards.map(([step, value]) => [box.x(i, step), box.reward(value)]), ink, 1, 1.6);
    const last = panel.rewards[panel.rewards.length - 1];
    if (last) text(ctx, last[1].toFixed(2), box.x(i, panel.steps), box.reward(1) - 8, ink, "right");
  });
}

function marks(ctx, box, view, ink) {
  view.panels.forEach((panel, i) => {
    for (const { bytes, name } of view.lines) {
      const [from, to] = [box.x(i, 0), box.x(i, panel.steps)];
      line(ctx, [[from, box.y(bytes)], [to, box.y(bytes)]], ink, 0.9, 1.4, [6, 4]);
      text(ctx, name, to - 2, box.y(bytes) - 8, ink, "right");
    }
  });
}

function nearest(rows, box, hover) {
  let best = null;
  for (const row of rows) {
    const away = Math.abs(box.x(row[0], row[1]) - hover);
    if (!best || away < best.away) best = { row, away };
  }
  return best && best.away < 30 ? best.row : null;
}

function readout(ui, view, row) {
  const amount = (bytes) => (bytes / 1e6).toFixed(1);
  const total = row.slice(3).reduce((a, b) => a + b, 0);
  const parts = view.looks.map((look, k) => [look.label, row[3 + k]]);
  const large = parts.filter(([, bytes]) => bytes > total / 50).reverse();
  ui.read.textContent = `${view.panels[row[0]].name}, step ${Math.floor(row[1]) + 1}, `
    + `${view.phases[row[2]]}: ${amount(total)} MB = `
    + large.map(([name, bytes]) => `${name} ${amount(bytes)}`).join(" + ");
}

function draw(ui, view, rows, hover) {
  const box = layout(ui.canvas, view);
  if (box.width < 120) return; // hidden, or not laid out yet
  const style = getComputedStyle(ui.root);
  const [ink, paper] = [style.color, isDark(ui.root) ? "#111111" : "#ffffff"];
  const ctx = ui.canvas.getContext("2d");
  ctx.family = style.fontFamily;
  ctx.setTransform(box.scale, 0, 0, box.scale, 0, 0);
  ctx.clearRect(0, 0, box.width, box.height);
  axes(ctx, box, view, ink);
  const fills = view.looks.map((look) => pattern(ctx, look, paper));
  view.panels.forEach((_, i) => areas(ctx, box, view, rows, i, fills, paper));
  rewards(ctx, box, view, ink);
  marks(ctx, box, view, ink);
  ui.read.textContent = view.hint;
  const row = hover === null ? null : nearest(rows, box, hover);
  if (!row) return;
  line(ctx, [[box.x(row[0], row[1]), TOP], [box.x(row[0], row[1]), box.bottom]], ink, 0.6);
  readout(ui, view, row);
}

function swatch(parent, look, paper) {
  const canvas = make("canvas", "rlkit-patch", parent);
  canvas.width = 32;
  canvas.height = 24;
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = pattern(ctx, look, paper);
  ctx.fillRect(0, 0, 32, 24);
}

function fillTable(ui, view) {
  ui.right.replaceChildren();
  const table = make("table", "rlkit-table", ui.right);
  make("caption", "", table, view.table.caption);
  const head = make("tr", "", make("thead", "", table));
  for (const name of view.table.columns) make("th", "", head, name);
  const body = make("tbody", "", table);
  const paper = isDark(ui.root) ? "#111111" : "#ffffff";
  for (const { look, meaning, cells } of view.table.rows) {
    const row = make("tr", look ? "" : "rlkit-sum", body);
    row.title = meaning;
    const name = make("td", "rlkit-name", row);
    if (look) swatch(name, look, paper);
    make("span", "", name, cells[0]);
    for (const cell of cells.slice(1)) make("td", "rlkit-number", row, cell);
  }
}

function fillText(ui, view) {
  ui.title.textContent = view.title;
  ui.canvas.setAttribute("aria-label", view.title);
  ui.status.textContent = view.status;
  ui.status.classList.toggle("rlkit-failed", view.state === "failed");
  ui.start.hidden = ui.stop.hidden = !view.buttons;
  ui.start.disabled = !view.can_start;
  ui.stop.disabled = !view.can_stop;
  fillTable(ui, view);
}

function render({ model, el }) {
  const ui = build(el);
  let hover = null;
  let waiting = false;
  let unanswered = null; // how many presses the kernel had counted before one that may be lost
  const paint = () => {
    waiting = false;
    if (!ui.root.isConnected) return; // out of the page: it has no colours and no size
    const view = model.get("view");
    const rows = unpack(model.get("rows"), 3 + view.looks.length);
    fillText(ui, view);
    if (view.presses === unanswered) ui.status.textContent = view.unanswered;
    draw(ui, view, rows, hover);
    ui.root.dataset.state = view.state;
    ui.root.dataset.points = rows.length;
    const last = view.panels.map((_, i) => rows.filter((row) => row[0] === i).pop());
    const bytes = last.map((row) => (row ? row.slice(3).reduce((a, b) => a + b, 0) : 0));
    ui.root.dataset.bytes = bytes.map(Math.round).join(" ");
  };
  const later = () => {
    if (!waiting) requestAnimationFrame(paint); // several changes, one picture
    waiting = true;
  };
  const events = ["change:view", "change:rows"];
  events.forEach((event) => model.on(event, later));
  const press = (button) => {
    const sent = model.get("view").presses;
    model.send({ press: button });
    setTimeout(() => ((unanswered = sent), later()), ANSWER_WITHIN);
  };
  ui.start.addEventListener("click", () => press("start"));
  ui.stop.addEventListener("click", () => press("stop"));
  ui.canvas.addEventListener("mousemove", (event) => ((hover = event.offsetX), later()));
  ui.canvas.addEventListener("mouseleave", () => ((hover = null), later()));
  const resized = new ResizeObserver(later);
  resized.observe(ui.canvas);
  const themed = new MutationObserver(later);
  themed.observe(document.body, { attributes: true });
  later();
  return () => {
    events.forEach((event) => model.off(event, later));
    resized.disconnect();
    themed.disconnect();
  };
}

export default { render };
