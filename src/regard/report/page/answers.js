// Predictions. Rows that it never trained on, the prediction of each, and all predictions together.

function startAnswers() {
  const host = at("answers"), { absent: why, rows, name, count, confusion, points, asked, wrong } = data.answers;
  if (why) host.append(absent(why));
  if (!rows) return;
  if (confusion) host.append(confused(confusion, asked, count));
  if (points) host.append(scattered(points, asked, count));
  if (rows.length) host.append(make("div", { class: rows[0].picture ? "columns small" : "columns wide" }, ...rows.map(answerCard)),
    make("p", { class: "scale" }, `${rows.length} of the ${whole(count)} rows that were kept back (${name}), from everywhere alike${wrong ? `; the worst ${wrong > 1 ? wrong : "one"} first` : ""}.`));
  else host.append(absent("The rows that were kept back are too short to ask something."));
}

const TELLING = ["span_corruption", "text_infilling", "prefix_lm"]; // a text for a text, as a translation is

function answerCard(row) {
  const texts = row.asked.map((text) => make("p", { class: "text" }, ...text.map(spot), row.cut ? " …" : null));
  const picture = row.picture ? shownPicture(row) : null;
  if (TELLING.includes(data.task)) return pairCard({ source: row.asked[0][0], text: row.said, target: row.meant });
  return make("article", { class: row.picture ? "sample answer pictured" : "sample answer" }, picture, ...texts, row.said == null ? null : make("p", { class: "verdict" }, ...verdict(row)));
}

const shownPicture = ({ picture, name }) => make("img", { class: "seen", src: picture, alt: name, title: name });

/** A place where something was asked: what was said there, and what is right if that is something else. */
function spot(part) {
  if (typeof part === "string") return part;
  const { text, said, meant, right } = part;
  const words = text == null ? [said] : said == null ? [text] : [text, " ", make("b", {}, said)];
  const aside = right || meant == null ? null : make("s", { "aria-label": `wrong, it is ${meant}` }, meant);
  return make("span", { class: right ? "spot" : "spot wrong", title: said == null ? null : right ? `${said}: right` : `it says ${said}, and it is ${meant}` }, ...words, aside);
}

function verdict({ said, meant, sure, right }) {
  const share = sure == null ? "" : ` ${percent(sure)}`;
  if (right) return [make("span", { class: "spot" }, said), `${share}, which is right`];
  return [make("span", { class: right == null ? "spot" : "spot wrong" }, said), `${share}; in truth `, make("b", {}, meant)];
}

/** Which class was taken for which: a row for each that was meant. */
function confused({ classes, of, counts, always, frequent }, asked, count) {
  const most = Math.max(1, ...counts.flat()), cells = [];
  const rows = counts.map((row, i) => make("tr", {}, make("th", { scope: "row" }, classes[i]), ...row.map((number, j) => {
    const cell = make("td", { class: i === j ? "right" : null, title: `${number} of class ${classes[i]} taken for ${classes[j]}` }, whole(number));
    cells.push([cell, Math.round((255 * number) / most)]);
    return cell;
  })));
  drawn(() => cells.forEach(([cell, byte]) => {
    cell.style.background = rgb(byte);
    cell.style.color = byte > 140 ? colour("paper") : colour("ink");
  }));
  const top = make("tr", {}, make("th", { scope: "col", class: "corner" }, "is ↓ taken for →"), ...classes.map((name) => make("th", { scope: "col" }, name)));
  const many = `${whole(asked)}${asked < count ? ` of ${whole(count)}` : ""} rows${of > classes.length ? `, of the ${classes.length} most frequent of ${of} classes` : ""}`;
  return make("figure", { class: "whole" }, make("h3", {}, "Confusion matrix"),
    make("div", { class: "scroll" }, make("table", { class: "confusion" }, make("thead", {}, top), make("tbody", {}, ...rows))),
    make("figcaption", {}, `${many}. Who always says ${frequent} is right ${percent(always)} of the time.`));
}

/** Numbers that were given over numbers that are right; on the line the two are the same. */
function scattered(points, asked, count) {
  const svg = draw("svg", { role: "img", "aria-label": `What was given to ${asked} rows over what is right` }), values = points.flat();
  const low = Math.min(...values), high = Math.max(...values);
  drawn(() => {
    const wide = Math.min(420, svg.clientWidth || 320), box = { left: 44, right: wide - 10, top: 10, bottom: wide - 34 };
    svg.setAttribute("viewBox", `0 0 ${wide} ${wide}`);
    svg.setAttribute("height", wide);
    const x = across(low, high, box, false), y = (value) => box.bottom - (x(value) - box.left) * ((box.bottom - box.top) / (box.right - box.left));
    const marks = ticks(low, high, 4), names = labels(marks);
    svg.replaceChildren(...marks.flatMap((mark, i) => [draw("line", { class: "rule", x1: box.left, x2: box.right, y1: y(mark), y2: y(mark) }),
      draw("text", { x: box.left - 6, y: y(mark) + 4, "text-anchor": "end" }, names[i]), draw("text", { x: x(mark), y: box.bottom + 16, "text-anchor": "middle" }, names[i])]),
      draw("line", { class: "limit", x1: x(low), y1: y(low), x2: x(high), y2: y(high) }),
      ...points.map(([said, meant]) => draw("circle", { cx: x(meant), cy: y(said), r: 3, class: "dot" })));
  });
  return make("figure", { class: "whole" }, make("h3", {}, "Predictions and labels"), svg,
    make("figcaption", {}, `${whole(asked)}${asked < count ? ` of ${whole(count)}` : ""} rows: upwards what it gives, to the right what is right.`));
}
