/* router/options/router_manual.c - the manual page of the router, beside its options. */
#include "router/options/router_options.h"

static const struct option_command commands[] = {
    {"healthcheck", "[options]",
     "Request /livez of the router that runs here with these options, environment and file.",
     &router_healthcheck_program},
    {"drain", "[options]",
     "Drain the router that runs here with these options, environment and file, as SIGTERM does, "
     "and wait until the router ends. Needs no process id.",
     &router_drain_program},
    {"man", "", "Print this page, for man -l.", NULL},
    {"completion", "bash|zsh|fish", "Print the completion of options and their values for a shell.",
     NULL},
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
    {"SIGTERM", "Drain: /readyz is 503, requests are accepted for --drain-settle more, then open "
                "requests finish within --drain-timeout, and the router ends. A second SIGTERM "
                "ends streams at once, a third ends the process."},
    {"SIGUSR2", "With --handover: start this program again, with equal arguments, as successor."},
    {"SIGINT", "Drain without --drain-settle."},
    {"SIGHUP", "Read the --config file, keys, certificates and the worker file again, and open the "
               "decision log again. What cannot be used changes nothing and is reported in the "
               "log."},
    {NULL, NULL},
};

static const struct option_entry_of_manual exits[] = {
    {"0", "The router served and ended on request."},
    {"1", "A failure that may pass: a port in use, a launched worker that ended."},
    {"2", "Wrong options: a restart fails in the same way."},
    {NULL, NULL},
};

const struct option_entry_of_manual router_examples[] = {
    {"Route to two running workers:",
     "incipit-router --worker-urls http://10.0.0.7:31000 http://10.0.0.8:31000"},
    {"Start a worker on each GPU of this machine, and restart those that fail:",
     "incipit-router --launch auto --model org/name"},
    {"Route to the pods of a label, for clients on other machines:",
     "incipit-router --service-discovery k8s --k8s-selector app=w --host 0.0.0.0"},
    {"Print the values in effect with a file, and where each comes from:",
     "incipit-router --config /etc/incipit/router.yaml --dump-config"},
    {"Print the worker that a prompt would go to now, and why:",
     "curl -s 127.0.0.1:29000/debug/route -d '{\"model\":\"m\",\"prompt\":\"...\"}'"},
    {NULL, NULL},
};

const struct option_manual router_manual = {
    .program = &router_program,
    .name = "send language model requests to where prompts are cached",
    .description =
        "incipit-router stands before workers that serve language models: incipit-worker, vLLM, "
        "SGLang or others with an OpenAI-compatible API. It tracks approximately which prompt "
        "prefixes each worker holds in its KV cache, and sends every request to the worker where "
        "it costs least; the answer returns unchanged.\n\n"
        "Clients use port 30000 like OpenAI's API. Operators find /metrics, /workers, /livez and "
        "/readyz on port 29000, by default on loopback.\n\n"
        "A failing worker is ejected, and its requests are sent to other workers before the "
        "client receives anything. When all workers are full, requests wait in a bounded queue.",
    .commands = commands,
    .environment = environment,
    .files = files,
    .signals = signals,
    .exits = exits,
    .see_also = "incipit-worker(1), systemd(1), curl(1)",
};
