/* tests/support/api_discovery.c - what the scripted API server has: enough for kubectl. */
#include <stdio.h>
#include <string.h>

#include "tests/support/api_server_internal.h"

static void describe_group(cJSON *groups, const struct api_resource *r) {
    cJSON *group, *version = cJSON_CreateObject();
    char text[96];

    cJSON_ArrayForEach(group, groups) {
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(group, "name")), r->group) == 0) {
            cJSON_Delete(version);
            return;
        }
    }
    group = cJSON_CreateObject();
    snprintf(text, sizeof(text), "%s/%s", r->group, r->version);
    cJSON_AddStringToObject(group, "name", r->group);
    cJSON_AddStringToObject(version, "groupVersion", text);
    cJSON_AddStringToObject(version, "version", r->version);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(group, "versions"), version);
    cJSON_AddItemToObject(group, "preferredVersion", cJSON_Duplicate(version, true));
    cJSON_AddItemToArray(groups, group);
}

static void answer_groups(struct api_conn *c) {
    cJSON *all = cJSON_CreateObject();
    cJSON *groups;
    char *text;

    cJSON_AddStringToObject(all, "kind", "APIGroupList");
    cJSON_AddStringToObject(all, "apiVersion", "v1");
    groups = cJSON_AddArrayToObject(all, "groups");
    for (uint32_t i = 0; i < api_n_resources; i++) {
        if (api_resources[i].group[0]) describe_group(groups, &api_resources[i]);
    }
    text = cJSON_PrintUnformatted(all);
    api_body(c, 200, "", str_of(text));
    cJSON_free(text);
    cJSON_Delete(all);
}

/* False: nothing of ours has that group and version. */
static bool answer_resources(struct api_conn *c, struct str path) {
    cJSON *all = cJSON_CreateObject(), *list;
    char text[128], *out;
    bool has_any = false;

    cJSON_AddStringToObject(all, "kind", "APIResourceList");
    list = cJSON_AddArrayToObject(all, "resources");
    for (uint32_t i = 0; i < api_n_resources; i++) {
        const struct api_resource *r = &api_resources[i];
        static const char *const verbs[] = {"create", "delete", "get", "list", "patch", "watch"};
        cJSON *one;

        snprintf(text, sizeof(text), "/%s%s%s/%s", r->group[0] ? "apis" : "api",
                 r->group[0] ? "/" : "", r->group, r->version);
        if (!str_eq(path, str_of(text))) continue;
        if (!has_any) {
            cJSON_AddStringToObject(all, "groupVersion", text + (r->group[0] ? 6 : 5));
        }
        has_any = true;
        one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", r->name);
        cJSON_AddStringToObject(one, "singularName", r->singular);
        cJSON_AddBoolToObject(one, "namespaced", true);
        cJSON_AddStringToObject(one, "kind", r->kind);
        cJSON_AddItemToObject(one, "verbs", cJSON_CreateStringArray(verbs, ARRAY_LEN(verbs)));
        if (r->short_name[0]) {
            cJSON_AddItemToObject(one, "shortNames", cJSON_CreateStringArray(&r->short_name, 1));
        }
        cJSON_AddItemToArray(list, one);
    }
    if (has_any) {
        out = cJSON_PrintUnformatted(all);
        api_body(c, 200, "", str_of(out));
        cJSON_free(out);
    }
    cJSON_Delete(all);
    return has_any;
}

void api_answer_other(struct api_conn *c, const struct api_request *r) {
    if (str_eq(r->path, STR("/version"))) {
        api_body(c, 200, "",
                 STR("{\"major\":\"1\",\"minor\":\"31\",\"gitVersion\":\"v1.31.0\",\"gitCommit\":"
                     "\"0\",\"gitTreeState\":\"clean\",\"buildDate\":\"2026-01-01T00:00:00Z\","
                     "\"goVersion\":\"go\",\"compiler\":\"gc\",\"platform\":\"linux/amd64\"}"));
    } else if (str_eq(r->path, STR("/api"))) {
        api_body(c, 200, "", STR("{\"kind\":\"APIVersions\",\"versions\":[\"v1\"]}"));
    } else if (str_eq(r->path, STR("/apis"))) {
        answer_groups(c);
    } else if (str_eq(r->path, STR("/readyz")) || str_eq(r->path, STR("/livez"))) {
        api_body(c, 200, "", STR("ok"));
    } else if (!answer_resources(c, r->path)) {
        api_answer_status(c, 404, "NotFound", "the server could not find the requested resource",
                          NULL, 0);
    }
}
