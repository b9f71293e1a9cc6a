// What the explorers share. An explorer's own file comes first and declares
//   const explorer = { height, compute, draw, click }
// (explorer.py says what each means). Data are untrusted text: all goes in through textContent.

const RANGES = { light: ["#0072b2", "#b34a00", "#00785a", "#8a3c78"],
  dark: ["#56b4e9", "#e69f00", "#3fcf9d", "#e39ccf"] };
const NAMES = ["blue", "orange", "green", "purple"];

// little-endian float32 bytes, as rlkit.widgets.explorer.floats packs them
function floats(view) {
  const out = new Float64Array(view ? Math.floor(view.byteLength / 4) : 0);
  for (let i = 0; i < out.length; i++) out[i] = view.getFloat32(4 * i, true);
  return out;
}

// a number in words: a true minus sign, no "-0.00"
function fixed(value, digits = 2) {
  if (!Number.isFinite(value)) return "–";
  const words = value.toFixed(digits);
  return Number(words) === 0 ? words.replace("-", "") : words.replace("-", "−");
}

function luminance(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b;
}

function tickStep(span, count) {
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough - 1e-12);
}

function ticks([low, high], count) {
  const step = tickStep(high - low, count);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++)
    out.push([i * step, fixed(i * step, digits)]);
  return out;
}

// --- drawing

class Stage {
  constructor(root, canvas, pointer) {
    const style = getComputedStyle(root);
    this.root = root;
    this.ink = style.color;
    this.dark = luminance(style.color) > 140; // light text means a dark page
    this.paper = this.dark ? "#111111" : "#ffffff";
    this.font = style.fontFamily;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    this.pointer = pointer; // [x, y] of the mouse on the canvas, or null
    const palette = RANGES[this.dark ? "dark" : "light"];
    NAMES.forEach((name, i) => (this[name] = palette[i]));
    const scale = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (canvas.width !== w) canvas.width = w;
    if (canvas.height !== h) canvas.height = h;
    this.ctx = canvas.getContext("2d");
    this.ctx.setTransform(scale, 0, 0, scale, 0, 0);
    this.ctx.clearRect(0, 0, this.width, this.height);
  }

  text(words, x, y, { colour = this.ink, align = "left", base = "middle", bold = false,
    size = 12, alpha = 1, mono = false } = {}) {
    const ctx = this.ctx;
    ctx.globalAlpha = alpha;
    ctx.font = `${bold ? 600 : 400} ${size}px ${mono ? "monospace" : this.font}`;
    ctx.fillStyle = colour;
    ctx.textAlign = align;
    ctx.textBaseline = base;
    ctx.fillText(words, x, y);
    ctx.globalAlpha = 1;
    return ctx.measureText(words).width;
  }

  line(path, colour = this.ink, { width = 1, dash = [], alpha = 1 } = {}) {
    const ctx = this.ctx;
    ctx.save();
    Object.assign(ctx, { globalAlpha: alpha, strokeStyle: colour, lineWidth: width });
    ctx.lineJoin = "round";
    ctx.setLineDash(dash);
    ctx.beginPath();
    path.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.stroke();
    ctx.restore();
  }

  rect(x, y, width, height, colour, { alpha = 1, outline = false, lineWidth = 1.5 } = {}) {
    const ctx = this.ctx;
    ctx.globalAlpha = alpha;
    ctx.fillStyle = ctx.strokeStyle = colour;
    ctx.lineWidth = lineWidth;
    if (outline) ctx.strokeRect(x, y, width, height);
    else ctx.fillRect(x, y, width, height);
    ctx.globalAlpha = 1;
  }

  // shape: circle, square, triangle, diamond: told apart where colours are not
  mark(x, y, colour, { shape = "circle", radius = 4, alpha = 1 } = {}) {
    const ctx = this.ctx;
    ctx.globalAlpha = alpha;
    ctx.fillStyle = colour;
    ctx.beginPath();
    if (shape === "circle") ctx.arc(x, y, radius, 0, 7);
    else if (shape === "square") ctx.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    else {
      const turn = shape === "diamond" ? 4 : 3;
      for (let i = 0; i < turn; i++) {
        const angle = (2 * Math.PI * i) / turn - Math.PI / 2;
        ctx.lineTo(x + 1.25 * radius * Math.cos(angle), y + 1.25 * radius * Math.sin(angle));
      }
    }
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  // -1 orange ... 0 the page ... 1 blue, and an ink that reads on it
  diverging(value) {
    const t = Math.max(-1, Math.min(1, value));
    const [end, page] = [t < 0 ? this.orange : this.blue, this.paper].map((hex) =>
      [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    const mix = end.map((c, i) => Math.round(page[i] + (c - page[i]) * Math.abs(t)));
    const fill = `rgb(${mix.join(", ")})`;
    return { fill, ink: luminance(fill) > 140 ? "#111111" : "#ffffff" };
  }

  plot(options) {
    return new Plot(this, options);
  }
}

// Axes in a rectangle of the canvas (left, top, width, height: without room for labels).
class Plot {
  constructor(stage, { left, top, width, height, x, y, logx = false, logy = false, xticks, yticks,
    xlabel = "", ylabel = "", title = "" }) {
    Object.assign(this, { stage, left, top, width, height });
    const scale = (from, to, low, high, log) => {
      const f = log ? Math.log : (v) => v;
      return (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
    };
    this.x = scale(left, left + width, ...x, logx);
    this.y = scale(top + height, top, ...y, logy);
    this.frame(xticks || ticks(x, width / 80), yticks || ticks(y, height / 38));
    const quiet = { alpha: 0.85 };
    stage.text(xlabel, left + width / 2, top + height + 32, { ...quiet, align: "center" });
    stage.text(ylabel, left - 34, top - 12, quiet);
    if (title) stage.text(title, left - 34, top - 30, { bold: true });
  }

  frame(xticks, yticks) {
    const { stage, left, top, width, height } = this;
    for (const [value, words] of yticks) {
      const y = this.y(value);
      stage.line([[left, y], [left + width, y]], stage.ink, { alpha: 0.14 });
      stage.text(words, left - 7, y, { align: "right" });
    }
    for (const [value, words] of xticks)
      stage.text(words, this.x(value), top + height + 14, { align: "center" });
    stage.line([[left, top + height], [left + width, top + height]], stage.ink, { alpha: 0.6 });
  }

  line(points, colour, options) {
    this.clipped(() => this.stage.line(points.map(([x, y]) => [this.x(x), this.y(y)]), colour,
      { width: 2, ...options }));
  }

  marks(points, colour, options) {
    for (const [x, y] of points) this.stage.mark(this.x(x), this.y(y), colour, options);
  }

  bar(x0, x1, y0, y1, colour, options) {
    const [a, b] = [this.x(x0), this.x(x1)];
    const [c, d] = [this.y(y0), this.y(y1)].sort((p, q) => p - q);
    this.stage.rect(Math.min(a, b), c, Math.abs(b - a), d - c, colour, options);
  }

  text(words, x, y, options) {
    return this.stage.text(words, this.x(x), this.y(y), options);
  }

  clipped(paint) {
    const ctx = this.stage.ctx;
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.left - 1, this.top - 1, this.width + 2, this.height + 2);
    ctx.clip();
    paint();
    ctx.restore();
  }
}

// --- controls: one per entry of the trait `controls`

const CONTROLS = { slider, choice, toggle };

function slider(spec, parent, change) {
  const row = make("label", "rlkit-control rlkit-slider", parent);
  make("span", "rlkit-label", row, spec.label);
  const input = make("input", "", row);
  Object.assign(input, { type: "range", min: spec.low, max: spec.high, step: spec.step });
  input.dataset.name = spec.name;
  const number = make("output", "rlkit-number", row);
  input.addEventListener("input", () => change(Number(input.value)));
  if (spec.buttons) {
    const step = (sign) => () => {
      const next = Number(input.value) + sign * spec.step;
      change(Math.max(spec.low, Math.min(spec.high, next)));
    };
    for (const [words, says, sign] of [["◀", "one back", -1], ["▶", "one on", 1]]) {
      const button = make("button", "rlkit-step", row, words);
      button.setAttribute("aria-label", `${spec.label}: ${says}`);
      button.addEventListener("click", step(sign));
    }
  }
  return (value) => {
    if (Number(input.value) !== value) input.value = value;
    number.textContent = fixed(value, spec.digits) + spec.unit;
    input.setAttribute("aria-valuetext", number.textContent);
  };
}

function choice(spec, parent, change) {
  const row = make("div", "rlkit-control rlkit-choice", parent);
  row.setAttribute("role", "radiogroup");
  row.setAttribute("aria-label", spec.label);
  make("span", "rlkit-label", row, spec.label);
  const group = `rlkit-${Math.random().toString(36).slice(2)}`;
  const inputs = spec.options.map((option) => {
    const label = make("label", "", row);
    const input = make("input", "", label);
    Object.assign(input, { type: "radio", name: group, value: option });
    input.dataset.name = spec.name;
    make("span", "", label, option);
    input.addEventListener("change", () => change(option));
    return input;
  });
  return (value) => inputs.forEach((input) => (input.checked = input.value === value));
}

function toggle(spec, parent, change) {
  const row = make("label", "rlkit-control rlkit-toggle", parent);
  const input = make("input", "", row);
  input.type = "checkbox";
  input.dataset.name = spec.name;
  make("span", "rlkit-label", row, spec.label);
  input.addEventListener("change", () => change(input.checked));
  return (value) => (input.checked = value);
}

// --- the page

function build(el) {
  const root = make("div", "rlkit-explorer", el);
  const title = make("div", "rlkit-title", root);
  const controls = make("div", "rlkit-controls", root);
  const canvas = make("canvas", "rlkit-canvas", root);
  canvas.setAttribute("role", "img");
  const table = make("table", "rlkit-table", root);
  const notes = make("div", "rlkit-notes", root);
  return { root, title, controls, canvas, table, notes };
}

function put(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

// {columns: [words], rows: [[words]]}: cells are reused, so that nothing jumps or loses selection
function fillTable(table, content) {
  table.hidden = !content;
  if (!content) return;
  const all = [content.columns, ...content.rows];
  while (table.rows.length > all.length) table.deleteRow(-1);
  all.forEach((cells, i) => {
    const row = table.rows[i] || table.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((words, j) => {
      put(row.cells[j] || make(i ? "td" : "th", "", row), String(words));
    });
  });
}

function fillNotes(parent, notes) {
  while (parent.children.length > notes.length) parent.lastChild.remove();
  notes.forEach((words, i) => put(parent.children[i] || make("div", "", parent), words));
}

function render({ model, el }) {
  const ui = build(el);
  let values = model.get("values");
  let pointer = null;
  let waiting = false;
  let result = {};
  let drawn = 0;
  const change = (changes) => {
    values = { ...values, ...changes };
    model.set("values", values);
    model.save_changes();
    later();
  };
  const setters = {};
  for (const spec of model.get("controls"))
    setters[spec.name] = CONTROLS[spec.kind](spec, ui.controls, (value) =>
      change({ [spec.name]: value }));
  for (const node of ui.controls.querySelectorAll("input, button"))
    node.dataset.lmSuppressShortcuts = "true"; // arrow keys move sliders, not JupyterLab's cells
  const paint = () => {
    waiting = false;
    const height = explorer.height;
    const wide = ui.root.clientWidth;
    const data = model.get("data");
    const high = typeof height === "function" ? height(wide, data) : height || 320;
    ui.canvas.style.height = `${high}px`;
    for (const name in setters) setters[name](values[name]);
    result = explorer.compute(values, data);
    put(ui.title, result.title || "");
    ui.canvas.setAttribute("aria-label", result.title || "");
    fillTable(ui.table, result.table);
    fillNotes(ui.notes, result.notes || []);
    if (ui.canvas.clientWidth >= 80)
      explorer.draw(new Stage(ui.root, ui.canvas, pointer), result, values, data);
    ui.root.dataset.drawn = ++drawn;
    ui.root.dataset.numbers = JSON.stringify(result.numbers || {});
    ui.root.dataset.values = JSON.stringify(values);
  };
  const later = () => {
    if (!waiting) requestAnimationFrame(paint); // several changes, one picture
    waiting = true;
  };
  const fresh = () => ((values = model.get("values")), later());
  model.on("change:values", fresh);
  model.on("change:data", later);
  const at = (event) => [event.offsetX, event.offsetY];
  ui.canvas.addEventListener("mousemove", (event) => ((pointer = at(event)), later()));
  ui.canvas.addEventListener("mouseleave", () => ((pointer = null), later()));
  ui.canvas.addEventListener("click", (event) => {
    const changes = explorer.click && explorer.click(...at(event), result, values);
    if (changes) change(changes);
  });
  const resized = new ResizeObserver(later);
  resized.observe(ui.root);
  const themed = new MutationObserver(later);
  themed.observe(document.body, { attributes: true });
  later();
  return () => {
    model.off("change:values", fresh);
    model.off("change:data", later);
    resized.disconnect();
    themed.disconnect();
  };
}

export default { render };
