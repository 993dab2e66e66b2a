/* worker/text/template/chat_fallback.c - the built-in templates, and which of them a folder
 * gets. */
#include "worker/text/template/chat_fallback.h"

#include <stdio.h>

#include "common/base/file.h"
#include "common/base/mem.h"

#define MAX_TOKENIZER_BYTES ((size_t)256 << 20)
#define MAX_CONFIG_BYTES    ((size_t)1 << 20)

static const struct {
    const char *name, *source;
} templates[] = {
    {"chatml",
     "{%- for message in messages %}"
     "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
     "{%- endfor %}"
     "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"},
    {"llama3", "{{- bos_token if bos_token is defined else '<|begin_of_text|>' }}"
               "{%- for message in messages %}"
               "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
               "{{- (message.content or '') | trim + '<|eot_id|>' }}"
               "{%- endfor %}"
               "{%- if add_generation_prompt %}"
               "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"},
    {"llama2",
     "{%- set ns = namespace(system='') %}"
     "{%- for message in messages %}{%- set content = (message.content or '') | trim %}"
     "{%- if message.role == 'system' %}"
     "{%- set ns.system = '<<SYS>>\\n' + content + '\\n<</SYS>>\\n\\n' %}"
     "{%- elif message.role == 'assistant' %}{{- ' ' + content + ' ' + (eos_token or '</s>') }}"
     "{%- else %}{{- (bos_token or '<s>') + '[INST] ' + ns.system + content + ' [/INST]' }}"
     "{%- set ns.system = '' %}{%- endif %}{%- endfor %}"},
    {"mistral",
     "{{- bos_token or '<s>' }}{%- set ns = namespace(system='') %}"
     "{%- for message in messages %}{%- set content = message.content or '' %}"
     "{%- if message.role == 'system' %}{%- set ns.system = content + '\\n\\n' %}"
     "{%- elif message.role == 'assistant' %}{{- ' ' + content | trim + (eos_token or '</s>') }}"
     "{%- else %}{{- '[INST] ' + ns.system + content + '[/INST]' }}"
     "{%- set ns.system = '' %}{%- endif %}{%- endfor %}"},
    {"deepseek", "{{- bos_token or '' }}"
                 "{%- for message in messages %}{%- set content = message.content or '' %}"
                 "{%- if message.role == 'user' %}"
                 "{{- '<\xEF\xBD\x9CUser\xEF\xBD\x9C>' + content }}"
                 "{%- elif message.role == 'assistant' %}"
                 "{{- '<\xEF\xBD\x9C"
                 "Assistant\xEF\xBD\x9C>' + content.split('</think>')[-1] + (eos_token or '') }}"
                 "{%- else %}{{- content }}{%- endif %}{%- endfor %}"
                 "{%- if add_generation_prompt %}{{- '<\xEF\xBD\x9C"
                 "Assistant\xEF\xBD\x9C>' }}{%- endif %}"},
    {"deepseek-llm",
     "{{- bos_token or '' }}"
     "{%- for message in messages %}{%- set content = message.content or '' %}"
     "{%- if message.role == 'user' %}{{- 'User: ' + content + '\\n\\n' }}"
     "{%- elif message.role == 'assistant' %}{{- 'Assistant: ' + content + (eos_token or '') }}"
     "{%- else %}{{- content + '\\n\\n' }}{%- endif %}{%- endfor %}"
     "{%- if add_generation_prompt %}{{- 'Assistant:' }}{%- endif %}"},
    {"zephyr", "{%- for message in messages %}"
               "{{- '<|' + message.role + '|>\\n' + (message.content or '') + (eos_token or "
               "'</s>') + '\\n' }}"
               "{%- endfor %}"
               "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"},
};

/* Words that identify a family, in search order. */
static const struct {
    const char *word, *name;
} marks[] =
    {
        {"<|im_start|>", "chatml"},
        {"<|start_header_id|>", "llama3"},
        {"<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "deepseek"},
        {"<\xEF\xBD\x9C"
         "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
         "deepseek-llm"},
        {"[INST]", "mistral"},
        {"<|assistant|>", "zephyr"},
},
  architectures[] = {
      {"\"MistralForCausalLM\"", "mistral"},
      {"\"LlamaForCausalLM\"", "llama2"},
};

struct str chat_fallback_source(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(templates); i++) {
        if (strcmp(name, templates[i].name) == 0) return str_of(templates[i].source);
    }
    return STR_NULL;
}

/* The text of a file of the folder, for the caller to mem_free; NULL when it cannot be read. */
static char *read_text(const char *folder, const char *name, size_t max, size_t *n) {
    char path[4096], *text = NULL;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return file_read(path, max, &text, n, NULL) == ST_OK ? text : NULL;
}

const char *chat_fallback_choose(const char *folder) {
    size_t n = 0;
    char *text = read_text(folder, "tokenizer.json", MAX_TOKENIZER_BYTES, &n);
    const char *name = NULL;

    for (size_t i = 0; text && !name && i < ARRAY_LEN(marks); i++) {
        if (memmem(text, n, marks[i].word, strlen(marks[i].word))) name = marks[i].name;
    }
    mem_free(text);
    if (name) return name;
    text = read_text(folder, "config.json", MAX_CONFIG_BYTES, &n);
    for (size_t i = 0; text && !name && i < ARRAY_LEN(architectures); i++) {
        if (memmem(text, n, architectures[i].word, strlen(architectures[i].word))) {
            name = architectures[i].name;
        }
    }
    mem_free(text);
    return name ? name : "chatml";
}
