const explorer = {
  height: 220,
  compute(values, data) {
    const sign = values.way === "up" ? 1 : -1;
    const end = sign * values.slope * data.power + (values.lift ? 1 : 0);
    return { title: `it ends at ${fixed(end)}`, numbers: { end, first: floats(data.points)[0] },
      notes: [data.words], table: { columns: ["x", "y"], rows: [["2", fixed(end)]] } };
  },
  draw(stage, result) {
    const plot = stage.plot({ left: 44, top: 44, width: stage.width - 60, height: 130,
      x: [0, 2], y: [-8, 8], xlabel: "x", ylabel: "y", title: "a line" });
    plot.line([[0, 0], [2, result.numbers.end]], stage.blue);
    plot.marks([[2, result.numbers.end]], stage.orange, { shape: "square" });
    if (stage.pointer) stage.text("here", ...stage.pointer);
    stage.rect(stage.width - 90, 8, 60, 18, stage.diverging(result.numbers.end / 8).fill);
  },
  click: () => ({ slope: 0 }),
};
