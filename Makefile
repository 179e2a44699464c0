# The front door. `make run` serves, `make test` proves, `make bench` measures.
# Each target stands alone; what CI runs, anyone can run.

CARGO ?= cargo
PEERS ?= $(if $(EVENKEEL_PEERS),$(EVENKEEL_PEERS),$(HOME)/.cache/evenkeel-peers)

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

# Says in one line what is missing to compile, before a compiler says it in a hundred.
.PHONY: toolchain
toolchain:
	@CARGO='$(CARGO)' tests/toolchain.sh

# --- run ----------------------------------------------------------------------

# ARGS: as for evenkeel itself, e.g. make run ARGS='--port 7777' or ARGS=/etc/redis/redis.conf.
# Without a configuration file the data is kept in evenkeel-data; in memory only: make run ARGS='--appendonly no --save ""'.
# DEMO: without it, no demonstration table and no HTTP: make run DEMO=
# FEATURES=mongodb: with the driver of MongoDB, which takes as long to compile as half of the rest; FEATURES=tools: with
# `evenkeel top` and `stat`; or both, with a comma between them.
RUN = $(CARGO) build --profile quick -p evenkeel --no-default-features $(if $(FEATURES),--features '$(FEATURES)')
DATA ?= --dir evenkeel-data --appendonly yes --appendfsync everysec --save ""
DEMO ?= --demo yes --http-port 8379
.PHONY: run
run: toolchain ## build the server and start it on 127.0.0.1:6379
	@$(RUN)
	@case '$(firstword $(ARGS))' in ''|-*) mkdir -p evenkeel-data; set -- $(DATA) $(ARGS) ;; *) set -- $(ARGS) ;; esac; \
	    exec "$${CARGO_TARGET_DIR:-target}/quick/evenkeel" "$$@" $(DEMO)

.PHONY: whodunit
whodunit: toolchain ## play the story of docs/whodunit.md on a server of its own (up to a minute; Python)
	@$(RUN)
	@python3 examples/whodunit/whodunit.py "$${CARGO_TARGET_DIR:-target}/quick/evenkeel"

.PHONY: moving-in
moving-in: toolchain ## play the move of docs/moving.md: a real Redis under load hands over, and back (half a minute; Python, redis-server)
	@$(RUN)
	@python3 examples/moving-in/moving_in.py "$${CARGO_TARGET_DIR:-target}/quick/evenkeel"

# PORT: another first port. ETCD=1: they meet in a real etcd. CLUSTER_ARGS: as for examples/cluster/cluster.py.
.PHONY: cluster
cluster: toolchain ## build the server and start a cluster of six nodes on 127.0.0.1:7000 to 7005 (Python; data in evenkeel-cluster; PORT, ETCD=1)
	@$(RUN)
	@exec python3 examples/cluster/cluster.py "$${CARGO_TARGET_DIR:-target}/quick/evenkeel" $(if $(PORT),--port $(PORT)) $(if $(ETCD),--etcd) $(CLUSTER_ARGS)

# --- packages -----------------------------------------------------------------

# EVENKEEL_BINARY: pack this binary instead of a release build. DIST: another folder than target/dist.
.PHONY: dist
dist: $(if $(EVENKEEL_BINARY),,toolchain) ## packages in target/dist: tarball, .deb, container image, Helm chart, Python wheel (docs/packages.md)
	@CARGO='$(CARGO)' EVENKEEL_BINARY='$(EVENKEEL_BINARY)' deploy/dist.sh $(DIST)

# --- test ---------------------------------------------------------------------

# PARTS: some of unit, differential, linear, chaos, dist, clients. EVENKEEL_COMMANDS and EVENKEEL_SEED choose another differential run.
.PHONY: test
test: ## install what tests need, run them all, count
	@tests/run.sh $(PARTS)

.PHONY: console
console: ## make the console's files from console/src (Node; they are committed, and tests compare them)
	@cd console && { [ -e node_modules/.whole ] || { npm ci --silent && touch node_modules/.whole; }; } && node build.js

MDBOOK ?= 0.5.4
.PHONY: site
site: ## the documents as a site in target/site (mdBook, built once, some minutes)
	@command -v mdbook >/dev/null || $(CARGO) install --locked --quiet mdbook@$(MDBOOK)
	@rm -rf target/site && mdbook build
	@tests/house.py --linked | while read -r name; do mkdir -p "target/site/$$(dirname "$$name")" && cp -r "$$name" "target/site/$$name"; done
	@echo 'target/site/docs/index.html'

MIRROR_SEEDS ?= 50
.PHONY: mirror
mirror: ## Redis 8 and Valkey 9 load what a server tells of random writes, and hold the same (MIRROR_SEEDS)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh
	@EVENKEEL_PEERS='$(PEERS)' EVENKEEL_MIRROR=$(MIRROR_SEEDS) EVENKEEL_MIRROR_SEEDS=$(MIRROR_SEEDS) \
	    $(CARGO) test --quiet -p exec --test mirror

FUZZ_SECONDS ?= 60
# Some of the targets, or all: make fuzz FUZZ_TARGETS='restore num'
FUZZ_TARGETS ?=

.PHONY: fuzz
fuzz: export RUSTC_BOOTSTRAP = 1
# The server's watchdog copies the stacks of its threads, which is no fault.
fuzz: export ASAN_OPTIONS = replace_intrin=0
fuzz: ## fuzz each target for FUZZ_SECONDS (installs cargo-fuzz if missing, see fuzz/README.md)
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked --quiet cargo-fuzz
	@cd fuzz && for target in $(if $(FUZZ_TARGETS),$(FUZZ_TARGETS),$$($(CARGO) fuzz list)); do \
	    mkdir -p corpus/$$target; \
	    more=; [ $$target != tls_records ] || more=-detect_leaks=0; \
	    $(CARGO) fuzz run $$target corpus/$$target seeds/$$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=4096 $$more || exit 1; \
	done

# What clients may send to a server, from one seed; CHAOS_ARGS: see `chaos --help`, e.g. CHAOS_ARGS='--seed 7 --faults 5'.
CHAOS_SECONDS ?= 600
.PHONY: fuzz-clients
fuzz-clients: ## send a running server all that clients can send, Valkey's fuzzer first (ten minutes; CHAOS_SECONDS, CHAOS_ARGS)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh || echo "without Valkey's fuzzer"
	@$(CARGO) build --quiet -p evenkeel -p chaos
	@$(CARGO) run --quiet -p chaos -- fuzz --seconds $(CHAOS_SECONDS) \
	    $(if $(wildcard $(PEERS)/bin/valkey-benchmark),--peer '$(PEERS)/bin/valkey-benchmark') $(CHAOS_ARGS)

# Published advisories are looked up where their database can be fetched.
.PHONY: deny
deny: ## licences, versions, sources and advisories of the code of others, by cargo-deny (built once, some minutes; deny.toml)
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked --quiet cargo-deny
	@$(CARGO) deny check bans licenses sources
	@if $(CARGO) deny fetch db; then $(CARGO) deny check advisories; \
	    else echo 'deny: no database of advisories could be fetched, so none were looked up'; fi

SOAK_SECONDS ?= 300
.PHONY: soak
soak: ## everything at once, with sums that must hold and nothing left at the end (five minutes; SOAK_SECONDS, CHAOS_ARGS)
	@$(CARGO) build --quiet -p evenkeel -p chaos
	@$(CARGO) run --quiet -p chaos -- soak --seconds $(SOAK_SECONDS) $(CHAOS_ARGS)

# CRASH_ARGS: e.g. CRASH_ARGS='--seed 7 --fsync always --dir /dev/shm'. The outages need strace.
CRASH_ROUNDS ?= 1000
POWER_ROUNDS ?= 80
.PHONY: crash
crash: ## kill -9 at any moment, cut and damaged files, full disks, outages: what was promised is there (CRASH_ROUNDS, POWER_ROUNDS, CRASH_ARGS)
	@$(CARGO) build --quiet -p evenkeel -p chaos
	@$(CARGO) run --quiet -p chaos -- crash --rounds $(CRASH_ROUNDS) $(CRASH_ARGS)
	@$(CARGO) run --quiet -p chaos -- power --rounds $(POWER_ROUNDS) $(CRASH_ARGS)

# One seed behind the other. REPLICAS_ARGS: e.g. REPLICAS_ARGS='--rounds 1 --steps 500 --tell-all', or --with PATH for a Redis
# or a Valkey that takes part.
REPLICAS_SECONDS ?= 3600
SEED ?= 1
.PHONY: replicas
replicas: ## servers that follow each other, through kills, cuts and promotions: promises kept, all equal at rest (an hour; REPLICAS_SECONDS, SEED, REPLICAS_ARGS)
	@$(CARGO) build --quiet -p evenkeel -p chaos
	@$(CARGO) run --quiet -p chaos -- replicas --seconds $(REPLICAS_SECONDS) --seed $(SEED) $(REPLICAS_ARGS)

# LEADERS_ARGS: e.g. LEADERS_ARGS='--seconds 5 --repeat 10'.
LEADERS_SEEDS ?= 1..300
.PHONY: leaders
leaders: ## an order that explains all that clients saw over failovers, and sums that hold on every replica (ten minutes; LEADERS_SEEDS, LEADERS_ARGS)
	@$(CARGO) build --quiet -p evenkeel -p linear
	@$(CARGO) run --quiet -p linear -- --leaders --seeds $(LEADERS_SEEDS) $(LEADERS_ARGS)

# SUITES_ARGS: e.g. SUITES_ARGS='valkey integration/psync2'. EVENKEEL_BINARY: another binary than the debug build.
.PHONY: suites
suites: ## the replication tests of Redis 8 and Valkey 9 themselves, run against Evenkeel (half an hour; SUITES_ARGS; tclsh)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh --suites
	@$(if $(EVENKEEL_BINARY),,$(CARGO) build --quiet -p evenkeel)
	@EVENKEEL_PEERS='$(PEERS)' tests/suites/run.sh $(SUITES_ARGS)

# C Lua as scripts reach it, under AddressSanitizer and UndefinedBehaviorSanitizer with Lua's own assertions: all tests of the
# crate, then some of them, of hostile numbers, of the compiler and of the basics, with a collection wherever memory may be taken.
# The runtime of the sanitizers comes with gcc.
LUA_TARGET = $$($(CARGO) -vV | sed -n 's/^host: //p')
LUA_COLLECTED = spans written_as_ever any_form brackets panic computes arrive become upvalues
LUA_TESTS = $(CARGO) test --quiet -p script --lib --target $(LUA_TARGET)
.PHONY: lua-sanitize
lua-sanitize: export RUSTFLAGS = -Cdefault-linker-libraries=yes -Clink-arg=-fsanitize=address,undefined
lua-sanitize: export ASAN_OPTIONS = detect_stack_use_after_return=0:allocator_may_return_null=1
lua-sanitize: export RUST_TEST_THREADS = 2
lua-sanitize: ## the tests of C Lua under ASan and UBSan, and collecting always (some minutes)
	@EVENKEEL_LUA=sanitize nice $(LUA_TESTS)
	@EVENKEEL_LUA=collect nice $(LUA_TESTS) -- $(LUA_COLLECTED)

# --- bench --------------------------------------------------------------------

.PHONY: peers
peers: ## build Valkey 9 and Redis 8 to compare with (once, into a cache)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh

# BENCH_ARGS: see `evenkeel-bench --help`, e.g. BENCH_ARGS='--md report.md' or 'growth --keys 20000000'.
.PHONY: bench
bench: ## measure beside Valkey 9 and Redis 8 (a few minutes)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh
	@$(CARGO) build --release --quiet -p evenkeel -p evenkeel-bench
	@EVENKEEL_PEERS='$(PEERS)' $(CARGO) run --release --quiet -p evenkeel-bench -- $(BENCH_ARGS)

# BENCH_ARGS: e.g. BENCH_ARGS='--md bystander.md --seconds 5 --attackers 1 --attacks keys,sort'. All of it takes hours.
.PHONY: bench-bystander
bench-bystander: ## what a bystander sees of every long command, beside Redis 8 (hours; see BENCH_ARGS)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh
	@$(CARGO) build --release --quiet -p evenkeel -p evenkeel-bench
	@EVENKEEL_PEERS='$(PEERS)' $(CARGO) run --release --quiet -p evenkeel-bench -- bystander $(BENCH_ARGS)

.PHONY: bench-save
bench-save: ## what snapshots, rewrites and appendfsync always cost others, beside Valkey 9 and Redis 8 (half an hour; see BENCH_ARGS)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh
	@$(CARGO) build --release --quiet -p evenkeel -p evenkeel-bench
	@EVENKEEL_PEERS='$(PEERS)' $(CARGO) run --release --quiet -p evenkeel-bench -- save $(BENCH_ARGS)

.PHONY: bench-cache
bench-cache: ## hit ratios on real traces, beside Redis 8 and the optimum (some minutes; TRACES=directory)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh
	@$(CARGO) build --release --quiet -p evenkeel -p evenkeel-bench
	@EVENKEEL_PEERS='$(PEERS)' $(CARGO) run --release --quiet -p evenkeel-bench -- cache $(if $(TRACES),--traces '$(TRACES)') $(BENCH_ARGS)

.PHONY: bench-batch
bench-batch: ## throughput of batches by size and way, beside Redis 8 (ten minutes)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh
	@$(CARGO) build --release --quiet -p evenkeel -p evenkeel-bench
	@EVENKEEL_PEERS='$(PEERS)' $(CARGO) run --release --quiet -p evenkeel-bench -- batch $(BENCH_ARGS)

# BENCH_ARGS: e.g. BENCH_ARGS='--md items.md --rounds 5 --seconds 10'. Without Go that row is missing.
.PHONY: bench-items
bench-items: ## rows of a PostgreSQL over HTTP and RESP, beside a Go service and Redis 8 (minutes; PostgreSQL and Go)
	@EVENKEEL_PEERS='$(PEERS)' bench/peers.sh
	@if command -v go >/dev/null; then cd bench/peers/items-go && go build -o '$(PEERS)/bin/items-go' .; fi
	@$(CARGO) build --release --quiet -p evenkeel -p evenkeel-bench
	@EVENKEEL_PEERS='$(PEERS)' $(CARGO) run --release --quiet -p evenkeel-bench -- items $(BENCH_ARGS)

.PHONY: bench-instances
bench-instances: ## five instances in front of one PostgreSQL, hit ratios beside one and the best (five minutes)
	@$(CARGO) build --release --quiet -p evenkeel -p evenkeel-bench
	@$(CARGO) run --release --quiet -p evenkeel-bench -- instances --only Evenkeel $(BENCH_ARGS)
