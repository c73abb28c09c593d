// -- decisions: behind playground.js, whose functions it uses ---------------------------------------------------------

const SHOWN = 32; // bars that are drawn: of more alternatives the likeliest
let weighing = null;
FIELDS.push("question", "alternatives", "template");

function questionBody() { // the request's body: a choice among the alternatives about the prompt's text
  const choices = byId("alternatives").value.split("\n").map((line) => line.trim()).filter(Boolean).map((value) => ({ value }));
  const template = byId("template").value, instructions = byId("question").value.trim();
  return {
    model: SERVED.model, input: byId("prompt").value,
    questions: [{ type: "choice", ...(instructions ? { instructions } : {}), choices }],
    diffusion: { estimator: byId("estimator").value, ...(template ? { template } : {}) },
  };
}

async function decide() {
  weighing?.abort();
  const ours = weighing = new AbortController();
  const fail = (sentence) => { byId("unweighed").textContent = sentence; byId("unweighed").hidden = !sentence; };
  fail("");
  byId("weights").replaceChildren();
  byId("weighed").textContent = "";
  if (!byId("prompt").value.trim()) return fail("The prompt is empty: write what the question is about.");
  keepInAddress();
  try {
    const reply = await reach("v1/decisions", {
      method: "POST", headers: { "Content-Type": "application/json" }, signal: ours.signal, body: JSON.stringify(questionBody()),
    });
    showWeights(await reply.json());
  } catch (error) {
    if (error.name !== "AbortError") fail(error.message);
  }
}

const share = (p) => p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;

function showWeights(reply) {
  const [answer] = reply.answers, told = answer.diffusion, cost = reply.diffusion;
  const found = [...answer.probabilities].sort((one, other) => other.probability - one.probability);
  for (const { value, probability } of found.slice(0, SHOWN)) {
    const row = element(byId("weights"), "tr", value === answer.choice ? "chosen" : "");
    element(row, "th", "", String(value), { scope: "row" });
    const cell = element(row, "td", "weight"), bar = element(cell, "span", "bar");
    bar.style.width = `${100 * probability}%`;
    element(row, "td", "share", share(probability));
  }
  const parts = [
    `${answer.choice}, confidence ${share(answer.confidence)}`,
    told.mass === null ? "" : `${share(told.mass)} on the alternatives`,
    told.argmax_is_label ? "" : "the model would rather write something else",
    `${cost.forwards} forward${cost.forwards === 1 ? "" : "s"}`, `${cost.rows} canvas${cost.rows === 1 ? "" : "es"}`,
    `${cost.seconds.toFixed(2)} s`, told.calibrated ? `calibrated, T ${told.temperature.toFixed(2)}` : "not calibrated",
    found.length > SHOWN ? `the likeliest ${SHOWN} of ${found.length} are shown` : "",
  ];
  byId("weighed").textContent = parts.filter(Boolean).join(" · ");
  byId("weighed").scrollIntoView({ block: "nearest" });
}

byId("weigh").addEventListener("submit", (event) => { event.preventDefault(); decide(); });
byId("example").addEventListener("click", () => {
  for (const [name, text] of Object.entries(SERVED.decision)) byId(name).value = text;
  decide();
});
if (/[#&](question|alternatives|template)=/.test(location.hash)) byId("decide").open = true;
