// The shift explorer: shift.py says what it shows, and computes the same numbers.

const HIGH = 2; // of the vertical axis, in units of a logit's gradient
const ACROSS = [[2, -1, -1], [0, 1, -1]].map((v) => v.map((x) => x / Math.hypot(...v)));

const onto = (g) => ACROSS.map((axis) => axis.reduce((at, x, i) => at + x * g[i], 0));
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;

// each step's mean of (reward - baseline) (one-hot - p), as a point of the plane, [[x, y]]
function steps(values, data) {
  const [p, draws, n] = [data.p, floats(data.draws), Number(values.count)];
  const expected = p.reduce((sum, x, i) => sum + x * (data.rewards[i] + values.shift), 0);
  const base = values.baseline ? expected : 0;
  const of = p.map((_, a) => {
    const weight = data.rewards[a] + values.shift - base;
    return onto(p.map((x, i) => weight * ((i === a) - x)));
  });
  const out = [];
  for (let at = 0; at < draws.length; at += data.most) {
    const batch = Array.from(draws.slice(at, at + n), (a) => of[a]);
    out.push([mean(batch.map((g) => g[0])), mean(batch.map((g) => g[1]))]);
  }
  return out;
}

const explorer = {
  height: 350,

  compute(values, data) {
    const all = steps(values, data);
    const exact = onto(data.exact);
    const centre = [0, 1].map((i) => mean(all.map((point) => point[i])));
    const width = Math.sqrt(mean(all.map(([x, y]) => (x - exact[0]) ** 2 + (y - exact[1]) ** 2)));
    const ratio = width / Math.hypot(...exact);
    const astray = all.filter(([x, y]) => x * exact[0] + y * exact[1] < 0).length / all.length;
    return {
      title: `A step misses by ${fixed(ratio, 1)} times the gradient's length; `
        + `${fixed(100 * astray, 0)} of 100 go backwards`,
      numbers: { "centre x": centre[0], "centre y": centre[1], ratio, astray },
      all, exact, centre,
    };
  },

  draw(stage, result, values, data) {
    const [left, top] = [46, 44];
    const [width, height] = [Math.min(stage.width - left - 14, 700), 260];
    const wide = (HIGH * width) / height; // one scale for both axes
    const plot = stage.plot({ left, top, width, height, x: [-wide, wide], y: [-HIGH, HIGH],
      xlabel: `more of ${data.names[0]}, less of both others`,
      ylabel: `more of ${data.names[1]}, less of ${data.names[2]}` });
    const piles = new Map(); // steps that fell on one point are one larger dot
    for (const point of result.all) {
      const key = point.map((x) => x.toFixed(6)).join();
      piles.set(key, { point, times: (piles.get(key) || { times: 0 }).times + 1 });
    }
    plot.clipped(() => {
      for (const { point, times } of piles.values())
        plot.marks([point], stage.blue, { radius: 1.2 + 0.9 * Math.sqrt(times), alpha: 0.55 });
    });
    const [x, y] = [plot.x(result.exact[0]), plot.y(result.exact[1])];
    const ctx = stage.ctx;
    ctx.strokeStyle = stage.orange;
    ctx.lineWidth = 2.5;
    ctx.beginPath();
    ctx.arc(x, y, 9, 0, 7);
    ctx.stroke();
    const [cx, cy] = [plot.x(result.centre[0]), plot.y(result.centre[1])];
    stage.line([[cx - 7, cy], [cx + 7, cy]], stage.ink, { width: 2 });
    stage.line([[cx, cy - 7], [cx, cy + 7]], stage.ink, { width: 2 });
    const zero = [plot.x(0), plot.y(0)];
    stage.mark(...zero, stage.ink, { shape: "square", radius: 2.5 });
    const right = left + width;
    stage.mark(right - 196, 14, stage.blue, { radius: 3.5 });
    stage.text(`${result.all.length} steps`, right - 186, 14);
    stage.text("+ their centre", right - 100, 14);
    stage.text("ring: exact gradient", right, 32, { align: "right", colour: stage.orange });
  },
};
