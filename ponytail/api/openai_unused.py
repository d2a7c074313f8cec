"""Parameters that change nothing here, and those that are refused, each with the reason.

Owns the rows that the two generating routes share.  Must not know the routes.  Pure; any
thread.
"""

from __future__ import annotations

from ponytail.api.fields import Boolean, Object, String, accepted, refused

ACCEPTED = (
    accepted("model", String(), "One model is served, whatever this says; replies name it."),
    accepted("user", String(), "Not used."),
    accepted("metadata", Object(), "Not stored."),
    accepted("store", Boolean(), "Nothing is ever stored."),
    accepted("service_tier", String(), "There is one tier; `priority` orders requests."),
    accepted("safety_identifier", String(), "Not used."),
    accepted("prompt_cache_key", String(), "Prefixes are found by their tokens."),
    accepted("prompt_cache_retention", String(), "Prefixes stay while there is room."),
    accepted("prompt_cache_options", Object(), "Prefixes stay while there is room."),
    accepted("verbosity", String(), "Say it in the prompt instead."),
    accepted("cache_prompt", Boolean(), "Prefix reuse is always on and changes no text."),
)

NEVER_CUT = "Prompts are never cut."
REFUSED = (
    refused("id_slot", "The server chooses the place a request runs in.", -1),
    refused("n_keep", NEVER_CUT, 0),
    refused("n_discard", NEVER_CUT, 0),
    refused("truncate_prompt_tokens", NEVER_CUT),
    refused("min_keep", "No sampler is made to keep unlikely tokens.", 0),
    refused("samplers", "The order of the samplers is fixed.", []),
    refused("dynatemp_range", "The temperature is the same for every token.", 0),
    refused("top_n_sigma", "min_p and top_p cut off the unlikely tokens.", 0, -1),
    refused("t_max_predict_ms", "deadline_s bounds the time.", 0),
    refused("n_probs", "logprobs gives the probabilities.", 0),
    refused("prompt_logprobs", "/v1/completions gives them with echo and logprobs."),
    refused("return_tokens", "/v1/tokenize gives the ids of a text.", False),
    refused("return_token_ids", "/v1/tokenize gives the ids of a text.", False),
    refused("timings_per_token", "/metrics has the timings.", False),
    refused("return_progress", "A stream begins with the answer.", False),
    refused("include_stop_str_in_output", "The answer ends before the stop text.", False),
    refused("bad_words", "logit_bias bans tokens.", []),
    refused("allowed_token_ids", "choice, regex and grammar say what may come."),
    refused("skip_special_tokens", "Control tokens have no text.", True),
    refused("use_beam_search", "Ask for n answers and choose.", False),
    refused("length_penalty", "It belongs to beam search, which there is none of.", 1),
    refused("lora", "The model is served as its file is.", []),
)
