// The page begins: colours, then every section in its order.

function startHeadline() {
  at("headline").append(...data.headline.map(({ name, value, note }) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: "value" }, value), make("dd", { class: "remark" }, note))));
}

const THEMES = [["light dark", "◐", "as the system says"], ["light", "○", "light"], ["dark", "●", "dark"]];
let theme = 0;

function setTheme(scheme) {
  document.documentElement.style.colorScheme = scheme;
  redraw();
}

function startTheme() {
  at("theme").addEventListener("click", () => {
    theme = (theme + 1) % THEMES.length;
    const [scheme, sign, words] = THEMES[theme];
    at("theme").textContent = sign;
    at("theme").setAttribute("aria-label", `Colours: ${words}`);
    setTheme(scheme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => setTheme("light")); // paper is white
  addEventListener("afterprint", () => setTheme(THEMES[theme][0]));
}

let waiting = 0, width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar comes and goes
  width = innerWidth;
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(redraw);
});

document.body.append(probe);
readRamp();
readMaps();
for (const start of [startTheme, startHeadline, startQuote, startScores, startCurves, startHealth, startSamples, startAnswers, startAlignment, startMaps, startRoles, startLikeness, startWords, startCost]) start();
document.documentElement.dataset.ready = "yes";
