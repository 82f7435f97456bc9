# psidecar: what there is to make.
#
#   make demo       build, then run the demo job on hosts of its own
#   make test       install what the tests need, then run the unit tests and one live test of each capability
#   make test-all   all other tests: matrices, kills by the dozen, long searches, two minutes of life
#   make times      what took longest in these two
#   make mutants    puts deliberate faults into a copy of the source, one by one, and tells which the tests notice
#   make soak       keys move for half an hour (SOAK=30m) while proxies and planner are killed, links cut
#   make life       a fleet as it is lived in (LIFE=10m SEED=7): jobs come and go, everything fails now and then
#   make test-kubernetes  the chart, rights, names and policy against a real API server; builds one
#   make bench      benchmarks, with peers measured in the same run
#   make bench-weight  what psidecar costs a job that asked for nothing, way by way; WEIGHTFLAGS='--rounds 1 ...'
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
#   make install    programs, manual pages, completions and units below PREFIX (/usr/local)
#   make packages   a deb and an rpm for amd64 and arm64, in bin/packages
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

# What is compiled for programs serves tests too. Without cgo, programs run anywhere.
# Without gRPC's own pages of traces, which link html/template: a program that has
# templates keeps every exported method of every type.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -tags=grpcnotrace)

TEST_PACKAGES := g++ make pkg-config protobuf-compiler libprotobuf-dev libzmq3-dev metis chromium iproute2 prometheus systemd
BENCH_PACKAGES := haproxy
GENERATE_PACKAGES := clang llvm libbpf-dev protobuf-compiler

.PHONY: build install packages beam man completions clean-man image programs release manifests demo test test-all times mutants test-kubernetes soak life bench eval eval-partition eval-dynamic eval-moving eval-proxy eval-codecs eval-aggregate lint generate fuzz race bench-weight page page-deps test-deps bench-deps generate-deps check-generated clean

# Without symbols for debuggers: panics, profiles and traces use another table.
STATIC := $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)"

build:
	$(STATIC) -o bin/ ./cmd/psidecar ./cmd/psjob

# Partitions on Flink, Spark, Dataflow or several processes: a module of its own
# (cmd/psidecar-beam/README.md).
beam:
	cd cmd/psidecar-beam && $(GO) build -trimpath -ldflags "-s -w" -o $(CURDIR)/bin/ .

PLATFORMS := linux/amd64 linux/arm64

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

# Programs, manual pages, completions, units and, unless one is there, a configuration file;
# BIN is where the programs come from.
PREFIX ?= /usr/local
DESTDIR ?=
BIN ?= bin
install: man completions
	install -D -t '$(DESTDIR)$(PREFIX)/bin' '$(BIN)/psidecar' '$(BIN)/psjob'
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/man/man1' bin/man/*.1
	install -D -m 644 bin/completions/psidecar.bash '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/psidecar'
	install -D -m 644 bin/completions/_psidecar '$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_psidecar'
	install -D -m 644 bin/completions/psidecar.fish '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/psidecar.fish'
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/lib/systemd/system' deploy/systemd/*.service
	sed -i 's#/usr/local/bin/#$(PREFIX)/bin/#' '$(DESTDIR)$(PREFIX)'/lib/systemd/system/psidecar-*.service
	[ -e '$(DESTDIR)/etc/psidecar/config.yaml' ] || install -D -m 644 deploy/systemd/config.yaml '$(DESTDIR)/etc/psidecar/config.yaml'

# A deb and an rpm for each platform. nfpm has a module file of its own: its dependencies are
# none of psidecar's. Versions of commits without a tag sort before all others.
NFPM := $(GO) tool -modfile=deploy/packages/nfpm.mod nfpm
PKG_VERSION = $(shell sed -E 's/^v//; /^[0-9]+\./!s/^/0.0.0~/; s/-/+/; s/-/./g' <<<'$(VERSION)')
packages: clean-man programs
	rm -rf bin/packages && mkdir -p bin/packages
	@for p in $(PLATFORMS); do \
	  root=bin/packages/root-$${p#*/}; \
	  $(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=$$root BIN=bin/$$p >/dev/null; \
	  for kind in deb rpm; do \
	    ROOT=$$root ARCH=$${p#*/} PKG_VERSION='$(PKG_VERSION)' SOURCE_DATE_EPOCH=$(EPOCH) \
	      $(NFPM) package --config deploy/packages/nfpm.yaml --packager $$kind --target bin/packages; \
	  done; \
	  rm -rf $$root; \
	done

# The same commit gives the same bytes (CONTRIBUTING.md). bin/man may have pages of
# commands that have gone.
RELEASE_KEY ?=
release: clean-man image packages
	SOURCE_DATE_EPOCH=$(EPOCH) $(GO) run ./deploy/release --version $(VERSION) --packages bin/packages --key '$(RELEASE_KEY)' $(foreach p,$(PLATFORMS),$(p)=bin/$(p))

clean-man:
	rm -rf bin/man bin/completions

demo: build
	bin/psidecar demo $(DEMOFLAGS)

# Packages whose tests run jobs on hosts of their own. They wait most of the time, so
# several run at once. Their results are not cached: go test does not know of the programs
# that they run.
LIVE := $(addprefix ./test/,codecs/... deploy/... faults/... interop/... life/... matrix/... owners/... proxy/... readme/... reroute/... sidecar/... transparency/... watch/...)

# For each capability that the README promises, one test of LIVE: what make test runs.
CAPABILITIES := ^TestTruthOfPsjob$$|^TestTransparency$$|^TestPlaced$$/^scalars$$|^TestKilledWhileMoving$$|^TestRunAfterRun$$|^TestThresholdEndToEnd$$|^TestPushesAreSummed$$/^lens$$|^TestUp$$|^TestCommands$$|^TestReadme$$|^TestRecipes$$|^TestMatrix$$

# TIMES has what each test took, for make times. Test binaries have no DWARF, which
# halves the time to link them; make lint vets.
TIMES := bin/times
GOTEST := mkdir -p $(TIMES) && $(GO) tool gotestsum --hide-summary skipped --format pkgname --jsonfile
TESTFLAGS := -vet=off -ldflags=-w

test: test-deps
	@for t in $$(grep -oE 'Test[A-Za-z0-9]+' <<<'$(CAPABILITIES)'); do \
	  grep -rqE "^func $$t\(" test || { echo "CAPABILITIES names $$t, which is no test"; exit 1; }; \
	done
	$(GOTEST) $(TIMES)/test-units.json -- $(TESTFLAGS) -short -timeout 10m $$($(GO) list ./... | grep -vxFf <($(GO) list $(LIVE)))
	$(GOTEST) $(TIMES)/test-live.json -- $(TESTFLAGS) -count=1 -short -timeout 10m -p 3 -run '$(CAPABILITIES)' $$($(GO) list $(LIVE))

# The rest: all of LIVE, searches at full length in packages where -short makes them
# shorter, Beam, and what the chart renders.
test-all: test-deps
	$(GOTEST) $(TIMES)/all-live.json -- $(TESTFLAGS) -count=1 -timeout 60m -p 2 -parallel 3 $$($(GO) list $(LIVE))
	$(GOTEST) $(TIMES)/all-units.json -- $(TESTFLAGS) -timeout 20m $$(git grep -lE 'testing\.Short|require\.(Time|Cases)\(|rapid\.Check' -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|' | grep -vE '^\./(cmd/psidecar-beam|test/kubernetes)' | xargs $(GO) list | grep -vxFf <($(GO) list $(LIVE)))
	cd cmd/psidecar-beam && $(GO) test -timeout 20m ./...
	cd test/kubernetes && $(GO) test -run 'TestManifests|TestRendered' -timeout 20m .

# What took longest in make test and make test-all.
times:
	@for f in $(TIMES)/*.json; do \
	  echo "== $$f: the twenty slowest packages and tests"; \
	  grep -vF '"Test":' $$f | sed -nE 's/.*"Action":"pass","Package":"([^"]*)","Elapsed":([0-9.]+).*/\2s \1/p' | sort -rn | awk 'NR <= 20'; \
	  $(GO) tool gotestsum tool slowest --num 20 --jsonfile $$f; \
	done

# Whether the tests notice faults: test/mutants/mutants.txt lists them, MUTANTS=3,7
# tries some of them.
MUTANTS ?=
mutants: test-deps
	$(GO) run ./test/mutants --only '$(MUTANTS)'

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

# Five rounds of both jobs in all ways take half an hour, and want the machine alone.
bench-weight: build
	$(GO) run ./test/weight $(WEIGHTFLAGS)

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
	$(GO) test -v -timeout 60m -count=1 -run '^$$' -bench 'SharedPulls|SummedPushes' -benchtime 1x ./test/codecs
	PSIDECAR_EVAL=1 $(GO) test -v -timeout 60m -count=1 -run 'PartsWorthIt|EntropyOfSums' ./test/codecs

lint:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt these: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) run ./deploy/chartdoc --check
	tool=$$($(GO) tool -n staticcheck) && cd cmd/psidecar-beam && $(GO) vet ./... && $$tool ./...

race: export CGO_ENABLED := 1
race: test-deps
	$(GO) test -race -short -timeout 20m $(PKGS)

# Every fuzz target for FUZZTIME, two packages at once.
fuzz:
	@git grep -l '^func Fuzz' -- '*_test.go' | xargs -n 1 dirname | sort -u | xargs -P 2 -I {} test/fuzz.sh {} $(FUZZTIME)

generate: generate-deps page
	$(GO) generate ./...

# The web page, from internal/page/src to internal/page/dist.
page: page-deps
	cd internal/page && npm run --silent check && npm test --silent && npm run --silent build

# What the page is built and tested with, axe-core for the tests in the browser too,
# unless it is there as package-lock.json has it.
page-deps:
	@cd internal/page && if ! cmp -s package-lock.json node_modules/.psidecar-lock; then \
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
