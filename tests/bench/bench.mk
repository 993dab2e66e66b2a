# tests/bench/bench.mk - what is measured: beside other programs, under faults and overload, on this machine.

.PHONY: load wrk bench-router bench-peers bench-scenes bench-apart bench-fetch bench-overload bench-hostile bench-engine bench-churn bench-cpu bench-quant-gate faults rolling upgrades soak
$(B)/incipit-bench: $(call objs,$(wildcard tests/bench/load/*.c)) $(B)/libcommon.a
$(B)/tests/bench/%: $(B)/tests/bench/%.o $(LIBS_all)
	$(call link,,)
$(B)/tests/bench/bench_peer: LDLIBS += -lcmocka
load: $(B)/incipit-bench ## the load generator: build/release/incipit-bench --help
wrk: all ## wrk with the Lua scripts of tests/bench/wrk; URL=http://... against a running fleet
	@tests/bench/wrk/run $(B) $(URL)
bench-router: all load $(B)/tests/bench/router/upstream $(B)/tests/bench/router/forwarder ## a proxied request beside nginx, haproxy and a bare forwarder; ARGS=quick
	@INCIPIT_BUILD=$(B) python3 tests/bench/router/bench_router.py $(ARGS)
bench-peers: all load ## beside smg, sglang-router, haproxy and nginx, before simulated workers; ARGS=quick
	@INCIPIT_BUILD=$(B) python3 tests/bench/peers/bench_peers.py $(ARGS)
bench-scenes: all $(B)/tests/replay/replay ## burst, flood and agents over HTTP, beside --hold-ms 0 and beside peers; TRACE=file, ARGS=quick
	@INCIPIT_BUILD=$(B) tests/python tests/bench/scenes/bench_scenes.py $(if $(TRACE),trace $(TRACE)) $(ARGS)
bench-apart: all ## prompts of 32k tokens among streams, and short prompts: workers of role prefill and decode beside those of none; ARGS=quick
	@INCIPIT_BUILD=$(B) python3 tests/bench/apart/bench_apart.py $(ARGS)
bench-fetch: all ## workers that fetch KV from one another beside workers that do not; one that joins; one restarted with a folder; ARGS=--help
	@INCIPIT_BUILD=$(B) tests/python tests/bench/fetch/bench_fetch.py $(ARGS)
bench-overload: all load ## goodput at twice the load that the fleet can take; ARGS=SECONDS of each run
	@INCIPIT_BUILD=$(B) python3 tests/bench/overload/overload.py $(ARGS)
bench-hostile: all load ## clients that take memory and connections, in a control group of 256 MiB: what the others lose
	@INCIPIT_BUILD=$(B) python3 tests/bench/hostile.py $(ARGS)
bench-churn: all $(HELPERS) ## a minute in which 50 of 1,000 workers come and 50 go each second, under load: the data path's longest stall
	@CHURN_SECONDS=60 CHURN_WORKERS=1000 CHURN_RPS=300 tests/run_integration $(B) "$(SAN)" -s -k come_and_go_all_the_time $(ARGS)
bench-engine: all $(B)/tests/bench/bench_engine $(B)/tests/bench/bench_step $(B)/tests/bench/bench_constrain $(B)/tests/bench/bench_order ## around the model: a step, the order of prompts, the KV manager, the host tier, 1,000 streams
	@$(B)/tests/bench/bench_engine; $(B)/tests/bench/bench_step; $(B)/tests/bench/bench_constrain; $(B)/tests/bench/bench_order; INCIPIT_BUILD=$(B) python3 tests/bench/streams.py
$(B)/tests/bench/bench_restore: LDLIBS += -lcmocka
bench-%: $(B)/tests/bench/bench_% ## a benchmark of tests/bench: ratios, never gates
	@$< $(ARGS)

# Faults.
faults: all load ## faults under open-loop load, haproxy beside; ARGS="kill stop" some, ARGS=list names them
	@INCIPIT_BUILD=$(B) python3 tests/bench/faults/faults.py $(ARGS)
rolling: all load ## 4 workers and 2 routers restarted one after the other at 500 requests/s: 0 failed, 0 resets
	@INCIPIT_BUILD=$(B) python3 tests/bench/rolling.py rolling $(ARGS)
upgrades: all load ## ten times another router in its place at 500 requests/s: 0 failed, and caches are found as before
	@INCIPIT_BUILD=$(B) python3 tests/bench/rolling.py upgrades $(ARGS)
soak: all ## a minute of 64 streaming clients on simulated workers, one killed in the middle
	@SOAK_SECONDS=60 SOAK_CLIENTS=64 tests/run_integration $(B) "$(SAN)" -s -k killed_under_load

# llama.cpp beside us where LLAMA points to its sources: built here, the CPU alone, for this machine.
$(B)/libpeer-none.a: $(B)/tests/bench/peer/none.o
$(B)/libpeer-llama.a: $(B)/tests/bench/peer/llama.o
$(B)/libpeer-none.a $(B)/libpeer-llama.a: $(B)/tests/bench/peer/gguf.o
LLAMA_BUILD := $(B)/llama.cpp
GGML        := $(addprefix $(LLAMA_BUILD)/ggml/src/,libggml.a libggml-cpu.a libggml-base.a)
$(LLAMA_BUILD)/src/libllama.a:
	@echo "  CMAKE $(LLAMA)"; mkdir -p $(B); { cmake -S $(LLAMA) -B $(LLAMA_BUILD) -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF \
	  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
	  -DBUILD_SHARED_LIBS=OFF && cmake --build $(LLAMA_BUILD) -j $(JOBS) --target llama; } > $(LLAMA_BUILD).log 2>&1 || \
	  { tail -n 20 $(LLAMA_BUILD).log; exit 1; }
$(B)/tests/bench/peer/llama.o: CFLAGS_ALL += -isystem $(LLAMA)/include -isystem $(LLAMA)/ggml/include
BENCH_CPU := $(addprefix $(B)/tests/bench/bench_,cpu model quant)
$(BENCH_CPU): $(B)/libpeer-none.a
$(addsuffix -llama,$(BENCH_CPU)): %-llama: %.o $(LLAMA_BUILD)/src/libllama.a $(B)/libpeer-llama.a $(LIBS_all)
	$(call link,,$(GGML) -lstdc++)
bench-cpu: $(addsuffix $(if $(LLAMA),-llama),$(BENCH_CPU)) ## the cpu kernels against this machine's roofs, whole models; LLAMA=DIR beside llama.cpp
	@for bench in $^; do $$bench $(ARGS) || exit 1; done
bench-quant-gate: $(B)/tests/bench/bench_quant ## quantised products at M=1 against 0.9 of their bars over bf16, on a quiet machine; not in `make test`
	@$< 1 auto 15 gate && $< 1 avx2 15 gate
