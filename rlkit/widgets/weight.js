// The loss-weight explorer: how loud a prompt is in a step, by its chance of a right answer.

// [plain, divided, dead]: exact means over the number of right answers among G
function loudness(p, G) {
  let [plain, divided, dead] = [0, 0, 0];
  let chance = (1 - p) ** G;
  for (let k = 0; k <= G; k++) {
    plain += (chance * k * (G - k)) / (G * G);
    divided += chance * Math.sqrt((k * (G - k) * (G - 1)) / G ** 3);
    if (k === 0 || k === G) dead += chance;
    chance *= ((G - k) / (k + 1)) * (p / (1 - p));
  }
  return [plain, divided, dead];
}

const KEYS = [["plain", "blue", [7, 5], "circle"],
  ["over std", "orange", [], "square"],
  ["dead groups", "purple", [2, 4], "triangle"]];

const explorer = {
  height: 330,

  compute(values) {
    const [plain, divided, dead] = loudness(values.p, values.G);
    const [middle, middleDivided] = loudness(0.5, values.G);
    const [share, shareDivided] = [plain / middle, divided / middleDivided];
    return {
      numbers: { plain, divided, dead, share, share_divided: shareDivided },
      title: `p = ${fixed(values.p)} beside p = 0.50: ` +
        `${fixed(share)} as loud, over the std ${fixed(shareDivided)}`,
      table: { columns: ["p", "plain", "over std", "louder", "dead"],
        rows: [values.p, 0.5].map((p) => {
          const [a, b, c] = loudness(p, values.G);
          return [p, a, b, b / a, c].map((x) => fixed(x, 3));
        }) },
      notes: ["plain: reward − mean. Both: the sum of the positive advantages over G, on the " +
        "mean. louder: over std by plain"],
    };
  },

  draw(stage, result, values) {
    const plot = stage.plot({ left: 44, top: 44, width: stage.width - 64, height: 238, x: [0, 1],
      y: [0, 1], xlabel: "p, the chance that an answer to this prompt is right",
      ylabel: "loudness, or share" });
    const ps = Array.from({ length: 197 }, (_, i) => 0.01 + i * 0.005);
    const all = ps.map((p) => loudness(p, values.G));
    plot.line([[values.p, 0], [values.p, 1]], stage.ink, { width: 1, alpha: 0.5 });
    const now = loudness(values.p, values.G);
    KEYS.forEach(([, colour, dash, shape], i) => {
      plot.line(ps.map((p, j) => [p, all[j][i]]), stage[colour], { dash });
      plot.marks([[values.p, now[i]]], stage[colour], { shape, radius: 5 });
    });
    let x = 4;
    for (const [words, colour, dash, shape] of KEYS) {
      stage.line([[x, 14], [x + 26, 14]], stage[colour], { dash, width: 2 });
      stage.mark(x + 13, 14, stage[colour], { shape });
      x += 34 + stage.text(words, x + 32, 14) + 18;
    }
  },
};
