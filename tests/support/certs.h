/* tests/support/certs.h - certificates made when they are needed, in a folder of the test's own.
 *
 * One authority signs all others. Each certificate NAME is two files, NAME.pem and NAME.key; the
 * authority's certificate is ca.pem. */
#ifndef TESTS_SUPPORT_CERTS_H
#define TESTS_SUPPORT_CERTS_H

#include "common/base/base.h"

struct certs {
    char folder[64];
    void *ca, *ca_key; /* OpenSSL's */
};

void certs_init(struct certs *certs); /* makes the folder and the authority */
void certs_fini(struct certs *certs); /* removes them */

struct certs_spec {
    const char *name;    /* of the files */
    const char *host;    /* DNS name; NULL: none */
    const char *address; /* IP address; NULL: none */
    int from_days, days; /* valid from now + from_days, for so many; days 0: 30 */
    bool is_self_signed;
};
void certs_make(struct certs *certs, const struct certs_spec *spec);

/* "FOLDER/NAME" in one of a few buffers that are used in turn. */
const char *certs_path(const struct certs *certs, const char *name);
void certs_write(const struct certs *certs, const char *name, const char *text);
void certs_copy(const struct certs *certs, const char *from, const char *to);
void certs_encrypt_key(const struct certs *certs, const char *from, const char *to);
void certs_small_key(const struct certs *certs,
                     const char *name); /* RSA of 1024 bits, and its cert */
/* Puts ca.pem into a folder NAME under the name that OpenSSL looks for. */
void certs_hashed_folder(const struct certs *certs, const char *name);

#endif
