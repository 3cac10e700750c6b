// Health of the training. Gradients and updates by layer, and how widely each head looks: a column for each look at the run.

function startHealth() {
  const host = at("health"), seen = data.health;
  if (!seen.step) return;
  host.hidden = false;
  const gradient = { rows: seen.layers, values: seen.gradient, log: true, unit: "" }, update = { rows: seen.layers, values: seen.update, log: true, unit: " of its weights a step" };
  strip(host, "Gradients and updates by layer", { Gradient: gradient, Update: update }, seen.step);
  if (seen.heads.length) {
    strip(host, "Attention entropy of each head", { Entropy: { rows: seen.heads, values: seen.entropy, low: 0, high: 1, unit: " of the maximum" } }, seen.step,
      "0, one token", "1, uniform");
  }
}

/** A picture with a row for each thing and a column for each look, and a sentence about where one points. */
function strip(host, title, tables, steps, low, high) {
  const names = Object.keys(tables), canvas = make("canvas", { role: "img" }), says = make("p", { class: "says" });
  const legend = make("div"), bounds = new Map(names.map((name) => [name, reach(tables[name])]));
  let shown = names[0];

  function choose(name) {
    shown = name;
    const [least, most] = bounds.get(name), { rows, values } = tables[name];
    canvas.setAttribute("aria-label", `${title} ${rows.map((row, i) => `${row} ${short(values[i].findLast((value) => value != null) ?? 0)}`).slice(0, 40).join(", ")}`);
    legend.replaceChildren(scale(low || short(least), high || `${short(most)}${tables[name].unit}`));
    says.textContent = steps.length > 1 ? `Steps ${whole(steps[0])} to ${whole(steps.at(-1))}, from left to right.` : `Step ${whole(steps[0])}.`;
    paintStrip(canvas, tables[name], bounds.get(name));
  }

  const point = (event) => {
    const { rows, values, unit } = tables[shown], rect = canvas.getBoundingClientRect(), { margin, wide, high: tall } = canvas;
    const i = bounded((event.clientY - rect.top) / tall, rows.length), j = bounded((event.clientX - rect.left - margin) / wide, steps.length);
    const value = values[i][j];
    says.textContent = `${rows[i]}, step ${whole(steps[j])}: ${value == null ? "no number" : `${short(value)}${unit}`}.`;
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  const buttons = names.length > 1 ? choice("What", Object.fromEntries(names.map((name) => [name, name])), shown, choose) : null;
  host.append(make("figure", { class: "chart strip-chart" }, make("h3", {}, title), buttons ? make("div", { class: "controls" }, buttons) : null, canvas, says, legend));
  drawn(() => paintStrip(canvas, tables[shown], bounds.get(shown)));
  choose(shown);
}

const bounded = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));

/** The least and the most of a table: of logarithms only what is above zero counts. */
function reach({ values, log, low, high }) {
  const known = values.flat().filter((value) => value != null && (!log || value > 0));
  return [low ?? Math.min(...known, Infinity), high ?? Math.max(...known, -Infinity)].map((value) => (Number.isFinite(value) ? value : 1));
}

/** Names on the left, cells on the right; a cell without a number is orange. */
function paintStrip(canvas, { rows, values, log }, [low, high]) {
  const wide = canvas.clientWidth || 320, dense = window.devicePixelRatio || 1;
  const pen = canvas.getContext("2d"), font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.font = font;
  const row = Math.max(4, Math.min(22, 320 / rows.length)), tall = row * rows.length;
  const margin = Math.min(wide * 0.4, 10 + Math.max(...rows.map((name) => pen.measureText(name).width)));
  canvas.style.height = `${tall}px`;
  Object.assign(canvas, { width: wide * dense, height: tall * dense, margin, high: tall });
  canvas.wide = wide - margin;
  const columns = values[0].length, cell = canvas.wide / columns, map = log ? Math.log : (value) => value;
  pen.scale(dense, dense);
  Object.assign(pen, { textAlign: "right", textBaseline: "middle", font });
  const span = map(high) - map(low) || 1, every = Math.ceil(12 / row); // names that do not cover each other
  rows.forEach((name, i) => {
    pen.fillStyle = colour("soft");
    if (i % every === 0) pen.fillText(name, margin - 8, Math.max(7, (i + 0.5) * row));
    values[i].forEach((value, j) => {
      const share = value == null ? 0 : log && value <= 0 ? 0 : (map(value) - map(low)) / span;
      pen.fillStyle = value == null ? colour("orange") : rgb(Math.round(255 * Math.min(1, Math.max(0, share))));
      pen.fillRect(margin + j * cell, i * row, cell + (columns > 40 ? 0.5 : -1), row - (row > 8 ? 1 : 0));
    });
  });
}
