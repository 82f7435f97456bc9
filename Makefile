# psidecar: what there is to make.
#
#   make demo       build, then run the demo job on hosts of its own
#   make test       install what the tests need, then run them all
#   make soak       keys move for half an hour (SOAK=30m) while proxies and planner are killed, links cut
#   make life       a fleet as it is lived in (LIFE=10m SEED=7): jobs come and go, everything fails now and then
#   make test-kubernetes  the chart, rights, names and policy, and two planners against a real API server; builds one
#   make bench      benchmarks, with peers measured in the same run
#   make eval       what five papers have and ours, as one page: bin/eval/index.html; EVALFLAGS=--quick: ten minutes, else hours
#   make eval-proxy      bytes and steps/s with and without proxies, on real text; some minutes
#   make eval-partition  tables and plots of all partitioners, in bin/eval; some minutes
#   make eval-codecs     what models lose under the codecs, what is saved, and time to the same loss; many minutes, root
#   make eval-aggregate  what forms of keeping parameters move, by Parallax; shared pulls and summed pushes; half an hour, root
#   make image      container images for amd64 and arm64, with bills of materials, in bin/image
#   make eval-dynamic    strategies for moving keys, tried on made traces; a minute
#   make eval-moving     live: keys that move after wandering favourites, text divided before a run; many minutes
#   make release    all that a release has, for amd64 and arm64, in bin/release; RELEASE_KEY=FILE signs it
#   make manifests  deploy/manifests from the chart
#   make lint       gofmt, go vet, staticcheck, whether the chart's README is that of its values
#   make generate   BPF objects, protobuf code, the web page and the chart's README from source
#   make build      bin/psidecar and bin/psjob
#   make beam       bin/psidecar-beam
#   make man        manual pages in bin/man
#   make completions  for bash, zsh and fish, in bin/completions
#
# On Debian every target installs the packages it lacks (needs root), and says so.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 10s
BENCHTIME ?= 1s
PKGS ?= ./...

TEST_PACKAGES := g++ make pkg-config protobuf-compiler libprotobuf-dev libzmq3-dev metis chromium iproute2 prometheus systemd
BENCH_PACKAGES := haproxy
GENERATE_PACKAGES := clang llvm libbpf-dev protobuf-compiler

.PHONY: build beam man completions clean-man image programs release manifests demo test test-kubernetes soak life bench eval eval-partition eval-dynamic eval-moving eval-proxy eval-codecs eval-aggregate lint generate fuzz race page page-deps test-deps bench-deps generate-deps check-generated clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/ ./cmd/psidecar ./cmd/psjob

# Partitions on Flink, Spark, Dataflow or several processes: a module of its own
# (cmd/psidecar-beam/README.md).
beam:
	cd cmd/psidecar-beam && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(CURDIR)/bin/ .

PLATFORMS := linux/amd64 linux/arm64
STATIC := CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)"

# The time of the commit, which stands for that of the build in all that is made.
EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

programs:
	@for p in $(PLATFORMS); do \
	  echo "building psidecar and psjob for $$p"; \
	  GOOS=$${p%/*} GOARCH=$${p#*/} $(STATIC) -o bin/$${p}/ ./cmd/psidecar ./cmd/psjob; \
	done

image: programs
	SOURCE_DATE_EPOCH=$(EPOCH) $(GO) run ./deploy/image --out bin/image --version $(VERSION) \
	  $(foreach p,$(PLATFORMS),$(p)=bin/$(p)/psidecar)

# Manual pages, a command each.
man: build
	bin/psidecar man bin/man

completions: build
	mkdir -p bin/completions
	bin/psidecar completion bash >bin/completions/psidecar.bash
	bin/psidecar completion zsh >bin/completions/_psidecar
	bin/psidecar completion fish >bin/completions/psidecar.fish

# The same commit gives the same bytes (CONTRIBUTING.md). bin/man may have pages of
# commands that have gone.
RELEASE_KEY ?=
release: clean-man image man completions
	SOURCE_DATE_EPOCH=$(EPOCH) $(GO) run ./deploy/release --version $(VERSION) --key '$(RELEASE_KEY)' $(foreach p,$(PLATFORMS),$(p)=bin/$(p))

clean-man:
	rm -rf bin/man bin/completions

demo: build
	bin/psidecar demo $(DEMOFLAGS)

# Tests of what runs at full speed come last and one package at a time, so that
# nothing else takes the cores from them.
LIVE := ./bpf/... ./agent/... ./internal/hosts ./test/...

test: test-deps
	$(GO) test -timeout 20m $$($(GO) list ./... | grep -vxFf <($(GO) list $(LIVE)))
	$(GO) test -timeout 40m -p 1 $(LIVE)
	cd cmd/psidecar-beam && $(GO) test -timeout 20m ./...
	cd test/kubernetes && $(GO) test -run 'TestManifests|TestRendered' -timeout 20m .

# Half an hour of jobs whose keys move while proxies and planner are killed and hosts
# are cut off.
SOAK ?= 30m
soak: test-deps
	PSIDECAR_SOAK=$(SOAK) $(GO) test -run TestKilledWhileMoving -timeout 2h -v ./test/reroute

# Four hosts, a planner, jobs of all kinds, and all that happens to them, from a
# seed; see test/life. FAILURES=n goes on until so many things went wrong.
LIFE ?= 10m
SEED ?= $(shell date +%s)
FAILURES ?= 1
life: test-deps
	PSIDECAR_LIFE=$(LIFE) PSIDECAR_LIFE_SEED=$(SEED) PSIDECAR_LIFE_FAILURES=$(FAILURES) $(GO) test -run TestLife -count=1 -timeout 0 -v ./test/life

# The manifests for those without Helm, from the chart. The sums say of what chart
# they are made, so that a change of one without the other fails (deploy/chart).
manifests:
	cd test/kubernetes && $(GO) test -run TestManifests -update .
	cd deploy && sha256sum chart/Chart.yaml chart/values.yaml $$(find chart/templates -type f | LC_ALL=C sort) manifests/*.yaml >manifests/SHA256SUMS

# Kubernetes' own API server, controllers and scheduler, and etcd, are built from
# their modules, which takes most of the time. They say what version they are as
# the linker tells them: helm asks before it installs anything.
test-kubernetes: build
	cd test/kubernetes && version=$$($(GO) list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	  $(GO) build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o ../../bin/controlplane ./controlplane && \
	  $(GO) build -trimpath -ldflags "-s -w" -o ../../bin/helm helm.sh/helm/v3/cmd/helm
	cd test/kubernetes && CONTROLPLANE=$(CURDIR)/bin/controlplane HELM=$(CURDIR)/bin/helm PSIDECAR=$(CURDIR)/bin/psidecar PSJOB=$(CURDIR)/bin/psjob $(GO) test -v -count=1 -timeout 20m .

# What messages cost beside haproxy is in bin/eval/cost.md too.
bench: test-deps bench-deps
	mkdir -p bin/eval
	PSIDECAR_EVAL_OUT=$(CURDIR)/bin/eval $(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout 60m $(PKGS)

# The parts that test/eval has, each kept in bin/eval/parts, so that what was
# interrupted goes on where it was (--again: from the beginning), then the page and
# markdown of all. Parts without their data, or without root where they need it, are
# no failure; the page says so. EVALFLAGS: --quick, --full, --what, --datasets.
eval:
	$(GO) run ./test/eval --report $(EVALFLAGS) >/dev/null

eval-proxy:
	PSIDECAR_EVAL=1 $(GO) test -v -timeout 30m -count=1 -run BytesTable ./test/transparency

# Figures 7 to 10 and table 5 of DWW21, figure 5 of DW23, and time and memory an edge.
# EVALFLAGS: --what sweeps|table5|degrees|machines|bins|scale, --quick, --full.
eval-partition:
	$(GO) run ./test/eval --what sweeps,table5,degrees,machines,bins,hashed,scale $(EVALFLAGS)

# Figure 8 of DW23, and hot keys that wander.
eval-dynamic:
	$(GO) run ./test/eval --what dynamic $(EVALFLAGS)

# The same live, on hosts of their own, and what a placement before a run saves.
eval-moving:
	PSIDECAR_EVAL=1 $(GO) test -v -timeout 60m -count=1 -run 'TestWandering$$|TestWorthIt' ./test/reroute

# Tables 1 to 4 and figures 5 and 7 of DCT and its theorem 1, table 1 and figures 3 to 5 of Slim-DP (EVALFLAGS:
# --what threshold|lifespan|slim|pulls|activations|activations-deep|activations-time|
# theorem, --quick), then on hosts with links of 200 Mbit/s
# (needs root) steps a second with each codec, and time to the same loss. An hour
# to two on two cores; the latter two, ten minutes of it, want them alone.
eval-codecs:
	$(GO) run ./test/eval --what threshold,lifespan,gradients-time,slim,pulls,activations,activations-others,activations-deep,activations-time,theorem $(EVALFLAGS)
	mkdir -p bin/eval
	PSIDECAR_EVAL=1 PSIDECAR_EVAL_OUT=$(CURDIR)/bin/eval $(GO) test -v -timeout 60m -count=1 -run 'TestTable$$|TestTimeToLoss' ./test/codecs

# Tables 3 and 4 of Parallax, the search for a number of parts beside trying all, parts
# beside a chain by calculation, and (needs root) bytes and processor time of shared pulls
# and summed pushes, four workers on a host, what sums of divided data save at most, and what
# parts save. Half an hour on two cores, most of it the last.
eval-aggregate:
	$(GO) run ./test/eval --what transfer,architectures $(EVALFLAGS)
	$(GO) test -v -count=1 ./planner/plan
	$(GO) test -v -timeout 60m -count=1 -run '^$$' -bench 'SharedPulls|SummedPushes' -benchtime 1x ./test/codecs
	PSIDECAR_EVAL=1 $(GO) test -v -timeout 60m -count=1 -run 'PartsWorthIt|EntropyOfSums' ./test/codecs

lint:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt these: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) run ./deploy/chartdoc --check
	tool=$$($(GO) tool -n staticcheck) && cd cmd/psidecar-beam && $(GO) vet ./... && $$tool ./...

race: test-deps
	$(GO) test -race -short -timeout 20m $(PKGS)

# Every fuzz target of every package for FUZZTIME. Now and then the go command
# itself runs out of time when it ends a target and has found nothing; such a
# target gets one more try.
fuzz:
	@for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    run() { $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg 2>&1; }; \
	    out=$$(run) && { echo "$$target $$(tail -n 1 <<<"$$out")"; continue; }; \
	    echo "$$out"; \
	    grep -q 'context deadline exceeded' <<<"$$out" || exit 1; \
	    if grep -q 'Failing input' <<<"$$out"; then exit 1; fi; \
	    run; \
	  done; \
	done

generate: generate-deps page
	$(GO) generate ./...

# The web page, from page/src to page/dist.
page: page-deps
	cd page && npm run --silent check && npm test --silent && npm run --silent build

# What the page is built and tested with, axe-core for the tests in the browser too,
# unless it is there as package-lock.json has it.
page-deps:
	@cd page && if ! cmp -s package-lock.json node_modules/.psidecar-lock; then \
	  echo "installing the page's packages"; \
	  npm ci --silent --no-audit --no-fund && cp package-lock.json node_modules/.psidecar-lock; \
	fi

# Fails where the committed generated files differ from what their sources give.
check-generated: generate
	@changed=$$(git status --porcelain); \
	if [ -n "$$changed" ]; then echo "make generate changes these files; commit them:"; echo "$$changed"; exit 1; fi

test-deps:
	@$(call install,$(TEST_PACKAGES))
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory page-deps; \
	else echo "no npm: tests of the page's accessibility skip"; fi

bench-deps:
	@$(call install,$(BENCH_PACKAGES))

generate-deps:
	@$(call install,$(GENERATE_PACKAGES))

clean:
	rm -rf bin

# install names the Debian packages of $(1) that are absent and installs them.
define install
missing=(); \
if command -v dpkg-query >/dev/null; then \
  for p in $(1); do \
    dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'install ok installed' || missing+=($$p); \
  done; \
fi; \
if [ $${#missing[@]} -gt 0 ]; then \
  if [ "$$(id -u)" = 0 ]; then \
    echo "installing Debian packages: $${missing[*]}"; \
    apt-get update -qq; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null; \
  else \
    echo "missing Debian packages: $${missing[*]}"; \
    echo "install them (sudo apt-get install $${missing[*]}), or tests that need them skip"; \
  fi; \
fi
endef
