// The GAE explorer: a completion as a strip of tokens, what the critic says of it, and whom the
// advantages praise or blame. All of it is computed here, so that a slider answers at once.

const Y = [-1.2, 1.2];

// [delta_t + gamma lam A_t+1], and the rewards of single tokens
function estimate(row, values) {
  const T = row.values.length;
  const beta = values.beta || 0;
  const rewards = row.values.map((_, t) =>
    (t === T - 1 ? row.reward : 0) - (row.kl ? beta * row.kl[t] : 0));
  const advantages = new Array(T);
  for (let t = T - 1, next = 0, after = 0; t >= 0; t--) {
    const delta = rewards[t] + values.gamma * after - row.values[t];
    next = advantages[t] = delta + values.gamma * values.lam * next;
    after = row.values[t];
  }
  return { rewards, advantages };
}

// the token whose arrival lowers the value most
function largestFall(values) {
  let at = 0;
  for (let t = 1; t < values.length - 1; t++)
    if (values[t] - values[t + 1] > values[at] - values[at + 1]) at = t;
  return { at, fall: values.length > 1 ? values[at] - values[at + 1] : 0 };
}

// what a cell of the strip shows, and -1 ... 1 for its colour
const SHOWS = {
  advantage: (row, t, found) => [found.advantages[t], found.advantages[t]],
  "value after": (row, t) => (t + 1 < row.values.length
    ? [row.values[t + 1], 2 * row.values[t + 1] - 1] : [NaN, 0]),
  ratio: (row, t) => [row.ratio[t], Math.log(Math.max(row.ratio[t], 1e-6)) / Math.log(2)],
  entropy: (row, t) => [row.entropy[t], row.entropy[t]],
  KL: (row, t) => [row.kl[t], 2 * row.kl[t]],
};

const rowOf = (values, data) => data.rows[(values.completion || 1) - 1];

const explorer = {
  height: 372,

  compute(values, data) {
    const row = rowOf(values, data);
    const found = estimate(row, values);
    const { at, fall } = largestFall(row.values);
    const A = found.advantages;
    const siblings = row.baseline === null ? "" : `, RLOO's ${fixed(row.reward - row.baseline)}`;
    const moved = fall > 0 ? `"${row.tokens[at]}": value ${fixed(row.values[at])} to ` +
      `${fixed(row.values[at + 1])}` : "the value never falls";
    return {
      found, at,
      title: `${moved}; advantage ${fixed(A[at])}${siblings}`,
      numbers: { at, fall, first: A[0], advantage: A[at], last: A[A.length - 1],
        sum: A.reduce((sum, a) => sum + a, 0) },
      notes: [`reward ${fixed(row.reward, 0)}: ${row.prompt}${row.tokens.join("")
        .replace("∎", "")} is ${row.reward > 0.5 ? "right" : "wrong"}`],
    };
  },

  draw(stage, { found, at }, values, data) {
    const row = rowOf(values, data);
    const T = row.tokens.length;
    const left = 150;
    const cell = Math.min(92, (stage.width - left - 56) / T);
    const strip = { left, cell, T };
    tokens(stage, strip, row, found, values);
    const plot = stage.plot({ left, top: 118, width: cell * T, height: 200, x: [0, T], y: Y,
      xticks: row.tokens.map((_, t) => [t + 0.5, String(t)])
        .filter((_, t) => t % Math.ceil(20 / cell) === 0), xlabel: "token t",
      ylabel: "" });
    plot.line([[0, 0], [T, 0]], stage.ink, { width: 1, alpha: 0.6 });
    plot.bar(at, at + 1, ...Y, stage.ink, { alpha: 0.06 });
    found.advantages.forEach((a, t) => plot.bar(t + 0.22, t + 0.78, 0, clamp(a), stage.blue));
    if (row.baseline !== null) {
      const a = row.reward - row.baseline;
      plot.line([[0, a], [T, a]], stage.orange, { dash: [6, 4] });
    }
    const path = row.values.map((v, t) => [t, v]);
    plot.line(path, stage.purple, { width: 1.5 });
    plot.marks(path, stage.purple, { radius: 4.5 });
    plot.marks([[T, row.reward]], stage.ink, { shape: "square", radius: 5 });
    legend(stage, row);
  },
};

const clamp = (a) => Math.max(Y[0], Math.min(Y[1], a));

function tokens(stage, { left, cell, T }, row, found, values) {
  stage.text(row.prompt, left - 12, 56, { align: "right", size: 19, mono: true });
  stage.text(values.colour, left - 12, 91, { align: "right" });
  const small = cell < 40;
  const lines = small ? Math.min(3, Math.ceil(26 / cell)) : 1; // where a number is wider than a cell
  for (let t = 0; t < T; t++) {
    const [value, tone] = SHOWS[values.colour](row, t, found);
    const { fill, ink } = stage.diverging(Number.isFinite(tone) ? tone : 0);
    const x = left + t * cell;
    stage.rect(x + 1.5, 38, cell - 3, 38, fill);
    stage.rect(x + 1.5, 38, cell - 3, 38, stage.ink, { outline: true, lineWidth: 1, alpha: 0.35 });
    stage.text(row.tokens[t], x + cell / 2, 57, { align: "center", size: 19, mono: true,
      colour: ink });
    const words = fixed(value).replace(small ? "0." : "", small ? "." : "");
    const below = lines === 1 ? 91 : 85 + 11 * (t % lines);
    stage.text(words, x + cell / 2, below, { align: "center", size: small ? 9.5 : 12 });
  }
}

function legend(stage, row) {
  let x = 4;
  const put = (words) => (x += stage.text(words, x, 14) + 20);
  stage.rect(x, 8, 12, 12, stage.blue);
  x += 18;
  put("GAE");
  if (row.baseline !== null) {
    stage.line([[x, 14], [x + 24, 14]], stage.orange, { dash: [6, 4], width: 2 });
    x += 30;
    put("RLOO");
  }
  stage.mark(x + 5, 14, stage.purple, { radius: 4.5 });
  x += 16;
  put("value so far");
  stage.mark(x + 5, 14, stage.ink, { shape: "square", radius: 5 });
  x += 16;
  put("reward");
}
