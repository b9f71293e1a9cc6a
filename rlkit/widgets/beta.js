// The beta explorer: beta.py says what it shows, and computes the same numbers.

const [LEARNED, NATS] = [[-0.5, 2], [0, 11]]; // ends of the axes
const TICKS = [0, 0.25, 1, 2, 4, 7, 10];
const KEYS = ["learned", "right", "kl", "short"];
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;

// look(algorithm, beta, seed, at) -> {learned, right, kl, short}
function reader(data) {
  const [runs, [, betas, seeds, looks, keys]] = [floats(data.runs), data.shape];
  return (a, b, s, at) => {
    const from = (((a * betas + b) * seeds + s) * looks + at) * keys;
    return Object.fromEntries(KEYS.map((key, i) => [key, runs[from + i]]));
  };
}

const explorer = {
  height: (width) => (width < 900 ? 600 : 330),

  compute(values, data) {
    const look = reader(data);
    const [algorithms, betas, seeds, looks] = data.shape;
    const all = [...Array(seeds).keys()];
    const a = ["RLOO", "PPO"].indexOf(values.algorithm);
    const b = data.betas.map(String).indexOf(values.beta);
    const at = Math.round((values.done / 100) * (looks - 1));
    const path = (beta, last) => [...Array(last + 1).keys()].map((t) =>
      Object.fromEntries(KEYS.map((key) => [key, mean(all.map((s) => look(a, beta, s, t)[key]))])));
    const numbers = path(b, at)[at];
    const step = (t) => (data.steps[a] * t) / (looks - 1);
    return { numbers, at, b, step, last: data.steps[a],
      whole: path(b, looks - 1),
      seeds: all.map((s) => [...Array(looks).keys()].map((t) => look(a, b, s, t))),
      paths: data.betas.map((_, i) => path(i, at)),
      title: `${values.algorithm}, beta ${values.beta}, step ${Math.round(step(at))}: the judge `
        + `pays ${fixed(numbers.learned)}; ${fixed(100 * numbers.right, 0)} of 100 are right; `
        + `${fixed(numbers.kl, 1)} nats away`,
      notes: [`Answers shorter than the right one: ${fixed(100 * numbers.short, 0)} of 100. `
        + `Mean of ${seeds} seeds, thin: each; held-out sums, sampled.`] };
  },

  draw(stage, result, values, data) {
    const wide = stage.width >= 900;
    const third = wide ? (stage.width - 200) / 3.3 : (stage.width - 120) / 2;
    const high = wide ? 220 : 190;
    const panel = (left, key, y, colour, shape, ylabel) => {
      const plot = stage.plot({ left, top: 50, width: third, height: high, x: [0, result.last], y,
        xlabel: "training step", ylabel });
      const line = (looks) => looks.map((row, t) => [result.step(t), row[key]]);
      for (const seed of result.seeds) plot.line(line(seed), colour, { width: 1, alpha: 0.45 });
      plot.line(line(result.whole), colour, { width: 2.5 });
      const now = [result.step(result.at), result.whole[result.at][key]];
      plot.marks([now], colour, { shape, radius: 6 });
      const side = now[0] > result.last / 2 ? "right" : "left";
      plot.text(fixed(now[1]), now[0], now[1] + 0.06 * (y[1] - y[0]), { align: side, bold: true });
    };
    panel(44, "learned", LEARNED, stage.blue, "circle", "learned reward");
    panel(104 + third, "right", [0, 1], stage.orange, "square", "share of right answers");
    const left = wide ? 164 + 2 * third : 44;
    const down = wide ? 50 : 340;
    const plot = stage.plot({ left, top: down, width: stage.width - left - 30, height: high,
      x: NATS.map(Math.sqrt), y: [0, 1],
      xticks: TICKS.map((nats) => [Math.sqrt(nats), String(nats)]),
      xlabel: "KL from the policy before, nats an answer (root scale)",
      ylabel: "share right; numbers: beta; dashed: best of n" });
    const at = ({ kl, right }) => [Math.sqrt(Math.max(kl, 0)), right];
    const ends = result.paths.map((path) => at(path[path.length - 1]));
    plot.line(ends, stage.ink, { width: 1, alpha: 0.5 });
    plot.line(result.paths[result.b].map(at), stage.orange, { width: 2.5 });
    const top = ends.reduce((best, end, i) => (end[1] > ends[best][1] ? i : best), 0);
    ends.forEach(([x, y], i) => {
      const now = i === result.b;
      const side = Math.sign(i - top); // labels of smaller beta stand on the right of the arc
      plot.clipped(() => plot.marks([[x, y]], now ? stage.orange : stage.ink,
        { shape: "square", radius: now ? 6 : 3.5 }));
      plot.text(String(data.betas[i]), x - 0.09 * side, y + (side ? 0.012 : 0.07),
        { bold: now, align: ["left", "center", "right"][side + 1] });
    });
    const best = data.best.map(([, nats, right]) => [Math.sqrt(nats), right]);
    plot.line(best, stage.green, { dash: [5, 4], width: 1.6 });
    plot.marks(best, stage.green, { shape: "triangle", radius: 3.5 });
    const [n, nats, right] = data.best[data.best.length - 1];
    plot.text(`best of ${n}`, Math.sqrt(nats) + 0.07, right, { colour: stage.green });
  },
};
