# Every target is one or two commands: longer ones are in tools/.
# The tools are built once into .bin/, in the versions that tools/go.mod names.

GO ?= go
CORPUS ?= testdata/corpus
FUZZTIME ?= 10s
BENCH ?= .
MONGO_VERSIONS ?= 5.0,6.0,7.0,8.0

TOOLS := .bin/.built

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build the programs into bin/: replicator, replicator-lab
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

# Packages in which there is nothing for the race detector: they have no goroutines, or start
# processes of programs that are built without it.
SEQUENTIAL = /(applier/plan|internal/serverupdate|internal/testkit/memstore|oplog|oplog/update|test/(docs|model|mutate|process|style))$$

# Tests of other packages that leave something out with the race detector: test/style compares.
UNRACED_IN = applier applier/ddl bench cmd/replicator-lab cutover initialsync/clone internal/testkit/transcript pipeline test/e2e
UNRACED = TestAbsenceOutlastsOplog TestAllocations TestAllocs TestBackStorm TestBarrierOutlastsOplog \
	TestBenchProcesses TestBufferOutlastsOplog TestBuildOutlastsOplog TestCancelCrashes TestCancelSuspended \
	TestCopiedTooLarge TestCopiedTooLargeInTheEnd TestCopiedTooLargeLeftOut TestCopies TestCopyCorpus TestDialects \
	TestDrainedOutlastsOplog TestFullCannotLie TestHugeDocuments TestIndexCollations TestLedWithoutSpool TestMemory \
	TestMirrorSettings TestOplogIsLeftToItsSpool TestOverflowFull TestOverflowKills TestOverflowLostHistory \
	TestOverflowRefused TestOverflowToldToEnd TestPartTooStale TestPauseOutlastsOplog TestRatio TestRestartOutlastsOplog \
	TestScenarios TestSlowLine TestSpoolEndsBeforeOplog TestStorm TestSuspended TestTakenOver \
	TestVerifyContinuous

# The longest packages come first: while they wait, others run.
.PHONY: test
test: corpus ## verify every recorded oplog (see corpus), then run all tests, with the race detector where there are goroutines
	@$(MAKE) -s skipped
	GORACE="atexit_sleep_ms=50 history_size=0" $(GO) test -race -vet=off -shuffle=on -timeout 30m ./pipeline ./test/e2e $$($(GO) list ./... | grep -vE '$(SEQUENTIAL)')
	$(GO) test -vet=off -shuffle=on -timeout 30m ./test/process $$($(GO) list ./... | grep -E '$(SEQUENTIAL)')
	$(GO) test -vet=off -shuffle=on -timeout 30m -run '^($(shell echo $(UNRACED) | tr ' ' '|'))$$' ./pipeline $(addprefix ./,$(UNRACED_IN))

.PHONY: lint
lint: $(TOOLS) ## run golangci-lint
	.bin/golangci-lint run

.PHONY: fmt
fmt: $(TOOLS) ## rewrite sources: gofumpt, import order, go fix
	.bin/golangci-lint fmt
	$(GO) fix ./...

.PHONY: check
check: format vet lint tidy-diff fix-diff deployed browser vuln test ## every check, in order of speed

.PHONY: demo
demo: build ## mirror one embedded set into another, live, through failovers; compare
	bin/replicator-lab demo

.PHONY: corpus
corpus: build ## apply, replay and mirror the recordings under CORPUS=DIR, three lines per scenario
	bin/replicator-lab corpus "$(CORPUS)"

.PHONY: bench
bench: build ## measure what there are goals for, in minutes: a table, bin/bench.json, bin/bench-report/
	bin/replicator-lab bench goals --json bin/bench.json
	bin/replicator-lab bench report bin/bench.json --out bin/bench-report

.PHONY: bench-compare
bench-compare: ## compare bin/bench.json with bench/results/baseline.json: allocations and ratios, not times
	bin/replicator-lab bench compare bench/results/baseline.json bin/bench.json

.PHONY: microbench
microbench: ## run the benchmarks of single functions; BENCH=REGEXP picks some
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: browser
browser: ## drive the page with Chromium; PAGE_SHOTS=DIR stores screenshots of all states
	$(GO) -C test/browser vet ./...
	$(GO) -C test/browser test -count=1 ./...

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME (10s)
	FUZZTIME=$(FUZZTIME) bash tools/fuzz.sh

.PHONY: cover
cover: ## show the coverage of oplog/ by all tests, the total last
	@mkdir -p bin
	$(GO) test -coverpkg=./oplog/... -coverprofile=bin/cover.out ./...
	$(GO) tool cover -func=bin/cover.out
	@$(GO) tool cover -func=bin/cover.out | awk '/^total:/ && $$3 + 0 < 90 {print "less than 90 %"; exit 1}'

# One package at a time: each starts several servers.
SERVER_TESTS = $(GO) test -count=1 -p 1 -timeout 60m ./test/e2e/... ./internal/mongo/driver/... ./lease/locks/mongostore

.PHONY: test-mongod
test-mongod: ## run the end-to-end tests on a local server; MONGOD=/absolute/path, LIVE_SECONDS=60
	@test -n "$(MONGOD)" || { echo "make test-mongod: set MONGOD=/path/to/mongod" >&2; exit 2; }
	MONGOD="$(MONGOD)" $(SERVER_TESTS)

.PHONY: test-docker
test-docker: ## run the end-to-end tests on server images; MONGO_VERSIONS=5.0,8.0, LIVE_SECONDS=60
	REPLICATOR_DOCKER=1 MONGO_VERSIONS="$(MONGO_VERSIONS)" $(SERVER_TESTS)

KILLS ?= 200

.PHONY: kills
kills: ## kill the program KILLS (200) times while it mirrors, and as often while it copies; REPLICATOR_SEED=N, REPLICATOR_PAIR=8.0-4.4
	REPLICATOR_KILLS=$(KILLS) $(GO) test -count=1 -timeout 60m -run TestKill -v ./test/process

ROUNDS ?= 300

.PHONY: rounds
rounds: ## three processes of one link in ROUNDS (300) rounds of kills, suspensions, cut networks and failovers; REPLICATOR_SEED=N
	REPLICATOR_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 120m -run TestRounds -v ./test/process

AGENTS ?= 10

.PHONY: agents
agents: ## AGENTS (10) processes share twice as many links; ten of them are killed, one after the other
	REPLICATOR_AGENTS=$(AGENTS) REPLICATOR_AGENT_KILLS=10 $(GO) test -count=1 -timeout 30m -run TestAgentsKilled -v ./test/process

.PHONY: mutate
mutate: ## plant known bugs, one at a time; a test has to notice each; MUTANTS=REGEXP picks some
	$(GO) run ./test/mutate -only '$(MUTANTS)'

.PHONY: soak
soak: mutate kills rounds agents ## tests too slow for check: planted bugs, kills, rounds, moods, long live runs on all dialects
	$(GO) test -count=1 -timeout 60m ./...
	REPLICATOR_MOODS=all $(GO) test -count=3 -timeout 60m -run TestMoods ./pipeline
	REPLICATOR_BEHIND=1 $(GO) test -count=1 -timeout 60m -run TestResyncBehind ./pipeline
	REPLICATOR_COPY_SEEDS=200 $(GO) test -count=1 -timeout 60m -run TestCopySurvives ./pipeline
	REPLICATOR_MASS_SEEDS=500 $(GO) test -count=1 -timeout 60m -run TestMassSurvives ./pipeline
	REPLICATOR_SWITCHES=100 $(GO) test -count=1 -timeout 120m -run 'TestSwitches$$' -v ./cmd/replicator
	REPLICATOR_CUTOVER_TABLE=all $(GO) test -count=1 -timeout 60m -run TestCutoverTable ./cmd/replicator
	REPLICATOR_SEED=1 REPLICATOR_PROMOTE_SEEDS=200 $(GO) test -count=1 -timeout 120m -run 'TestPromote$$' ./test/process
	CUT_SEEDS=200 $(GO) test -count=1 -timeout 60m -run 'TestCuts$$' ./test/e2e
	VERIFY_SEEDS=20 $(GO) test -count=1 -timeout 60m -run 'TestVerify$$' ./test/e2e
	CONTINUOUS_SEEDS=20 $(GO) test -count=1 -timeout 60m -run 'TestVerifyContinuous$$' ./test/e2e
	LOCKS_SECONDS=300 $(GO) test -count=1 -timeout 60m -run TestContenders -v ./lease/locks/mongostore ./lease/locks/sqlstore
	LIVE_SECONDS=300 LIVE_DIALECTS=all $(GO) test -count=1 -timeout 60m -run 'TestLive$$' -v ./test/e2e
	LIVE_SECONDS=60 LIVE_PAIRS=all $(GO) test -count=1 -timeout 60m -run 'TestLiveUpgrade|TestCopyLiveUpgrade' -v ./test/e2e

.PHONY: vuln
vuln: $(TOOLS) ## look for known vulnerabilities that the code can reach
	@bash tools/vuln.sh

.PHONY: tidy
tidy: ## tidy go.mod and go.sum of all modules
	$(GO) mod tidy
	$(GO) -C tools mod tidy
	$(GO) -C deploy mod tidy
	$(GO) -C test/browser mod tidy

# The tests that need a server say so themselves, but only under go test -v.
.PHONY: format vet tidy-diff fix-diff deployed skipped
skipped:
	@test -n "$(MONGOD)$(REPLICATOR_DOCKER)" || \
		echo "SKIP test/e2e: it needs a real server: make test-mongod MONGOD=/path/to/mongod, or make test-docker"
	@command -v npm >/dev/null || command -v mongosh >/dev/null || test -n "$(MONGOSH)" || \
		echo "SKIP test/mongosim TestMongosh, TestServe/mongosh: they need mongosh, or npm to fetch it"
	@command -v mariadbd >/dev/null || test -x /usr/sbin/mariadbd || test -n "$(MYSQL_DSN)" || \
		echo "SKIP lease/locks/sqlstore on MariaDB: install mariadb-server, or set MYSQL_DSN"
	@command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || test -n "$(POSTGRES_DSN)" || \
		echo "SKIP lease/locks/sqlstore on PostgreSQL: install postgresql, or set POSTGRES_DSN"
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || test -n "$(CHROMIUM)" || \
		echo "SKIP test/browser: install chromium, or set CHROMIUM"
	@command -v python3 >/dev/null || echo "SKIP test/mongosim TestServe/pymongo: it needs python3, and pip to fetch pymongo"

format: $(TOOLS)
	@echo ".bin/gofumpt -l ."
	@out=$$(.bin/gofumpt -l .) && test -z "$$out" || { echo "not formatted, run make fmt:"; echo "$$out"; exit 1; }

vet:
	$(GO) vet ./...

tidy-diff:
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(GO) -C deploy mod tidy -diff
	$(GO) -C test/browser mod tidy -diff

deployed:
	$(GO) -C deploy test -count=1 ./...

fix-diff:
	$(GO) fix -diff ./...

$(TOOLS): tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../.bin/ tool
	@touch $@
