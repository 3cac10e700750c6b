// What does it write? Samples along the training, a column for each temperature.

function startSamples() {
  const host = at("samples"), steps = [...new Set(data.samples.map((sample) => sample.step))].sort((a, b) => a - b);
  if (!steps.length) {
    host.append(absent("No samples were written during this run."));
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
    const shown = data.samples.filter((sample) => sample.step === steps[i]).sort((a, b) => a.temperature - b.temperature);
    columns.replaceChildren(...shown.map((sample) => make("article", { class: "sample" },
      make("h3", {}, `temperature ${sample.temperature}`),
      make("p", { tabindex: 0 }, ...said(sample)))));
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

/** The first lines of the last sample, for the top of the page. */
function startQuote() {
  const last = data.samples.filter((sample) => sample.step === data.samples.at(-1)?.step);
  if (!last.length) return;
  const middle = last.sort((a, b) => a.temperature - b.temperature)[Math.floor(last.length / 2)];
  at("quote").append(make("blockquote", {}, middle.text.trim().split("\n").slice(0, 9).join("\n")),
    make("figcaption", {}, `What it writes at temperature ${middle.temperature}`));
}
