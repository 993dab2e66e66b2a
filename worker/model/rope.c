/* worker/model/rope.c - see rope.h. The formulas are those of the settings' definitions: linear
 * divides positions; llama3 leaves short wavelengths alone, divides long ones and blends between;
 * YaRN blends by dimension and sharpens attention by a factor on cos and sin. */
#include "worker/model/rope.h"

#include <math.h>

#include "common/text/json.h"

#define PI              3.14159265358979323846
#define MAX_CONTEXT     (1u << 26)
#define MAX_FACTOR      1e6
#define DEFAULT_THETA   10000
#define DEFAULT_FAST    32 /* rotations, of the YaRN paper */
#define DEFAULT_SLOW    1
#define YARN_MSCALE     0.1   /* of its attention factor: 0.1 ln(factor) + 1 */
#define RAMP_NEVER_ZERO 0.001 /* the width of a ramp between equal dimensions */

/* --- reading ---------------------------------------------------------------------------------- */
static enum status get_f64(const struct json *s, const char *name, double min, double *out,
                           bool *is_present, struct error *err) {
    enum status st = json_get_f64(s, name, min, 1e12, out, is_present, err);

    if (st != ST_OK) error_prefix(err, "rope_scaling");
    return st;
}

static enum status need_f64(const struct json *s, const char *name, double min, double *out,
                            struct error *err) {
    bool is_present = false;
    enum status st = get_f64(s, name, min, out, &is_present, err);

    if (st == ST_OK && !is_present) {
        st = error_set(err, ST_INVALID,
                       "rope_scaling.%s is missing: download the model's config.json again", name);
    }
    return st;
}

static enum status read_factor(const struct json *s, struct rope_config *r, struct error *err) {
    enum status st = need_f64(s, "factor", 1, &r->factor, err);

    if (st == ST_OK && r->factor > MAX_FACTOR) {
        st = error_set(err, ST_INVALID,
                       "unsupported rope_scaling.factor %g: supported is at most %g", r->factor,
                       MAX_FACTOR);
    }
    return st;
}

static enum status read_llama3(const struct json *s, struct rope_config *r, struct error *err) {
    enum status st = read_factor(s, r, err);

    if (st == ST_OK) st = need_f64(s, "low_freq_factor", 1e-6, &r->low_freq_factor, err);
    if (st == ST_OK) st = need_f64(s, "high_freq_factor", 1e-6, &r->high_freq_factor, err);
    if (st == ST_OK) {
        st = get_f64(s, "original_max_position_embeddings", 1, &r->original_context, NULL, err);
    }
    if (st == ST_OK && r->high_freq_factor <= r->low_freq_factor) {
        st = error_set(err, ST_INVALID,
                       "rope_scaling.high_freq_factor %g must be above low_freq_factor %g: "
                       "download the model's config.json again",
                       r->high_freq_factor, r->low_freq_factor);
    }
    return st;
}

static double mscale_of(double factor, double mscale) {
    return factor <= 1 ? 1 : YARN_MSCALE * mscale * log(factor) + 1;
}

/* Given, or the paper's, or the ratio of two of the paper's. */
static enum status read_attention_factor(const struct json *s, struct rope_config *r,
                                         struct error *err) {
    double mscale = 0, all_dim = 0;
    bool is_given = false;
    enum status st = get_f64(s, "attention_factor", 1e-6, &r->attention_factor, &is_given, err);

    if (st == ST_OK) st = get_f64(s, "mscale", 0, &mscale, NULL, err);
    if (st == ST_OK) st = get_f64(s, "mscale_all_dim", 0, &all_dim, NULL, err);
    if (st != ST_OK || is_given) return st;
    r->attention_factor = mscale > 0 && all_dim > 0
                              ? mscale_of(r->factor, mscale) / mscale_of(r->factor, all_dim)
                              : mscale_of(r->factor, 1);
    return ST_OK;
}

static enum status read_yarn(const struct json *s, struct rope_config *r, uint32_t max_context,
                             struct error *err) {
    bool has_original = false, truncates = true;
    enum status st =
        get_f64(s, "original_max_position_embeddings", 1, &r->original_context, &has_original, err);

    r->beta_fast = DEFAULT_FAST;
    r->beta_slow = DEFAULT_SLOW;
    if (st == ST_OK && has_original && json_is_null(json_get(s, "factor"))) {
        r->factor = MAX(max_context / r->original_context, 1.0);
    } else if (st == ST_OK) {
        st = read_factor(s, r, err);
    }
    if (st == ST_OK) st = get_f64(s, "beta_fast", 1e-6, &r->beta_fast, NULL, err);
    if (st == ST_OK) st = get_f64(s, "beta_slow", 1e-6, &r->beta_slow, NULL, err);
    if (st == ST_OK) st = json_get_bool(s, "truncate", &truncates, NULL, err);
    r->is_exact = !truncates;
    if (st == ST_OK) st = read_attention_factor(s, r, err);
    return st;
}

/* Keys that belong to scalings or to models that are unsupported. */
static enum status check_unbuilt(const struct json *config, const struct json *s,
                                 struct error *err) {
    double partial = 1;

    if (!json_is_null(json_get(s, "mrope_section"))) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported rope_scaling.mrope_section: use a text-only model");
    }
    if ((json_to_f64(json_get(config, "partial_rotary_factor"), &partial) == ST_OK &&
         partial != 1) ||
        (json_to_f64(json_get(s, "partial_rotary_factor"), &partial) == ST_OK && partial != 1)) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported partial_rotary_factor %g: supported is 1", partial);
    }
    JSON_FOR_EACH(v, s) {
        if (json_type(v) == JSON_OBJECT) {
            return error_set(err, ST_UNSUPPORTED,
                             "unsupported rope_parameters.%.40s: supported is one set of "
                             "parameters for all layers",
                             json_key(v).ptr);
        }
    }
    return ST_OK;
}

static enum status type_of(const struct json *s, enum rope_type *out, struct error *err) {
    static const char *const names[] = {"default", "linear", "llama3", "yarn"};
    const struct json *type = json_get(s, "rope_type");
    struct str name = STR("default");

    if (json_is_null(type)) type = json_get(s, "type"); /* its name in older files */
    if (!json_is_null(type) && json_to_str(type, &name) != ST_OK) name = STR("?");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!str_eq(name, str_of(names[i]))) continue;
        *out = (enum rope_type)i;
        return ST_OK;
    }
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported rope_scaling.rope_type '%.40s': supported are default, linear, "
                     "llama3 and yarn",
                     name.ptr);
}

static void stretch(uint32_t *context, double tokens) {
    if (tokens > *context) *context = (uint32_t)MIN(tokens, (double)MAX_CONTEXT);
}

enum status rope_read(struct rope_config *r, const struct json *config, uint32_t *max_context,
                      struct error *err) {
    const struct json *s = json_get(config, "rope_scaling");
    enum status st;

    *r = (struct rope_config){.theta = DEFAULT_THETA,
                              .factor = 1,
                              .attention_factor = 1,
                              .original_context = *max_context};
    if (json_is_null(s)) s = json_get(config, "rope_parameters"); /* its name in newer files */
    if (!json_is_null(s) && json_type(s) != JSON_OBJECT) {
        return error_set(err, ST_INVALID, "rope_scaling is %s: it must be an object",
                         json_type_name(s));
    }
    st = json_get_f64(config, "rope_theta", 2, 1e12, &r->theta, NULL, err);
    if (st == ST_OK) st = get_f64(s, "rope_theta", 2, &r->theta, NULL, err);
    if (st == ST_OK) st = check_unbuilt(config, s, err);
    if (st == ST_OK) st = type_of(s, &r->type, err);
    if (st != ST_OK) return st;
    switch (r->type) {
    case ROPE_DEFAULT: break;
    case ROPE_LINEAR:
        st = read_factor(s, r, err);
        if (st == ST_OK) stretch(max_context, *max_context * r->factor);
        break;
    case ROPE_LLAMA3: st = read_llama3(s, r, err); break;
    case ROPE_YARN:
        st = read_yarn(s, r, *max_context, err);
        if (st == ST_OK) stretch(max_context, r->original_context * r->factor);
        break;
    }
    return st;
}

/* --- the table -------------------------------------------------------------------------------- */
static double scale_llama3(const struct rope_config *r, double f) {
    double wavelength = 2 * PI / f;
    double smooth = (r->original_context / wavelength - r->low_freq_factor) /
                    (r->high_freq_factor - r->low_freq_factor);

    smooth = MIN(MAX(smooth, 0.0), 1.0);
    return f * ((1 - smooth) / r->factor + smooth);
}

/* The dimension that turns `rotations` times within the original context. */
static double yarn_dimension(const struct rope_config *r, uint32_t head_dim, double rotations) {
    return head_dim * log(r->original_context / (rotations * 2 * PI)) / (2 * log(r->theta));
}

static double scale_yarn(const struct rope_config *r, uint32_t head_dim, uint32_t i, double f) {
    double low = yarn_dimension(r, head_dim, r->beta_fast);
    double high = yarn_dimension(r, head_dim, r->beta_slow), ramp;

    if (!r->is_exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = MAX(low, 0.0);
    high = MIN(high, head_dim - 1.0);
    ramp = (i - low) / (high == low ? RAMP_NEVER_ZERO : high - low);
    ramp = MIN(MAX(ramp, 0.0), 1.0);
    return f / r->factor * ramp + f * (1 - ramp);
}

void rope_table(const struct rope_config *r, uint32_t head_dim, float *inv_freq, float *scale) {
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        double f = pow(r->theta, -2.0 * i / head_dim);

        switch (r->type) {
        case ROPE_DEFAULT: break;
        case ROPE_LINEAR: f /= r->factor; break;
        case ROPE_LLAMA3: f = scale_llama3(r, f); break;
        case ROPE_YARN: f = scale_yarn(r, head_dim, i, f); break;
        }
        inv_freq[i] = (float)f;
    }
    *scale = r->type == ROPE_YARN ? (float)r->attention_factor : 1;
}
