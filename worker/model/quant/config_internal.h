/* worker/model/quant/config_internal.h - what the readers of the methods fill. */
#ifndef WORKER_MODEL_QUANT_CONFIG_INTERNAL_H
#define WORKER_MODEL_QUANT_CONFIG_INTERNAL_H

#include "common/text/json.h"
#include "worker/model/quant/config.h"
#include "worker/model/quant/pattern.h"

/* How an entry of a list matches the name of a module. */
enum rule_kind {
    RULE_NAME,  /* the whole name */
    RULE_CLASS, /* "Linear": all modules asked for */
    RULE_REGEX, /* Python's re.match */
    RULE_PART,  /* whole parts between dots; any other part of the name leaves the module open */
    RULE_GLOB   /* as RULE_PART, or a shell wildcard over the whole name */
};

struct quant_rule {
    enum rule_kind kind;
    struct str text; /* in the tree */
    struct pattern *pattern;
    bool is_plain; /* else `scheme` */
    struct quant_scheme scheme;
};

struct quant_config {
    struct json *config, *hf; /* trees; rules point into them */
    const char *method;
    struct quant_scheme scheme; /* where no rule matches */
    enum quant_want otherwise;  /* where no rule matches */
    enum quant_want head;       /* the same, of lm_head */
    struct quant_rule *rules;   /* the first that matches decides */
    uint32_t n_rules;
    uint32_t n_regex;     /* of n_rules */
    uint64_t regex_bytes; /* compiled */
};

/* Appends a rule. Its text stays in the tree. */
MUST_USE enum status quant_config_add(struct quant_config *c, enum rule_kind kind, struct str text,
                                      const struct quant_scheme *scheme /* NULL: plain */,
                                      struct error *err);
/* Appends the strings of a list as plain; absent and null are empty. */
MUST_USE enum status quant_config_add_list(struct quant_config *c, enum rule_kind kind,
                                           const struct json *list, const char *key,
                                           struct error *err);
/* The string of a key, `otherwise` where it is absent; ST_INVALID for another type. */
MUST_USE enum status quant_config_str(const struct json *object, const char *key,
                                      const char *otherwise, struct str *out, struct error *err);
/* "unsupported KEY 'VALUE' of METHOD: read are ..." */
enum status quant_config_refuse(const struct quant_config *c, struct error *err, const char *key,
                                struct str value, const char *is_read);
/* group_size of awq, gptq: -1 or absent is 0, all of a row. */
MUST_USE enum status quant_config_group(const struct json *object, uint32_t *group_size,
                                        struct error *err);

/* One of each method. `q`: the object quantization_config. */
MUST_USE enum status quant_read_compressed(struct quant_config *c, const struct json *q,
                                           struct error *err);
MUST_USE enum status quant_read_gptq(struct quant_config *c, const struct json *q,
                                     struct error *err);

#endif
