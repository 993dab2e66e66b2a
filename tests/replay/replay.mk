# tests/replay/replay.mk - routing quality.
#
# A modelled fleet in virtual time, and traces through the real programs. TRACE=FILE replays recorded
# requests (tests/replay/README.md names some); without it they are generated.
$(B)/libreplay.a: $(call objs,$(wildcard tests/replay/workload/*.c) $(addprefix tests/replay/,engine_replay.c worker_model.c router_model.c session_model.c \
                    event_ring.c fetch_model.c fleet_bound.c fleet_model.c fleet_report.c rollout.c))
$(B)/tests/replay/%: $(B)/tests/replay/%.o $(B)/libreplay.a $(LIBS_all)
	$(call link,,)

.PHONY: replay replay-bars replay-shared replay-order replay-engine replay-eviction replay-http replay-http-shared replay-foreign
REPLAY := $(B)/tests/replay/replay
REPLAY_ARGS = $(if $(TRACE),trace $(TRACE)) $(filter-out all,$(ARGS)) $(if $(QUICK),--quick)
replay: $(REPLAY) ## every routing policy on a modelled fleet, one table: TRACE=file, ARGS="workers 8 load 0.95", QUICK=1; ARGS=all: replay-order
	@JOBS=$(JOBS) tests/replay/$(if $(filter all,$(ARGS)),orders.py,replay.py) $< $(REPLAY_ARGS)
replay-bars: $(REPLAY) ## the default routing policy against its bars on a modelled fleet: TRACE=file, QUICK=1
	@JOBS=$(JOBS) tests/replay/bars.py $< $(if $(TRACE),trace $(TRACE)) $(if $(QUICK),--quick)
replay-shared: $(REPLAY) ## several routers, and a restarted one, before a modelled fleet: TRACE=file, QUICK=1
	@JOBS=$(JOBS) tests/replay/shared.py $< $(if $(TRACE),trace $(TRACE)) $(if $(QUICK),--quick)
replay-order: $(REPLAY) ## order, late binding and unequal fleets against their bars on a modelled fleet: TRACE=file, QUICK=1
	@JOBS=$(JOBS) tests/replay/orders.py $< $(if $(TRACE),trace $(TRACE)) $(if $(QUICK),--quick)
replay-engine: $(B)/tests/replay/replay_engine ## the router's index of a worker against the worker's own KV manager: TRACE=file
	@nice $< $(TRACE)
replay-eviction: $(B)/tests/replay/replay_eviction ## hits of one worker's cache by the order of eviction and its size: TRACE=file
	@nice $< $(TRACE)

replay-http: all ## the router's index of a simulated worker against that worker, over HTTP: TRACE=file
ifeq ($(TRACE),)
	@echo "SKIPPED replay-http: give TRACE=FILE, a trace of requests (tests/replay/README.md)"
else
	@INCIPIT_BUILD=$(B) tests/python tests/replay/replay_http.py $(TRACE) $(ARGS)
endif
replay-http-shared: all ## two routers before eight simulated workers, over HTTP: TRACE=file, 5 min
ifeq ($(TRACE),)
	@echo "SKIPPED replay-http-shared: give TRACE=FILE, a trace of requests (tests/replay/README.md)"
else
	@INCIPIT_BUILD=$(B) tests/python tests/replay/replay_http_shared.py $(TRACE) $(ARGS)
endif
replay-foreign: all $(B)/incipit-bench ## cache hits with workers that answer as vLLM, as SGLang, or report nothing
	@FOREIGN_REQUESTS=1500 FOREIGN_SEEDS=3 FOREIGN_KINDS=vllm,sglang,mute \
	  tests/run_integration $(B) "$(SAN)" -s -k without_reports_finds $(ARGS)
