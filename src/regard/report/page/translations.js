// How does it translate? Pairs beside what was meant, and which words a translation comes from.

function pairCard({ source, text, target }) {
  return make("article", { class: "sample pairs-of" }, make("h3", {}, source), make("p", { class: "told" }, text || "(nothing)"),
    make("p", { class: "meant" }, make("span", {}, text === target ? "just as meant" : "meant: "), text === target ? "" : target));
}

/** A table of target tokens by source tokens: how much of each look went where. */
function startAlignment() {
  const host = at("alignment"), seen = data.alignment;
  if (seen.absent) host.append(absent(seen.absent));
  if (!seen.weights) return;
  const bytes = bytesOf(seen.weights), width = seen.source.length;
  const top = make("tr", {}, make("td"), ...seen.source.map((piece) => make("th", { scope: "col" }, make("span", {}, piece))));
  const cells = [], body = seen.target.map((piece, i) => make("tr", {}, make("th", { scope: "row" }, piece), ...seen.source.map((other, j) => {
    const byte = bytes[i * width + j], share = byte / 255;
    const cell = make("td", { title: `${piece} looks at ${other}: ${percent(share)}` }, share >= 0.1 ? `.${String(Math.round(100 * Math.min(share, 0.99))).padStart(2, "0")}` : "");
    cells.push([cell, byte]);
    return cell;
  })));
  drawn(() => cells.forEach(([cell, byte]) => {
    cell.style.background = rgb(byte);
    cell.style.color = byte > 140 ? colour("paper") : colour("ink");
  }));
  host.append(make("h3", {}, "Alignment of a translation"),
    make("p", { class: "lead" }, make("b", {}, seen.text), " → ", make("b", {}, seen.told), ` Each row is a token that it tells, each column one that it reads: the share of its look, on average over the heads of layer ${seen.layer} that look across.${seen.cut ? " Only the beginning is shown." : ""}`),
    make("div", { class: "scroll" }, make("table", { class: "align" }, make("thead", {}, top), make("tbody", {}, ...body))), scale("0", "1, the whole look"));
}
