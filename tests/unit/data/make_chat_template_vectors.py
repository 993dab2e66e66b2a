#!/usr/bin/env python3
"""Renders templates with the reference Jinja, set up as the transformers library sets it up.

Usage: pip install jinja2; python3 tests/unit/data/make_chat_template_vectors.py
Writes chat_template_vectors.json beside itself. Not needed to run the tests: its output is committed.
"""
import json
import os
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../reference"))
from common import as_templates_see  # noqa: E402


class Raised(TemplateError):
    pass


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: __import__("time").strftime(f, __import__("time").gmtime(1700000000))
    return env


MESSAGES = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "  What is 2 + 2?\n"},
    {"role": "assistant", "content": "<think>easy</think>\n\n4"},
    {"role": "user", "content": "Größe \"x\" <b>'s</b>\t日本 😀"},
]
TOOL_MESSAGES = [
    {"role": "user", "content": "Weather in Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome", "days": 2, "x": [1.5, True, None]}}},
        {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "c2", "content": "noon"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Say \"the\" weather\nof a city.",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'A default system text.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nUse {\\"name\\": <name>, \\"arguments\\": <object>}<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nA default system text.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

HEADERS = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("No first user message to put the tools in!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("Only one call at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {%- for arg_name, arg_val in tool_call.arguments | items %}
            {{- arg_name + '="' + arg_val | string + '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

REASONING = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + eos_token}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\\n'}}{% endif %}"""

THINKING = """{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- set reasoning = '' %}
    {%- if '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last or loop.last and reasoning %}
        {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

ALTERNATING = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
{{- user_messages|length }}
"""

PARTS = """{% for message in messages %}
<{{ message['role'] }}>
{% if message['content'] is string %}
{{ message['content'] }}
{% else %}
{% for content in message['content'] %}
{% if content['type'] == 'text' %}
* {{ content['text'] }}
{% endif %}
{% endfor %}
{% endif %}
{% endfor %}
"""
PART_MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                 {"role": "assistant", "content": "three"}]

# Small templates, each for one corner; `x` and friends come from CONTEXT.
CONTEXT = {"s": "Hello, World", "u": "äöü ß 日本 😀", "e": "", "l": [3, 1, 2], "m": {"b": 1, "a": [1, 2], "c": None},
           "n": 7, "f": 2.5, "t": True, "nothing": None, "nested": [{"k": {"v": "x"}}, {"k": {"v": "y"}}, {"j": 1}],
           "words": ["b", "A", "c", "a"], "lines": "one\n\n  two\nthree\n", "quote": "it's \"so\"\n\\"}
SMALL = [
    "{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
    "{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e20 }} {{ 1e-7 }} {{ 123456789012345.678 }} {{ 1e15 }} {{ 1e16 }} {{ -0.0 }} {{ 3.0 // 2 }} {{ 5.5 % 2 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }} {{ 'a' 'b' }} {{ 'ab' * 3 }} {{ [1] + [2] }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ true == 1 }} {{ none == false }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ (1, 2) == [1, 2] }}",
    "{{ not true }} {{ not e }} {{ t and n }} {{ e or 'x' }} {{ nothing or false }} {{ not n is defined }} {{ not missing is defined }}",
    "{{ 'x' if t else 'y' }}{{ 'x' if e }}{{ 'a' if e else 'b' if e else 'c' }}",
    "{{ 'ell' in s }} {{ 'z' not in s }} {{ 3 in l }} {{ 'a' in m }} {{ 'z' in m }} {{ 'a' in missing }}",
    "{{ s[0] }}{{ s[-1] }}{{ s[1:4] }}{{ s[:-3] }}{{ s[::-1] }}{{ s[::2] }}{{ s[10:2:-3] }}{{ u[3:6] }}{{ u[-1] }}{{ u[::-1] }}",
    "{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[5] is defined }} {{ l[-4:2] }} {{ l[2:0:-1] }} {{ l[:100] }}",
    "{{ m.b }} {{ m['a'] }} {{ m.a[1] }} {{ m['zz'] is defined }} {{ m.zz is undefined }} {{ m.c is none }} {{ nested[0].k.v }} {{ nested.0.k.v }}",
    "{{ l }} {{ m }} {{ nothing }} {{ t }} {{ [s, u, quote] }} {{ (1,) }} {{ (1, 'a') }} {{ [] }} {{ {} }} {{ ['it\\'s'] }} {{ [\"a'b\\\"c\"] }} {{ ['\\t\\x01'] }}",
    "{{ m | tojson }} {{ quote | tojson }} {{ u | tojson }} {{ [1.5, 1e20, true, none] | tojson }} {{ {} | tojson }} {{ [] | tojson(indent=2) }}",
    "{{ m | tojson(indent=2) }}\n{{ nested | tojson(indent=4) }}\n{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
    "{{ s|upper }} {{ s|lower }} {{ 'hello wORLD foo-bar'|title }} {{ 'hELLO'|capitalize }} {{ s|length }} {{ u|length }} {{ m|length }} {{ missing|length }}",
    "[{{ '  x y '|trim }}] [{{ 'xxayx'|trim('x') }}] [{{ '\\n a \\t'.strip() }}] [{{ 'xxayx'.lstrip('x') }}] [{{ 'xxayx'.rstrip('xy') }}] [{{ '\u3000a\u00a0'.strip() }}]",
    "{{ l|first }} {{ l|last }} {{ s|first }} {{ []|first is defined }} {{ l|join('-') }} {{ l|join }} {{ nested[:2]|map(attribute='k.v')|join(',') }} {{ words|join('|') }}",
    "{{ missing|default('d') }} {{ e|default('d') }}x {{ e|default('d', true) }} {{ nothing|default('d') }} {{ nothing|d('d', boolean=true) }}",
    "{{ l|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ l|sort(reverse=true) }} {{ l|reverse|list }} {{ s|reverse }} {{ m|dictsort }} {{ l|min }} {{ l|max }}",
    "{{ [1, 2, 1, 3, 2]|unique|list }} {{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ l|select('gt', 1)|list }} {{ [0, 1, '']|select|list }}",
    "{{ nested|selectattr('k')|list|length }} {{ nested|selectattr('k', 'defined')|list|length }} {{ nested|rejectattr('j')|list|length }} {{ nested[:2]|selectattr('k.v', 'equalto', 'y')|list }}",
    "{{ words|map('upper')|list }} {{ nested|map(attribute='j', default=0)|list }} {{ ['1', 'x', '3.7']|map('int')|list }} {{ [' a ']|map('trim')|list }}",
    "{{ '12'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ '3.5'|float }} {{ 7|string + 'x' }} {{ 3.14159|round(2) }} {{ 2.5|round }} {{ -3|abs }} {{ -n|abs }}",
    "{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ s|replace('World', 'You') }} {{ s.split(', ') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.split('b')[-1] }} {{ ' a b c '.split(none, 1) }}",
    "{{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }} {{ s.upper() }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.count('l') }} {{ 'a-b'.title() }} {{ '-'.join(words) }} {{ '12'.isdigit() }} {{ lines.splitlines() }} {{ 'aBc'.capitalize() }}",
    "{{ m.items()|list }} {{ m.keys()|list }} {{ m.values()|list }} {{ m.get('b') }} {{ m.get('z') }} {{ m.get('z', 5) }} {{ m|items|list }}",
    "{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent(width=3, blank=true) }}|{{ 'a\\nb'|indent('> ') }}",
    "{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}",
    "{% for a in l %}{{ loop.previtem }}-{{ a }}-{{ loop.nextitem }} {% else %}none{% endfor %}{% for a in [] %}x{% else %}none{% endfor %}{% for a in missing %}x{% else %}none{% endfor %}",
    "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% for k in m %}{{ k }}{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}{% for (a, b) in [(1, 2)] %}{{ a + b }}{% endfor %}",
    "{% for i in range(10) if i is odd %}{{ i }}{{ loop.last }} {% endfor %}{% for i in range(10, 0, -3) %}{{ i }} {% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.depth }}{{ i * j }} {% endfor %}{{ loop.index }}{% endfor %}{{ loop is defined }}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if t %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set ns = namespace(a=1, b=none) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{% set ns.new = 'x' %}{{ ns.new }}",
    "{% set a, b = 1, 'z' %}{{ a }}{{ b }}{% set p = (1, 2) %}{{ p }}{% set q = 1, 2 %}{{ q }}",
    "{% set block %}a {{ n }}\n{% if t %}b{% endif %}{% endset %}[{{ block }}]{% set up | upper | replace('A', 'q') %}aBc{% endset %}{{ up }}",
    "{% macro greet(who, mark='!') %}Hi {{ who }}{{ mark }}{% endmacro %}{{ greet('a') }}{{ greet('b', '?') }}{{ greet(mark='.', who='c') }}{{ greet() }}|{{ greet('x')|upper }}",
    "{% macro fact(k) %}{% if k > 1 %}{{ k * (fact(k - 1)|int) }}{% else %}1{% endif %}{% endmacro %}{{ fact(10) }}",
    "{{ n is number }}{{ t is number }}{{ t is boolean }}{{ n is integer }}{{ t is integer }}{{ f is float }}{{ s is string }}{{ m is mapping }}{{ l is sequence }}{{ s is sequence }}{{ n is iterable }}{{ m is iterable }}{{ nothing is none }}{{ t is true }}{{ n is true }}{{ t is not false }}",
    "{{ 6 is divisibleby 3 }}{{ 6 is divisibleby(4) }}{{ 3 is odd }}{{ -3 is odd }}{{ 4 is even }}{{ 3 is eq 3 }}{{ 3 is gt(2) }}{{ 'a' is in ['a'] }}{{ 3 is ne 3 }}{{ range is callable }}",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc {% if t %} d {% endif %} e\n{# comment #}\n   {# another\n two lines #}  \nf",
    "  {%- if t %}  x  {%- endif -%}  y  {{- 1 -}}  z  {%+ if t %}w{% endif +%}\nv\n\n",
    "x\n{{ 'a\\nb' }}\n{{ e }}\n{% set z = 1 %}\n{{ z }}\r\n{% if t -%}\r\n   y\r\n{%- endif %}\r\nend\n",
    "\n\n{% for i in [1, 2] %}\n{{ i }}\n{% endfor %}\n\n",
    "\t{% if t %}\ttab{% endif %}\n \t {{ 1 }} {%- set q = 2 %}\n {#- c -#} \n q{{ q }}",
    "{{ '\\x41\\u00e9\\U0001F600\\'\\\\\\q\\n'|tojson }} {{ \"it's\" }} {{ 'say \"x\"' }}",
    "{{ {'a': 1, 'b': [1, {'c': 2}]}.b[1].c }} {{ {'a': 1}['a'] }} {{ [1, 2, 3][1] }} {{ dict(a=1, b='x') }} {{ dict({'q': 1}, r=2) }} {{ {1: 'a', none: 'b'} }} {{ {1: 'a', none: 'b', true: 'c'}|tojson }}",
    "{{ strftime_now('%Y-%m-%d %H:%M') }} {{ strftime_now is defined }} {{ nope is defined }}",
    "{{ loop }}{{ missing }}{{ m.zz }}|{{ missing|upper }}|{{ [missing]|join('x') }}|{{ missing == nope }}",
    "{{ (n, n + 1)|last }} {{ -f }} {{ +n }} {{ - -n }} {{ 10 - 2 - 3 }} {{ 2 ** 3 ** 2 }} {{ 100 // 7 // 2 }} {{ 'a' ~ 'b' == 'ab' }} {{ 1 ~ 1 * 2 }}",
    "{%- set ns = namespace(found=false) -%}\n{%- for x in l -%}\n  {%- if x == 1 -%}{%- set ns.found = true -%}{%- break -%}{%- endif -%}\n{%- endfor -%}\n{{ ns.found }}",
    "{{ s[1:][:3] }}{{ s.lower()[0]|upper }}{{ (s ~ '!')[-1] }}{{ l[n - 6] }}{{ m['a'][-1:] }}{{ words[1:][0].lower() }}",
    "{{ loop.cycle('a') if loop is defined else 'no' }}{% for i in range(4) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}",
    "{% if not e and (n > 5 or missing) and 'a' in words %}yes{% elif t %}no{% else %}never{% endif %}{% if e %}a{% elif nothing %}b{% elif n == 7 %}c{% else %}d{% endif %}",
]
SMALL += [
    "{{ 'Hello'.removeprefix('He') }}{{ 'Hello'.removeprefix('x') }}{{ 'a.json'.removesuffix('.json') }}{{ 'a=b=c'.partition('=') }}{{ 'a'.partition('x') }}",
    "{{ 'abc'.isalpha() }}{{ 'ab1'.isalnum() }}{{ ' \t'.isspace() }}{{ ''.isspace() }}{{ 'AB1'.isupper() }}{{ 'aB'.islower() }}{{ '12'.isdigit() }}{{ 'abc'.index('c') }}",
    "{{ [1, 2, 3]|sum }}{{ [1.5, 2]|sum(start=1) }}{{ [{'a': 2}, {'a': 5}]|sum(attribute='a') }}{{ m|attr('b') is defined }}",
    "{{ m|tojson(separators=(',', ':')) }}{{ u|tojson(ensure_ascii=true) }}{{ m|tojson(indent=2, sort_keys=true) }}{{ 'foo-bar baz (qux) {x'|title }}{{ 'foo-bar baz'.title() }}",
]
ERRORS = [
    "{{ 'a'.index('b') }}", "{{ ['a', 1]|sum }}", "{{ m|tojson(separators=3) }}",
    "{{ raise_exception('my words') }}", "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ 'a' + 1 }}", "{{ 'a' + none }}",
    "{{ 1 / 0 }}", "{{ n.foo.bar }}", "{{ l.append(1) }}", "{{ m.update({}) }}", "{{ s|nope }}", "{{ s is nope }}", "{{ s.nope() }}",
    "{% if %}x{% endif %}", "{% if t %}x", "{% endif %}", "{{ 'abc }}", "{{ (1 }}", "{{ [1, }}", "{% for x l %}{% endfor %}", "{% unknown %}",
    "{{ 1 + }}", "{{ }}", "{% set x.y = 1 %}", "{{ missing + 1 }}", "{{ 1 < 'a' }}", "{{ m|tojson|nope }}", "{{ missing|tojson }}", "{{ nested|map(attribute='k.v')|list }}", "{# no end",
    "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{{ range(10)|length.x }}", "{% break %}", "{{ 'a'.split('') }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{{ {[1]: 2} }}", "{{ none|length }}", "{% for x in 5 %}{% endfor %}", "{{ a b }}", "{{ 1 ! 2 }}",
]


def render(template, variables):
    try:
        return {"expected": environment().from_string(template).render(**variables)}
    except Raised as e:
        return {"raises": str(e)}
    except Exception:  # any refusal will do: the wording is ours
        return {"fails": True}


def main():
    chats = []
    for name, template in [("chatml", CHATML), ("headers", HEADERS), ("reasoning", REASONING),
                           ("thinking", THINKING), ("alternating", ALTERNATING), ("parts", PARTS)]:
        for messages in (MESSAGES, MESSAGES[1:], MESSAGES[:2], TOOL_MESSAGES, TOOL_MESSAGES[:1], MESSAGES[2:]):
            for tools in (None, TOOLS):
                for prompt in (True, False):
                    for kwargs in ({}, {"enable_thinking": False, "builtin_tools": ["search", "code_interpreter"], "date_string": "1 May 2025"}):
                        if kwargs and not prompt:
                            continue
                        case = {"name": name, "messages": messages, "tools": tools, "kwargs": kwargs,
                                "add_generation_prompt": prompt}
                        seen = as_templates_see(messages, template, name == "parts")
                        case.update(render(template, {"messages": seen, "tools": tools, "documents": None, "bos_token": "<s>",
                                                      "eos_token": "</s>", "add_generation_prompt": prompt, **kwargs}))
                        chats.append(case)
    case = {"name": "parts", "messages": PART_MESSAGES, "tools": None, "kwargs": {}, "add_generation_prompt": False}
    case.update(render(PARTS, {"messages": PART_MESSAGES}))
    chats.append(case)
    small = [{"template": t, **render(t, CONTEXT)} for t in SMALL + ERRORS]
    for i, case in enumerate(small):
        assert ("expected" in case) == (i < len(SMALL)), case
    out = {"templates": {"chatml": CHATML, "headers": HEADERS, "reasoning": REASONING, "thinking": THINKING,
                         "alternating": ALTERNATING, "parts": PARTS},
           "chats": chats, "context": CONTEXT, "small": small}
    with open(os.path.join(HERE, "chat_template_vectors.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


main()
