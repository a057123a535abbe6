# make demo    sets up what is missing, builds, and trains a model from a mount
# make test    sets up what is missing and runs the tests
# make check   everything that CI runs

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.7.0
FUZZTIME = 10s

.PHONY: build demo test check fuzz

build:
	go build -o batchfs ./cmd/batchfs

demo:
	@.ci/setup demo
	@$(MAKE) --no-print-directory build
	@examples/demo

test:
	@.ci/setup test
	go test -race -timeout 20m ./...

check:
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	@.ci/setup test
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff
	@$(MAKE) --no-print-directory test
	# the mount must not need a second thread to answer its first
	GOMAXPROCS=1 go test -short -count=1 ./...
	@$(MAKE) --no-print-directory fuzz

fuzz:
	go test ./sampler -run '^$$' -fuzz FuzzRead -fuzztime $(FUZZTIME)
	go test ./sampler -run '^$$' -fuzz FuzzStart -fuzztime $(FUZZTIME)
	go test ./cmd/batchfs -run '^$$' -fuzz FuzzConfig -fuzztime $(FUZZTIME)
	go test ./cmd/batchfs -run '^$$' -fuzz FuzzPath -fuzztime $(FUZZTIME)
