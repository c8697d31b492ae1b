import json
from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.text.chat import ChatTemplate, ChatTemplateFailed

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = [{"role": "user", "content": "Hello"}]


def test_messages_are_written_as_the_template_says() -> None:
    assert ChatTemplate(TEMPLATE, SPECIAL).render(HELLO) == "<s>[user]Hello</s>[assistant]"


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = ChatTemplate(TEMPLATE, SPECIAL).render([{"role": "user", "content": parts}])
    assert text == "<s>[user]one\ntwo</s>[assistant]"


def test_the_final_message_can_be_continued() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Once upon "}]
    text = ChatTemplate(TEMPLATE, SPECIAL).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text == "<s>[user]Hello</s>[assistant]Once upon "


def test_continuing_keeps_no_white_space_that_the_template_trims() -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}\n{% endfor %}"
    text = ChatTemplate(template, {}).render(
        [{"role": "assistant", "content": " Once upon "}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert text == "[assistant]Once upon"


def test_continuing_a_message_that_the_template_drops_is_refused() -> None:
    with pytest.raises(ChatTemplateFailed, match="cannot be continued"):
        ChatTemplate("nothing", {}).render(HELLO, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content }}", "messages"),
        ("{% if %}", "Expected an expression"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|immutable|append"),
    ],
)
def test_a_template_that_fails_says_why(template: str, message: str) -> None:
    with pytest.raises(ChatTemplateFailed, match=message):
        ChatTemplate(template, {}).render(HELLO)


def test_a_model_without_template_needs_one_from_the_request() -> None:
    bare = ChatTemplate(None, {})
    with pytest.raises(ChatTemplateFailed, match="no chat template"):
        bare.render(HELLO)
    assert bare.render(HELLO, chat_template="{{ messages | length }}") == "1"


def test_templates_have_what_the_hub_expects() -> None:
    template = (
        "{{ strftime_now('%Y') | length }} {{ {'ä': '<'} | tojson }} {{ x }} {{ tools is none }}"
        "{% generation %} g{% endgeneration %}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    text = ChatTemplate(template, {}).render(HELLO, template_kwargs={"x": 7})
    assert text == '4 {"ä": "<"} 7 True g01'


def test_kwargs_cannot_replace_the_messages() -> None:
    text = ChatTemplate(TEMPLATE, SPECIAL).render(HELLO, template_kwargs={"messages": []})
    assert "Hello" in text


def test_templates_are_found_where_models_keep_them(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<b>"},
        "eos_token": None,
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "{{ bos_token }}yes"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render(HELLO) == "<b>yes"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}file")
    assert ChatTemplate.load(tmp_path).render(HELLO) == "<b>file"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"chat_template": 1}'),
        ("tokenizer_config.json", b"\xff"),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartFailed, match=name) as failed:
        ChatTemplate.load(tmp_path)
    assert failed.value.reason == "UnsupportedModel"


BROKEN = "{{ bos_token }}\n{% for m in messages %}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", BROKEN),
        ("tokenizer_config.json", json.dumps({"chat_template": BROKEN})),
        ("chat_template.jinja", "{{ 1 | nothing_known }}"),
    ],
)
def test_a_template_that_is_none_fails_the_start_not_each_chat(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(StartFailed, match=r"line \d.*remove it to serve completions only") as told:
        ChatTemplate.load(tmp_path)
    assert told.value.reason == "UnsupportedModel"


def test_a_requests_own_template_that_is_none_is_told_as_such() -> None:
    with pytest.raises(ChatTemplateFailed, match=r"chat_template is no jinja template: line 2"):
        ChatTemplate(None, {}).render(HELLO, chat_template=BROKEN)


def test_a_list_of_templates_without_a_default_is_no_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [1, {"name": "x"}]}')
    assert ChatTemplate.load(tmp_path).source is None


def test_a_folder_without_template_is_no_error(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path).source is None


def test_the_tiny_model_chats(tiny_folder: Path) -> None:
    text = ChatTemplate.load(tiny_folder).render(HELLO)
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
