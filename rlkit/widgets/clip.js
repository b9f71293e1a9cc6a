// The clip explorer: what one token's clipped gain is, and where it stops pulling.

const RATIOS = [0, 3];
const GAINS = [-4.5, 4.5];

// the gain, its two candidates, and d loss / d logp
function gainOf(ratio, values) {
  const A = values.advantage;
  const bound = values.two_sided ? values.delta : Infinity;
  const free = Math.min(ratio, bound) * A;
  const inside = Math.max(1 - values.epsilon, Math.min(1 + values.epsilon_high, ratio));
  const near = inside * A;
  const clipped = near < free || (near === free && inside !== ratio);
  const live = !clipped && ratio < bound && A !== 0;
  return { free, near, gain: Math.min(free, near), gradient: live ? -ratio * A : 0, live };
}

// the ratios at which the gradient is 0: [from, to] or null
function silent(values) {
  if (values.advantage > 0) return [1 + values.epsilon_high, RATIOS[1]];
  if (values.advantage < 0) return [0, 1 - values.epsilon];
  return RATIOS;
}

function verdict(values, at) {
  const where = `ratio ${fixed(values.ratio)}, A = ${fixed(values.advantage)}`;
  if (values.advantage === 0) return `${where}: nothing to gain or lose`;
  const far = values.ratio > 1 + values.epsilon_high || values.ratio < 1 - values.epsilon;
  if (at.live) return `${where}: ${far ? "the way back is open" : "still heard"}, gradient ` +
    fixed(at.gradient);
  const beyond = values.ratio > 1 && values.advantage < 0;
  return `${where}: ${beyond ? "beyond delta" : "gone far enough"}, gradient 0`;
}

const explorer = {
  height: 340,

  compute(values) {
    const at = gainOf(values.ratio, values);
    const loss = -at.gain;
    return {
      title: verdict(values, at),
      numbers: { free: at.free, near: at.near, gain: at.gain, loss, gradient: at.gradient },
      table: {
        columns: ["ratio A", "clipped", "min", "loss", "gradient"],
        rows: [[at.free, at.near, at.gain, loss, at.gradient].map((x) => fixed(x, 3))],
      },
      notes: ["gradient: of the loss, at logp; a negative one makes the token likelier"],
    };
  },

  draw(stage, result, values) {
    const plot = stage.plot({ left: 44, top: 42, width: stage.width - 64, height: 250,
      x: RATIOS, y: GAINS, xlabel: "ratio = exp(logp − logp_old)", ylabel: "gain" });
    shade(stage, plot, silent(values), values.advantage === 0 ? "" : "gradient 0");
    if (values.two_sided && values.advantage < 0)
      shade(stage, plot, [values.delta, RATIOS[1]], "beyond delta");
    const along = (pick) => Array.from({ length: 301 }, (_, i) => [i / 100,
      pick(gainOf(i / 100, values))]);
    plot.line(along((at) => at.gain), stage.ink, { width: 6, alpha: 0.35 });
    plot.line(along((at) => at.free), stage.blue, { dash: [8, 5] });
    plot.line(along((at) => at.near), stage.orange, { dash: [2, 4], width: 2.5 });
    plot.line([[1, GAINS[0]], [1, GAINS[1]]], stage.ink, { width: 1, alpha: 0.4 });
    plot.marks([[values.ratio, result.numbers.gain]], stage.ink, { radius: 6 });
    legend(stage);
  },
};

function shade(stage, plot, [from, to], words) {
  if (to <= from) return;
  plot.bar(from, to, GAINS[0], GAINS[1], stage.ink, { alpha: 0.09 });
  if (to - from > 0.3)
    plot.text(words, (from + to) / 2, GAINS[0] + 0.4, { align: "center", alpha: 0.85 });
}

function legend(stage) {
  const keys = [["ratio A", stage.blue, { dash: [8, 5], width: 2 }],
    ["clipped", stage.orange, { dash: [2, 4], width: 2.5 }],
    ["min, what counts", stage.ink, { width: 6, alpha: 0.35 }]];
  let x = 4;
  for (const [words, colour, options] of keys) {
    stage.line([[x, 14], [x + 28, 14]], colour, options);
    x += 36 + stage.text(words, x + 34, 14) + 20;
  }
}
