// Generated text. Samples along the training, a column for each temperature.

function startSamples() {
  if (data.task === "translation") return along(data.translations, pairCard, "No translations were written during this run.");
  if (data.task !== "next_token" && !data.samples.length) return;
  along(data.samples, (sample) => make("article", { class: "sample" }, make("h3", {}, `temperature ${sample.temperature}`),
    make("p", { tabindex: 0 }, ...said(sample))), "No samples were written during this run.");
}

/** What was said at each step of the training, a card each, with a slider to go through the steps. */
function along(lines, card, none) {
  const host = at("samples"), steps = [...new Set(lines.map((line) => line.step))].sort((a, b) => a - b);
  if (!steps.length) {
    host.append(absent(none));
    return;
  }
  const columns = make("div", { class: "columns" }), where = make("span", { "aria-live": "polite" });
  const slider = make("input", { type: "range", min: 0, max: steps.length - 1, step: 1, "aria-label": "Step of the training",
    oninput: () => turn(+slider.value) });
  const play = make("button", { type: "button", class: "play", "aria-label": "Play the training", onclick: toggle }, "▶");
  let playing = 0;

  function turn(i) {
    slider.value = i;
    where.textContent = `step ${whole(steps[i])}${lossAt(steps[i])}`;
    columns.replaceChildren(...lines.filter((line) => line.step === steps[i]).sort((a, b) => a.temperature - b.temperature || 0).map(card));
  }

  function toggle() {
    playing = playing ? clearInterval(playing) || 0 : setInterval(next, 900);
    play.textContent = playing ? "❚❚" : "▶";
    if (playing) turn(+slider.value === steps.length - 1 ? 0 : +slider.value);
  }

  function next() {
    if (+slider.value < steps.length - 1) turn(+slider.value + 1);
    else toggle();
  }

  if (steps.length > 1) host.append(make("div", { class: "controls" }, play, slider, where));
  host.append(columns);
  turn(steps.length - 1);
}

/** The prompt and what follows, exactly; where the prompt is only a line break, the text begins at its first line. */
function said({ prompt, text }) {
  return prompt.trim() ? [make("span", { class: "prompt" }, prompt), text] : [text.replace(/^\n+/, "")];
}

function lossAt(step) {
  for (const { step: steps, value } of [data.curves.final, data.curves.validation]) {
    const i = steps.lastIndexOf(step);
    if (i >= 0 && value[i] != null) return `, validation loss ${value[i].toFixed(3)}`;
  }
  return "";
}

/** The first thing that it says, for the top of the page. */
function startQuote() {
  const last = data.samples.filter((sample) => sample.step === data.samples.at(-1).step);
  const row = data.answers.rows?.[0], told = TELLING.includes(data.task) && row ? { source: row.asked[0][0], text: row.said } : null;
  const pair = data.translations.find((line) => line.step === data.translations.at(-1).step) || told;
  if (last.length) {
    const middle = last.sort((a, b) => a.temperature - b.temperature)[Math.floor(last.length / 2)];
    quote(middle.text.trim().split("\n").slice(0, 9).join("\n"), `What it writes at temperature ${middle.temperature}`);
  } else if (pair) quote(pair.text, `What it makes of “${pair.source}”`);
  else if (row?.picture) at("quote").append(shownPicture(row), make("figcaption", {}, ...verdict(row)));
  else if (row) at("quote").append(make("blockquote", {}, ...row.asked.at(-1).map(spot)), make("figcaption", {}, ...verdict(row)));
}

const quote = (text, caption) => at("quote").append(make("blockquote", {}, text), make("figcaption", {}, caption));
