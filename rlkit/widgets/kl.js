// The KL explorer: kl.py says what it shows, and computes the same numbers.

const STYLES = { k1: ["blue", "circle"], k2: ["green", "square"], k3: ["orange", "triangle"] };
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

function policies(values, data) {
  const weights = data.q.slice();
  weights[0] *= Math.exp(values.first);
  weights[weights.length - 1] *= Math.exp(values.last);
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((w) => w / total);
}

const signed = (x) => (x < 0 ? "" : "+") + fixed(x, 3);

const explorer = {
  height: (width) => (width < 760 ? 560 : 310),

  compute(values, data) {
    const p = policies(values, data);
    const x = p.map((v, i) => Math.log(v / data.q[i]));
    const k = { k1: x, k2: x.map((v) => (v * v) / 2), k3: x.map((v) => Math.expm1(-v) + v) };
    const numbers = { divergence: dot(p, x) };
    for (const name in k) {
      numbers[name] = dot(p, k[name]);
      numbers[`${name} spread`] = Math.sqrt(dot(p, k[name].map((v) => (v - numbers[name]) ** 2)));
    }
    const rows = Object.keys(k).map((name) =>
      [name, fixed(numbers[name], 3), fixed(numbers[`${name} spread`], 3)]);
    return { p, k, numbers,
      table: { columns: ["estimate", "mean", "spread"], rows },
      title: `Divergence ${fixed(numbers.divergence, 3)}: k1 spreads by `
        + `${fixed(numbers["k1 spread"], 3)}, k3 by ${fixed(numbers["k3 spread"], 3)}; `
        + `k2 is off by ${signed(numbers.k2 - numbers.divergence)}` };
  },

  draw(stage, { p, k, numbers }, values, data) {
    const wide = stage.width >= 760;
    const width = wide ? stage.width * 0.36 : stage.width - 60;
    const words = p.map((_, i) => [i, String(i)]);
    const x = [-0.6, p.length - 0.4];
    const bars = stage.plot({ left: 44, top: 58, width, height: 180, x, y: [0, 1],
      xticks: words, xlabel: "word", ylabel: "probability" });
    data.q.forEach((v, i) => bars.bar(i - 0.36, i - 0.02, 0, v, stage.ink, { alpha: 0.3 }));
    p.forEach((v, i) => bars.bar(i + 0.02, i + 0.36, 0, v, stage.blue));
    p.forEach((v, i) => bars.text(fixed(v), i + 0.19, v, { align: "center", base: "bottom",
      size: 11 }));
    stage.rect(44, 8, 12, 12, stage.ink, { alpha: 0.3 });
    stage.text("q, the reference", 62, 14);
    stage.rect(176, 8, 12, 12, stage.blue);
    stage.text("p", 194, 14);
    const left = wide ? width + 118 : 44;
    const top = wide ? 58 : 340;
    const plot = stage.plot({ left, top, width: stage.width - left - 16, height: 180, x,
      y: [-4, 6], xticks: words, xlabel: "word that was drawn", ylabel: "estimate" });
    plot.line([[x[0], numbers.divergence], [x[1], numbers.divergence]], stage.ink,
      { dash: [6, 4], width: 1.2 });
    Object.entries(STYLES).forEach(([name, [colour, shape]], n) => {
      const at = k[name].map((v, i) => [i + (n - 1) * 0.18, v]);
      plot.clipped(() => plot.marks(at, stage[colour], { shape, radius: 5 }));
      stage.mark(left + 60 * n + 6, top - 44, stage[colour], { shape });
      stage.text(name, left + 60 * n + 16, top - 44);
    });
    stage.text("dashed: the divergence", left + 184, top - 44);
  },
};
