/* tests/unit/cuda/device/test_gpu_library.c - where cuBLASLt and NCCL are looked for, in folders
 * made for it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/device/gpu_internal.h"
#include "tests/support/cm.h"

static const char *const names[] = {"libtrial.so.13", "libtrial.so.12", NULL};
static const char *const variables[] = {"INCIPIT_CUDA_LIBRARIES", "VIRTUAL_ENV", "HOME",
                                        "CUDA_HOME", "CUDA_PATH"};

static char opened[256]; /* the file that was opened last, below the folder of the test */
static char root[64];
static bool loader_has_it, are_broken;

/* The linker sends calls of the loader here (--wrap). */
void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlsym(void *library, const char *name);
char *__wrap_dlerror(void);
int __wrap_dlclose(void *library);

void *__wrap_dlopen(const char *path, int flags) {
    bool is_there = strchr(path, '/') ? access(path, R_OK) == 0 : loader_has_it;

    (void)flags;
    if (!is_there || are_broken) return NULL;
    snprintf(opened, sizeof(opened), "%s",
             strncmp(path, root, strlen(root)) == 0 ? path + strlen(root) + 1 : path);
    return opened;
}

void *__wrap_dlsym(void *library, const char *name) {
    (void)library, (void)name;
    return NULL;
}

char *__wrap_dlerror(void) {
    static char sentence[] = "wrong ELF class";

    return sentence;
}

int __wrap_dlclose(void *library) {
    (void)library;
    return 0;
}

/* --- */

static int setup(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(variables); i++)
        unsetenv(variables[i]);
    loader_has_it = are_broken = false;
    opened[0] = '\0';
    snprintf(root, sizeof(root), "/tmp/incipit-libraries-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state) {
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    return system(command);
}

/* An empty file below the folder of the test, with the folders on its way. */
static void put(const char *path) {
    char whole[512];
    FILE *f;

    snprintf(whole, sizeof(whole), "%s/%s", root, path);
    for (char *slash = strchr(whole + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(whole, 0755);
        *slash = '/';
    }
    f = fopen(whole, "w");
    assert_non_null(f);
    fclose(f);
}

static void set(const char *variable, const char *path) {
    char whole[512];

    snprintf(whole, sizeof(whole), "%s/%s", root, path);
    assert_int_equal(setenv(variable, whole, 1), 0);
}

static void expect(const char *path) {
    void *library = NULL;
    struct error err = {0};

    opened[0] = '\0';
    if (gpu_library_open(&library, names, "the trial", "install it", &err) != ST_OK)
        fail_msg("%s is not found: %s", path, err.message);
    assert_string_equal(opened, path);
    assert_ptr_equal(library, opened);
}

#define SITE "venv/lib/python3.12/site-packages/"

/* Each place before those below it: from the last to the first. */
static void places_are_searched_in_order(void **state) {
    char folders[512];

    (void)state;
    set("VIRTUAL_ENV", "venv");
    set("HOME", "home");
    set("CUDA_HOME", "toolkit");
    set("CUDA_PATH", "path");
    put("path/lib/libtrial.so.13");
    expect("path/lib/libtrial.so.13");
    put("toolkit/lib64/libtrial.so.13");
    expect("toolkit/lib64/libtrial.so.13");
    put("home/.local/lib/python3.9/site-packages/nvidia/cublas/lib/libtrial.so.13");
    expect("home/.local/lib/python3.9/site-packages/nvidia/cublas/lib/libtrial.so.13");
    put(SITE "torch/lib/libtrial.so.13");
    expect(SITE "torch/lib/libtrial.so.13");
    put(SITE "nvidia/cublas/lib/libtrial.so.13");
    expect(SITE "nvidia/cublas/lib/libtrial.so.13");
    put(SITE "nvidia/cu13/lib/libtrial.so.13");
    expect(SITE "nvidia/cu13/lib/libtrial.so.13");
    loader_has_it = true;
    expect("libtrial.so.13");
    put("named/libtrial.so.13");
    snprintf(folders, sizeof(folders), "%s/empty::%s/named", root, root);
    setenv("INCIPIT_CUDA_LIBRARIES", folders, 1);
    expect("named/libtrial.so.13");
}

static void a_newer_soname_wins_wherever_it_is(void **state) {
    (void)state;
    set("CUDA_HOME", "toolkit");
    set("INCIPIT_CUDA_LIBRARIES", "named");
    put("named/libtrial.so.12");
    expect("named/libtrial.so.12");
    put("toolkit/targets/sbsa-linux/lib/libtrial.so.13");
    expect("toolkit/targets/sbsa-linux/lib/libtrial.so.13");
}

static void of_two_versions_the_newer_is_taken(void **state) {
    (void)state;
    set("VIRTUAL_ENV", "venv");
    put("venv/lib/python3.9/site-packages/nvidia/cu13/lib/libtrial.so.13");
    put("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libtrial.so.13");
    expect("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libtrial.so.13");
}

static void expect_refusal(const char *word) {
    void *library = NULL;
    struct error err = {0};

    assert_int_equal(gpu_library_open(&library, names, "the trial", "install it", &err),
                     ST_UNSUPPORTED);
    assert_null(library);
    if (!strstr(err.message, word) || !strstr(err.message, "install it"))
        fail_msg("no '%s' in: %s", word, err.message);
}

static void nowhere_is_a_sentence_that_lists_the_places(void **state) {
    (void)state;
    expect_refusal("no libtrial.so.13 in $INCIPIT_CUDA_LIBRARIES (unset), the loader's path, "
                   "nvidia/*/lib and torch/lib of python3's packages, $CUDA_HOME, $CUDA_PATH, "
                   "/usr/local/cuda* and /usr/lib*");
}

static void a_file_that_does_not_load_is_reported(void **state) {
    (void)state;
    set("INCIPIT_CUDA_LIBRARIES", "named");
    put("named/libtrial.so.12");
    are_broken = true;
    expect_refusal("wrong ELF class");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(places_are_searched_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_newer_soname_wins_wherever_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(of_two_versions_the_newer_is_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(nowhere_is_a_sentence_that_lists_the_places, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_file_that_does_not_load_is_reported, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
