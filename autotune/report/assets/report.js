"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = matchMedia("(max-width: 40rem)");

  // Colours in the figures are names of CSS variables; plotly wants the colours themselves.
  const coloured = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(
        Object.entries(value).map(([key, item]) => [key, coloured(item, style)]),
      );
    }
    return value;
  };

  const draw = () => {
    if (typeof Plotly === "undefined") return;
    const style = getComputedStyle(document.documentElement);
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = coloured(figures[place.dataset.figure], style);
      if (narrow.matches) figure.layout.font.size = 12;
      figure.layout.width = place.clientWidth;
      Plotly.react(place, figure.data, figure.layout, { displayModeBar: false });
    }
  };

  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
  addEventListener("resize", soon);
  // Paper is light and narrow: the figures are drawn again for it, and back afterwards.
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    draw();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    draw();
  });

  const said = document.getElementById("said");
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent.replace(/ \\\n\s*/g, " "));
        said.textContent = "Copied.";
        button.classList.add("done");
      } catch {
        getSelection().selectAllChildren(source);
        said.textContent = "Selected: copy it with the keyboard.";
      }
    });
  }
})();
