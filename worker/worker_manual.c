/* worker/worker_manual.c - the manual page of the worker, beside its options. */
#include "worker/worker_options.h"

static const struct option_command commands[] = {
    {"serve", "MODEL [options]", "Serve the model, as without a first word.", &worker_program},
    {"batch", "MODEL --input-file FILE --output-file FILE [options]",
     "Answer a file of requests, then end. An interrupted run continues with the same command.",
     &worker_batch_program},
    {"inspect", "MODEL [options]",
     "Print what a model folder holds and the memory the model needs, without loading the model.",
     &worker_inspect_program},
    {"devices", "[--json]", "List the GPUs that a worker could use here.", &worker_devices_program},
    {"healthcheck", "[options]",
     "Request /livez of the worker that runs here with these options, environment and file.",
     &worker_healthcheck_program},
    {"drain", "[options]",
     "Drain the worker that runs here with these options, environment and file, without waiting "
     "for its end.",
     &worker_drain_program},
    {"man", "", "Print this page, for man -l.", NULL},
    {"completion", "bash|zsh|fish", "Print the completion of options and their values for a shell.",
     NULL},
    {NULL, NULL, NULL, NULL},
};

static const struct option_entry_of_manual environment[] = {
    {"INCIPIT_NAME", "The value of the option --name, in capitals and with underscores. An empty "
                     "variable counts as not set."},
    {"INCIPIT_CONFIG", "The file of --config."},
    {"HF_TOKEN, HF_TOKEN_PATH", "Key for models on the Hugging Face hub, or the file of the key."},
    {"HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE",
     "URL of the Hugging Face hub, folders of its models, and whether a model must be in the "
     "folder already."},
    {"VLLM_API_KEY", "API key that requests must send, where INCIPIT_API_KEY is not set."},
    {"CUDA_VISIBLE_DEVICES", "GPUs that the worker may use, as for every CUDA program."},
    {NULL, NULL},
};

static const struct option_entry_of_manual files[] = {
    {"../lib/incipit/incipit_cuda.so",
     "The backend for GPUs, relative to the program's folder. Beside the program and in the "
     "system's library folders it is found too."},
    {"~/.cache/huggingface/hub", "Models of the hub, shared with other tools."},
    {"/etc/incipit/worker.yaml", "Configuration of the services incipit-worker@, where they were "
                                 "installed from a package."},
    {NULL, NULL},
};

static const struct option_entry_of_manual signals[] = {
    {"SIGTERM, SIGINT", "Drain: accept no more requests, finish the open ones within "
                        "--drain-timeout, end. A second signal ends open requests, a third ends "
                        "the process."},
    {"SIGHUP",
     "Reload the certificate, the file of --api-key-file and the --config file: its options "
     "marked 'changes while running', all or nothing."},
    {NULL, NULL},
};

static const struct option_entry_of_manual exits[] = {
    {"0", "The worker served and ended on request, or the command is done."},
    {"1", "A failure that may pass."},
    {"2", "Wrong options, model or machine: a restart fails in the same way."},
    {NULL, NULL},
};

const struct option_entry_of_manual worker_examples[] = {
    {"Serve a model of the hub, on the first GPU or else on the CPU:", "incipit-worker org/name"},
    {"Serve a folder, on the second GPU, for other machines too:",
     "incipit-worker /srv/models/m --device cuda:1 --host 0.0.0.0 --port 31001"},
    {"Start as vllm serve was started:", "incipit-worker serve org/name --max-model-len 32k -tp 2"},
    {"Print whether a model fits here:", "incipit-worker inspect /srv/models/m"},
    {"Simulate a worker without model and GPU, to try a router:", "incipit-worker --backend sim"},
    {NULL, NULL},
};

const struct option_manual worker_manual = {
    .program = &worker_program,
    .name = "serve a language model, with a cache of prefixes",
    .description =
        "incipit-worker loads one model and answers requests in the formats of OpenAI, vLLM and "
        "SGLang. The KV cache consists of blocks of a few tokens, each found by a hash of its "
        "tokens and all before: a prompt that begins like an earlier one is computed from the "
        "first difference on.\n\n"
        "Command lines of vllm serve and sglang.launch_server start the worker too: a flag that "
        "is none of the options below is accepted with a line on stderr, or refused with the "
        "reason; --help-compat lists all of these flags.\n\n"
        "Requests need no key unless --api-key or --api-key-file sets one. Without a key, let "
        "only a router or a gateway reach the worker, by network or by --ssl-ca-certs.",
    .commands = commands,
    .environment = environment,
    .files = files,
    .signals = signals,
    .exits = exits,
    .see_also = "incipit-router(1), nvidia-smi(1), curl(1)",
};
