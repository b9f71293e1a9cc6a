// The Memory Lab: switches, stacked areas on one fixed axis, the cards. It draws what the kernel
// sends and decides nothing. Every text goes in through textContent.

const MARGIN = { left: 54, right: 12, top: 24, bottom: 10 };
const ANSWER_WITHIN = 4000; // milliseconds
const POINT = "Point at the chart to read what is alive there.";
const QUIET = "Point at a switch to read what it does. Arrow keys move inside one.";

function say(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

let counter = 0;

// ---- building the page once

function build(el, send) {
  const root = make("div", "rlkit-run rlkit-lab", el);
  const head = make("div", "rlkit-lab-head", root);
  const bases = choice(head, "Setting", (value) => send({ base: value }));
  const sources = segments(head, "Source", (value) => send({ source: value }));
  const start = button(head, "Start", () => send({ button: "start" }));
  const stop = button(head, "Stop", () => send({ button: "stop" }));
  const reset = button(head, "All back", () => send({ button: "reset" }));
  const title = make("div", "rlkit-title", root);
  title.setAttribute("role", "heading");
  title.setAttribute("aria-level", "4");
  const badge = make("div", "rlkit-lab-badge", root);
  const body = make("div", "rlkit-lab-body", root);
  const switches = make("div", "rlkit-lab-switches", body);
  const main = make("div", "rlkit-lab-main", body);
  const status = make("div", "rlkit-status", main);
  status.setAttribute("role", "status");
  const bar = make("div", "", make("div", "rlkit-lab-bar", main));
  const canvas = make("canvas", "rlkit-canvas", main);
  canvas.setAttribute("role", "img");
  const read = make("div", "rlkit-lab-read", main);
  const guess = guessing(main, send);
  const below = make("div", "rlkit-lab-below", main);
  const legend = make("table", "rlkit-lab-legend", below);
  const side = make("div", "", below);
  const cause = make("div", "rlkit-lab-cause", side);
  const cards = make("table", "rlkit-lab-cards", body);
  const details = make("details", "", main);
  make("summary", "", details, "The chart as a table");
  const table = make("table", "rlkit-table", details);
  return { root, bases, sources, start, stop, reset, title, badge, switches, status, bar, canvas,
    read, guess, cause, legend, cards, table, help: null, controls: {}, looks: {} };
}

function keep(node) {
  node.dataset.lmSuppressShortcuts = "true"; // keys are for this control, not for JupyterLab
  return node;
}

function button(parent, words, press) {
  const node = keep(make("button", "rlkit-button", parent, words));
  node.addEventListener("click", press);
  return node;
}

function choice(parent, words, changed) {
  const label = make("label", "", parent, words);
  const node = keep(make("select", "", label));
  node.addEventListener("change", () => changed(node.value));
  return node;
}

function fillChoice(node, pairs, value) {
  const said = JSON.stringify(pairs);
  if (node.dataset.said !== said) {
    node.replaceChildren(...pairs.map(([key, words]) => {
      const option = make("option", "", null, words);
      option.value = key;
      return option;
    }));
    node.dataset.said = said;
  }
  if (document.activeElement !== node || node.value !== value) node.value = value;
}

function segments(parent, words, changed) {
  const field = make("div", "rlkit-lab-options", parent);
  field.setAttribute("role", "radiogroup");
  field.setAttribute("aria-label", words);
  field.dataset.name = `rlkit-lab-${++counter}`;
  field.changed = changed;
  return field;
}

function fillSegments(field, options, value) {
  const said = JSON.stringify(options.map((o) => [o.value, o.label]));
  if (field.dataset.said !== said) {
    field.replaceChildren();
    for (const each of options) {
      const label = make("label", "rlkit-lab-option", field);
      const input = keep(make("input", "", label));
      input.type = "radio";
      input.name = field.dataset.name;
      input.addEventListener("change", () => field.changed(each.value));
      make("span", "", label, each.label);
    }
    field.dataset.said = said;
  }
  options.forEach((each, i) => {
    const label = field.children[i];
    const input = label.firstChild;
    input.checked = each.value === value;
    input.disabled = Boolean(each.why);
    label.title = each.why || "";
    input.setAttribute("aria-label", each.why ? `${each.label}: ${each.why}` : each.label);
  });
}

function guessing(parent, send) {
  const row = make("div", "rlkit-lab-guess", parent);
  const label = make("label", "", row, "Guess the next peak");
  const input = keep(make("input", "", label));
  input.type = "text";
  input.inputMode = "decimal";
  input.setAttribute("aria-label", "your guess for the next peak, in GiB");
  make("span", "", label, "GiB");
  const words = make("output", "", row);
  input.addEventListener("input", () => send({ guess: input.value.trim().replace(",", ".") }));
  return { input, words };
}

// ---- words

function fillSwitches(ui, view, send) {
  const keys = view.switches.map((s) => s.key).join();
  if (ui.switches.dataset.keys !== keys) buildSwitches(ui, view, send);
  for (const each of view.switches) {
    const control = ui.controls[each.key];
    if (control.select) {
      fillChoice(control.node, each.options.map((o) => [o.value, o.label]), each.value);
      each.options.forEach((o, i) => (control.node.options[i].disabled = Boolean(o.why)));
    } else fillSegments(control.node, each.options, each.value);
  }
}

function buildSwitches(ui, view, send) {
  ui.switches.replaceChildren();
  ui.switches.dataset.keys = view.switches.map((s) => s.key).join();
  ui.help = make("div", "rlkit-lab-help", null, QUIET);
  ui.help.id = `rlkit-lab-help-${++counter}`;
  let group = null;
  for (const each of view.switches) {
    if (!group || group.name !== each.group) {
      group = { name: each.group, node: make("fieldset", "rlkit-lab-group", ui.switches) };
      make("legend", "", group.node, each.group);
    }
    const row = make("div", "rlkit-lab-switch", group.node);
    row.dataset.key = each.key;
    make("span", "rlkit-lab-name", row, each.label);
    const changed = (value) => send({ flip: { [each.key]: value } });
    const select = each.key === "model";
    let node;
    if (select) {
      node = choice(row, "", changed);
      node.parentNode.className = "";
      node.setAttribute("aria-label", each.label);
    } else node = segments(row, each.label, changed);
    node.setAttribute("aria-describedby", ui.help.id);
    const tell = (event) => {
      const why = event.target.closest && event.target.closest("label");
      const no = why && why.title ? ` ${why.title}.` : "";
      say(ui.help, `${each.label}: ${each.help}${no}`);
    };
    row.addEventListener("mouseover", tell);
    row.addEventListener("focusin", tell);
    row.addEventListener("mouseleave", () => say(ui.help, QUIET));
    ui.controls[each.key] = { node, select };
  }
  ui.switches.append(ui.help);
}

function rows(table, caption, columns, count) {
  const said = `${caption}|${columns.join()}|${count}`;
  if (table.dataset.said === said) return false;
  table.dataset.said = said;
  table.replaceChildren();
  make("caption", "", table, caption);
  const head = make("tr", "", make("thead", "", table));
  for (const words of columns) make("th", "", head, words).scope = "col";
  const body = make("tbody", "", table);
  for (let i = 0; i < count; i++) make("tr", "", body);
  return true;
}

function fillLegend(ui, view, paper) {
  const columns = ["", view.unit[0], "before", "change"];
  const fresh = rows(ui.legend, "At the peak", columns, view.legend.length);
  view.legend.forEach((each, i) => {
    const row = ui.legend.tBodies[0].rows[i];
    row.dataset.some = each.some;
    row.dataset.key = each.key;
    if (fresh) {
      const name = make("th", "", row);
      name.scope = "row";
      name.title = each.meaning;
      ui.looks[each.key] = make("canvas", "rlkit-lab-swatch", name);
      name.append(each.label);
      for (let k = 0; k < 3; k++) make("td", "", row);
    }
    [each.now, each.before, each.change].forEach((words, k) => say(row.cells[k + 1], words));
    swatch(ui.looks[each.key], each, paper);
  });
}

function swatch(canvas, look, paper) {
  if (canvas.dataset.paper === paper) return;
  canvas.dataset.paper = paper;
  [canvas.width, canvas.height] = [36, 22];
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = pattern(ctx, look, paper, 2);
  ctx.fillRect(0, 0, 36, 22);
}

function fillCards(ui, view, send) {
  const caption = "Does it fit?";
  const columns = ["", "GiB", "", "GiB"];
  if (rows(ui.cards, caption, columns, view.cards.length)) {
    const name = `rlkit-lab-${++counter}`;
    view.cards.forEach((each, i) => {
      const row = ui.cards.tBodies[0].rows[i];
      row.dataset.key = each.key;
      const label = make("label", "", make("th", "", row));
      label.parentNode.scope = "row";
      const input = keep(make("input", "", label));
      input.type = "radio";
      input.name = name;
      input.addEventListener("change", () => send({ card: each.key }));
      label.append(each.label);
      for (const kind of ["", "rlkit-lab-fits", ""]) make("td", kind, row);
    });
    const why = `each card without the ${view.reserve} that no plan sees`;
    make("td", "", make("tr", "", make("tfoot", "", ui.cards)), why).colSpan = 4;
  }
  view.cards.forEach((each, i) => {
    const row = ui.cards.tBodies[0].rows[i];
    say(row.cells[1], each.room.toFixed(1));
    say(row.cells[2], each.words);
    say(row.cells[3], each.rest || "");
    row.dataset.fits = each.fits;
  });
}

function fillCause(ui, view) {
  const said = JSON.stringify(view.cause);
  if (ui.cause.dataset.said === said) return;
  ui.cause.dataset.said = said;
  ui.cause.replaceChildren();
  for (const [name, words] of view.cause) {
    const row = make("div", "", ui.cause);
    row.title = words;
    make("span", "", row, name === "phase" ? "peak in" : name);
    make("bdi", "", make("code", "", row), words);
  }
}

function fillTable(ui, view) {
  const { caption, columns, rows: all } = view.table;
  rows(ui.table, caption, columns, all.length);
  all.forEach((cells, i) => {
    const row = ui.table.tBodies[0].rows[i];
    while (row.cells.length < cells.length) make(row.cells.length ? "td" : "th", "", row);
    cells.forEach((words, k) => say(row.cells[k], words));
  });
}

// what can be pressed; not while a press is under way, or it would jump back for a moment
function fillControls(ui, view, send) {
  fillChoice(ui.bases, view.bases.map(([key, words]) => [key, words]), view.base);
  fillSegments(ui.sources, view.sources.map(([value, label]) => ({ value, label })), view.source);
  fillSwitches(ui, view, send);
  for (const row of ui.cards.tBodies[0].rows)
    row.querySelector("input").checked = row.dataset.key === view.card;
}

function fillText(ui, view, send, paper) {
  ui.start.disabled = view.can_stop;
  ui.stop.disabled = !view.can_stop;
  ui.start.hidden = ui.stop.hidden = view.source !== "measured" || view.foreground;
  ui.reset.disabled = !view.wide;
  say(ui.title, view.title);
  ui.title.title = view.title;
  say(ui.badge, view.badge);
  ui.badge.title = view.badge;
  ui.badge.dataset.source = view.peak ? view.peak.source : "";
  say(ui.status, view.status);
  ui.status.classList.toggle("rlkit-failed", Boolean(view.error));
  ui.canvas.setAttribute("aria-label", `${view.title}. ${view.badge}`);
  say(ui.guess.words, view.guess_words);
  ui.guess.words.title = view.guess_words;
  if (view.guess === null && document.activeElement !== ui.guess.input) ui.guess.input.value = "";
  fillLegend(ui, view, paper);
  fillCards(ui, view, send);
  fillCause(ui, view);
  fillTable(ui, view);
}

// ---- drawing

// [x..., row..., row...] as little-endian float32 -> rows of equal length
function numbers(view, count) {
  if (!view || !view.byteLength) return null;
  const n = view.byteLength / 4 / count;
  return Array.from({ length: count }, (_, row) =>
    Float32Array.from({ length: n }, (_, i) => view.getFloat32(4 * (row * n + i), true)));
}

// hatching in the page's own background over a category's colour; scale: pixels of the device
function pattern(ctx, look, paper, scale) {
  const tile = document.createElement("canvas");
  const size = 8 * scale;
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = look.colour;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = pen.fillStyle = paper;
  pen.lineWidth = 1.3;
  pen.globalAlpha = 0.8;
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
  const made = ctx.createPattern(tile, "repeat");
  made.setTransform(new DOMMatrix().scale(1 / scale));
  return made;
}

function stageOf(canvas, view, style) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const ctx = canvas.getContext("2d");
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, width, height);
  const [w, h] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
  return { ctx, width, height, scale, ink: style.color, family: style.fontFamily,
    x: (share) => MARGIN.left + share * w,
    y: (gib) => MARGIN.top + (1 - gib / view.top) * h };
}

function text(stage, words, x, y, { align = "left", bold = false, halo = "" } = {}) {
  const { ctx } = stage;
  ctx.font = `${bold ? 600 : 400} 12px ${stage.family}`;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  if (halo) {
    const wide = ctx.measureText(words).width;
    const left = align === "right" ? x - wide : align === "center" ? x - wide / 2 : x;
    ctx.globalAlpha = 0.82;
    ctx.fillStyle = halo;
    ctx.fillRect(left - 3, y - 8, wide + 6, 16);
    ctx.globalAlpha = 1;
  }
  ctx.fillStyle = stage.ink;
  ctx.fillText(words, x, y);
}

function line(stage, points, { width = 1, alpha = 1, dash = [] } = {}) {
  const { ctx } = stage;
  ctx.save();
  ctx.globalAlpha = alpha;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.strokeStyle = stage.ink;
  ctx.lineJoin = "round";
  ctx.beginPath();
  points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.stroke();
  ctx.restore();
}

function amount(view, gib) {
  const [name, share, digits] = view.unit;
  return `${(gib * share).toFixed(digits)} ${name}`;
}

function frame(stage, view) {
  const [name, share] = view.unit;
  const top = view.top * share;
  const power = 10 ** Math.floor(Math.log10(top / 5));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= top / 7);
  let left = 0;
  view.bands.forEach(([phase, width], i) => {
    if (i % 2) {
      stage.ctx.globalAlpha = 0.05;
      stage.ctx.fillStyle = stage.ink;
      const x = stage.x(left);
      stage.ctx.fillRect(x, stage.y(view.top), stage.x(left + width) - x,
        stage.y(0) - stage.y(view.top));
      stage.ctx.globalAlpha = 1;
    }
    text(stage, phase, stage.x(left + width / 2), 10, { align: "center" });
    left += width;
  });
  for (let v = 0; v <= top + 1e-9; v += step) {
    const y = stage.y(v / share);
    line(stage, [[stage.x(0), y], [stage.x(1), y]], { alpha: v ? 0.12 : 0.6 });
    const digits = step < 1 ? 1 : 0;
    text(stage, v.toFixed(digits), MARGIN.left - 8, y, { align: "right" });
  }
  text(stage, name, 2, 10);
}

function areas(stage, view, table, paper) {
  const [x, ...layers] = table;
  const { ctx } = stage;
  let floor = new Float32Array(x.length);
  view.stack.forEach((key, k) => {
    const look = view.legend.find((each) => each.key === key);
    const roof = floor.map((v, i) => v + layers[k][i]);
    if (layers[k].some((v) => v > 0)) {
      ctx.beginPath();
      x.forEach((at, i) => ctx.lineTo(stage.x(at), stage.y(roof[i])));
      for (let i = x.length - 1; i >= 0; i--) ctx.lineTo(stage.x(x[i]), stage.y(floor[i]));
      ctx.closePath();
      ctx.fillStyle = pattern(ctx, look, paper, stage.scale);
      ctx.fill();
      ctx.strokeStyle = paper;
      ctx.lineWidth = 0.6;
      ctx.stroke();
    }
    floor = roof;
  });
  return floor;
}

function level(stage, view, gib, words, { bold = false, dash = [], right = true } = {}, paper) {
  const y = stage.y(gib);
  line(stage, [[stage.x(0), y], [stage.x(1), y]], { width: bold ? 2 : 1, alpha: bold ? 0.9 : 0.45,
    dash });
  const [x, align] = right ? [stage.x(1) - 6, "right"] : [stage.x(0) + 6, "left"];
  text(stage, words, x, y - 10, { align, bold, halo: paper });
}

function cardLines(stage, view, paper) {
  const inside = view.cards.filter((c) => c.room <= view.top);
  const chosen = view.cards.find((c) => c.key === view.card);
  const taken = [];
  const labels = [...inside].sort((a, b) => (b === chosen) - (a === chosen));
  for (const card of labels) {
    const y = stage.y(card.room);
    const free = taken.every((other) => Math.abs(other - y) > 17);
    if (card !== chosen && !free) continue;
    taken.push(y);
    const together = inside.filter((c) => c !== chosen && Math.abs(stage.y(c.room) - y) <= 17);
    const names = card === chosen ? [card.label] : together.map((c) => c.label);
    const fits = card === chosen && card.words ? `: ${card.words}` : "";
    level(stage, view, card.room, names.join(", ") + fits, { bold: card === chosen }, paper);
  }
  if (chosen && chosen.room > view.top)
    text(stage, `${chosen.label}, ${chosen.room.toFixed(1)} GiB: ${chosen.words} ↑`,
      stage.x(0) + 6, stage.y(view.top) + 10, { bold: true, halo: paper });
}

function peakMark(stage, view, mark, words, bold, paper) {
  const [x, y] = [stage.x(mark.x), stage.y(mark.y)];
  const { ctx } = stage;
  ctx.beginPath();
  ctx.arc(x, y, bold ? 4.5 : 3.5, 0, 7);
  ctx.fillStyle = bold ? stage.ink : paper;
  ctx.strokeStyle = stage.ink;
  ctx.lineWidth = 1.5;
  ctx.fill();
  ctx.stroke();
  const right = mark.x < 0.7;
  const low = Math.max(y - 13, stage.y(view.top) + 9);
  text(stage, words, x + (right ? 9 : -9), low, { align: right ? "left" : "right", bold,
    halo: paper });
}

function draw(ui, view, now, before, hover, paper, style) {
  const stage = stageOf(ui.canvas, view, style);
  if (stage.width < 80 || !view.top) return;
  frame(stage, view);
  const table = numbers(now, view.stack.length + 1);
  const total = table && areas(stage, view, table, paper);
  const ghost = numbers(before, 2);
  if (ghost) {
    const outline = Array.from(ghost[0], (x, i) => [stage.x(x), stage.y(ghost[1][i])]);
    stage.ctx.strokeStyle = paper;
    stage.ctx.lineWidth = 3.5;
    stage.ctx.beginPath();
    outline.forEach(([x, y]) => stage.ctx.lineTo(x, y));
    stage.ctx.stroke();
    line(stage, outline, { width: 1.6, dash: [5, 4] });
  }
  cardLines(stage, view, paper);
  const guess = view.guess !== null ? view.guess : view.guessed;
  if (guess !== null && guess <= view.top)
    level(stage, view, guess, `your guess ${amount(view, guess)}`,
      { dash: [2, 3], right: false, bold: true }, paper);
  if (view.ghost)
    peakMark(stage, view, view.ghost, `before ${amount(view, view.ghost.y)}`, false, paper);
  if (view.peak) peakMark(stage, view, view.peak, `peak ${amount(view, view.peak.y)}`, true, paper);
  readout(ui, stage, view, table, total, hover);
}

function readout(ui, stage, view, table, total, hover) {
  if (hover === null || !table) return say(ui.read, POINT);
  const share = (hover - stage.x(0)) / (stage.x(1) - stage.x(0));
  let at = 0;
  table[0].forEach((x, i) => {
    if (Math.abs(x - share) < Math.abs(table[0][at] - share)) at = i;
  });
  let left = 0;
  const band = view.bands.find(([, width]) => (left += width) >= table[0][at]) || [""];
  const parts = view.stack.map((key, k) => [key, table[k + 1][at]]).filter(([, v]) => v > 0);
  parts.sort((a, b) => b[1] - a[1]);
  const named = parts.slice(0, 6).map(([key, v]) =>
    `${view.legend.find((each) => each.key === key).label} ${amount(view, v)}`);
  say(ui.read, `${band[0]}: ${amount(view, total[at])} = ${named.join(" + ")}`);
  const x = stage.x(table[0][at]);
  line(stage, [[x, stage.y(view.top)], [x, stage.y(0)]], { alpha: 0.6 });
}

function paperOf(root) {
  return isDark(root) ? "#1b1b1b" : "#ffffff";
}

// ---- the widget

function render({ model, el }) {
  let hover = null;
  let waiting = false;
  let unanswered = null; // how many presses the kernel had counted before one that may be lost
  let due = 0; // how many presses the kernel will have counted when it has heard all of ours
  let planned = null; // when the page heard of the plan that is awaited
  const send = (message) => {
    const sent = model.get("view").presses;
    due = Math.max(due, sent) + 1;
    model.send(message);
    setTimeout(() => ((unanswered = sent), (due = 0), later()), ANSWER_WITHIN);
  };
  const ui = build(el, send);
  const paint = () => {
    waiting = false;
    const view = model.get("view");
    // a long notebook takes pages that are scrolled away out of the document, without a colour
    if (!view.switches || !ui.root.isConnected) return;
    const paper = paperOf(ui.root);
    fillText(ui, view, send, paper);
    if (view.presses >= due) fillControls(ui, view, send);
    if (view.presses === unanswered) say(ui.status, view.unanswered);
    draw(ui, view, model.get("now"), model.get("before"), hover, paper, getComputedStyle(ui.root));
    ui.root.dataset.state = view.state;
    ui.root.dataset.source = view.peak ? view.peak.source : "";
    ui.root.dataset.peak = view.peak ? view.peak.y : "";
    ui.root.dataset.ghost = view.ghost ? view.ghost.y : "";
    ui.root.dataset.presses = view.presses;
    ui.root.dataset.drawn = 1 + Number(ui.root.dataset.drawn || 0);
  };
  const later = () => {
    if (!waiting) requestAnimationFrame(paint); // several changes, one picture
    waiting = true;
  };
  const heard = () => {
    const { progress } = model.get("view");
    planned = progress ? { ...progress, at: performance.now() } : null;
    later();
  };
  const tick = setInterval(() => {
    let share = 0;
    if (planned) {
      const seconds = planned.seconds + (performance.now() - planned.at) / 1000;
      share = 1 - Math.exp((-1.6 * seconds) / planned.usual); // never quite there, for it is a guess
      say(ui.status, `planning this setting: ${seconds.toFixed(0)} s; the one shown took ` +
        `${planned.usual.toFixed(0)} s where it was made, and stays until then`);
    }
    ui.bar.style.width = `${100 * share}%`;
  }, 250);
  const events = ["change:now", "change:before"];
  model.on("change:view", heard);
  events.forEach((event) => model.on(event, later));
  ui.canvas.addEventListener("mousemove", (event) => ((hover = event.offsetX), later()));
  ui.canvas.addEventListener("mouseleave", () => ((hover = null), later()));
  const resized = new ResizeObserver(later);
  resized.observe(ui.canvas);
  const themed = new MutationObserver(later);
  themed.observe(document.body, { attributes: true });
  heard();
  return () => {
    clearInterval(tick);
    model.off("change:view", heard);
    events.forEach((event) => model.off(event, later));
    resized.disconnect();
    themed.disconnect();
  };
}

export default { render };
