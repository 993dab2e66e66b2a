/* worker/grammar/schema/schema_format.c - formats of strings, as patterns of the whole. */
#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/schema/schema_internal.h"

/* RFC 3339. A leap year is divisible by 4, but by 100 only with 400. */
#define YEAR_OF_FOUR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0" \
    "[1-9]|1[0-9]|2[0-8]))|" YEAR_OF_FOUR "-02-29)"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define DURATION_TIME "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
#define DURATION_DATE "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"

#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H16  "[0-9a-fA-F]{1,4}"
#define LS32 "(" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|(" H16       \
    "(:" H16 ")?)?::(" H16 ":){3}" LS32 "|(" H16 "(:" H16 "){0,2})?::(" H16 ":){2}" LS32 "|(" H16  \
    "(:" H16 "){0,3})?::" H16 ":" LS32 "|(" H16 "(:" H16 "){0,4})?::" LS32 "|(" H16 "(:" H16       \
    "){0,5})?::" H16 "|(" H16 "(:" H16 "){0,6})?::)"

/* RFC 1123; HOSTNAME_MAX in all. */
#define LABEL        "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOSTNAME     LABEL "(\\." LABEL ")*"
#define HOSTNAME_MAX 253u
#define ATOM         "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define MAILBOX      ATOM "(\\." ATOM "){0,9}@" /* before the name of a host */

#define PCT   "%[0-9a-fA-F]{2}"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define USER  "(([a-zA-Z0-9._~!$&'()*+,;=:-]|" PCT ")*@)?"
#define HOST  "(\\[" IPV6 "\\]|([a-zA-Z0-9._~!$&'()*+,;=-]|" PCT ")*)"
#define PATH  "(/" PCHAR "*)*"
#define URI                                                                                        \
    "[a-zA-Z][a-zA-Z0-9+.-]*:(//" USER HOST "(:[0-9]*)?" PATH "|/(" PCHAR "+" PATH ")?|" PCHAR     \
    "+" PATH ")?(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "[tT]" TIME},
    {"duration", "P(" DURATION_DATE "(" DURATION_TIME ")?|" DURATION_TIME "|[0-9]+W)"},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", URI},
};

static expr_id pattern(struct schema *s, const char *text) {
    struct regex_rules rules = {.form = CHARS_IN_JSON, .is_whole = true};
    expr_id e;

    if (regex_expr_parse(&e, s->exprs, str_of(text), &rules, s->err) != ST_OK)
        return EXPR_NONE; /* the table is wrong: no string, and the tests find it */
    return e;
}

static expr_id hostname(struct schema *s) {
    return expr_and(s->exprs, pattern(s, HOSTNAME),
                    expr_repeat(s->exprs, pattern(s, "[a-zA-Z0-9.-]"), 1, HOSTNAME_MAX));
}

expr_id schema_format(struct schema *s, struct str name) {
    if (str_eq(name, STR("hostname"))) return hostname(s);
    if (str_eq(name, STR("email"))) return expr_concat(s->exprs, pattern(s, MAILBOX), hostname(s));
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (str_eq(name, str_of(formats[i].name))) return pattern(s, formats[i].pattern);
    return EXPR_ANY;
}
