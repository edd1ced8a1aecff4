"""Options that recipes of a framework's releases set, from model/recipes/*.json."""

import json
import os

from score import FOLDER


def read(name):
    with open(os.path.join(FOLDER, f"../../model/recipes/{name}.json"), encoding="utf-8") as file:
        return json.load(file)


def matches(value, words):
    """Whether a fact is one of the words: "x", "x*" for a prefix, ">=x" or "<x" in alphabetical order."""

    def match(word):
        if word.startswith(">="):
            return value >= word[2:]
        if word.startswith("<"):
            return value < word[1:]
        return value.startswith(word[:-1]) if word.endswith("*") else value == word

    return any(map(match, [words] if isinstance(words, str) else words))


def applies(conditions, facts):
    return all(matches(facts[key], words) for key, words in conditions.items())


def merge(document, patch):
    """Applies a merge patch (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            document.pop(key, None)
        elif isinstance(value, dict):
            document[key] = merge(document[key] if isinstance(document.get(key), dict) else {}, value)
        else:
            document[key] = value
    return document


def scenario(recipes, facts, model):
    """Returns the scenario that the recipes choose for a GPU, precision and release, by all rules that apply.

    ``model``: the name of one of the catalogue, or what the rows of a table do not contain of a model.
    """
    document = merge({}, recipes["scenario"])
    document["model"] = model if isinstance(model, str) else {**recipes["model_defaults"], **model}
    for rule in recipes["rules"]:
        if applies(rule["if"], facts) and not any(applies(each, facts) for each in rule.get("unless", ())):
            merge(document, rule["then"])
    return document
