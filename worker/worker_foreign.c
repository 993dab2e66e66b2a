/* worker/worker_foreign.c - flags of `vllm serve` and `sglang.launch_server` that are none of ours.
 *
 * A command line that starts one of those should start this, or report why not. What tunes something
 * that works another way here is passed over with a line on stderr. What would change the answers
 * (other weights, adapters, another arithmetic, another kind of model) is refused. Flags of the same
 * meaning are rows or aliases in worker_options.c, which win over a row here.
 *
 * The names are those of vLLM 0.6 to 0.33 and SGLang 0.4 to 0.5.23; tests/data/foreign_flags.txt has
 * them all. MIGRATING.md is made from this table. */
#include "worker/worker_options.h"

#define IGNORED(names, why)                                                                        \
    { .flags = names, .remark = why }
#define PASSED_ON(names, ours)                                                                     \
    { .flags = names, .as = ours }
#define STANDS_FOR(names, ours, with)                                                              \
    { .flags = names, .as = ours, .value = with }
#define REFUSED(names, why)                                                                        \
    { .flags = names, .is_refused = true, .remark = why }
#define REFUSED_BUT(names, harmless, why)                                                          \
    { .flags = names, .fine = harmless, .is_refused = true, .remark = why }
#define FINE(names, harmless, why)                                                                 \
    { .flags = names, .fine = harmless, .remark = why }

/* --- what would change the answers ---------------------------------------------------------------*/
#define OWN_TYPES                                                                                  \
    "it would change the answers: the weights are computed as the checkpoint has them, so give "   \
    "an "                                                                                          \
    "unquantized checkpoint and leave the flag out"
#define OWN_KV "it would change the answers: the KV cache has the type of the computation"
#define NO_LORA                                                                                    \
    "it would change the answers: adapters are not supported, so merge them into the model"
#define OWN_CONFIG                                                                                 \
    "it would change the answers: the model is computed as its config.json says, so edit that "    \
    "file"
#define GENERATES "this worker generates text, it does not embed, classify or score"
#define OWN_LOGITS                                                                                 \
    "it would change the answers: there are no plug-ins for logits, see logit_bias in requests"
#define NO_WEIGHT_CHANGE "it would change the answers: weights come from the model's folder alone"
#define APPROXIMATE                                                                                \
    "it would change the answers: attention is computed over the whole context, never "            \
    "approximated"

/* --- what would not -----------------------------------------------------------------------------*/
#define NO_SPECULATION                                                                             \
    "tokens are computed one after the other, which gives the same answers, without the speed-up"
#define OWN_KERNELS "this worker has its own kernels, chosen by --backend and --path"
#define NO_GRAPHS   "there is nothing to compile; graphs of steps are captured where they help"
#define ONE_MACHINE                                                                                \
    "a worker computes on one machine: divide a model with --tensor-parallel-size, run several "   \
    "workers for more"
#define ONE_REPLICA                                                                                \
    "a worker is one replica: incipit-router --launch N starts N of them behind one address"
#define NO_EXPERTS "experts are computed where the rest of the model is"
#define TEXT_ONLY  "prompts are text: images, audio and video are refused in requests"
#define NO_TOOLS                                                                                   \
    "answers come as the model wrote them: tool calls and reasoning stay in the text (content), "  \
    "and "                                                                                         \
    "tool_calls and reasoning_content are not filled"
#define OWN_LOAD    "safetensors are read from the model's folder"
#define OWN_LOG     "see --log-level and --log-format; one line is written for each request"
#define OWN_METRICS "GET /metrics is always there, under the names of vLLM"
#define NO_TRACE    "there is no trace exporter; x-request-id ties a request's log lines together"
#define OWN_SCHED   "see --max-num-seqs, --max-num-batched-tokens and --scheduling-policy"
#define OWN_POOL    "the KV pool has one kind of block: see --kv-cache-memory-bytes and --block-size"
#define OWN_TIERS   "evicted blocks go to host memory with --kv-offload-bytes"
#define NO_PD                                                                                      \
    "prefill and decode run on the same worker, which computes what is not in its own cache"
#define OWN_SERVER "the HTTP server is this worker's own"
#define NO_CORS    "no CORS headers are sent: set them in the proxy before this worker"
#define NO_PROBES  "nothing is dumped, profiled or checked beyond the log and the metrics"
#define NO_GRAMMAR "answers are not constrained by a grammar"
#define NO_SLEEP   "a worker keeps its memory until it ends"
#define NO_STATE   "there is no recurrent state to keep: such models are refused when they are opened"

const struct option_foreign worker_foreign[] = {
    /* --- other names, taken as ours ----------------------------------------------------------*/
    PASSED_ON("-tp=", "tensor-parallel-size"),
    PASSED_ON("uvicorn-log-level=", "log-level"),
    PASSED_ON("model-id=,model-dir=", "model"),
    PASSED_ON("model-name=", "served-model-name"),
    {.flags = "sampling-defaults=", .fine = "model", .as = "generation-config", .value = "vllm"},
    IGNORED("shutdown-timeout=", "see --drain-timeout"),

    /* --- refused: it would change the answers ------------------------------------------------*/
    REFUSED_BUT("quantization=,-q=", "none,auto,null,unquant", OWN_TYPES),
    REFUSED("quantization-config=,quantization-param-path=,torchao-config=,modelopt-quant=,"
            "quantize-and-serve,rl-quant-profile=,modelopt-checkpoint-restore-path=,"
            "enable-quant-communications",
            OWN_TYPES),
    {.flags = "kv-cache-dtype=",
     .fine = "auto",
     .refuses = "fp*,int*,nvfp*,turbo*,mxfp*",
     .remark = OWN_KV},
    REFUSED("kv-cache-dtype-skip-layers=*,prefill-kv-cache-dequant-dtype=", OWN_KV),
    REFUSED("enable-lora,lora-modules=*,lora-paths=*,default-mm-loras=,prompt-adapters=*,"
            "enable-prompt-adapter,qlora-adapter-name-or-path=,uno-lora-path=",
            NO_LORA),
    REFUSED_BUT("hf-overrides=,json-model-override-args=", "{},none", OWN_CONFIG),
    REFUSED("rope-scaling=,rope-theta=,model-class-overrides=,hf-config-path=,"
            "decrypted-config-file=,decrypted-draft-config-file=,override-attention-dtype=",
            OWN_CONFIG),
    REFUSED_BUT("runner=", "auto,generate", GENERATES),
    REFUSED_BUT("task=", "auto,generate", GENERATES),
    REFUSED_BUT("convert=", "auto,none", GENERATES),
    REFUSED("is-embedding,pooler-config=,override-pooler-config=,diffusion-config=,-dc=,"
            "dllm-algorithm=,dllm-algorithm-config=,dllm-fdfo,encoder-only,mm-encoder-only,"
            "enable-mis,prefill-only-disable-kv-cache,prefill-only-one-req=,"
            "multi-item-scoring-delimiter=,asr-max-buffer-seconds=,asr-max-concurrent-sessions=",
            GENERATES),
    REFUSED("logits-processors=*", OWN_LOGITS),
    REFUSED_BUT("logprobs-mode=", "raw_logprobs",
                "it would change the answers: log-probabilities are those before temperature and "
                "penalties (raw_logprobs)"),
    REFUSED_BUT("response-role=", "assistant",
                "it would change the answers: the role is assistant"),
    REFUSED_BUT("tokenizer-mode=", "auto,hf,slow,fast",
                "it would change the prompts: tokenizer.json and the chat template are what is "
                "used"),
    REFUSED("custom-weight-loader=*,modelexpress-config=,weight-transfer-config=,"
            "remote-instance-weight-loader-backend=,"
            "remote-instance-weight-loader-seed-instance-ip=,"
            "remote-instance-weight-loader-seed-instance-service-port=,"
            "remote-instance-weight-loader-send-weights-group-ports=,"
            "remote-instance-weight-loader-start-seed-via-transfer-engine,"
            "checkpoint-engine-wait-weights-before-ready,model-checksum=?",
            NO_WEIGHT_CHANGE),
    REFUSED("enable-double-sparsity,ds-channel-config-path=,ds-heavy-channel-num=,"
            "ds-heavy-channel-type=,ds-heavy-token-num=,ds-sparse-decode-threshold=,"
            "enable-hisparse,hisparse-config=,enable-lean-attention,"
            "hierarchical-sparse-attention-extra-config=",
            APPROXIMATE),
    REFUSED("forward-hooks=,io-processor-plugin=,worker-cls=,worker-extension-cls=,scheduler-cls=,"
            "debug-tensor-dump-inject=,override-neuron-config=",
            "it would change the answers: there are no plug-ins"),
    REFUSED("ssl-keyfile-password=", "give a key without a passphrase"),
    REFUSED("uds=", "this worker listens on --host and --port"),
    REFUSED("grpc,grpc-mode,smg-grpc-mode",
            "this worker speaks HTTP: leave the flag out and use its port"),
    REFUSED("headless,tokens-only", "a worker answers requests itself: leave the flag out"),
    REFUSED("skip-tokenizer-init",
            "it would change the answers: text is always tokenized and detokenized here"),
    REFUSED("tool-server=",
            "it would change the answers: no tools are run for a client; leave the flag out"),

    /* --- passed over: how it is computed -----------------------------------------------------*/
    IGNORED("device-memory-utilization=", "see --gpu-memory-utilization"),
    IGNORED("trust-remote-code",
            "no code of a model is run: what it needs is built in, or refused"),
    FINE("model-impl=", "auto", OWN_KERNELS),
    IGNORED("enforce-eager,compilation-config=,-cc=,-O=,optimization-level=,"
            "cudagraph-capture-sizes=*,cuda-graph-sizes=*,max-cudagraph-capture-size=,"
            "max-seq-len-to-capture=,cudagraph-metrics,performance-mode=,kernel-config=,"
            "ir-op-priority=,disable-cuda-graph,disable-cuda-graph-padding,"
            "disable-decode-cuda-graph,disable-prefill-cuda-graph,cuda-graph-bs=*,"
            "cuda-graph-bs-decode=*,cuda-graph-bs-prefill=*,cuda-graph-max-bs=,"
            "cuda-graph-max-bs-decode=,cuda-graph-max-bs-prefill=,cuda-graph-max-seq-len-prefill=,"
            "cuda-graph-prefill-max-context=,cuda-graph-config=,cuda-graph-backend-decode=,"
            "cuda-graph-backend-prefill=,enable-piecewise-cuda-graph,disable-piecewise-cuda-graph,"
            "piecewise-cuda-graph-compiler=,piecewise-cuda-graph-max-tokens=,"
            "piecewise-cuda-graph-tokens=*,enable-torch-compile,enable-torch-compile-debug-mode,"
            "torch-compile-max-bs=,enable-cudagraph-gc,enable-profile-cuda-graph,"
            "debug-cuda-graph,enable-cuda-graph,monokernel,enable-nvidia-megakernel,"
            "enable-amd-monokernel,jit-monitor-mode=,jit-monitor-verbose,warmups=,"
            "skip-server-warmup,pre-warm-nccl",
            NO_GRAPHS),
    IGNORED("attention-backend=,attention-config=,-ac=,decode-attention-backend=,"
            "prefill-attention-backend=,linear-attn-backend=,linear-attn-decode-backend=,"
            "linear-attn-prefill-backend=,linear-attn-verify-backend=,dsa-decode-backend=,"
            "dsa-prefill-backend=,dsa-topk-backend=,dsa-triton-union=,"
            "dsa-paged-mqa-logits-backend=,dsv4-attn-backend=,dsv4-prefill-backend=,"
            "nsa-decode-backend=,nsa-prefill-backend=,nsa-prefill=,nsa-decode=,"
            "sparse-indexer-topk-backend=,gdn-prefill-backend=,kda-decode-backend=,"
            "kda-prefill-backend=,disable-cascade-attn,disable-mla,enable-flashinfer-mla,"
            "flashinfer-mla-disable-ragged,disable-chunked-prefix-cache,"
            "triton-attention-num-kv-splits=,triton-attention-reduce-in-fp32,"
            "triton-attention-split-tile-size=,sampling-backend=,linear-backend=,"
            "bf16-gemm-backend=,fp4-gemm-backend=,fp8-gemm-backend=,fp8-gemm-runner-backend=,"
            "enable-flashinfer-autotune,disable-flashinfer-autotune,"
            "flashinfer-autotune-skip-ops=*,enable-tf32-matmul,use-fp64-gumbel,"
            "enable-fp32-lm-head,enable-fused-qk-norm-rope,enable-deepseek-v4-fp4-indexer,"
            "qsa-indexer-dtype=,enable-dsa-cache-layer-split,enable-dsa-fused-indexer,"
            "rl-on-policy-target=,boundary-reduction=,disable-sliding-window,"
            "device-ids=,enable-scattered-sconv,disable-custom-all-reduce,"
            "enable-aiter-allreduce-fusion,"
            "disable-aiter-allreduce-fusion-in-decode,disable-aiter-allreduce-fusion-in-prefill,"
            "enable-flashinfer-allreduce-fusion,flashinfer-allreduce-fusion-backend=,"
            "enforce-disable-flashinfer-allreduce-fusion,enable-mscclpp,enable-nccl-nvls,"
            "enable-symm-mem,enable-torch-symm-mem,enable-nccl-comm-suspend,nccl-port=,"
            "disable-nccl-for-dp-synchronization,enable-p2p-check,enable-layernorm-sp,"
            "enable-megamoe-for-layernorm-sp,mlx-enable-sampling,additional-config=,"
            "model-config-parser=,config-format=,enable-hc-sp,engram-config=",
            OWN_KERNELS),
    IGNORED("speculative-config=,-sc=,spec-method=,spec-model=,spec-tokens=,-spec-draft-tp=,"
            "speculative-algorithm=,speculative-algo=,speculative-model=,speculative-draft-model=,"
            "speculative-draft-model-path=,speculative-draft-model-quantization=,"
            "speculative-draft-model-revision=,speculative-draft-load-format=,"
            "speculative-draft-attention-backend=,speculative-draft-kv-cache-dtype=,"
            "speculative-draft-sink-size=,speculative-draft-window-size=,"
            "speculative-draft-tensor-parallel-size=,speculative-num-draft-tokens=,"
            "speculative-num-steps=,speculative-eagle-topk=,speculative-token-map=,"
            "speculative-accept-threshold-acc=,speculative-accept-threshold-single=,"
            "speculative-adaptive,speculative-adaptive-config=,speculative-attention-mode=,"
            "speculative-dflash-block-size=,speculative-domino-candidate-pool-size=,"
            "speculative-dsa-topk-backend=,"
            "speculative-dspark-align-verify-tokens-to-graph-tier,speculative-dspark-block-size=,"
            "speculative-dspark-confidence-sts-path=,speculative-dspark-sps-table-path=,"
            "speculative-enable-w4a4-mxfp4-megamoe,speculative-moe-a2a-backend=,"
            "speculative-moe-runner-backend=,speculative-ngram-branch-length=,"
            "speculative-ngram-capacity=,speculative-ngram-external-corpus-max-tokens=,"
            "speculative-ngram-external-corpus-path=,speculative-ngram-external-sam-budget=,"
            "speculative-ngram-match-type=,speculative-ngram-max-bfs-breadth=,"
            "speculative-ngram-max-match-window-size=,speculative-ngram-max-trie-depth=,"
            "speculative-ngram-min-bfs-breadth=,speculative-ngram-min-match-window-size=,"
            "speculative-use-block-verification,speculative-use-rejection-sampling,"
            "speculative-disable-by-batch-size=,speculative-disable-mqa-scorer,"
            "speculative-max-model-len=,speculative-model-quantization=,"
            "spec-decoding-acceptance-method=,spec-trace-dir=,num-speculative-tokens=,"
            "num-lookahead-slots=,ngram-prompt-lookup-max=,ngram-prompt-lookup-min=,"
            "typical-acceptance-sampler-posterior-alpha=,"
            "typical-acceptance-sampler-posterior-threshold=,"
            "disable-logprobs-during-spec-decoding,per-request-spec-decode-metrics=,"
            "enable-multi-layer-eagle,decoupled-spec-bind-endpoint=,"
            "decoupled-spec-connect-endpoints=,decoupled-spec-rank=,decoupled-spec-role=,"
            "enable-draft-weights-cpu-backup,enable-linear-replayssm-spec",
            NO_SPECULATION),

    /* --- passed over: where it is computed ---------------------------------------------------*/
    FINE("pipeline-parallel-size=,pp-size=,-pp=,nnodes=,-n=", "1", ONE_MACHINE),
    FINE("node-rank=,-r=,base-gpu-id=", "0", ONE_MACHINE),
    FINE("distributed-executor-backend=", "mp,uni,auto,none", ONE_MACHINE),
    IGNORED("gpu-id-step=,pp-max-micro-batch-size=,pp-async-batch-depth=,max-micro-batch-size=,"
            "dist-init-addr=,nccl-init-addr=,dist-timeout=,master-addr=,master-port=,"
            "distributed-timeout-seconds=,cpu-distributed-timeout-seconds=,worker-use-ray,use-ray,"
            "ray-workers-use-nsight,decode-context-parallel-size=,-dcp=,dcp-size=,"
            "dcp-comm-backend=,dcp-kv-cache-interleave-size=,dcp-q-replicate,dcp-replicate-q-proj,"
            "prefill-context-parallel-size=,-pcp=,cp-kv-cache-interleave-size=,cp-strategy=,"
            "attention-context-parallel-size=,attn-cp-size=,enable-prefill-cp,"
            "enable-cp-decode-attn-tp,enable-nsa-prefill-context-parallel,nsa-prefill-cp-mode=,"
            "enable-dsa-prefill-context-parallel,enable-prefill-context-parallel,"
            "moe-dense-tp-size=,shared-experts-tp-size=,enable-dynamic-chunking,"
            "numa-bind=?,numa-bind-nodes=*,numa-bind-cpus=*,numa-node=*,"
            "max-parallel-loading-workers=,engine-info-bootstrap-port=",
            ONE_MACHINE),
    FINE("data-parallel-size=,dp-size=,dp=,-dp=,attn-dp-size=,attention-data-parallel-size=", "1",
         ONE_REPLICA),
    IGNORED("data-parallel-rank=,-dpn=,data-parallel-start-rank=,-dpr=,data-parallel-size-local=,"
            "-dpl=,data-parallel-address=,-dpa=,data-parallel-rpc-port=,-dpp=,"
            "data-parallel-backend=,-dpb=,data-parallel-hybrid-lb,-dph,data-parallel-external-lb,"
            "-dpe,data-parallel-multi-port-external-lb,-dpm,data-parallel-supervisor-port=,"
            "dp-supervisor-probe-failure-threshold=,dp-supervisor-probe-interval-s=,"
            "dp-supervisor-probe-timeout-s=,dp-sync-interval=,load-balance-method=,"
            "load-publish-endpoint=,load-snapshot-publish-interval=,load-watch-interval=,"
            "enable-dp-attention,enable-dp-lm-head,enable-dp-attention-local-control-broadcast,"
            "api-server-count=,-asc=,dwdp-size=,prefill-round-robin-balance,"
            "tokenizer-worker-num=,detokenizer-worker-num=,enable-http-worker-reuseport,"
            "enable-attn-tp-input-scattered,disable-attn-tp-gather,enable-dense-mlp-attn-tp,"
            "enable-tp-lm-head-all-to-all,enable-batch-sharded-sampling",
            ONE_REPLICA),
    FINE("expert-parallel-size=,ep-size=,ep=", "1", NO_EXPERTS),
    IGNORED("enable-expert-parallel,-ep,all2all-backend=,enable-ep-moe,enable-deepep-moe,"
            "enable-flashinfer-moe,enable-flashinfer-cutlass-moe,enable-flashinfer-trtllm-moe,"
            "moe-a2a-backend=,moe-backend=,moe-runner-backend=,moe-data-parallel-size=,"
            "moe-dp-size=,deepep-mode=,deepep-v2-mode=,deepep-config=,"
            "deepep-dispatcher-output-dtype=,flashinfer-a2a-dispatch-type=,"
            "flashinfer-mxfp4-moe-precision=,fuseep-mode=,enable-eplb,eplb-config=,"
            "eplb-algorithm=,eplb-log-balancedness,eplb-min-rebalancing-utilization-threshold=,"
            "eplb-rebalance-layers-per-chunk=,eplb-rebalance-num-iterations=,eplb-step-interval=,"
            "eplb-window-size=,num-redundant-experts=,ep-num-redundant-experts=,"
            "ep-dispatch-algorithm=,expert-placement-strategy=,init-expert-location=,"
            "expert-distribution-recorder-buffer-size=,expert-distribution-recorder-mode=,"
            "enable-expert-distribution-metrics,expert-balancedness-report-mode=,"
            "enable-ep-weight-filter,max-ep-size=,enable-two-batch-overlap,"
            "enable-single-batch-overlap,tbo-token-distribution-threshold=,enable-dbo,"
            "dbo-decode-token-threshold=,dbo-prefill-token-threshold=,ubatch-size=,"
            "disable-shared-experts-fusion,enforce-shared-experts-fusion,"
            "enable-shared-experts-attn-tp,enable-fused-moe-sum-all-reduce,"
            "disable-flashinfer-cutlass-moe-fp4-allgather,enable-w4a4-mxfp4-megamoe,"
            "enable-waterfill,kt-amx-method=,kt-amx-weight-path=,kt-cpuinfer=,"
            "kt-max-deferred-experts-per-token=,kt-method=,kt-num-gpu-experts=,"
            "kt-threadpool-count=,kt-weight-path=,enable-paged-experts,"
            "paged-experts-num-resident=,enable-elastic-ep,elastic-ep-max-dp-size=,"
            "elastic-ep-backend=,elastic-ep-initial-size=,elastic-ep-join-mode=,"
            "elastic-ep-join-rank-offset=,elastic-ep-scale-timeout=,enable-elastic-expert-backup,"
            "experts-shared-outer-loras,enable-fault-tolerance,fault-tolerance-config=",
            NO_EXPERTS),

    /* --- passed over: memory and cache -------------------------------------------------------*/
    FINE("cpu-offload-gb=", "0", "weights stay on the device, see --tensor-parallel-size"),
    IGNORED("cpu-offload-params=*,offload-backend=,offload-group-size=,offload-mode=,"
            "offload-num-in-group=,offload-params=*,offload-prefetch-step=,"
            "ple-offload-backend=,ple-offload-dir=,ple-offload-embedding,"
            "enable-weights-cpu-backup",
            "weights stay on the device, see --tensor-parallel-size"),
    IGNORED("enable-sleep-mode,sleep-mode-backend=,sleep-mode-offload-cudagraph,"
            "sleep-preserve-parameter-names=*,enable-memory-saver,enable-cumem-allocator,"
            "sleep-on-idle,weight-cache-mode=,weight-cache-socket=,weight-cache-timeout=",
            NO_SLEEP),
    IGNORED("max-total-tokens=,swa-full-tokens-ratio=,swa-prefix-tails=,swa-bounded-replay,"
            "disable-hybrid-swa-memory,hybrid-kvcache-ratio=?,disable-hybrid-kv-cache-manager,"
            "c128-page-size=,calculate-kv-scales,prefix-cache-retention-interval=,"
            "prefix-match-unit=,radix-cache-backend=,radix-eviction-policy=,"
            "radix-eviction-policy-config=,enable-session-radix-cache,enable-unified-memory,"
            "enable-page-major-kv-layout,kv-sharing-fast-prefill,use-v2-block-manager,"
            "enable-kv-cache-sharding,enable-linker-mla-dedup,"
            "enable-decoder-swa-bounded-replay,enable-encoder-swa-bounded-replay,"
            "watermark-config=,enable-watermark,prefill-buffer-ceiling=,kv-canary=,"
            "kv-canary-sweep-interval=,enable-streaming-session,strip-thinking-cache",
            OWN_POOL),
    IGNORED("enable-hierarchical-cache,enable-hicache,hicache-host-memory-fraction=,"
            "hicache-host-memory-mode=,hicache-io-backend=,hicache-mem-layout=,hicache-ratio=,"
            "hicache-size=,hicache-storage-backend=,hicache-storage-backend-extra-config=,"
            "hicache-storage-prefetch-policy=,hicache-storage-prefetch-retry-max-attempts=,"
            "hicache-storage-prefetch-retry-poll-interval=,hicache-write-policy=,"
            "enable-lmcache,lmcache-config-file=,enable-flexkv,flexkv-config-file=,"
            "enable-unified-cache-external-linker,unified-cache-external-linker-backend=,"
            "unified-cache-external-linker-config=,kv-offloading-backend=",
            OWN_TIERS),
    IGNORED("kv-transfer-config=,ec-transfer-config=,ec-manager-config=,disaggregation-mode=,"
            "disaggregation-bootstrap-port=,disaggregation-decode-allocation-policy=,"
            "disaggregation-decode-dp=,disaggregation-decode-enable-offload-kvcache,"
            "disaggregation-decode-enable-fake-auto,"
            "disaggregation-decode-enable-radix-cache,disaggregation-decode-extra-slots=,"
            "disaggregation-decode-host-receive-threshold=,"
            "disaggregation-decode-polling-interval=,disaggregation-decode-retraction-backup=,"
            "disaggregation-decode-tp=,disaggregation-enable-kv-checksum,"
            "disaggregation-ib-device=,disaggregation-prefill-pp=,"
            "disaggregation-transfer-backend=,num-reserved-decode-tokens=,mooncake-ib-device=,"
            "pdlb-url=,enable-pdmux,pdmux-config-path=,sm-group-num=,enable-pd-role-switch,"
            "optimistic-prefill-attempts=,encoder-bootstrap-port=,encoder-register-urls=*,"
            "encoder-transfer-backend=,encoder-urls=*,enable-adaptive-dispatch-to-encoder",
            NO_PD),
    IGNORED("mamba-backend=,mamba-block-size=,mamba-cache-dtype=,mamba-cache-mode=,"
            "mamba-cache-philox-rounds=,mamba-full-memory-ratio=,mamba-max-states-per-path=,"
            "mamba-radix-cache-strategy=,mamba-scheduler-strategy=,mamba-ssm-cache-dtype=,"
            "mamba-ssm-dtype=,mamba-ssu-algorithm=,mamba-track-interval=,max-mamba-cache-size=,"
            "enable-mamba-cache-stochastic-rounding,enable-mamba-shared-prefix-checkpoint,"
            "enable-int8-mamba-checkpoint,int8-mamba-ckpt-size=,enable-linear-replayssm,"
            "linear-replayssm-cache-len=,use-replayssm,replayssm-buffer-len=",
            NO_STATE),

    /* --- passed over: order and batches ------------------------------------------------------*/
    IGNORED("schedule-policy=", "requests run as they came, or by --scheduling-policy priority; "
                                "cached prefixes are found in any order"),
    STANDS_FOR("enable-priority-scheduling", "scheduling-policy", "priority"),
    IGNORED("schedule-conservativeness=,schedule-low-priority-values-first,"
            "abort-on-priority-when-disabled,default-priority-value=,disable-priority-preemption,"
            "priority-scheduling-preemption-threshold=,max-num-partial-prefills=,"
            "max-long-partial-prefills=,long-prefill-token-threshold-adaptive,"
            "max-num-scheduled-tokens=,max-num-active-seqs=,num-scheduler-steps=,"
            "multi-step-stream-outputs,scheduler-delay-factor=,scheduler-recv-interval=,"
            "num-continuous-decode-steps=,prefill-decode-interval=,"
            "prefill-decode-interval-min-bs=,prefill-schedule-interval=,prefill-max-requests=,"
            "max-prefill-tokens=,prefill-delayer-forward-passes-buckets=*,"
            "prefill-delayer-max-delay-ms=,prefill-delayer-max-delay-passes=,"
            "prefill-delayer-queue-min-ratio=,prefill-delayer-token-usage-low-watermark=,"
            "prefill-delayer-wait-seconds-buckets=*,enable-prefill-delayer,enable-mixed-chunk,"
            "min-free-slots-delay=,retraction-policy=,context-bucket=,disable-async-output-proc,"
            "disable-overlap-cg-plan,max-num-queued-tokens=,batch-notify-size=",
            OWN_SCHED),
    PASSED_ON("max-num-queued-reqs=,max-queued-requests=", "max-waiting"),
    FINE("stream-interval=", "1", "every token is sent when it is there"),
    IGNORED("stream-output,incremental-streaming-output", "every token is sent when it is there"),

    /* --- passed over: text -------------------------------------------------------------------*/
    IGNORED("enable-auto-tool-choice,tool-call-parser=,tool-parser-plugin=,tool-call-parser-plugin="
            ",tool-strict-level=,"
            "exclude-tools-when-tool-choice-none,reasoning-parser-plugin=,enable-reasoning,"
            "reasoning-config=,reasoning-effort-map=,enable-strict-thinking,"
            "anthropic-disabled-thinking-effort=,cohere-is-reasoning-model,cohere-format=",
            NO_TOOLS),
    FINE("reasoning-parser=", "none", NO_TOOLS),
    IGNORED("guided-decoding-backend=,grammar-backend=,structured-outputs-config=,"
            "logits-processor-pattern=,disable-outlines-disk-cache,disable-jump-forward,"
            "constrained-json-disable-any-whitespace,constrained-json-max-whitespace-cnt=,"
            "constrained-json-whitespace-pattern=,enable-custom-logit-processor",
            NO_GRAMMAR),
    FINE("chat-template-content-format=", "auto",
         "parts are joined to one text unless the template looks at parts"),
    IGNORED("trust-request-chat-template", "a chat template in a request is refused"),
    IGNORED("hf-chat-template-name=",
            "a template called tool_use is taken for requests with tools"),
    IGNORED("completion-template=", "a prompt of /v1/completions is taken as it is"),
    IGNORED("tokenizer-revision=,code-revision=", "--revision counts for all files of the model"),
    IGNORED("tokenizer-backend=,tokenizer-pool-extra-config=,tokenizer-pool-size=,"
            "tokenizer-pool-type=,renderer-num-workers=,enable-tokenizer-batch-encode,"
            "disable-tokenizer-batch-decode,enable-dynamic-batch-tokenizer,"
            "dynamic-batch-tokenizer-batch-size=,dynamic-batch-tokenizer-batch-timeout=",
            "prompts are tokenized by a thread of their own"),
    IGNORED("limit-mm-per-prompt=,limit-mm-data-per-request=,mm-processor-kwargs=,"
            "mm-processor-cache-gb=,mm-processor-cache-type=,mm-processor-device=,"
            "mm-processor-worker-num=,mm-shm-cache-max-object-size-mb=,mm-encoder-attn-backend=,"
            "mm-encoder-attn-dtype=,mm-encoder-fp8-scale-path=,mm-encoder-fp8-scale-save-margin=,"
            "mm-encoder-fp8-scale-save-path=,mm-encoder-tp-mode=,mm-enable-dp-encoder,"
            "mm-attention-backend=,mm-device-do-normalize,mm-feature-transport=,"
            "mm-global-cache-backend=,mm-hasher-algorithm=,mm-io-worker-num=,"
            "mm-ipc-gpu-memory-gb=,mm-max-concurrent-calls=,mm-per-request-timeout=,"
            "mm-preprocess-cache-size-mb=,mm-process-config=,mm-tensor-ipc=,"
            "enable-mm-global-cache,enable-mm-embeds,enable-prefix-mm-cache,"
            "enable-broadcast-mm-inputs-process,media-io-kwargs=,media-url-max-file-size-mb=,"
            "allowed-local-media-path=,allowed-media-domains=*,interleave-mm-strings,"
            "skip-mm-profiling,video-pruning-rate=,video-pruning-method=,image-processor-backend=,"
            "disable-fast-image-processor,keep-mm-feature-on-device,enable-multimodal,"
            "enable-multimodal-encoder-data-parallel,disable-chunked-mm-input,"
            "disable-mm-preprocessor-cache,language-model-only,language-only,"
            "trust-request-mm-kwargs,trust-mm-content-hashes,enable-prompt-embeds,"
            "enable-flash-late-interaction,enable-precise-embedding-interpolation,"
            "enable-tower-connector-lora,fastapi-max-image-mb=",
            TEXT_ONLY),
    IGNORED("max-loras=,max-lora-rank=,max-cpu-loras=,max-loras-per-batch=,max-loaded-loras=,"
            "max-lora-chunk-size=,max-lora-cls-labels=,max-prompt-adapter-token=,"
            "max-prompt-adapters=,fully-sharded-loras,lora-backend=,lora-dtype=,"
            "lora-drain-wait-threshold=,lora-eviction-policy=,lora-extra-vocab-size=,"
            "lora-strict-loading,lora-target-modules=*,lora-use-virtual-experts,"
            "long-lora-scaling-factors=*,specialize-active-lora,enable-lora-bias,"
            "enable-lora-overlap-loading,enable-mixed-moe-lora-format,enable-moe-shared-loras",
            "there are no adapters"),
    IGNORED("return-hidden-states-mode=,enable-return-hidden-states,return-hidden-states,"
            "enable-return-aux-hidden-states,return-aux-hidden-state-layer-ids=*,"
            "enable-return-indexer-topk,enable-return-routed-experts,return-sampling-mask,"
            "sampling-mask-max-tokens=,return-input-ids,return-output-ids,aux-output-config=,"
            "enable-trace-replay",
            "requests get tokens and log-probabilities: see return_token_ids and logprobs there"),
    IGNORED("enable-prompt-tokens-details,enable-cache-report",
            "usage.prompt_tokens_details.cached_tokens is always sent"),
    IGNORED("enable-force-include-usage,stream-response-default-include-usage",
            "a stream has usage when its request asks: stream_options.include_usage"),
    IGNORED("enable-per-request-metrics,enable-request-time-stats-logging",
            "the log line of a request has its times"),
    IGNORED("enable-response-store,file-storage-path=,file-storage-pth=", "answers are not stored"),
    IGNORED("fingerprint-mode=,fingerprint-value=,weight-version=",
            "GET /server_info names model, backend and path"),

    /* --- passed over: loading ----------------------------------------------------------------*/
    {.flags = "load-format=",
     .fine = "auto,safetensors,hf",
     .refuses = "bitsandbytes,gguf,dummy,remote*,private,layered,sharded_state,ds_quantized",
     .remark =
         "safetensors are read from the model's folder; other weights would change the answers"},
    IGNORED("model-loader-extra-config=,ignore-patterns=*,use-tqdm-on-load,"
            "pt-load-map-location=,safetensors-load-strategy=,safetensors-prefetch-block-size=,"
            "safetensors-prefetch-num-threads=,weight-loader-disable-mmap,"
            "weight-loader-drop-cache-after-load,weight-loader-prefetch-checkpoints,"
            "weight-loader-prefetch-num-threads=,delete-ckpt-after-loading,"
            "startup-weight-load-mode=,modelopt-checkpoint-save-path=,modelopt-export-path=,"
            "impl=,allow-deprecated-quantization",
            OWN_LOAD),
    IGNORED("hf-token=?", "set HF_TOKEN, or HF_TOKEN_PATH"),

    /* --- passed over: the server -------------------------------------------------------------*/
    IGNORED("allowed-origins=,allowed-methods=,allowed-headers=,allow-credentials", NO_CORS),
    IGNORED("middleware=,disable-fastapi-docs,enable-offline-docs,"
            "h11-max-header-count=,h11-max-incomplete-event-size=,"
            "disable-frontend-multiprocessing,enable-http2,http2-initial-connection-window-size=,"
            "http2-max-concurrent-streams=,grpc-port=,grpc-http-sidecar-port=,"
            "grpc-response-timeout-secs=,smg-http-sidecar-port=,sidecar=,sidecar-args=,"
            "gated-launch-port=,enable-scale-out,enable-tokenizer-info-endpoint,"
            "enable-server-load-tracking,allow-auto-truncate,enable-shm-tensor-arena,"
            "gc-threshold=*,gc-warning-threshold-secs=,fail-on-environ-validation",
            OWN_SERVER),
    IGNORED("admin-api-key=", "what --api-key protects includes what an operator may do"),
    IGNORED("sse-keep-alive-interval=", "nothing is sent in a stream between tokens"),
    IGNORED("enable-ssl-refresh", "certificates are read again on SIGHUP"),
    FINE("ssl-cert-reqs=", "0,2", "with --ssl-ca-certs every client needs a certificate"),
    IGNORED("ssl-ciphers=", "TLS 1.2 and 1.3 with the system's ciphers"),
    IGNORED("enable-request-id-headers", "the x-request-id of a request is always sent back"),
    IGNORED("watchdog-timeout=,soft-watchdog-timeout=,watchdog-config=",
            "GET /health reports a device that failed"),

    /* --- passed over: what is written --------------------------------------------------------*/
    IGNORED("disable-log-requests,enable-log-requests,log-requests,log-requests-format=,"
            "log-requests-level=,log-requests-target=*,max-log-len=,enable-log-outputs,"
            "enable-log-deltas,log-level-http=,disable-uvicorn-access-log,"
            "disable-access-log-for-endpoints=,uvicorn-access-log-exclude-prefixes=*,"
            "log-config-file=,logging-config=,log-error-stack,aggregate-engine-logging,"
            "show-time-cost,enable-logging-iteration-details",
            OWN_LOG),
    IGNORED("disable-log-stats,decode-log-interval=", "see --log-interval"),
    IGNORED("enable-metrics,enable-metrics-for-all-schedulers,enable-mfu-metrics,"
            "export-metrics-to-file,export-metrics-to-file-dir=,extra-metric-labels=,"
            "show-hidden-metrics-for-version=,custom-histogram-buckets=,"
            "bucket-e2e-request-latency=*,bucket-inter-token-latency=*,"
            "bucket-time-to-first-token=*,collect-tokens-histogram,generation-tokens-buckets=*,"
            "prompt-tokens-buckets=*,tokenizer-metrics-allowed-custom-labels=*,"
            "tokenizer-metrics-custom-labels-header=,tokenizer-metrics-allowed-customer-labels=*,"
            "enable-forward-pass-metrics,forward-pass-metrics-ipc-name=,"
            "forward-pass-metrics-worker-id=",
            OWN_METRICS),
    IGNORED("otlp-traces-endpoint=,otlp-service-name=,collect-detailed-traces=*,enable-trace,"
            "trace-modules=",
            NO_TRACE),
    IGNORED("crash-dump-folder=,debug-tensor-dump-input-file=,debug-tensor-dump-layers=*,"
            "debug-tensor-dump-output-folder=,debug-tensor-dump-prefill-only,profiler-config=,"
            "enable-layerwise-nvtx-marker,enable-layerwise-nvtx-tracing,enable-nan-detection,"
            "msprobe-dump-config=",
            NO_PROBES),
    {.flags = NULL},
};
