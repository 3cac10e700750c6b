// Where does it look? A map for every head; one of them large, and its sentence to point at.

const maps = { size: 0, bytes: new Uint8Array(), names: [], chosen: 0, query: 0, then: [] };

/** The map of one head: N x N bytes, each 255 times the square root of a weight. */
const mapOf = (i) => maps.bytes.subarray(i * maps.size ** 2, (i + 1) * maps.size ** 2);
const weight = (i, query, key) => (mapOf(i)[query * maps.size + key] / 255) ** 2;
const headName = (layer, head) => `${layer}.${head}`;

function readMaps() {
  if (!data.attention) return;
  maps.size = data.attention.tokens.length;
  maps.bytes = bytesOf(data.attention.maps);
  maps.names = data.attention.heads.flatMap((count, layer) => Array.from({ length: count }, (_, head) => headName(layer, head)));
}

function startMaps() {
  const host = at("maps");
  if (!data.attention) {
    host.append(absent(data.absent));
    return;
  }
  const { heads, note } = data.attention, most = Math.max(...heads);
  const layers = make("div", { class: most > 6 ? "layers many" : "layers", "aria-label": "Maps of all heads" });
  let i = 0;
  heads.forEach((count, layer) => {
    const row = make("div", { class: "row" });
    for (let head = 0; head < count; head++) row.append(mini(i++));
    layers.append(make("div", { class: "layer" }, make("span", { title: `layer ${layer}` }, layer), row));
  });
  const left = make("div", {}, layers, scale("0", "1, the weight of a look; colours go by its square root"));
  host.append(...(note ? [make("p", { class: "lead" }, `The sentence: ${note}.`)] : []), make("div", { class: "look" }, left, large()));
  choose(telling());
}

function mini(i) {
  const canvas = make("canvas", {}), role = data.heads[i].role;
  drawn(() => paint(canvas, mapOf(i), maps.size, maps.size));
  const button = make("button", { type: "button", class: "mini", "aria-pressed": "false", title: `head ${maps.names[i]}${role ? `, ${role}` : ""}`,
    "aria-label": `Map of head ${maps.names[i]}${role ? `, ${role}` : ""}`, onclick: () => choose(i) }, canvas, make("span", {}, role || ""));
  maps.then.push(() => button.setAttribute("aria-pressed", maps.chosen === i));
  return button;
}

/** The head that follows its role most closely is the one to begin with. */
function telling() {
  const lift = (head) => (head.role ? head.scores[head.role][2] : -1);
  return data.heads.reduce((best, head, i) => (lift(head) > lift(data.heads[best]) ? i : best), 0);
}

function choose(i, query = maps.query || Math.floor(maps.size * 0.7)) {
  maps.chosen = i;
  ask(query);
}

function ask(query) {
  maps.query = query;
  for (const each of maps.then) each();
}

// ---------------------------------------------------------------- the large one

function large() {
  const canvas = make("canvas", { role: "img", "aria-label": "The chosen head's map, enlarged" });
  const says = make("p", { class: "says", "aria-live": "polite" }), title = make("h3", {});
  const strip = make("div", { class: "strip", role: "group", "aria-label": "The sentence, token by token" });
  const tokens = data.attention.tokens.map((piece, i) => make("span", { tabindex: 0, onpointerenter: () => ask(i), onfocus: () => ask(i) }, piece));
  tokens.forEach((token, i) => strip.append(token, ...(/[\n⏎↵]/.test(data.attention.tokens[i]) ? [make("br")] : [])));
  const place = (event) => {
    const rect = canvas.getBoundingClientRect(), { margin, cell } = canvas;
    const spot = (value) => Math.min(maps.size - 1, Math.max(0, Math.floor((value - margin) / cell)));
    const query = spot(event.clientY - rect.top), key = spot(event.clientX - rect.left);
    ask(query);
    says.textContent = `Head ${maps.names[maps.chosen]}: ${quoted(query)} looks at ${quoted(key)} with ${percent(weight(maps.chosen, query, key))}.`;
  };
  canvas.addEventListener("pointermove", place);
  canvas.addEventListener("pointerdown", place);
  const update = () => {
    title.textContent = `Where does head ${maps.names[maps.chosen]} look?`;
    enlarge(canvas);
    shade(tokens);
    says.textContent = sentence();
  };
  maps.then.push(update);
  drawings.push(() => (enlarge(canvas), shade(tokens)));
  return make("div", { class: "big" }, title, canvas, says, strip);
}

const quoted = (i) => `‘${data.attention.tokens[i]}’ (${i})`;

/** The look of the chosen token in words: its three strongest. */
function sentence() {
  const { chosen, query } = maps, role = data.heads[chosen].role;
  const best = [...Array(maps.size).keys()].sort((a, b) => weight(chosen, query, b) - weight(chosen, query, a)).slice(0, 3);
  const looks = best.filter((key) => weight(chosen, query, key) >= 0.02).map((key) => `${quoted(key)} ${percent(weight(chosen, query, key))}`);
  return `${role ? `A head for the role “${role}”. ` : ""}${quoted(query)} looks at ${looks.join(", ") || "nothing in particular"}.`;
}

/** Cells of one head with the tokens along both sides, where they are large enough to read. */
function enlarge(canvas) {
  const wide = canvas.clientWidth || 320, dense = window.devicePixelRatio || 1, n = maps.size;
  const letters = data.attention.tokens.every((piece) => [...piece].length === 1);
  const margin = wide / n < 6.4 ? 4 : letters ? 18 : 34, cell = (wide - margin - 4) / n;
  Object.assign(canvas, { width: wide * dense, height: wide * dense, margin, cell });
  const pen = canvas.getContext("2d"), bytes = mapOf(maps.chosen);
  pen.scale(dense, dense);
  for (let q = 0; q < n; q++) {
    for (let k = 0; k < n; k++) {
      pen.fillStyle = rgb(bytes[q * n + k]);
      pen.fillRect(margin + k * cell, margin + q * cell, cell + 0.5, cell + 0.5);
    }
  }
  pen.strokeStyle = colour("orange");
  pen.lineWidth = 1.5;
  pen.strokeRect(margin, margin + maps.query * cell, (wide - margin - 4), cell);
  if (margin > 4) label(pen, margin, cell, letters);
}

function label(pen, margin, cell, letters) {
  pen.font = `${Math.min(12, cell * 1.1)}px ${getComputedStyle(document.body).getPropertyValue("--mono")}`;
  pen.textBaseline = "middle";
  data.attention.tokens.forEach((piece, i) => {
    const place = margin + (i + 0.5) * cell, text = [...piece].slice(0, 4).join("");
    pen.fillStyle = colour(i === maps.query ? "orange" : "soft");
    pen.textAlign = "right";
    pen.fillText(text, margin - 4, place);
    pen.save();
    pen.translate(place, margin - 4);
    pen.rotate(letters ? 0 : -Math.PI / 2);
    pen.textAlign = letters ? "center" : "left";
    pen.fillText(text, 0, letters ? -4 : 0);
    pen.restore();
  });
}

/** The sentence coloured by where the chosen token looks. */
function shade(tokens) {
  const row = mapOf(maps.chosen).subarray(maps.query * maps.size, (maps.query + 1) * maps.size);
  tokens.forEach((token, i) => {
    token.className = i === maps.query ? "asks" : i > maps.query && !row[i] ? "later" : "";
    token.style.background = row[i] > 12 ? rgb(row[i]) : "";
    token.style.color = row[i] > 140 ? colour("paper") : "";
  });
}
