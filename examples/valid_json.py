"""Answers that a JSON schema holds, whatever the model would rather say; tokens are committed in any order."""

import json

from dllm import Decoder, load
from dllm.constraints import Choice, JsonSchema

person = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "age": {"type": "integer"},
        "town": {"enum": ["Cairo", "Lima", "Oslo"]},
    },
    "required": ["name", "age", "town"],
}
people = JsonSchema({"type": "array", "items": person, "minItems": 2, "maxItems": 2})
decoder = Decoder(load("mini-llada"), gen_length=64)
rows = "Rows as JSON:\nBush, 72, Cairo\nIvan, 92, Lima"
records, word = decoder([rows] * 2, constraints=[people, Choice(["yes", "no"])])

for record in json.loads(records.text):
    print(record)
print(f"{records.useful_tokens} tokens of JSON, forwards: {records.nfe}; yes or no: {word.text}")
