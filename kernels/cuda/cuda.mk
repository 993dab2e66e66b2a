# kernels/cuda/cuda.mk - the CUDA backend: for a GPU, and its kernels as C++ for tests on this processor.

CUDA_ROOMS  := $(addprefix kernels/cuda/,device attend sampling ops products)
CUDA_DEVICE := $(wildcard kernels/cuda/device/*.c)
CUDA_HOST   := $(call srcs,kernels/cuda $(filter-out %/device,$(CUDA_ROOMS)))
CUDA_CODE   := $(wildcard $(addsuffix /*.cu,$(CUDA_ROOMS)))

# --- incipit_cuda.so ---------------------------------------------------------------------------
# Kernels by nvcc, the rest as C, linked as C against the static runtime. Warnings are errors, a
# register that spills too. Nothing else needs nvcc.
NVCC       ?= $(firstword $(wildcard $(shell command -v nvcc 2>/dev/null) /usr/local/cuda/bin/nvcc))
CUDA_HOME  := $(patsubst %/bin/,%,$(dir $(shell command -v $(NVCC) 2>/dev/null)))
CUDA_ARCHS ?= 80 86 89 90 100 120
# PTX for cards that are none of these: 80's runs, compiled by the driver, on every later one, and 90's
# on those that have what kernels use from 90 on.
CUDA_PTX ?= $(sort 80 90 $(lastword $(CUDA_ARCHS)))
NVCC_WERROR ?= -Werror all-warnings
NO_NVCC    := $(if $(NVCC),$(shell $(NVCC) --version 2>/dev/null | awk -F'[ ,.]+' '/release/ { for (i = 1; i < NF; i++) if ($$i == "release") v = $$(i + 1) * 100 + $$(i + 2) } \
                END { if (v < 1208) print "$(NVCC) " (v ? "is older than 12.8" : "does not run") ": install CUDA 12.8 or newer, or set NVCC" }'),there is \
                no nvcc: install CUDA 12.8 or newer, and set NVCC when it is neither in PATH nor in /usr/local/cuda)
NVCC_FLAGS  = -std=c++17 -O3 -I. --compress-mode=size $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
              $(foreach a,$(CUDA_PTX),-gencode arch=compute_$(a),code=compute_$(a)) \
              -Xptxas -v,--warn-on-spills,--warn-on-local-memory-usage $(NVCC_WERROR) \
              -Xcompiler -Wall,-fPIC,-fno-exceptions,-fno-threadsafe-statics
CUDA_CFLAGS = -fPIC -isystem $(CUDA_HOME)/include
CUDA_OBJECTS := $(CUDA_CODE:kernels/cuda/%.cu=$(B)/cuda/%.o) \
                $(patsubst %.c,$(B)/cuda/%.o,$(CUDA_HOST) $(CUDA_DEVICE) $(wildcard kernels/*.c kernels/host/*.c kernels/tp/*.c) \
                $(wildcard common/base/mem.c common/base/status.c common/base/clock.c))
CUDART = $(firstword $(wildcard $(CUDA_HOME)/lib64/libcudart_static.a \
         $(CUDA_HOME)/lib/libcudart_static.a $(CUDA_HOME)/targets/*/lib/libcudart_static.a) -lcudart_static)

$(B)/cuda/%.o: kernels/cuda/%.cu $(B)/cuda/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  NVCC $<";)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@ > $@.log 2>&1 || { grep -v '^ptxas info' $@.log >&2; exit 1; }
$(B)/cuda/%.ptx: kernels/cuda/%.cu $(B)/cuda/flags
	@mkdir -p $(@D); echo "  PTX  $<"; $(NVCC) -std=c++17 -O3 -I. -arch=compute_90 -MMD -MP -MF $(@:.ptx=.ptx.d) -ptx $< -o $@
$(B)/cuda/%.o: %.c $(B)/flags $(B)/cuda/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC   $<";)$(CC) $(CFLAGS_ALL) $(CUDA_CFLAGS) -MMD -MP -c $< -o $@
$(B)/cuda/flags: FORCE
	$(if $(strip $(NO_NVCC)),@echo "make: $(strip $(NO_NVCC))" >&2; exit 1)
	@mkdir -p $(@D); echo '$(NVCC) $(NVCC_FLAGS) $(CUDA_CFLAGS)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_FLAGS) $(CUDA_CFLAGS)' > $@
$(B)/incipit_cuda.so: $(CUDA_OBJECTS) kernels/cuda/exports.map
	@echo "  LD   $@"; $(CC) -shared -o $@ $(filter %.o,$^) -Wl,--no-undefined,--as-needed,--gc-sections,--exclude-libs,ALL \
	  -Wl,--version-script=kernels/cuda/exports.map $(CUDART) -ldl -lpthread -lrt -lm

.PHONY: cuda cuda-report cuda-check
ifneq ($(NO_NVCC),)
cuda cuda-report:
	@echo "make: $(strip $(NO_NVCC))" >&2; exit 1
cuda-check:
	@echo "SKIPPED the build of incipit_cuda.so: $(strip $(NO_NVCC))"
else
cuda: $(B)/incipit_cuda.so ## the CUDA backend, build/release/incipit_cuda.so; NVCC=, CUDA_ARCHS="90" for one target
cuda-report: $(B)/incipit_cuda.so ## registers of each kernel beside kernels/cuda/registers.txt; UPDATE=1 writes that
	@tests/gpu/report kernels/cuda/registers.txt $(CUDA_CODE:kernels/cuda/%.cu=$(B)/cuda/%.o.log)
cuda-check: $(B)/incipit_cuda.so $(B)/cuda/sass.ok $(CUDA_CODE:kernels/cuda/%.cu=$(B)/cuda/%.ptx) ## what can be checked of it without a GPU: symbols, size, waits, machine code beside kernels/cuda/sass.txt; UPDATE=1 writes that
	@tests/gpu/check_object $<
	@tests/gpu/check_waits $(filter %.ptx,$^)
# 15 s, not repeated until object or table change; a check that was skipped is.
$(B)/cuda/sass.ok: $(B)/incipit_cuda.so kernels/cuda/sass.txt tests/gpu/sass $(if $(UPDATE),FORCE)
	@tests/gpu/sass kernels/cuda/sass.txt $< > $@.log; status=$$?; cat $@.log; if grep -q ^ok $@.log; then touch $@; fi; exit $$status
endif

# --- on this processor ---------------------------------------------------------------------------
# The kernels as C++, a thread of a block a fiber: tests/shim. What is compiled are copies with bugs in
# them that tests switch on. They link as C does: nothing of libstdc++. Shared memory that is misaligned
# is found by the sanitizer where there is one, else by tests/shim/alignment.c.
PLANTED := $(B)/planted
SHIM    := $(call objs,$(CUDA_HOST) $(call srcs,tests/shim)) $(CUDA_CODE:%.cu=$(PLANTED)/%.o)
CXX := $(CROSS)g++
CXXFLAGS_ALL = $(filter-out -std=c11 -Wstrict-prototypes -Wmissing-prototypes -Wshadow,$(CFLAGS_ALL)) -std=c++17 -O2 -Wno-unknown-pragmas \
               -fno-exceptions -fno-rtti -fno-threadsafe-statics -fsanitize=alignment -fno-sanitize-recover=all -include tests/shim/shim.h
COMPILE_CU = $(if $(V),,@echo "  CXX  $(patsubst $(PLANTED)/%,%,$<)";)$(CXX) -I$(PLANTED) $(CXXFLAGS_ALL) -MMD -MP -x c++ -c $< -o $@
$(B)/tests/shim/%.o: CFLAGS_ALL += $(if $(findstring undefined,$(SAN)),-DHAS_UBSAN)
$(PLANTED)/done: tests/shim/plant tests/shim/planted.txt $(CUDA_CODE) $(wildcard $(addsuffix /*.cuh,$(CUDA_ROOMS)))
	@mkdir -p $(@D); tests/shim/plant $(PLANTED) $(filter kernels/%,$^) && touch $@
$(CUDA_CODE:%=$(PLANTED)/%): $(PLANTED)/done ;
$(PLANTED)/%.o: $(PLANTED)/%.cu $(B)/flags
	$(COMPILE_CU)
# What tests allocate is memory that a launch may be handed: tests/shim/rooms.c.
$(call objs,$(wildcard tests/unit/cuda/shim/test_*.c)): CFLAGS_ALL += -include tests/gpu/on_device.h
$(B)/tests/%.o: tests/%.cu $(B)/flags $(PLANTED)/done
	@mkdir -p $(@D)
	$(COMPILE_CU)
$(B)/libshim.a: $(SHIM)
$(B)/libtrials.a: $(call objs,$(wildcard tests/unit/cuda/shim/*.cu))
$(B)/tests/bench/bench_cuda_host: $(B)/libshim.a

LIBS_cuda_shim   = $(B)/libsupport.a $(B)/libtrials.a $(B)/libworker.a $(B)/libshim.a $(B)/libkernels.a $(B)/libcommon.a
LIBS_cuda_device = $(B)/libfakecuda.a $(B)/libkernels.a $(B)/libcommon.a
# The shim's fibers are nothing that ThreadSanitizer can follow.
ifeq ($(SAN),thread)
UNIT := $(filter-out tests/unit/cuda/shim/%,$(UNIT))
SKIPPED_SHIM := echo "SKIPPED tests of the CUDA kernels: ThreadSanitizer cannot follow fibers"
endif
# kernels/cuda/device upon libraries of NVIDIA that the tests replace: the toolkit's headers are needed.
FAKE_CUDA := $(call objs,$(CUDA_DEVICE) $(addprefix tests/unit/cuda/device/,fake_cuda.c fake_libraries.c))
$(B)/libfakecuda.a: $(FAKE_CUDA)
$(FAKE_CUDA) $(call objs,$(wildcard tests/unit/cuda/device/*.c)): CFLAGS_ALL += -isystem $(CUDA_HOME)/include
$(B)/tests/unit/cuda/device/test_%: LDLIBS += -Wl,--wrap=dlopen,--wrap=dlsym,--wrap=dlerror,--wrap=dlclose
ifeq ($(wildcard $(CUDA_HOME)/include/cublasLt.h),)
UNIT := $(filter-out tests/unit/cuda/device/%,$(UNIT))
SKIPPED_CUDA := echo "SKIPPED tests of kernels/cuda/device: no CUDA toolkit$(CUDA_HOME:%= in %): install it, or set NVCC to its nvcc"
endif

# --- on a GPU ------------------------------------------------------------------------------------
# Programs of tests/gpu: X on the device, X-shim the same with the kernels as fibers, to rehearse; and
# the shim's tests of kernels, whose memory here is the device's. Those for the device share one library
# with all of the backend. They need no library but the C library and the toolkit's: B=build/gpu
# PACKAGES= builds them where nothing else is.
GPU_LINK = @mkdir -p $(@D); echo "  LD   $@"; $(CC) $(CFLAGS_ALL) -fno-lto $(filter %.o,$^) $(filter %.so,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group -o $@
GPU_LIBRARY := $(B)/gpu/lib/libincipit_gpu.so
$(B)/libminimal.a: $(call objs,$(addprefix common/base/,mem.c status.c clock.c isa.c))
$(GPU_LIBRARY): $(CUDA_OBJECTS) $(B)/cuda/tests/gpu/on_device.o
	@mkdir -p $(@D); echo "  LD   $@"; $(CC) -shared -o $@ $^ -Wl,-soname,$(@F),--no-undefined,--as-needed,--exclude-libs,ALL $(CUDART) -ldl -lpthread -lrt -lm
$(B)/gpu/%-shim: $(B)/tests/gpu/%.o $(B)/tests/gpu/random_model.o $(B)/libshim.a $(B)/libkernels.a $(B)/libminimal.a
	$(GPU_LINK) -pthread -lm -ldl
$(B)/gpu/%: $(B)/tests/gpu/%.o $(B)/tests/gpu/random_model.o $(GPU_LIBRARY) $(B)/libkernels.a $(B)/libminimal.a
	$(GPU_LINK) -Wl,-rpath,'$$ORIGIN/lib' -pthread -lm
$(B)/gpu/tests/%: $(B)/gpu/obj/%.o $(call objs,$(addprefix tests/support/,tiny_model.c quant_matrix.c support.c)) \
                  $(GPU_LIBRARY) $(B)/libkernels.a $(B)/libminimal.a
	$(GPU_LINK) -Wl,-rpath,'$$ORIGIN/../lib' -pthread -lm
$(B)/gpu/obj/%.o: tests/unit/cuda/shim/%.c $(B)/flags
	@mkdir -p $(@D); echo "  CC   $< for the device"; $(CC) $(CFLAGS_ALL) -Itests/gpu/cmocka -include tests/gpu/on_device.h -MMD -MP -c $< -o $@

# What `make gpu-check` and the kit run on a card. Tests that only the shim can run are listed with the reason.
GPU_PROGRAMS := $(addprefix $(B)/gpu/,gpu_steps gpu_kernels gpu_products gpu_soak make_random_model)
GPU_TESTS := $(filter-out $(addprefix %/,$(shell awk '!/^\#/ {print $$1}' tests/gpu/only_shim.txt)), \
             $(patsubst tests/unit/cuda/shim/%.c,$(B)/gpu/tests/%,$(wildcard tests/unit/cuda/shim/test_*.c)))

# Compiled for a card in every build of tests, since that needs no toolkit: a test that cannot be is found here.
ifeq ($(SAN)$(CROSS),)
unit-build check: $(GPU_TESTS:$(B)/gpu/tests/%=$(B)/gpu/obj/%.o)
# It has every door of kernels/cuda/device itself: one that it lacks does not link.
unit-build check: $(B)/tests/bench/bench_cuda_host
endif

.PHONY: gpu-programs gpu-rehearsals gpu-check gpu-soak gpu-kit gpu-kit-check
gpu-programs: $(GPU_LIBRARY) $(GPU_PROGRAMS) $(GPU_TESTS) $(B)/incipit_cuda.so
gpu-rehearsals: $(addsuffix -shim,$(GPU_PROGRAMS))
gpu-check: ## everything that is asked of the CUDA backend on a GPU, < 8 minutes; needs nvcc, gcc, python3; ARGS=--help
	@python3 tests/gpu/check.py --cc "$(CC)" $(ARGS)
gpu-soak: ## nine minutes of random schedules on the GPU against the CPU
	@python3 tests/gpu/check.py --cc "$(CC)" --phases soak --soak 440 --budget 530 --out build/gpu/soak $(ARGS)

# For a machine with a driver and python3 alone: see tests/gpu/kit.py.
KIT_ARCHS ?= 80 90
KIT := build/gpu-kit
ifneq ($(NO_NVCC),)
gpu-kit gpu-kit-check:
	@echo "SKIPPED the kit for GPU machines: $(strip $(NO_NVCC))"
else
gpu-kit: ## build/gpu-kit: the check as a folder that runs on a bare GPU machine; NVCC= of CUDA 12.8 for drivers before 580
	@$(MAKE) --no-print-directory B=build/kit PACKAGES= CUDA_ARCHS="$(KIT_ARCHS)" gpu-programs
	@$(MAKE) --no-print-directory worker-portable
	@python3 tests/gpu/kit.py build/kit $(B)/portable/incipit-worker $(KIT) $(NVCC) "$(KIT_ARCHS)" "$(sort 80 90 $(lastword $(KIT_ARCHS)))"
gpu-kit-check: gpu-kit ## the kit in a bare Debian root, up to the point where the card is missing; needs root and mmdebstrap
	@python3 tests/gpu/kit_check.py $(KIT)
endif
