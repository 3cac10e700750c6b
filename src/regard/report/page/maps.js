// Attention weights. A map for every head; one of them large, and its sentence to point at.
// Heads stand in groups: those of one group look from the same tokens (queries) at the same (keys).

const maps = { groups: [], heads: [], group: null, chosen: 0, query: 0, then: [] };
const DOES = { encoder: "how the encoder reads the source", decoder: "how the decoder reads what it has told", across: "where the decoder looks in the source" };

/** A head's map: queries x keys bytes, each 255 times the square root of a weight. */
const weight = (i, query, key) => (maps.heads[i].bytes[query * maps.heads[i].group.keys.length + key] / 255) ** 2;

function readMaps() {
  if (!data.attention) return;
  for (const given of data.attention.groups) {
    const bytes = bytesOf(given.maps), size = given.queries.length * given.keys.length;
    const group = { ...given, first: maps.heads.length };
    maps.groups.push(group);
    for (let i = 0; i < bytes.length / size; i++) {
      maps.heads.push({ ...data.heads[maps.heads.length], group, bytes: bytes.subarray(i * size, (i + 1) * size) });
    }
  }
}

const picture = (canvas, i) => paint(canvas, maps.heads[i].bytes, maps.heads[i].group.queries.length, maps.heads[i].group.keys.length);

function startMaps() {
  const host = at("maps");
  if (!data.attention) {
    host.append(absent(data.absent));
    return;
  }
  const { note } = data.attention, several = maps.groups.length > 1;
  const grids = maps.groups.map(grid_of), place = make("span", { class: "lead" });
  const first = maps.groups.at(-1); // of a translator, those that look across
  const buttons = several ? choice("Whose heads", Object.fromEntries(maps.groups.map((group) => [group.name, group])), first, (group) => choose(telling(group))) : null;
  maps.then.push(() => maps.groups.forEach((group, i) => {
    grids[i].hidden = group !== maps.heads[maps.chosen].group;
    buttons?.children[i].setAttribute("aria-pressed", !grids[i].hidden);
    if (several && !grids[i].hidden) place.textContent = DOES[group.name] || "";
  }));
  const left = make("div", {}, ...grids, scale("0", "1, the weight of a look; colours go by its square root"));
  host.append(...(note ? [make("p", { class: "lead" }, `${data.thing === "text" ? "The sentence" : `The ${data.thing}`}: ${note}.`)] : []),
    ...(several ? [make("div", { class: "controls" }, buttons, place)] : []), make("div", { class: "look" }, left, large()));
  choose(telling(first));
}

/** The small maps of a group, a row for each layer. */
function grid_of({ heads, first, name }) {
  const layers = make("div", { class: Math.max(...heads) > 6 ? "layers many" : "layers", "aria-label": `Maps of all heads, ${name}` });
  let i = first;
  heads.forEach((count, layer) => {
    const row = make("div", { class: "row" });
    for (let head = 0; head < count; head++) row.append(mini(i++));
    layers.append(make("div", { class: "layer" }, make("span", { title: `layer ${layer}` }, layer), row));
  });
  return layers;
}

function mini(i) {
  const canvas = make("canvas", {}), { role, name, group } = maps.heads[i];
  canvas.style.aspectRatio = `${group.keys.length} / ${group.queries.length}`;
  drawn(() => picture(canvas, i));
  const button = make("button", { type: "button", class: "mini", "aria-pressed": "false", title: `head ${name}${role ? `, ${role}` : ""}`,
    "aria-label": `Map of head ${name}${role ? `, ${role}` : ""}`, onclick: () => choose(i) }, canvas, make("span", {}, role || ""));
  maps.then.push(() => button.setAttribute("aria-pressed", maps.chosen === i));
  return button;
}

/** The head of a group that follows its role most closely is the one to begin with. */
function telling(group) {
  const lift = (head) => (head.role ? head.scores[head.role][2] : -1);
  return maps.heads.reduce((best, head, i) => (head.group === group && lift(head) > lift(maps.heads[best]) ? i : best), group.first);
}

function choose(i) {
  const { group } = maps.heads[i];
  if (group !== maps.group) {
    maps.query = Math.floor(group.queries.length * 0.7);
    maps.group = group;
  }
  maps.chosen = i;
  ask(maps.query);
}

function ask(query) {
  maps.query = query;
  for (const each of maps.then) each();
}

// ---------------------------------------------------------------- the large one

function large() {
  const canvas = make("canvas", { role: "img", "aria-label": "The chosen head's map, enlarged" });
  const says = make("p", { class: "says", "aria-live": "polite" }), title = make("h3", {}), strips = make("div", {});
  const place = (event) => {
    const rect = canvas.getBoundingClientRect(), { margin, cell } = canvas, { group, name } = maps.heads[maps.chosen];
    const spot = (value, count) => Math.min(count - 1, Math.max(0, Math.floor((value - margin) / cell)));
    const query = spot(event.clientY - rect.top, group.queries.length), key = spot(event.clientX - rect.left, group.keys.length);
    ask(query);
    says.textContent = `Head ${name}: ${quoted(group.queries, query)} looks at ${quoted(group.keys, key)} with ${percent(weight(maps.chosen, query, key))}.`;
  };
  canvas.addEventListener("pointermove", place);
  canvas.addEventListener("pointerdown", place);
  let group = null, tokens = {};
  const update = () => {
    const head = maps.heads[maps.chosen];
    if (head.group !== group) {
      group = head.group;
      tokens = laidOut(group, strips);
    }
    title.textContent = `Where does head ${head.name} look?`;
    enlarge(canvas);
    shade(tokens);
    says.textContent = sentence();
  };
  maps.then.push(update);
  drawings.push(() => (enlarge(canvas), shade(tokens)));
  return make("div", { class: "big" }, title, canvas, says, strips);
}

/** The tokens to point at, and those they look at: the same ones, or above and below. */
function laidOut(group, host) {
  if (group.grid && group.own) return patched(group, host);
  const pieces = (list, asks) => list.map((piece, i) => make("span", asks ? { tabindex: 0, onpointerenter: () => ask(i), onfocus: () => ask(i) } : {}, piece));
  const line = (tokens, list, label) => make("div", { class: "strip", role: "group", "aria-label": label },
    ...tokens.flatMap((token, i) => [token, ...(/[\n⏎↵]/.test(list[i]) ? [make("br")] : [])]));
  const queries = pieces(group.queries, true), keys = group.own ? queries : pieces(group.keys, false);
  host.replaceChildren(...(group.own ? [] : [line(keys, group.keys, "The source, token by token")]),
    line(queries, group.queries, group.own ? "The sentence, token by token" : "The translation, token by token"));
  return { queries, keys };
}

/** The patches of a picture to point at, laid over it; a learned token that has no place stands beside it. */
function patched({ queries: names, grid: [rows, columns] }, host) {
  const queries = names.map((name, i) => make("span", { tabindex: 0, title: name, onpointerenter: () => ask(i), onfocus: () => ask(i) }, name === "whole" ? name : ""));
  const picture = data.answers.rows?.[0]?.picture, beside = queries.filter((_, i) => names[i] === "whole");
  const over = make("div", { class: "patches", role: "group", "aria-label": "The picture, patch by patch", "--rows": rows, "--columns": columns },
    picture ? make("img", { src: picture, alt: "" }) : null, ...queries.filter((_, i) => names[i] !== "whole"));
  host.replaceChildren(...(beside.length ? [make("div", { class: "strip" }, ...beside)] : []), over);
  return { queries, keys: queries, over: true };
}

const quoted = (list, i) => `‘${list[i]}’ (${i})`;

/** The look of the chosen token in words: its three strongest. */
function sentence() {
  const { chosen, query } = maps, { role, group } = maps.heads[chosen];
  const best = [...group.keys.keys()].sort((a, b) => weight(chosen, query, b) - weight(chosen, query, a)).slice(0, 3);
  const looks = best.filter((key) => weight(chosen, query, key) >= 0.02).map((key) => `${quoted(group.keys, key)} ${percent(weight(chosen, query, key))}`);
  return `${role ? `A head for the role “${role}”. ` : ""}${quoted(group.queries, query)} looks at ${looks.join(", ") || "nothing in particular"}.`;
}

/** Cells of one head with the tokens along both sides, where they are large enough to read. */
function enlarge(canvas) {
  const { group, bytes } = maps.heads[maps.chosen], { queries, keys } = group;
  const wide = canvas.clientWidth || 320, dense = window.devicePixelRatio || 1, most = Math.max(queries.length, keys.length);
  const letters = [...queries, ...keys].every((piece) => [...piece].length === 1);
  const margin = wide / most < 6.4 ? 4 : letters ? 18 : 50, cell = (wide - margin - 4) / most, high = margin + queries.length * cell + 4;
  canvas.style.height = `${high}px`;
  Object.assign(canvas, { width: wide * dense, height: high * dense, margin, cell });
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  for (let q = 0; q < queries.length; q++) {
    for (let k = 0; k < keys.length; k++) {
      pen.fillStyle = rgb(bytes[q * keys.length + k]);
      pen.fillRect(margin + k * cell, margin + q * cell, cell + 0.5, cell + 0.5);
    }
  }
  pen.strokeStyle = colour("orange");
  pen.lineWidth = 1.5;
  pen.strokeRect(margin, margin + maps.query * cell, keys.length * cell, cell);
  if (margin > 4) label(pen, group, margin, cell, letters);
}

function label(pen, { queries, keys }, margin, cell, letters) {
  const clip = (piece) => (letters ? piece : [...piece].slice(0, 6).join(""));
  pen.font = `${Math.min(12, cell * 1.1)}px ${getComputedStyle(document.body).getPropertyValue("--mono")}`;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  queries.forEach((piece, i) => {
    pen.fillStyle = colour(i === maps.query ? "orange" : "soft");
    pen.fillText(clip(piece), margin - 4, margin + (i + 0.5) * cell);
  });
  pen.fillStyle = colour("soft");
  pen.textAlign = letters ? "center" : "left";
  keys.forEach((piece, i) => {
    pen.save();
    pen.translate(margin + (i + 0.5) * cell, margin - 4);
    pen.rotate(letters ? 0 : -Math.PI / 2);
    pen.fillText(clip(piece), 0, letters ? -4 : 0);
    pen.restore();
  });
}

/** The keys coloured by where the chosen query looks. */
function shade({ queries, keys, over }) {
  const { bytes, group } = maps.heads[maps.chosen], row = bytes.subarray(maps.query * keys.length, (maps.query + 1) * keys.length);
  queries.forEach((token, i) => (token.className = i === maps.query ? "asks" : ""));
  keys.forEach((token, i) => {
    if (group.own && i > maps.query && !row[i]) token.className = "later";
    token.style.background = row[i] > 12 ? (over ? `rgb(213 94 0 / ${(0.9 * row[i]) / 255})` : rgb(row[i])) : "";
    token.style.color = row[i] > 140 ? colour("paper") : "";
  });
}
