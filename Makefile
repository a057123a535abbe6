# make demo    sets up what is missing, builds, and trains a model from a mount; DEMO="--seconds 10" does so for 10 seconds
# make bench   measures how long a trainer waits for batches, on the demo's tokens; BENCH=--memory measures memory
# make test    sets up what is missing and runs the tests but for those that take long, in a few minutes
# make page    shows the page of batchfs view in a browser without a window, checks it, and leaves pictures of it in PICTURES
# make pictures   draws README's table of speed as bars, and what batchfs top shows of a mount on /mnt/batches
# make soak    lets those tests run for about three hours that look for leaks, kill what serves and compare all bytes and tokens with
#              a reference, holds times and memory to their limits, and fuzzes: nothing else should use the machine
# make check   what CI runs: all tests, with the race detector where goroutines share something, and analysis
# make wheel   builds the Python package with the program in it, for x86_64 and arm64, in dist/
# make recipes  trains with each framework that examples has a recipe for, from PyPI: killed in the middle and resumed, the losses are equal
# make release    makes all that is published, in dist/release: wheels, tarballs, packages of Debian and RPM, and the context of the image
# make packages   does that, and installs and uses each where there is nothing else
# make bench-compare REF=HEAD~1   the processor time that a batch takes, next to that of another commit: before a change of fs, sampler
#              or cache is merged, while nothing else uses the machine

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.7.0
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.8.0
# Without -count=1 Go would not run those tests again that build the program themselves, whatever has changed in it. Each wait
# in them has a limit of five minutes; -timeout is for all tests of a package, on a machine with much else to do. Many tests do nothing but
# wait for a time to pass, so twice as many as there are processors run at once.
TEST = .ci/progress -count=1 -timeout 20m -parallel $(shell expr 2 \* $$(nproc))
# The longest first: then the others run beside it. test/exclusive waits for all others of test, which have ended when it begins.
PACKAGES = $(addprefix ./test/,soak faults stores commands integrations readers) ./test ./sampler ./cmd/batchfs/prepare/... ./test/exclusive ./...
RACED = $(addprefix ./test/,faults stores readers) ./fs/... ./cache/...
# In inputs, not in seconds: Go before 1.27 may fail when the seconds are over (go.dev/issue/75804).
FUZZTIME = 50000x
FUZZ = go test -run '^$$' -fuzzminimizetime 10x -fuzztime

.PHONY: build demo bench test page pictures soak check vulnerabilities fuzz bench-compare wheel recipes release packages

# Without C's library, as it is published: less memory, and it runs wherever Linux does.
build:
	CGO_ENABLED=0 go build -o batchfs ./cmd/batchfs

demo:
	@.ci/setup demo
	@$(MAKE) --no-print-directory build
	@examples/demo $(DEMO)

bench:
	@.ci/setup demo
	@$(MAKE) --no-print-directory build
	@[ -e demo/data/train.bin ] || examples/prepare
	./batchfs bench --python "$$(.ci/python)" --tokens demo/data/train.bin $(BENCH)

test:
	@.ci/setup test
	$(TEST) -short $(PACKAGES)

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

# What is held to times and memory outside test/soak.
LIMITS = TestStoreOutage|TestTimeLimit|TestUnkillable|TestHangingWorker|TestGrace|TestDoctorOfMounts|TestInterruptedCommands|TestCrowd|TestNoMemory|TestTop|TestManyShards|TestManyShardsAreAsFastAsFew|TestReadersShareAReload|TestOneOfSeveralFilesChanges

soak:
	@.ci/setup test
	BATCHFS_SOAK=1 go test ./test/soak -v -count=1 -parallel 1 -timeout 4h
	BATCHFS_SOAK=1 go test -p 1 ./test/stores ./test/faults ./test/commands -run '^($(LIMITS))$$' -v -count=1 -parallel 1 -timeout 1h
	@$(MAKE) --no-print-directory fuzz
	$(FUZZ) 5000000x ./cmd/batchfs/prepare/bpe -fuzz FuzzEncode

check:
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	@.ci/setup test
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff
	@$(MAKE) --no-print-directory vulnerabilities
	$(TEST) -vet=off -race $(RACED)
	$(TEST) -vet=off $$(go list $(PACKAGES) | grep -vxF "$$(go list $(RACED))")

# A machine that cannot ask for what is known has nothing to answer for, but it says so. Only where a module has a vulnerability, the code is
# searched for calls of it, which takes long.
vulnerabilities:
	@said=$$(go run $(GOVULNCHECK) -C cmd/batchfs -scan module 2>&1) && echo "$$said" || case $$said in \
	*"fetching vulnerabilities:"*) echo "NOT CHECKED for known vulnerabilities, whose database cannot be reached from here: $$said" ;; \
	*) go run $(GOVULNCHECK) -test ./... ;; \
	esac

fuzz:
	for parser in Npy LLMC Safetensors Megatron Datatrove; do \
		$(FUZZ) $(FUZZTIME) ./cache/format -fuzz "Fuzz$$parser$$" || exit 1; \
	done
	$(FUZZ) $(FUZZTIME) ./cache -fuzz FuzzIndex
	$(FUZZ) $(FUZZTIME) ./sampler -fuzz FuzzRead
	$(FUZZ) $(FUZZTIME) ./sampler -fuzz FuzzStart
	$(FUZZ) $(FUZZTIME) ./cmd/batchfs/config -fuzz FuzzConfig
	$(FUZZ) $(FUZZTIME) ./cmd/batchfs/config -fuzz FuzzPath
	$(FUZZ) $(FUZZTIME) ./cmd/batchfs/prepare -fuzz FuzzTextOf
	$(FUZZ) $(FUZZTIME) ./cmd/batchfs/prepare/bpe -fuzz FuzzEncode

bench-compare:
	@test -n "$(REF)" || { echo "which commit to compare with? make bench-compare REF=HEAD~1" >&2; exit 1; }
	@dir=$$(mktemp -d) && trap 'git worktree remove --force $$dir/src; rm -rf $$dir' EXIT && \
	git worktree add -q --detach $$dir/src $(REF) && go build -C $$dir/src -o $$dir/ref ./cmd/batchfs && \
	BATCHFS_REF=$$dir/ref go test ./test/soak -run '^TestCompare$$' -v -count=1

wheel:
	python3 python/wheel.py

recipes:
	@.ci/setup test
	python=$$(.ci/recipes) && PYTHON=$$python BATCHFS_REQUIRE_FUSE=1 BATCHFS_RECIPES=1 \
		go test ./test/commands -run '^TestRecipes$$' -v -count=1 -timeout 1h

release:
	deploy/release/release

packages: release
	@.ci/setup packages
	deploy/release/packages
