"""The same prompt under two rules: what each forward commits, and how many forwards each rule takes."""

from dllm import Decoder, load, part

PROMPT = 'Sort the list:\n["Nell", "Kai", "Emma", "Hugo"]'
model = load("mini-llada")


def shown(canvas: list[int]) -> str:
    """The answer so far: a dot for a mask, nothing for the ends of text that fill it up."""
    return "".join("·" if token == model.ids.mask else model.tokenizer.decode([token]) for token in canvas)


for name, options in {"static": {"steps": 8}, "confidence": {"threshold": 0.9}}.items():
    (result,) = Decoder(model, part("sampler", name, **options), gen_length=32)(PROMPT, trace=True)
    print(f"{name}, forwards: {result.nfe}")
    for canvas in result.trace.canvases():
        print("   ", shown(canvas[result.trace.start :]))
    print(result.trace.to_html(f"{name}.html"), "plays it in a browser")
