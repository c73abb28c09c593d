// Shared by the trace page and the playground: a token keeps its place while its word is not there yet, since its box
// is as wide as what it will hold.

function measure(host) { // a function: how wide a text is in the font of an element, in em
  const style = getComputedStyle(host), pen = document.createElement("canvas").getContext("2d");
  pen.font = `${style.fontSize} ${style.fontFamily}`;
  const known = new Map(), size = parseFloat(style.fontSize);
  return (text) => {
    if (!known.has(text)) known.set(text, Math.max(pen.measureText(text.replaceAll(/[\n\t]/g, "")).width, pen.measureText("·").width) / size);
    return known.get(text);
  };
}

function breakLine(span, count) { // so many line ends behind a token
  while (span.nextSibling?.tagName === "BR" && count < 1) span.nextSibling.remove();
  if (span.nextSibling?.tagName === "BR") return;
  for (let made = 0; made < count; made++) span.after(document.createElement("br"));
}

function mark_share(span, share) { // of the likeliest token in what a position shows; undefined: no mixture
  span.classList.toggle("mixed", share !== undefined);
  if (share === undefined) span.style.removeProperty("--share");
  else span.style.setProperty("--share", percent(share));
}

const percent = (share) => `${Math.round(100 * share)}%`;
const lineEnds = (text) => text.split("\n").length - 1;
