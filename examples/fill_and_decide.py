"""What a model that reads left to right cannot do: fill holes between given text, and choose in a single forward."""

from dllm import Decoder, load
from dllm.scoring.decisions import Choice

decoder = Decoder(load("mini-llada"), gen_length=32)
rows = "Rows as JSON:\nBush, 72, Cairo\nIvan, 92, Lima"

form = ['[{"name": "', 1, '", "age": ', 1, ', "town": "Cairo"}, {"name": "Ivan", "age": ', 1, ', "town": "', 1, '"}]']
(filled,) = decoder(decoder.infill(form, prompt=rows))  # a number is that many masks
print(filled.text, "forwards:", filled.nfe)

for first in ("Emma", "Kai"):  # the answer bends to what is given around its hole
    request = decoder.infill([f'["{first}", "', 1, '", "Hugo"]'], prompt='Shuffle the list:\n["Kai", "Emma", "Hugo"]')
    print(decoder(request)[0].text)

record = '[{"name": "Bush", "age": 72, "town": "{slot}"}, {"name": "Ivan", "age": 92, "town": "Lima"}]'
town = decoder.decide(rows, town=Choice(["Cairo", "Lima", "Oslo"], template=record))["town"]
print(town)  # nothing is drawn: probabilities of all three
