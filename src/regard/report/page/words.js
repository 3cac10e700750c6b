// Map of token embeddings. A plane of tokens; choose one to see its neighbours.

const KINDS = { vowel: "orange", "capital vowel": "purple", "lower case": "blue", "upper case": "green", "mark or digit": "olive", space: "soft" };

function startWords() {
  const host = at("words"), words = data.words;
  if (words.absent) {
    host.append(absent(words.absent));
    return;
  }
  at("words-lead").textContent = `The vectors of ${words.whole > words.pieces.length ? `the ${words.pieces.length} tokens it uses most, of ${whole(words.whole)}` : `all ${words.whole} tokens`}, laid on the plane that shows most of their differences: ${percent(words.shown)} of them. Near means alike, roughly; the list goes by the whole vectors.`;
  const svg = draw("svg", { role: "group", "aria-label": "Tokens laid out by likeness" }), list = make("ul", { class: "near" });
  const title = make("h3", {});
  const used = Object.keys(KINDS).filter((kind) => words.kinds.includes(kind));
  const legend = make("div", { class: "kinds stack-keys" }, ...used.map((kind) => make("span", {}, make("i", { "--key": `var(--${KINDS[kind]})` }), kind)));
  host.append(make("div", { class: "beside" }, make("div", {}, make("div", { class: "plane" }, svg), legend), make("div", {}, title, list, make("h3", {}, "Closest of all"), make("p", { class: "pairs" }, ...words.pairs.flatMap(([a, b, cosine]) => [make("span", {}, make("b", { class: "piece" }, `${a} ${b}`), ` ${cosine.toFixed(2)}`), " "])))));
  let places = [], chosen = Math.max(0, words.pieces.indexOf("a"));

  function choose(i) {
    chosen = i;
    title.replaceChildren("Nearest to ", make("span", { class: "piece" }, `‘${words.pieces[i]}’`));
    list.replaceChildren(...words.near[i].map((piece, j) => make("li", {}, make("code", {}, piece), share(words.cosines[i][j]), words.cosines[i][j].toFixed(2))));
    lay();
  }

  function lay() {
    const near = words.near[chosen].map((piece) => words.pieces.indexOf(piece)).filter((i) => i >= 0), [x, y] = places[chosen];
    svg.replaceChildren(...near.map((i) => draw("line", { x1: x, y1: y, x2: places[i][0], y2: places[i][1] })),
      ...words.pieces.map((piece, i) => {
        const text = draw("text", { x: places[i][0], y: places[i][1], tabindex: 0, "aria-label": `token ${piece}`, onpointerenter: () => i !== chosen && choose(i), onfocus: () => i !== chosen && choose(i),
          class: i === chosen ? "chosen" : near.includes(i) ? null : "far" }, piece.trim() || piece);
        text.style.fill = `var(--${KINDS[words.kinds[i]]})`;
        return text;
      }));
  }

  drawn(() => {
    const wide = svg.clientWidth || 320, high = Math.min(460, wide * 0.82);
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    svg.setAttribute("height", high);
    places = apart(fitted(words.at, wide, high), words.pieces, wide, high);
    choose(chosen);
  });
}

const share = (cosine) => make("div", { class: "meter" }, make("i", { "width%": `${100 * Math.max(0, cosine)}%` }));

/** The plane laid into a box, as large as it goes, with one scale for both axes. */
function fitted(points, wide, high) {
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const middle = [xs, ys].map((values) => (Math.min(...values) + Math.max(...values)) / 2);
  const size = [xs, ys].map((values) => Math.max(...values) - Math.min(...values) || 1);
  const zoom = Math.min((wide - 60) / size[0], (high - 50) / size[1]);
  return points.map(([x, y]) => [wide / 2 + (x - middle[0]) * zoom, high / 2 + (y - middle[1]) * zoom]);
}

/** Tokens that would cover each other move apart a little. */
function apart(places, pieces, wide, high) {
  const half = pieces.map((piece) => 5 + 4.2 * [...piece].length);
  for (let round = 0; round < 150; round++) {
    for (let i = 0; i < places.length; i++) {
      for (let j = 0; j < i; j++) {
        const dx = places[i][0] - places[j][0], dy = places[i][1] - places[j][1];
        const over = [half[i] + half[j] - Math.abs(dx), 17 - Math.abs(dy)];
        if (over[0] <= 0 || over[1] <= 0) continue;
        const axis = over[0] < over[1] ? 0 : 1, push = Math.min(over[axis], 4) / 2 * (([dx, dy][axis] || i - j) > 0 ? 1 : -1);
        places[i][axis] += push;
        places[j][axis] -= push;
      }
    }
  }
  return places.map(([x, y], i) => [Math.min(wide - half[i], Math.max(half[i], x)), Math.min(high - 12, Math.max(12, y))]);
}
