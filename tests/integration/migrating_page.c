/* tests/integration/migrating_page.c - writes worker/MIGRATING.md from the option tables: what becomes of
 * each flag of `vllm serve` and `sglang.launch_server`.
 *
 * `make pages` puts it into its place, and test_flags.py sees that it is there as the program has it. */
#include <stdio.h>

#include "common/options/options.h"
#include "worker/worker_options.h"

static const char *const intro =
    "# Coming from vLLM or SGLang\n"
    "\n"
    "`incipit-worker` starts with the command lines people have for `vllm serve` and\n"
    "`sglang.launch_server`: replace the program's name, or, in a container, the image. These "
    "start the same worker:\n"
    "\n"
    "    incipit-worker MODEL --max-model-len 32k -tp 2 --enforce-eager\n"
    "    incipit-worker serve MODEL --max_model_len=32000 --tp 2\n"
    "    incipit-worker --model-path MODEL --context-length 32000 --tp-size 2\n"
    "\n"
    "A flag is one of three things. It is *honoured*: it is an option here, under that name\n"
    "(`incipit-worker --help`). It has *no effect*: it tunes something that works another way "
    "here, or\n"
    "that is not here and changes no answer; one line on stderr names the flag and the reason. It "
    "is\n"
    "*refused*: ignoring it would change the answers (other weights, adapters, another "
    "arithmetic,\n"
    "another kind of model), so the worker ends with exit code 2 and a sentence that names the "
    "flag,\n"
    "the value and what to do.\n"
    "\n"
    "The spelling is theirs too: `_` for `-`, `--flag=value`, `--no-flag`, `-tp 4`, `-O3`,\n"
    "`--compilation-config.mode 3`, several values behind one flag, a flag cut short where only "
    "one begins\n"
    "so (`--mem-frac`), `32k` (32,000) and `32K` (32,768). `--config FILE` takes vLLM's and "
    "SGLang's YAML with\n"
    "the same names as keys, mappings for JSON values included. Numbers beyond a limit of this "
    "worker are\n"
    "brought to the limit, with a line on stderr, where that changes no answer.\n"
    "\n"
    "Differences to know first:\n"
    "\n"
    "- `--host` is 127.0.0.1 by default and `--port` 31000; vLLM listens on 0.0.0.0:8000, SGLang "
    "on 127.0.0.1:30000.\n"
    "- `--api-key` protects every path but health, metrics, version and load, not `/v1` alone. A "
    "router in\n"
    "  front needs that key: `--worker-api-key-file`. On the command line `ps` shows it: prefer "
    "`INCIPIT_API_KEY`,\n"
    "  `VLLM_API_KEY` or `--api-key-file`.\n"
    "- Parsers of tool calls and reasoning are accepted without effect: such answers come as "
    "text.\n"
    "- No CORS headers are sent.\n"
    "- Variables `VLLM_*` and `SGLANG_*` have no effect, but `VLLM_API_KEY`.\n";

static void put_honoured(void) {
    printf("\n## Honoured\n\n| flag | what it does |\n|---|---|\n");
    for (size_t i = 0; i < worker_program.n_defs; i++) {
        const struct option_def *d = &worker_program.defs[i];
        const char *aliases = d->aliases;

        if (d->is_hidden) continue;
        printf("| `--%s`", d->name);
        while (aliases && *aliases) {
            size_t n = strcspn(aliases, ",");

            if (*aliases == '!')
                printf(", opposite `--%.*s`", (int)n - 1, aliases + 1);
            else
                printf(", `--%.*s`", (int)n, aliases);
            aliases += n + (aliases[n] == ',');
        }
        printf(" | %s |\n", d->help);
    }
}

int main(void) {
    struct buf page;

    printf("%s", intro);
    put_honoured();
    printf("\n## Another word for one of these, without effect, or refused\n\n"
           "| flags | here | why |\n|---|---|---|\n");
    buf_init(&page, 0);
    options_foreign_page(&worker_program, &page);
    fwrite(buf_ptr(&page), 1, buf_len(&page), stdout);
    buf_fini(&page);
    return 0;
}
