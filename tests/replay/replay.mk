# tests/replay/replay.mk - routing quality: simulators, and traces through the real programs.
#
# An independent simulator with its own policies, and ours beside them: built here from sources
# that stay as they are.
$(B)/libreplay.a: $(call objs,$(addprefix tests/replay/,engine_replay.c conversations.c fleet_model.c))
$(B)/tests/replay/%: $(B)/tests/replay/%.o $(B)/libreplay.a $(LIBS_all)
	$(call link,,)
.PHONY: replay-engine
replay-engine: ## the router's books of a worker against the engine's own: TRACE=file
ifeq ($(TRACE),)
	@echo "SKIPPED replay-engine: give TRACE=FILE, a trace of requests (tests/replay/replay_engine.c)"
else
	@$(MAKE) --no-print-directory $(B)/tests/replay/replay_engine
	@nice $(B)/tests/replay/replay_engine $(TRACE)
endif

.PHONY: replay-http
replay-http: all ## the same through the real programs, with a simulated worker: TRACE=file
ifeq ($(TRACE),)
	@echo "SKIPPED replay-http: give TRACE=FILE, a trace of requests (tests/replay/replay_http.py)"
else
	@INCIPIT_BUILD=$(B) tests/python tests/replay/replay_http.py $(TRACE) $(ARGS)
endif

.PHONY: replay-http-shared
replay-http-shared: all ## two routers before eight simulated workers, through HTTP: TRACE=file, 5 min
ifeq ($(TRACE),)
	@echo "SKIPPED replay-http-shared: give TRACE=FILE, a trace of requests (tests/replay/replay_http_shared.py)"
else
	@INCIPIT_BUILD=$(B) tests/python tests/replay/replay_http_shared.py $(TRACE) $(ARGS)
endif

REPLAY := $(B)/replay-cross
PROTO  := router $(addprefix router_,new free reset pick sent first end)
.PHONY: replay-cross replay-shared replay-peers
replay-cross: ## routing quality in a simulator: SIMROUTE=folder TRACE=file [QUICK=1]
ifeq ($(and $(SIMROUTE),$(TRACE)),)
	@echo "SKIPPED replay-cross: give SIMROUTE=DIR, the simulator's sources, and TRACE=FILE, its trace"
else
	@$(MAKE) --no-print-directory $(REPLAY)/simroute
	@tests/replay/cross.py $(REPLAY)/simroute $(TRACE) $(if $(QUICK),--quick)
endif

replay-shared: ## several routers, and one restarted, in a simulator: SIMROUTE=, TRACE= [QUICK=1]
ifeq ($(and $(SIMROUTE),$(TRACE)),)
	@echo "SKIPPED replay-shared: give SIMROUTE=DIR, the simulator's sources, and TRACE=FILE, its trace"
else
	@$(MAKE) --no-print-directory $(REPLAY)/simroute
	@tests/replay/shared.py $(REPLAY)/simroute $(TRACE) $(if $(QUICK),--quick)
endif

replay-peers: ## our versions of other routers' policies beside a simulator's: SIMROUTE=, TRACE=
ifeq ($(and $(SIMROUTE),$(TRACE)),)
	@echo "SKIPPED replay-peers: give SIMROUTE=DIR, the simulator's sources, and TRACE=FILE, its trace"
else
	@$(MAKE) --no-print-directory $(REPLAY)/simroute
	@tests/replay/peers.py $(REPLAY)/simroute $(TRACE) $(if $(QUICK),--quick)
endif

$(REPLAY)/simroute: $(addprefix $(SIMROUTE)/,main.c gen.c policy.c sim.h lset.h) \
                    tests/replay/simroute_adapter.c tests/replay/event_ring.c $(B)/librouter.a $(B)/libcommon.a
	@mkdir -p $(@D); cat $(filter $(SIMROUTE)/%,$^) | sha256sum > $(@D)/simulator.stamp
	@echo "  LD   $@"; flags="-O2 -ffp-contract=off -std=gnu11 -I$(SIMROUTE) -I."; cd $(CURDIR) && \
	  $(CC) $$flags $(foreach f,$(PROTO),-D$(f)=$(f:router%=proto%)) -c $(SIMROUTE)/policy.c -o $(@D)/policy.o && \
	  $(CC) $$flags $(filter-out %/policy.c,$(filter %.c,$^)) $(@D)/policy.o $(filter %.a,$^) -o $@ $(LDLIBS)

.PHONY: replay-foreign
replay-foreign: all $(B)/incipit-bench ## cache hits with workers that answer as vLLM, as SGLang, or say nothing
	@FOREIGN_REQUESTS=1500 FOREIGN_SEEDS=3 FOREIGN_KINDS=vllm,sglang,mute \
	  tests/run_integration $(B) "$(SAN)" -s -k says_nothing_finds $(ARGS)
