// Similarity of heads. Every head beside every other.

function startLikeness() {
  const host = at("likeness");
  if (!data.likeness) {
    host.append(absent(data.absent));
    return;
  }
  const { size, layers, groups, names } = data.likeness, bytes = bytesOf(data.likeness.values);
  const canvas = make("canvas", { role: "img", "aria-label": `How alike ${size} heads are` }), says = make("p", { class: "says" });
  const point = (event) => {
    const rect = canvas.getBoundingClientRect();
    const [i, j] = [event.clientY - rect.top, event.clientX - rect.left].map((value) => Math.max(0, canvas.starts.findLastIndex((start) => start <= value)));
    const alike = groups[i] === groups[j] ? (bytes[i * size + j] / 255).toFixed(2) : "they look at different texts";
    says.textContent = `Heads ${names[i]} and ${names[j]}: ${alike}`;
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  const pairs = [];
  for (let i = 0; i < size; i++) for (let j = 0; j < i; j++) if (groups[i] === groups[j]) pairs.push([bytes[i * size + j] / 255, j, i]);
  pairs.sort((a, b) => b[0] - a[0]);
  says.textContent = pairs.length ? summary(pairs) : "There is only one head.";
  const few = pairs.length ? [pair("Most alike", pairs[0], names), pair("Least alike", pairs.at(-1), names)] : [];
  host.append(make("div", { class: "beside" },
    make("div", { class: "matrix" }, canvas, scale("0 nothing in common", "1 the same"), make("p", { class: "scale" }, `The numbers on the sides are the layers${maps.groups.length > 1 ? `: ${maps.groups.map(({ name }) => name).join(", then ")}` : ""}.`)),
    make("div", {}, says, ...few)));
  drawn(() => matrix(canvas, bytes, layers, groups));
}

/** Heads beside heads, with a gap between layers and the layers' numbers on two sides. */
function matrix(canvas, bytes, layers, groups) {
  const rows = layers.map((layer, i) => `${groups[i]} ${layer}`);
  const wide = canvas.clientWidth || 320, dense = window.devicePixelRatio || 1, size = layers.length, margin = 22;
  const gap = size > 60 ? 1 : 4, gaps = new Set(rows).size - 1, cell = (wide - margin - gaps * gap) / size;
  let before = 0;
  const starts = rows.map((row, i) => margin + i * cell + gap * (before += i > 0 && row !== rows[i - 1] ? 1 : 0));
  Object.assign(canvas, { width: wide * dense, height: wide * dense, starts });
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  for (let i = 0; i < size; i++) {
    for (let j = 0; j < size; j++) {
      if (groups[i] !== groups[j]) continue; // they look at different texts
      pen.fillStyle = rgb(bytes[i * size + j]);
      pen.fillRect(starts[j], starts[i], cell + (size > 60 ? 0.5 : -0.5), cell + (size > 60 ? 0.5 : -0.5));
    }
  }
  Object.assign(pen, { fillStyle: colour("soft"), textAlign: "center", textBaseline: "middle", font: "11px system-ui, sans-serif" });
  for (const row of new Set(rows)) {
    const own = starts.filter((_, i) => rows[i] === row), middle = (own[0] + own.at(-1) + cell) / 2, layer = row.split(" ").at(-1);
    pen.fillText(layer, 9, middle);
    pen.fillText(layer, middle, 9);
  }
}

function summary(pairs) {
  const mean = pairs.reduce((sum, [value]) => sum + value, 0) / pairs.length;
  const twins = pairs.filter(([value]) => value > 0.9).length;
  return `On average two heads are alike by ${mean.toFixed(2)}. ${twins ? `${twins} ${twins > 1 ? "pairs are" : "pair is"} nearly the same (over 0.9).` : "No two are nearly the same (over 0.9)."}`;
}

function pair(title, [value, i, j], names) {
  const portrait = (name) => {
    const canvas = make("canvas", { "aria-label": `Map of head ${name}`, role: "img" });
    drawn(() => picture(canvas, maps.heads.findIndex((head) => head.name === name)));
    return make("figure", {}, canvas, make("figcaption", {}, `head ${name}`));
  };
  return make("div", { class: "pair" }, make("p", {}, `${title}: `, make("b", {}, value.toFixed(2))), portrait(names[i]), portrait(names[j]));
}
