from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import FinishReason, Request, SamplingParams
from paceline_engine.serve.openai.choice import Choice
from paceline_engine.serve.step.engine_client import OutputDelta
from paceline_engine.serve.text.detokenizer import StopMatcher, incremental_text
from paceline_engine.serve.text.vocabulary import Vocabulary
from paceline_engine.testing.scripted_engine import ending
from paceline_engine.testing.tiny_model import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)
EOS = 2


def choice_of(
    stops: Sequence[str] = (),
    *,
    include: bool = False,
    skip_special_tokens: bool = True,
    **params: object,
) -> Choice:
    request = Request(
        request_id=1,
        external_id="x",
        prompt_token_ids=(5,),
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )
    return Choice(
        index=0,
        request=request,
        text=incremental_text(VOCABULARY, skip_special_tokens=skip_special_tokens),
        stops=StopMatcher(stops, include=include),
        include_stop=include,
    )


def run(choice: Choice, ids: Sequence[int], cuts: Sequence[int], eos: int | None = None) -> str:
    """Feed the tokens in groups; the end comes with the last group."""
    borders = [0, *sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)]
    text = ""
    for start, end in pairwise(borders):
        is_last = end == len(ids)
        reason = FinishReason.LENGTH if eos is None else FinishReason.STOP
        finished = ending(choice.request, reason, len(ids), stop_token_id=eos) if is_last else None
        text += choice.take(OutputDelta(token_ids=list(ids[start:end]), finished=finished)).text
        if choice.is_done:
            break
    return text


@pytest.mark.slow
@given(
    st.text(alphabet="abé日🎉 ", max_size=30),
    st.lists(st.text(alphabet="abé日", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(0, 200), max_size=8),
    st.booleans(),
)
def test_the_text_is_the_same_however_the_tokens_arrive(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    ids = TOKENIZER.encode(text).ids
    in_parts = choice_of(stops, include=include)
    at_once = choice_of(stops, include=include)
    token_by_token = choice_of(stops, include=include)
    given_out = run(in_parts, ids, cuts)
    assert given_out == run(at_once, ids, [])
    assert given_out == run(token_by_token, ids, range(len(ids)))
    assert in_parts.finish_reason == at_once.finish_reason
    assert in_parts.stop_reason == at_once.stop_reason
    assert in_parts.num_output_tokens == at_once.num_output_tokens
    hit = (
        min((text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text)
        if any(stop in text for stop in stops)
        else None
    )
    assert given_out == (text if hit is None else text[: hit[0] if include else hit[1]])
    assert in_parts.finish_reason == ("length" if hit is None else "stop")


def test_a_stop_string_says_how_many_tokens_count() -> None:
    ids = TOKENIZER.encode("one two three four").ids
    choice = choice_of([" three"])
    increment = choice.take(OutputDelta(token_ids=ids))
    assert increment.text == "one two"
    assert (choice.found_stop, choice.finish_reason) == (" three", "stop")
    assert choice.num_output_tokens == len(increment.token_ids) < len(ids)
    assert TOKENIZER.decode(increment.token_ids) == "one two three"


def test_a_stop_in_the_last_delta_is_found_too() -> None:
    ids = TOKENIZER.encode("one two").ids
    choice = choice_of(["two"])
    assert run(choice, ids, []) == "one "
    assert (choice.found_stop, choice.stop_reason) == ("two", "two")


def test_a_stop_before_min_tokens_is_text() -> None:
    ids = TOKENIZER.encode("ab ab").ids
    first = TOKENIZER.encode("ab").ids
    choice = choice_of(["ab"], min_tokens=len(first) + 1)
    assert run(choice, ids, range(9)) == "ab "


def test_the_end_token_is_no_text() -> None:
    ids = [*TOKENIZER.encode("one").ids, EOS]
    assert run(choice_of(), ids, [], eos=EOS) == "one"
    assert run(choice_of(skip_special_tokens=False), ids, [], eos=EOS) == "one"
    shown = choice_of(skip_special_tokens=False, include=True)
    assert run(shown, ids, [], eos=EOS) == "one<|im_end|>"
    assert shown.num_output_tokens == len(ids)


def test_a_stop_token_of_the_body_is_named_and_the_models_own_is_not() -> None:
    word = TOKENIZER.encode(" two").ids[0]
    choice = choice_of(stop_token_ids=(word,))
    assert run(choice, [*TOKENIZER.encode("one").ids, word], [], eos=word) == "one"
    assert (choice.finish_reason, choice.stop_reason) == ("stop", word)
    own = choice_of()
    run(own, [EOS], [], eos=EOS)
    assert (own.finish_reason, own.stop_reason) == ("stop", None)


def test_an_unfinished_character_is_not_lost_when_the_stream_ends() -> None:
    ids = TOKENIZER.encode("🎉").ids[:3]
    assert run(choice_of(), ids, range(3)) == "�"


def test_text_held_for_a_stop_string_is_not_lost_when_the_stream_ends() -> None:
    ids = TOKENIZER.encode("the END").ids
    choice = choice_of(["END OF"])
    assert run(choice, ids, range(9)) == "the END"
    assert choice.finish_reason == "length"


def test_log_probabilities_come_with_their_tokens_and_offsets() -> None:
    ids = TOKENIZER.encode("é日x").ids
    choice = choice_of(logprobs=0)
    logged = []
    for token_id in ids:
        entry = TokenLogprobs(token_id=token_id, logprob=-1.0, rank=1)
        logged += choice.take(OutputDelta(token_ids=[token_id], logprobs=[entry])).logged
    assert [token.token_id for token in logged] == ids
    assert [token.offset for token in logged] == [0, 0, 1, 1, 1, 2]
