/* worker/worker_manual.c - what the manual page of the worker says beside its options. */
#include "worker/worker_options.h"

static const struct option_command commands[] = {
    {"serve", "MODEL [options]", "Serve the model, as without a first word.", &worker_program},
    {"batch", "MODEL --input-file FILE --output-file FILE [options]",
     "Answer a file of requests, then end. What was ended early goes on where it was.",
     &worker_batch_program},
    {"inspect", "MODEL [options]",
     "Say what a model folder holds and what it would need, without loading it.",
     &worker_inspect_program},
    {"devices", "[--json]", "List the GPUs that a worker could use here.", &worker_devices_program},
    {"healthcheck", "[options]",
     "Ask /livez of the worker that runs here with the same options, environment and file.",
     &worker_healthcheck_program},
    {"drain", "[options]",
     "Ask that worker to finish what it has, take no more, and end. Does not wait for that.",
     &worker_drain_program},
    {"man", "", "Print this page, for man -l.", NULL},
    {"completion", "bash|zsh|fish",
     "Print what that shell needs to complete options and their values.", NULL},
    {NULL, NULL, NULL, NULL},
};

static const struct option_entry_of_manual environment[] = {
    {"INCIPIT_NAME", "The value of the option --name, in capitals and with underscores. An empty "
                     "variable counts as not set."},
    {"INCIPIT_CONFIG", "The file of --config."},
    {"HF_TOKEN, HF_TOKEN_PATH", "Key for models on the Hugging Face hub, or the file it is in."},
    {"HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE",
     "Where that hub is, where its models are kept, and whether they must be there already."},
    {"VLLM_API_KEY", "A key that requests must have, where INCIPIT_API_KEY is not set."},
    {"CUDA_VISIBLE_DEVICES", "The GPUs that it may use, as for every CUDA program."},
    {NULL, NULL},
};

static const struct option_entry_of_manual files[] = {
    {"../lib/incipit/incipit_cuda.so",
     "The backend for GPUs, from the folder of the program; or beside it, or where the system "
     "looks for libraries."},
    {"~/.cache/huggingface/hub", "Models of the hub, shared with other tools."},
    {"/etc/incipit/worker.yaml", "Configuration of the services incipit-worker@, where they were "
                                 "installed from a package."},
    {NULL, NULL},
};

static const struct option_entry_of_manual signals[] = {
    {"SIGTERM, SIGINT", "Accept no more, finish what is open within --drain-timeout, end. A "
                        "second one ends what is open, a third the process."},
    {"SIGHUP", "Read the certificate and the file of --api-key-file again."},
    {NULL, NULL},
};

static const struct option_entry_of_manual exits[] = {
    {"0", "It served, and was asked to end; or the command is done."},
    {"1", "Something failed that may go well another time."},
    {"2", "Options, model or machine are wrong: it would fail the same way again, so nobody need "
          "restart it."},
    {NULL, NULL},
};

static const struct option_entry_of_manual examples[] = {
    {"A model of the hub, on the first GPU or else on the CPU:", "incipit-worker org/name"},
    {"A folder, on the second GPU, for other machines too:",
     "incipit-worker /srv/models/m --device cuda:1 --host 0.0.0.0 --port 31001"},
    {"As vllm serve was started:",
     "incipit-worker serve org/name --served-model-name m --max-model-len 32k -tp 2"},
    {"Whether it fits here:", "incipit-worker inspect /srv/models/m"},
    {"A fleet without a model or a GPU, to try a router:", "incipit-worker --backend sim"},
    {NULL, NULL},
};

const struct option_manual worker_manual = {
    .program = &worker_program,
    .name = "serve a language model, with a cache of prefixes",
    .description =
        "incipit-worker loads one model and answers requests for it, as OpenAI's API, vLLM's and "
        "SGLang's have them. The KV cache is kept in blocks of a few tokens, found again by a "
        "hash of all that came before them: a prompt that begins like an earlier one is computed "
        "from where they part.\n\n"
        "Command lines of vllm serve and sglang.launch_server start it too: a flag that is none of "
        "the options below is accepted with a line on stderr, or refused with the reason; "
        "--help-compat lists all of them.\n\n"
        "It needs no key unless --api-key or --api-key-file gives one: without, let nobody but a "
        "router or a gateway reach it, by network or by --ssl-ca-certs.",
    .commands = commands,
    .environment = environment,
    .files = files,
    .signals = signals,
    .exits = exits,
    .examples = examples,
    .see_also = "incipit-router(1), nvidia-smi(1), curl(1)",
};
