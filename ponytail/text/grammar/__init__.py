"""Grammars: what an answer must look like, as masks over the vocabulary."""

from ponytail.text.grammar.compiler import Compiled, Grammars
from ponytail.text.grammar.matcher import Matcher
from ponytail.text.grammar.tools import tool_schema
from ponytail.text.grammar.vocabulary import Vocabulary

__all__ = ["Compiled", "Grammars", "Matcher", "Vocabulary", "tool_schema"]
