"use strict";
// Saves the plot of a button's figure, in the colours for light backgrounds.
function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
document.querySelectorAll("figure button").forEach((button) => {
  button.addEventListener("click", () => {
    const figure = button.closest("figure");
    const text = new XMLSerializer().serializeToString(figure.querySelector("svg"));
    const svg = new Blob([text], { type: "image/svg+xml;charset=utf-8" });
    if (button.dataset.kind === "svg") {
      save(svg, figure.id + ".svg");
      return;
    }
    const view = figure.querySelector("svg").viewBox.baseVal;
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      // Three pixels to one that is shown: sharp in print.
      canvas.width = 2580;
      canvas.height = Math.round((2580 * view.height) / view.width);
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((png) => save(png, figure.id + ".png"), "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  });
});
