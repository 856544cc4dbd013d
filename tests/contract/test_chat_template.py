import pytest

from support.real_tokenizers import real_profile
from support.small_tokenizers import CHATML, QWEN_LIKE, chat_files
from tokbridge.chat_template import ChatTemplate
from tokbridge.errors import (
    ChatTemplateError,
    ContentDroppedByTemplateError,
    InvalidRequestError,
    MalformedConversationError,
    UnsupportedTemplateError,
)
from tokbridge.jinja_rendering import RenderingBrokenOffError, render_here
from tokbridge.messages import prepare_messages
from tokbridge.tokenizer_profile import profile_from_files

USER = {"role": "user", "content": "What is 1+1?"}
CONTROL = frozenset({"<|im_start|>", "<|im_end|>"})
CHAT = ChatTemplate(CHATML, {}, CONTROL)


def call(arguments):
    function = {"name": "lookup", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def test_a_conversation_renders_as_the_template_says():
    messages = [{"role": "system", "content": "Be brief."}, USER]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 1+1?<|im_end|>\n"
    assert CHAT.render(messages, add_generation_prompt=False) == text
    assert CHAT.render(messages, add_generation_prompt=True) == text + "<|im_start|>assistant\n"


def test_null_content_renders_as_empty():
    text = CHAT.render([USER, {"role": "assistant", "content": None}], add_generation_prompt=False)
    assert text.endswith("<|im_start|>assistant\n<|im_end|>\n")


def test_the_callers_messages_are_left_alone():
    messages = [USER, call('{"a": 1}')]
    before = repr(messages)
    CHAT.render(messages, add_generation_prompt=True)
    assert repr(messages) == before


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ([USER, {"content": "no role"}], 1),
        ([USER, "text"], 1),
        ([{"role": "user", "content": 7}], 0),
        ([USER, {"role": "assistant", "content": "", "tool_calls": {}}, {"role": 3}], 2),
        ([USER, {"role": "assistant", "tool_calls": "f()"}], 1),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {}}]}], 1),
    ],
)
def test_malformed_messages_name_their_index(messages, index):
    with pytest.raises(MalformedConversationError) as raised:
        CHAT.render(messages, add_generation_prompt=True)
    assert raised.value.details["message_index"] == index


def test_an_empty_conversation_is_malformed():
    with pytest.raises(MalformedConversationError):
        CHAT.render([], add_generation_prompt=True)


def test_a_refusal_passes_the_templates_own_message_on():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template.render([USER], add_generation_prompt=True)


def test_a_fault_inside_the_template_is_its_error():
    with pytest.raises(ChatTemplateError, match="TypeError"):
        ChatTemplate("{{ 1 + messages }}").render([USER], add_generation_prompt=True)


def test_templates_are_sandboxed():
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}").render([USER], add_generation_prompt=True)


@pytest.mark.parametrize(
    "name", ["chat_template", "messages", "tools", "add_generation_prompt", "continue_final_message"]
)
def test_a_caller_cannot_set_what_is_not_theirs(name):
    with pytest.raises(InvalidRequestError):
        CHAT.render([USER], add_generation_prompt=True, arguments={name: "x"})


def test_channels_are_not_supported():
    with pytest.raises(UnsupportedTemplateError, match="channels"):
        ChatTemplate("<|channel|>analysis{{ messages }}").render([USER], add_generation_prompt=True)


def test_arguments_reach_the_template():
    template = ChatTemplate(CHATML + "{{ mood }}")
    assert template.render([USER], add_generation_prompt=False, arguments={"mood": "calm"}).endswith("calm")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[1].tool_calls[0].function.arguments | tojson }}", '{"city": "Rome"}'),
        (
            "{% for k, v in messages[1].tool_calls[0].function.arguments | items %}{{ k }}={{ v }}{% endfor %}",
            "city=Rome",
        ),
        ("{{ '```' + messages[1].tool_calls[0].function.arguments }}", '```{"city": "Rome"}'),
    ],
)
@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', {"city": "Rome"}])
def test_tool_call_arguments_take_the_form_the_template_wants(source, expected, arguments):
    template = ChatTemplate("{{ messages[0].content }}{% if messages[1] %}" + source + "{% endif %}")
    text = template.render([USER, call(arguments)], add_generation_prompt=False)
    assert text == USER["content"] + expected


def test_arguments_that_are_not_json_are_malformed_where_a_mapping_is_wanted():
    template = ChatTemplate("{{ messages[0].content }}{{ messages[1].tool_calls[0].function.arguments | tojson }}")
    for arguments in ("{", "[1]", "7"):
        with pytest.raises(MalformedConversationError) as raised:
            template.render([USER, call(arguments)], add_generation_prompt=False)
        assert raised.value.details["message_index"] == 1


def test_the_tool_role_takes_the_templates_name():
    messages = [USER, {"role": "tool", "content": "4 degrees"}]
    text = real_profile("glm-z1-9b-0414").template.render(messages, add_generation_prompt=False)
    assert text.endswith("<|observation|>\n4 degrees")
    assert "<|im_start|>tool\n4 degrees" in CHAT.render(messages, add_generation_prompt=False)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_text_that_glm_drops_is_an_error(role):
    messages = [USER, {"role": role, "content": "explain what </think> means"}]
    with pytest.raises(ContentDroppedByTemplateError) as raised:
        real_profile("glm-z1-9b-0414").template.render(messages, add_generation_prompt=True)
    assert raised.value.details["message_index"] == 1


@pytest.mark.parametrize(
    ("name", "messages", "index"),
    [
        ("minimax", [USER, {"role": "assistant", "content": "2"}, {"role": "system", "content": "Be brief."}, USER], 2),
        ("glm-z1-9b-0414", [{"role": "developer", "content": "Be brief."}, USER], 0),
        pytest.param("gemma3", [{"role": "system", "content": "Be brief."}], 0, marks=pytest.mark.nightly),
    ],
)
def test_instructions_that_a_template_has_no_place_for_are_not_lost_silently(name, messages, index):
    with pytest.raises(ContentDroppedByTemplateError) as raised:
        real_profile(name).template.render(messages, add_generation_prompt=True)
    assert raised.value.details["message_index"] == index


def test_trimmed_and_json_escaped_text_is_not_dropped():
    messages = [{"role": "user", "content": '  say "hé"\nnow  '}]
    for filtered in ("| trim", "| tojson"):
        text = ChatTemplate("{{ messages[0].content " + filtered + " }}").render(messages, add_generation_prompt=False)
        assert "now" in text


def test_control_texts_of_messages_are_told_apart():
    messages = [{"role": "user", "content": "a<|im_end|>b"}]
    guarded = CHAT.render_guarded(messages, add_generation_prompt=False)
    assert guarded.plain == "<|im_start|>user\na<|im_end|>b<|im_end|>\n"
    assert guarded.text.count("<|im_end|>") == 1
    assert guarded.guard not in guarded.plain


def test_a_renderer_that_fails_once_does_not_decide_the_form_of_tool_calls():
    """Templates that print arguments as they come want them as JSON text, also after a moment without a renderer."""
    jobs = []

    def fails_once(job):
        jobs.append(job)
        if len(jobs) == 1:
            raise RenderingBrokenOffError("the renderer has ended; try again")
        return render_here(job)

    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(source + "{{ messages[0].content }}", renderer=fails_once)
    call = {"function": {"name": "f", "arguments": '{"a": true}'}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(ChatTemplateError, match="try again"):
        template.render(messages, add_generation_prompt=False)
    assert template.render(messages, add_generation_prompt=False).startswith('{"a": true}')


def test_control_texts_of_keys_are_told_apart():
    """A tool's parameters are named by whoever calls, and templates write them out as JSON."""
    template = ChatTemplate("{{ tools | tojson }}" + CHAT.source, control_tokens=CHAT.control_tokens)
    tools = [{"function": {"name": "f", "parameters": {"properties": {"<|im_end|>": {}}}}}]
    guarded = template.render_guarded([USER], tools=tools, add_generation_prompt=False)
    assert '{"<|im_end|>": {}}' in guarded.plain
    assert guarded.text.count("<|im_end|>") == 1


def test_private_use_characters_of_an_argument_survive():
    template = ChatTemplate("{{ note }}{{ messages[0].content }}")
    text = template.render([USER], add_generation_prompt=False, arguments={"note": "a\ue000b"})
    assert text.startswith("a\ue000b")


def test_private_use_characters_of_a_message_survive():
    content = "".join(map(chr, range(0xE000, 0xE010)))
    assert content in CHAT.render([{"role": "user", "content": content + "<|im_end|>"}], add_generation_prompt=False)


@pytest.mark.parametrize(
    ("name", "arguments", "tail"),
    [
        ("qwen-3.5", None, "<think>\n"),
        ("qwen-3.5", {"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ("minimax", None, "<think>\n"),
        ("glm-z1-9b-0414", None, "<think>"),
        ("glm-4-9b-0414", None, ""),
        pytest.param("qwen-3", None, "", marks=pytest.mark.nightly),
        pytest.param("qwen-3", {"enable_thinking": False}, "<think>\n\n</think>\n\n", marks=pytest.mark.nightly),
        pytest.param("deepseek-r1", None, "<think>\n", marks=pytest.mark.nightly),
    ],
)
def test_generation_prompt_tails_of_real_templates(name, arguments, tail):
    template = real_profile(name).template
    assert template.generation_prompt_tail([USER], arguments=arguments) == tail


def test_a_thinking_tag_in_a_message_is_no_tail():
    plain = ChatTemplate("{{ messages[0].content }}{% if add_generation_prompt %} answer:{% endif %}")
    messages = [{"role": "user", "content": "what is <think>?"}]
    assert plain.generation_prompt_tail(messages) == ""
    assert CHAT.generation_prompt_tail(messages) == ""


def test_the_thinking_switch_is_found_and_other_arguments_kept():
    assert ChatTemplate(QWEN_LIKE).switched_off({"mood": "calm"}) == {"mood": "calm", "enable_thinking": False}
    assert CHAT.switched_off({}) is None


def test_the_hash_is_of_the_source():
    assert CHAT.hash == profile_from_files(chat_files()).template.hash != ChatTemplate(QWEN_LIKE).hash


@pytest.mark.parametrize("text", ['{"a":' + "[" * 900 + "]" * 900 + "}", r'{"a": "\ud800"}', "{"])
def test_tool_call_arguments_that_cannot_be_taken_are_refused(text):
    call = {"function": {"name": "f", "arguments": text}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(MalformedConversationError) as raised:
        prepare_messages(messages, "", arguments_as_mappings=True)
    assert raised.value.details == {"message_index": 0}
