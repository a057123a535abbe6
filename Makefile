# make demo      installs what is missing, builds, and trains a model from a mount; DEMO="--seconds 10"
#                limits that to 10 seconds
# make test      installs what is missing, and runs all tests but the long ones, in about two minutes
# make check     does that and runs what CI adds: analysis, the race detector where goroutines share
#                data, and the long tests
# make languages installs twelve languages, and reads a mount in each in many ways
# make repeat    runs the tests of make test again and again, and prints a table of failures: N=10 times,
#                beside BUSY=6 busy loops, with ONE=1 on one processor, with SHUFFLE=1 in random order
# make times     writes the seconds of the last make test into CONTRIBUTING.md
# make build     builds ./batchfs
# make memory    shows how memory grows with a map that is kept, and not with the two fixes and a mount:
#                a table, a chart, and examples/memory.svg; MEMORY="--tokens FILE" uses another file
# make bench     measures how long a trainer waits for batches of the demo's tokens
# make wheel     builds the Python package, which contains the program, for this machine, in dist/;
#                make wheels builds it for x86_64 and arm64
# make release   builds everything that is published, in dist/release: wheels, tarballs, packages for
#                Debian and RPM, and the context of the image
# make packages  does that, and installs and uses each in an empty system
# make recipes   trains with each framework in examples, from PyPI: killed in the middle and resumed,
#                the losses must be equal
# make engines   prepares token files with Ray, Spark and datatrove, from PyPI, while a worker is killed,
#                as docs/prepare.md says
# make files     writes about 200 Parquet, JSON-lines, compressed and Arrow files with pyarrow, pandas,
#                polars, duckdb and datasets, from PyPI, and compares prepare's tokens with those of
#                what these libraries read; make check does so with a tenth of them
# make soak      runs for about three hours, on an idle machine: looks for leaks, kills processes,
#                compares all bytes with a reference, restarts mounts of an earlier version, checks
#                times and memory, repeats the tests of make test beside busy loops, and fuzzes
# make bench-compare REF=HEAD~1   compares the processor time of a batch with another commit, on an idle
#                machine: run it before merging a change of fs, sampler or cache
# make compare-nanochat NANOCHAT=clone   compares nanochat's data loader with examples/nanochat, on an
#                idle machine: speed, tokens that are used, and rows after a resume. PYTHON needs what
#                nanochat does
# make compare-prepare   compares prepare with programs around gigatoken and tokenizers, from PyPI, which
#                write the same files: speed and memory; REF=HEAD~1 adds prepare of another commit
# make page      checks the page of batchfs view in a headless browser; PICTURES=DIR keeps pictures
# make pictures  draws README's table of speed as bars, and batchfs top with a mount on /mnt/batches

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.7.0
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.8.0
# Tests build the program themselves, which Go's cache of results does not see: hence -count=1. make
# analysis vets everything, including what is imported, which takes long. The time limit is for all
# tests of a package on a busy machine. Many tests mostly wait, so twice as many packages and tests of
# a package as there are processors run at once.
TWICE = $(shell expr 2 \* $$(nproc))
FLAGS = -count=1 -vet=off -timeout 20m -p $(TWICE) -parallel $(TWICE)
TEST = .ci/progress test $(FLAGS)
# The longest first, so that others run next to it.
PACKAGES = $(addprefix ./test/,commands soak namespaces faults stores) ./test ./test/readers ./sampler ./cmd/batchfs/prepare/... ./...
# Packages whose goroutines share data. In others, the tests in SHARING do. -short skips everything in
# test/stores.
RACED = ./test/faults ./test/readers ./fs/... ./cache/... $(addprefix ./cmd/batchfs/,command dataset doctor processes scan terminal web)
SHARING = TestTablesAreBounded|TestTorchRandomAccess|TestPrepareGoesOn|TestSharedCache
# A number of inputs rather than of seconds, because Go before 1.27 may fail when time is up
# (go.dev/issue/75804).
FUZZTIME = 50000x
FUZZ = go test -run '^$$' -fuzzminimizetime 10x -fuzztime

# An awk program that lists the comment lines wider than 100 columns, with a tab every 4,
# and fails if there are any. It removes string literals, which may contain // and #.
define WIDE_COMMENTS
{
	line = $$0
	gsub(/[\200-\277]/, "", line) # counts a character of UTF-8 as one
	while (i = index(line, "\t")) sub(/\t/, substr("    ", (i - 1) % 4 + 1), line)
}
{ code = $$0; gsub(/"([^"\\]|\\.)*("|$$)|'([^'\\]|\\.)*('|$$)|`[^`]*(`|$$)/, "literal", code) }
length(line) > 100 && code ~ (FILENAME ~ /\.go$$/ ? "(^|[ \t])//" : "(^|[ \t])#") {
	print FILENAME ":" FNR ": a comment wider than 100 columns"
	wide = 1
}
END { exit wide }
endef
export WIDE_COMMENTS

.PHONY: build demo memory bench test page pictures soak check analysis race long languages repeat times vulnerabilities fuzz bench-compare compare-nanochat compare-prepare wheel wheels recipes files engines release packages

# Without the C library, as in releases: it takes less memory and runs on any Linux. The tests are
# built in the same way, so that Go compiles each package once.
export CGO_ENABLED = 0
# arrow-go imports a library for JSON that takes a fifth of the time of the build, and that batchfs
# does not use. This tag replaces it. python/wheel.py and test/e2e read it here, so the program that
# is shipped is the one that is tested.
BUILD_TAGS = arrow_json_stdlib
# With -trimpath, as in releases, Go compiles a package once for all clones. In a clone of another user,
# such as a volume of a container, git refuses to work, and go build would fail because it cannot record
# the commit.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -tags=$(BUILD_TAGS) $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false))

PROGRAM = batchfs
build:
	@.ci/go
	go build -o $(PROGRAM) ./cmd/batchfs

demo:
	@.ci/setup demo
	@.ci/progress build -o batchfs ./cmd/batchfs
	@examples/demo $(DEMO)

memory:
	@.ci/setup memory
	@.ci/progress build -o batchfs ./cmd/batchfs
	@python=$$(.ci/memory) && BATCHFS_PROGRAM=$(CURDIR)/batchfs $$python examples/memory.py $(MEMORY)

bench:
	@.ci/setup demo
	@$(MAKE) --no-print-directory build
	@[ -e demo/data/train.bin ] || examples/prepare
	./batchfs bench --python "$$(.ci/python)" --tokens demo/data/train.bin $(BENCH)

test:
	@.ci/setup test
	@.ci/progress build ./...
	@$(TEST) -short $(PACKAGES)

page:
	@.ci/setup page
	@$(MAKE) --no-print-directory build
	python3 test/page/page.py ./batchfs $(PICTURES)

pictures:
	@.ci/setup demo
	@$(MAKE) --no-print-directory build
	@[ -e demo/data/train.bin ] || examples/prepare
	mkdir -p /mnt/batches
	examples/pictures speed examples/speed.svg
	examples/pictures top examples/top.svg

# As in CI, a test fails if something that it needs is missing.
SOAK = python=$$(.ci/torch) && PYTHON=$$python BATCHFS_REQUIRE_FUSE=1 BATCHFS_SOAK=1

soak:
	@.ci/setup ci
	$(SOAK) go test ./test/soak -v -count=1 -parallel 1 -timeout 4h
	$(SOAK) go test -p 1 $$(.ci/depending soak $$(go list ./... | grep -v /test/soak$$)) -v -count=1 -parallel 1 -timeout 4h
	@$(MAKE) --no-print-directory repeat N=3 BUSY=$(shell expr 3 \* $$(nproc)) SHUFFLE=1
	@$(MAKE) --no-print-directory fuzz
	$(FUZZ) 5000000x ./cmd/batchfs/prepare/bpe -fuzz FuzzEncode

check:
	@$(MAKE) --no-print-directory analysis
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory race
	@$(MAKE) --no-print-directory long

analysis:
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	@git ls-files '*.go' '*.py' | grep -v testdata | LC_ALL=C xargs awk "$$WIDE_COMMENTS"
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff
	@$(MAKE) --no-print-directory vulnerabilities

# The race detector needs the C library.
race: export CGO_ENABLED = 1
race:
	-@.ci/versitygw
	@$(TEST) -race -short $(RACED)
	@$(TEST) -race -short -run '^($(SHARING))$$' ./sampler ./cmd/batchfs/prepare/...
	@$(TEST) -race ./test/stores

# The tests that -short skips or shortens.
long:
	-@.ci/versitygw
	@$(TEST) $$(.ci/depending short $$(go list $(PACKAGES) | grep -v /test/stores$$))

languages:
	@.ci/setup languages
	@BATCHFS_REQUIRE_FUSE=1 BATCHFS_LANGUAGES=1 $(TEST) -run '^TestLanguages$$' ./test/integrations

N = 10
repeat:
	@.ci/setup test
	@.ci/repeat --runs $(N) $(if $(BUSY),--busy $(BUSY)) $(if $(ONE),--one) $(FLAGS) $(if $(SHUFFLE),-shuffle=on) -short $(PACKAGES)

times:
	@.ci/progress table

# If the database of vulnerabilities cannot be reached, this says so and passes. The code is searched for
# calls, which takes long, only if a module has a vulnerability.
vulnerabilities:
	@said=$$(go run $(GOVULNCHECK) -C cmd/batchfs -scan module 2>&1) && echo "$$said" || case $$said in \
	*"fetching vulnerabilities:"*) echo "NOT CHECKED for known vulnerabilities, whose database cannot be reached from here: $$said" ;; \
	*) go run $(GOVULNCHECK) -test ./... ;; \
	esac

fuzz:
	@for target in $$(grep -rEo --include='*_test.go' '^func Fuzz\w+' . | sed -E 's|/[^/]*:func |:|'); do \
		$(FUZZ) $(FUZZTIME) "$${target%:*}" -fuzz "^$${target#*:}$$" || exit 1; \
	done

bench-compare:
	@test -n "$(REF)" || { echo "which commit to compare with? make bench-compare REF=HEAD~1" >&2; exit 1; }
	@dir=$$(mktemp -d) && trap 'git worktree remove --force $$dir/src; rm -rf $$dir' EXIT && \
	git worktree add -q --detach $$dir/src $(REF) && go build -C $$dir/src -o $$dir/ref ./cmd/batchfs && \
	BATCHFS_REF=$$dir/ref go test ./test/soak -run '^TestCompare$$' -v -count=1

compare-nanochat:
	@test -n "$(NANOCHAT)" || { echo "where is nanochat? make compare-nanochat NANOCHAT=clone" >&2; exit 1; }
	@$(MAKE) --no-print-directory build
	PYTHONPATH=python BATCHFS_PROGRAM=$(CURDIR)/batchfs "$$(.ci/python)" examples/nanochat/compare.py $(NANOCHAT)

compare-prepare:
	@$(MAKE) --no-print-directory build
	@dir=$$(mktemp -d) && trap 'git worktree remove --force $$dir/src 2>/dev/null; rm -rf $$dir' EXIT && \
	if [ -n "$(REF)" ]; then git worktree add -q --detach $$dir/src $(REF) && go build -C $$dir/src -o $$dir/ref ./cmd/batchfs || exit 1; fi && \
	tokenizers=$$(.ci/tokenizers) && $$tokenizers/bin/pip install -q gigatoken==0.10.0 && \
	$$tokenizers/bin/python test/clients/compare_prepare.py ./batchfs $$tokenizers/llama3_2.json $(if $(REF),$$dir/ref)

wheel:
	python3 python/wheel.py

wheels:
	python3 python/wheel.py --arch amd64 --arch arm64

recipes:
	@.ci/setup test
	python=$$(.ci/recipes) && PYTHON=$$python BATCHFS_REQUIRE_FUSE=1 BATCHFS_RECIPES=1 \
		go test ./test/commands -run '^TestRecipes$$' -v -count=1 -timeout 1h

engines:
	@.ci/setup engines
	python=$$(.ci/engines) && PYTHON_ENGINES=$$python go test ./test/commands -run '^TestEngines$$' -v -count=1 -timeout 30m

files:
	@.ci/setup files
	BATCHFS_REQUIRE_FUSE=1 BATCHFS_SOAK=1 go test ./test/soak -run '^TestFilesOfLibraries$$' -v -count=1 -timeout 20m

release:
	deploy/release/release

packages: release
	@.ci/setup packages
	deploy/release/packages
