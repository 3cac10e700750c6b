// Predicted and measured cost. The parameters by part, and a table.

const PARTS = { embedding: "orange", positions: "olive", attention: "blue", "cross-attention": "green", "feed-forward": "purple", norms: "soft", head: "olive" };

function startCost() {
  const host = at("bill"), { parts, rows, absent: why } = data.cost;
  const total = Object.values(parts).reduce((sum, count) => sum + count, 0);
  const named = Object.entries(parts);
  host.append(
    make("div", { class: "stack", role: "img", "aria-label": `Parameters: ${named.map(([name, count]) => `${name} ${percent(count / total)}`).join(", ")}` },
      ...named.map(([name, count]) => {
        const block = make("div", { "--key": `var(--${PARTS[name]})`, title: `${name}: ${whole(count)}` });
        block.style.flexGrow = count;
        return block;
      })),
    make("div", { class: "stack-keys" }, ...named.map(([name, count]) => make("span", {}, make("i", { "--key": `var(--${PARTS[name]})` }), `${name} ${whole(count)} (${percent(count / total)})`))));
  if (why) host.append(absent(why));
  if (!rows.length) return;
  const top = make("tr", {}, ...["", "predicted", "measured", "difference"].map((word) => make("th", { scope: "col" }, word)), make("th", { class: "remark" }, ""));
  host.append(make("div", { class: "scroll" }, make("table", { class: "bill" }, make("thead", {}, top), make("tbody", {}, ...rows.map((row) =>
    make("tr", {}, make("td", {}, row.what), make("td", {}, row.predicted), make("td", {}, row.measured), make("td", {}, row.difference), make("td", { class: "remark" }, row.note)))))));
}
