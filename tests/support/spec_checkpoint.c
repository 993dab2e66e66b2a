/* tests/support/spec_checkpoint.c - see spec_checkpoint.h. */
#include "tests/support/spec_checkpoint.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"

static uint32_t element_bytes(const char *type) {
    if (strcmp(type, "I64") == 0) return 8;
    if (strcmp(type, "F32") == 0 || strcmp(type, "I32") == 0) return 4;
    if (strcmp(type, "F16") == 0 || strcmp(type, "BF16") == 0) return 2;
    return 1;
}

static void put_number(struct buf *data, const char *type, double v) {
    float f = (float)v;
    int64_t whole = (int64_t)v;
    uint8_t byte = (uint8_t)(strcmp(type, "F8_E8M0") == 0 ? 127 + (int)log2(v) : (int)v);
    char scratch[4];

    if (strcmp(type, "F32") == 0) {
        buf_append(data, &f, 4);
    } else if (type[0] == 'F' && element_bytes(type) == 2) {
        dtype_put(DTYPE_F16, scratch, 0, f);
        buf_append(data, scratch, 2);
    } else if (type[0] == 'B') {
        dtype_put(DTYPE_BF16, scratch, 0, f);
        buf_append(data, scratch, 2);
    } else if (type[0] == 'I' && type[1] != '8') {
        buf_append(data, &whole, element_bytes(type));
    } else {
        buf_append(data, &byte, 1);
    }
}

static void put_content(struct buf *data, const char *type, uint64_t n, char content) {
    for (uint64_t i = 0; i < n; i++) {
        static const uint8_t zeros[8], ones[8] = {255, 255, 255, 255, 255, 255, 255, 255};

        switch (content) {
        case '1': put_number(data, type, 1); break;
        case 's': put_number(data, type, (double)i + 1); break;
        case 'e': put_number(data, type, (double)(1u << i % 4)); break;
        case 'n': put_number(data, type, (double)((n - 1 - i) / 4)); break;
        case 'g': put_number(data, type, (double)(i / 4)); break;
        case 'p': put_number(data, type, (double)i); break;
        case 'm': put_number(data, type, -1); break;
        case '0': buf_append(data, zeros, element_bytes(type)); break;
        case 'h':
        case 'i':
            for (uint32_t b = 0; b < element_bytes(type); b++)
                buf_append_char(data, (char)(content == 'h' ? 0x80 : 0x81));
            break;
        case 'f': buf_append(data, ones, element_bytes(type)); break;
        default:
            for (uint32_t b = 0; b < element_bytes(type); b++)
                buf_append_char(data, (char)((i * 37 + b * 11 + 5) % 126));
        }
    }
}

static void put_tensor(struct buf *header, struct buf *data, char *spec) {
    char *save = NULL, *name = strtok_r(spec, ":", &save), *type = strtok_r(NULL, ":", &save);
    char *shape = strtok_r(NULL, ":", &save), *content = strtok_r(NULL, ":", &save);
    size_t begin = buf_len(data);
    uint64_t n = 1;

    if (strcmp(shape, "-") == 0) *shape = '\0';
    for (char *dim = shape; *dim; dim += strcspn(dim, ",") + (strchr(dim, ',') != NULL))
        n *= strtoull(dim, NULL, 10);
    put_content(data, type, n, content[0]);
    buf_appendf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                buf_len(header) > 1 ? "," : "", name, type, shape, begin, buf_len(data));
}

void spec_write_bytes(const char *folder, const char *name, struct str bytes) {
    char path[512];
    FILE *out;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes.ptr, 1, bytes.len, out), bytes.len);
    fclose(out);
}

void spec_write(const char *folder, const char *name, const char *specs) {
    struct buf header, data, file;
    char *copy = mem_strdup(specs), *save = NULL;
    uint64_t n;

    buf_init(&header, 0);
    buf_init(&data, 0);
    buf_init(&file, 0);
    buf_append_char(&header, '{');
    for (char *t = strtok_r(copy, " ", &save); t; t = strtok_r(NULL, " ", &save))
        put_tensor(&header, &data, t);
    buf_append_char(&header, '}');
    n = buf_len(&header);
    buf_append(&file, &n, 8);
    buf_append_str(&file, buf_str(&header));
    buf_append_str(&file, buf_str(&data));
    spec_write_bytes(folder, name, buf_str(&file));
    buf_fini(&header);
    buf_fini(&data);
    buf_fini(&file);
    mem_free(copy);
}

void spec_folder(char folder[SPEC_FOLDER]) {
    snprintf(folder, SPEC_FOLDER, "/tmp/incipit-spec-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

void spec_erase(const char *folder) {
    DIR *dir = opendir(folder);
    struct dirent *e;
    char path[512];

    while ((e = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    closedir(dir);
    rmdir(folder);
}
