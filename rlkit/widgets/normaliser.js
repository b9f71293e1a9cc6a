// The normaliser explorer: normaliser.py says what it shows, and computes the same numbers.

function weights(values, longest) {
  if (values.normaliser === "grpo") return [1 / (2 * values.right), 1 / (2 * values.wrong)];
  const one = values.normaliser === "dapo" ? 1 / (values.right + values.wrong)
    : 1 / (2 * longest);
  return [one, one];
}

const explorer = {
  height: 330,

  compute(values, data) {
    const [right, wrong] = weights(values, data.longest);
    const numbers = { "token right": right, "token wrong": wrong,
      "answer right": right * values.right, "answer wrong": wrong * values.wrong };
    const share = numbers["answer wrong"] / (numbers["answer right"] + numbers["answer wrong"]);
    const rows = ["right", "wrong"].map((name) =>
      [name, fixed(numbers[`token ${name}`], 3), fixed(numbers[`answer ${name}`], 3)]);
    return { numbers, table: { columns: ["answer", "a token", "the whole answer"], rows },
      title: `${values.normaliser}: right tokens weigh ${fixed(right / wrong)} times wrong ones; `
        + `the wrong answer has ${fixed(100 * share, 0)} of 100` };
  },

  draw(stage, { numbers }, values, data) {
    const width = Math.min(stage.width - 64, 760);
    const ticks = Array.from({ length: data.longest }, (_, i) => [i + 1, String(i + 1)]);
    const plot = stage.plot({ left: 48, top: 44, width, height: 230,
      x: [0.4, data.longest + 0.6], y: [-0.55, 0.55], xticks: ticks, xlabel: "token",
      ylabel: "weight times advantage" });
    for (let t = 1; t <= values.right; t++)
      plot.bar(t - 0.4, t + 0.4, 0, numbers["token right"], stage.blue);
    for (let t = 1; t <= values.wrong; t++)
      plot.bar(t - 0.4, t + 0.4, 0, -numbers["token wrong"], stage.orange);
    plot.line([[0.4, 0], [data.longest + 0.6, 0]], stage.ink, { width: 1 });
    const end = data.longest + 0.5;
    plot.text("right answer: up", end, 0.48, { align: "right", colour: stage.blue, bold: true });
    plot.text("wrong answer: down", end, -0.48, { align: "right", colour: stage.orange,
      bold: true });
  },
};
