// The live curve: buttons, a canvas, and a few completions. It draws what the kernel sends and
// decides nothing. Completions are untrusted: every text goes in through textContent.

const MARGIN = { left: 46, right: 16, top: 28, bottom: 44 };
const LIGHT = { accuracy: "#0072b2", reward: "#b34a00" }; // apart in hue and in lightness, also
const DARK = { accuracy: "#56b4e9", reward: "#e69f00" }; // without colour vision

const ANSWER_WITHIN = 4000; // milliseconds

function build(el) {
  const root = make("div", "rlkit-run", el);
  const title = make("div", "rlkit-title", root);
  const bar = make("div", "rlkit-bar", root);
  const start = make("button", "rlkit-button", bar, "Start");
  const stop = make("button", "rlkit-button", bar, "Stop");
  const status = make("span", "rlkit-status", bar);
  status.setAttribute("role", "status");
  const body = make("div", "rlkit-body", root);
  const left = make("div", "rlkit-left", body);
  const legend = make("div", "rlkit-legend", left);
  const canvas = make("canvas", "rlkit-canvas", left);
  canvas.setAttribute("role", "img");
  const right = make("div", "rlkit-right", body);
  const notes = make("div", "rlkit-notes", root);
  return { root, title, start, stop, status, legend, canvas, right, notes };
}

// [x0, y0, x1, y1, ...] as little-endian float32 -> [[x, y], ...]
function points(view) {
  if (!view || !view.byteLength) return [];
  const out = [];
  for (let at = 0; at + 8 <= view.byteLength; at += 8)
    out.push([view.getFloat32(at, true), view.getFloat32(at + 4, true)]);
  return out;
}

function tickStep(span, count) {
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
}

function frame(ctx, box, view, ink) {
  const [low, high] = view.ylim;
  ctx.font = box.font;
  ctx.lineWidth = 1;
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  const yStep = tickStep(high - low, 5);
  const digits = Math.max(0, -Math.floor(Math.log10(yStep) + 1e-9));
  for (let y = Math.ceil(low / yStep) * yStep; y <= high + 1e-9; y += yStep) {
    line(ctx, [[box.x(0), box.y(y)], [box.x(view.steps), box.y(y)]], ink, 0.14);
    text(ctx, y.toFixed(digits), MARGIN.left - 8, box.y(y), ink);
  }
  ctx.textAlign = "center";
  ctx.textBaseline = "top";
  const xStep = Math.max(1, tickStep(view.steps, box.width / 80));
  for (let x = 0; x <= view.steps + 1e-9; x += xStep)
    text(ctx, String(x), box.x(x), box.y(low) + 8, ink);
  line(ctx, [[box.x(0), box.y(low)], [box.x(view.steps), box.y(low)]], ink, 0.6);
  text(ctx, view.xlabel, box.x(view.steps / 2), box.y(low) + 26, ink);
  ctx.textAlign = "left";
  text(ctx, view.ylabel, 2, 4, ink);
}

function text(ctx, words, x, y, colour) {
  ctx.fillStyle = colour;
  ctx.fillText(words, x, y);
}

function line(ctx, path, colour, alpha = 1, dash = []) {
  ctx.save();
  ctx.globalAlpha = alpha;
  ctx.setLineDash(dash);
  ctx.strokeStyle = colour;
  ctx.lineJoin = "round";
  ctx.beginPath();
  path.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.stroke();
  ctx.restore();
}

function dots(ctx, path, colour, radius) {
  ctx.fillStyle = colour;
  for (const [x, y] of path) {
    ctx.beginPath();
    ctx.arc(x, y, radius, 0, 7);
    ctx.fill();
  }
}

function layout(canvas, view, font) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const [low, high] = view.ylim;
  const inner = { w: width - MARGIN.left - MARGIN.right, h: height - MARGIN.top - MARGIN.bottom };
  return {
    width, height, scale, font: `12px ${font}`,
    x: (step) => MARGIN.left + (step / view.steps) * inner.w,
    y: (value) => MARGIN.top + (1 - (value - low) / (high - low)) * inner.h,
  };
}

function draw(ui, view, series, hover) {
  const style = getComputedStyle(ui.root);
  const colours = isDark(ui.root) ? DARK : LIGHT;
  const box = layout(ui.canvas, view, style.fontFamily);
  if (box.width < 80) return; // hidden, or not laid out yet
  const ctx = ui.canvas.getContext("2d");
  ctx.setTransform(box.scale, 0, 0, box.scale, 0, 0);
  ctx.clearRect(0, 0, box.width, box.height);
  frame(ctx, box, view, style.color);
  const place = (path) => path.map(([x, y]) => [box.x(x), box.y(y)]);
  if (view.guess !== null) {
    ctx.lineWidth = 1.5;
    line(ctx, place([[0, view.guess], [view.steps, view.guess]]), style.color, 0.9, [7, 5]);
  }
  ctx.lineWidth = 1.25;
  line(ctx, place(series.reward), colours.reward);
  ctx.lineWidth = 2.5;
  line(ctx, place(series.accuracy), colours.accuracy);
  dots(ctx, place(series.accuracy), colours.accuracy, 3.5);
  if (hover !== null) readout(ctx, box, view, series, hover, style.color);
}

function nearest(path, step) {
  return path.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a), path[0]);
}

function readout(ctx, box, view, series, hover, ink) {
  const all = [...series.accuracy, ...series.reward];
  if (!all.length) return;
  const step = nearest(all, ((hover - box.x(0)) / (box.x(view.steps) - box.x(0))) * view.steps)[0];
  const words = [`step ${step}`];
  for (const { key, name } of view.legend) {
    const at = (series[key] || []).find((p) => p[0] === step);
    if (at) words.push(`${name} ${at[1].toFixed(2)}`);
  }
  ctx.lineWidth = 1;
  line(ctx, [[box.x(step), MARGIN.top], [box.x(step), box.y(view.ylim[0])]], ink, 0.5);
  ctx.textAlign = "right";
  text(ctx, words.join("   "), box.width - MARGIN.right, 4, ink);
}

function fillLegend(ui, view) {
  ui.legend.replaceChildren();
  for (const { key, name, value } of view.legend) {
    const item = make("span", "rlkit-key", ui.legend);
    make("span", `rlkit-swatch rlkit-${key}`, item);
    make("span", "", item, value === null ? name : `${name} ${value}`);
  }
  const colours = isDark(ui.root) ? DARK : LIGHT;
  for (const key in colours) ui.root.style.setProperty(`--rlkit-${key}`, colours[key]);
}

function fillTable(ui, view) {
  ui.right.replaceChildren();
  ui.right.hidden = !view.table.rows.length;
  const table = make("table", "rlkit-table", ui.right);
  make("caption", "", table, view.table.caption);
  const head = make("tr", "", make("thead", "", table));
  for (const name of view.table.columns) make("th", "", head, name);
  const rows = make("tbody", "", table);
  for (const cells of view.table.rows) {
    const row = make("tr", "", rows);
    for (const { text, mark } of cells) {
      const cell = make("td", "", row, text);
      if (mark) make("span", `rlkit-mark rlkit-${mark}`, cell, mark);
    }
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
  fillLegend(ui, view);
  fillTable(ui, view);
  ui.notes.replaceChildren(...view.notes.map((note) => make("div", "rlkit-note", null, note)));
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
    const series = {};
    for (const key of ["accuracy", "reward"]) series[key] = points(model.get(key));
    fillText(ui, view);
    if (view.presses === unanswered) ui.status.textContent = view.unanswered;
    draw(ui, view, series, hover);
    ui.root.dataset.points = series.accuracy.length + series.reward.length;
    ui.root.dataset.accuracyPoints = series.accuracy.length;
    ui.root.dataset.state = view.state;
  };
  const later = () => {
    if (!waiting) requestAnimationFrame(paint); // several changes, one picture
    waiting = true;
  };
  const events = ["change:view", "change:accuracy", "change:reward"];
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
