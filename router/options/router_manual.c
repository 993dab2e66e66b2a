/* router/options/router_manual.c - what the manual page of the router says beside its options. */
#include "router/options/router_options.h"

static const struct option_command commands[] = {
    {"healthcheck", "[options]",
     "Ask /livez of the router that runs here with the same options, environment and file.",
     &router_healthcheck_program},
    {"drain", "[options]",
     "Ask that router to end as on SIGTERM, and wait until it has: for those who have no pid.",
     &router_drain_program},
    {"man", "", "Print this page, for man -l.", NULL},
    {"completion", "bash|zsh|fish",
     "Print what that shell needs to complete options and their values.", NULL},
    {NULL, NULL, NULL, NULL},
};

static const struct option_entry_of_manual environment[] = {
    {"INCIPIT_NAME", "The value of the option --name, in capitals and with underscores. An empty "
                     "variable counts as not set."},
    {"INCIPIT_CONFIG", "The file of --config."},
    {NULL, NULL},
};

static const struct option_entry_of_manual files[] = {
    {"/etc/incipit/router.yaml", "Configuration of the service incipit-router, where it was "
                                 "installed from a package."},
    {"/etc/incipit/router.env", "Its environment: for secrets, which other users must not read."},
    {NULL, NULL},
};

static const struct option_entry_of_manual signals[] = {
    {"SIGTERM", "Drain: say that it is not ready, serve on for --drain-settle, accept no more, "
                "wait up to --drain-timeout for what is open, end. A second one ends streams at "
                "once, a third does not wait for that either."},
    {"SIGUSR2",
     "With --handover: start this program again, with the same arguments, as successor."},
    {"SIGINT", "The same without --drain-settle."},
    {"SIGHUP", "Read keys, certificates and the worker file again, and open the decision log "
               "again. What cannot be used changes nothing and is told in the log."},
    {NULL, NULL},
};

static const struct option_entry_of_manual exits[] = {
    {"0", "It served, and was asked to end."},
    {"1", "Something failed that may go well another time: a port in use, a launched worker."},
    {"2", "The options are wrong: it would fail the same way again."},
    {NULL, NULL},
};

static const struct option_entry_of_manual examples[] = {
    {"Two workers that run already:",
     "incipit-router --worker-urls http://10.0.0.7:31000 http://10.0.0.8:31000"},
    {"A worker on each GPU of this machine, restarted when it dies:",
     "incipit-router --launch auto --model org/name"},
    {"What it would do with a file, and where each value comes from:",
     "incipit-router --config /etc/incipit/router.yaml --dump-config"},
    {"Where a prompt would go now, and why:",
     "curl -s 127.0.0.1:29000/debug/route -d '{\"model\":\"m\",\"prompt\":\"...\"}'"},
    {NULL, NULL},
};

const struct option_manual router_manual = {
    .program = &router_program,
    .name = "send language model requests to where prompts are cached",
    .description =
        "incipit-router stands before workers that serve language models: incipit-worker, vLLM, "
        "SGLang or others with an OpenAI-compatible API. It knows approximately which prompt "
        "openings each of them holds in its KV cache, and sends every request where it costs "
        "least; the answer comes back as the worker gave it.\n\n"
        "Clients talk to port 30000 as they would to OpenAI. Operators find /metrics, /workers, "
        "/livez and /readyz on port 29000, on loopback unless told otherwise.\n\n"
        "A worker that fails is left, and its requests are tried elsewhere before the client "
        "sees anything. When all workers are full, requests wait in a bounded queue.",
    .commands = commands,
    .environment = environment,
    .files = files,
    .signals = signals,
    .exits = exits,
    .examples = examples,
    .see_also = "incipit-worker(1), systemd(1), curl(1)",
};
