/* tests/support/pods.c - see pods.h. The shape is that of a pod of a real cluster (1.32),
 * shortened. */
#include "tests/support/pods.h"

#define OR(value, usual) ((value) ? (value) : (usual))

static const char managed_fields[] =
    "\"managedFields\":[{\"apiVersion\":\"v1\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:"
    "metadata\":{"
    "\"f:annotations\":{\".\":{},\"f:incipit.dev/ports\":{}},\"f:labels\":{\".\":{},\"f:app\":{}},"
    "\"f:ownerReferences\":{\".\":{},\"k:{\\\"uid\\\":\\\"b6c0a2b4-0000-4000-8000-000000000000\\\"}"
    "\":{}}},"
    "\"f:spec\":{\"f:containers\":{\"k:{\\\"name\\\":\\\"engine\\\"}\":{\".\":{},\"f:image\":{},"
    "\"f:ports\":{"
    "\".\":{},\"k:{\\\"containerPort\\\":8000,\\\"protocol\\\":\\\"TCP\\\"}\":{\".\":{},\"f:"
    "containerPort\":{}"
    "}}}}}},\"manager\":\"kube-controller-manager\",\"operation\":\"Update\","
    "\"time\":\"2026-11-21T01:02:03Z\"},{\"apiVersion\":\"v1\",\"fieldsType\":\"FieldsV1\","
    "\"fieldsV1\":{"
    "\"f:status\":{\"f:conditions\":{\"k:{\\\"type\\\":\\\"Ready\\\"}\":{\".\":{},\"f:status\":{}}}"
    ",\"f:phase\":{},"
    "\"f:podIP\":{},\"f:podIPs\":{\".\":{},\"k:{\\\"ip\\\":\\\"10.1.2.3\\\"}\":{}}}},\"manager\":"
    "\"kubelet\","
    "\"operation\":\"Update\",\"subresource\":\"status\",\"time\":\"2026-11-21T01:02:05Z\"}],";

static const char usual_containers[] =
    "[{\"name\":\"engine\",\"image\":\"registry/engine:1\",\"args\":[\"--port\",\"8000\"],"
    "\"env\":[{\"name\":\"A\",\"value\":\"\\u00e9 \\\"quoted\\\" {[\"}],"
    "\"ports\":[{\"name\":\"metrics\",\"containerPort\":9100,\"protocol\":\"TCP\"},"
    "{\"name\":\"http\",\"containerPort\":8000,\"protocol\":\"TCP\"}],"
    "\"readinessProbe\":{\"httpGet\":{\"path\":\"/health\",\"port\":\"http\"}}}]";

static void put_metadata(struct buf *out, const struct pod_text *p, const char *name) {
    buf_appendf(out, "\"metadata\":{\"name\":\"%s\",\"generateName\":\"w-\",\"namespace\":\"llm\",",
                name);
    if (p->uid) {
        buf_appendf(out, "\"uid\":\"%s\",", p->uid);
    } else {
        buf_appendf(out, "\"uid\":\"uid-%s\",", name);
    }
    if (p->version)
        buf_appendf(out, "\"resourceVersion\":\"%llu\",", (unsigned long long)p->version);
    buf_appendf(out, "\"creationTimestamp\":\"%s\",", OR(p->created, "2026-11-21T01:02:03Z"));
    if (p->is_deleted)
        buf_append_str(out, STR("\"deletionTimestamp\":\"2026-11-21T02:00:00Z\","
                                "\"deletionGracePeriodSeconds\":30,"));
    buf_appendf(out, "\"labels\":{\"app\":\"engine\",\"pod-template-hash\":\"7d9f\"%s%s},",
                p->labels ? "," : "", OR(p->labels, ""));
    buf_append_str(out, str_of(managed_fields));
    buf_appendf(out, "\"annotations\":{%s},", OR(p->annotations, ""));
    buf_append_str(out,
                   STR("\"ownerReferences\":[{\"apiVersion\":\"apps/v1\",\"kind\":\"ReplicaSet\","
                       "\"name\":\"w\",\"uid\":\"b6c0a2b4-0000-4000-8000-000000000000\"}]},"));
}

void pod_text_write(struct buf *out, const struct pod_text *p) {
    const char *ready = OR(p->ready, "True");

    buf_append_str(out, STR("{\"kind\":\"Pod\",\"apiVersion\":\"v1\","));
    put_metadata(out, p, OR(p->name, "w-0"));
    buf_appendf(out,
                "\"spec\":{\"volumes\":[{\"name\":\"kube-api-access\",\"projected\":{\"sources\":["
                "{\"serviceAccountToken\":{\"expirationSeconds\":3607,\"path\":\"token\"}}]}}],"
                "\"containers\":%s,\"nodeName\":\"gpu-1\",\"priority\":0,\"tolerations\":[]},",
                OR(p->containers, usual_containers));
    buf_appendf(out, "\"status\":{\"phase\":\"%s\",", OR(p->phase, "Running"));
    if (ready[0])
        buf_appendf(out,
                    "\"conditions\":[{\"type\":\"Initialized\",\"status\":\"True\","
                    "\"lastProbeTime\":null},{\"type\":\"Ready\",\"status\":\"%s\"}],",
                    ready);
    if (p->ip) buf_appendf(out, "\"podIP\":\"%s\",\"podIPs\":[{\"ip\":\"%s\"}],", p->ip, p->ip);
    buf_append_str(out, STR("\"hostIP\":\"192.168.1.5\",\"qosClass\":\"Burstable\"}}"));
}
