// Curves of the training. Charts with one cursor.

const view = { x: "step", log: false };
const charts = [];

/** Series: {name, key, curve, field, style: "raw" | "dots" | "rings"}. Options: format, zero, extra(plot). */
function chart(host, title, series, options = {}) {
  series = series.filter((each) => each.curve && each.curve.value.length);
  if (!series.length) {
    host.append(make("h3", {}, title), absent(options.absent || "Nothing was logged for this."));
    return;
  }
  const keys = make("div", { class: "keys", "aria-live": "off" });
  const svg = draw("svg", { role: "img", "aria-label": `${title} ${describe(series)}` });
  host.append(make("h3", {}, title), keys, svg);
  const self = { host, series, options, keys, svg };
  charts.push(self);
  drawn(() => drawChart(self));
  svg.addEventListener("pointermove", (event) => point(self, event));
  svg.addEventListener("pointerdown", (event) => point(self, event));
  svg.addEventListener("pointerleave", () => charts.forEach((each) => show(each, null)));
}

function describe(series) {
  const values = series.at(-1).curve.value.filter((value) => value != null);
  if (!values.length) return "There is no number to draw.";
  return `From ${short(values[0])} to ${short(values.at(-1))}.`;
}

const placeOf = (curve, i) => (view.x === "step" ? curve.step[i] : curve.seconds[i]);

function drawChart(self) {
  const { svg, series, options } = self, large = self.host.classList.contains("large");
  const wide = Math.max(200, svg.clientWidth || 300), high = large ? Math.min(380, Math.max(220, wide * 0.58)) : 170;
  const box = { left: 44, right: wide - 8, top: 10, bottom: high - 24 };
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.setAttribute("height", high);
  const xs = series.flatMap((each) => each.curve.value.map((_, i) => placeOf(each.curve, i))).filter((x) => x != null);
  const ys = series.flatMap((each) => each.curve[each.field || "value"]).filter((y) => y != null);
  const least = Math.min(...xs.filter((x) => x > 0)), far = Math.max(...xs);
  const x = across(view.log ? Math.max(least, far / 1e5) : Math.min(...xs), far, box, view.log);
  const low = options.zero ? 0 : Math.min(...ys), top = Math.max(...ys), room = (top - low || Math.abs(top) || 1) * 0.05;
  const y = (value) => box.bottom - ((value - low + (options.zero ? 0 : room)) / (top - low + 2 * room || 1)) * (box.bottom - box.top);
  self.plot = { box, x, y };
  svg.replaceChildren(...grid(self.plot, low, top), ...series.map((each) => path(each, self.plot)));
  if (options.extra) svg.append(...options.extra(self.plot));
  self.cursor = draw("line", { class: "cursor", y1: box.top, y2: box.bottom });
  svg.append(self.cursor);
  show(self, null);
}

function across(low, high, box, log) {
  const map = log ? Math.log : (value) => value;
  const from = map(low), span = map(high) - from || 1;
  const scale = (value) => box.left + ((map(Math.max(value, log ? low : value)) - from) / span) * (box.right - box.left);
  return Object.assign(scale, { low, high });
}

function grid({ box, x, y }, low, top) {
  const levels = ticks(low, top, Math.max(4, Math.round((box.bottom - box.top) / 50))), names = labels(levels);
  const lines = levels.flatMap((value, i) => [
    draw("line", { class: "rule", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
    draw("text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, names[i]),
  ]);
  const powers = [];
  for (let power = 10 ** Math.ceil(Math.log10(x.low)); view.log && power <= x.high; power *= 10) powers.push(power);
  const marks = view.log ? powers : ticks(x.low, x.high, Math.max(4, Math.floor((box.right - box.left) / 90)));
  const words = view.x === "step" ? labels(marks) : marks.map(clock);
  return [...lines, draw("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    ...marks.map((value, i) => draw("text", { x: x(value), y: box.bottom + 16, "text-anchor": x(value) > box.right - 20 ? "end" : "middle" }, words[i]))];
}

function path({ curve, field = "value", style, key }, { x, y }) {
  const values = curve[field], points = values.map((value, i) => {
    const place = placeOf(curve, i);
    return value == null || place == null || (view.log && place <= 0) ? null : [x(place), y(value)];
  });
  let line = "", pen = false;
  for (const one of points) {
    if (one) line += `${pen ? "L" : "M"}${one[0].toFixed(1)} ${one[1].toFixed(1)}`;
    pen = one != null;
  }
  const traced = draw("path", { d: line || "M0 0", class: style === "raw" ? "raw" : "even", stroke: `var(--${key})` });
  if (!["dots", "rings"].includes(style)) return traced;
  if (style === "rings") return draw("g", {}, ...points.filter((one) => one).map(([cx, cy]) => draw("circle", { cx, cy, r: 5, class: "ring", stroke: `var(--${key})` })));
  const dots = points.filter((one) => one).map(([cx, cy]) => draw("circle", { cx, cy, r: 3.6, fill: `var(--${key})` }));
  return draw("g", {}, traced, ...(dots.length > 80 ? [] : dots));
}

// ---------------------------------------------------------------- the cursor

function point(self, event) {
  const { box, x } = self.plot, rect = self.svg.getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (event.clientX - rect.left - box.left) / (box.right - box.left)));
  const place = view.log ? x.low * (x.high / x.low) ** share : x.low + share * (x.high - x.low);
  for (const each of charts) show(each, place);
}

/** What each line says at a place, written where the names of the lines stand. */
function show(self, place) {
  const { plot, cursor, keys, series, options } = self;
  cursor.style.visibility = place == null ? "hidden" : "visible";
  if (place != null) {
    cursor.setAttribute("x1", plot.x(place));
    cursor.setAttribute("x2", plot.x(place));
  }
  const named = series.filter((each) => each.name);
  const entries = named.map((each) => {
    const i = place == null ? each.curve.value.length - 1 : nearest(each.curve, place);
    const value = each.curve[each.field || "value"][i];
    return make("span", {}, make("i", { class: { dots: "dot", rings: "dot hollow" }[each.style], "--key": `var(--${each.key})` }),
      `${each.name} `, make("b", {}, value == null ? "–" : (options.format || short)(value)));
  });
  const where = place == null ? options.remark : view.x === "step" ? `step ${whole(place)}` : clock(place);
  keys.replaceChildren(...entries, make("span", {}, where || ""));
}

function nearest(curve, place) {
  let best = 0;
  for (let i = 1; i < curve.value.length; i++) {
    if (Math.abs(placeOf(curve, i) - place) <= Math.abs(placeOf(curve, best) - place)) best = i;
  }
  return best;
}

// ---------------------------------------------------------------- the four of them

function startCurves() {
  const { loss, validation, final, lr, norm, speed, clipped, clip } = data.curves;
  const change = (name) => (value) => {
    view[name] = value;
    charts.forEach(drawChart);
  };
  const timed = loss.seconds.length > 1 && loss.seconds.every((value) => value != null);
  at("curve-controls").append(...(timed ? [choice("Along", { Steps: "step", Time: "seconds" }, "step", change("x"))] : []),
    choice("Scale", { Linear: false, Logarithmic: true }, false, change("log")));
  chart(at("loss"), data.loss, [
    { curve: loss, key: "blue", style: "raw" },
    { name: "training", curve: loss, field: "smooth", key: "blue" },
    { name: "validation", curve: validation, key: "orange", style: "dots" },
    { name: "all of the validation data", curve: final, key: "orange", style: "rings" },
  ], { format: (value) => value.toFixed(4), remark: validation.value.length + final.value.length ? "" : "no validation data", extra: refused });
  startSkipped();
  chart(at("lr"), "Learning rate", [{ name: "learning rate", curve: lr, key: "green" }], { zero: true });
  chart(at("norm"), "Gradient norm", [
    { curve: norm, key: "purple", style: "raw" },
    { name: "gradient norm", curve: norm, field: "smooth", key: "purple" },
  ], { zero: true, remark: clipped.count ? `clipped ${whole(clipped.count)} of ${whole(clipped.of)}` : "never clipped",
    extra: (plot) => clips(plot, clipped, clip) });
  chart(at("speed"), "Speed", [{ name: "tokens a second", curve: speed, key: "olive" }], { zero: true, format: whole });
}

/** How good its answers are along the way, and in the end with what each number means. */
function startScores() {
  const host = at("scores"), drawn = Object.entries(data.curves.scores).filter(([, curve]) => curve.value.length > 1);
  if (!data.scores.length && !drawn.length) return;
  host.hidden = false;
  const keys = ["orange", "blue", "green", "purple", "olive"], title = "Scores";
  if (drawn.length) {
    chart(host, title, drawn.map(([name, curve], i) => ({ name, curve, key: keys[i % keys.length], style: "dots" })), { format: (value) => value.toFixed(3) });
  } else {
    host.classList.add("few"); // a table alone needs no room beside the curve
    host.append(make("h3", {}, title));
  }
  host.append(make("table", { class: "marks" }, make("tbody", {}, ...data.scores.map(({ name, value, means }) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "number" }, value.toFixed(4)), make("td", { class: "remark" }, means))))));
}

/** A cross above the curve for each step that was not taken. */
function refused({ box, x }) {
  return data.curves.skipped.marks.filter((mark) => mark[view.x] != null && mark[view.x] >= x.low).map((mark) => {
    const cx = x(mark[view.x]), cy = box.top + 2;
    return draw("g", { class: "refused" }, draw("title", {}, `step ${whole(mark.step)} was not taken: ${mark.why}`),
      draw("line", { class: "guide", x1: cx, x2: cx, y1: box.top + 8, y2: box.bottom }),
      draw("path", { d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8` }));
  });
}

/** The same in words. */
function startSkipped() {
  const told = Object.entries(data.curves.skipped.why);
  if (!told.length) return;
  const list = (steps) => steps.slice(0, 5).map(whole).join(", ") + (steps.length > 5 ? ` and ${whole(steps.length - 5)} more` : "");
  at("skipped").hidden = false;
  at("skipped").textContent = `Nothing was learned from ${told.map(([why, steps]) => `step${steps.length > 1 ? "s" : ""} ${list(steps)} (${why})`).join(", nor from ")}; log.jsonl names their rows.`;
}

/** The norm that gradients are cut to, and a tick below for each step where one was. */
function clips({ box, x, y }, clipped, clip) {
  const marks = view.x !== "step" ? [] : clipped.step.filter((step) => step >= x.low).map((step) =>
    draw("line", { class: "tick", x1: x(step), x2: x(step), y1: box.bottom, y2: box.bottom - 5 }));
  const inside = clip != null && y(clip) > box.top;
  return inside ? [...marks, draw("line", { class: "limit", x1: box.left, x2: box.right, y1: y(clip), y2: y(clip) })] : marks;
}
