"""What agents are written with, straight at a worker with the demonstration model and through a router: the clients of OpenAI
and Anthropic, LangChain, LiteLLM, LlamaIndex, openai-agents, Pydantic AI.

`make frameworks` installs them under build/; where one is missing its tests are skipped.
"""
import asyncio
import json
import re
from typing import Annotated, Literal

import pytest

from conftest import ROOT

openai = pytest.importorskip("openai", reason="SKIPPED: the openai package is not installed: make frameworks")
pydantic = pytest.importorskip("pydantic", reason="SKIPPED: the pydantic package is not installed: make frameworks")

MODEL = "model"  # by the name of its folder
SYSTEM = "You answer questions about people."
QUESTION = "Where does Zack Blue live?"
ASKED = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


class Home(pydantic.BaseModel):
    """Where somebody lives: nothing that a model without a plan could write without end."""
    model_config = pydantic.ConfigDict(extra="forbid", json_schema_extra={"maxProperties": 2})
    city: Literal["Rome", "Paris"]
    number: int = pydantic.Field(ge=1, le=99)


PARAMETERS = {"type": "object", "additionalProperties": False, "maxProperties": 2, "required": ["city", "number"],
              "properties": {"city": {"type": "string", "enum": ["Rome", "Paris"]},
                             "number": {"type": "integer", "minimum": 1, "maximum": 99}}}
TOOL = {"type": "function", "function": {"name": "home", "description": "Stores where somebody lives.", "parameters": PARAMETERS}}


def package(name):
    return pytest.importorskip(name, reason=f"SKIPPED: the package {name} is not installed: make frameworks")


@pytest.fixture
def client(demo_api):
    with openai.OpenAI(base_url=demo_api.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


# --- openai -----------------------------------------------------------------------------------------------------------------

def test_an_answer_is_parsed_into_a_class(client):
    answer = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Home, max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Home)


def test_a_required_call_has_arguments_of_its_tool_and_its_stream_is_equal(client):
    request = {"model": MODEL, "messages": ASKED, "tools": [TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 300,
               "parallel_tool_calls": False}
    whole = client.chat.completions.create(**request).choices[0]
    call, = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls" and whole.message.content is None and call.function.name == "home"
    Home.model_validate_json(call.function.arguments)
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    again, = streamed.message.tool_calls
    assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
    assert streamed.finish_reason == "tool_calls"


def test_a_named_call_and_its_result(client):
    named = {"type": "function", "function": {"name": "home"}}
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, tools=[TOOL], tool_choice=named, max_tokens=300)
    call, = answer.choices[0].message.tool_calls
    history = [*ASKED, answer.choices[0].message.model_dump(exclude_none=True),
               {"role": "tool", "tool_call_id": call.id, "content": "stored"}]
    after = client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], tool_choice="none", max_tokens=20)
    assert not after.choices[0].message.tool_calls and after.usage.prompt_tokens > answer.usage.prompt_tokens


def test_a_response_and_its_stream_are_equal(client):
    request = {"model": MODEL, "instructions": SYSTEM, "input": QUESTION, "max_output_tokens": 30, "temperature": 0}
    whole = client.responses.create(**request)
    assert whole.output_text and whole.usage.output_tokens <= 30
    with client.responses.stream(**request) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    assert final.output_text == whole.output_text


def test_a_response_is_parsed_into_a_class(client):
    answer = client.responses.parse(model=MODEL, input=QUESTION, text_format=Home, max_output_tokens=300)
    assert isinstance(answer.output_parsed, Home)


def test_a_response_calls_a_function_and_reads_its_output(client):
    tool = {"type": "function", "strict": True, **TOOL["function"]}
    asked = [{"role": "user", "content": QUESTION}]
    answer = client.responses.create(model=MODEL, input=asked, tools=[tool], tool_choice="required",
                                     parallel_tool_calls=False, max_output_tokens=300)
    call, = (item for item in answer.output if item.type == "function_call")
    Home.model_validate_json(call.arguments)
    more = [*asked, call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": "stored"}]
    after = client.responses.create(model=MODEL, input=more, tools=[tool], tool_choice="none", max_output_tokens=20)
    assert after.status in ("completed", "incomplete") and after.usage.input_tokens > answer.usage.input_tokens


# --- anthropic --------------------------------------------------------------------------------------------------------------

CLAUDE_TOOL = {"name": "home", "description": "Stores where somebody lives.", "input_schema": PARAMETERS}


@pytest.fixture
def messages(demo_api):
    with package("anthropic").Anthropic(base_url=demo_api.url, api_key="none", max_retries=0) as c:
        yield c.messages


def test_a_message_and_its_stream_are_equal(messages):
    request = {"model": MODEL, "system": SYSTEM, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 30, "extra_body": {"temperature": 0}}
    whole = messages.create(**request)
    assert whole.content[0].type == "text" and whole.stop_reason in ("end_turn", "max_tokens")
    with messages.stream(**request) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
    counted = messages.count_tokens(**{k: request[k] for k in ("model", "system", "messages")}).input_tokens
    usage = whole.usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def test_a_tool_is_used_and_its_result_read(messages):
    asked = [{"role": "user", "content": QUESTION}]
    request = {"model": MODEL, "tools": [CLAUDE_TOOL], "max_tokens": 300, "extra_body": {"temperature": 0}}
    answer = messages.create(messages=asked, tool_choice={"type": "any", "disable_parallel_tool_use": True}, **request)
    use = next(block for block in answer.content if block.type == "tool_use")
    assert answer.stop_reason == "tool_use" and use.name == "home"
    Home.model_validate(use.input)
    with messages.stream(messages=asked, tool_choice={"type": "any", "disable_parallel_tool_use": True}, **request) as stream:
        again = next(block for block in stream.get_final_message().content if block.type == "tool_use")
    assert again.input == use.input
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "stored"}]}
    after = messages.create(messages=[*asked, {"role": "assistant", "content": answer.content}, result],
                            tool_choice={"type": "none"}, **request)
    assert all(block.type == "text" for block in after.content)


# --- frameworks -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain_has_structured_output(demo_api, method):
    chat = package("langchain_openai").ChatOpenAI(base_url=demo_api.url + "/v1", api_key="none", model=MODEL, max_tokens=300,
                                                  max_retries=0)
    if method == "json_mode":  # which promises JSON, and no more
        assert isinstance(chat.with_structured_output(None, method=method).invoke(QUESTION), dict)
    else:
        assert isinstance(chat.with_structured_output(Home, method=method).invoke(QUESTION), Home)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_langchain_has_a_history_of_tools(demo_api, wire):
    core = package("langchain_core.messages")
    if wire == "openai":
        chat = package("langchain_openai").ChatOpenAI(base_url=demo_api.url + "/v1", api_key="none", model=MODEL, max_tokens=300,
                                                      max_retries=0)
    else:
        chat = package("langchain_anthropic").ChatAnthropic(base_url=demo_api.url, api_key="none", model=MODEL, max_tokens=300,
                                                            max_retries=0)
    asked = [core.SystemMessage(SYSTEM), core.HumanMessage(QUESTION)]
    answer = chat.bind_tools([TOOL], tool_choice="any", parallel_tool_calls=False).invoke(asked)
    call = answer.tool_calls[0]
    Home.model_validate(call["args"])
    more = [*asked, answer, *(core.ToolMessage("stored", tool_call_id=c["id"]) for c in answer.tool_calls)]
    chunks = list(chat.stream(more))
    assert chunks and all(not c.tool_calls for c in chunks)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_litellm_calls_a_tool(demo_api, provider):
    litellm = package("litellm")
    base = demo_api.url if provider == "anthropic" else demo_api.url + "/v1"
    request = {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "none", "messages": ASKED, "tools": [TOOL],
               "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300, "temperature": 0, "num_retries": 0}
    call = litellm.completion(**request).choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)  # some providers leave out that there are no others
    Home.model_validate({name: arguments[name] for name in ("city", "number")})
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**request, stream=True))).choices[0].message.tool_calls[0]
    assert json.loads(streamed.function.arguments) == json.loads(call.function.arguments)


def test_llama_index_calls_a_tool_and_has_structured_output(demo_api):
    like = package("llama_index.llms.openai_like").OpenAILike(
        model=MODEL, api_base=demo_api.url + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True,
        max_tokens=300, max_retries=0)
    stored = []
    tool = package("llama_index.core.tools").FunctionTool.from_defaults(
        lambda city, number: stored.append(Home(city=city, number=number)) or "stored", name="home", fn_schema=Home)
    like.predict_and_call([tool], QUESTION, tool_required=True)
    assert stored
    core = package("llama_index.core.prompts")
    assert isinstance(like.structured_predict(Home, core.PromptTemplate(QUESTION)), Home)


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_openai_agents_run_a_tool(demo_api, wire):
    agents = package("agents")
    agents.set_tracing_disabled(True)
    stored = []

    @agents.function_tool
    def home(city: Literal["Rome", "Paris"], number: Annotated[int, pydantic.Field(ge=1, le=99)]) -> str:
        stored.append((city, number))
        return "stored"

    kind = agents.OpenAIChatCompletionsModel if wire == "chat" else agents.OpenAIResponsesModel

    async def run():
        async with openai.AsyncOpenAI(base_url=demo_api.url + "/v1", api_key="none", max_retries=0) as c:
            agent = agents.Agent(name="keeper", instructions=SYSTEM, tools=[home], model=kind(MODEL, c),
                                 tool_use_behavior="stop_on_first_tool",
                                 model_settings=agents.ModelSettings(tool_choice="required", parallel_tool_calls=False,
                                                                            max_tokens=300, temperature=0))
            return await agents.Runner.run(agent, QUESTION, max_turns=2)

    assert asyncio.run(run()).final_output == "stored" and stored[0][0] in ("Rome", "Paris")


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_pydantic_ai_answers_with_a_class(demo_api, wire):
    ai = package("pydantic_ai")
    if wire == "messages":
        provider = package("pydantic_ai.providers.anthropic").AnthropicProvider(
            anthropic_client=package("anthropic").AsyncAnthropic(base_url=demo_api.url, api_key="none", max_retries=0))
        model = package("pydantic_ai.models.anthropic").AnthropicModel(MODEL, provider=provider)
    else:
        provider = package("pydantic_ai.providers.openai").OpenAIProvider(
            openai_client=openai.AsyncOpenAI(base_url=demo_api.url + "/v1", api_key="none", max_retries=0))
        kinds = package("pydantic_ai.models.openai")
        model = (kinds.OpenAIChatModel if wire == "chat" else kinds.OpenAIResponsesModel)(MODEL, provider=provider)
    agent = ai.Agent(model, output_type=Home, system_prompt=SYSTEM, model_settings={"max_tokens": 300, "temperature": 0, "parallel_tool_calls": False})
    assert isinstance(agent.run_sync(QUESTION).output, Home)


# --- the page about them ----------------------------------------------------------------------------------------------------

PROGRAMS = [(title, code) for title, text in re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", (ROOT / "worker/http-api/agents.md").read_text())
            for code in re.findall(r"(?ms)^```python\n(.*?)^```", text)]


def test_the_page_has_a_program_for_each_client():
    assert {title for title, _ in PROGRAMS} == {"openai", "anthropic", "openai-agents", "LangChain", "LlamaIndex", "LiteLLM", "Pydantic AI"}


@pytest.mark.parametrize("code", [pytest.param(code, id=f"{title}-{i}") for i, (title, code) in enumerate(PROGRAMS)])
def test_a_program_of_the_page_prints_its_last_line(demo_api, code, capsys):
    for name in re.findall(r"(?m)^(?:import|from) ([\w.]+)", code):
        package(name)
    code, printed = code.rstrip().rsplit("\n# ", 1)
    assert "http://127.0.0.1:31000" in code and "coder" in code
    code = code.replace("http://127.0.0.1:31000", demo_api.url).replace("coder", MODEL)
    exec(compile(code, "agents.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip() == printed
