/* tests/unit/common/net/test_address.c - every spelling of a forbidden address is refused. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/net/address.h"
#include "common/net/loop.h"
#include "common/net/resolver.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"

static void urls_are_taken_apart(void **state) {
    static const struct {
        const char *url, *normal, *host, *authority;
        uint16_t port;
        bool is_https;
    } rows[] = {
        {"http://127.0.0.1:1", "http://127.0.0.1:1", "127.0.0.1", "127.0.0.1:1", 1, false},
        {"http://Gpu-7.Rack_2.local:65535/", "http://gpu-7.rack_2.local:65535",
         "gpu-7.rack_2.local", "gpu-7.rack_2.local:65535", 65535, false},
        {"https://[::1]:8443/", "https://[::1]:8443", "::1", "[::1]:8443", 8443, true},
        {"http://[::FFFF:1.2.3.4]:80", "http://[::ffff:1.2.3.4]:80", "::ffff:1.2.3.4",
         "[::ffff:1.2.3.4]:80", 80, false},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct address_url u;

        assert_int_equal(address_split(str_of(rows[i].url), &u, NULL), ST_OK);
        assert_string_equal(u.url, rows[i].normal);
        assert_string_equal(u.host, rows[i].host);
        assert_string_equal(u.authority, rows[i].authority);
        assert_int_equal(u.port, rows[i].port);
        assert_int_equal(u.is_https, rows[i].is_https);
    }
}

static void an_invalid_worker_url_is_refused(void **state) {
    static const char *const wrong[] = {
        "",
        "http://",
        "http:///",
        "127.0.0.1:1",
        "//127.0.0.1:1",
        "HTTP://127.0.0.1:1",
        "ftp://127.0.0.1:1",
        "file:///etc/passwd",
        "unix:///run/x:1",
        "http://127.0.0.1",
        "http://127.0.0.1:",
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:000080",
        "http://127.0.0.1:+1",
        "http://127.0.0.1:1x",
        "http://127.0.0.1:1//",
        "http://user@127.0.0.1:1",
        "http://user:pw@127.0.0.1:1",
        "http://127.0.0.1:1@169.254.169.254:80",
        "http://127.0.0.1:1/path",
        "http://127.0.0.1:1?a",
        "http://127.0.0.1:1#a",
        "http://::1:80",
        "http://[::1:80",
        "http://::1]:80",
        "http://[]:80",
        "http://[fe80::1%eth0]:80",
        "http://:1",
        "http://a b:1",
        "http://a\tb:1",
        "http://a\r\nx:1",
        "http://a%2eb:1",
        "http://caf\xc3\xa9:1",
        "http://a\\b:1",
    };
    static char longest[400];
    struct address_url u;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        if (address_split(str_of(wrong[i]), &u, NULL) != ST_INVALID)
            fail_msg("accepted %s", wrong[i]);
    }
    assert_int_equal(address_split(STR("http://a\0b:1"), &u, NULL), ST_INVALID);
    assert_int_equal(address_split(STR_NULL, &u, NULL), ST_INVALID);
    memset(longest, 'a', sizeof(longest));
    memcpy(longest, "http://", 7);
    memcpy(longest + 7 + ADDRESS_HOST_MAX, ":80", 4);
    assert_int_equal(address_split(str_of(longest), &u, NULL), ST_OK);
    assert_int_equal(strlen(u.url), 7 + ADDRESS_HOST_MAX + 3);
    memcpy(longest + 7 + ADDRESS_HOST_MAX, "a:80", 5);
    assert_int_equal(address_split(str_of(longest), &u, NULL), ST_INVALID);
}

static enum status judge(const struct address_guard *g, const char *host) {
    struct address_url u;
    struct address a;
    struct error err = {0};
    char url[128];
    enum status st;

    snprintf(url, sizeof(url), strchr(host, ':') ? "http://[%s]:80" : "http://%s:80", host);
    if (address_split(str_of(url), &u, NULL) != ST_OK) fail_msg("not a URL: %s", url);
    st = address_resolve(&u, g, &a, &err);
    if (st != ST_OK) assert_true(err.message[0]);
    return st;
}

/* Numbers only: nothing is looked up. */
static void strangers_may_add_workers_in_private_networks_alone(void **state) {
    static const char *const fine[] = {
        "127.0.0.1",    "127.255.255.255", "2130706433", /* 127.0.0.1 */
        "0x7f000001",   "0177.0.0.1",      "127.1",           "10.0.0.1",
        "172.16.0.1",   "172.31.255.255",  "192.168.1.1",     "::1",
        "fd12:3456::1", "fc00::1",         "::ffff:10.1.2.3", "::ffff:127.0.0.1",
    };
    static const char *const refused[] = {
        "169.254.169.254", /* a metadata service, and how it can be written */
        "2852039166",      /* decimal */
        "0xa9fea9fe",      /* hexadecimal */
        "0251.0376.0251.0376",
        "0xa9.0xfe.0xa9.0xfe",
        "169.254.43518",
        "169.16689662",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "0:0:0:0:0:ffff:a9fe:a9fe",
        "::169.254.169.254",        /* IPv4-compatible */
        "64:ff9b::169.254.169.254", /* NAT64 */
        "2002:a9fe:a9fe::",         /* 6to4 */
        "fd00:ec2::254",
        "169.254.0.1",
        "fe80::1",
        "febf::1",
        "0.0.0.0", /* means this machine, to connect(2) */
        "0",
        "::",
        "::ffff:0.0.0.0",
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "ff02::1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "8.8.8.8", /* no private network */
        "134744072",
        "172.32.0.1",
        "172.15.255.255",
        "11.0.0.1",
        "126.0.0.1",
        "100.64.0.1",
        "192.167.1.1",
        "2001:4860:4860::8888",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
        "fec0::1",
    };
    struct address_guard g;

    (void)state;
    address_guard_init(&g);
    address_guard_allow_local(&g);
    for (size_t i = 0; i < ARRAY_LEN(fine); i++)
        if (judge(&g, fine[i]) != ST_OK) fail_msg("refused %s", fine[i]);
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        if (judge(&g, refused[i]) != ST_FORBIDDEN) fail_msg("accepted %s", refused[i]);
}

static void a_network_is_allowed_by_its_bits_except_forbidden_ones(void **state) {
    struct address_guard g;
    struct error err = {0};

    (void)state;
    address_guard_init(&g);
    assert_int_equal(judge(&g, "127.0.0.1"), ST_FORBIDDEN);
    assert_int_equal(address_guard_allow(&g, "203.0.113.64/27", NULL), ST_OK);
    assert_int_equal(judge(&g, "203.0.113.63"), ST_FORBIDDEN);
    assert_int_equal(judge(&g, "203.0.113.64"), ST_OK);
    assert_int_equal(judge(&g, "203.0.113.95"), ST_OK);
    assert_int_equal(judge(&g, "::ffff:203.0.113.95"), ST_OK);
    assert_int_equal(judge(&g, "203.0.113.96"), ST_FORBIDDEN);
    assert_int_equal(address_guard_allow(&g, "2001:db8::/33", NULL), ST_OK);
    assert_int_equal(judge(&g, "2001:db8:7fff::1"), ST_OK);
    assert_int_equal(judge(&g, "2001:db8:8000::1"), ST_FORBIDDEN);
    assert_int_equal(address_guard_allow(&g, "198.51.100.7", NULL), ST_OK);
    assert_int_equal(judge(&g, "198.51.100.7"), ST_OK);
    assert_int_equal(judge(&g, "198.51.100.6"), ST_FORBIDDEN);
    assert_int_equal(address_guard_allow(&g, "0.0.0.0/0", NULL), ST_OK);
    assert_int_equal(address_guard_allow(&g, "::/0", NULL), ST_OK);
    assert_int_equal(judge(&g, "8.8.8.8"), ST_OK);
    assert_int_equal(judge(&g, "2001:4860::1"), ST_OK);
    assert_int_equal(judge(&g, "169.254.169.254"), ST_FORBIDDEN);
    assert_int_equal(judge(&g, "fe80::1"), ST_FORBIDDEN);
    for (const char **it = (const char *[]){"", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/",
                                            "10.0.0.0/8/8", "name", "10.0.0.0/-1", NULL};
         *it; it++) {
        if (address_guard_allow(&g, *it, &err) != ST_INVALID) fail_msg("accepted %s", *it);
        assert_non_null(strstr(err.message, "10.0.0.0/8"));
    }
    for (uint32_t i = g.n_allowed; i < ADDRESS_GUARD_MAX; i++)
        assert_int_equal(address_guard_allow(&g, "10.0.0.0/8", NULL), ST_OK);
    assert_int_equal(address_guard_allow(&g, "10.0.0.0/8", NULL), ST_TOO_LARGE);
}

/* --- without waiting ---------------------------------------------------------------------------*/

struct answers {
    int n;
    enum status st;
    char text[ADDRESS_TEXT_MAX];
};

static void on_found(enum status st, const struct address *found, const struct error *err,
                     void *arg) {
    struct answers *a = arg;

    a->n++;
    a->st = st;
    if (st == ST_OK) address_text(found, a->text);
    if (st != ST_OK) assert_true(err->message[0]);
}

static void a_lookup_answers_on_the_loop(void **state) {
    struct address_guard none;
    struct address_url u;
    struct answers a = {0};
    struct resolver *r;
    struct loop *loop;

    (void)state;
    address_guard_init(&none);
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    assert_int_equal(resolver_create(&r, loop, NULL), ST_OK);
    assert_int_equal(address_split(STR("http://[::1]:81"), &u, NULL), ST_OK);
    assert_int_equal(resolver_start(r, &u, NULL, on_found, &a, NULL), ST_OK);
    assert_int_equal(a.n, 0);
    TURN_UNTIL(loop, a.n == 1);
    assert_int_equal(a.st, ST_OK);
    assert_string_equal(a.text, "[::1]:81");
    assert_int_equal(resolver_start(r, &u, &none, on_found, &a, NULL), ST_OK);
    TURN_UNTIL(loop, a.n == 2);
    assert_int_equal(a.st, ST_FORBIDDEN);
    resolver_destroy(r);
    loop_destroy(loop);
}

static void lookups_left_open_are_forgotten(void **state) {
    struct answers a = {0};
    struct address_url u;

    (void)state;
    assert_int_equal(address_split(STR("http://127.0.0.1:1"), &u, NULL), ST_OK);
    for (int i = 0; i < 50; i++) {
        struct resolver *r;
        struct loop *loop;

        assert_int_equal(loop_create(&loop, NULL), ST_OK);
        assert_int_equal(resolver_create(&r, loop, NULL), ST_OK);
        for (int k = 0; k < 3; k++)
            assert_int_equal(resolver_start(r, &u, NULL, on_found, &a, NULL), ST_OK);
        if (i % 2) loop_turn(loop, 100);
        resolver_destroy(r);
        loop_destroy(loop);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_are_taken_apart),
        cmocka_unit_test(an_invalid_worker_url_is_refused),
        cmocka_unit_test(strangers_may_add_workers_in_private_networks_alone),
        cmocka_unit_test(a_network_is_allowed_by_its_bits_except_forbidden_ones),
        cmocka_unit_test(a_lookup_answers_on_the_loop),
        cmocka_unit_test(lookups_left_open_are_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
