/* worker/compat_flags.c - flags of `vllm serve` and `sglang.launch_server` that are none of ours.
 *
 * A command line of one of those should start this worker, or fail with the reason. Flags that tune
 * something that works differently here have no effect. Flags that would change the answers (other
 * weights, adapters, another arithmetic, another kind of model) are refused. Flags with the meaning
 * of one of ours are rows or aliases in worker_options.c, which win over a row here.
 *
 * The names are those of vLLM 0.6 to 0.33 and SGLang 0.4 to 0.5.23; tests/data/compat_flags.txt has
 * them all. MIGRATING.md is made from this table. */
#include "worker/worker_options.h"

/* --- reasons to refuse: the flag would change the answers ------------------------------------- */
#define CHANGES          "it would change the answers: "
#define OWN_TYPES        CHANGES "weights stay as the checkpoint has them"
#define OWN_KV           CHANGES "all layers keep K and V as --kv-cache-dtype sets"
#define NO_LORA          CHANGES "adapters are not supported: merge them into the model"
#define OWN_CONFIG       CHANGES "the model is computed by its config.json: edit that file"
#define GENERATES        "this worker generates text, it does not embed, classify or score"
#define OWN_LOGITS       CHANGES "there are no logits plug-ins: use logit_bias in requests"
#define NO_WEIGHT_CHANGE CHANGES "weights come from the model's folder alone"
#define APPROXIMATE      CHANGES "attention covers the whole context, without approximation"

/* --- reasons to have no effect ---------------------------------------------------------------- */
#define NO_SPECULATION "tokens are computed one by one: equal answers"
#define OWN_KERNELS    "the kernels are chosen by --backend and --path"
#define NO_GRAPHS      "nothing is compiled; graphs are captured where they help"
#define ONE_MACHINE    "a worker has one machine: see --tensor-parallel-size"
#define ONE_REPLICA    "a worker is one replica: incipit-router --launch N starts N of them"
#define NO_EXPERTS     "experts are computed where the rest of the model is"
#define TEXT_ONLY      "prompts are text: requests with images, audio or video are refused"
#define OWN_FORMATS    "see --tool-call-parser and --reasoning-parser"
#define OWN_LOAD       "safetensors are read from the model's folder"
#define OWN_LOG        "see --log-level and --log-format; each request has one line"
#define OWN_METRICS    "GET /metrics is always served, under vLLM's names"
#define NO_TRACE       "x-request-id is in a request's log lines"
#define OWN_SCHED      "see --max-num-seqs, --max-num-batched-tokens and --schedule-policy"
#define OWN_POOL       "KV blocks are of one kind: see --kv-cache-memory-bytes and --block-size"
#define OWN_TIERS      "evicted blocks go to host memory with --kv-offload-bytes"
#define NO_PD          "prefill and decode run on one worker"
#define OWN_SERVER     "the HTTP server is this worker's own"
#define NO_CORS        "set CORS headers in the proxy before this worker"
#define NO_PROBES      "see the log and the metrics"
#define OWN_GRAMMAR                                                                                \
    "answers are constrained by the worker's own grammars, by fields of requests alone"
#define NO_SLEEP "a worker keeps its memory until it ends"
#define NO_STATE "recurrent models are refused"
#define RESIDENT "weights stay on the device: see --tensor-parallel-size"

const struct option_compat worker_compat_flags[] = {
    /* --- other names of our options ----------------------------------------------------------*/
    COMPAT_PASSED_ON("-tp=", "tensor-parallel-size"),
    COMPAT_PASSED_ON("-q=", "quantization"),
    COMPAT_PASSED_ON("uvicorn-log-level=", "log-level"),
    COMPAT_PASSED_ON("model-id=,model-dir=", "model"),
    COMPAT_PASSED_ON("model-name=", "served-model-name"),
    {.flags = "sampling-defaults=", .fine = "model", .as = "generation-config", .value = "vllm"},
    COMPAT_IGNORED("shutdown-timeout=", "see --drain-timeout"),

    /* --- refused: it would change the answers ------------------------------------------------*/
    COMPAT_REFUSED("quantization-config=,quantization-param-path=,torchao-config=,modelopt-quant=,"
                   "quantize-and-serve,rl-quant-profile=,modelopt-checkpoint-restore-path=,"
                   "enable-quant-communications",
                   OWN_TYPES),
    COMPAT_REFUSED("kv-cache-dtype-skip-layers=*,prefill-kv-cache-dequant-dtype=", OWN_KV),
    COMPAT_REFUSED("enable-lora,lora-modules=*,lora-paths=*,default-mm-loras=,prompt-adapters=*,"
                   "enable-prompt-adapter,qlora-adapter-name-or-path=,uno-lora-path=",
                   NO_LORA),
    COMPAT_REFUSED_BUT("hf-overrides=,json-model-override-args=", "{},none", OWN_CONFIG),
    COMPAT_REFUSED("rope-scaling=,rope-theta=,model-class-overrides=,hf-config-path=,"
                   "decrypted-config-file=,decrypted-draft-config-file=,override-attention-dtype=",
                   OWN_CONFIG),
    COMPAT_REFUSED_BUT("runner=", "auto,generate", GENERATES),
    COMPAT_REFUSED_BUT("task=", "auto,generate", GENERATES),
    COMPAT_REFUSED_BUT("convert=", "auto,none", GENERATES),
    COMPAT_REFUSED("is-embedding,pooler-config=,override-pooler-config=,diffusion-config=,-dc=,"
                   "dllm-algorithm=,dllm-algorithm-config=,dllm-fdfo,encoder-only,mm-encoder-only,"
                   "enable-mis,prefill-only-disable-kv-cache,prefill-only-one-req=,"
                   "multi-item-scoring-delimiter=,asr-max-buffer-seconds=,"
                   "asr-max-concurrent-sessions=",
                   GENERATES),
    COMPAT_REFUSED("logits-processors=*", OWN_LOGITS),
    COMPAT_REFUSED_BUT("logprobs-mode=", "raw_logprobs",
                       CHANGES "log-probabilities are those before temperature and "
                               "penalties (raw_logprobs)"),
    COMPAT_REFUSED_BUT("response-role=", "assistant", CHANGES "the role is assistant"),
    COMPAT_REFUSED_BUT(
        "tokenizer-mode=", "auto,hf,slow,fast",
        "it would change the prompts: tokenizer.json and the chat template are what is "
        "used"),
    COMPAT_REFUSED("custom-weight-loader=*,modelexpress-config=,weight-transfer-config=,"
                   "remote-instance-weight-loader-*=,"
                   "remote-instance-weight-loader-start-seed-via-transfer-engine,"
                   "checkpoint-engine-wait-weights-before-ready,model-checksum=?",
                   NO_WEIGHT_CHANGE),
    COMPAT_REFUSED("enable-double-sparsity,ds-*=,enable-hisparse,hisparse-config=,"
                   "enable-lean-attention,hierarchical-sparse-attention-extra-config=",
                   APPROXIMATE),
    COMPAT_REFUSED(
        "forward-hooks=,io-processor-plugin=,worker-cls=,worker-extension-cls=,scheduler-cls=,"
        "debug-tensor-dump-inject=,override-neuron-config=",
        CHANGES "there are no plug-ins"),
    COMPAT_REFUSED("ssl-keyfile-password=", "give a key without a passphrase"),
    COMPAT_REFUSED("uds=", "this worker listens on --host and --port"),
    COMPAT_REFUSED("grpc,grpc-mode,smg-grpc-mode",
                   "this worker speaks HTTP: leave the flag out and use its port"),
    COMPAT_REFUSED("headless,tokens-only", "a worker answers requests itself: leave the flag out"),
    COMPAT_REFUSED("skip-tokenizer-init", CHANGES "text is always tokenized by the worker"),
    COMPAT_REFUSED("tool-server=", CHANGES "clients run the tools: leave the flag out"),

    /* --- no effect: how it is computed -----------------------------------------------------*/
    COMPAT_IGNORED("device-memory-utilization=", "see --gpu-memory-utilization"),
    COMPAT_IGNORED("trust-remote-code",
                   "no code of a model is run: its architecture is built in, or refused"),
    COMPAT_FINE("model-impl=", "auto", OWN_KERNELS),
    COMPAT_IGNORED("enforce-eager,compilation-config=,-cc=,-O=,optimization-level=,"
                   "cudagraph-capture-sizes=*,cuda-graph-sizes=*,max-cudagraph-capture-size=,"
                   "max-seq-len-to-capture=,cudagraph-metrics,performance-mode=,kernel-config=,"
                   "ir-op-priority=,disable-cuda-graph,disable-cuda-graph-padding,"
                   "disable-decode-cuda-graph,disable-prefill-cuda-graph,cuda-graph-bs=*,"
                   "cuda-graph-bs-decode=*,cuda-graph-bs-prefill=*,cuda-graph-*=,"
                   "enable-piecewise-cuda-graph,disable-piecewise-cuda-graph,"
                   "piecewise-cuda-graph-compiler=,piecewise-cuda-graph-max-tokens=,"
                   "piecewise-cuda-graph-tokens=*,enable-torch-compile,"
                   "enable-torch-compile-debug-mode,torch-compile-max-bs=,enable-cudagraph-gc,"
                   "enable-profile-cuda-graph,debug-cuda-graph,enable-cuda-graph,monokernel,"
                   "enable-nvidia-megakernel,enable-amd-monokernel,jit-monitor-mode=,"
                   "jit-monitor-verbose,warmups=,skip-server-warmup,pre-warm-nccl",
                   NO_GRAPHS),
    COMPAT_IGNORED("attention-backend=,attention-config=,-ac=,decode-attention-backend=,"
                   "prefill-attention-backend=,linear-attn-*=,dsa-*=,dsv4-attn-backend=,"
                   "dsv4-prefill-backend=,nsa-*=,sparse-indexer-topk-backend=,"
                   "gdn-prefill-backend=,kda-decode-backend=,kda-prefill-backend=,"
                   "disable-cascade-attn,disable-mla,enable-flashinfer-mla,"
                   "flashinfer-mla-disable-ragged,disable-chunked-prefix-cache,"
                   "triton-attention-num-kv-splits=,triton-attention-reduce-in-fp32,"
                   "triton-attention-split-tile-size=,sampling-backend=,linear-backend=,"
                   "bf16-gemm-backend=,fp4-gemm-backend=,fp8-gemm-backend=,"
                   "fp8-gemm-runner-backend=,enable-flashinfer-autotune,"
                   "disable-flashinfer-autotune,flashinfer-autotune-skip-ops=*,"
                   "enable-tf32-matmul,use-fp64-gumbel,enable-fp32-lm-head,"
                   "enable-fused-qk-norm-rope,enable-deepseek-v4-fp4-indexer,"
                   "qsa-indexer-dtype=,enable-dsa-cache-layer-split,"
                   "enable-dsa-fused-indexer,rl-on-policy-target=,boundary-reduction=,"
                   "disable-sliding-window,device-ids=,enable-scattered-sconv,"
                   "disable-custom-all-reduce,enable-aiter-allreduce-fusion,"
                   "disable-aiter-allreduce-fusion-in-decode,"
                   "disable-aiter-allreduce-fusion-in-prefill,"
                   "enable-flashinfer-allreduce-fusion,flashinfer-allreduce-fusion-backend=,"
                   "enforce-disable-flashinfer-allreduce-fusion,enable-mscclpp,"
                   "enable-nccl-nvls,enable-symm-mem,enable-torch-symm-mem,"
                   "enable-nccl-comm-suspend,nccl-port=,disable-nccl-for-dp-synchronization,"
                   "enable-p2p-check,enable-layernorm-sp,enable-megamoe-for-layernorm-sp,"
                   "mlx-enable-sampling,additional-config=,model-config-parser=,"
                   "config-format=,enable-hc-sp,engram-config=",
                   OWN_KERNELS),
    COMPAT_IGNORED("speculative-*=,-sc=,spec-*=,-spec-draft-tp=,speculative-adaptive,"
                   "speculative-dspark-align-verify-tokens-to-graph-tier,"
                   "speculative-enable-w4a4-mxfp4-megamoe,"
                   "speculative-use-block-verification,speculative-use-rejection-sampling,"
                   "speculative-disable-mqa-scorer,num-speculative-tokens=,"
                   "num-lookahead-slots=,ngram-prompt-lookup-max=,ngram-prompt-lookup-min=,"
                   "typical-acceptance-sampler-posterior-alpha=,"
                   "typical-acceptance-sampler-posterior-threshold=,"
                   "disable-logprobs-during-spec-decoding,per-request-spec-decode-metrics=,"
                   "enable-multi-layer-eagle,decoupled-spec-*=,"
                   "enable-draft-weights-cpu-backup,enable-linear-replayssm-spec",
                   NO_SPECULATION),

    /* --- no effect: where it is computed ---------------------------------------------------*/
    COMPAT_FINE("pipeline-parallel-size=,pp-size=,-pp=,nnodes=,-n=", "1", ONE_MACHINE),
    COMPAT_FINE("node-rank=,-r=,base-gpu-id=", "0", ONE_MACHINE),
    COMPAT_FINE("distributed-executor-backend=", "mp,uni,auto,none", ONE_MACHINE),
    COMPAT_IGNORED("gpu-id-step=,pp-max-micro-batch-size=,pp-async-batch-depth=,"
                   "max-micro-batch-size=,dist-init-addr=,nccl-init-addr=,dist-timeout=,"
                   "master-addr=,master-port=,distributed-timeout-seconds=,"
                   "cpu-distributed-timeout-seconds=,worker-use-ray,use-ray,"
                   "ray-workers-use-nsight,decode-context-parallel-size=,-dcp=,dcp-*=,"
                   "dcp-q-replicate,dcp-replicate-q-proj,prefill-context-parallel-size=,"
                   "-pcp=,cp-kv-cache-interleave-size=,cp-strategy=,"
                   "attention-context-parallel-size=,attn-cp-size=,enable-prefill-cp,"
                   "enable-cp-decode-attn-tp,enable-nsa-prefill-context-parallel,"
                   "nsa-prefill-cp-mode=,enable-dsa-prefill-context-parallel,"
                   "enable-prefill-context-parallel,moe-dense-tp-size=,"
                   "shared-experts-tp-size=,enable-dynamic-chunking,numa-bind=?,"
                   "numa-bind-nodes=*,numa-bind-cpus=*,numa-node=*,"
                   "max-parallel-loading-workers=,engine-info-bootstrap-port=",
                   ONE_MACHINE),
    COMPAT_FINE("data-parallel-size=,dp-size=,dp=,-dp=,attn-dp-size=,attention-data-parallel-size=",
                "1", ONE_REPLICA),
    COMPAT_IGNORED("data-parallel-*=,-dpn=,-dpr=,-dpl=,-dpa=,-dpp=,-dpb=,data-parallel-hybrid-lb,"
                   "-dph,data-parallel-external-lb,-dpe,data-parallel-multi-port-external-lb,-dpm,"
                   "dp-supervisor-*=,dp-sync-interval=,load-balance-method=,"
                   "load-publish-endpoint=,load-snapshot-publish-interval=,load-watch-interval=,"
                   "enable-dp-attention,enable-dp-lm-head,"
                   "enable-dp-attention-local-control-broadcast,api-server-count=,-asc=,"
                   "dwdp-size=,prefill-round-robin-balance,tokenizer-worker-num=,"
                   "detokenizer-worker-num=,enable-http-worker-reuseport,"
                   "enable-attn-tp-input-scattered,disable-attn-tp-gather,"
                   "enable-dense-mlp-attn-tp,enable-tp-lm-head-all-to-all,"
                   "enable-batch-sharded-sampling",
                   ONE_REPLICA),
    COMPAT_FINE("expert-parallel-size=,ep-size=,ep=", "1", NO_EXPERTS),
    COMPAT_IGNORED("enable-expert-parallel,-ep,all2all-backend=,enable-ep-moe,"
                   "enable-deepep-moe,enable-flashinfer-moe,enable-flashinfer-cutlass-moe,"
                   "enable-flashinfer-trtllm-moe,moe-*=,deepep-*=,"
                   "flashinfer-a2a-dispatch-type=,flashinfer-mxfp4-moe-precision=,"
                   "fuseep-mode=,enable-eplb,eplb-*=,eplb-log-balancedness,"
                   "num-redundant-experts=,ep-num-redundant-experts=,ep-dispatch-algorithm=,"
                   "expert-placement-strategy=,init-expert-location=,"
                   "expert-distribution-recorder-buffer-size=,"
                   "expert-distribution-recorder-mode=,enable-expert-distribution-metrics,"
                   "expert-balancedness-report-mode=,enable-ep-weight-filter,max-ep-size=,"
                   "enable-two-batch-overlap,enable-single-batch-overlap,"
                   "tbo-token-distribution-threshold=,enable-dbo,"
                   "dbo-decode-token-threshold=,dbo-prefill-token-threshold=,ubatch-size=,"
                   "disable-shared-experts-fusion,enforce-shared-experts-fusion,"
                   "enable-shared-experts-attn-tp,enable-fused-moe-sum-all-reduce,"
                   "disable-flashinfer-cutlass-moe-fp4-allgather,enable-w4a4-mxfp4-megamoe,"
                   "enable-waterfill,kt-*=,enable-paged-experts,paged-experts-num-resident=,"
                   "enable-elastic-ep,elastic-ep-*=,enable-elastic-expert-backup,"
                   "experts-shared-outer-loras,enable-fault-tolerance,"
                   "fault-tolerance-config=",
                   NO_EXPERTS),

    /* --- no effect: memory and cache -------------------------------------------------------*/
    COMPAT_FINE("cpu-offload-gb=", "0", RESIDENT),
    COMPAT_IGNORED("cpu-offload-params=*,offload-*=,offload-params=*,ple-offload-backend=,"
                   "ple-offload-dir=,ple-offload-embedding,enable-weights-cpu-backup",
                   RESIDENT),
    COMPAT_IGNORED("enable-sleep-mode,sleep-mode-backend=,sleep-mode-offload-cudagraph,"
                   "sleep-preserve-parameter-names=*,enable-memory-saver,"
                   "enable-cumem-allocator,sleep-on-idle,weight-cache-*=",
                   NO_SLEEP),
    COMPAT_IGNORED("calculate-kv-scales",
                   "each token has scales of its own, made when it is written: see "
                   "--kv-cache-dtype"),
    COMPAT_IGNORED("max-total-tokens=,swa-full-tokens-ratio=,swa-prefix-tails=,"
                   "swa-bounded-replay,disable-hybrid-swa-memory,hybrid-kvcache-ratio=?,"
                   "disable-hybrid-kv-cache-manager,c128-page-size=,"
                   "prefix-cache-retention-interval=,prefix-match-unit=,radix-*=,"
                   "enable-session-radix-cache,enable-unified-memory,"
                   "enable-page-major-kv-layout,kv-sharing-fast-prefill,"
                   "use-v2-block-manager,enable-kv-cache-sharding,enable-linker-mla-dedup,"
                   "enable-decoder-swa-bounded-replay,enable-encoder-swa-bounded-replay,"
                   "watermark-config=,enable-watermark,prefill-buffer-ceiling=,kv-canary=,"
                   "kv-canary-sweep-interval=,enable-streaming-session,strip-thinking-cache",
                   OWN_POOL),
    COMPAT_IGNORED("enable-hierarchical-cache,enable-hicache,hicache-*=,enable-lmcache,"
                   "lmcache-config-file=,enable-flexkv,flexkv-config-file=,"
                   "enable-unified-cache-external-linker,unified-cache-external-linker-backend=,"
                   "unified-cache-external-linker-config=,kv-offloading-backend=",
                   OWN_TIERS),
    COMPAT_IGNORED("kv-transfer-config=,ec-transfer-config=,ec-manager-config=,disaggregation-*=,"
                   "disaggregation-decode-enable-offload-kvcache,"
                   "disaggregation-decode-enable-fake-auto,"
                   "disaggregation-decode-enable-radix-cache,disaggregation-enable-kv-checksum,"
                   "num-reserved-decode-tokens=,mooncake-ib-device=,pdlb-url=,enable-pdmux,"
                   "pdmux-config-path=,sm-group-num=,enable-pd-role-switch,"
                   "optimistic-prefill-attempts=,encoder-bootstrap-port=,encoder-register-urls=*,"
                   "encoder-transfer-backend=,encoder-urls=*,enable-adaptive-dispatch-to-encoder",
                   NO_PD),
    COMPAT_IGNORED("mamba-*=,max-mamba-cache-size=,enable-mamba-cache-stochastic-rounding,"
                   "enable-mamba-shared-prefix-checkpoint,enable-int8-mamba-checkpoint,"
                   "int8-mamba-ckpt-size=,enable-linear-replayssm,linear-replayssm-cache-len=,"
                   "use-replayssm,replayssm-buffer-len=",
                   NO_STATE),

    /* --- no effect: order and batches ------------------------------------------------------*/
    COMPAT_STANDS_FOR("enable-priority-scheduling", "schedule-policy", "priority"),
    COMPAT_IGNORED("schedule-conservativeness=,schedule-low-priority-values-first,"
                   "abort-on-priority-when-disabled,default-priority-value=,"
                   "disable-priority-preemption,priority-scheduling-preemption-threshold=,"
                   "max-num-partial-prefills=,max-long-partial-prefills=,"
                   "long-prefill-token-threshold-adaptive,max-num-scheduled-tokens=,"
                   "max-num-active-seqs=,num-scheduler-steps=,multi-step-stream-outputs,"
                   "scheduler-delay-factor=,scheduler-recv-interval=,num-continuous-decode-steps=,"
                   "prefill-decode-interval=,prefill-decode-interval-min-bs=,"
                   "prefill-schedule-interval=,prefill-max-requests=,max-prefill-tokens=,"
                   "prefill-delayer-forward-passes-buckets=*,prefill-delayer-*=,"
                   "prefill-delayer-wait-seconds-buckets=*,enable-prefill-delayer,"
                   "enable-mixed-chunk,min-free-slots-delay=,retraction-policy=,context-bucket=,"
                   "disable-async-output-proc,disable-overlap-cg-plan,max-num-queued-tokens=,"
                   "batch-notify-size=",
                   OWN_SCHED),
    COMPAT_PASSED_ON("max-num-queued-reqs=,max-queued-requests=", "max-waiting"),
    COMPAT_FINE("stream-interval=", "1", "every token is sent at once"),
    COMPAT_IGNORED("stream-output,incremental-streaming-output", "every token is sent at once"),

    /* --- no effect: text -------------------------------------------------------------------*/
    COMPAT_IGNORED("enable-auto-tool-choice,tool-parser-plugin=,tool-call-parser-plugin=,"
                   "tool-strict-level=,exclude-tools-when-tool-choice-none,"
                   "reasoning-parser-plugin=,enable-reasoning,reasoning-config=,"
                   "reasoning-effort-map=,enable-strict-thinking,"
                   "anthropic-disabled-thinking-effort=,cohere-is-reasoning-model,cohere-format=",
                   OWN_FORMATS),
    COMPAT_IGNORED("guided-decoding-backend=,grammar-backend=,structured-outputs-config=,"
                   "logits-processor-pattern=,disable-outlines-disk-cache,disable-jump-forward,"
                   "constrained-json-disable-any-whitespace,constrained-json-max-whitespace-cnt=,"
                   "constrained-json-whitespace-pattern=,enable-custom-logit-processor",
                   OWN_GRAMMAR),
    COMPAT_FINE("chat-template-content-format=", "auto",
                "parts are joined to one text unless the template reads parts"),
    COMPAT_IGNORED("trust-request-chat-template", "a chat template in a request is refused"),
    COMPAT_IGNORED("hf-chat-template-name=",
                   "requests with tools take the template called tool_use"),
    COMPAT_IGNORED("completion-template=", "prompts of /v1/completions have no template"),
    COMPAT_IGNORED("tokenizer-revision=,code-revision=",
                   "--revision applies to all files of the model"),
    COMPAT_IGNORED("tokenizer-backend=,tokenizer-pool-*=,renderer-num-workers=,"
                   "enable-tokenizer-batch-encode,disable-tokenizer-batch-decode,"
                   "enable-dynamic-batch-tokenizer,dynamic-batch-tokenizer-batch-size=,"
                   "dynamic-batch-tokenizer-batch-timeout=",
                   "see --tokenizer-threads"),
    COMPAT_IGNORED("limit-mm-per-prompt=,limit-mm-data-per-request=,mm-*=,mm-enable-dp-encoder,"
                   "mm-device-do-normalize,enable-mm-global-cache,enable-mm-embeds,"
                   "enable-prefix-mm-cache,enable-broadcast-mm-inputs-process,media-io-kwargs=,"
                   "media-url-max-file-size-mb=,allowed-local-media-path=,allowed-media-domains=*,"
                   "interleave-mm-strings,skip-mm-profiling,video-pruning-rate=,"
                   "video-pruning-method=,image-processor-backend=,disable-fast-image-processor,"
                   "keep-mm-feature-on-device,enable-multimodal,"
                   "enable-multimodal-encoder-data-parallel,disable-chunked-mm-input,"
                   "disable-mm-preprocessor-cache,language-model-only,language-only,"
                   "trust-request-mm-kwargs,trust-mm-content-hashes,enable-prompt-embeds,"
                   "enable-flash-late-interaction,enable-precise-embedding-interpolation,"
                   "enable-tower-connector-lora,fastapi-max-image-mb=",
                   TEXT_ONLY),
    COMPAT_IGNORED(
        "max-loras=,max-lora-rank=,max-cpu-loras=,max-loras-per-batch=,max-loaded-loras=,"
        "max-lora-chunk-size=,max-lora-cls-labels=,max-prompt-adapter-token=,"
        "max-prompt-adapters=,fully-sharded-loras,lora-backend=,lora-dtype=,"
        "lora-drain-wait-threshold=,lora-eviction-policy=,lora-extra-vocab-size=,"
        "lora-strict-loading,lora-target-modules=*,lora-use-virtual-experts,"
        "long-lora-scaling-factors=*,specialize-active-lora,enable-lora-bias,"
        "enable-lora-overlap-loading,enable-mixed-moe-lora-format,enable-moe-shared-loras",
        "there are no adapters"),
    COMPAT_IGNORED(
        "return-hidden-states-mode=,enable-return-hidden-states,return-hidden-states,"
        "enable-return-aux-hidden-states,return-aux-hidden-state-layer-ids=*,"
        "enable-return-indexer-topk,enable-return-routed-experts,return-sampling-mask,"
        "sampling-mask-max-tokens=,return-input-ids,return-output-ids,aux-output-config=,"
        "enable-trace-replay",
        "see return_token_ids and logprobs of a request"),
    COMPAT_IGNORED("enable-prompt-tokens-details,enable-cache-report",
                   "usage.prompt_tokens_details.cached_tokens is always sent"),
    COMPAT_IGNORED("enable-force-include-usage,stream-response-default-include-usage",
                   "see stream_options.include_usage of a request"),
    COMPAT_IGNORED("enable-per-request-metrics,enable-request-time-stats-logging",
                   "the log line of a request has its times"),
    COMPAT_IGNORED("enable-response-store,file-storage-path=,file-storage-pth=",
                   "answers are not stored"),
    COMPAT_IGNORED("fingerprint-mode=,fingerprint-value=,weight-version=", "see GET /server_info"),

    /* --- no effect: loading ----------------------------------------------------------------*/
    {.flags = "load-format=",
     .fine = "auto,safetensors,hf",
     .refuses = "bitsandbytes,gguf,dummy,remote*,private,layered,sharded_state,ds_quantized",
     .remark =
         "safetensors are read from the model's folder; other weights would change the answers"},
    COMPAT_IGNORED("model-loader-extra-config=,ignore-patterns=*,use-tqdm-on-load,"
                   "pt-load-map-location=,safetensors-*=,weight-loader-disable-mmap,"
                   "weight-loader-drop-cache-after-load,weight-loader-prefetch-checkpoints,"
                   "weight-loader-prefetch-num-threads=,delete-ckpt-after-loading,"
                   "startup-weight-load-mode=,modelopt-checkpoint-save-path=,"
                   "modelopt-export-path=,impl=,allow-deprecated-quantization",
                   OWN_LOAD),
    COMPAT_IGNORED("hf-token=?", "set HF_TOKEN, or HF_TOKEN_PATH"),

    /* --- no effect: the server -------------------------------------------------------------*/
    COMPAT_IGNORED("allowed-origins=,allowed-methods=,allowed-headers=,allow-credentials", NO_CORS),
    COMPAT_IGNORED("middleware=,disable-fastapi-docs,enable-offline-docs,"
                   "h11-max-header-count=,h11-max-incomplete-event-size=,"
                   "disable-frontend-multiprocessing,enable-http2,"
                   "http2-initial-connection-window-size=,http2-max-concurrent-streams=,"
                   "grpc-*=,smg-http-sidecar-port=,sidecar=,sidecar-args=,"
                   "gated-launch-port=,enable-scale-out,enable-tokenizer-info-endpoint,"
                   "enable-server-load-tracking,allow-auto-truncate,enable-shm-tensor-arena,"
                   "gc-threshold=*,gc-warning-threshold-secs=,fail-on-environ-validation",
                   OWN_SERVER),
    COMPAT_IGNORED("admin-api-key=", "--api-key protects the operator's paths too"),
    COMPAT_IGNORED("sse-keep-alive-interval=", "a stream is silent between tokens"),
    COMPAT_IGNORED("enable-ssl-refresh", "certificates are reloaded on SIGHUP"),
    COMPAT_FINE("ssl-cert-reqs=", "0,2", "with --ssl-ca-certs every client needs a certificate"),
    COMPAT_IGNORED("ssl-ciphers=", "TLS 1.2 and 1.3 use the system's ciphers"),
    COMPAT_IGNORED("enable-request-id-headers", "x-request-id is always sent back"),
    COMPAT_IGNORED("watchdog-timeout=,soft-watchdog-timeout=,watchdog-config=",
                   "GET /health reports a device that failed"),

    /* --- no effect: what is written --------------------------------------------------------*/
    COMPAT_IGNORED("disable-log-requests,enable-log-requests,log-requests,log-requests-format=,"
                   "log-requests-level=,log-requests-target=*,max-log-len=,enable-log-outputs,"
                   "enable-log-deltas,log-level-http=,disable-uvicorn-access-log,"
                   "disable-access-log-for-endpoints=,uvicorn-access-log-exclude-prefixes=*,"
                   "log-config-file=,logging-config=,log-error-stack,aggregate-engine-logging,"
                   "show-time-cost,enable-logging-iteration-details",
                   OWN_LOG),
    COMPAT_IGNORED("disable-log-stats,decode-log-interval=", "see --log-interval"),
    COMPAT_IGNORED("enable-metrics,enable-metrics-for-all-schedulers,enable-mfu-metrics,"
                   "export-metrics-to-file,export-metrics-to-file-dir=,extra-metric-labels=,"
                   "show-hidden-metrics-for-version=,custom-histogram-buckets=,"
                   "bucket-e2e-request-latency=*,bucket-inter-token-latency=*,"
                   "bucket-time-to-first-token=*,collect-tokens-histogram,"
                   "generation-tokens-buckets=*,prompt-tokens-buckets=*,"
                   "tokenizer-metrics-allowed-custom-labels=*,"
                   "tokenizer-metrics-custom-labels-header=,"
                   "tokenizer-metrics-allowed-customer-labels=*,enable-forward-pass-metrics,"
                   "forward-pass-metrics-ipc-name=,forward-pass-metrics-worker-id=",
                   OWN_METRICS),
    COMPAT_IGNORED("otlp-traces-endpoint=,otlp-service-name=,collect-detailed-traces=*,"
                   "enable-trace,trace-modules=",
                   NO_TRACE),
    COMPAT_IGNORED("crash-dump-folder=,debug-tensor-dump-input-file=,debug-tensor-dump-layers=*,"
                   "debug-tensor-dump-output-folder=,debug-tensor-dump-prefill-only,"
                   "profiler-config=,enable-layerwise-nvtx-marker,enable-layerwise-nvtx-tracing,"
                   "enable-nan-detection,msprobe-dump-config=",
                   NO_PROBES),
    {.flags = NULL},
};
