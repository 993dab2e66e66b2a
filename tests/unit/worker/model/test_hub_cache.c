/* tests/unit/worker/model/test_hub_cache.c - the shared cache: names that become paths, what counts
 * as there, and what is written. The whole of a download is in
 * tests/integration/test_download.py. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "worker/model/hub_cache.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static void names_that_lead_elsewhere_are_none(void **state) {
    static const char *const good[] = {"org/name", "Qwen/Qwen2.5-0.5B-Instruct", "a/b_c.d"};
    static const char *const bad[] = {"",       "name",    "/name",  "org/",  "a/b/c",
                                      "../b",   "a/..",    "./b",    "a/.b",  "a b/c",
                                      "a/b%2F", "a--b/c",  "-a/b",   "a/b?c", "a/b#c",
                                      "a/b\\c", "~/model", "a/b..c", "a/b\n", "a//b"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (!hub_is_model_name(good[i])) fail_msg("%s is a name", good[i]);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (hub_is_model_name(bad[i])) fail_msg("%s is no name", bad[i]);
    assert_true(hub_is_revision("main") && hub_is_revision("refs/pr/1") && hub_is_revision("v1.0"));
    assert_false(hub_is_revision("") || hub_is_revision("/etc") || hub_is_revision("a/../b") ||
                 hub_is_revision("a/.b") || hub_is_revision("a//b") || hub_is_revision("a/"));
    assert_true(hub_is_commit(COMMIT) && !hub_is_commit("main") && !hub_is_commit(COMMIT "0"));
    assert_true(hub_is_etag(STR("0a1b")) && !hub_is_etag(STR("../x")) && !hub_is_etag(STR("")));
    assert_true(hub_is_file_name(STR("model-1.safetensors")) && !hub_is_file_name(STR("a/b")));
}

/* --- a cache in a temporary folder ------------------------------------------------------------ */
struct place {
    char root[64];
    struct hub_cache cache;
};

static void place_make(struct place *p) {
    snprintf(p->root, sizeof(p->root), "/tmp/incipit-hub-XXXXXX");
    assert_non_null(mkdtemp(p->root));
    assert_int_equal(hub_cache_init(&p->cache, p->root, "org/name", NULL), ST_OK);
    assert_string_equal(p->cache.repo, "models--org--name");
    assert_int_equal(hub_cache_prepare(&p->cache, COMMIT, NULL), ST_OK);
}

static void erase(const char *path) {
    struct dirent *e;
    DIR *dir = opendir(path);

    while (dir && (e = readdir(dir)) != NULL) {
        char below[512];

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(below, sizeof(below), "%.200s/%.255s", path, e->d_name);
        if (unlink(below) != 0) erase(below);
    }
    if (dir) closedir(dir);
    rmdir(path);
}

static void write_blob(const struct place *p, const char *etag, const char *text) {
    char path[HUB_PATH_MAX];
    FILE *f;

    hub_cache_blob_path(&p->cache, etag, "", path);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void expect_missing(const struct place *p, const char *message) {
    char path[HUB_PATH_MAX];
    struct error err = {0};

    assert_int_not_equal(hub_cache_find(&p->cache, "main", path, &err), ST_OK);
    if (!strstr(err.message, message)) fail_msg("'%s' lacks '%s'", err.message, message);
}

static void put(const struct place *p, const char *file, const char *etag) {
    assert_int_equal(hub_cache_link(&p->cache, COMMIT, file, etag, NULL), ST_OK);
}

static void a_snapshot_counts_when_all_of_it_is_there(void **state) {
    struct place p;
    char path[HUB_PATH_MAX], want[HUB_PATH_MAX];

    (void)state;
    place_make(&p);
    expect_missing(&p, "refs/main");
    assert_int_equal(hub_cache_set_ref(&p.cache, "main", COMMIT, NULL), ST_OK);
    expect_missing(&p, "config.json is missing");
    write_blob(&p, "aa", "{}");
    put(&p, "config.json", "aa");
    expect_missing(&p, "tokenizer.json is missing");
    put(&p, "tokenizer.json", "aa");
    expect_missing(&p, "model.safetensors is missing");
    put(&p, "model.safetensors", "gone"); /* a link to nothing is nothing */
    expect_missing(&p, "model.safetensors is missing");
    write_blob(&p, "bb", "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}");
    put(&p, "model.safetensors.index.json", "bb");
    put(&p, "a.safetensors", "aa");
    expect_missing(&p, "b.safetensors is missing");
    put(&p, "b.safetensors", "aa");
    assert_int_equal(hub_cache_find(&p.cache, "main", path, NULL), ST_OK);
    snprintf(want, sizeof(want), "%s/models--org--name/snapshots/" COMMIT, p.root);
    assert_string_equal(path, want);
    assert_int_equal(hub_cache_find(&p.cache, COMMIT, path, NULL), ST_OK);
    assert_int_equal(hub_cache_set_ref(&p.cache, "refs/pr/1", COMMIT, NULL), ST_OK);
    assert_int_equal(hub_cache_find(&p.cache, "refs/pr/1", path, NULL), ST_OK);
    write_blob(&p, "bb", "{\"weight_map\":{\"x\":\"../../../etc/passwd\"}}");
    expect_missing(&p, "no valid file");
    erase(p.root);
}

static void a_ref_that_is_no_commit_leads_nowhere(void **state) {
    struct place p;

    (void)state;
    place_make(&p);
    assert_int_equal(hub_cache_set_ref(&p.cache, "main", "../../..", NULL), ST_OK);
    expect_missing(&p, "holds no commit");
    erase(p.root);
}

static void the_environment_names_the_cache(void **state) {
    struct hub_cache c;

    (void)state;
    setenv("HOME", "/home/x", 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HF_HOME");
    unsetenv("HF_HUB_CACHE");
    assert_int_equal(hub_cache_init(&c, NULL, "a/b", NULL), ST_OK);
    assert_string_equal(c.root, "/home/x/.cache/huggingface/hub");
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    assert_int_equal(hub_cache_init(&c, NULL, "a/b", NULL), ST_OK);
    assert_string_equal(c.root, "/xdg/huggingface/hub");
    setenv("HF_HOME", "/hf", 1);
    assert_int_equal(hub_cache_init(&c, NULL, "a/b", NULL), ST_OK);
    assert_string_equal(c.root, "/hf/hub");
    setenv("HF_HUB_CACHE", "/hub", 1);
    assert_int_equal(hub_cache_init(&c, NULL, "a/b", NULL), ST_OK);
    assert_string_equal(c.root, "/hub");
    assert_int_equal(hub_cache_init(&c, "/named", "a/b", NULL), ST_OK);
    assert_string_equal(c.root, "/named");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_lead_elsewhere_are_none),
        cmocka_unit_test(a_snapshot_counts_when_all_of_it_is_there),
        cmocka_unit_test(a_ref_that_is_no_commit_leads_nowhere),
        cmocka_unit_test(the_environment_names_the_cache),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
