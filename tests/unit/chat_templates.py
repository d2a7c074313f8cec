# ruff: noqa: E501  (a template is a text; its lines are its own)
"""Chat templates in the style of each model family, conversations, and what they render to.

Written for these tests.  EXPECTED is what Hugging Face's transformers 5.24 renders;
`test_template_hf.py` checks every pair against the installed one.
"""

from __future__ import annotations

from typing import Any

BOS, EOS = "<s>", "</s>"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city & its <suburbs>",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": None}},
}
PLAIN = [
    {"role": "user", "content": "  Hi & <b>you</b>\n"},
    {"role": "assistant", "content": "Hello 'there' 👋"},
    {"role": "user", "content": "1 < 2?"},
]
SYSTEM = [{"role": "system", "content": "Be brief.\n"}, *PLAIN]
THOUGHT = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\na1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a2", "reasoning_content": "so"},
    {"role": "user", "content": "q3"},
]
TOOLS = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"t": 3.5}', "name": "get_weather", "tool_call_id": "call00001"},
    {"role": "user", "content": "Thanks"},
]
CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "system": (SYSTEM, {"enable_thinking": False}),
    "thought": (THOUGHT, {"enable_thinking": True}),
    "tools": (TOOLS, {"tools": [WEATHER]}),
    "unfinished": (SYSTEM, {"add_generation_prompt": False, "reasoning_effort": "low"}),
}

TEMPLATES = {
    "chatml": """{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "smollm2": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "smollm3": """{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{{- "<|im_start|>system\\n" -}}
{{- "## Metadata\\n\\nReasoning Mode: " + mode + "\\n\\n" -}}
{%- if tools -%}
  {%- for tool in tools -%}
    {{- tool | string -}}
  {%- endfor -%}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if mode == "/think" -%}
            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\\n" ~ ("" if enable_thinking else "<think>\\n\\n</think>\\n") }}
{%- endif -%}""",
    "generation_lines": """{% for m in messages %}
{% if m.role == 'assistant' %}
A:
{% generation %}
{% set x = m.content %}
{{ x }}{{ loop.index }}{{ '\\n' }}
{% endgeneration %}
{% else %}
{{ m.role }}: {{ m.content | trim }}
{% endif %}
{% endfor %}""",
    "qwen25": """{%- set system = 'You are a helpful assistant.' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
{%- endif %}
{{- '<|im_start|>system\\n' ~ system }}
{%- if tools %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" ~ tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>" }}
{%- endif %}
{{- "<|im_end|>\\n" }}
{%- for m in messages %}
    {%- if m.role == "tool" %}
        {%- if loop.first or loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif m.tool_calls %}
        {{- '<|im_start|>' + m.role }}
        {%- if m.content %}
            {{- '\\n' + m.content }}
        {%- endif %}
        {%- for call in m.tool_calls %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (loop.first and m.role == "system") %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt }}
""",
    "qwen3": """{%- set state = namespace(searching=true, last_query=0) %}
{%- for m in messages[::-1] if m.role == "user" %}
    {%- if state.searching and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
        {%- set state.searching = false %}
        {%- set state.last_query = messages.index(m) %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- set answer, thought = m.content, m.reasoning_content | default('', true) %}
    {%- if m.role == "assistant" and not thought and '</think>' in m.content %}
        {%- set thought = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set answer = m.content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if thought and loop.index0 > state.last_query - 3 %}
        {{- '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- answer + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "llama2": """{% set ns = namespace(lead='', turns=messages) %}{% if messages[0].role == 'system' %}{% set ns.lead = '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' %}{% set ns.turns = messages[1:] %}{% endif %}{% for m in ns.turns %}{% if loop.index is odd and m.role != 'user' or loop.index is even and m.role == 'user' %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ ((ns.lead if loop.first else '') ~ m.content).strip() }} [/INST]{% elif m.role == 'assistant' %} {{ m.content.strip() ~ ' ' ~ eos_token }}{% endif %}{% endfor %}""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "llama31": """{{- bos_token }}
{%- set turns, system = messages, "" %}
{%- if messages[0].role == 'system' %}
    {%- set turns, system = messages[1:], messages[0].content | trim %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " ~ date_string | default("26 Jul 2024") ~ "\\n\\n" ~ system ~ "<|eot_id|>" }}
{%- for m in turns %}
    {%- set role = 'ipython' if m.role == 'tool' else m.role %}
    {{- '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}
    {%- if loop.first and tools is not none %}
        {%- for tool in tools %}
            {{- tool | tojson(indent=4) ~ "\\n\\n" }}
        {%- endfor %}
    {%- endif %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length > 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- for call in m.tool_calls | map(attribute='function') %}
            {{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments | tojson ~ "}" }}
        {%- endfor %}
    {%- elif role == 'ipython' %}
        {{- m.content | tojson if m.content is iterable else m.content }}
    {%- else %}
        {{- m.content | trim }}
    {%- endif %}
    {{- "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "gemma2": """{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% elif (m.role == 'user') is ne (loop.index is odd) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}<start_of_turn>{{ {'assistant': 'model'}.get(m.role, m.role) }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "mistral": """{%- set turns = messages %}
{%- if messages[0].role == "system" %}
    {%- set system, turns = messages[0].content, messages[1:] %}
{%- endif %}
{%- set users = turns | selectattr("role", "equalto", "user") | list %}
{%- set seen = namespace(n=0) %}
{%- for m in turns if m.role == "user" or (m.role == "assistant" and not m.tool_calls) %}
    {%- if (m.role == "user") != (seen.n % 2 == 0) and not tools %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- set seen.n = seen.n + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for m in turns %}
    {%- if m.role == "user" %}
        {%- if tools and m == users[-1] %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools | map(attribute="function") %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.items() if key != "return" %}
                    {{- '"' + key + '": ' }}{{ '"%s"' % value if value is string else value | tojson }}
                    {{- ", " if not loop.last }}
                {%- endfor %}
                {{- "}}" + ("]" if loop.last else ", ") }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + (system + "\\n\\n" if loop.last and system is defined else "") + m.content + "[/INST]" }}
    {%- elif m.tool_calls is defined and m.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in m.tool_calls %}
            {%- if call.id is undefined or call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' }}
            {{- "]" + eos_token if loop.last else ", " }}
        {%- endfor %}
    {%- elif m.role == "assistant" %}
        {{- " " + m.content | trim + eos_token }}
    {%- elif m.role == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + m.content | string + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "vicuna": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = "A chat." %}{% endif %}{{ system_message }}{% for message in loop_messages %}{% if message['role'] == 'user' %}{{ ' USER: ' + message['content'].strip() }}{% elif message['role'] == 'assistant' %}{{ ' ASSISTANT: ' + message['content'].strip() + eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] %}{%- for tool in message['tool_calls'] %}{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|string + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endfor %}{%- elif message['role'] == 'assistant' %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}
 {%- set system_message = messages[0]['content'] %}
 {%- set loop_messages = messages[1:] %}
{%- else %}
 {%- set system_message = "Knowledge Cutoff Date: April 2024." %}
 {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}
 {{- '<|start_of_role|>tools<|end_of_role|>' }}
 {{- tools | tojson(indent=4) }}
 {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in loop_messages %}
 {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
 {%- if loop.last and add_generation_prompt %}
 {{- '<|start_of_role|>assistant' }}
 {%- if controls %}
 {{- ' ' + controls | tojson() }}
 {%- endif %}
 {{- '<|end_of_role|>' }}
 {%- endif %}
{%- endfor %}""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "phi4mini": """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "commandr": """{{ bos_token }}{% set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}{% for m in messages if m.role in names %}{{ '<|START_OF_TURN_TOKEN|><|%s_TOKEN|>' % names[m.role] }}{{ m.content if m.role == 'system' else m.content.strip() }}<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}""",
    "commandr_tools": """{%- macro json_to_python_type(param_name, param) %}
{%- set types = {"string": "str", "number": "float", "integer": "int"} %}
{%- if param.type in types %}{{- types[param.type] }}{%- else %}{{- "Any" }}{%- endif %}
{%- endmacro %}
{%- if tools %}
{%- for tool in tools %}
{{- "```python\\ndef " + tool.function.name + "(" }}
{%- for name, fields in tool.function.parameters.properties.items() %}
{%- if loop.index > 1 %}{{ ", " }}{% endif %}
{{- name + ": " }}{{- json_to_python_type(name, fields) }}
{%- endfor %}
{{- "):\\n" ~ tool.function.description | indent(4, true) ~ "\\n```" }}
{%- endfor %}
{%- endif %}
{%- for m in messages %}
{{- "\\n" ~ m.role | upper ~ ": " ~ (m.content or "(calls)") }}
{%- for call in m.tool_calls or [] %}
{{- call.function | tojson(indent=2, sort_keys=true) }}
{%- endfor %}
{%- endfor %}""",
    "hermes": """{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "object": "dict", "array": "list"} %}
{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type is iterable and json_spec.type is not string %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
      {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{{- bos_token }}
{{- '<|im_start|>system\\nYou call functions. <tools>' }}
{%- for tool in tools or [] %}
    {%- set tool = tool.function if tool.function is defined else tool %}
    {{- '{"name": "' ~ tool.name ~ '", "sig": "(' }}
    {%- for name, field in tool.parameters.properties|items %}
        {{- name ~ ": " ~ json_to_python_type(field) }}
        {%- if not loop.last %}{{- ", " }}{%- endif %}
    {%- endfor %}
    {{- ')", "parameters": ' ~ tool.parameters|tojson ~ '}' }}
{%- endfor %}
{{- ' </tools><|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {{- '<|im_start|>assistant' }}
        {%- for tool_call in message.tool_calls %}
            {{- '\\n<tool_call>\\n' ~ {"name": tool_call.function.name, "arguments": tool_call.function.arguments} | tojson ~ '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "gptoss": """{%- macro render_type(spec) -%}
    {%- if spec.type == "array" -%}
        {{- render_type(spec["items"]) + "[]" -}}
    {%- elif spec.enum is defined -%}
        {{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- elif spec.type == "object" -%}
        {{- "{" -}}
        {%- for name, prop in spec.properties.items() -%}
            {{- "\\n" + name -}}
            {%- if name not in (spec.required or []) -%}{{- "?" -}}{%- endif -%}
            {{- ": " -}}{{ render_type(prop) }}
            {%- if not loop.last -%}{{- "," -}}{%- endif -%}
        {%- endfor -%}
        {{- "\\n}" -}}
    {%- else -%}
        {{- spec.type -}}
    {%- endif -%}
{%- endmacro -%}
{%- set model_identity = "You are ChatGPT." if model_identity is not defined -%}
{{- "<|start|>system<|message|>" + model_identity|string + "\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: " + (reasoning_effort or "medium") + "<|end|>" -}}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|># Instructions\\n\\n" + developer_message }}
    {%- for tool in tools or [] %}
        {{- "\\n\\ntype " + tool.function.name + " = (_: " }}{{ render_type(tool.function.parameters) }}{{ ") => any;" }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" + tool_call.arguments|tojson + "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}""",
    "alpaca": """{% for m in messages %}{% if m.role == 'user' %}### Instruction:
{{ m.content|trim }}

### Response:
{% elif m.role == 'assistant' %}{{ m.content|trim }}

{% else %}{{ m.content }}

{% endif %}{% endfor %}""",
    "minicpm": """{% for message in messages %}{% if message['role'] == 'user' %}{{'<用户>' + message['content'].strip() + '<AI>'}}{% else %}{{message['content'].strip()}}{% endif %}{% endfor %}""",
    "openchat": """{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': ' + message['content'] + '<|end_of_turn|>'}}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}""",
    "falcon": """{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ message.role.capitalize() }}: {{ message.content.strip().replace('\\r\\n', '\\n').replace('\\n\\n', '\\n') }}{% endfor %}{% if add_generation_prompt %}{{ '\\nFalcon:' }}{% endif %}""",
    "exaone": """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '[|system|][|endofturn|]\\n' }}{% endif %}{{ '[|' + message['role'] + '|]' + message['content'] }}{% if message['role'] == 'user' %}{{ '\\n' }}{% else %}{{ '[|endofturn|]\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}""",
    "glm4": """[gMASK]<sop>
{%- if tools is not none and tools -%}
<|system|>
{% for tool in tools %}
## {{ tool['function']['name'] }}

{{ tool['function'] | tojson(indent=2, ensure_ascii=False, separators=(',', ': ')) }}
{%- endfor %}
{%- endif -%}
{%- for item in messages -%}
<|{{ item['role'] }}|>
{{ item['content'] }}
{%- endfor -%}
{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "nemotron": """{% for m in messages if m.role != 'tool' %}<extra_id_{{ loop.cycle(0, 1) }}>{{ m.role|title }}
{{ '%s (%d)' % (m.content, loop.index) }} {{ "{:>4}|{!r}".format(loop.index, m.role) }} {{ "%-6s"|format(m.role) }}
{% if loop.index > 9 %}{% break %}{% endif %}{% endfor %}""",
    "kimi": """{%- macro render_content(msg) -%}
    {%- set c = msg.get('content') -%}
    {%- if c is string -%}{{ c }}{%- elif c is not none -%}{% for content in c -%}{{ content['text'] }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>{%- endif -%}
{% for message in messages %}
  {%- set role_name = message.get('name') or message['role'] -%}
  <|im_{{ message['role'] }}|>{{ role_name }}<|im_middle|>
  {%- if message['role'] == 'assistant' and message.get('tool_calls') -%}
    {%- for tool_call in message['tool_calls'] -%}
      {%- set args = tool_call['function']['arguments'] -%}
      <|tool_call_begin|>{{ tool_call['id'] }}{{ args if args is string else args | tojson(ensure_ascii=true) }}<|tool_call_end|>
    {%- endfor -%}
  {%- else -%}{{ render_content(message) }}{%- endif -%}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}""",
    "jamba": """{%- set ns = namespace(parts=[], n=0) -%}
{%- for m in messages -%}
{%- set ns.parts = ns.parts + [m.role ~ '=' ~ m.content|replace('\\n', ' ')|truncate(12)] -%}
{%- set ns.n = ns.n + m.content|length -%}
{%- endfor -%}
{{ ns.parts|join('; ') }} {{ ns.n }} {{ messages|map(attribute='role')|unique|sort|join(',') }} {{ (messages|last).content[:3] }} {{ messages|groupby('role')|map('first')|list }} {{ dict(a=1, b=[1.5, none, true]) }}""",
}

EXPECTED: dict[tuple[str, str], str] = {
    (
        "chatml",
        "plain",
    ): "<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm2",
        "plain",
    ): "<|im_start|>system\nYou are helpful<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm2",
        "system",
    ): "<|im_start|>system\nBe brief.\n<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm3",
        "thought",
    ): "<|im_start|>system\n## Metadata\n\nReasoning Mode: /think\n\n<|im_end|>\n<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\na1<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\na2<|im_end|>\n<|im_start|>user\nq3<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm3",
        "unfinished",
    ): "<|im_start|>system\n## Metadata\n\nReasoning Mode: /think\n\n<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n",
    ("generation_lines", "plain"): "user: Hi & <b>you</b>\nA:\nHello 'there' 👋2\n\nuser: 1 < 2?\n",
    (
        "qwen25",
        "plain",
    ): "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "qwen25",
        "tools",
    ): '<|im_start|>system\nUse tools.\n\n# Tools\n\n<tools>\n{"type": "function", "function": {"name": "get_weather", "description": "Current weather in a city & its <suburbs>", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}}, "required": ["city"]}}}\n</tools><|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": null}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n{"t": 3.5}\n</tool_response><|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n',
    (
        "qwen3",
        "thought",
    ): "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n<think>\nso\n</think>\n\na2<|im_end|>\n<|im_start|>user\nq3<|im_end|>\n<|im_start|>assistant\n",
    (
        "qwen3",
        "system",
    ): "<|im_start|>system\nBe brief.\n<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    (
        "llama2",
        "system",
    ): "<s>[INST] <<SYS>>\nBe brief.\n\n<</SYS>>\n\n  Hi & <b>you</b> [/INST] Hello 'there' 👋 </s><s>[INST] 1 < 2? [/INST]",
    (
        "llama3",
        "plain",
    ): "<s><|start_header_id|>user<|end_header_id|>\n\nHi & <b>you</b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello 'there' 👋<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1 < 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    (
        "llama31",
        "system",
    ): "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi & <b>you</b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello 'there' 👋<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1 < 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    (
        "llama31",
        "tools",
    ): '<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nUse tools.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{\n    "type": "function",\n    "function": {\n        "name": "get_weather",\n        "description": "Current weather in a city & its <suburbs>",\n        "parameters": {\n            "type": "object",\n            "properties": {\n                "city": {\n                    "type": "string",\n                    "enum": [\n                        "Köln",\n                        "Oslo"\n                    ]\n                }\n            },\n            "required": [\n                "city"\n            ]\n        }\n    }\n}\n\nWeather?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{"name": "get_weather", "parameters": {"city": "Köln", "days": 2, "wet": null}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"{\\"t\\": 3.5}"<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nThanks<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
    (
        "gemma2",
        "plain",
    ): "<s><start_of_turn>user\nHi & <b>you</b><end_of_turn>\n<start_of_turn>model\nHello 'there' 👋<end_of_turn>\n<start_of_turn>user\n1 < 2?<end_of_turn>\n<start_of_turn>model\n",
    (
        "gemma3",
        "system",
    ): "<s><start_of_turn>user\nBe brief.\n\n\nHi & <b>you</b><end_of_turn>\n<start_of_turn>model\nHello 'there' 👋<end_of_turn>\n<start_of_turn>user\n1 < 2?<end_of_turn>\n<start_of_turn>model\n",
    (
        "mistral",
        "tools",
    ): '<s>[INST] Weather?[/INST][TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": null}, "id": "call00001"}]</s>[TOOL_RESULTS] {"content": {"t": 3.5}, "call_id": "call00001"}[/TOOL_RESULTS][AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "get_weather", "description": "Current weather in a city & its <suburbs>", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}}, "required": ["city"]}}}][/AVAILABLE_TOOLS][INST] Use tools.\n\nThanks[/INST]',
    (
        "deepseek",
        "thought",
    ): "<s><｜User｜>q1<｜Assistant｜>\n\na1<｜end▁of▁sentence｜><｜User｜>q2<｜Assistant｜>a2<｜end▁of▁sentence｜><｜User｜>q3<｜Assistant｜><think>\n",
    (
        "deepseek",
        "tools",
    ): "<s>Use tools.<｜User｜>Weather?<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{'city': 'Köln', 'days': 2, 'wet': None}\n```<｜tool▁call▁end｜><｜tool▁output▁begin｜>{\"t\": 3.5}<｜tool▁output▁end｜><｜User｜>Thanks<｜Assistant｜><think>\n",
    (
        "granite",
        "system",
    ): "<|start_of_role|>system<|end_of_role|>Be brief.\n<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>  Hi & <b>you</b>\n<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>Hello 'there' 👋<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>1 < 2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    (
        "phi3",
        "plain",
    ): "<|user|>\n  Hi & <b>you</b>\n<|end|>\n<|assistant|>\nHello 'there' 👋<|end|>\n<|user|>\n1 < 2?<|end|>\n<|assistant|>\n",
    (
        "phi4mini",
        "system",
    ): "<|system|>Be brief.\n<|end|><|user|>  Hi & <b>you</b>\n<|end|><|assistant|>Hello 'there' 👋<|end|><|user|>1 < 2?<|end|><|assistant|>",
    (
        "commandr",
        "system",
    ): "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.\n<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi & <b>you</b><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello 'there' 👋<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>1 < 2?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    (
        "commandr_tools",
        "tools",
    ): '```python\ndef get_weather(city: str):\n    Current weather in a city & its <suburbs>\n```\nSYSTEM: Use tools.\nUSER: Weather?\nASSISTANT: (calls){\n  "arguments": {\n    "city": "Köln",\n    "days": 2,\n    "wet": null\n  },\n  "name": "get_weather"\n}\nTOOL: {"t": 3.5}\nUSER: Thanks',
    (
        "hermes",
        "tools",
    ): '<s><|im_start|>system\nYou call functions. <tools>{"name": "get_weather", "sig": "(city: str)", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}}, "required": ["city"]}} </tools><|im_end|>\n<|im_start|>system\nUse tools.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": null}}\n</tool_call><|im_end|>\n<|im_start|>tool\n{"t": 3.5}<|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n',
    (
        "zephyr",
        "system",
    ): "<|system|>\nBe brief.\n</s>\n<|user|>\n  Hi & <b>you</b>\n</s>\n<|assistant|>\nHello 'there' 👋</s>\n<|user|>\n1 < 2?</s>\n<|assistant|>\n",
    (
        "vicuna",
        "system",
    ): "Be brief.\n USER: Hi & <b>you</b> ASSISTANT: Hello 'there' 👋</s> USER: 1 < 2? ASSISTANT:",
    (
        "nemotron",
        "plain",
    ): "<extra_id_0>User\n  Hi & <b>you</b>\n (1)    1|'user' user  \n<extra_id_1>Assistant\nHello 'there' 👋 (2)    2|'assistant' assistant\n<extra_id_0>User\n1 < 2? (3)    3|'user' user  \n",
    (
        "kimi",
        "tools",
    ): '<|im_system|>tool_declare<|im_middle|>[{"type":"function","function":{"name":"get_weather","description":"Current weather in a city & its <suburbs>","parameters":{"type":"object","properties":{"city":{"type":"string","enum":["Köln","Oslo"]}},"required":["city"]}}}]<|im_end|><|im_system|>system<|im_middle|>Use tools.<|im_end|><|im_user|>user<|im_middle|>Weather?<|im_end|><|im_assistant|>assistant<|im_middle|><|tool_call_begin|>call00001{"city": "K\\u00f6ln", "days": 2, "wet": null}<|tool_call_end|><|im_end|><|im_tool|>get_weather<|im_middle|>{"t": 3.5}<|im_end|><|im_user|>user<|im_middle|>Thanks<|im_end|><|im_assistant|>assistant<|im_middle|>',
    (
        "jamba",
        "system",
    ): "system=Be brief. ; user=  Hi &...; assistant=Hello 'there' 👋; user=1 < 2? 49 assistant,system,user 1 < ['assistant', 'system', 'user'] {'a': 1, 'b': [1.5, None, True]}",
}
"""(template, conversation) -> text."""
