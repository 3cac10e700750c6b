// What every figure is made with: elements, colours, scales, numbers for people.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

/** An element with attributes, listeners (on…), style variables (--…) and children; strings become text, never HTML. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--") || name === "width%") element.style.setProperty(name.replace("%", ""), value);
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

const absent = (sentence) => make("p", { class: "absent" }, sentence);

/** Buttons of which one is pressed: choices is {word: value}. */
function choice(label, choices, chosen, then) {
  const buttons = Object.entries(choices).map(([word, value]) =>
    make("button", { type: "button", "aria-pressed": value === chosen, onclick: (event) => {
      for (const each of buttons) each.setAttribute("aria-pressed", each === event.currentTarget);
      then(value);
    } }, word));
  return make("span", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

// ---------------------------------------------------------------- colours

const drawings = []; // what must be drawn again when colours or widths change

/** Draw now, and again when it is needed. */
function drawn(figure) {
  drawings.push(figure);
  figure();
}

let ramp = [];
const probe = make("span", { hidden: "" });

function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** 256 colours from nothing to all, through the five of the style sheet. */
function readRamp() {
  const stops = [0, 1, 2, 3, 4].map((i) => colour(`ramp-${i}`).match(/[\d.]+/g).slice(0, 3).map(Number));
  ramp = Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * 4, low = Math.min(3, Math.floor(place)), part = place - low;
    return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * part));
  });
}

const rgb = (byte) => `rgb(${ramp[byte].join(" ")})`;

function redraw() {
  readRamp();
  for (const figure of drawings) figure();
}

/** Paint bytes (rows x columns) into a canvas, one pixel each. */
function paint(canvas, bytes, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) image.data.set([...ramp[bytes[i]], 255], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** The legend of a colour scale, between two words. */
function scale(low, high) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  drawn(() => paint(canvas, Array.from({ length: 256 }, (_, i) => i), 1, 256));
  return make("div", { class: "scale" }, low, canvas, high);
}

// ---------------------------------------------------------------- numbers

const bytesOf = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
const percent = (share) => (share > 0 && share < 0.01 ? "<1%" : `${Math.round(100 * share)}%`);
const whole = (number) => Math.round(number).toLocaleString("en");

/** Three figures, with a letter for thousands and millions. */
function short(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e6) return `${+(number / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(number / 1e3).toPrecision(3)}k`;
  return size < 1e-3 ? number.toExponential(1).replace("e-", "e−") : `${+number.toPrecision(4)}`;
}

function clock(seconds) {
  if (seconds < 100) return `${+seconds.toPrecision(2)} s`;
  return seconds < 6000 ? `${+(seconds / 60).toPrecision(2)} min` : `${+(seconds / 3600).toPrecision(2)} h`;
}

/** Labels for the marks of one axis, all in one unit. */
function labels(values) {
  const most = Math.max(...values.map(Math.abs)), step = values.length > 1 ? values[1] - values[0] : most || 1;
  if (most >= 1e6) return values.map((value) => (value ? `${+(value / 1e6).toPrecision(3)}M` : "0"));
  if (most >= 1e4) return values.map((value) => (value ? `${+(value / 1e3).toPrecision(4)}k` : "0"));
  if (most < 1e-3) return values.map((value) => (value ? value.toExponential(0).replace("-", "−") : "0"));
  return values.map((value) => (step >= 1 ? whole(value) : value.toFixed(Math.ceil(-Math.log10(step) - 1e-9))));
}

/** Round numbers between two, about so many. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((unit) => unit * power).find((unit) => unit >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step || 0); // no minus zero
  return found;
}
