// Head roles. Cards that explain the roles, and a table of how far every head goes.

// A small text to draw the roles on: "·" marks a delimiter, and the second half repeats the first.
const EXAMPLE = [..."abc·abc·ab"];
const LOOKS = {
  previous: (q, k) => k === q - 1,
  itself: (q, k) => k === q,
  same: (q, k) => k < q && EXAMPLE[k] === EXAMPLE[q],
  first: (q, k) => k === 0,
  delimiter: (q, k) => k <= q && EXAMPLE[k] === "·",
  induction: (q, k) => k > 0 && k <= q && EXAMPLE[k - 1] === EXAMPLE[q] && k - 1 < q,
};

/** The pattern that a head of nothing but this role would have. */
function icon(role) {
  const n = EXAMPLE.length, cells = [];
  for (let q = 0; q < n; q++) {
    for (let k = 0; k <= q; k++) {
      cells.push(draw("rect", { x: k, y: q, width: 0.86, height: 0.86, rx: 0.15, class: LOOKS[role]?.(q, k) ? "cell-on" : "cell-off" }));
    }
  }
  return draw("svg", { viewBox: `0 0 ${n} ${n}`, role: "img", "aria-label": `What a head for ${role} looks like` }, ...cells);
}

function startRoles() {
  const cards = at("role-cards"), host = at("role-table");
  if (!data.heads) {
    host.append(absent(data.absent));
    return;
  }
  cards.append(...data.roles.map(({ name, does }) => {
    const has = data.heads.filter((head) => head.role === name).map((head) => head.name);
    const who = has.length > 6 ? `${has.length} heads` : has.length ? `${has.length > 1 ? "heads" : "head"} ${has.join(", ")}` : "no head here";
    return make("article", { class: "role" }, icon(name), make("div", {}, make("h3", {}, name), make("p", {}, does), make("p", {}, make("b", {}, who))));
  }));
  host.append(roleTable());
}

function roleTable() {
  const columns = [
    { name: "head", value: (head) => -data.heads.indexOf(head), cell: named },
    ...data.roles.map(({ name }) => ({ name, value: (head) => head.scores[name]?.[0] ?? -1, cell: (head) => meter(head, name) })),
    { name: "entropy", value: (head) => head.entropy, cell: (head) => bits(head), title: "in bits: 0 looks at one token, 1 at two alike, 2 at four" },
    { name: "of most", wide: true, value: (head) => head.relative, cell: (head) => percent(head.relative), title: "entropy over that of looking at everything visible alike" },
    { name: "distance", wide: true, value: (head) => head.distance ?? -1, cell: (head) => head.distance?.toFixed(1) ?? "–", title: "tokens away, on average" },
  ];
  const body = make("tbody"), heads = columns.map((column) =>
    make("button", { type: "button", title: column.title, onclick: () => sort(column) }, column.name));

  function sort(column) {
    heads.forEach((button, i) => columns[i] === column ? button.setAttribute("aria-sort", "descending") : button.removeAttribute("aria-sort"));
    const order = [...data.heads].sort((a, b) => column.value(b) - column.value(a));
    body.replaceChildren(...order.map((head) => make("tr", {}, ...columns.map((each) =>
      make("td", { class: each.wide ? "wide" : each.name === "head" ? "name" : null }, each.cell(head))))));
  }

  sort(columns[0]);
  const top = make("tr", {}, ...heads.map((button, i) => make("th", { scope: "col", class: columns[i].wide ? "wide" : null }, button)));
  return make("div", { class: "scroll grid" }, make("table", {}, make("thead", {}, top), body));
}

/** A head's name: pressing it shows its map. */
function named(head) {
  return make("button", { type: "button", title: `show the map of head ${head.name}`, onclick: () => {
    choose(data.heads.indexOf(head));
    at("look").scrollIntoView();
  } }, head.name);
}

function meter(head, name) {
  if (!head.scores[name]) return make("span", { class: "none", title: `${name}: means nothing here` }, "–");
  const [value, chance] = head.scores[name];
  return make("div", { class: head.role === name ? "meter best" : "meter", title: `${name}: ${percent(value)}, by chance ${percent(chance)}` },
    make("i", { "width%": `${100 * value}%` }), bar(chance), make("b", {}, Math.round(100 * value)));
}

const bits = (head) => make("span", { title: `as if at ${(2 ** head.entropy).toFixed(1)} tokens alike` }, head.entropy.toFixed(1));

function bar(chance) {
  const line = make("u");
  line.style.left = `${100 * chance}%`;
  return line;
}
